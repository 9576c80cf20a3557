//! The catalog's documents as types: the `config` database of MongoDB 6.0, field for field, with the fields this router
//! does not know kept as they are.

use std::fmt;
use std::sync::Arc;

use bson::oid::ObjectId;
use bson::{Bson, DateTime, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, Uuid, cstr, rawdoc};
use smallvec::SmallVec;

use crate::bsonx;
use crate::error::{Code, Error, Result};

/// A shard's name, `config.shards._id`.
pub type ShardId = Arc<str>;

/// Names of the collections that make up the catalog.
pub mod collection {
    pub const SHARDS: &str = "shards";
    pub const DATABASES: &str = "databases";
    pub const COLLECTIONS: &str = "collections";
    pub const CHUNKS: &str = "chunks";
    pub const TAGS: &str = "tags";
    pub const SETTINGS: &str = "settings";
    pub const CHANGELOG: &str = "changelog";
    pub const ACTIONLOG: &str = "actionlog";
    pub const MONGOS: &str = "mongos";
    pub const VERSION: &str = "version";
    pub const LOCKS: &str = "locks";
    pub const LOCKPINGS: &str = "lockpings";
    pub const MIGRATIONS: &str = "migrations";
    /// This router's own: changes of structure that several shards must see alike, while they are under way;
    /// `{_id: db or ns, op, router, process, step, …}`.
    pub const DDL: &str = "mosaic.ddl";
    /// This router's own: the catalog's version and clock, one document `{_id: "version", version, time}`.
    pub const CATALOG: &str = "mosaic.catalog";
    /// This router's own: what changed at which version, `{_id: topic, version, …}`; see `store::Touch`.
    pub const CHANGES: &str = "mosaic.changes";
    /// This router's own: decisions of transactions over several shards that are not finished everywhere; see `txn`.
    pub const TXNS: &str = "mosaic.txns";
}

/// `database.collection`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace {
    full: Arc<str>,
    dot: usize,
}

impl Namespace {
    /// The longest namespace a server accepts, in bytes.
    pub const MAX_LEN: usize = 255;

    /// From `database` and `collection`; checked like [`Namespace::parse`].
    pub fn new(db: &str, coll: &str) -> Result<Self> {
        check_database_name(db)?;
        if coll.is_empty() || coll.starts_with('.') || coll.contains('\0') || db.len() + 1 + coll.len() > Self::MAX_LEN
        {
            return Err(Error::new(Code::InvalidNamespace, format!("Invalid namespace specified '{db}.{coll}'")));
        }
        // In one allocation: every request makes one.
        let mut full = SmallVec::<[u8; 128]>::new();
        [db, ".", coll].iter().for_each(|part| full.extend_from_slice(part.as_bytes()));
        let full = std::str::from_utf8(&full).unwrap_or_default();
        Ok(Namespace { full: full.into(), dot: db.len() })
    }

    /// From `database.collection`. Errors with InvalidNamespace (73).
    pub fn parse(full: &str) -> Result<Self> {
        match full.split_once('.') {
            Some((db, coll)) => Self::new(db, coll),
            None => Err(Error::new(Code::InvalidNamespace, format!("Invalid namespace specified '{full}'"))),
        }
    }

    pub fn db(&self) -> &str {
        &self.full[..self.dot]
    }

    pub fn coll(&self) -> &str {
        &self.full[self.dot + 1..]
    }

    pub fn as_str(&self) -> &str {
        &self.full
    }

    /// A `system.*` collection.
    pub fn is_system(&self) -> bool {
        self.coll().starts_with("system.")
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

/// MongoDB's rule for database names: 1 to 63 bytes, none of `/\. "$*<>:|?` and NUL.
pub fn check_database_name(db: &str) -> Result<()> {
    let bad = |c: char| matches!(c, '/' | '\\' | '.' | ' ' | '"' | '\0' | '$');
    if db.is_empty() || db.len() > 63 || db.chars().any(bad) {
        return Err(Error::new(Code::InvalidNamespace, format!("Invalid database name: '{db}'")));
    }
    Ok(())
}

/// A chunk's or collection's placement version: `major|minor`, kept as a Timestamp in `lastmod`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ChunkVersion {
    pub major: u32,
    pub minor: u32,
}

impl ChunkVersion {
    pub const FIRST: ChunkVersion = ChunkVersion { major: 1, minor: 0 };

