//! The verbosity of the log by component, as `logComponentVerbosity` has it: each component has a verbosity of its own
//! (0 to 5) or, as -1, that of the component around it.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI8, AtomicU8, Ordering};

use bson::{Bson, Document, doc};

/// mongod's components; the first is the whole log. Most of them write no lines here, but tools set them all.
const PATHS: &[&str] = &[
    "",
    "accessControl",
    "assert",
    "command",
    "control",
    "executor",
    "geo",
    "index",
    "network",
    "network.asio",
    "network.bridge",
    "network.connectionPool",
    "processHealth",
    "query",
    "replication",
    "replication.election",
    "replication.heartbeats",
    "replication.initialSync",
    "replication.rollback",
    "sharding",
    "sharding.rangeDeleter",
    "sharding.shardingCatalogRefresh",
    "sharding.migration",
    "sharding.reshard",
    "sharding.migrationPerf",
    "storage",
    "storage.recovery",
    "storage.journal",
    "storage.wt",
    "write",
    "ftdc",
    "tracking",
    "transaction",
    "tenantMigration",
    "test",
];

/// The most verbose there is.
const MOST: i64 = 5;

static OWN: LazyLock<Vec<AtomicI8>> =
    LazyLock::new(|| (0..PATHS.len()).map(|i| AtomicI8::new(if i == 0 { 0 } else { -1 })).collect());

/// What `command` comes to; asked after every operation.
static OF_COMMANDS: AtomicU8 = AtomicU8::new(0);

/// The parent of a component; the whole log for those on the first level.
fn parent(path: &str) -> usize {
    let above = path.rsplit_once('.').map_or("", |(above, _)| above);
    index(above).unwrap_or(0)
}

fn index(path: &str) -> Option<usize> {
    PATHS.iter().position(|p| *p == path)
}

fn effective(mut at: usize) -> u8 {
    loop {
        match u8::try_from(OWN[at].load(Ordering::Relaxed)) {
            Ok(own) => return own,
            Err(_) if at == 0 => return 0,
            Err(_) => at = parent(PATHS[at]),
        }
    }
}

/// The verbosity of a component (`network.connectionPool`); "" is the whole log, and so is what is unknown.
pub(super) fn of(path: &str) -> u8 {
    effective(index(path).unwrap_or(0))
}

/// The same for `command`, at the price of one load.
pub fn of_commands() -> u8 {
    OF_COMMANDS.load(Ordering::Relaxed)
}

/// The highest verbosity of any component.
pub(super) fn highest() -> u8 {
    (0..PATHS.len()).map(effective).max().unwrap_or(0)
}

/// Sets the verbosity of the whole log.
pub(super) fn set_all(verbosity: u8) {
    OWN[0].store(verbosity.min(MOST as u8) as i8, Ordering::Relaxed);
    OF_COMMANDS.store(of("command"), Ordering::Relaxed);
}

/// A change that was checked as a whole.
pub(super) struct Change(Vec<(usize, i8)>);

impl Change {
    /// Reads `{verbosity: 1, storage: {journal: {verbosity: 2}}, command: 3, …}`.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(doc: &Document) -> Result<Self, String> {
        let mut found = Vec::new();
        collect("", doc, &mut found)?;
        Ok(Change(found))
    }

    pub fn apply(&self) {
        for (at, verbosity) in &self.0 {
            OWN[*at].store(*verbosity, Ordering::Relaxed);
        }
        OF_COMMANDS.store(of("command"), Ordering::Relaxed);
    }
}

fn collect(path: &str, doc: &Document, found: &mut Vec<(usize, i8)>) -> Result<(), String> {
    let shown = if path.is_empty() { "default" } else { path };
    for (name, value) in doc {
        if name == "verbosity" {
            let at = index(path).unwrap_or(0);
            found.push((at, number(value, at == 0).ok_or_else(|| not_a_number(&format!("{shown}.verbosity"), value))?));
            continue;
        }
        let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let wt = inner.starts_with("storage.wt.wt");
        let Some(at) = index(&inner).or(if wt { index("storage.wt") } else { None }) else {
            return Err(format!("Invalid component name {shown}.{name}"));
        };
        match value {
            // The storage engine's own components have nothing to say in a router.
            _ if wt => {}
            Bson::Document(sub) => collect(&inner, sub, found)?,
            other => found.push((at, number(other, false).ok_or_else(|| not_a_number(&inner, other))?)),
        }
    }
    Ok(())
}

fn number(value: &Bson, whole: bool) -> Option<i8> {
    let n = match value {
        Bson::Int32(n) => i64::from(*n),
        Bson::Int64(n) => *n,
        Bson::Double(d) => *d as i64,
        _ => return None,
    };
    Some(n.clamp(if whole { 0 } else { -1 }, MOST) as i8)
}

fn not_a_number(path: &str, value: &Bson) -> String {
    let kind = crate::bsonx::type_name(value.element_type());
    format!("Expected {path} to be a number, but found {kind}")
}

/// `{verbosity, accessControl: {verbosity}, …, network: {verbosity, asio: {verbosity}, …}, …}`.
pub(super) fn to_doc() -> Document {
    below("")
}

fn below(path: &str) -> Document {
    let at = index(path).unwrap_or(0);
    let mut doc = doc! { "verbosity": i32::from(OWN[at].load(Ordering::Relaxed)) };
    for inner in PATHS.iter().filter(|p| !p.is_empty() && parent(p) == at) {
        let name = inner.rsplit('.').next().unwrap_or(inner);
        doc.insert(name, below(inner));
    }
    doc
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn changes_are_checked() {
        let wrong = |doc: Document| Change::parse(&doc).err().unwrap();
        assert_eq!(wrong(doc! { "nope": { "verbosity": 1 } }), "Invalid component name default.nope");
        assert_eq!(wrong(doc! { "storage": { "nope": 1 } }), "Invalid component name storage.nope");
        assert_eq!(
            wrong(doc! { "command": { "verbosity": "x" } }),
            "Expected command.verbosity to be a number, but found string"
        );
        let change = Change::parse(&doc! { "verbosity": 9, "geo": 3, "storage": { "journal": { "verbosity": -7 } } });
        let journal = index("storage.journal").unwrap();
        assert_eq!(change.unwrap().0, [(0, 5), (index("geo").unwrap(), 3), (journal, -1)]);
    }

    #[test]
    fn components_inherit() {
        // Components that write no lines, so that other tests do not notice.
        Change::parse(&doc! { "replication": { "verbosity": 4 } }).unwrap().apply();
        assert_eq!((of("replication"), of("replication.rollback")), (4, 4));
        Change::parse(&doc! { "replication": { "rollback": 2 } }).unwrap().apply();
        assert_eq!((of("replication"), of("replication.rollback"), of("replication.election")), (4, 2, 4));
        let doc = to_doc();
        let replication = doc.get_document("replication").unwrap();
        assert_eq!(replication.get_i32("verbosity").unwrap(), 4);
        assert_eq!(replication.get_document("rollback").unwrap().get_i32("verbosity").unwrap(), 2);
        assert!(doc.get_document("network").unwrap().contains_key("connectionPool"));
        Change::parse(&doc! { "replication": { "verbosity": -1, "rollback": -1 } }).unwrap().apply();
    }
}
