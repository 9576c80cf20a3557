//! Commits about sharded collections.

use bson::oid::ObjectId;
use bson::{Bson, DateTime, RawDocument, RawDocumentBuf, Timestamp, Uuid, rawdoc};

use super::{Catalog, Plan};
use crate::catalog::chunk::{ChunkDoc, HistoryEntry};
use crate::catalog::model::{ChunkVersion, CollectionInfo, Namespace, ShardId, TagInfo, collection, uuid_bson};
use crate::catalog::snapshot::{CollectionRouting, Snapshot};
use crate::catalog::store::{CatalogTxn, CheckKind, Scan, Touch};
use crate::catalog::table::{ChunkInfo, RoutingTable};
use crate::error::{Code, Error, Result};
use crate::key::ShardKeyPattern;

/// A chunk of a collection about to be sharded.
#[derive(Clone, Debug)]
pub struct NewChunk {
    pub min: RawDocumentBuf,
    pub max: RawDocumentBuf,
    pub shard: ShardId,
}

/// A collection that is to be sharded; it exists with this uuid and its indexes on every shard named in `chunks`.
#[derive(Clone, Debug)]
pub struct NewCollection {
    pub ns: Namespace,
    pub uuid: Uuid,
    pub key: ShardKeyPattern,
    pub unique: bool,
    pub default_collation: Option<RawDocumentBuf>,
    /// The primary shard of the database as the plan was made.
    pub primary: ShardId,
    pub chunks: Vec<NewChunk>,
}

impl Catalog {
    /// Makes a collection sharded, with its first chunks at versions 1|0, 1|1, …
    /// The same key again does nothing more than `base`, the beginning of the commit; another one is
    /// AlreadyInitialized (23).
    pub async fn shard_collection(&self, new: &NewCollection, base: &CatalogTxn) -> Result<()> {
        let time = self.tick().await?;
        let epoch = ObjectId::new();
        let docs = first_chunks(new, time)?;
        let start = rawdoc! {
            "shardKey": new.key.to_doc().to_owned(),
            "collection": new.ns.as_str(),
            "primary": &*new.primary,
        };
        self.log_change("shardCollection.start", new.ns.as_str(), start).await;
        let done = self.commit(|snapshot| plan_shard(snapshot, new, epoch, time, &docs, base)).await?;
        if done {
            let last = ChunkVersion { major: 1, minor: docs.len().saturating_sub(1) as u32 };
            let end = rawdoc! {
                "uuid": uuid_bson(new.uuid),
                "version": format!("{last}||{epoch}||Timestamp({}, {})", time.time, time.increment),
                "empty": true,
                "numChunks": docs.len() as i32,
            };
            self.log_change("shardCollection.end", new.ns.as_str(), end).await;
        }
        Ok(())
    }

    /// Removes the sharded collection of this uuid, or where that is `None` an unsharded one, and its zones from the
    /// catalog, in one commit that begins with `base`; false if it is not sharded.
    ///
    /// Errors: ConflictingOperationInProgress (117) where the name is another sharded collection's by now.
    pub async fn drop_collection(&self, ns: &Namespace, uuid: Option<Uuid>, base: &CatalogTxn) -> Result<bool> {
        self.commit(|snapshot| {
            let mut txn = base.clone();
            if snapshot.tags.contains_key(ns.as_str()) {
                txn = txn.delete_where(collection::TAGS, "ns", ns.as_str()).touch(collection::TAGS);
            }
            match snapshot.collection(ns.as_str()) {
                Some(routing) if Some(routing.uuid) != uuid => Err(another(ns)),
                Some(routing) => {
                    let txn = txn.unchanged(collection::COLLECTIONS, snapshot.version);
                    Ok(Plan::Commit(remove(txn, routing), true))
                }
                None if txn.writes.is_empty() => Ok(Plan::Nothing(false)),
                None => Ok(Plan::Commit(txn, false)),
            }
        })
        .await
    }

