//! A collection's shard key pattern (stub bodies; signatures are final unless noted).

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::error::Result;

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

impl ShardKeyPattern {
    /// Reads and checks a key pattern document. Errors are mongos's (BadValue, "Shard key … can contain at most one 'hashed' field …").
    pub fn parse(doc: &RawDocument) -> Result<Self> {
        let mut fields = Vec::new();
        for (key, value) in doc.iter().flatten() {
            let kind = if value.as_str() == Some("hashed") { KeyKind::Hashed } else { KeyKind::Ranged };
            fields.push(KeyField { path: key.as_str().into(), kind });
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

    /// The shard key of a document with the hash applied; missing fields are null; arrays on the way are
    /// ShardKeyNotFound (61).
    pub fn extract(&self, document: &RawDocument) -> Result<RawDocumentBuf> {
        self.extract_raw(document)
    }

    /// The shard key of a document without hashing.
    pub fn extract_raw(&self, _document: &RawDocument) -> Result<RawDocumentBuf> {
        Ok(RawDocumentBuf::new())
    }

    /// Bytes of a complete key document (hash already applied): fields in pattern order.
    pub fn encode(&self, key: &RawDocument) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for (_, value) in key.iter().flatten() {
            super::order::push_value(&mut out, value)?;
        }
        Ok(out)
    }

    /// A document straight to its encoded key, appended to `out`.
    pub fn encode_document(&self, _document: &RawDocument, _out: &mut Vec<u8>) -> Result<()> {
        Ok(())
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
    /// 64-bit integer.
    pub fn validate_bound(&self, _bound: &RawDocument) -> Result<()> {
        Ok(())
    }

    /// A prefix of a bound, extended with MinKey: `{a: 1}` → `{a: 1, b: MinKey}` (zone ranges, refined keys).
    pub fn extend_with_min(&self, bound: &RawDocument) -> Result<RawDocumentBuf> {
        Ok(bound.to_owned())
    }

    /// Whether this pattern's fields are the first fields of `other` (same kinds).
    pub fn is_prefix_of(&self, other: &ShardKeyPattern) -> bool {
        other.fields.starts_with(&self.fields)
    }

    /// Whether this pattern adds fields to the end of `other`.
    pub fn extends(&self, other: &ShardKeyPattern) -> bool {
        other.is_prefix_of(self)
    }
}
