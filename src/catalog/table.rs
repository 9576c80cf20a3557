//! The routing table: a collection's chunks by encoded lower bound.
//!
//! Chunks are kept in segments of about 512 ([`segment`]), each a set of columns over shared byte arrays, so a million
//! chunks take some 70 MB. Lookups go by an index of their own ([`index`]), which holds a chunk's place and shard in few
//! bytes and in few cache lines. A table never changes; [`RoutingTable::with_changes`] makes the next version and shares
//! every segment that no change touches. Each segment knows which shards own chunks in it, so the owners of a wide range
//! are found without walking its chunks.

mod change;
mod index;
#[cfg(test)]
mod index_tests;
mod layout;
mod segment;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf, Timestamp, oid::ObjectId};
use smallvec::SmallVec;

use self::index::{Index, Tops};
use self::segment::{Segment, ShardSet};
use super::model::ShardId;
use crate::error::Result;
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

/// An immutable, sorted, gap-free set of chunks. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RoutingTable(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    key: ShardKeyPattern,
    /// Every shard that any version of this table had chunks on; chunks refer to positions.
    shards: Vec<ShardId>,
    /// In name order.
    owners: Vec<ShardId>,
    segments: Vec<Arc<Segment>>,
    /// Of each segment.
    indexes: Vec<Index>,
    /// How many slabs the indexes are in, at most.
    slabs: usize,
    /// Chunks per segment when the table was last laid out as a whole.
    density: usize,
    /// Number of chunks before each segment.
    starts: Vec<usize>,
    len: usize,
    /// Over the first keys of the segments.
    tops: Tops,
    /// The ends of the key space.
    min_doc: RawDocumentBuf,
    max_doc: RawDocumentBuf,
    max_key: Vec<u8>,
    version: (u32, u32),
}

/// A chunk seen in a table; cheap to copy.
#[derive(Clone, Copy)]
pub struct ChunkRef<'a> {
    table: &'a Inner,
    segment: usize,
    chunk: usize,
    /// Position in the table's list.
    shard: u16,
}

impl<'a> ChunkRef<'a> {
    fn segment(&self) -> &'a Segment {
        &self.table.segments[self.segment]
    }

    pub fn id(&self) -> ObjectId {
        self.segment().id(self.chunk)
    }

    /// Inclusive lower bound.
    pub fn min(&self) -> &'a RawDocument {
        // Bounds were valid documents when the segment was built.
        self.segment().min(self.chunk).unwrap_or(&self.table.min_doc)
    }

    /// Exclusive upper bound.
    pub fn max(&self) -> &'a RawDocument {
        self.next().map_or(&self.table.max_doc, |next| next.min())
    }

    /// The encoded lower bound.
    pub fn min_key(&self) -> &'a [u8] {
        self.segment().key(self.chunk)
    }

    /// The encoded upper bound.
    pub fn max_key(&self) -> &'a [u8] {
        self.next().map_or(&self.table.max_key, |next| next.min_key())
    }

    pub fn shard(&self) -> &'a ShardId {
        &self.table.shards[usize::from(self.shard)]
    }

    /// (major, minor).
    pub fn lastmod(&self) -> (u32, u32) {
        self.segment().lastmod(self.chunk)
    }

    pub fn jumbo(&self) -> bool {
        self.segment().is_jumbo(self.chunk)
    }

    /// `onCurrentShardSince`.
    pub fn since(&self) -> Option<Timestamp> {
        self.segment().since(self.chunk)
    }

    /// Position in the table, 0-based.
    pub fn index(&self) -> usize {
        self.table.starts[self.segment] + self.chunk
    }

    /// The chunk that begins where this one ends.
    pub fn next(&self) -> Option<ChunkRef<'a>> {
        let (segment, chunk) =
            if self.chunk + 1 < self.segment().len() { (self.segment, self.chunk + 1) } else { (self.segment + 1, 0) };
        let shard = self.table.segments.get(segment)?.shard(chunk);
        Some(ChunkRef { table: self.table, segment, chunk, shard })
    }

    pub fn to_info(&self) -> ChunkInfo {
        ChunkInfo {
            id: self.id(),
            min: self.min().to_owned(),
            max: self.max().to_owned(),
            shard: self.shard().clone(),
            lastmod: self.lastmod(),
            jumbo: self.jumbo(),
            since: self.since(),
        }
    }
}

