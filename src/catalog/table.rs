//! The routing table: a collection's chunks by encoded lower bound (stub bodies).

use bson::{RawDocument, RawDocumentBuf, Timestamp, oid::ObjectId};

use super::model::ShardId;
use crate::error::{Code, Error, Result};
use crate::key::ShardKeyPattern;

/// One chunk as it is stored in `config.chunks`.
#[derive(Clone, Debug, PartialEq)]
pub struct ChunkInfo {
    pub id: ObjectId,
    /// Inclusive lower bound: a complete key document, hash applied.
    pub min: RawDocumentBuf,
    /// Exclusive upper bound.
    pub max: RawDocumentBuf,
    pub shard: ShardId,
    /// (major, minor).
    pub lastmod: (u32, u32),
    pub jumbo: bool,
    /// `onCurrentShardSince`.
    pub since: Option<Timestamp>,
}

/// A chunk seen in a table; cheap to copy.
#[derive(Clone, Copy)]
pub struct ChunkRef<'a> {
    info: &'a ChunkInfo,
    index: usize,
}

impl<'a> ChunkRef<'a> {
    pub fn id(&self) -> ObjectId {
        self.info.id
    }
    pub fn min(&self) -> &'a RawDocument {
        &self.info.min
    }
    pub fn max(&self) -> &'a RawDocument {
        &self.info.max
    }
    pub fn shard(&self) -> &'a ShardId {
        &self.info.shard
    }
    pub fn lastmod(&self) -> (u32, u32) {
        self.info.lastmod
    }
    pub fn jumbo(&self) -> bool {
        self.info.jumbo
    }
    pub fn since(&self) -> Option<Timestamp> {
        self.info.since
    }
    /// Position in the table, 0-based.
    pub fn index(&self) -> usize {
        self.index
    }
    pub fn to_info(&self) -> ChunkInfo {
        self.info.clone()
    }
}

/// An immutable, sorted, gap-free set of chunks.
#[derive(Clone, Debug)]
pub struct RoutingTable {
    key: ShardKeyPattern,
    chunks: Vec<ChunkInfo>,
    mins: Vec<Vec<u8>>,
    owners: Vec<ShardId>,
}

impl RoutingTable {
    /// Sorts the chunks and checks that they cover the key space without gap or overlap.
    pub fn build(key: &ShardKeyPattern, mut chunks: Vec<ChunkInfo>) -> Result<Self> {
        if chunks.is_empty() {
            return Err(Error::new(
                Code::ConflictingOperationInProgress,
                "a sharded collection needs at least one chunk",
            ));
        }
        chunks.sort_by_cached_key(|c| key.encode(&c.min).unwrap_or_default());
        let mins = chunks.iter().map(|c| key.encode(&c.min)).collect::<Result<_>>()?;
        let mut owners: Vec<ShardId> = chunks.iter().map(|c| c.shard.clone()).collect();
        owners.sort();
        owners.dedup();
        Ok(Self { key: key.clone(), chunks, mins, owners })
    }

    /// The chunk that holds an encoded key.
    pub fn chunk_for(&self, key: &[u8]) -> ChunkRef<'_> {
        let index = self.mins.partition_point(|m| m.as_slice() <= key).saturating_sub(1);
        ChunkRef { info: &self.chunks[index], index }
    }

    /// The chunks that intersect `[min, max]`, both ends inclusive.
    pub fn overlapping(&self, min: &[u8], max_inclusive: &[u8]) -> impl Iterator<Item = ChunkRef<'_>> {
        let (from, to) = (self.chunk_for(min).index, self.chunk_for(max_inclusive).index);
        self.iter().skip(from).take((to + 1).saturating_sub(from))
    }

    /// Calls `found` for every shard that owns a chunk intersecting `[min, max]` (each shard once, in name order).
    pub fn shards_for_range(&self, min: &[u8], max_inclusive: &[u8]) -> Vec<ShardId> {
        let mut shards: Vec<_> = self.overlapping(min, max_inclusive).map(|c| c.shard().clone()).collect();
        shards.sort();
        shards.dedup();
        shards
    }

    /// The shards that own at least one chunk, in name order.
    pub fn owners(&self) -> &[ShardId] {
        &self.owners
    }

    /// The highest `lastmod`.
    pub fn version(&self) -> (u32, u32) {
        self.chunks.iter().map(|c| c.lastmod).max().unwrap_or_default()
    }

    /// The highest `lastmod` among one shard's chunks; (0, 0) when it owns none.
    pub fn shard_version(&self, shard: &str) -> (u32, u32) {
        self.chunks.iter().filter(|c| &*c.shard == shard).map(|c| c.lastmod).max().unwrap_or_default()
    }

    /// The chunk with exactly these encoded bounds.
    pub fn chunk_exact(&self, min: &[u8], max: &[u8]) -> Option<ChunkRef<'_>> {
        let chunk = self.chunk_for(min);
        let same = self.key.encode(chunk.min()).ok()? == min && self.key.encode(chunk.max()).ok()? == max;
        same.then_some(chunk)
    }

    /// The table after the changed chunks (splits, moves, merges) replaced what they overlap.
    pub fn with_changes(&self, changed: Vec<ChunkInfo>) -> Result<Self> {
        let mut chunks = Vec::new();
        for old in &self.chunks {
            let (min, max) = (self.key.encode(&old.min)?, self.key.encode(&old.max)?);
            let mut replaced = false;
            for new in &changed {
                replaced |= self.key.encode(&new.min)? < max && min < self.key.encode(&new.max)?;
            }
            if !replaced {
                chunks.push(old.clone());
            }
        }
        chunks.extend(changed);
        Self::build(&self.key, chunks)
    }

    pub fn iter(&self) -> impl Iterator<Item = ChunkRef<'_>> {
        self.chunks.iter().enumerate().map(|(index, info)| ChunkRef { info, index })
    }

    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}
