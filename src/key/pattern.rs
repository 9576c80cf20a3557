//! A collection's shard key pattern: which fields, ranged or hashed; taking the key from documents; checking bounds.
//!
//! Shard keys exist in three forms. *Raw*: the document's own values. *Hashed*: a key document with the hashed field
//! replaced by its hash, as chunk bounds are stored. *Encoded*: the order-preserving bytes of the hashed form
//! ([`super::order`], fields joined), which the routing table is searched with.

use std::collections::HashSet;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use smallvec::{SmallVec, smallvec};

use super::value::{Elem, Elements, Value, malformed, tag};
use super::{hash, order, text};
use crate::error::{Code, Error, Result};

/// How one field of the shard key orders documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    Ranged,
    Hashed,
}

/// One field of a shard key: its dotted path and kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyField {
    pub path: Box<str>,
    pub kind: KeyKind,
}

/// A shard key pattern such as `{region: 1, id: "hashed"}`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardKeyPattern {
    fields: Vec<KeyField>,
    doc: RawDocumentBuf,
}

/// The elements of one shard key in pattern order; `None` where the document lacks the field.
type KeyElems<'a> = SmallVec<[Option<Elem<'a>>; 4]>;

impl ShardKeyPattern {
    /// Reads and checks a key pattern document (REFERENCE E7). Errors: BadValue (2).
    pub fn parse(doc: &RawDocument) -> Result<Self> {
        let bad = |message: String| Error::new(Code::BadValue, message);
        let mut fields: Vec<KeyField> = Vec::new();
        let mut seen = HashSet::new();
        for elem in Elements::new(doc.as_bytes())? {
            let elem = elem?;
            let path = std::str::from_utf8(elem.name)
                .map_err(|_| bad("A shard key field's name must be valid UTF-8".to_owned()))?;
            check_path(path)?;
            if !seen.insert(path) {
                return Err(bad(format!("Shard key {} names the field {path} twice", text::document(doc))));
            }
            let kind = match elem.value()? {
                Value::Str(b"hashed") if fields.iter().all(|f| f.kind == KeyKind::Ranged) => KeyKind::Hashed,
                value if is_one(value) => KeyKind::Ranged,
                _ => {
                    return Err(bad(format!(
                        "Shard key {} can contain at most one 'hashed' field, and/or multiple numerical fields set to \
                         a value of 1. Failed to parse field {path}",
                        text::document(doc)
                    )));
                }
            };
            fields.push(KeyField { path: path.into(), kind });
        }
        if fields.is_empty() {
            return Err(bad("Shard key is empty".to_owned()));
        }
        Ok(Self { fields, doc: doc.to_owned() })
    }

    pub fn fields(&self) -> &[KeyField] {
        &self.fields
    }

