//! Making tables: from all chunks, and from a table and the chunks that changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::layout::{Layout, SEGMENT_CHUNKS};
use super::segment::Entry;
use super::{ChunkInfo, Inner};
use crate::catalog::model::ShardId;
use crate::error::{Code, Error, Result, Retry};
use crate::key::{ShardKeyPattern, text};

/// Shards get positions in the order they first appear.
struct Shards {
    list: Vec<ShardId>,
    positions: HashMap<ShardId, u16>,
}

impl Shards {
    fn new(list: Vec<ShardId>) -> Self {
        let positions = list.iter().cloned().zip(0..).collect();
        Shards { list, positions }
    }

    fn position(&mut self, shard: ShardId) -> Result<u16> {
        if let Some(position) = self.positions.get(&shard) {
            return Ok(*position);
        }
        let position = u16::try_from(self.list.len()).map_err(|_| {
            Error::new(Code::ChunkMetadataInconsistency, "A collection cannot have chunks on more than 65,536 shards")
        })?;
        self.positions.insert(shard.clone(), position);
        self.list.push(shard);
        Ok(position)
    }

    fn entry(&mut self, key: &ShardKeyPattern, chunk: ChunkInfo) -> Result<Entry> {
        let (min, max) = (key.encode(&chunk.min)?, key.encode(&chunk.max)?);
        if min >= max {
            return Err(broken(format!("the chunk {} is empty", text::range(&chunk.min, &chunk.max))));
        }
        Ok(Entry {
            min,
            max,
            min_doc: chunk.min,
            id: chunk.id,
            shard: self.position(chunk.shard)?,
            lastmod: chunk.lastmod,
            jumbo: chunk.jumbo,
            since: chunk.since,
        })
    }
}

/// The error for chunks that do not fit together. Reading them again may help: they may have been read while they changed.
fn broken(what: String) -> Error {
    Error::new(
        Code::ConflictingOperationInProgress,
        format!("The collection's chunks do not form a routing table: {what}; reload them"),
    )
    .from_router()
    .retry(Retry::Safe)
}

fn mismatch(left: &Entry, right: &Entry) -> Error {
    let what = if left.max < right.min { "a gap" } else { "an overlap" };
    broken(format!("there is {what} before the chunk that begins at {}", text::document(&right.min_doc)))
}

/// See [`super::RoutingTable::build`].
pub(super) fn build(key: &ShardKeyPattern, chunks: Vec<ChunkInfo>) -> Result<Inner> {
    // In name order, which is the order that owners are given in.
    let names: BTreeSet<ShardId> = chunks.iter().map(|c| c.shard.clone()).collect();
    let mut shards = Shards::new(names.into_iter().take(usize::from(u16::MAX)).collect());
    let mut entries = chunks.into_iter().map(|c| shards.entry(key, c)).collect::<Result<Vec<_>>>()?;
    entries.sort_unstable_by(|a, b| a.min.cmp(&b.min));
    let (min_key, max_key) = (key.encode(&key.min_key())?, key.encode(&key.max_key())?);
    check_run(&entries, &min_key, &max_key)?;
    let mut layout = Layout::with_capacity(entries.len() / SEGMENT_CHUNKS + 1);
    layout.add(&entries)?;
    layout.finish(key.clone(), shards.list, None)
}

/// Checks that sorted entries cover `[from, to)` exactly.
fn check_run(entries: &[Entry], from: &[u8], to: &[u8]) -> Result<()> {
    match (entries.first(), entries.last()) {
        (Some(first), Some(last)) if first.min == from && last.max == to => {}
        (Some(first), _) if first.min != from => {
            return Err(broken(format!("no chunk ends where {} begins", text::document(&first.min_doc))));
        }
        (_, Some(last)) => {
            return Err(broken(format!("no chunk begins where {} ends", text::document(&last.min_doc))));
        }
        _ => return Err(broken("there are no chunks".to_owned())),
    }
    match entries.windows(2).find(|pair| pair[0].max != pair[1].min) {
        Some([left, right]) => Err(mismatch(left, right)),
        _ => Ok(()),
    }
}

