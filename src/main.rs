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

fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().build().map_err(|e| format!("cannot start the threads: {e}"))
}
