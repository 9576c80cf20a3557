//! From a YAML file and flags to a [`Config`]: every setting is looked up in [`OPTIONS`] or the table of parameters,
//! checked, applied; a mistake is reported with its place and what was expected there.

use std::fmt;
use std::path::{Path, PathBuf};

use bson::{Bson, Document};

use super::options::{Draft, MONGOS_ONLY, OPTIONS};
use super::params::{self, PARAMETERS};
use super::yaml::{self, At, Node, Value};
use super::{CatalogConfig, Config, keyfile};

/// A configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub origin: Origin,
    pub message: String,
}

/// Where a setting was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Line and column from 1; line 0 = the file as a whole.
    File {
        path: PathBuf,
        line: u64,
        column: u64,
    },
    Flag(String),
    /// What is missing everywhere.
    Nowhere,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::File { path, line: 0, .. } => write!(f, "{}: {}", path.display(), self.message),
            Origin::File { path, line, column } => write!(f, "{}:{line}:{column}: {}", path.display(), self.message),
            Origin::Flag(flag) => write!(f, "{flag}: {}", self.message),
            Origin::Nowhere => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for ConfigError {}

type Result<T> = std::result::Result<T, ConfigError>;

/// One value given for one option.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Dotted, as in `net.port`.
    pub path: String,
    pub value: Value,
    pub origin: Origin,
}

impl Setting {
    /// A setting from a flag; `text` is read as the option's type wants it.
    pub fn flag(flag: &str, path: &str, text: &str) -> Self {
        let kind = OPTIONS.iter().find(|o| o.path == path).map(|o| o.kind);
        let value = kind.map_or_else(|| Value::Str(text.to_owned()), |k| k.parse_text(text));
        Setting { path: path.to_owned(), value, origin: Origin::Flag(flag.to_owned()) }
    }

    /// A setting from `--setParameter NAME=VALUE`.
    ///
    /// # Errors
    /// No `=` in it.
    pub fn parameter(pair: &str) -> Result<Self> {
        let origin = Origin::Flag("--setParameter".to_owned());
        match pair.split_once('=') {
            Some((name, text)) if !name.is_empty() => {
                Ok(Setting { path: format!("setParameter.{name}"), value: Value::Str(text.to_owned()), origin })
            }
            _ => Err(ConfigError { origin, message: format!("expected NAME=VALUE, found '{pair}'") }),
        }
    }
}

/// Reads a file into settings.
///
/// # Errors
/// A file that cannot be read, YAML mistakes, keys that are not strings, an option given twice. Names and values are
/// checked by [`build`].
pub fn read(path: &Path) -> Result<Vec<Setting>> {
    let whole =
        |message: String| ConfigError { origin: Origin::File { path: path.to_owned(), line: 0, column: 0 }, message };
    let bytes = std::fs::read(path).map_err(|e| whole(format!("cannot read the configuration file: {e}")))?;
    let text = String::from_utf8(bytes).map_err(|_| whole("the configuration file is not UTF-8 text".into()))?;
    settings(path, &text)
}

/// The same for a text; `path` is for messages.
///
/// # Errors
/// As [`read`].
pub fn settings(path: &Path, text: &str) -> Result<Vec<Setting>> {
    let place = |at: At| Origin::File { path: path.to_owned(), line: at.line, column: at.column };
    let root = yaml::parse(text).map_err(|e| ConfigError { origin: place(e.at), message: e.message })?;
    let mut found = Vec::new();
    flatten(&root, "", &place, &mut found)?;
    for (i, setting) in found.iter().enumerate() {
        if found.iter().take(i).any(|s| s.path == setting.path) {
            let message = format!("{} is given a second time", setting.path);
            return Err(ConfigError { origin: setting.origin.clone(), message });
        }
    }
    Ok(found)
}

/// Options nest at most this deep; deeper sections are unknown anyway.
const MAX_DEPTH: usize = 8;

