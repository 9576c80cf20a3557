//! The server parameters: one table for `setParameter` in the file, on the command line and as a command, and for
//! `getParameter`. Values live here; who uses one reads it from [`Parameters`].

use std::collections::BTreeMap;

use bson::Bson;

/// What a parameter accepts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Bool(bool),
    /// default, smallest, largest
    Int(i64, i64, i64),
    Str(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    pub name: &'static str,
    pub kind: Kind,
    /// May be changed by the `setParameter` command while the router runs.
    pub runtime: bool,
    pub help: &'static str,
}

const fn param(name: &'static str, kind: Kind, runtime: bool, help: &'static str) -> Parameter {
    Parameter { name, kind, runtime, help }
}

/// Every parameter, sorted by name. Names without `mosaic` in front are mongos's own and mean the same.
pub const PARAMETERS: &[Parameter] = &[
    param(
        "ShardingTaskExecutorPoolHostTimeoutMS",
        Kind::Int(300_000, 1, i32::MAX as i64),
        false,
        "close a shard connection that was not used for this long",
    ),
    param(
        "ShardingTaskExecutorPoolMaxConnecting",
        Kind::Int(2, 1, 1_000),
        false,
        "connections being established at one time, per server",
    ),
    param(
        "ShardingTaskExecutorPoolMaxSize",
        Kind::Int(i64::MAX, 1, i64::MAX),
        false,
        "most connections to one server of a shard; cursors that wait for data hold theirs",
    ),
    param(
        "ShardingTaskExecutorPoolMinSize",
        Kind::Int(1, 0, 1_000_000),
        false,
        "connections to one server of a shard that are kept open",
    ),
    param(
        "cursorTimeoutMillis",
        Kind::Int(600_000, 1, i64::MAX),
        true,
        "a cursor that was not used for this long is closed",
    ),
    param("enableTestCommands", Kind::Bool(false), false, "allow commands that only tests need (configureFailPoint)"),
    param(
        "loadBalancerPort",
        Kind::Int(0, 0, 65_535),
        false,
        "port for load balancers that send the PROXY protocol's header; 0 for none",
    ),
    param("localLogicalSessionTimeoutMinutes", Kind::Int(30, 1, 1_440), false, "how long an unused session lives"),
    param("logLevel", Kind::Int(0, 0, 5), true, "verbosity of the log"),
    param(
        "maxTimeMSForHedgedReads",
        Kind::Int(150, 1, i32::MAX as i64),
        true,
        "accepted for tools; reads are not hedged",
    ),
    param(
        "mongosShutdownTimeoutMillisForSignaledShutdown",
        Kind::Int(15_000, 0, i32::MAX as i64),
        true,
        "how long clients are told to go elsewhere before a signal ends the router",
    ),
    param(
        "mosaicAllowUnauthenticatedClients",
        Kind::Bool(false),
        false,
        "accept clients without authentication although security.keyFile is set",
    ),
    param(
        "mosaicIntentTimeoutSecs",
        Kind::Int(40, 8, 3_600),
        false,
        "after this long without a sign of life a router is taken for gone and another one finishes what it began",
    ),
    param("notablescan", Kind::Bool(false), true, "accepted for tools; a shard's own setting counts"),
    param("quiet", Kind::Bool(false), true, "no log lines for connections that come and go"),
    param("readHedgingMode", Kind::Str("off"), true, "accepted for tools; reads are not hedged"),
];

/// The table's entry of that name; mongos's names are case sensitive.
pub fn parameter(name: &str) -> Option<&'static Parameter> {
    PARAMETERS.iter().find(|p| p.name == name)
}

impl Parameter {
    pub fn default_value(&self) -> Bson {
        match self.kind {
            Kind::Bool(b) => Bson::Boolean(b),
            Kind::Int(n, ..) => int(n),
            Kind::Str(s) => Bson::String(s.to_owned()),
        }
    }

    /// What a value of this parameter must be, in words.
    pub fn expected(&self) -> String {
        match self.kind {
            Kind::Bool(_) => "true or false".to_owned(),
            Kind::Int(_, min, i64::MAX) => format!("an integer of at least {min}"),
            Kind::Int(_, min, max) => format!("an integer from {min} to {max}"),
            Kind::Str(_) => "a string".to_owned(),
        }
    }

    /// Checks and normalises `value`; the error says what was expected. Strings are parsed, as on the command line.
    pub fn check(&self, value: &Bson) -> Result<Bson, String> {
        let refuse = || Err(format!("{} expects {}", self.name, self.expected()));
        match (self.kind, value) {
            (Kind::Bool(_), Bson::Boolean(b)) => Ok(Bson::Boolean(*b)),
            (Kind::Bool(_), Bson::String(s)) => match s.as_str() {
                "true" | "1" => Ok(Bson::Boolean(true)),
                "false" | "0" => Ok(Bson::Boolean(false)),
                _ => refuse(),
            },
            (Kind::Bool(_), other) => match as_int(other) {
                Some(n @ (0 | 1)) => Ok(Bson::Boolean(n == 1)),
                _ => refuse(),
            },
            (Kind::Int(_, min, max), other) => match as_int(other) {
                Some(n) if (min..=max).contains(&n) => Ok(int(n)),
                _ => refuse(),
            },
            (Kind::Str(_), Bson::String(s)) => Ok(Bson::String(s.clone())),
            (Kind::Str(_), _) => refuse(),
        }
    }
}

fn int(n: i64) -> Bson {
    i32::try_from(n).map_or(Bson::Int64(n), Bson::Int32)
}

fn as_int(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(n) => Some(i64::from(*n)),
        Bson::Int64(n) => Some(*n),
        Bson::Double(d) if d.fract() == 0.0 && d.abs() < 9e15 => Some(*d as i64),
        Bson::String(s) => s.parse().ok(),
        _ => None,
    }
}

/// The values given at the start; anything not given has its default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters(BTreeMap<&'static str, Bson>);

impl Parameters {
    /// Sets a parameter; the error says why not.
    pub fn set(&mut self, name: &str, value: &Bson) -> Result<(), String> {
        let parameter = parameter(name).ok_or_else(|| format!("there is no server parameter '{name}'"))?;
        self.0.insert(parameter.name, parameter.check(value)?);
        Ok(())
    }

    /// The value in effect; `None` only for an unknown name.
    pub fn get(&self, name: &str) -> Option<Bson> {
        self.0.get(name).cloned().or_else(|| parameter(name).map(Parameter::default_value))
    }

    pub fn bool(&self, name: &str) -> bool {
        matches!(self.get(name), Some(Bson::Boolean(true)))
    }

    /// 0 for an unknown name or a parameter that is no number.
    pub fn int(&self, name: &str) -> i64 {
        self.get(name).as_ref().and_then(as_int).unwrap_or(0)
    }

    /// The parameters that were given.
    pub fn given(&self) -> impl Iterator<Item = (&'static str, &Bson)> {
        self.0.iter().map(|(k, v)| (*k, v))
    }
}
