//! The binary `mosaic`: see `mosaic --help`.

use std::process::ExitCode;

use clap::Parser;
use mosaic::config::cli::{Cli, Command};
use mosaic::{dev, serve};

fn main() -> ExitCode {
    let argv: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    let outcome = match Cli::parse().command {
        // Before any thread is started: this process becomes another program.
        Command::DevChild(args) => Err(dev::child::become_child(args.parent, &args.command).to_string()),
        Command::Dev(args) => runtime().and_then(|rt| rt.block_on(dev::run(args, argv))),
        Command::Serve(args) => runtime().and_then(|rt| rt.block_on(serve::run(*args, argv))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("mosaic: {message}");
            ExitCode::FAILURE
        }
    }
}

/// One worker for two cores: requests are short, and waking a second worker for each costs more than it brings
/// (measured with `benches/compare`: a fifth of the CPU of a point find). `TOKIO_WORKER_THREADS` overrides it.
fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let asked = std::env::var("TOKIO_WORKER_THREADS").ok().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut builder = match asked.unwrap_or(cores.div_ceil(2)) {
        // A single thread needs no scheduler that could share the work.
        1 => tokio::runtime::Builder::new_current_thread(),
        workers => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(workers);
            builder
        }
    };
    builder.enable_all().build().map_err(|e| format!("cannot start the threads: {e}"))
}
