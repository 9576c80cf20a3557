//! Gathering the segments of a new version of a table, kept ones and new ones, and making the table of them.

use std::sync::Arc;

use super::Inner;
use super::index::{Index, Place, Slab, Tops, cuts};
use super::segment::{Entry, Segment, ShardSet};
use crate::catalog::model::ShardId;
use crate::error::Result;
use crate::key::ShardKeyPattern;

/// Segments are built with this many chunks, where there are that many.
pub(super) const SEGMENT_CHUNKS: usize = Index::MAX;

/// The segments so far, in order.
#[derive(Default)]
pub(super) struct Layout {
    segments: Vec<Arc<Segment>>,
    indexes: Vec<Where>,
    slab: Slab,
}

/// Where a segment's index is.
enum Where {
    /// In the old table.
    Old(Index),
    /// In the new slab.
    New(Place),
}

impl Layout {
    pub fn with_capacity(segments: usize) -> Self {
        Layout { segments: Vec::with_capacity(segments), indexes: Vec::with_capacity(segments), slab: Slab::default() }
    }

    /// A segment of the old table.
    pub fn keep(&mut self, old: &Inner, segment: usize) {
        self.segments.push(old.segments[segment].clone());
        self.indexes.push(Where::Old(old.indexes[segment].clone()));
    }

    /// Sorted entries without gaps, in segments of about [`SEGMENT_CHUNKS`].
    pub fn add(&mut self, entries: &[Entry]) -> Result<()> {
        let pieces = entries.len().div_ceil(SEGMENT_CHUNKS).max(1);
        for piece in entries.chunks(entries.len().div_ceil(pieces).max(1)) {
            let keys: Vec<&[u8]> = piece.iter().map(|e| e.min.as_slice()).collect();
            let shards: Vec<u16> = piece.iter().map(|e| e.shard).collect();
            let mut from = 0;
            for to in cuts(&keys).into_iter().chain([piece.len()]).filter(|to| *to > 0) {
                if to > from {
                    self.segments.push(Arc::new(Segment::new(&piece[from..to])?));
                    self.indexes.push(Where::New(self.slab.add(&keys[from..to], &shards[from..to])));
                }
                from = to;
            }
        }
        Ok(())
    }

    /// Whether merges left so many small segments that all should be laid out anew.
    fn is_sparse(&self, density: usize) -> bool {
        let chunks: usize = self.segments.iter().map(|s| s.len()).sum();
        self.segments.len() > 16 && self.segments.len() * density > 4 * chunks
    }

    /// The table; `old` is the version before, if there is one.
    pub fn finish(mut self, key: ShardKeyPattern, shards: Vec<ShardId>, old: Option<&Inner>) -> Result<Inner> {
        let mut slabs = old.map_or(1, |old| old.slabs + 1);
        if slabs > 8 + self.segments.len() / 4 {
            // Changes scattered the indexes over many slabs: bring them together again.
            slabs = 1;
            for index in &mut self.indexes {
                if let Where::Old(old) = index {
                    *index = Where::New(self.slab.copy(old));
                }
            }
        }
        let slab = self.slab.finish();
        let indexes = self.indexes.into_iter().map(|index| match index {
            Where::Old(index) => index,
            Where::New(place) => Index::new(slab.clone(), place),
        });
        let mut owner_set = ShardSet::default();
        let mut starts = Vec::with_capacity(self.segments.len());
        let mut len = 0;
        for segment in &self.segments {
            owner_set.union(&segment.owners);
            starts.push(len);
            len += segment.len();
        }
        let mut owners: Vec<ShardId> = owner_set.iter().map(|i| shards[usize::from(i)].clone()).collect();
        owners.sort_unstable();
        let max_doc = key.max_key();
        let inner = Inner {
            tops: Tops::new(self.segments.iter().map(|s| s.key(0))),
            version: self.segments.iter().map(|s| s.version).max().unwrap_or_default(),
            min_doc: key.min_key(),
            max_key: key.encode(&max_doc)?,
            max_doc,
            key,
            shards,
            owners,
            indexes: indexes.collect(),
            slabs,
            density: old.map_or(len / self.segments.len().max(1), |old| old.density),
            segments: self.segments,
            starts,
            len,
        };
        Ok(inner)
    }

    /// The same, but everything laid out anew where there are too many small segments.
    pub fn finish_dense(self, key: ShardKeyPattern, shards: Vec<ShardId>, old: &Inner) -> Result<Inner> {
        let sparse = self.is_sparse(old.density);
        let table = self.finish(key, shards, Some(old))?;
        if !sparse {
            return Ok(table);
        }
        let mut layout = Layout::default();
        layout.add(&table.merge(0, table.segments.len(), &[])?)?;
        layout.finish(table.key, table.shards, None)
    }
}
