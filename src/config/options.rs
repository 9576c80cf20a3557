//! The table of options: where each stands in the file, what it accepts, what it sets. Flags go through it too.

use std::path::PathBuf;
use std::time::Duration;

use super::yaml::Value;
use super::{CatalogConfig, Compressor, Config};

/// What an option accepts.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Bool,
    /// smallest, largest
    Int(i64, i64),
    /// Not empty.
    Str,
    OneOf(&'static [&'static str]),
}

/// A value that fits its option's [`Kind`].
#[derive(Clone, Debug)]
pub enum Checked {
    Bool(bool),
    Int(i64),
    Str(String),
}

/// One option of the configuration file.
pub struct Opt {
    pub path: &'static str,
    pub kind: Kind,
    /// Puts the value into the configuration; the error says what was expected.
    pub apply: fn(&mut Draft, Checked) -> Result<(), String>,
}

/// A configuration in the making: what only together makes sense is put together at the end.
pub struct Draft {
    pub config: Config,
    pub config_db: Option<CatalogConfig>,
    pub catalog_path: Option<PathBuf>,
    pub log_destination_file: bool,
    pub bind_all: bool,
}

impl Kind {
    pub fn expected(self) -> String {
        match self {
            Kind::Bool => "true or false".to_owned(),
            Kind::Int(min, max) => format!("an integer from {min} to {max}"),
            Kind::Str => "a string".to_owned(),
            Kind::OneOf(names) => format!("one of {}", names.join(", ")),
        }
    }

    /// `None` where the value does not fit.
    pub fn check(self, value: &Value) -> Option<Checked> {
        match (self, value) {
            (Kind::Bool, Value::Bool(b)) => Some(Checked::Bool(*b)),
            (Kind::Int(min, max), Value::Int(n)) if (min..=max).contains(n) => Some(Checked::Int(*n)),
            (Kind::Str, Value::Str(s)) if !s.is_empty() => Some(Checked::Str(s.clone())),
            (Kind::OneOf(names), Value::Str(s)) if names.contains(&s.as_str()) => Some(Checked::Str(s.clone())),
            _ => None,
        }
    }

    /// The value a flag's text stands for.
    pub fn parse_text(self, text: &str) -> Value {
        let parsed = match self {
            Kind::Bool => text.parse().ok().map(Value::Bool),
            Kind::Int(..) => text.parse().ok().map(Value::Int),
            Kind::Str | Kind::OneOf(_) => None,
        };
        parsed.unwrap_or_else(|| Value::Str(text.to_owned()))
    }
}

impl Checked {
    fn bool(self) -> bool {
        matches!(self, Checked::Bool(true))
    }

    fn int(self) -> i64 {
        if let Checked::Int(n) = self { n } else { 0 }
    }

    fn str(self) -> String {
        if let Checked::Str(s) = self { s } else { String::new() }
    }

    fn millis(self) -> Duration {
        Duration::from_millis(self.int().unsigned_abs())
    }
}

const ONE_DAY_MS: i64 = 86_400_000;

/// Every option the file may have, except `setParameter.*`, which `params::PARAMETERS` lists.
pub const OPTIONS: &[Opt] = &[
    opt("net.port", Kind::Int(1, 65_535), |d, v| {
        d.config.net.port = u16::try_from(v.int()).map_err(|e| e.to_string())?;
        Ok(())
    }),
    opt("net.bindIp", Kind::Str, |d, v| {
        d.config.net.bind_ips = bind_ips(&v.str())?;
        Ok(())
    }),
    opt("net.bindIpAll", Kind::Bool, |d, v| set(&mut d.bind_all, v.bool())),
    opt("net.ipv6", Kind::Bool, |d, v| set(&mut d.config.net.ipv6, v.bool())),
    opt("net.maxIncomingConnections", Kind::Int(5, 1_000_000), |d, v| {
        set(&mut d.config.net.max_incoming_connections, usize::try_from(v.int()).unwrap_or(usize::MAX))
    }),
    opt("net.compression.compressors", Kind::Str, |d, v| {
        d.config.net.compressors = compressors(&v.str())?;
        Ok(())
    }),
    opt("systemLog.destination", Kind::OneOf(&["file", "syslog"]), |d, v| match v.str().as_str() {
        "file" => set(&mut d.log_destination_file, true),
        _ => Err("'file' (or leave it out: the log goes to standard error, which a service manager collects)".into()),
    }),
    opt("systemLog.path", Kind::Str, |d, v| set(&mut d.config.log.path, Some(v.str().into()))),
    opt("systemLog.logAppend", Kind::Bool, |d, v| set(&mut d.config.log.append, v.bool())),
    opt("systemLog.verbosity", Kind::Int(0, 5), |d, v| {
        set(&mut d.config.log.verbosity, u8::try_from(v.int()).unwrap_or(5))
    }),
    opt("systemLog.quiet", Kind::Bool, |d, v| set(&mut d.config.log.quiet, v.bool())),
    opt("operationProfiling.slowOpThresholdMs", Kind::Int(-1, ONE_DAY_MS), |d, v| {
        set(&mut d.config.log.slow_op, u64::try_from(v.int()).ok().map(Duration::from_millis))
    }),
    opt("sharding.configDB", Kind::Str, |d, v| {
        d.config_db = Some(config_db(&v.str())?);
        Ok(())
    }),
    opt("security.keyFile", Kind::Str, |d, v| set(&mut d.config.key_file, Some(v.str().into()))),
    opt("processManagement.pidFilePath", Kind::Str, |d, v| set(&mut d.config.pid_file, Some(v.str().into()))),
    opt("processManagement.fork", Kind::Bool, |_, v| match v.bool() {
        false => Ok(()),
        true => Err("false: Mosaic stays in the foreground; a service manager puts it into the background".into()),
    }),
    opt("processManagement.timeZoneInfo", Kind::Str, |_, _| Ok(())),
    opt("replication.localPingThresholdMs", Kind::Int(0, ONE_DAY_MS), |d, v| {
        set(&mut d.config.local_threshold, v.millis())
    }),
    opt("mosaic.catalogPath", Kind::Str, |d, v| set(&mut d.catalog_path, Some(v.str().into()))),
    opt("mosaic.advertisedHost", Kind::Str, |d, v| set(&mut d.config.net.advertised_host, Some(v.str()))),
    opt("mosaic.shards.connectTimeoutMS", Kind::Int(1, ONE_DAY_MS), |d, v| {
        set(&mut d.config.pool.connect_timeout, v.millis())
    }),
    opt("mosaic.shards.serverSelectionTimeoutMS", Kind::Int(1, ONE_DAY_MS), |d, v| {
        set(&mut d.config.pool.server_selection_timeout, v.millis())
    }),
    opt("mosaic.shards.heartbeatIntervalMS", Kind::Int(500, ONE_DAY_MS), |d, v| {
        set(&mut d.config.pool.heartbeat_interval, v.millis())
    }),
];

