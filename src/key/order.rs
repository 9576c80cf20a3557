//! BSON's total order as bytes.
//!
//! [`push`] appends an encoding that compares, byte by byte, like MongoDB compares the values under simple collation.
//! It is self-delimiting: where one encoding begins another (the string "b" and one with a NUL behind the b), the longer one
//! goes on with FF, which no encoding begins with. So the encodings of a compound key's fields can be joined, and compare
//! field by field. Values that MongoDB calls equal (1, 1.0, NumberLong(1), NumberDecimal("1.00"); a string and a symbol)
//! encode alike, so the bytes cannot be decoded to the value they came from.
//!
//! | type | bytes |
//! | --- | --- |
//! | any | one type byte, ascending in MongoDB's canonical type order |
//! | number | see [`super::number`] |
//! | string, symbol, code | the bytes, 00 as 00 FF, ended by 00 |
//! | object | per element: type byte, name, 00, value; ended by 00 |
//! | array | per element: value; ended by 00 |
//! | binary | length (4, big-endian), subtype, data |
//! | ObjectId, bool, date, timestamp | fixed width, big-endian, the date's sign flipped |
//! | regex | pattern, 00, flags, 00 |
//! | DBPointer | length of the name with its NUL (4), name, id |
//! | code with scope | code as string, scope as object |

use std::cmp::Ordering;

use bson::RawBsonRef;

use super::number;
use super::value::{self, Elements, MAX_DEPTH, Value, malformed, too_deep};
use crate::error::Result;

/// Type bytes. 00 is kept for "ends here", FF follows an escaped 00.
pub(crate) mod type_byte {
    pub const MIN_KEY: u8 = 0x0A;
    pub const UNDEFINED: u8 = 0x0F;
    pub const NULL: u8 = 0x14;
    pub const NUMBER: u8 = super::number::NAN;
    pub const NUMBER_LAST: u8 = super::number::POS_INFINITY;
    pub const STRING: u8 = 0x3C;
    pub const OBJECT: u8 = 0x46;
    pub const ARRAY: u8 = 0x50;
    pub const BINARY: u8 = 0x5A;
    pub const OBJECT_ID: u8 = 0x64;
    pub const BOOL: u8 = 0x6E;
    pub const DATE: u8 = 0x78;
    pub const TIMESTAMP: u8 = 0x82;
    pub const REGEX: u8 = 0x8C;
    pub const DB_POINTER: u8 = 0x96;
    pub const CODE: u8 = 0xA0;
    pub const CODE_WITH_SCOPE: u8 = 0xAA;
    pub const MAX_KEY: u8 = 0xF0;
}
use type_byte as t;

/// Appends the encoding of a value of the `bson` crate. Errors: InvalidBSON for malformed nested documents, Overflow for
/// too deep ones; what was appended until then is removed.
pub fn push_value(out: &mut Vec<u8>, value: RawBsonRef<'_>) -> Result<()> {
    value::with(value, |v| push(out, v))
}

/// The same for a [`Value`].
pub fn push(out: &mut Vec<u8>, value: Value<'_>) -> Result<()> {
    let start = out.len();
    let result = push_at(out, value, 0);
    if result.is_err() {
        out.truncate(start);
    }
    result
}

/// Appends the encoding of MinKey, which sorts before every value.
pub fn push_min(out: &mut Vec<u8>) {
    out.push(t::MIN_KEY);
}

/// Appends the encoding of MaxKey, which sorts after every value.
pub fn push_max(out: &mut Vec<u8>) {
    out.push(t::MAX_KEY);
}

/// Appends the encoding of null, which missing fields have too.
pub fn push_null(out: &mut Vec<u8>) {
    out.push(t::NULL);
}

/// Appends the encoding of an integer.
pub fn push_int(out: &mut Vec<u8>, value: i64) {
    number::push_int(out, value);
}

fn push_at(out: &mut Vec<u8>, value: Value<'_>, depth: usize) -> Result<()> {
    match value {
        Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal(_) => {
            number::push(out, value);
            return Ok(());
        }
        _ => out.push(type_byte_of(&value)),
    }
    match value {
        Value::Str(text) | Value::Symbol(text) | Value::Code(text) => push_text(out, text),
        Value::Doc(doc) => push_object(out, doc, depth)?,
        Value::Array(doc) => push_array(out, doc, depth)?,
        Value::Binary { subtype, head, data } => {
            let head = head.as_ref().map_or(&[][..], |h| &h[..]);
            out.extend_from_slice(&((head.len() + data.len()) as u32).to_be_bytes());
            out.push(subtype);
            out.extend_from_slice(head);
            out.extend_from_slice(data);
        }
        Value::ObjectId(id) => out.extend_from_slice(&id),
        Value::Bool(v) => out.push(u8::from(v)),
        Value::Date(ms) => out.extend_from_slice(&(ms as u64 ^ (1 << 63)).to_be_bytes()),
        Value::Timestamp(v) => out.extend_from_slice(&v.to_be_bytes()),
        Value::Regex { pattern, flags } => {
            push_name(out, pattern);
            push_name(out, flags);
        }
        Value::DbPointer { ns, id } => {
            out.extend_from_slice(&(ns.len() as u32 + 1).to_be_bytes());
            out.extend_from_slice(ns);
            out.extend_from_slice(&id);
        }
        Value::CodeWithScope { code, scope } => {
            push_text(out, code);
            push_object(out, scope, depth)?;
        }
        _ => {}
    }
    Ok(())
}

