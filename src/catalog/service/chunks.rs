//! Commits about chunks: split and merge.

use bson::oid::ObjectId;
use bson::{Bson, RawDocument, RawDocumentBuf, rawdoc};

use super::Catalog;
use super::collections::sharded;
use crate::catalog::chunk::{ChunkDoc, HistoryEntry};
use crate::catalog::model::{ChunkVersion, Namespace, ShardId, collection};
use crate::catalog::snapshot::{CollectionRouting, Snapshot};
use crate::catalog::store::{CatalogTxn, CheckKind, Touch};
use crate::catalog::table::ChunkInfo;
use crate::error::{Code, Error, Result};

pub(super) fn conflict(ns: &Namespace) -> Error {
    Error::new(
        Code::ConflictingOperationInProgress,
        format!("The chunks of {ns} keep changing; try again when other operations on it are done"),
    )
}

impl Catalog {
    /// Splits the chunk with exactly the bounds `[min, max)` at `points` (strictly inside, ascending). Every part gets the
    /// next minor version; the first keeps the chunk's `_id`.
    ///
    /// Errors: NamespaceNotSharded (118); StaleChunkHistory (250) where there is no such chunk (any more); BadValue (2)
    /// where a point does not lie inside it.
    pub async fn split_chunk(
        &self,
        ns: &Namespace,
        min: &RawDocument,
        max: &RawDocument,
        points: &[RawDocumentBuf],
    ) -> Result<()> {
        for attempt in 0..super::ATTEMPTS {
            let snapshot = self.snapshot();
            let routing = sharded(&snapshot, ns)?;
            let before = self.chunk_doc(&snapshot, routing, min, max).await?;
            let parts = split_parts(routing, &before, points)?;
            let mut txn = guarded(&snapshot, routing);
            for part in &parts {
                txn = txn.put(collection::CHUNKS, part.to_doc());
            }
            if self.try_commit(attempt, &txn).await? {
                self.log_split(routing, &before.info, &parts).await;
                return Ok(());
            }
        }
        Err(conflict(ns))
    }

    /// Makes one chunk of all chunks that fill `[min, max)` exactly; they must lie on one shard.
    ///
    /// Errors: NamespaceNotSharded (118); IllegalOperation (20) where they do not.
    pub async fn merge_chunks(&self, ns: &Namespace, min: &RawDocument, max: &RawDocument) -> Result<()> {
        for attempt in 0..super::ATTEMPTS {
            let snapshot = self.snapshot();
            let routing = sharded(&snapshot, ns)?;
            let parts = mergeable(routing, min, max)?;
            let [first, .., last] = parts.as_slice() else { return Ok(()) };
            let mut merged = self.chunk_doc(&snapshot, routing, &first.min, &first.max).await?;
            merged.info.max = last.max.clone();
            merged.info.lastmod = version_pair(routing.version().next_minor());
            let mut txn = guarded(&snapshot, routing);
            for part in &parts[1..] {
                txn = txn.delete(collection::CHUNKS, part.id);
            }
            txn = txn.put(collection::CHUNKS, merged.to_doc());
            if self.try_commit(attempt, &txn).await? {
                let mut pieces = bson::RawArrayBuf::new();
                parts.iter().for_each(|p| pieces.push(summary(routing, p)));
                let details = rawdoc! {
                    "merged": pieces,
                    "prevShardVersion": routing.version().to_string(),
                    "mergedVersion": ChunkVersion::from(merged.info.lastmod).to_string(),
                    "owningShard": &*merged.info.shard,
                };
                self.log_change("merge", ns.as_str(), details).await;
                return Ok(());
            }
        }
        Err(conflict(ns))
    }

    /// Gives the chunk with exactly the bounds `[min, max)` to another shard, under a new major version. Nothing but the
    /// catalog changes: whoever calls it has seen to the documents.
    ///
    /// Errors: as [`Catalog::split_chunk`].
    pub async fn place_chunk(&self, ns: &Namespace, min: &RawDocument, max: &RawDocument, to: &ShardId) -> Result<()> {
        for attempt in 0..super::ATTEMPTS {
            let snapshot = self.snapshot();
            let routing = sharded(&snapshot, ns)?;
            let mut chunk = self.chunk_doc(&snapshot, routing, min, max).await?;
            if chunk.info.shard == *to {
                return Ok(());
            }
            let now = self.tick().await?;
            chunk.info.shard = to.clone();
            chunk.info.lastmod = version_pair(routing.version().next_major());
            chunk.info.since = Some(now);
            chunk.history.insert(0, HistoryEntry { valid_after: now, shard: to.clone() });
            let txn = guarded(&snapshot, routing).put(collection::CHUNKS, chunk.to_doc());
            if self.try_commit(attempt, &txn).await? {
                return Ok(());
            }
        }
        Err(conflict(ns))
    }