impl std::fmt::Debug for ChunkRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (major, minor) = self.lastmod();
        write!(f, "{} on {} at {major}|{minor}", crate::key::text::range(self.min(), self.max()), self.shard())
    }
}

impl RoutingTable {
    /// Sorts the chunks and checks that they cover the key space without gap or overlap.
    /// Errors: ConflictingOperationInProgress (117) if they do not, BadValue (2) for bounds that do not fit the key.
    pub fn build(key: &ShardKeyPattern, chunks: Vec<ChunkInfo>) -> Result<Self> {
        change::build(key, chunks).map(|inner| RoutingTable(Arc::new(inner)))
    }

    /// The table after the changed chunks (splits, moves, merges) replaced what they overlap; of changes that overlap
    /// each other the one with the higher `lastmod` counts. Errors as [`RoutingTable::build`].
    pub fn with_changes(&self, changed: Vec<ChunkInfo>) -> Result<Self> {
        if changed.is_empty() {
            return Ok(self.clone());
        }
        change::apply(&self.0, changed).map(|inner| RoutingTable(Arc::new(inner)))
    }

    /// The chunk that holds an encoded key.
    #[inline]
    pub fn chunk_for(&self, key: &[u8]) -> ChunkRef<'_> {
        let table = &*self.0;
        let segment = table.tops.find(key, |i| table.segments[i].key(0));
        let found = table.indexes[segment].find(key, |i| table.segments[segment].key(i));
        ChunkRef { table, segment, chunk: found.chunk, shard: found.shard }
    }

    /// The chunks that intersect `[min, max]`, both ends inclusive.
    pub fn overlapping(&self, min: &[u8], max_inclusive: &[u8]) -> impl Iterator<Item = ChunkRef<'_>> + use<'_> {
        let first = self.chunk_for(min);
        let count = (self.chunk_for(max_inclusive).index() + 1).saturating_sub(first.index());
        std::iter::successors(Some(first), ChunkRef::next).take(count)
    }

    /// The shards that own a chunk intersecting `[min, max]`, each once, in name order.
    pub fn shards_for_range(&self, min: &[u8], max_inclusive: &[u8]) -> SmallVec<[ShardId; 4]> {
        let mut found = self.collector();
        found.add_range(min, max_inclusive);
        found.shards()
    }

    /// Gathers the owners of several ranges.
    pub fn collector(&self) -> Collector<'_> {
        Collector { table: self, set: ShardSet::default(), complete: false, chunks: 0 }
    }

    /// The shards that own at least one chunk, in name order.
    pub fn owners(&self) -> &[ShardId] {
        &self.0.owners
    }

    /// The highest `lastmod`.
    pub fn version(&self) -> (u32, u32) {
        self.0.version
    }

    /// The highest `lastmod` among one shard's chunks; (0, 0) when it owns none. Looks at all of its chunks.
    pub fn shard_version(&self, shard: &str) -> (u32, u32) {
        self.chunks_of(shard).map(|c| c.lastmod()).max().unwrap_or_default()
    }

    /// One shard's chunks, ascending.
    pub fn chunks_of<'a>(&'a self, shard: &str) -> impl Iterator<Item = ChunkRef<'a>> + use<'a> {
        let table = &*self.0;
        let position = table.shards.iter().position(|s| &**s == shard).and_then(|i| u16::try_from(i).ok());
        let here = move |s: &Segment| position.is_some_and(|p| s.owners.contains(p));
        let segments = table.segments.iter().enumerate().filter(move |(_, s)| here(s));
        segments.flat_map(move |(segment, s)| {
            let mine = s.shards(0, s.len()).enumerate().filter(move |(_, shard)| Some(*shard) == position);
            mine.map(move |(chunk, shard)| ChunkRef { table, segment, chunk, shard })
        })
    }

    /// How many chunks each owner has, in name order.
    pub fn chunk_counts(&self) -> Vec<(ShardId, usize)> {
        let mut counts = vec![0; self.0.shards.len()];
        for shard in self.0.segments.iter().flat_map(|s| s.shards(0, s.len())) {
            counts[usize::from(shard)] += 1;
        }
        let mut named: Vec<_> = self.0.shards.iter().cloned().zip(counts).filter(|(_, n)| *n > 0).collect();
        named.sort();
        named
    }

    /// The chunk with exactly these encoded bounds.
    pub fn chunk_exact(&self, min: &[u8], max: &[u8]) -> Option<ChunkRef<'_>> {
        let chunk = self.chunk_for(min);
        (chunk.min_key() == min && chunk.max_key() == max).then_some(chunk)
    }

    /// All chunks, ascending.
    pub fn iter(&self) -> impl Iterator<Item = ChunkRef<'_>> {
        std::iter::successors(Some(self.first()), ChunkRef::next)
    }

    /// The chunk that begins at MinKey.
    pub fn first(&self) -> ChunkRef<'_> {
        ChunkRef { table: &self.0, segment: 0, chunk: 0, shard: self.0.segments[0].shard(0) }
    }

    /// The number of chunks, at least 1.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Never: a table covers the whole key space.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Bytes that the table holds on the heap, shared segments included.
    pub fn memory(&self) -> usize {
        let segments: usize = self.0.segments.iter().map(|s| s.memory() + 16 + 8 + 8).sum();
        let mut slabs: Vec<_> = self.0.indexes.iter().map(Index::slab).collect();
        slabs.sort_unstable_by_key(|slab| Arc::as_ptr(slab));
        slabs.dedup_by_key(|slab| Arc::as_ptr(slab));
        let slabs: usize = slabs.iter().map(|slab| slab.memory()).sum();
        size_of::<Inner>() + segments + size_of_val(self.0.indexes.as_slice()) + slabs + self.0.tops.memory()
    }

    /// How many segments this table shares with another.
    #[cfg(test)]
    fn shared_segments(&self, other: &RoutingTable) -> usize {
        self.0.segments.iter().filter(|a| other.0.segments.iter().any(|b| Arc::ptr_eq(a, b))).count()
    }
}