/// Options that mongos has and Mosaic does not: the message then says so instead of "unknown".
pub const MONGOS_ONLY: &[&str] = &[
    "auditLog",
    "net.tls",
    "net.ssl",
    "net.unixDomainSocket",
    "net.listenBacklog",
    "net.serviceExecutor",
    "net.transportLayer",
    "net.wireObjectCheck",
    "net.http",
    "operationProfiling.slowOpSampleRate",
    "operationProfiling.filter",
    "processManagement.windowsService",
    "security.authorization",
    "security.clusterAuthMode",
    "security.clusterIpSourceAllowlist",
    "security.javascriptEnabled",
    "security.ldap",
    "security.sasl",
    "security.transitionToAuth",
    "systemLog.component",
    "systemLog.logRotate",
    "systemLog.syslogFacility",
    "systemLog.timeStampFormat",
    "systemLog.traceAllExceptions",
    "sharding.clusterRole",
    "storage",
];

const fn opt(path: &'static str, kind: Kind, apply: fn(&mut Draft, Checked) -> Result<(), String>) -> Opt {
    Opt { path, kind, apply }
}

fn set<T>(place: &mut T, value: T) -> Result<(), String> {
    *place = value;
    Ok(())
}

fn bind_ips(text: &str) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    for host in text.split(',').map(str::trim) {
        match host {
            "" => return Err("addresses or host names with commas between, such as 127.0.0.1,10.0.0.5".into()),
            "*" => hosts.push("0.0.0.0".to_owned()),
            _ if host.starts_with('/') => {
                return Err(format!("addresses or host names; Mosaic does not listen on sockets in files ({host})"));
            }
            _ if host.contains(|c: char| c.is_whitespace() || matches!(c, '/' | '@' | ';')) => {
                return Err(format!("addresses or host names with commas between; '{host}' is neither"));
            }
            _ => hosts.push(host.to_owned()),
        }
    }
    Ok(hosts)
}

fn compressors(text: &str) -> Result<Vec<Compressor>, String> {
    if text == "disabled" {
        return Ok(Vec::new());
    }
    let mut list = Vec::new();
    for name in text.split(',').map(str::trim) {
        let compressor = Compressor::by_name(name)
            .ok_or_else(|| format!("names out of snappy, zstd, zlib with commas between, or disabled; not '{name}'"))?;
        if !list.contains(&compressor) {
            list.push(compressor);
        }
    }
    Ok(list)
}

/// The port of a config server whose entry has none, as in mongos.
const CONFIG_PORT: u16 = 27_019;

/// Parses `set/host:port,host:port`.
///
/// # Errors
/// What was expected instead.
pub fn config_db(text: &str) -> Result<CatalogConfig, String> {
    const FORM: &str = "the config replica set as name/host:port,host:port";
    let Some((set_name, list)) = text.split_once('/') else { return Err(FORM.to_owned()) };
    if set_name.is_empty() || set_name.contains(|c: char| c.is_whitespace() || c == ',') {
        return Err(format!("{FORM}; it has no valid set name in front of the '/'"));
    }
    let mut hosts = Vec::new();
    for host in list.split(',') {
        let host = host.trim();
        hosts.push(host_port(host).ok_or_else(|| format!("{FORM}; '{host}' is no host:port"))?);
    }
    hosts.dedup();
    Ok(CatalogConfig::ReplicaSet { set_name: set_name.to_owned(), hosts })
}

fn host_port(text: &str) -> Option<String> {
    let (name, port) = match text.rfind(':') {
        Some(colon) if !text.ends_with(']') => {
            (text.get(..colon)?, text.get(colon + 1..)?.parse::<u16>().ok().filter(|p| *p > 0)?)
        }
        _ => (text, CONFIG_PORT),
    };
    let bracketed = name.starts_with('[') && name.ends_with(']');
    let valid = !name.is_empty()
        && (bracketed || !name.contains(':'))
        && !name.contains(|c: char| c.is_whitespace() || matches!(c, '/' | '@' | ',' | '?'));
    valid.then(|| format!("{name}:{port}"))
}
