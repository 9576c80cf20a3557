//! A view of BSON values that copies nothing and does not insist on valid UTF-8.
//!
//! Servers store strings that are not UTF-8, so routing works on bytes. Every length is checked before it is used;
//! malformed input gives InvalidBSON (22), never a panic. [`with`] converts values of the `bson` crate.

use bson::spec::BinarySubtype;
use bson::{RawBsonRef, RawDocumentBuf, cstr};

use crate::error::{Code, Error, Result};

pub use crate::bsonx::{MAX_DEPTH, kind as tag};

/// One BSON value. `Doc` and `Array` hold the whole encoded document, length and final NUL included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    MinKey,
    Undefined,
    Null,
    Int32(i32),
    Int64(i64),
    Double(f64),
    /// 16 bytes, little-endian, binary integer encoding.
    Decimal([u8; 16]),
    Str(&'a [u8]),
    Symbol(&'a [u8]),
    Doc(&'a [u8]),
    Array(&'a [u8]),
    /// `head` is the inner length that subtype 2 repeats in front of its data.
    Binary {
        subtype: u8,
        head: Option<[u8; 4]>,
        data: &'a [u8],
    },
    ObjectId([u8; 12]),
    Bool(bool),
    /// Milliseconds since 1970.
    Date(i64),
    /// Seconds in the upper half, increment in the lower.
    Timestamp(u64),
    Regex {
        pattern: &'a [u8],
        flags: &'a [u8],
    },
    DbPointer {
        ns: &'a [u8],
        id: [u8; 12],
    },
    Code(&'a [u8]),
    CodeWithScope {
        code: &'a [u8],
        scope: &'a [u8],
    },
    MaxKey,
}

impl Value<'_> {
    /// The element type byte.
    pub fn tag(&self) -> u8 {
        match self {
            Value::MinKey => tag::MIN_KEY,
            Value::Undefined => tag::UNDEFINED,
            Value::Null => tag::NULL,
            Value::Int32(_) => tag::INT32,
            Value::Int64(_) => tag::INT64,
            Value::Double(_) => tag::DOUBLE,
            Value::Decimal(_) => tag::DECIMAL128,
            Value::Str(_) => tag::STRING,
            Value::Symbol(_) => tag::SYMBOL,
            Value::Doc(_) => tag::DOCUMENT,
            Value::Array(_) => tag::ARRAY,
            Value::Binary { .. } => tag::BINARY,
            Value::ObjectId(_) => tag::OBJECT_ID,
            Value::Bool(_) => tag::BOOL,
            Value::Date(_) => tag::DATE,
            Value::Timestamp(_) => tag::TIMESTAMP,
            Value::Regex { .. } => tag::REGEX,
            Value::DbPointer { .. } => tag::DB_POINTER,
            Value::Code(_) => tag::CODE,
            Value::CodeWithScope { .. } => tag::CODE_WITH_SCOPE,
            Value::MaxKey => tag::MAX_KEY,
        }
    }

    /// MongoDB's canonical type: the first thing two values are compared by, and the first thing hashed.
    pub fn canonical(&self) -> i32 {
        match self {
            Value::MinKey => -1,
            Value::Undefined => 0,
            Value::Null => 5,
            Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal(_) => 10,
            Value::Str(_) | Value::Symbol(_) => 15,
            Value::Doc(_) => 20,
            Value::Array(_) => 25,
            Value::Binary { .. } => 30,
            Value::ObjectId(_) => 35,
            Value::Bool(_) => 40,
            Value::Date(_) => 45,
            Value::Timestamp(_) => 47,
            Value::Regex { .. } => 50,
            Value::DbPointer { .. } => 55,
            Value::Code(_) => 60,
            Value::CodeWithScope { .. } => 65,
            Value::MaxKey => 127,
        }
    }

    pub fn is_number(&self) -> bool {
        matches!(self, Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal(_))
    }
}

/// Calls `f` with the view of a value of the `bson` crate.
pub fn with<R>(value: RawBsonRef<'_>, f: impl FnOnce(Value<'_>) -> Result<R>) -> Result<R> {
    if let RawBsonRef::DbPointer(_) = value {
        // The crate's type keeps its parts private, its encoding shows them.
        let mut doc = RawDocumentBuf::new();
        doc.append(cstr!(""), value);
        let elem = Elements::new(doc.as_bytes())?.next().ok_or_else(malformed)??;
        return f(elem.value()?);
    }
    f(view(value))
}

fn view(value: RawBsonRef<'_>) -> Value<'_> {
    match value {
        RawBsonRef::Double(v) => Value::Double(v),
        RawBsonRef::String(v) => Value::Str(v.as_bytes()),
        RawBsonRef::Array(v) => Value::Array(v.as_bytes()),
        RawBsonRef::Document(v) => Value::Doc(v.as_bytes()),
        RawBsonRef::Boolean(v) => Value::Bool(v),
        RawBsonRef::Null => Value::Null,
        RawBsonRef::RegularExpression(v) => {
            Value::Regex { pattern: v.pattern.as_str().as_bytes(), flags: v.options.as_str().as_bytes() }
        }
        RawBsonRef::JavaScriptCode(v) => Value::Code(v.as_bytes()),
        RawBsonRef::JavaScriptCodeWithScope(v) => {
            Value::CodeWithScope { code: v.code.as_bytes(), scope: v.scope.as_bytes() }
        }
        RawBsonRef::Int32(v) => Value::Int32(v),
        RawBsonRef::Int64(v) => Value::Int64(v),
        RawBsonRef::Timestamp(v) => Value::Timestamp((u64::from(v.time) << 32) | u64::from(v.increment)),
        RawBsonRef::Binary(v) => Value::Binary {
            subtype: v.subtype.into(),
            head: (v.subtype == BinarySubtype::BinaryOld).then(|| (v.bytes.len() as u32).to_le_bytes()),
            data: v.bytes,
        },
        RawBsonRef::ObjectId(v) => Value::ObjectId(v.bytes()),
        RawBsonRef::DateTime(v) => Value::Date(v.timestamp_millis()),
        RawBsonRef::Symbol(v) => Value::Symbol(v.as_bytes()),
        RawBsonRef::Decimal128(v) => Value::Decimal(v.bytes()),
        RawBsonRef::Undefined | RawBsonRef::DbPointer(_) => Value::Undefined,
        RawBsonRef::MaxKey => Value::MaxKey,
        RawBsonRef::MinKey => Value::MinKey,
    }
}

/// One element of a document: type byte, name and the bytes of the value.
#[derive(Clone, Copy, Debug)]
pub struct Elem<'a> {
    pub tag: u8,
    pub name: &'a [u8],
    pub data: &'a [u8],
}

impl<'a> Elem<'a> {
    /// The value. `data` was cut to the value's size already, so this fails only on an inner inconsistency.
    pub fn value(&self) -> Result<Value<'a>> {
        let data = self.data;
        Ok(match self.tag {
            tag::DOUBLE => Value::Double(f64::from_le_bytes(fixed(data)?)),
            tag::STRING => Value::Str(string(data)?),
            tag::DOCUMENT => Value::Doc(data),
            tag::ARRAY => Value::Array(data),
            tag::BINARY => binary(data)?,
            tag::UNDEFINED => Value::Undefined,
            tag::OBJECT_ID => Value::ObjectId(fixed(data)?),
            tag::BOOL => Value::Bool(fixed::<1>(data)?[0] != 0),
            tag::DATE => Value::Date(i64::from_le_bytes(fixed(data)?)),
            tag::NULL => Value::Null,
            tag::REGEX => {
                let end = nul(data)?;
                let flags = &data[end + 1..];
                Value::Regex { pattern: &data[..end], flags: &flags[..nul(flags)?] }
            }
            tag::DB_POINTER => {
                let cut = data.len().checked_sub(12).ok_or_else(malformed)?;
                Value::DbPointer { ns: string(&data[..cut])?, id: fixed(&data[cut..])? }
            }
            tag::CODE => Value::Code(string(data)?),
            tag::SYMBOL => Value::Symbol(string(data)?),
            tag::CODE_WITH_SCOPE => {
                let rest = data.get(4..).ok_or_else(malformed)?;
                let size = 4 + length(rest)?;
                let code = string(rest.get(..size).ok_or_else(malformed)?)?;
                Value::CodeWithScope { code, scope: check_doc(&rest[size..])? }
            }
            tag::INT32 => Value::Int32(i32::from_le_bytes(fixed(data)?)),
            tag::TIMESTAMP => Value::Timestamp(u64::from_le_bytes(fixed(data)?)),
            tag::INT64 => Value::Int64(i64::from_le_bytes(fixed(data)?)),
            tag::DECIMAL128 => Value::Decimal(fixed(data)?),
            tag::MIN_KEY => Value::MinKey,
            tag::MAX_KEY => Value::MaxKey,
            _ => return Err(malformed()),
        })
    }
}

/// The elements of a document, in order. After an error the iterator ends.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    rest: &'a [u8],
}

