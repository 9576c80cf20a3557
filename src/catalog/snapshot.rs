//! What a request routes by: one immutable picture of the catalog.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bson::oid::ObjectId;
use bson::{DateTime, RawDocumentBuf, Timestamp, Uuid};

use super::model::{ChunkVersion, CollectionInfo, DatabaseInfo, Namespace, ShardId, ShardInfo, TagInfo};
pub use super::table::RoutingTable;
use crate::bsonx;
use crate::error::{Code, Error, Result};
pub use crate::key::ShardKeyPattern;

/// Zone ranges by namespace, each sorted by `min`.
pub type TagMap = HashMap<String, Arc<[TagInfo]>>;

/// A sharded collection as requests see it.
#[derive(Clone, Debug)]
pub struct CollectionRouting {
    pub ns: Namespace,
    pub uuid: Uuid,
    pub epoch: ObjectId,
    pub timestamp: Timestamp,
    pub last_mod: DateTime,
    pub key: ShardKeyPattern,
    pub unique: bool,
    /// The collection's default collation, where it is not the simple one.
    pub default_collation: Option<RawDocumentBuf>,
    pub no_balance: bool,
    pub table: RoutingTable,
    /// Zone ranges, sorted by `min`.
    pub tags: Arc<[TagInfo]>,
    /// The document in `config.collections`, whole.
    pub info: Arc<CollectionInfo>,
}

impl CollectionRouting {
    /// The highest `lastmod` of any chunk.
    pub fn version(&self) -> ChunkVersion {
        ChunkVersion::from(self.table.version())
    }
}

/// One version of the catalog.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The catalog's version this shows; 0 before the first load.
    pub version: u64,
    pub cluster_id: ObjectId,
    pub shards: BTreeMap<ShardId, Arc<ShardInfo>>,
    pub databases: HashMap<String, Arc<DatabaseInfo>>,
    /// Sharded collections by full name.
    pub collections: HashMap<String, Arc<CollectionRouting>>,
    /// Zone ranges, also of collections that are not sharded (yet).
    pub tags: TagMap,
    /// Names on which requests wait while their structure changes, with what is done: `db.coll` to `drop`.
    pub closed: HashMap<String, String>,
    /// `config.settings` by `_id`.
    pub settings: HashMap<String, RawDocumentBuf>,
}

impl Snapshot {
    /// The routing of a sharded collection; `None` means the namespace is unsharded (or absent) and lives on its primary.
    pub fn collection(&self, ns: &str) -> Option<&Arc<CollectionRouting>> {
        self.collections.get(ns)
    }

    /// The shard that holds a database's unsharded collections; `None` where the database is not known.
    pub fn primary(&self, db: &str) -> Option<&ShardId> {
        self.databases.get(db).map(|d| &d.primary)
    }

    /// A database whose name differs from `db` in case only (error 13297 on creation).
    pub fn database_differing_in_case(&self, db: &str) -> Option<&str> {
        self.databases.keys().find(|k| k.as_str() != db && k.to_lowercase() == db.to_lowercase()).map(String::as_str)
    }

    /// The shard, or ShardNotFound (70).
    pub fn shard(&self, id: &str) -> Result<&Arc<ShardInfo>> {
        self.shards.get(id).ok_or_else(|| Error::new(Code::ShardNotFound, format!("Shard {id} not found")))
    }

    /// Shards owning anything of a namespace: the chunk owners, or the database's primary; empty without a database.
    pub fn owners(&self, ns: &str) -> Vec<ShardId> {
        match self.collection(ns) {
            Some(c) => c.table.owners().to_vec(),
            None => ns.split_once('.').and_then(|(db, _)| self.primary(db)).cloned().into_iter().collect(),
        }
    }

    /// The largest size of a chunk in MB (`config.settings`, default 128).
    pub fn chunk_size_mb(&self) -> i64 {
        self.settings
            .get("chunksize")
            .and_then(|d| bsonx::int(d, "value"))
            .filter(|mb| (1..=1024).contains(mb))
            .unwrap_or(128)
    }
}