    /// Commits a planned transaction; false: another router was faster, and its change is loaded now.
    pub(super) async fn try_commit(&self, attempt: usize, txn: &CatalogTxn) -> Result<bool> {
        match self.store().commit(txn).await {
            Ok(version) => {
                self.show(version).await?;
                Ok(true)
            }
            Err(e) if e.is(Code::ConflictingOperationInProgress) => {
                tokio::time::sleep(std::time::Duration::from_millis(5 * attempt as u64)).await;
                self.refresh().await?;
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    /// The stored document of the chunk with these bounds.
    async fn chunk_doc(
        &self,
        snapshot: &Snapshot,
        routing: &CollectionRouting,
        min: &RawDocument,
        max: &RawDocument,
    ) -> Result<ChunkDoc> {
        let (low, high) = (routing.key.encode(min)?, routing.key.encode(max)?);
        let chunk = routing.table.chunk_exact(&low, &high).ok_or_else(|| no_such_chunk(min, max))?;
        let info = chunk.to_info();
        let mut view = self.store().view(snapshot.version).await?;
        match view.get(collection::CHUNKS, &Bson::ObjectId(info.id)).await? {
            Some(doc) => Ok(ChunkDoc { info, ..ChunkDoc::parse(&doc)? }),
            None => Err(conflict(&routing.ns)),
        }
    }

    async fn log_split(&self, routing: &CollectionRouting, before: &ChunkInfo, parts: &[ChunkDoc]) {
        let ns = routing.ns.as_str();
        if let [left, right] = parts {
            let details = rawdoc! {
                "before": summary(routing, before),
                "left": summary(routing, &left.info),
                "right": summary(routing, &right.info),
                "owningShard": &*before.shard,
            };
            return self.log_change("split", ns, details).await;
        }
        for (i, part) in parts.iter().enumerate() {
            let details = rawdoc! {
                "before": summary(routing, before),
                "number": (i + 1) as i32,
                "of": parts.len() as i32,
                "chunk": summary(routing, &part.info),
                "owningShard": &*before.shard,
            };
            self.log_change("multi-split", ns, details).await;
        }
    }
}

/// A transaction that changes chunks of a collection, with the conditions all such have.
fn guarded(snapshot: &Snapshot, routing: &CollectionRouting) -> CatalogTxn {
    let topic = Touch::chunks(routing.uuid);
    CatalogTxn::new()
        .unchanged(&topic, snapshot.version)
        .check(
            collection::COLLECTIONS,
            CheckKind::Fields(routing.ns.as_str().into(), rawdoc! { "lastmodEpoch": routing.epoch }),
            format!("Collection {} was dropped or changed meanwhile", routing.ns),
        )
        .touch(topic)
}

fn version_pair(v: ChunkVersion) -> (u32, u32) {
    (v.major, v.minor)
}

/// With the words mongos has where bounds match no chunk.
fn no_such_chunk(min: &RawDocument, max: &RawDocument) -> Error {
    use crate::key::text;
    Error::new(
        Code::StaleChunkHistory,
        format!("no chunk found with the shard key bounds [{}, {})", text::document(min), text::document(max)),
    )
}

fn split_parts(routing: &CollectionRouting, before: &ChunkDoc, points: &[RawDocumentBuf]) -> Result<Vec<ChunkDoc>> {
    let key = &routing.key;
    let mut last = key.encode(&before.info.min)?;
    let end = key.encode(&before.info.max)?;
    for point in points {
        let here = key.encode(point)?;
        if here <= last || here >= end {
            return Err(Error::new(Code::BadValue, "Split points must lie strictly inside the chunk and ascend"));
        }
        last = here;
    }
    let bounds = || std::iter::once(&before.info.min).chain(points);
    let ends = points.iter().chain(std::iter::once(&before.info.max));
    let mut version = routing.version();
    let parts = bounds().zip(ends).enumerate().map(|(i, (min, max))| {
        version = version.next_minor();
        let id = if i == 0 { before.info.id } else { ObjectId::new() };
        let info = ChunkInfo {
            id,
            min: min.clone(),
            max: max.clone(),
            lastmod: version_pair(version),
            jumbo: false,
            ..before.info.clone()
        };
        ChunkDoc { info, ..before.clone() }
    });
    Ok(parts.collect())
}

fn mergeable(routing: &CollectionRouting, min: &RawDocument, max: &RawDocument) -> Result<Vec<ChunkInfo>> {
    use crate::key::text;
    let (low, high) = (routing.key.encode(min)?, routing.key.encode(max)?);
    let mut parts: Vec<ChunkInfo> = Vec::new();
    for chunk in routing.table.overlapping(&low, &high) {
        if routing.key.encode(chunk.min())? < high {
            parts.push(chunk.to_info());
        }
    }
    let exact = match (parts.first(), parts.last()) {
        (Some(first), Some(last)) => {
            routing.key.encode(&first.min)? == low
                && routing.key.encode(&last.max)? == high
                && parts.iter().all(|p| p.shard == first.shard)
        }
        _ => false,
    };
    match exact {
        true => Ok(parts),
        false => Err(Error::new(
            Code::IllegalOperation,
            format!(
                "Failed to commit chunk merge :: caused by :: could not merge chunks, shard {} does not contain a \
                 sequence of chunks that exactly fills the range [{}, {})",
                parts.first().map_or("?", |p| &*p.shard),
                text::document(min),
                text::document(max)
            ),
        )),
    }
}

fn summary(routing: &CollectionRouting, chunk: &ChunkInfo) -> RawDocumentBuf {
    rawdoc! {
        "min": chunk.min.clone(),
        "max": chunk.max.clone(),
        "lastmod": ChunkVersion::from(chunk.lastmod).timestamp(),
        "lastmodEpoch": routing.epoch,
        "lastmodTimestamp": routing.timestamp,
    }
}