    pub fn next_minor(self) -> Self {
        ChunkVersion { major: self.major, minor: self.minor.saturating_add(1) }
    }

    pub fn next_major(self) -> Self {
        ChunkVersion { major: self.major.saturating_add(1), minor: 0 }
    }

    pub fn timestamp(self) -> Timestamp {
        Timestamp { time: self.major, increment: self.minor }
    }
}

impl From<Timestamp> for ChunkVersion {
    fn from(t: Timestamp) -> Self {
        ChunkVersion { major: t.time, minor: t.increment }
    }
}

impl From<(u32, u32)> for ChunkVersion {
    fn from((major, minor): (u32, u32)) -> Self {
        ChunkVersion { major, minor }
    }
}

impl fmt::Display for ChunkVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}|{}", self.major, self.minor)
    }
}

/// The error for a catalog document that lacks what it must have.
pub(super) fn malformed(collection: &str, field: &str, doc: &RawDocument) -> Error {
    let id = bsonx::get(doc, "_id").map_or_else(|| "?".to_owned(), |v| format!("{v:?}"));
    Error::new(
        Code::ChunkMetadataInconsistency,
        format!("The document {id} of config.{collection} has no valid field '{field}'; repair it in the catalog"),
    )
    .from_router()
}

pub(super) fn timestamp(value: Option<RawBsonRef<'_>>) -> Option<Timestamp> {
    match value {
        Some(RawBsonRef::Timestamp(t)) => Some(t),
        _ => None,
    }
}

pub(super) fn uuid(value: Option<RawBsonRef<'_>>) -> Option<Uuid> {
    match value {
        Some(RawBsonRef::Binary(b)) => Some(Uuid::from_bytes(b.bytes.try_into().ok()?)),
        _ => None,
    }
}

/// The `uuid` field of a document.
pub(super) fn uuid_of(doc: &RawDocument) -> Option<Uuid> {
    uuid(bsonx::get(doc, "uuid"))
}

/// A UUID as BSON binary of subtype 4.
pub fn uuid_bson(uuid: Uuid) -> RawBson {
    RawBson::Binary(bson::Binary::from_uuid(uuid))
}

fn object_id(value: Option<RawBsonRef<'_>>) -> Option<ObjectId> {
    value.and_then(|v| v.as_object_id())
}

/// Fields of `doc` that are not among `known`, to be written back unchanged.
pub(super) fn unknown_fields(doc: &RawDocument, known: &[&str]) -> Result<RawDocumentBuf> {
    let mut rest = RawDocumentBuf::new();
    for item in doc.iter() {
        let (key, value) = item?;
        if !known.contains(&key.as_str()) {
            rest.append(key, value);
        }
    }
    Ok(rest)
}

pub(super) fn append_all(doc: &mut RawDocumentBuf, rest: &RawDocument) {
    for (key, value) in rest.iter().flatten() {
        doc.append(key, value);
    }
}

/// A document of `config.shards`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardInfo {
    pub id: ShardId,
    /// `set/host:port,host:port`.
    pub host: String,
    /// 1: in use.
    pub state: i32,
    pub topology_time: Timestamp,
    /// Zones of the shard; `None` where the document has no `tags` field.
    pub tags: Option<Vec<String>>,
    pub draining: bool,
    pub rest: RawDocumentBuf,
}