fn push_object(out: &mut Vec<u8>, doc: &[u8], depth: usize) -> Result<()> {
    if depth >= MAX_DEPTH {
        return Err(too_deep());
    }
    for elem in Elements::new(doc)? {
        let elem = elem?;
        let value = elem.value()?;
        // Objects compare type before name before value.
        out.push(type_byte_of(&value));
        push_name(out, elem.name);
        push_at(out, value, depth + 1)?;
    }
    out.push(0);
    Ok(())
}

fn push_array(out: &mut Vec<u8>, doc: &[u8], depth: usize) -> Result<()> {
    if depth >= MAX_DEPTH {
        return Err(too_deep());
    }
    for elem in Elements::new(doc)? {
        push_at(out, elem?.value()?, depth + 1)?;
    }
    out.push(0);
    Ok(())
}

/// Bytes that may contain NUL.
fn push_text(out: &mut Vec<u8>, text: &[u8]) {
    let mut parts = text.split(|b| *b == 0);
    out.extend_from_slice(parts.next().unwrap_or_default());
    for part in parts {
        out.extend_from_slice(&[0, 0xFF]);
        out.extend_from_slice(part);
    }
    out.push(0);
}

/// Bytes that cannot contain NUL.
fn push_name(out: &mut Vec<u8>, name: &[u8]) {
    out.extend_from_slice(name);
    out.push(0);
}

/// The type byte; for numbers the one they share.
fn type_byte_of(value: &Value<'_>) -> u8 {
    match value {
        Value::MinKey => t::MIN_KEY,
        Value::Undefined => t::UNDEFINED,
        Value::Null => t::NULL,
        Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal(_) => t::NUMBER,
        Value::Str(_) | Value::Symbol(_) => t::STRING,
        Value::Doc(_) => t::OBJECT,
        Value::Array(_) => t::ARRAY,
        Value::Binary { .. } => t::BINARY,
        Value::ObjectId(_) => t::OBJECT_ID,
        Value::Bool(_) => t::BOOL,
        Value::Date(_) => t::DATE,
        Value::Timestamp(_) => t::TIMESTAMP,
        Value::Regex { .. } => t::REGEX,
        Value::DbPointer { .. } => t::DB_POINTER,
        Value::Code(_) => t::CODE,
        Value::CodeWithScope { .. } => t::CODE_WITH_SCOPE,
        Value::MaxKey => t::MAX_KEY,
    }
}