impl<'a> Elements<'a> {
    /// Over a whole encoded document (or array).
    pub fn new(doc: &'a [u8]) -> Result<Self> {
        let doc = check_doc(doc)?;
        Ok(Elements { rest: &doc[4..doc.len() - 1] })
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<Elem<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let elem = self.step();
        if elem.is_err() {
            self.rest = &[];
        }
        Some(elem)
    }
}

impl<'a> Elements<'a> {
    #[inline]
    fn step(&mut self) -> Result<Elem<'a>> {
        let (&tag, rest) = self.rest.split_first().ok_or_else(malformed)?;
        let end = nul(rest)?;
        let (name, rest) = (&rest[..end], &rest[end + 1..]);
        let size = size_of(tag, rest)?;
        let data = rest.get(..size).ok_or_else(malformed)?;
        self.rest = &rest[size..];
        Ok(Elem { tag, name, data })
    }
}

/// The value of the first field called `name`.
pub fn get<'a>(doc: &'a [u8], name: &[u8]) -> Result<Option<Value<'a>>> {
    for elem in Elements::new(doc)? {
        let elem = elem?;
        if elem.name == name {
            return elem.value().map(Some);
        }
    }
    Ok(None)
}

/// The error for BSON that does not parse.
#[cold]
pub fn malformed() -> Error {
    Error::new(Code::InvalidBSON, "The message holds malformed BSON")
}

