//! The first chunks of an empty collection with a hashed shard key (stub).

use crate::catalog::model::ShardId;

/// The `n - 1` split points of the hash space for `n` chunks of equal width, ascending.
pub fn hashed_split_points(_n: usize) -> Vec<i64> {
    Vec::new()
}

/// Which shard gets chunk `i` when every shard gets `per_shard` consecutive chunks, round-robin.
pub fn placement(shards: &[ShardId], per_shard: usize, i: usize) -> Option<&ShardId> {
    shards.get((i / per_shard.max(1)) % shards.len().max(1))
}
