//! `mosaic serve`: one router, in the foreground.

use std::path::Path;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::Config;
use crate::config::cli::ServeArgs;
use crate::router::Router;
use crate::stats::log;

/// Serves until SIGINT or SIGTERM. SIGUSR1 rotates the log.
///
/// # Errors
/// What keeps the router from starting, for the person at the terminal.
pub async fn run(args: ServeArgs, argv: Vec<String>) -> Result<(), String> {
    let config = args.config(argv).map_err(|e| e.to_string())?;
    config.check_directories()?;
    if args.check {
        config.check_addresses()?;
        println!("{}", shown(&config));
        return Ok(());
    }
    log::init(&config.log).map_err(|e| e.to_string())?;
    raise_file_limit();
    let of = |kind| signal(kind).map_err(|e| format!("cannot listen for signals: {e}"));
    let mut stop = (of(SignalKind::interrupt())?, of(SignalKind::terminate())?);
    let mut rotate = of(SignalKind::user_defined1())?;
    if config.net.bind_ips.iter().any(|ip| !is_loopback(ip)) {
        log::startup_warning(
            "Mosaic does not authenticate its clients yet, and it listens on addresses that other machines may reach: \
             whoever reaches them reads and writes all data",
        );
    }
    let pid_file = config.pid_file.clone();
    let running = Router::start(config).await.map_err(|e| e.to_string())?;
    let _pid_file = pid_file.as_deref().map(PidFile::write).transpose()?;
    for address in &running.addresses {
        tracing::info!(%address, pid = std::process::id(), "waiting for connections");
    }
    let name = until_stopped(&mut stop, &mut rotate).await;
    tracing::info!(signal = name, "stopping");
    running.stop().await;
    Ok(())
}

async fn until_stopped(stop: &mut (Signal, Signal), rotate: &mut Signal) -> &'static str {
    loop {
        tokio::select! {
            _ = stop.0.recv() => return "SIGINT",
            _ = stop.1.recv() => return "SIGTERM",
            _ = rotate.recv() => {
                if let Err(error) = log::rotate() {
                    tracing::error!(%error, "cannot rotate the log");
                }
            }
        }
    }
}

fn is_loopback(ip: &str) -> bool {
    ip == "localhost" || ip.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// What is in effect, for `--check`.
fn shown(config: &Config) -> String {
    let given = serde_json::to_string_pretty(&config.parsed).unwrap_or_default();
    format!("the configuration is valid; given are:\n{given}")
}

/// A connection is an open file; the soft limit of a login shell is low.
pub fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// Written at the start, removed at the end.
struct PidFile<'a>(&'a Path);

impl<'a> PidFile<'a> {
    fn write(path: &'a Path) -> Result<Self, String> {
        std::fs::write(path, format!("{}\n", std::process::id()))
            .map_err(|e| format!("cannot write the process id to {}: {e}", path.display()))?;
        Ok(PidFile(path))
    }
}

impl Drop for PidFile<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}