/// The error for BSON nested deeper than MongoDB allows.
#[cold]
pub fn too_deep() -> Error {
    Error::new(Code::Overflow, format!("The document is nested deeper than {MAX_DEPTH} levels"))
}

/// Bytes the value takes, from its own length fields; they may reach past the end of `rest`.
#[inline]
fn size_of(tag: u8, rest: &[u8]) -> Result<usize> {
    Ok(match tag {
        tag::UNDEFINED | tag::NULL | tag::MIN_KEY | tag::MAX_KEY => 0,
        tag::BOOL => 1,
        tag::INT32 => 4,
        tag::DOUBLE | tag::DATE | tag::TIMESTAMP | tag::INT64 => 8,
        tag::OBJECT_ID => 12,
        tag::DECIMAL128 => 16,
        tag::STRING | tag::CODE | tag::SYMBOL => 4 + length(rest)?,
        tag::DB_POINTER => 16 + length(rest)?,
        tag::BINARY => 5 + length(rest)?,
        tag::DOCUMENT | tag::ARRAY => {
            let size = length(rest)?;
            if size < 5 || rest.get(size - 1) != Some(&0) {
                return Err(malformed());
            }
            size
        }
        tag::CODE_WITH_SCOPE => length(rest)?.max(4),
        tag::REGEX => {
            let pattern = nul(rest)? + 1;
            pattern + nul(&rest[pattern..])? + 1
        }
        _ => return Err(malformed()),
    })
}

#[inline]
fn length(bytes: &[u8]) -> Result<usize> {
    let head = bytes.first_chunk::<4>().ok_or_else(malformed)?;
    usize::try_from(i32::from_le_bytes(*head)).map_err(|_| malformed())
}

#[inline]
fn nul(bytes: &[u8]) -> Result<usize> {
    bytes.iter().position(|&b| b == 0).ok_or_else(malformed)
}

fn fixed<const N: usize>(data: &[u8]) -> Result<[u8; N]> {
    data.try_into().map_err(|_| malformed())
}

/// A length-prefixed string's bytes without the final NUL; `data` must be exactly one string.
fn string(data: &[u8]) -> Result<&[u8]> {
    let rest = data.get(4..).ok_or_else(malformed)?;
    match rest.split_last() {
        Some((0, text)) if length(data)? == rest.len() => Ok(text),
        _ => Err(malformed()),
    }
}

fn binary(data: &[u8]) -> Result<Value<'_>> {
    let (&subtype, bytes) = data.get(4..).and_then(<[u8]>::split_first).ok_or_else(malformed)?;
    match (subtype, bytes.split_first_chunk::<4>()) {
        (2, Some((head, rest))) => Ok(Value::Binary { subtype, head: Some(*head), data: rest }),
        _ => Ok(Value::Binary { subtype, head: None, data: bytes }),
    }
}

/// Checks a document's frame: its length field and final NUL.
fn check_doc(doc: &[u8]) -> Result<&[u8]> {
    if doc.len() >= 5 && length(doc)? == doc.len() && doc.last() == Some(&0) { Ok(doc) } else { Err(malformed()) }
}