    /// Gives the collection `from` the name `to`, keeping uuid, chunks and zones; what is sharded under `to` is
    /// replaced. Each stands with its uuid in the catalog, `None` if it is not sharded. One commit that begins with
    /// `base`; false if there is nothing more to commit.
    ///
    /// Errors: ConflictingOperationInProgress (117) where other collections have the names by now.
    pub async fn rename_collection(
        &self,
        (from, source): (&Namespace, Option<Uuid>),
        (to, target): (&Namespace, Option<Uuid>),
        base: &CatalogTxn,
    ) -> Result<bool> {
        let time = self.tick().await?;
        self.commit(|snapshot| {
            for (ns, uuid) in [(from, source), (to, target)] {
                if snapshot.collection(ns.as_str()).map(|c| c.uuid) != uuid {
                    return Err(another(ns));
                }
            }
            let mut txn = base
                .clone()
                .unchanged(collection::COLLECTIONS, snapshot.version)
                .unchanged(collection::TAGS, snapshot.version);
            if let Some(target) = snapshot.collection(to.as_str()) {
                txn = remove(txn, target);
            }
            if snapshot.tags.contains_key(to.as_str()) {
                txn = txn.delete_where(collection::TAGS, "ns", to.as_str()).touch(collection::TAGS);
            }
            if let Some(source) = snapshot.collection(from.as_str()) {
                let info = CollectionInfo {
                    ns: to.clone(),
                    timestamp: time,
                    epoch: ObjectId::new(),
                    last_mod: DateTime::now(),
                    ..(*source.info).clone()
                };
                txn = txn
                    .delete(collection::COLLECTIONS, from.as_str())
                    .put(collection::COLLECTIONS, info.to_doc())
                    .touch(collection::COLLECTIONS)
                    .touch(Touch::chunks(info.uuid));
                for tag in source.tags.iter() {
                    let moved = TagInfo { id: tag_id(to, &tag.min)?, ns: to.clone(), ..tag.clone() };
                    txn = txn
                        .delete(collection::TAGS, tag.id.clone())
                        .put(collection::TAGS, moved.to_doc()?)
                        .touch(collection::TAGS);
                }
            }
            if txn.writes.is_empty() { Ok(Plan::Nothing(false)) } else { Ok(Plan::Commit(txn, true)) }
        })
        .await
    }

    /// Changes fields of a sharded collection's document (`noBalance` and what stands in `rest`).
    pub async fn set_collection_options(&self, ns: &Namespace, change: impl Fn(&mut CollectionInfo)) -> Result<()> {
        self.commit(|snapshot| {
            let mut info = (*sharded(snapshot, ns)?.info).clone();
            change(&mut info);
            let txn = CatalogTxn::new()
                .unchanged(collection::COLLECTIONS, snapshot.version)
                .put(collection::COLLECTIONS, info.to_doc())
                .touch(collection::COLLECTIONS);
            Ok(Plan::Commit(txn, ()))
        })
        .await
    }

    /// Extends a collection's shard key by suffix fields: chunk and zone bounds get MinKey there (MaxKey in the upper
    /// bound of the last one), the collection gets a new epoch; one commit, which begins with `base`.
    pub async fn refine_key(
        &self,
        ns: &Namespace,
        key: &ShardKeyPattern,
        collection_uuid: Uuid,
        base: &CatalogTxn,
    ) -> Result<()> {
        let time = self.tick().await?;
        for attempt in 0..super::ATTEMPTS {
            let snapshot = self.snapshot();
            let routing = sharded(&snapshot, ns)?;
            if routing.key.to_doc() == key.to_doc() && base.writes.is_empty() {
                return Ok(());
            }
            if !key.extends(&routing.key) || routing.uuid != collection_uuid {
                return Err(super::chunks::conflict(ns));
            }
            let mut docs = Vec::new();
            let mut view = self.store.view(snapshot.version).await?;
            let scan = Scan::ChunksSince { uuid: routing.uuid, lastmod: ChunkVersion::default() };
            view.scan(collection::CHUNKS, &scan, &mut |doc| {
                docs.push(doc);
                Ok(())
            })
            .await?;
            let txn = refined(&snapshot, routing, key, &docs, time, base)?;
            if self.try_commit(attempt, &txn).await? {
                return Ok(());
            }
        }
        Err(super::chunks::conflict(ns))
    }
}

/// The sharded collection, or NamespaceNotSharded (118).
pub(super) fn sharded<'a>(snapshot: &'a Snapshot, ns: &Namespace) -> Result<&'a CollectionRouting> {
    match snapshot.collection(ns.as_str()) {
        Some(routing) => Ok(routing),
        None => Err(Error::new(Code::NamespaceNotSharded, format!("Collection {ns} is not sharded."))),
    }
}

fn another(ns: &Namespace) -> Error {
    Error::new(Code::ConflictingOperationInProgress, format!("{ns} is another collection by now")).from_router()
}

/// Deletes a collection's document and chunks.
pub(super) fn remove(txn: CatalogTxn, c: &CollectionRouting) -> CatalogTxn {
    let uuid = bson::Binary::from_uuid(c.uuid);
    let txn = match c.tags.is_empty() {
        true => txn,
        false => txn.delete_where(collection::TAGS, "ns", c.ns.as_str()).touch(collection::TAGS),
    };
    txn.delete(collection::COLLECTIONS, c.ns.as_str())
        .delete_where(collection::CHUNKS, "uuid", uuid)
        .touch(collection::COLLECTIONS)
        .forget(Touch::chunks(c.uuid))
}

/// The `_id` of a zone range, as mongos makes it.
pub(super) fn tag_id(ns: &Namespace, min: &RawDocument) -> Result<Bson> {
    Ok(Bson::Document(bson::doc! { "ns": ns.as_str(), "min": bson::Document::try_from(min)? }))
}

