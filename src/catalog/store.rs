//! Where the catalog lives: one trait, two implementations (`embedded`, `replset`).

use std::sync::Arc;

use async_trait::async_trait;
use bson::{Bson, RawDocumentBuf, Timestamp, Uuid, rawdoc};
use tokio::sync::watch;

use super::model::ChunkVersion;
use crate::error::{Code, Error, Result, Retry};

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
    /// The topic did not change after this version of the catalog (`collection` does not matter).
    Unchanged { topic: String, since: u64 },
}

impl Check {
    pub(super) fn failed(&self) -> Error {
        Error::new(Code::ConflictingOperationInProgress, self.otherwise.clone()).from_router().retry(Retry::Safe)
    }
}

impl CatalogTxn {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn check(mut self, collection: &str, what: CheckKind, otherwise: impl Into<String>) -> Self {
        self.checks.push(Check { collection: collection.to_owned(), what, otherwise: otherwise.into() });
        self
    }

    /// Fails if the topic changed after `since`: somebody else was faster.
    pub fn unchanged(self, topic: &str, since: u64) -> Self {
        let otherwise = format!("The catalog ({topic}) was changed by another operation meanwhile; try again");
        self.check("", CheckKind::Unchanged { topic: topic.to_owned(), since }, otherwise)
    }

    pub fn put(mut self, collection: &str, doc: RawDocumentBuf) -> Self {
        self.writes.push(Write::Put { collection: collection.to_owned(), doc });
        self
    }

    pub fn insert(mut self, collection: &str, doc: RawDocumentBuf) -> Self {
        self.writes.push(Write::Insert { collection: collection.to_owned(), doc });
        self
    }

    pub fn delete(mut self, collection: &str, id: impl Into<Bson>) -> Self {
        self.writes.push(Write::Delete { collection: collection.to_owned(), id: id.into() });
        self
    }

    pub fn delete_where(mut self, collection: &str, field: &str, value: impl Into<Bson>) -> Self {
        self.writes.push(Write::DeleteWhere {
            collection: collection.to_owned(),
            field: field.to_owned(),
            value: value.into(),
        });
        self
    }

    pub fn touch(mut self, topic: impl Into<String>) -> Self {
        self.touches.push(Touch::Changed(topic.into()));
        self
    }

    pub fn forget(mut self, topic: impl Into<String>) -> Self {
        self.touches.push(Touch::Forget(topic.into()));
        self
    }
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

/// Marks a topic for readers, in `mosaic.changes`: `{_id: topic, version}`. Topics are the names of collections, and
/// `chunks:<uuid>` for one collection's chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touch {
    /// It changed at the commit's version.
    Changed(String),
    /// It is gone and needs no mark any more.
    Forget(String),
}

impl Touch {
    /// The topic that makes readers load everything anew.
    pub const EVERYTHING: &str = "*";

    /// The topic of one collection's chunks.
    pub fn chunks(uuid: Uuid) -> String {
        format!("chunks:{uuid}")
    }

    pub(super) fn document(topic: &str, version: u64) -> RawDocumentBuf {
        rawdoc! { "_id": topic, "version": version as i64 }
    }
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
    /// By the pseudo-shard `config`, from this database.
    Forward { db: String },
}

#[async_trait]
pub trait Store: Send + Sync {
    /// Applies the transaction durably (majority on a replica set) and gives the new version.
    async fn commit(&self, txn: &CatalogTxn) -> Result<u64>;

    /// The newest version, linearizably.
    async fn version(&self) -> Result<u64>;

    /// The newest version that a majority has, asked of the primary: at least every version that any router had
    /// committed before the call, but for a primary that was replaced a moment ago and does not know it yet. Unlike
    /// [`Self::version`] it writes nothing.
    async fn newest(&self) -> Result<u64>;

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