    /// The pattern as given: `{a: 1, b: "hashed"}`.
    pub fn to_doc(&self) -> &RawDocument {
        &self.doc
    }

    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|f| &*f.path)
    }

    /// Position of the hashed field, if there is one.
    pub fn hashed_field(&self) -> Option<usize> {
        self.fields.iter().position(|f| f.kind == KeyKind::Hashed)
    }

    pub fn is_hashed(&self) -> bool {
        self.hashed_field().is_some()
    }

    /// The shard key of a document with the hash applied; missing fields are null. Errors: ShardKeyNotFound (61) for an
    /// array on the way or as the value. Arrays deeper inside an object value are fine: the object is one value.
    pub fn extract(&self, document: &RawDocument) -> Result<RawDocumentBuf> {
        self.build(document, true)
    }

    /// The shard key of a document without hashing.
    pub fn extract_raw(&self, document: &RawDocument) -> Result<RawDocumentBuf> {
        self.build(document, false)
    }

    fn build(&self, document: &RawDocument, hashed: bool) -> Result<RawDocumentBuf> {
        let elems = self.find(document)?;
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&[0; 4]);
        for (field, elem) in self.fields.iter().zip(&elems) {
            let hash = match field.kind {
                KeyKind::Hashed if hashed => Some(hash::hash_value(value_of(elem)?, 0)?.to_le_bytes()),
                _ => None,
            };
            let (tag, data) = match (&hash, elem) {
                (Some(hash), _) => (tag::INT64, &hash[..]),
                (None, Some(elem)) => (elem.tag, elem.data),
                (None, None) => (tag::NULL, &[][..]),
            };
            bytes.push(tag);
            bytes.extend_from_slice(field.path.as_bytes());
            bytes.push(0);
            bytes.extend_from_slice(data);
        }
        bytes.push(0);
        let size = i32::try_from(bytes.len()).map_err(|_| malformed())?;
        bytes[..4].copy_from_slice(&size.to_le_bytes());
        Ok(RawDocumentBuf::from_bytes(bytes)?)
    }

    /// A document straight to its encoded key, appended to `out`. Errors as [`ShardKeyPattern::extract`].
    pub fn encode_document(&self, document: &RawDocument, out: &mut Vec<u8>) -> Result<()> {
        let elems = self.find(document)?;
        for (i, elem) in elems.iter().enumerate() {
            self.push_field(out, i, value_of(elem)?)?;
        }
        Ok(())
    }

    /// Appends the encoding of a document's value for key field `i`, hashing it where that field is hashed.
    pub fn push_field(&self, out: &mut Vec<u8>, i: usize, value: Value<'_>) -> Result<()> {
        match self.fields.get(i).map(|f| f.kind) {
            Some(KeyKind::Hashed) => order::push_int(out, hash::hash_value(value, 0)?),
            _ => order::push(out, value)?,
        }
        Ok(())
    }

    /// One pass over the document's top level.
    fn find<'a>(&self, document: &'a RawDocument) -> Result<KeyElems<'a>> {
        let mut found: KeyElems<'a> = smallvec![None; self.fields.len()];
        let mut seen: SmallVec<[bool; 8]> = smallvec![false; self.fields.len()];
        let mut missing = self.fields.len();
        for elem in Elements::new(document.as_bytes())? {
            let elem = elem?;
            for (i, field) in self.fields.iter().enumerate() {
                let Some(rest) = below(field.path.as_bytes(), elem.name) else { continue };
                if std::mem::replace(&mut seen[i], true) {
                    continue;
                }
                found[i] = descend(elem, rest)?;
                missing -= 1;
            }
            if missing == 0 {
                break;
            }
        }
        Ok(found)
    }

    /// Bytes of a complete key document (hash already applied). Errors: BadValue where it does not have exactly the
    /// pattern's fields in order.
    pub fn encode(&self, key: &RawDocument) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(key.as_bytes().len());
        self.encode_into(key, &mut out)?;
        Ok(out)
    }

    /// The same, appended to `out`.
    pub fn encode_into(&self, key: &RawDocument, out: &mut Vec<u8>) -> Result<()> {
        let mut fields = self.fields.iter();
        for elem in Elements::new(key.as_bytes())? {
            let elem = elem?;
            match fields.next() {
                Some(field) if field.path.as_bytes() == elem.name => order::push(out, elem.value()?)?,
                _ => return Err(self.not_valid(key)),
            }
        }
        match fields.next() {
            None => Ok(()),
            Some(_) => Err(self.not_valid(key)),
        }
    }

    fn not_valid(&self, key: &RawDocument) -> Error {
        let message =
            format!("{} is not valid for shard key pattern {}", text::document(key), text::document(&self.doc));
        Error::new(Code::BadValue, message)
    }

    /// `{a: MinKey, …}`
    pub fn min_key(&self) -> RawDocumentBuf {
        self.fill(RawBsonRef::MinKey)
    }

    /// `{a: MaxKey, …}`
    pub fn max_key(&self) -> RawDocumentBuf {
        self.fill(RawBsonRef::MaxKey)
    }

    fn fill(&self, value: RawBsonRef<'_>) -> RawDocumentBuf {
        let mut doc = RawDocumentBuf::new();
        for (key, _) in self.doc.iter().flatten() {
            doc.append(key, value);
        }
        doc
    }

    /// Checks a chunk bound: exactly the pattern's fields in order, no arrays, a hashed field only MinKey, MaxKey or a
    /// 64-bit integer. Errors: BadValue, "{bound} is not valid for shard key pattern {pattern}".
    pub fn validate_bound(&self, bound: &RawDocument) -> Result<()> {
        if self.check_prefix(bound)? == self.fields.len() { Ok(()) } else { Err(self.not_valid(bound)) }
    }

    /// Checks that `bound` names the first fields of the pattern with valid values; returns how many.
    fn check_prefix(&self, bound: &RawDocument) -> Result<usize> {
        let mut fields = self.fields.iter();
        let mut count = 0;
        for elem in Elements::new(bound.as_bytes())? {
            let elem = elem?;
            let field = fields.next().filter(|f| f.path.as_bytes() == elem.name);
            let fits = match (field.map(|f| f.kind), elem.value()?) {
                (None, _) | (_, Value::Array(_)) => false,
                (Some(KeyKind::Hashed), value) => matches!(value, Value::MinKey | Value::MaxKey | Value::Int64(_)),
                (Some(KeyKind::Ranged), _) => true,
            };
            if !fits {
                return Err(self.not_valid(bound));
            }
            count += 1;
        }
        Ok(count)
    }

    /// A bound on the first fields, extended with MinKey: `{a: 1}` → `{a: 1, b: MinKey}` (zone ranges, refined keys).
    /// A bound of only MaxKey is extended with MaxKey, so that the end of the key space stays the end.
    /// Errors as [`ShardKeyPattern::validate_bound`].
    pub fn extend_with_min(&self, bound: &RawDocument) -> Result<RawDocumentBuf> {
        let given = self.check_prefix(bound)?;
        if given == 0 {
            return Err(self.not_valid(bound));
        }
        let all_max = bound.iter().flatten().all(|(_, v)| v == RawBsonRef::MaxKey);
        let filler = if all_max { RawBsonRef::MaxKey } else { RawBsonRef::MinKey };
        let mut doc = bound.to_owned();
        for (name, _) in self.doc.iter().flatten().skip(given) {
            doc.append(name, filler);
        }
        Ok(doc)
    }

    /// Whether this pattern's fields are the first fields of `other` (same kinds).
    pub fn is_prefix_of(&self, other: &ShardKeyPattern) -> bool {
        other.fields.starts_with(&self.fields)
    }

    /// Whether this pattern adds fields to the end of `other` (or is the same).
    pub fn extends(&self, other: &ShardKeyPattern) -> bool {
        other.is_prefix_of(self)
    }
}

