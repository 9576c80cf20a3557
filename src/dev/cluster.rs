//! Starts the members, the replica sets, the routers; waits; stops all of it again.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::child::{Member, Spawner, stop_all};
use super::layout::{self, Home, Layout, is_free};
use super::mongod::{self, Mongod};
use super::{Failure, progress, replset};
use crate::config::cli::DevArgs;
use crate::router::{Router, Running};
use crate::stats::log;

/// A mongod opens its files, recovers what a crash left, and listens within this.
const START_PATIENCE: Duration = Duration::from_secs(120);
const ELECTION_PATIENCE: Duration = Duration::from_secs(90);
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// A mongod of the cluster.
struct Server {
    /// `shard0 member 1`
    what: String,
    port: u16,
    log: PathBuf,
    /// What it wrote to its standard output and error: complaints about its arguments.
    output: PathBuf,
    /// Its end was reported.
    reported: bool,
}

impl Server {
    fn did_not_start(&self, why: &str) -> Failure {
        let (what, port) = (&self.what, self.port);
        format!("{what} (mongod on port {port}) did not start: {why}\n{}{}", tail(&self.log), tail(&self.output))
    }
}

/// Runs the cluster until SIGINT or SIGTERM.
///
/// # Errors
/// Why it could not start; everything that was started is stopped again.
pub async fn run(args: DevArgs, argv: Vec<String>) -> Result<(), Failure> {
    if args.find_mongod {
        println!("{}", mongod::find(args.mongod.as_deref())?.path.display());
        return Ok(());
    }
    crate::serve::raise_file_limit();
    let mut signals = Signals::new()?;
    let router_ports = router_ports(&args)?;
    let home = Home::open(args.dir.as_deref())?;
    let layout = home.layout(&args)?;
    home.check_catalog(&layout)?;
    // What --setParameter has wrong is told before anything is started.
    args.router_config(layout::catalog(&layout, &home), args.port, argv.clone()).map_err(|e| e.to_string())?;
    check_member_ports(&layout, &router_ports, &home).await?;
    home.keep(&layout)?;
    let mongod = mongod::find(args.mongod.as_deref())?;

    let mut cluster = Cluster { members: Vec::new(), servers: Vec::new(), routers: Vec::new() };
    let started = tokio::select! {
        started = cluster.start(&args, &argv, &home, &layout, &mongod, &router_ports) => started,
        name = signals.next() => Err(format!("{name} before the cluster was ready")),
    };
    let outcome = match started {
        Ok(()) => {
            announce(args.port);
            cluster.watch(&mut signals).await;
            Ok(())
        }
        Err(e) => Err(e),
    };
    let stopping = cluster.stop();
    tokio::select! {
        () = stopping => {}
        // Dropping the rest ends it: members die with this process.
        name = signals.next() => progress!("{name} again: not waiting any longer"),
    }
    outcome
}

/// The one line on standard output.
fn announce(port: u16) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "ready mongodb://127.0.0.1:{port}");
    let _ = out.flush();
}

fn router_ports(args: &DevArgs) -> Result<Vec<u16>, Failure> {
    let last = args.port.checked_add(args.routers.saturating_sub(1));
    let ports: Vec<u16> = (args.port..=last.ok_or("the routers' ports end at 65535; give a lower --port")?).collect();
    for port in &ports {
        if !is_free(*port) {
            return Err(format!("port {port} is taken: another program listens there; give another --port"));
        }
    }
    Ok(ports)
}

async fn check_member_ports(layout: &Layout, routers: &[u16], home: &Home) -> Result<(), Failure> {
    for set in layout.sets() {
        for (i, port) in set.ports.iter().enumerate() {
            end_left_behind(&home.member_dir(&set.name, i)).await;
            if routers.contains(port) {
                return Err(format!("port {port} is that of a member of {}; give another --port", set.name));
            }
            if !becomes_free(*port).await {
                return Err(format!(
                    "port {port}, which member {i} of {} has in {}, is taken: another program listens there",
                    set.name,
                    home.path.display()
                ));
            }
        }
    }
    Ok(())
}