/// The owners of the ranges given so far.
#[derive(Clone, Debug)]
pub struct Collector<'a> {
    table: &'a RoutingTable,
    set: ShardSet,
    complete: bool,
    chunks: usize,
}

impl<'a> Collector<'a> {
    /// Adds the owners of the chunks that intersect `[min, max]` (encoded, both ends inclusive; nothing if `max` is below
    /// `min`). Returns true once every owner of the table is found: further ranges cannot add any.
    pub fn add_range(&mut self, min: &[u8], max: &[u8]) -> bool {
        if self.complete || max < min {
            return self.complete;
        }
        let (from, to) = (self.table.chunk_for(min), self.table.chunk_for(max));
        self.chunks += to.index() + 1 - from.index();
        let segments = &self.table.0.segments;
        for (i, segment) in segments.iter().enumerate().take(to.segment + 1).skip(from.segment) {
            if self.set.covers(&segment.owners) {
                continue;
            }
            let first = if i == from.segment { from.chunk } else { 0 };
            let last = if i == to.segment { to.chunk + 1 } else { segment.len() };
            if last - first == segment.len() {
                self.set.union(&segment.owners);
            } else {
                self.add_chunks(segment, first, last);
            }
            if self.set.len() == self.table.0.owners.len() {
                self.complete = true;
                break;
            }
        }
        self.complete
    }

    /// Adds the owners of a segment's chunks `first..last`, until all of the segment's are found.
    fn add_chunks(&mut self, segment: &Segment, first: usize, last: usize) {
        for start in (first..last).step_by(32) {
            segment.shards(start, last.min(start + 32)).for_each(|s| self.set.insert(s));
            if self.set.covers(&segment.owners) {
                break;
            }
        }
    }

    /// Adds the owner of one key.
    pub fn add_key(&mut self, key: &[u8]) -> bool {
        if !self.complete {
            let chunk = self.table.chunk_for(key);
            self.chunks += 1;
            self.set.insert(chunk.shard);
            self.complete = self.set.len() == self.table.0.owners.len();
        }
        self.complete
    }

    /// Whether every owner of the table is found.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// Chunks counted so far: a chunk counts for every range that it intersects, and counting ends with the last owner.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// The shards found, in name order.
    pub fn shards(&self) -> SmallVec<[ShardId; 4]> {
        let mut shards: SmallVec<[ShardId; 4]> =
            self.set.iter().map(|i| self.table.0.shards[usize::from(i)].clone()).collect();
        shards.sort_unstable();
        shards
    }
}
