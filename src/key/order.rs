//! Order-preserving bytes for BSON values (stub; the real encoding follows).

use std::cmp::Ordering;

use bson::RawBsonRef;

use crate::error::Result;

/// Appends the self-delimiting, order-preserving encoding of `value`.
pub fn push_value(out: &mut Vec<u8>, value: RawBsonRef<'_>) -> Result<()> {
    out.extend_from_slice(format!("{value:?}\0").as_bytes());
    Ok(())
}

/// Appends the encoding of MinKey, which sorts before every value.
pub fn push_min(out: &mut Vec<u8>) {
    out.push(0x01);
}

/// Appends the encoding of MaxKey, which sorts after every value.
pub fn push_max(out: &mut Vec<u8>) {
    out.push(0xF0);
}

/// BSON's total order with simple collation; agrees with the byte order of [`push_value`]'s encodings.
pub fn compare(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> Ordering {
    let (mut x, mut y) = (Vec::new(), Vec::new());
    let _ = push_value(&mut x, a);
    let _ = push_value(&mut y, b);
    x.cmp(&y)
}
