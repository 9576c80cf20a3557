//! The answer of targeting as a value that explain, logs and metrics print alike.

use smallvec::SmallVec;

use crate::catalog::model::ShardId;

/// Why a route has the shards it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The collection is not sharded: the database's primary shard.
    Unsharded,
    /// Every shard key field is pinned to one value.
    EqualityOnShardKey,
    /// The first fields of a compound key are pinned, the rest is free.
    EqualityOnPrefix,
    /// A range on a single-field key, or equality and then a range up to the key's last field.
    RangeOnShardKey,
    /// A range on one of the first fields of a compound key.
    RangeOnPrefix,
    /// Several values of the shard key.
    InOnShardKey,
    /// Several values of the first fields of a compound key.
    InOnPrefix,
    /// A union of branches that all name the shard key.
    OrOfTargeted,
    /// Nothing can match: one shard answers with an empty result.
    Unsatisfiable,
    /// The filter says nothing about the first shard key field.
    NoShardKey,
    /// The filter has only a range (or another non-equality) on a hashed field.
    HashedRange,
    /// A string predicate under a non-simple collation.
    NonSimpleCollation,
    /// `$text`, `$where` and the like.
    NotSelective,
    /// Only `_id`, which is not the shard key.
    IdOnly,
}

impl Reason {
    /// The name in explain output, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Unsharded => "Unsharded",
            Reason::EqualityOnShardKey => "EqualityOnShardKey",
            Reason::EqualityOnPrefix => "EqualityOnPrefix",
            Reason::RangeOnShardKey => "RangeOnShardKey",
            Reason::RangeOnPrefix => "RangeOnPrefix",
            Reason::InOnShardKey => "InOnShardKey",
            Reason::InOnPrefix => "InOnPrefix",
            Reason::OrOfTargeted => "OrOfTargeted",
            Reason::Unsatisfiable => "Unsatisfiable",
            Reason::NoShardKey => "NoShardKey",
            Reason::HashedRange => "HashedRange",
            Reason::NonSimpleCollation => "NonSimpleCollation",
            Reason::NotSelective => "NotSelective",
            Reason::IdOnly => "IdOnly",
        }
    }

    /// One sentence for people.
    pub fn explanation(self) -> &'static str {
        match self {
            Reason::Unsharded => "the collection is not sharded, its database's primary shard holds it",
            Reason::EqualityOnShardKey => "the filter gives every shard key field one value",
            Reason::EqualityOnPrefix => "the filter pins the first fields of the shard key",
            Reason::RangeOnShardKey => "the filter gives a range of the shard key",
            Reason::RangeOnPrefix => "the filter gives a range of the first fields of the shard key",
            Reason::InOnShardKey => "the filter lists values of the shard key",
            Reason::InOnPrefix => "the filter lists values of the first fields of the shard key",
            Reason::OrOfTargeted => "every branch of the filter's alternatives names the shard key",
            Reason::Unsatisfiable => "no document can match, so one shard is asked",
            Reason::NoShardKey => {
                "the filter does not restrict the first shard key field, so every shard with data is asked"
            }
            Reason::HashedRange => {
                "the filter restricts a hashed field other than by equality, so every shard with data is asked"
            }
            Reason::NonSimpleCollation => "strings compared under a collation cannot be located by the shard key",
            Reason::NotSelective => "the filter uses an operator that cannot be located by the shard key",
            Reason::IdOnly => "the filter names only _id, which is not the shard key",
        }
    }
}

/// How a filter uses one shard key field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldUse {
    /// One value.
    Equality,
    /// A list of values.
    Values,
    /// At least one range.
    Range,
    /// Not restricted.
    Free,
    /// No value can match.
    Nothing,
}

/// What explain shows of the bounds used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Key ranges that were looked up; looking stops once every owner is found.
    pub ranges: usize,
    /// Chunks in those ranges.
    pub chunks: usize,
}

/// Where an operation goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// In name order, without duplicates, never empty.
    pub shards: SmallVec<[ShardId; 4]>,
    pub reason: Reason,
    /// Full shard-key equality: exactly one chunk.
    pub exact_key: bool,
    pub bounds: Bounds,
}

impl Route {
    pub fn new(shards: impl IntoIterator<Item = ShardId>, reason: Reason) -> Self {
        Self { shards: shards.into_iter().collect(), reason, exact_key: false, bounds: Bounds::default() }
    }

    /// The only shard, if there is only one.
    pub fn single(&self) -> Option<&ShardId> {
        match self.shards.as_slice() {
            [one] => Some(one),
            _ => None,
        }
    }
}