fn first_chunks(new: &NewCollection, time: Timestamp) -> Result<Vec<ChunkDoc>> {
    let chunk = |(i, c): (usize, &NewChunk)| ChunkDoc {
        uuid: new.uuid,
        info: ChunkInfo {
            id: ObjectId::new(),
            min: c.min.clone(),
            max: c.max.clone(),
            shard: c.shard.clone(),
            lastmod: (1, i as u32),
            jumbo: false,
            since: Some(time),
        },
        history: vec![HistoryEntry { valid_after: time, shard: c.shard.clone() }],
        rest: RawDocumentBuf::new(),
    };
    let docs: Vec<_> = new.chunks.iter().enumerate().map(chunk).collect();
    // Refuses gaps and overlaps before they are written.
    RoutingTable::build(&new.key, docs.iter().map(|d| d.info.clone()).collect())?;
    Ok(docs)
}

fn plan_shard(
    snapshot: &Snapshot,
    new: &NewCollection,
    epoch: ObjectId,
    time: Timestamp,
    docs: &[ChunkDoc],
    base: &CatalogTxn,
) -> Result<Plan<bool>> {
    if let Some(found) = snapshot.collection(new.ns.as_str()) {
        return match found.key.to_doc() == new.key.to_doc() && found.unique == new.unique {
            true if base.writes.is_empty() => Ok(Plan::Nothing(false)),
            true => Ok(Plan::Commit(base.clone(), false)),
            false => {
                Err(Error::new(Code::AlreadyInitialized, format!("sharding already enabled for collection {}", new.ns)))
            }
        };
    }
    if snapshot.primary(new.ns.db()) != Some(&new.primary) {
        return Err(Error::new(
            Code::ConflictingOperationInProgress,
            format!("database {} was dropped or moved while {} was being sharded", new.ns.db(), new.ns),
        ));
    }
    for shard in new.chunks.iter().map(|c| &c.shard) {
        snapshot.shard(shard)?;
    }
    let info = CollectionInfo {
        ns: new.ns.clone(),
        epoch,
        last_mod: DateTime::now(),
        timestamp: time,
        uuid: new.uuid,
        key: new.key.to_doc().to_owned(),
        default_collation: new.default_collation.clone(),
        unique: new.unique,
        no_balance: false,
        rest: RawDocumentBuf::new(),
    };
    let mut txn = base
        .clone()
        .unchanged(collection::COLLECTIONS, snapshot.version)
        .unchanged(collection::DATABASES, snapshot.version)
        .unchanged(collection::SHARDS, snapshot.version)
        .insert(collection::COLLECTIONS, info.to_doc())
        .touch(collection::COLLECTIONS)
        .touch(Touch::chunks(new.uuid));
    for doc in docs {
        txn = txn.insert(collection::CHUNKS, doc.to_doc());
    }
    Ok(Plan::Commit(txn, true))
}

fn refined(
    snapshot: &Snapshot,
    routing: &CollectionRouting,
    key: &ShardKeyPattern,
    docs: &[RawDocumentBuf],
    time: Timestamp,
    base: &CatalogTxn,
) -> Result<CatalogTxn> {
    let epoch = ObjectId::new();
    let info = CollectionInfo {
        epoch,
        timestamp: time,
        last_mod: DateTime::now(),
        key: key.to_doc().to_owned(),
        ..(*routing.info).clone()
    };
    let mut txn = base
        .clone()
        .unchanged(collection::COLLECTIONS, snapshot.version)
        .unchanged(collection::TAGS, snapshot.version)
        .unchanged(&Touch::chunks(routing.uuid), snapshot.version)
        .check(
            collection::COLLECTIONS,
            CheckKind::Fields(routing.ns.as_str().into(), rawdoc! { "lastmodEpoch": routing.epoch }),
            format!("Collection {} was changed meanwhile", routing.ns),
        )
        .put(collection::COLLECTIONS, info.to_doc())
        .touch(collection::COLLECTIONS)
        .touch(Touch::chunks(routing.uuid));
    let mut infos = Vec::with_capacity(docs.len());
    for doc in docs {
        let mut chunk = ChunkDoc::parse(doc)?;
        chunk.info.min = key.extend_with_min(&chunk.info.min)?;
        chunk.info.max = key.extend_with_min(&chunk.info.max)?;
        infos.push(chunk.info.clone());
        txn = txn.put(collection::CHUNKS, chunk.to_doc());
    }
    RoutingTable::build(key, infos)?;
    for tag in routing.tags.iter() {
        let (min, max) = (key.extend_with_min(&tag.min)?, key.extend_with_min(&tag.max)?);
        let moved = TagInfo { id: tag_id(&routing.ns, &min)?, min, max, ..tag.clone() };
        txn =
            txn.delete(collection::TAGS, tag.id.clone()).put(collection::TAGS, moved.to_doc()?).touch(collection::TAGS);
    }
    Ok(txn)
}
