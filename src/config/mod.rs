//! What a router is told at its start: command line, configuration file, defaults — in this order of precedence.

use std::path::PathBuf;
use std::time::Duration;

use bson::Document;

pub use crate::wire::Compressor;

pub mod cli;
pub mod file;
pub mod keyfile;
mod options;
pub mod params;
mod places;
mod yaml;

pub use params::Parameters;

/// Everything one router needs to start. Built by [`cli`] (from flags and file) or by `mosaic dev`.
#[derive(Clone, Debug)]
pub struct Config {
    pub net: Net,
    pub log: Log,
    pub catalog: CatalogConfig,
    pub pool: Pool,
    pub parameters: Parameters,
    /// Authenticates the router to its shards (never clients to the router, yet).
    pub key_file: Option<PathBuf>,
    pub pid_file: Option<PathBuf>,
    /// `replication.localPingThresholdMs`: the latency window of read preference `nearest` and friends.
    pub local_threshold: Duration,
    /// The command line, for `getCmdLineOpts`.
    pub argv: Vec<String>,
    /// The options in effect that were given, nested as in the file, for `getCmdLineOpts`.
    pub parsed: Document,
}

#[derive(Clone, Debug)]
pub struct Net {
    pub port: u16,
    /// Addresses or host names to listen on.
    pub bind_ips: Vec<String>,
    /// Listen on IPv6 too where an address or name means both.
    pub ipv6: bool,
    pub max_incoming_connections: usize,
    /// What the router offers its clients, in order of preference.
    pub compressors: Vec<Compressor>,
    /// The name other routers and `config.mongos` know this one by; `None` = the machine's host name.
    pub advertised_host: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Log {
    /// `None` = standard error.
    pub path: Option<PathBuf>,
    /// Append to an existing file at start; `false` moves it aside first, as mongos does.
    pub append: bool,
    /// 0 (informational) to 5.
    pub verbosity: u8,
    /// No lines for connections that come and go.
    pub quiet: bool,
    /// Operations that take at least this long are logged; `None` = none (`operationProfiling.slowOpThresholdMs`).
    pub slow_op: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogConfig {
    /// One redb file, for exactly one router.
    Embedded { path: PathBuf },
    /// A config replica set, for any number of routers.
    ReplicaSet { set_name: String, hosts: Vec<String> },
}

impl CatalogConfig {
    /// `set/host:port,host:port`, as `sharding.configDB` has it; `None` for the embedded store.
    pub fn config_db(&self) -> Option<String> {
        match self {
            CatalogConfig::Embedded { .. } => None,
            CatalogConfig::ReplicaSet { set_name, hosts } => Some(format!("{set_name}/{}", hosts.join(","))),
        }
    }
}

/// The connections to each server of each shard.
#[derive(Clone, Debug)]
pub struct Pool {
    pub min_size: usize,
    pub max_size: usize,
    /// Connections being established at one time, per server.
    pub max_connecting: usize,
    /// An unused connection is closed after this long.
    pub idle_timeout: Duration,
    pub connect_timeout: Duration,
    /// How long an operation waits for a suitable server (133 afterwards).
    pub server_selection_timeout: Duration,
    pub heartbeat_interval: Duration,
}

impl Default for Net {
    fn default() -> Self {
        Net {
            port: 27017,
            bind_ips: vec!["127.0.0.1".to_owned()],
            ipv6: false,
            max_incoming_connections: 65_536,
            compressors: Compressor::OFFERED.to_vec(),
            advertised_host: None,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Log { path: None, append: false, verbosity: 0, quiet: false, slow_op: Some(Duration::from_millis(100)) }
    }
}

impl Default for Pool {
    fn default() -> Self {
        Pool {
            min_size: 1,
            max_size: i64::MAX as usize,
            max_connecting: 2,
            idle_timeout: Duration::from_secs(300),
            connect_timeout: Duration::from_secs(10),
            server_selection_timeout: Duration::from_secs(20),
            heartbeat_interval: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// Defaults for everything but the catalog.
    pub fn new(catalog: CatalogConfig) -> Self {
        Config {
            net: Net::default(),
            log: Log::default(),
            catalog,
            pool: Pool::default(),
            parameters: Parameters::default(),
            key_file: None,
            pid_file: None,
            local_threshold: Duration::from_millis(15),
            argv: Vec::new(),
            parsed: Document::new(),
        }
    }
}
