//! BSON as bytes: walking a document's fields by offset, and checking a document's structure.

use std::ops::Range;

use smallvec::SmallVec;

use crate::error::{Code, Error};

/// How deep documents and arrays may nest below the outermost one (as servers have it).
pub const MAX_DEPTH: usize = 200;

/// The BSON type bytes, as the specification numbers them.
pub mod kind {
    pub const DOUBLE: u8 = 0x01;
    pub const STRING: u8 = 0x02;
    pub const DOCUMENT: u8 = 0x03;
    pub const ARRAY: u8 = 0x04;
    pub const BINARY: u8 = 0x05;
    pub const UNDEFINED: u8 = 0x06;
    pub const OBJECT_ID: u8 = 0x07;
    pub const BOOL: u8 = 0x08;
    pub const DATE: u8 = 0x09;
    pub const NULL: u8 = 0x0a;
    pub const REGEX: u8 = 0x0b;
    pub const DB_POINTER: u8 = 0x0c;
    pub const CODE: u8 = 0x0d;
    pub const SYMBOL: u8 = 0x0e;
    pub const CODE_WITH_SCOPE: u8 = 0x0f;
    pub const INT32: u8 = 0x10;
    pub const TIMESTAMP: u8 = 0x11;
    pub const INT64: u8 = 0x12;
    pub const DECIMAL128: u8 = 0x13;
    pub const MIN_KEY: u8 = 0xff;
    pub const MAX_KEY: u8 = 0x7f;
}

/// One field of a document, by position: offsets count from the beginning of the document's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The type byte, one of [`kind`].
    pub kind: u8,
    /// The name, without its final NUL; not necessarily UTF-8.
    pub key: &'a [u8],
    /// Where the field (its type byte) begins.
    pub start: usize,
    /// Where its value begins.
    pub value: usize,
    /// Where the next field begins.
    pub end: usize,
}

impl Field<'_> {
    /// Where the value lies.
    pub fn range(&self) -> Range<usize> {
        self.value..self.end
    }

    /// Where the whole field lies: type, name and value.
    pub fn whole(&self) -> Range<usize> {
        self.start..self.end
    }
}

/// The top-level fields of a document; ends early where the bytes are malformed.
pub fn fields(doc: &[u8]) -> Fields<'_> {
    let end = int32(doc, 0).and_then(|n| usize::try_from(n).ok()).unwrap_or(0).min(doc.len());
    Fields { doc: &doc[..end], at: 4 }
}

/// The iterator of [`fields`].
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    doc: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        let rest = self.doc.get(self.at..)?;
        let (&kind, rest) = rest.split_first()?;
        if kind == 0 {
            return None;
        }
        let name = rest.iter().position(|b| *b == 0)?;
        let value = self.at + name + 2;
        let end = value + value_len(kind, self.doc.get(value..)?)?;
        let field = Field { kind, key: &rest[..name], start: self.at, value, end };
        self.at = end;
        Some(field)
    }
}

/// The first top-level field called `key`.
pub fn find<'a>(doc: &'a [u8], key: &str) -> Option<Field<'a>> {
    fields(doc).find(|f| f.key == key.as_bytes())
}

/// The field at the end of a path of names through documents, with offsets counted from the outermost document.
pub fn find_path<'a>(doc: &'a [u8], path: &[&str]) -> Option<Field<'a>> {
    let (first, rest) = path.split_first()?;
    let outer = find(doc, first)?;
    if rest.is_empty() {
        return Some(outer);
    }
    if outer.kind != kind::DOCUMENT {
        return None;
    }
    let inner = find_path(doc.get(outer.range())?, rest)?;
    let base = outer.value;
    Some(Field { start: inner.start + base, value: inner.value + base, end: inner.end + base, ..inner })
}

/// How many bytes the value of type `kind` at the start of `bytes` takes; `None` if it does not fit or cannot be.
/// Of documents and arrays only the length is read.
#[inline]
fn value_len(kind: u8, bytes: &[u8]) -> Option<usize> {
    let length = || int32(bytes, 0).and_then(|n| usize::try_from(n).ok());
    let len = match kind {
        kind::DOUBLE | kind::DATE | kind::TIMESTAMP | kind::INT64 => 8,
        kind::INT32 => 4,
        kind::BOOL => 1,
        kind::OBJECT_ID => 12,
        kind::NULL | kind::UNDEFINED | kind::MIN_KEY | kind::MAX_KEY => 0,
        kind::DECIMAL128 => 16,
        kind::STRING | kind::CODE | kind::SYMBOL => length().filter(|n| *n >= 1)?.checked_add(4)?,
        kind::DB_POINTER => length().filter(|n| *n >= 1)?.checked_add(16)?,
        kind::DOCUMENT | kind::ARRAY => length().filter(|n| *n >= 5)?,
        kind::BINARY => length()?.checked_add(5)?,
        kind::REGEX => {
            let pattern = bytes.iter().position(|b| *b == 0)? + 1;
            pattern + bytes[pattern..].iter().position(|b| *b == 0)? + 1
        }
        kind::CODE_WITH_SCOPE => length().filter(|n| *n >= 14)?,
        _ => return None,
    };
    (len <= bytes.len()).then_some(len)
}