/// BSON's total order with simple collation; agrees with the byte order of [`push`]'s encodings.
/// Malformed nested documents compare as if they ended where they break.
pub fn compare(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> Ordering {
    value::with(a, |a| value::with(b, |b| Ok(compare_values(a, b)))).unwrap_or(Ordering::Equal)
}

/// The same for [`Value`]s.
pub fn compare_values(a: Value<'_>, b: Value<'_>) -> Ordering {
    compare_at(a, b, 0)
}

fn compare_at(a: Value<'_>, b: Value<'_>, depth: usize) -> Ordering {
    let by_type = type_byte_of(&a).cmp(&type_byte_of(&b));
    if by_type.is_ne() {
        return by_type;
    }
    match (a, b) {
        (Value::Str(x) | Value::Symbol(x), Value::Str(y) | Value::Symbol(y)) => x.cmp(y),
        (Value::Code(x), Value::Code(y)) => x.cmp(y),
        (Value::Doc(x), Value::Doc(y)) => compare_docs(x, y, true, depth),
        (Value::Array(x), Value::Array(y)) => compare_docs(x, y, false, depth),
        (Value::Binary { subtype: s1, head: h1, data: d1 }, Value::Binary { subtype: s2, head: h2, data: d2 }) => {
            let size = |head: Option<[u8; 4]>, data: &[u8]| data.len() + head.map_or(0, |h| h.len());
            // Same subtype and size: both have an inner length or neither has.
            size(h1, d1).cmp(&size(h2, d2)).then(s1.cmp(&s2)).then(h1.cmp(&h2)).then_with(|| d1.cmp(d2))
        }
        (Value::ObjectId(x), Value::ObjectId(y)) => x.cmp(&y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(&y),
        (Value::Date(x), Value::Date(y)) => x.cmp(&y),
        (Value::Timestamp(x), Value::Timestamp(y)) => x.cmp(&y),
        (Value::Regex { pattern: p1, flags: f1 }, Value::Regex { pattern: p2, flags: f2 }) => {
            p1.cmp(p2).then_with(|| f1.cmp(f2))
        }
        (Value::DbPointer { ns: n1, id: i1 }, Value::DbPointer { ns: n2, id: i2 }) => {
            n1.len().cmp(&n2.len()).then_with(|| n1.cmp(n2)).then(i1.cmp(&i2))
        }
        (Value::CodeWithScope { code: c1, scope: s1 }, Value::CodeWithScope { code: c2, scope: s2 }) => {
            c1.cmp(c2).then_with(|| compare_docs(s1, s2, true, depth))
        }
        _ if a.is_number() => compare_numbers(a, b),
        _ => Ordering::Equal,
    }
}

fn compare_docs(a: &[u8], b: &[u8], names: bool, depth: usize) -> Ordering {
    if depth >= MAX_DEPTH {
        return Ordering::Equal;
    }
    let elements = |doc| Elements::new(doc).into_iter().flatten().map_while(Result::ok);
    let (mut left, mut right) = (elements(a), elements(b));
    loop {
        let (x, y) = match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(x), Some(y)) => (x, y),
        };
        let (Ok(v), Ok(w)) = (x.value(), y.value()) else { return Ordering::Equal };
        let by_name = if names { x.name.cmp(y.name) } else { Ordering::Equal };
        let order = type_byte_of(&v).cmp(&type_byte_of(&w)).then(by_name).then_with(|| compare_at(v, w, depth + 1));
        if order.is_ne() {
            return order;
        }
    }
}

fn compare_numbers(a: Value<'_>, b: Value<'_>) -> Ordering {
    let int = |v| match v {
        Value::Int32(n) => Some(i64::from(n)),
        Value::Int64(n) => Some(n),
        _ => None,
    };
    if let (Some(x), Some(y)) = (int(a), int(b)) {
        return x.cmp(&y);
    }
    if let (Value::Double(x), Value::Double(y)) = (a, b)
        && let Some(order) = x.partial_cmp(&y)
    {
        return order;
    }
    let (mut x, mut y) = (Vec::new(), Vec::new());
    number::push(&mut x, a);
    number::push(&mut y, b);
    x.cmp(&y)
}

/// Length of the encoding at the start of `bytes` (for tools and tests that take compound keys apart).
pub fn encoded_len(bytes: &[u8]) -> Result<usize> {
    encoded_len_at(bytes, 0)
}

fn encoded_len_at(bytes: &[u8], depth: usize) -> Result<usize> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    let first = *bytes.first().ok_or_else(malformed)?;
    let nul = |from: usize| -> Result<usize> {
        let rest = bytes.get(from..).ok_or_else(malformed)?;
        Ok(from + rest.iter().position(|b| *b == 0).ok_or_else(malformed)? + 1)
    };
    let text = |mut from: usize| -> Result<usize> {
        loop {
            from = nul(from)?;
            if bytes.get(from) != Some(&0xFF) {
                return Ok(from);
            }
        }
    };
    let sized = |extra: usize| -> Result<usize> {
        let head = bytes.get(1..).and_then(|b| b.first_chunk::<4>()).ok_or_else(malformed)?;
        Ok(5 + u32::from_be_bytes(*head) as usize + extra)
    };
    let list = |mut at: usize, names: bool| -> Result<usize> {
        while *bytes.get(at).ok_or_else(malformed)? != 0 {
            if names {
                at = nul(at)?;
            }
            at += encoded_len_at(bytes.get(at..).ok_or_else(malformed)?, depth + 1)?;
        }
        Ok(at + 1)
    };
    let length = match first {
        t::MIN_KEY | t::UNDEFINED | t::NULL | t::MAX_KEY => 1,
        t::NUMBER..=t::NUMBER_LAST => number::encoded_len(bytes).ok_or_else(malformed)?,
        t::STRING | t::CODE => text(1)?,
        t::OBJECT => list(1, true)?,
        t::ARRAY => list(1, false)?,
        t::BINARY => sized(1)?,
        t::DB_POINTER => sized(11)?,
        t::OBJECT_ID => 13,
        t::BOOL => 2,
        t::DATE | t::TIMESTAMP => 9,
        t::REGEX => nul(nul(1)?)?,
        t::CODE_WITH_SCOPE => list(text(1)?, true)?,
        _ => return Err(malformed()),
    };
    if length > bytes.len() { Err(malformed()) } else { Ok(length) }
}
