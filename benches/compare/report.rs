//! Medians, and the table in Markdown.

use std::time::Duration;

use crate::load::{Measured, Op};
use crate::process;
use crate::setup::Target;

/// All measurements of one operation on one number of connections through one target.
pub struct Row {
    op: Op,
    connections: usize,
    target: &'static str,
    measured: Vec<Measured>,
    cpu: Vec<f64>,
}

pub fn add(
    rows: &mut Vec<Row>,
    op: Op,
    connections: usize,
    target: &'static str,
    measured: Measured,
    cpu: Option<f64>,
) {
    let same = |r: &&mut Row| r.op == op && r.connections == connections && r.target == target;
    match rows.iter_mut().find(same) {
        Some(row) => {
            row.measured.push(measured);
            row.cpu.extend(cpu);
        }
        None => rows.push(Row { op, connections, target, measured: vec![measured], cpu: cpu.into_iter().collect() }),
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// What the table has for one row.
struct Medians {
    per_second: f64,
    p50: f64,
    p99: f64,
    cpu: Option<f64>,
}

impl Row {
    fn medians(&self) -> Medians {
        let of = |f: &dyn Fn(&Measured) -> f64| median(self.measured.iter().map(f).collect()).unwrap_or(0.0);
        let micros = |d: Duration| d.as_secs_f64() * 1e6;
        Medians {
            per_second: of(&Measured::per_second),
            p50: of(&|m| micros(m.p50)),
            p99: of(&|m| micros(m.p99)),
            cpu: median(self.cpu.clone()),
        }
    }
}

/// Prints one line for each operation, number of connections and target, then how Mosaic stands against haproxy.
pub fn print(rows: &[Row], targets: &[Target]) {
    println!("{}", process::machine());
    println!();
    println!("| operation | connections | through | ops/s | p50 µs | p99 µs | CPU µs/op |");
    println!("| --- | ---: | --- | ---: | ---: | ---: | ---: |");
    let mut seen: Vec<(Op, usize)> = Vec::new();
    for row in rows {
        if !seen.contains(&(row.op, row.connections)) {
            seen.push((row.op, row.connections));
        }
    }
    let find = |op, connections, target| {
        rows.iter().find(|r| r.op == op && r.connections == connections && r.target == target).map(Row::medians)
    };
    for (op, connections) in &seen {
        for target in targets {
            let Some(m) = find(*op, *connections, target.name) else { continue };
            let cpu = m.cpu.map_or("–".to_owned(), |c| format!("{c:.0}"));
            let (name, per_second) = (op.name(), m.per_second);
            println!(
                "| {name} | {connections} | {} | {per_second:.0} | {:.0} | {:.0} | {cpu} |",
                target.name, m.p50, m.p99
            );
        }
    }
    println!();
    for target in targets {
        if let Some(pid) = target.pid {
            println!("{}: {} KiB, {} threads", target.name, process::resident_kib(pid), process::threads(pid));
        }
    }
    println!();
    for (op, connections) in &seen {
        let all =
            (find(*op, *connections, "direct"), find(*op, *connections, "haproxy"), find(*op, *connections, "mosaic"));
        let (Some(direct), Some(haproxy), Some(mosaic)) = all else { continue };
        let cpu = mosaic.cpu.zip(haproxy.cpu).map_or(0.0, |(m, h)| m / h);
        let added = (mosaic.p50 - direct.p50) / (haproxy.p50 - direct.p50);
        println!(
            "{}, {connections} connections: CPU {cpu:.2} × haproxy's, added p50 latency {added:.2} × haproxy's",
            op.name()
        );
    }
}