/// A mongod that was killed a moment ago may still be on its way out.
async fn becomes_free(port: u16) -> bool {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !is_free(port) {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    true
}

/// Ends a mongod of an earlier run that still has this data directory open. We hold the cluster's lock, so nobody
/// else's cluster is meant; the command line is compared because process ids are used again.
async fn end_left_behind(dir: &Path) {
    let Ok(text) = std::fs::read_to_string(dir.join("mongod.pid")) else { return };
    let Some(pid) = text.trim().parse().ok().and_then(rustix::process::Pid::from_raw) else { return };
    let proc_dir = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let command = std::fs::read(proc_dir.join("cmdline")).unwrap_or_default();
    let data = dir.join("data");
    if !command.split(|b| *b == 0).any(|arg| arg == data.as_os_str().as_encoded_bytes()) {
        return;
    }
    progress!("ending mongod {}, left behind by an earlier run", pid.as_raw_nonzero());
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    let deadline = Instant::now() + Duration::from_secs(10);
    while proc_dir.join("exe").exists() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

struct Cluster {
    members: Vec<Member>,
    servers: Vec<Server>,
    routers: Vec<Running>,
}

impl Cluster {
    async fn start(
        &mut self,
        args: &DevArgs,
        argv: &[String],
        home: &Home,
        layout: &Layout,
        mongod: &Mongod,
        router_ports: &[u16],
    ) -> Result<(), Failure> {
        let spawner = Spawner::new().map_err(|e| format!("cannot start a thread: {e}"))?;
        let count: usize = layout.sets().map(|s| s.ports.len()).sum();
        progress!("starting {count} mongod {} in {}", mongod.version, home.path.display());
        for set in layout.sets() {
            for (i, port) in set.ports.iter().enumerate() {
                let dir = home.member_dir(&set.name, i);
                self.start_member(&spawner, mongod, &set.name, i, *port, &dir, &args.mongod_args)?;
            }
        }
        let Cluster { members, servers, routers } = self;
        tokio::select! {
            biased;
            why = first_end(members, servers) => Err(why),
            done = bring_up(servers, routers, args, argv, home, layout, router_ports) => done,
        }
    }

    #[allow(clippy::too_many_arguments)] // one place calls it; a struct would only repeat the names
    fn start_member(
        &mut self,
        spawner: &Spawner,
        mongod: &Mongod,
        set: &str,
        index: usize,
        port: u16,
        dir: &Path,
        more: &[String],
    ) -> Result<(), Failure> {
        let data = dir.join("data");
        std::fs::create_dir_all(&data).map_err(|e| format!("cannot create {}: {e}", data.display()))?;
        let log = dir.join("mongod.log");
        let args = member_args(set, port, dir, &log, more);
        let output = dir.join("mongod.out");
        let sink = std::fs::File::create(&output).map_err(|e| format!("cannot create {}: {e}", output.display()))?;
        let member = spawner.spawn(&mongod.path, &args, sink).map_err(|e| format!("cannot start a mongod: {e}"))?;
        self.members.push(member);
        self.servers.push(Server { what: format!("{set} member {index}"), port, log, output, reported: false });
        Ok(())
    }

    /// Until a signal comes; tells of members that end meanwhile.
    async fn watch(&mut self, signals: &mut Signals) {
        loop {
            tokio::select! {
                name = signals.next() => {
                    progress!("{name}: stopping");
                    return;
                }
                () = tokio::time::sleep(Duration::from_millis(500)) => {}
            }
            for (member, server) in self.members.iter_mut().zip(&mut self.servers) {
                if let Some(status) = member.ended().filter(|_| !server.reported) {
                    server.reported = true;
                    progress!(
                        "{} (mongod on port {}) ended: {status}; its log is {}",
                        server.what,
                        server.port,
                        server.log.display()
                    );
                }
            }
        }
    }

    async fn stop(&mut self) {
        for router in self.routers.drain(..) {
            router.stop().await;
        }
        let killed = stop_all(&mut self.members, STOP_PATIENCE).await;
        if killed > 0 {
            progress!("{killed} mongod did not stop within {} s and were killed", STOP_PATIENCE.as_secs());
        }
    }
}

/// Waits for the members and makes a cluster of them.
async fn bring_up(
    servers: &[Server],
    routers: &mut Vec<Running>,
    args: &DevArgs,
    argv: &[String],
    home: &Home,
    layout: &Layout,
    router_ports: &[u16],
) -> Result<(), Failure> {
    for server in servers {
        let up = replset::wait_for_port(server.port, START_PATIENCE).await;
        up.map_err(|e| server.did_not_start(&e))?;
    }
    progress!("waiting for the primaries of {} replica sets", layout.sets().count());
    try_join_all(layout.sets().map(|set| replset::bring_up(set, ELECTION_PATIENCE))).await?;
    for port in router_ports {
        let config = args.router_config(layout::catalog(layout, home), *port, argv.to_vec());
        let mut config = config.map_err(|e| e.to_string())?;
        config.log.path = Some(home.path.join("router.log"));
        config.log.append = true;
        // Nobody need be led elsewhere before a newcomer's cluster stops.
        let _ = config.parameters.set("mongosShutdownTimeoutMillisForSignaledShutdown", &bson::Bson::Int32(100));
        if routers.is_empty() {
            log::init(&config.log).map_err(|e| e.to_string())?;
        }
        let running = Router::start(config).await;
        routers.push(running.map_err(|e| format!("cannot start the router on port {port}: {e}"))?);
        progress!("router on port {port}");
    }
    home.keep(&Layout { initiated: true, ..layout.clone() })?;
    let client = replset::connect(args.port).await?;
    for set in &layout.shards {
        replset::add_shard(&client, set).await?;
        progress!("shard {} is {}", set.name, set.connection_string());
    }
    for running in routers.iter() {
        running.router.catalog.confirm().await.map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Waits until a member ends, which none does before the cluster is told to stop, and says why.
async fn first_end(members: &mut [Member], servers: &[Server]) -> Failure {
    loop {
        for (member, server) in members.iter_mut().zip(servers) {
            if let Some(status) = member.ended() {
                return server.did_not_start(&format!("it ended ({status})"));
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn member_args(set: &str, port: u16, dir: &Path, log: &Path, more: &[String]) -> Vec<OsString> {
    let port = port.to_string();
    let mut args: Vec<OsString> = [
        ["--replSet", set],
        ["--port", &port],
        ["--bind_ip", "127.0.0.1"],
        ["--wiredTigerCacheSizeGB", "0.25"],
        ["--oplogSize", "256"],
        // Two-phase commit needs it.
        ["--setParameter", "enableTestCommands=1"],
        ["--setParameter", "diagnosticDataCollectionEnabled=false"],
        // Change streams over several shards wait for the slowest one's clock.
        ["--setParameter", "periodicNoopIntervalSecs=1"],
        // A member that is told to stop need not wait for its clients to notice.
        ["--setParameter", "shutdownTimeoutMillisForSignaledShutdown=100"],
    ]
    .iter()
    .flatten()
    .map(OsString::from)
    .collect();
    args.extend(["--nounixsocket".into(), "--logappend".into()]);
    args.extend(["--dbpath".into(), dir.join("data").into_os_string()]);
    args.extend(["--logpath".into(), log.as_os_str().to_owned()]);
    args.extend(["--pidfilepath".into(), dir.join("mongod.pid").into_os_string()]);
    args.extend(more.iter().map(OsString::from));
    args
}

/// The last lines of a log, for a message; nothing where there are none.
fn tail(log: &Path) -> String {
    let text = std::fs::read(log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.get(lines.len().saturating_sub(8)..).unwrap_or_default();
    if last.is_empty() {
        return String::new();
    }
    format!("the end of {}:\n{}\n", log.display(), last.join("\n"))
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let of = |kind| signal(kind).map_err(|e| format!("cannot listen for signals: {e}"));
        Ok(Signals { interrupt: of(SignalKind::interrupt())?, terminate: of(SignalKind::terminate())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
