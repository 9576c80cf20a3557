//! The first chunks of an empty collection with a hashed shard key (REFERENCE E2).

use bson::{RawBsonRef, RawDocumentBuf};

use super::pattern::{KeyKind, ShardKeyPattern};
use super::value::malformed;
use crate::catalog::model::ShardId;
use crate::error::{Code, Error, Result};

/// Chunks per shard that a new hashed collection gets: what MongoDB does from 7.2 on (before: 2).
pub const CHUNKS_PER_SHARD: usize = 1;

/// The most chunks a shard may get through `numInitialChunks`.
pub const MAX_CHUNKS_PER_SHARD: usize = 8192;

/// One range `[min, max)` of complete shard keys, hash applied.
#[derive(Clone, Debug, PartialEq)]
pub struct InitialChunk {
    pub min: RawDocumentBuf,
    pub max: RawDocumentBuf,
    pub shard: ShardId,
}

/// The `n - 1` split points of the hash space for `n` chunks of nearly equal width, ascending.
pub fn hashed_split_points(n: usize) -> Vec<i64> {
    if n < 2 {
        return Vec::new();
    }
    let interval = i64::MAX / n as i64 * 2;
    let mut points = Vec::with_capacity(n - 1);
    let mut current = if n.is_multiple_of(2) {
        points.push(0);
        interval
    } else {
        interval / 2
    };
    for _ in 0..(n - 1) / 2 {
        points.extend([-current, current]);
        // The step after the last point may leave the range of i64; it is not used.
        current = current.saturating_add(interval);
    }
    points.sort_unstable();
    points
}

/// Which shard gets chunk `i` when every shard gets `per_shard` consecutive chunks, round-robin.
pub fn placement(shards: &[ShardId], per_shard: usize, i: usize) -> Option<&ShardId> {
    shards.get((i / per_shard.max(1)) % shards.len().max(1))
}

/// How many chunks an empty hashed collection starts with. `requested` is the command's `numInitialChunks`
/// (0 and negative count as not given, as in mongos). Errors: InvalidOptions (72) for a ranged key, a collection that
/// holds data, or too many.
pub fn initial_chunk_count(key: &ShardKeyPattern, empty: bool, requested: Option<i64>, shards: usize) -> Result<usize> {
    let requested = requested.filter(|n| *n > 0);
    if !key.is_hashed() || !empty {
        return match requested {
            None => Ok(1),
            Some(_) => Err(Error::new(
                Code::InvalidOptions,
                "numInitialChunks is only supported when the collection is empty and has a hashed field in the shard \
                 key pattern",
            )),
        };
    }
    let Some(n) = requested else { return Ok(shards.max(1) * CHUNKS_PER_SHARD) };
    let limit = shards * MAX_CHUNKS_PER_SHARD;
    match usize::try_from(n) {
        Ok(n) if n < limit => Ok(n),
        _ => Err(Error::new(
            Code::InvalidOptions,
            format!("numInitialChunks must be below {limit} ({MAX_CHUNKS_PER_SHARD} per shard), but is {n}"),
        )),
    }
}

/// The first chunks of an empty collection without zones: `total` chunks over `shards` (which the caller has shuffled),
/// `⌊total / shards⌋` consecutive chunks each, round-robin. Only a key whose first field is hashed is cut; any other key starts as one
/// chunk on the first shard.
pub fn initial_chunks(key: &ShardKeyPattern, shards: &[ShardId], total: usize) -> Result<Vec<InitialChunk>> {
    let first_is_hashed = key.fields().first().is_some_and(|f| f.kind == KeyKind::Hashed);
    let points = if first_is_hashed { hashed_split_points(total) } else { Vec::new() };
    let per_shard = (points.len() + 1) / shards.len().max(1);
    let mut bounds = Vec::with_capacity(points.len() + 2);
    bounds.push(key.min_key());
    for point in points {
        bounds.push(hashed_bound(key, point)?);
    }
    bounds.push(key.max_key());
    let mut chunks = Vec::with_capacity(bounds.len() - 1);
    for (i, pair) in bounds.windows(2).enumerate() {
        let shard = placement(shards, per_shard, i).ok_or_else(|| {
            Error::new(Code::ShardNotFound, "There is no shard to put the first chunks on; add one first")
        })?;
        let [min, max] = pair else { return Err(malformed()) };
        chunks.push(InitialChunk { min: min.clone(), max: max.clone(), shard: shard.clone() });
    }
    Ok(chunks)
}

/// `{h: point, …: MinKey}`
fn hashed_bound(key: &ShardKeyPattern, point: i64) -> Result<RawDocumentBuf> {
    let mut doc = RawDocumentBuf::new();
    for item in key.to_doc().iter() {
        let (name, value) = item?;
        let value = if value.as_str().is_some() { RawBsonRef::Int64(point) } else { RawBsonRef::MinKey };
        doc.append(name, value);
    }
    Ok(doc)
}