/// See [`super::RoutingTable::with_changes`].
pub(super) fn apply(old: &Inner, changed: Vec<ChunkInfo>) -> Result<Inner> {
    let mut shards = Shards::new(old.shards.clone());
    let changes = newest(&old.key, &mut shards, changed)?;
    let mut layout = Layout::with_capacity(old.segments.len() + 1);
    let mut pending = changes.as_slice();
    let mut at = 0;
    while at < old.segments.len() {
        let touched = pending.first().is_some_and(|c| c.min.as_slice() < old.end_of(at));
        if !touched {
            layout.keep(old, at);
            at += 1;
            continue;
        }
        // A run of segments that changes reach into, neighbours included as long as a change crosses their border.
        let from = at;
        let mut used = 0;
        loop {
            let end = old.end_of(at);
            used += pending[used..].iter().take_while(|c| c.min.as_slice() < end).count();
            let crosses = pending[..used].last().is_some_and(|c| c.max.as_slice() > end);
            let next_too =
                pending.get(used).is_some_and(|c| at + 1 < old.segments.len() && c.min.as_slice() < old.end_of(at + 1));
            at += 1;
            if at >= old.segments.len() || !(crosses || next_too) {
                break;
            }
        }
        let (mine, rest) = pending.split_at(used);
        pending = rest;
        let entries = old.merge(from, at, mine)?;
        check_run(&entries, old.segments[from].key(0), old.end_of(at - 1))?;
        layout.add(&entries)?;
    }
    layout.finish_dense(old.key.clone(), shards.list, old)
}

/// The changes sorted by lower bound, without those that newer ones overlap.
fn newest(key: &ShardKeyPattern, shards: &mut Shards, changed: Vec<ChunkInfo>) -> Result<Vec<Entry>> {
    let mut entries = changed.into_iter().map(|c| shards.entry(key, c)).collect::<Result<Vec<_>>>()?;
    entries.sort_by_key(|e| e.lastmod);
    let mut kept: BTreeMap<Vec<u8>, Entry> = BTreeMap::new();
    for entry in entries {
        // Older changes that begin below this one's end and end above its begin.
        let overlapped: Vec<Vec<u8>> = kept
            .range(..entry.max.clone())
            .rev()
            .take_while(|(_, old)| old.max > entry.min)
            .map(|(min, _)| min.clone())
            .collect();
        for min in overlapped {
            kept.remove(&min);
        }
        kept.insert(entry.min.clone(), entry);
    }
    Ok(kept.into_values().collect())
}

impl Inner {
    /// The encoded upper end of a segment.
    fn end_of(&self, segment: usize) -> &[u8] {
        self.segments.get(segment + 1).map_or(&self.max_key, |next| next.key(0))
    }

    /// The chunks of segments `from..to` that no change overlaps, and the changes, sorted.
    pub(super) fn merge(&self, from: usize, to: usize, changes: &[Entry]) -> Result<Vec<Entry>> {
        let mut entries = Vec::with_capacity((to - from) * SEGMENT_CHUNKS + changes.len());
        let mut pending = changes.iter().peekable();
        for segment in from..to {
            let s = &self.segments[segment];
            for i in 0..s.len() {
                let min = s.key(i);
                let max = if i + 1 < s.len() { s.key(i + 1) } else { self.end_of(segment) };
                while let Some(change) = pending.next_if(|c| c.min.as_slice() < max) {
                    entries.push(change.clone());
                }
                // A change that begins inside this chunk was pushed before it and ends after its begin.
                let overlapped = entries.last().is_some_and(|e| e.max.as_slice() > min);
                if !overlapped {
                    entries.push(Entry {
                        min: min.to_vec(),
                        max: max.to_vec(),
                        min_doc: s.min(i)?.to_owned(),
                        id: s.id(i),
                        shard: s.shard(i),
                        lastmod: s.lastmod(i),
                        jumbo: s.is_jumbo(i),
                        since: s.since(i),
                    });
                }
            }
        }
        entries.extend(pending.cloned());
        Ok(entries)
    }
}