fn is_one(value: Value<'_>) -> bool {
    match value {
        Value::Int32(v) => v == 1,
        Value::Int64(v) => v == 1,
        // MongoDB looks at the integer part only.
        Value::Double(v) => v as i32 == 1,
        Value::Decimal(_) => super::number::decimal_to_i64_trunc(value) == 1,
        _ => false,
    }
}

/// Rules for a shard key field's path.
fn check_path(path: &str) -> Result<()> {
    let bad = |what: &str| Err(Error::new(Code::BadValue, format!("Shard key field '{path}' {what}")));
    if path.is_empty() {
        return bad("has an empty name");
    }
    for (i, part) in path.split('.').enumerate() {
        if part.is_empty() {
            return bad("has an empty part in its path");
        }
        if part.starts_with('$') && (i == 0 || !matches!(part, "$id" | "$db" | "$ref")) {
            return bad("has a part that starts with '$'");
        }
    }
    Ok(())
}

/// What is left of `path` below a field called `name`: `Some("")` at the end of the path, `None` if it is another field.
/// A document's field whose own name has dots is never on a path.
#[inline]
fn below<'p>(path: &'p [u8], name: &[u8]) -> Option<&'p [u8]> {
    match path.strip_prefix(name)? {
        [] if !name.contains(&b'.') => Some(&[]),
        [b'.', rest @ ..] if !name.is_empty() && !name.contains(&b'.') => Some(rest),
        _ => None,
    }
}

/// Follows the rest of a path into an element.
fn descend<'a>(mut elem: Elem<'a>, mut rest: &[u8]) -> Result<Option<Elem<'a>>> {
    loop {
        if elem.tag == tag::ARRAY {
            return Err(array_in_key());
        }
        if rest.is_empty() {
            return Ok(Some(elem));
        }
        if elem.tag != tag::DOCUMENT {
            return Ok(None);
        }
        let mut next = None;
        for inner in Elements::new(elem.data)? {
            let inner = inner?;
            if let Some(left) = below(rest, inner.name) {
                next = Some((inner, left));
                break;
            }
        }
        match next {
            None => return Ok(None),
            Some((inner, left)) => (elem, rest) = (inner, left),
        }
    }
}

fn value_of<'a>(elem: &Option<Elem<'a>>) -> Result<Value<'a>> {
    elem.as_ref().map_or(Ok(Value::Null), Elem::value)
}

#[cold]
fn array_in_key() -> Error {
    Error::new(Code::ShardKeyNotFound, "Shard key cannot contain array values or array descendants.")
}