/// Checks a whole document and everything nested in it: lengths, ends, names, types, booleans and depth. What passes
/// can be walked to its end. Strings are not checked for UTF-8, as servers do not either.
///
/// # Errors
/// InvalidBSON (22); Overflow (15) for more than [`MAX_DEPTH`] levels.
pub fn check(doc: &[u8]) -> Result<(), Error> {
    if doc.len() < 5 || int32(doc, 0) != i32::try_from(doc.len()).ok() {
        return Err(malformed("A document's length is wrong"));
    }
    // The position of the end byte of each open document, innermost in `end`.
    let mut open: SmallVec<[usize; 16]> = SmallVec::new();
    let mut end = doc.len() - 1;
    let mut at = 4;
    if doc[end] != 0 {
        return Err(malformed("A document does not end where its length says"));
    }
    loop {
        let kind = doc[at];
        if kind == 0 {
            if at != end {
                return Err(malformed("A document ends before its length says"));
            }
            at += 1;
            match open.pop() {
                Some(outer) => end = outer,
                None => return Ok(()),
            }
            if at > end {
                return Err(malformed("A document does not end where its length says"));
            }
            continue;
        }
        // A type byte that is not 0 lies before `end`, whose byte is 0.
        let name = doc[at + 1..end].iter().position(|b| *b == 0);
        let value = at + 2 + name.ok_or_else(|| malformed("A field's name has no end"))?;
        let bytes = &doc[value..end];
        let len = value_len(kind, bytes).ok_or_else(|| malformed("A field has an unknown type or a wrong length"))?;
        check_value(kind, &bytes[..len])?;
        at = value + len;
        let inner = match kind {
            kind::DOCUMENT | kind::ARRAY => value,
            kind::CODE_WITH_SCOPE => value + scope_offset(&bytes[..len])?,
            _ => continue,
        };
        if open.len() == MAX_DEPTH {
            return Err(Error::new(
                Code::Overflow,
                format!("Documents may be nested {MAX_DEPTH} levels deep; this one goes deeper"),
            ));
        }
        open.push(end);
        end = at - 1;
        at = inner + 4;
    }
}

/// What a value's own bytes must fulfil besides their number.
fn check_value(kind: u8, value: &[u8]) -> Result<(), Error> {
    let fine = match kind {
        kind::STRING | kind::CODE | kind::SYMBOL | kind::DOCUMENT | kind::ARRAY | kind::CODE_WITH_SCOPE => {
            value.last() == Some(&0)
        }
        kind::DB_POINTER => value.len().checked_sub(13).and_then(|at| value.get(at)) == Some(&0),
        kind::BOOL => value[0] <= 1,
        _ => true,
    };
    if fine { Ok(()) } else { Err(malformed("A value does not end where its length says, or is no boolean")) }
}

/// Where the scope begins in a code-with-scope value; the scope must reach exactly to the value's end.
fn scope_offset(value: &[u8]) -> Result<usize, Error> {
    let find = || {
        let code = usize::try_from(int32(value, 4)?).ok().filter(|n| *n >= 1)?;
        let scope = code.checked_add(8)?;
        let length = usize::try_from(int32(value, scope)?).ok().filter(|n| *n >= 5)?;
        (value[scope - 1] == 0 && scope.checked_add(length)? == value.len()).then_some(scope)
    };
    find().ok_or_else(|| malformed("A code with scope has wrong lengths"))
}

fn malformed(what: &'static str) -> Error {
    Error::new(Code::InvalidBSON, what)
}

/// The little-endian 32-bit integer at `at`.
pub fn int32(bytes: &[u8], at: usize) -> Option<i32> {
    let raw = bytes.get(at..at.checked_add(4)?)?;
    Some(i32::from_le_bytes(raw.try_into().ok()?))
}

/// The little-endian 64-bit integer at `at`.
pub fn int64(bytes: &[u8], at: usize) -> Option<i64> {
    let raw = bytes.get(at..at.checked_add(8)?)?;
    Some(i64::from_le_bytes(raw.try_into().ok()?))
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
