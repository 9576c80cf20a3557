//! Shard keys: the total order of BSON values as bytes, the hash, the key pattern and the first chunks.
//!
//! Everything here is pure and synchronous. [`value`] views BSON without copying, [`order`] turns values into
//! bytes that compare like the values, [`hash`] is MongoDB's hashed index function, [`pattern`] is a collection's
//! shard key, [`initial`] cuts the first chunks of a new sharded collection.

pub mod hash;
pub mod initial;
mod number;
pub mod order;
pub mod pattern;
pub mod text;
pub mod value;

#[cfg(test)]
mod pattern_tests;
#[cfg(test)]
pub(crate) mod testgen;
#[cfg(test)]
mod tests;

pub use pattern::{KeyField, KeyKind, ShardKeyPattern};