impl ShardInfo {
    pub fn parse(doc: &RawDocument) -> Result<Self> {
        let bad = |field| malformed(collection::SHARDS, field, doc);
        let tags = bsonx::array(doc, "tags")
            .map(|a| a.into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect());
        Ok(ShardInfo {
            id: bsonx::str(doc, "_id").ok_or_else(|| bad("_id"))?.into(),
            host: bsonx::str(doc, "host").ok_or_else(|| bad("host"))?.to_owned(),
            state: bsonx::int(doc, "state").unwrap_or(1) as i32,
            topology_time: timestamp(bsonx::get(doc, "topologyTime")).unwrap_or(Timestamp { time: 0, increment: 0 }),
            tags,
            draining: bsonx::truthy(doc, "draining").unwrap_or(false),
            rest: unknown_fields(doc, &["_id", "host", "state", "topologyTime", "tags", "draining"])?,
        })
    }

    pub fn to_doc(&self) -> RawDocumentBuf {
        let mut doc = rawdoc! { "_id": &*self.id, "host": &*self.host, "state": self.state };
        doc.append(cstr!("topologyTime"), self.topology_time);
        if self.draining {
            doc.append(cstr!("draining"), true);
        }
        if let Some(tags) = &self.tags {
            doc.append(cstr!("tags"), string_array(tags));
        }
        append_all(&mut doc, &self.rest);
        doc
    }

    /// The replica set's name: what stands before `/` in `host`.
    pub fn set_name(&self) -> &str {
        self.host.split_once('/').map_or("", |(set, _)| set)
    }

    /// The members listed in `host`.
    pub fn members(&self) -> impl Iterator<Item = &str> {
        self.host.split_once('/').map_or(&*self.host, |(_, hosts)| hosts).split(',').filter(|h| !h.is_empty())
    }
}

fn string_array(items: &[String]) -> bson::RawArrayBuf {
    let mut array = bson::RawArrayBuf::new();
    for item in items {
        array.push(&**item);
    }
    array
}

/// A document of `config.databases`.
#[derive(Clone, Debug, PartialEq)]
pub struct DatabaseInfo {
    pub name: String,
    pub primary: ShardId,
    /// Always true since sharding needs no enabling; kept for tools.
    pub partitioned: bool,
    pub uuid: Uuid,
    pub timestamp: Timestamp,
    pub last_mod: i32,
    pub rest: RawDocumentBuf,
}

impl DatabaseInfo {
    pub fn parse(doc: &RawDocument) -> Result<Self> {
        let bad = |field| malformed(collection::DATABASES, field, doc);
        let version = bsonx::doc(doc, "version").ok_or_else(|| bad("version"))?;
        Ok(DatabaseInfo {
            name: bsonx::str(doc, "_id").ok_or_else(|| bad("_id"))?.to_owned(),
            primary: bsonx::str(doc, "primary").ok_or_else(|| bad("primary"))?.into(),
            partitioned: bsonx::truthy(doc, "partitioned").unwrap_or(true),
            uuid: uuid(bsonx::get(version, "uuid")).ok_or_else(|| bad("version.uuid"))?,
            timestamp: timestamp(bsonx::get(version, "timestamp")).unwrap_or(Timestamp { time: 0, increment: 0 }),
            last_mod: bsonx::int(version, "lastMod").unwrap_or(1) as i32,
            rest: unknown_fields(doc, &["_id", "primary", "partitioned", "version"])?,
        })
    }

    pub fn to_doc(&self) -> RawDocumentBuf {
        let mut doc = rawdoc! {
            "_id": &*self.name,
            "primary": &*self.primary,
            "partitioned": self.partitioned,
            "version": { "uuid": uuid_bson(self.uuid), "timestamp": self.timestamp, "lastMod": self.last_mod },
        };
        append_all(&mut doc, &self.rest);
        doc
    }
}

/// A document of `config.collections`: a sharded collection.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectionInfo {
    pub ns: Namespace,
    pub epoch: ObjectId,
    pub last_mod: DateTime,
    pub timestamp: Timestamp,
    pub uuid: Uuid,
    pub key: RawDocumentBuf,
    /// The collection's default collation, where it is not the simple one.
    pub default_collation: Option<RawDocumentBuf>,
    pub unique: bool,
    pub no_balance: bool,
    pub rest: RawDocumentBuf,
}

