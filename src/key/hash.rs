//! MongoDB's hash of a BSON value, bit for bit (REFERENCE E1): what a hashed index stores and a hashed shard key routes by.
//!
//! The first 8 bytes of an MD5 over the seed and a canonical form of the value, as a little-endian integer. All numbers
//! are hashed by their integer part, so 42, 42.1 and NumberLong(42) share a hash.

use bson::RawBsonRef;
use md5::{Digest, Md5};
use smallvec::{SmallVec, smallvec};

use super::number;
use super::value::{self, Elements, MAX_DEPTH, Value, too_deep};
use crate::error::Result;

/// The hash of a hashed index (seed 0). A missing field hashes like null.
pub fn hash64(value: RawBsonRef<'_>) -> Result<i64> {
    hash64_seed(value, 0)
}

/// The same with another seed; shard keys never use one.
pub fn hash64_seed(value: RawBsonRef<'_>, seed: i32) -> Result<i64> {
    value::with(value, |v| hash_value(v, seed))
}

/// The hash of a [`Value`]. Errors: malformed or too deep nested documents.
pub fn hash_value(value: Value<'_>, seed: i32) -> Result<i64> {
    let mut md5 = Md5::new();
    md5.update(seed.to_le_bytes());
    update(&mut md5, None, value, 0)?;
    let digest = md5.finalize();
    let mut head = [0; 8];
    head.copy_from_slice(&digest[..8]);
    Ok(i64::from_le_bytes(head))
}

fn update(md5: &mut Md5, name: Option<&[u8]>, value: Value<'_>, depth: usize) -> Result<()> {
    md5.update(value.canonical().to_le_bytes());
    if let Some(name) = name {
        md5.update(name);
        md5.update([0]);
    }
    match value {
        Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal(_) => {
            md5.update(integer(value).to_le_bytes());
        }
        Value::Doc(doc) | Value::Array(doc) => update_elements(md5, doc, depth)?,
        Value::Str(text) | Value::Symbol(text) | Value::Code(text) => {
            md5.update((text.len() as u32 + 1).to_le_bytes());
            md5.update(text);
            md5.update([0]);
        }
        Value::CodeWithScope { code, scope } => {
            md5.update(code);
            md5.update([0]);
            update_elements(md5, scope, depth)?;
        }
        Value::Binary { subtype, head, data } => {
            let size = data.len() + head.map_or(0, |h| h.len());
            md5.update((size as u32).to_le_bytes());
            md5.update([subtype]);
            md5.update(head.as_ref().map_or(&[][..], |h| &h[..]));
            md5.update(data);
        }
        Value::ObjectId(id) => md5.update(id),
        Value::Bool(v) => md5.update([u8::from(v)]),
        Value::Date(v) => md5.update(v.to_le_bytes()),
        Value::Timestamp(v) => md5.update(v.to_le_bytes()),
        Value::Regex { pattern, flags } => {
            md5.update(pattern);
            md5.update([0]);
            md5.update(flags);
            md5.update([0]);
        }
        Value::DbPointer { ns, id } => {
            md5.update((ns.len() as u32 + 1).to_le_bytes());
            md5.update(ns);
            md5.update([0]);
            md5.update(id);
        }
        Value::MinKey | Value::Undefined | Value::Null | Value::MaxKey => {}
    }
    Ok(())
}

/// Every element with its name, then the marker of the end.
fn update_elements(md5: &mut Md5, doc: &[u8], depth: usize) -> Result<()> {
    if depth >= MAX_DEPTH {
        return Err(too_deep());
    }
    for elem in Elements::new(doc)? {
        let elem = elem?;
        update(md5, Some(elem.name), elem.value()?, depth + 1)?;
    }
    md5.update(0i32.to_le_bytes());
    Ok(())
}

/// The integer a number is hashed as.
fn integer(value: Value<'_>) -> i64 {
    const TWO_63: f64 = 9_223_372_036_854_775_808.0;
    match value {
        Value::Int32(v) => i64::from(v),
        Value::Int64(v) => v,
        // Exactly 2^63 overflows to the other end in MongoDB and has to here; anything above is clamped.
        Value::Double(v) if v == TWO_63 => i64::MIN,
        Value::Double(v) => v as i64,
        Value::Decimal(bytes) => number::decimal_to_i64(bytes),
        _ => 0,
    }
}

/// Every integer that a number equal to `value`, of whatever type, is hashed as. A double is cut off, a Decimal128 is
/// rounded, so 3.5 is hashed as 3 or 4; at 2^63 they differ as well.
pub fn integers_of_equal_numbers(value: Value<'_>) -> SmallVec<[i64; 2]> {
    let own = integer(value);
    let other = match value {
        // `as` clamps at both ends like the decimal conversion.
        Value::Double(v) => v.round_ties_even() as i64,
        Value::Decimal(bytes) => number::decimal_as_double_integer(bytes),
        _ => own,
    };
    if own == other { smallvec![own] } else { smallvec![own, other] }
}

/// Whether all documents equal to `doc` have the same hash: it holds no number that types hash differently.
pub fn is_hash_unique(doc: &[u8]) -> Result<bool> {
    is_hash_unique_at(doc, 0)
}

fn is_hash_unique_at(doc: &[u8], depth: usize) -> Result<bool> {
    if depth >= MAX_DEPTH {
        return Err(too_deep());
    }
    for elem in Elements::new(doc)? {
        let unique = match elem?.value()? {
            Value::Doc(inner) | Value::Array(inner) | Value::CodeWithScope { scope: inner, .. } => {
                is_hash_unique_at(inner, depth + 1)?
            }
            value => integers_of_equal_numbers(value).len() == 1,
        };
        if !unique {
            return Ok(false);
        }
    }
    Ok(true)
}
