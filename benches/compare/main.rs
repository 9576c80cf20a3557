//! Compares a client that talks to a mongod directly, through haproxy (TCP), and through Mosaic, alternating in one run.
//!
//! ```text
//! cargo bench --bench compare                      the table
//! cargo bench --bench compare -- --only find       some operations only
//! cargo bench --bench compare -- --endurance 600   the router's memory under ten minutes of mixed load
//! cargo bench --bench compare -- --idle 5000       the router's memory for 5,000 idle connections
//! ```
//! The cluster is `mosaic dev`'s; what is measured is a router of its own, `mosaic serve`. The client, haproxy, the router
//! and the mongods share the machine.

mod client;
mod load;
mod process;
mod report;
mod setup;

use std::io;
use std::time::Duration;

use clap::Parser;
use client::Client;
use load::{Measured, Op};
use report::Row;
use setup::{Setup, Target};

#[derive(Parser)]
struct Args {
    /// Seconds for each measurement
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds; the table has medians
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Numbers of connections
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    connections: Vec<usize>,
    /// Only operations with this in their name
    #[arg(long, default_value = "")]
    only: String,
    /// First port; the 40 above are used too
    #[arg(long, default_value_t = 28100)]
    port: u16,
    /// Instead of the table: mixed load for so many seconds, memory every tenth of it
    #[arg(long)]
    endurance: Option<u64>,
    /// Instead of the table: memory for so many idle connections
    #[arg(long)]
    idle: Option<usize>,
    /// cargo passes it
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    mosaic::serve::raise_file_limit();
    // One thread for the client leaves the rest to what is measured.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let setup = Setup::start(args.port).await?;
        match (args.endurance, args.idle) {
            (Some(seconds), _) => endurance(&setup, seconds).await,
            (None, Some(connections)) => idle(&setup, connections).await,
            (None, None) => table(&setup, &args).await,
        }
    })
}

async fn table(setup: &Setup, args: &Args) -> io::Result<()> {
    let time = Duration::from_secs_f64(args.seconds);
    let ops: Vec<Op> = load::ALL.into_iter().filter(|op| op.name().contains(&args.only)).collect();
    let mut rows: Vec<Row> = Vec::new();
    for round in 0..args.rounds {
        for op in &ops {
            for connections in &args.connections {
                eprintln!("round {}: {}, {connections} connections", round + 1, op.name());
                for target in &setup.targets {
                    let (measured, cpu) = measure(target, *op, *connections, time).await?;
                    report::add(&mut rows, *op, *connections, target.name, measured, cpu);
                }
            }
        }
        for target in setup.targets.iter().filter(|t| t.name != "haproxy") {
            load::clean(target.port, target.db).await?;
        }
    }
    report::print(&rows, &setup.targets);
    Ok(())
}

/// One measurement after a short time to get warm; CPU microseconds per operation of the process in the middle.
async fn measure(target: &Target, op: Op, connections: usize, time: Duration) -> io::Result<(Measured, Option<f64>)> {
    load::run(target.port, target.db, op, connections, time / 8).await?;
    let before = target.pid.map(process::cpu_seconds);
    let measured = load::run(target.port, target.db, op, connections, time).await?;
    let used = target.pid.zip(before).map(|(pid, before)| process::cpu_seconds(pid) - before);
    let per_op = used.map(|seconds| seconds * 1e6 / measured.operations.max(1) as f64);
    Ok((measured, per_op))
}

fn router(setup: &Setup) -> io::Result<(&Target, u32)> {
    let router = setup.router().ok_or_else(|| io::Error::other("no router"))?;
    Ok((router, router.pid.unwrap_or(0)))
}

async fn endurance(setup: &Setup, seconds: u64) -> io::Result<()> {
    let (router, pid) = router(setup)?;
    let slice = Duration::from_secs_f64(seconds as f64 / 10.0 / load::ALL.len() as f64);
    println!("memory of the router under mixed load on 16 connections, {seconds} s in all:");
    for step in 0..10 {
        let mut operations = 0;
        for op in load::ALL {
            operations += load::run(router.port, router.db, op, 16, slice).await?.operations;
        }
        load::clean(router.port, router.db).await?;
        let (memory, threads) = (process::resident_kib(pid), process::threads(pid));
        println!("{:>3} %  {memory:>8} KiB  {threads} threads  {operations} operations", (step + 1) * 10);
    }
    Ok(())
}

async fn idle(setup: &Setup, connections: usize) -> io::Result<()> {
    let (router, pid) = router(setup)?;
    let before = process::resident_kib(pid);
    let mut open = Vec::with_capacity(connections);
    for _ in 0..connections {
        open.push(Client::connect(router.port).await?);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let with = process::resident_kib(pid);
    let cpu = process::cpu_seconds(pid);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let cpu = (process::cpu_seconds(pid) - cpu) / 5.0 * 100.0;
    drop(open);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = process::resident_kib(pid);
    let each = with.saturating_sub(before) as f64 / connections.max(1) as f64;
    println!(
        "router: {before} KiB before, {with} KiB with {connections} idle connections ({each:.1} KiB each), {after} KiB after"
    );
    println!("threads: {}; CPU with them idle: {cpu:.2} %", process::threads(pid));
    Ok(())
}