impl CollectionInfo {
    pub fn parse(doc: &RawDocument) -> Result<Self> {
        let bad = |field| malformed(collection::COLLECTIONS, field, doc);
        Ok(CollectionInfo {
            ns: Namespace::parse(bsonx::str(doc, "_id").ok_or_else(|| bad("_id"))?)?,
            epoch: object_id(bsonx::get(doc, "lastmodEpoch")).ok_or_else(|| bad("lastmodEpoch"))?,
            last_mod: bsonx::get(doc, "lastmod").and_then(|v| v.as_datetime()).unwrap_or(DateTime::from_millis(0)),
            timestamp: timestamp(bsonx::get(doc, "timestamp")).ok_or_else(|| bad("timestamp"))?,
            uuid: uuid(bsonx::get(doc, "uuid")).ok_or_else(|| bad("uuid"))?,
            key: bsonx::doc(doc, "key").ok_or_else(|| bad("key"))?.to_owned(),
            default_collation: bsonx::doc(doc, "defaultCollation").map(RawDocument::to_owned),
            unique: bsonx::truthy(doc, "unique").unwrap_or(false),
            no_balance: bsonx::truthy(doc, "noBalance").unwrap_or(false),
            rest: unknown_fields(
                doc,
                &[
                    "_id",
                    "lastmodEpoch",
                    "lastmod",
                    "timestamp",
                    "uuid",
                    "key",
                    "defaultCollation",
                    "unique",
                    "noBalance",
                ],
            )?,
        })
    }

    pub fn to_doc(&self) -> RawDocumentBuf {
        let mut doc = rawdoc! {
            "_id": self.ns.as_str(),
            "lastmodEpoch": self.epoch,
            "lastmod": self.last_mod,
            "timestamp": self.timestamp,
            "uuid": uuid_bson(self.uuid),
            "key": self.key.clone(),
        };
        if let Some(collation) = &self.default_collation {
            doc.append(cstr!("defaultCollation"), collation.clone());
        }
        doc.append(cstr!("unique"), self.unique);
        doc.append(cstr!("noBalance"), self.no_balance);
        append_all(&mut doc, &self.rest);
        doc
    }
}

/// A document of `config.tags`: a range of shard key values that belongs to a zone.
#[derive(Clone, Debug, PartialEq)]
pub struct TagInfo {
    pub id: Bson,
    pub ns: Namespace,
    pub min: RawDocumentBuf,
    pub max: RawDocumentBuf,
    pub tag: String,
}

impl TagInfo {
    pub fn parse(doc: &RawDocument) -> Result<Self> {
        let bad = |field| malformed(collection::TAGS, field, doc);
        Ok(TagInfo {
            id: bsonx::get(doc, "_id").ok_or_else(|| bad("_id"))?.try_into()?,
            ns: Namespace::parse(bsonx::str(doc, "ns").ok_or_else(|| bad("ns"))?)?,
            min: bsonx::doc(doc, "min").ok_or_else(|| bad("min"))?.to_owned(),
            max: bsonx::doc(doc, "max").ok_or_else(|| bad("max"))?.to_owned(),
            tag: bsonx::str(doc, "tag").ok_or_else(|| bad("tag"))?.to_owned(),
        })
    }

    pub fn to_doc(&self) -> Result<RawDocumentBuf> {
        let mut doc = RawDocumentBuf::new();
        doc.append(cstr!("_id"), RawBson::try_from(self.id.clone())?);
        doc.append(cstr!("ns"), self.ns.as_str());
        doc.append(cstr!("min"), self.min.clone());
        doc.append(cstr!("max"), self.max.clone());
        doc.append(cstr!("tag"), &*self.tag);
        Ok(doc)
    }
}
