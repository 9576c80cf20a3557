//! MongoDB's hash of a BSON value for hashed shard keys (stub).

use bson::RawBsonRef;

use crate::error::Result;

/// The hash of a hashed index (seed 0). A missing field hashes like null.
pub fn hash64(value: RawBsonRef<'_>) -> Result<i64> {
    hash64_seed(value, 0)
}

/// The same with another seed.
pub fn hash64_seed(_value: RawBsonRef<'_>, seed: i32) -> Result<i64> {
    Ok(i64::from(seed))
}
