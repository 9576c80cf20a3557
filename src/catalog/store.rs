//! Where the catalog lives: one trait, two implementations (`embedded`, `replset`).

use std::sync::Arc;

use async_trait::async_trait;
use bson::{Bson, RawDocumentBuf, Timestamp, Uuid};
use tokio::sync::watch;

use super::model::ChunkVersion;
use crate::error::Result;

/// One atomic, versioned change: all writes happen if all checks hold, else none.
///
/// Every commit raises the catalog's version by one. Two transactions whose checks exclude each other never both commit.
#[derive(Clone, Debug, Default)]
pub struct CatalogTxn {
    pub checks: Vec<Check>,
    pub writes: Vec<Write>,
    /// What readers must load again.
    pub touches: Vec<Touch>,
}

/// A condition on the state before the writes. One that does not hold fails the commit with
/// ConflictingOperationInProgress (117) and `otherwise` in the text.
#[derive(Clone, Debug)]
pub struct Check {
    pub collection: String,
    pub what: CheckKind,
    pub otherwise: String,
}

#[derive(Clone, Debug)]
pub enum CheckKind {
    /// There is a document with this `_id`.
    Exists(Bson),
    /// There is none.
    Absent(Bson),
    /// The document with this `_id` exists and has these top-level fields with exactly these values.
    Fields(Bson, RawDocumentBuf),
    /// No document has this top-level field with this value.
    NoneWhere(String, Bson),
}

#[derive(Clone, Debug)]
pub enum Write {
    /// Inserts or replaces by `_id`.
    Put {
        collection: String,
        doc: RawDocumentBuf,
    },
    /// Inserts; a document that is there already fails the commit as a [`Check`] would.
    Insert {
        collection: String,
        doc: RawDocumentBuf,
    },
    Delete {
        collection: String,
        id: Bson,
    },
    /// Every document whose top-level field has this value.
    DeleteWhere {
        collection: String,
        field: String,
        value: Bson,
    },
}

/// Marks a topic as changed at the commit's version: the document `{_id: topic, version, …extra}` of `mosaic.changes`.
#[derive(Clone, Debug)]
pub struct Touch {
    pub topic: String,
    pub extra: Option<RawDocumentBuf>,
    /// Removes the topic's document instead (its collection is gone).
    pub forget: bool,
}

/// What a scan visits; always in the order of `_id` but for `ChunksSince`.
#[derive(Clone, Debug)]
pub enum Scan {
    All,
    /// Documents whose top-level field equals the value.
    ByField(String, Bson),
    /// Documents whose numeric top-level field is greater.
    Greater(String, i64),
    /// `config.chunks` of one collection with `lastmod` at or after; in the order of `lastmod`.
    ChunksSince {
        uuid: Uuid,
        lastmod: ChunkVersion,
    },
}

/// A scan's receiver; an error stops the scan.
pub type Visit<'a> = &'a mut (dyn FnMut(RawDocumentBuf) -> Result<()> + Send);

/// A consistent view of the whole catalog at one version.
#[async_trait]
pub trait View: Send {
    /// The catalog's version that this view shows.
    fn version(&self) -> u64;
    async fn get(&mut self, collection: &str, id: &Bson) -> Result<Option<RawDocumentBuf>>;
    async fn scan(&mut self, collection: &str, scan: &Scan, visit: Visit<'_>) -> Result<()>;
}

/// Where clients' reads of `config.*` are answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigReads {
    /// By this router from its own store.
    Local,
    /// By the replica set of the pseudo-shard `config`, in this database.
    Forward { host: String, db: String },
}

#[async_trait]
pub trait Store: Send + Sync {
    /// Applies the transaction durably (majority on a replica set) and gives the new version.
    async fn commit(&self, txn: &CatalogTxn) -> Result<u64>;

    /// The newest version, linearizably.
    async fn version(&self) -> Result<u64>;

    /// A view at `at_least` or later.
    async fn view(&self, at_least: u64) -> Result<Box<dyn View>>;

    /// A time later than any handed out before by any router and not before the wall clock's second.
    async fn tick(&self) -> Result<Timestamp>;

    /// An unversioned write (pings, log entries): no checks, not atomic with anything, may be lost in a crash.
    async fn note(&self, collection: &str, doc: RawDocumentBuf) -> Result<()>;

    /// The version as last noticed; changes by any router arrive within a second.
    fn watch(&self) -> watch::Receiver<u64>;

    /// Names of the collections that exist.
    async fn collections(&self) -> Result<Vec<String>>;

    fn config_reads(&self) -> ConfigReads;

    /// For messages and logs.
    fn describe(&self) -> String;
}

/// The handle that is passed around.
pub type SharedStore = Arc<dyn Store>;