fn flatten(node: &Node, prefix: &str, place: &dyn Fn(At) -> Origin, out: &mut Vec<Setting>) -> Result<()> {
    let Value::Map(entries) = &node.value else {
        let message = format!("expected sections such as 'net:', found {}", node.value.describe());
        return Err(ConfigError { origin: place(node.at), message });
    };
    for (key, value) in entries {
        let Value::Str(name) = &key.value else {
            let message = format!("the name of an option is expected here, found {}", key.value.describe());
            return Err(ConfigError { origin: place(key.at), message });
        };
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match &value.value {
            Value::Map(_) if path.split('.').count() < MAX_DEPTH => flatten(value, &path, place, out)?,
            // A section with nothing in it, as comments leave one behind.
            Value::Null if is_section(&path) => {}
            other => {
                // An unknown name is pointed at itself, a wrong value at the value.
                let at = if is_known(&path) && value.at.line > 0 { value.at } else { key.at };
                out.push(Setting { path, value: other.clone(), origin: place(at) });
            }
        }
    }
    Ok(())
}

fn is_section(path: &str) -> bool {
    path == "setParameter"
        || OPTIONS
            .iter()
            .map(|o| o.path)
            .chain(MONGOS_ONLY.iter().copied())
            .any(|p| p.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

fn is_known(path: &str) -> bool {
    OPTIONS.iter().any(|o| o.path == path)
        || path.strip_prefix("setParameter.").is_some_and(|name| params::parameter(name).is_some())
}

/// Puts settings together; those of `flags` replace those of `file`.
///
/// # Errors
/// The first setting that is unknown or has a bad value, or what does not go together or is missing.
pub fn build(file: Vec<Setting>, flags: Vec<Setting>, argv: Vec<String>) -> Result<Config> {
    let mut given = file;
    for flag in flags {
        given.retain(|s| {
            s.path != flag.path && !(matches!(s.origin, Origin::File { .. }) && excludes(&flag.path, &s.path))
        });
        given.push(flag);
    }
    let mut draft = Draft {
        config: Config::new(CatalogConfig::Embedded { path: PathBuf::new() }),
        config_db: None,
        catalog_path: None,
        log_destination_file: false,
        bind_all: false,
    };
    draft.config.argv = argv;
    for setting in &given {
        let refuse = |message: String| ConfigError { origin: setting.origin.clone(), message };
        let Some(name) = setting.path.strip_prefix("setParameter.") else {
            apply_option(&mut draft, setting).map_err(refuse)?;
            continue;
        };
        let value = to_bson(&setting.value).ok_or_else(|| {
            refuse(format!("setParameter.{name} expects a single value, found {}", setting.value.describe()))
        })?;
        if params::parameter(name).is_none() {
            return Err(refuse(unknown_parameter(name)));
        }
        draft
            .config
            .parameters
            .set(name, &value)
            .map_err(|e| refuse(format!("setParameter.{e}, found {}", setting.value.describe())))?;
    }
    finish(draft, &given)
}

/// Whether `flag` makes `other` (from the file) void although it is another option.
fn excludes(flag: &str, other: &str) -> bool {
    matches!(
        (flag, other),
        ("sharding.configDB", "mosaic.catalogPath")
            | ("mosaic.catalogPath", "sharding.configDB")
            | ("net.bindIp", "net.bindIpAll")
            | ("net.bindIpAll", "net.bindIp")
    )
}

fn apply_option(draft: &mut Draft, setting: &Setting) -> std::result::Result<(), String> {
    let Some(option) = OPTIONS.iter().find(|o| o.path == setting.path) else {
        return Err(unknown_option(&setting.path, &setting.value));
    };
    let wrong = |expected: &str| format!("{} expects {expected}, found {}", option.path, setting.value.describe());
    let value = option.kind.check(&setting.value).ok_or_else(|| wrong(&option.kind.expected()))?;
    (option.apply)(draft, value).map_err(|expected| wrong(&expected))?;
    if let Some(value) = to_bson(&setting.value) {
        insert_path(&mut draft.config.parsed, option.path, value);
    }
    Ok(())
}

fn unknown_option(path: &str, value: &Value) -> String {
    if is_section(path) {
        return format!(
            "{path} is a section; expected options below it ({}), found {}",
            names_below(path),
            value.describe()
        );
    }
    if let Some(theirs) = MONGOS_ONLY.iter().find(|p| path == **p || path.starts_with(&format!("{p}."))) {
        return format!("{theirs} is an option of mongos or mongod that Mosaic does not have");
    }
    let all = OPTIONS.iter().map(|o| o.path);
    if let Some(near) = nearest(path, all) {
        return format!("unknown option {path}; did you mean {near}?");
    }
    let section = path.rsplit_once('.').map_or("", |(section, _)| section);
    if section.is_empty() || !is_section(section) {
        return format!("unknown option {path}; expected one of the sections {}", names_below(""));
    }
    format!("unknown option {path}; {section} has {}", names_below(section))
}

fn unknown_parameter(name: &str) -> String {
    match nearest(name, PARAMETERS.iter().map(|p| p.name)) {
        Some(near) => format!("unknown server parameter {name}; did you mean {near}?"),
        None => {
            let names: Vec<_> = PARAMETERS.iter().map(|p| p.name).collect();
            format!("unknown server parameter {name}; expected one of {}", names.join(", "))
        }
    }
}

/// The names one level below a section ("" = the top), with commas between.
fn names_below(section: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for path in OPTIONS.iter().map(|o| o.path).chain(["setParameter.x"]) {
        let rest =
            if section.is_empty() { Some(path) } else { path.strip_prefix(section).and_then(|r| r.strip_prefix('.')) };
        if let Some(name) = rest.and_then(|r| r.split('.').next())
            && !names.contains(&name)
        {
            names.push(name);
        }
    }
    names.join(", ")
}

fn nearest<'a>(name: &str, all: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = name.to_lowercase();
    all.map(|candidate| (edit_distance(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= 2.max(candidate.len() / 6))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's, over at most 100 bytes of each.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<u8>, Vec<u8>) = (a.bytes().take(100).collect(), b.bytes().take(100).collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let left = next.last().copied().unwrap_or(0);
            let (up, diagonal) = (row.get(j + 1).copied().unwrap_or(0), row.get(j).copied().unwrap_or(0));
            next.push((left + 1).min(up + 1).min(diagonal + usize::from(x != y)));
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

/// What concerns several options, or their absence.
fn finish(mut draft: Draft, given: &[Setting]) -> Result<Config> {
    let origin = |path: &str| given.iter().find(|s| s.path == path).map_or(Origin::Nowhere, |s| s.origin.clone());
    let refuse = |path: &str, message: &str| Err(ConfigError { origin: origin(path), message: message.to_owned() });
    let size = |name| draft.config.parameters.int(name);
    if size("ShardingTaskExecutorPoolMinSize") > size("ShardingTaskExecutorPoolMaxSize") {
        return refuse(
            "setParameter.ShardingTaskExecutorPoolMinSize",
            "ShardingTaskExecutorPoolMinSize is larger than ShardingTaskExecutorPoolMaxSize",
        );
    }
    draft.config.catalog = match (draft.config_db.take(), draft.catalog_path.take()) {
        (Some(_), Some(_)) => {
            return refuse(
                "mosaic.catalogPath",
                "mosaic.catalogPath and sharding.configDB exclude each other: the catalog is in one file (one router) or \
                 on a config replica set (any number of routers)",
            );
        }
        (Some(replset), None) => replset,
        (None, Some(path)) => CatalogConfig::Embedded { path },
        (None, None) => {
            return refuse(
                "",
                "it is not said where the catalog is kept: give sharding.configDB (--configdb set/host:port,…; any number of \
                 routers) or mosaic.catalogPath (--catalogPath FILE; one router)",
            );
        }
    };
    if draft.bind_all {
        if given.iter().any(|s| s.path == "net.bindIp") {
            return refuse("net.bindIpAll", "net.bindIpAll and net.bindIp exclude each other");
        }
        draft.config.net.bind_ips = vec!["0.0.0.0".into()];
    }
    // All addresses are those of both kinds, where IPv6 is on.
    let all = draft.config.net.bind_ips.iter().any(|ip| ip == "0.0.0.0");
    if all && draft.config.net.ipv6 && !draft.config.net.bind_ips.iter().any(|ip| ip == "::") {
        draft.config.net.bind_ips.push("::".into());
    }
    match (draft.log_destination_file, &draft.config.log.path) {
        (true, None) => return refuse("systemLog.destination", "systemLog.destination 'file' needs systemLog.path"),
        (false, Some(_)) if matches!(origin("systemLog.path"), Origin::File { .. }) => {
            return refuse("systemLog.path", "systemLog.path needs systemLog.destination: file beside it");
        }
        _ => {}
    }
    if let Some(path) = &draft.config.key_file {
        keyfile::check(path).map_err(|message| ConfigError { origin: origin("security.keyFile"), message })?;
        if !draft.config.parameters.bool("mosaicAllowUnauthenticatedClients") {
            return refuse(
                "security.keyFile",
                "security.keyFile: Mosaic does not authenticate clients yet. With this key it would reach the shards \
                 with full rights on behalf of anyone who reaches its port. Where the network keeps strangers away, \
                 accept that with setParameter: {mosaicAllowUnauthenticatedClients: true}; the key then \
                 authenticates the router to its shards only",
            );
        }
    }
    spread_parameters(&mut draft.config);
    Ok(draft.config)
}

/// Parameters that stand for settings of their own.
fn spread_parameters(config: &mut Config) {
    let size = |config: &Config, name: &str| usize::try_from(config.parameters.int(name)).unwrap_or(0);
    config.pool.min_size = size(config, "ShardingTaskExecutorPoolMinSize");
    config.pool.max_size = size(config, "ShardingTaskExecutorPoolMaxSize").max(1);
    config.pool.max_connecting = size(config, "ShardingTaskExecutorPoolMaxConnecting").max(1);
    let idle = config.parameters.int("ShardingTaskExecutorPoolHostTimeoutMS").unsigned_abs();
    config.pool.idle_timeout = std::time::Duration::from_millis(idle);
    config.log.verbosity = config.log.verbosity.max(u8::try_from(config.parameters.int("logLevel")).unwrap_or(5));
    config.log.quiet |= config.parameters.bool("quiet");
    let given: Document = config.parameters.given().map(|(k, v)| (k.to_owned(), v.clone())).collect();
    if !given.is_empty() {
        config.parsed.insert("setParameter", given);
    }
}

fn to_bson(value: &Value) -> Option<Bson> {
    match value {
        Value::Bool(b) => Some(Bson::Boolean(*b)),
        Value::Int(n) => Some(i32::try_from(*n).map_or(Bson::Int64(*n), Bson::Int32)),
        Value::Float(f) => Some(Bson::Double(*f)),
        Value::Str(s) => Some(Bson::String(s.clone())),
        Value::Null | Value::List(_) | Value::Map(_) => None,
    }
}

/// Sets `a.b.c` in nested documents.
fn insert_path(document: &mut Document, path: &str, value: Bson) {
    let Some((first, rest)) = path.split_once('.') else {
        document.insert(path, value);
        return;
    };
    if document.get_document(first).is_err() {
        document.insert(first, Document::new());
    }
    if let Ok(inner) = document.get_document_mut(first) {
        insert_path(inner, rest, value);
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
