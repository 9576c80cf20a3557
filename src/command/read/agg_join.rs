//! The values that a `$lookup` will look up, taken from the documents it will get: of the other collection only what has
//! one of them needs to be brought. Pure.

use std::collections::HashSet;

use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::bsonx;
use crate::merge::{Doc, Sink};

/// More values than this, or more bytes of them, are not asked for one by one.
const MAX_VALUES: usize = 50_000;
const MAX_BYTES: usize = 4 << 20;

/// Collects at least the values that `localField` stands for.
#[derive(Debug)]
pub struct JoinValues {
    path: Vec<String>,
    field: String,
    seen: HashSet<Vec<u8>>,
    values: RawArrayBuf,
    bytes: usize,
    /// Too many, or one that cannot be asked for.
    given_up: bool,
}

impl JoinValues {
    /// `None` for paths that may name places in arrays, and malformed ones.
    pub fn new(local: &str, field: &str) -> Option<Self> {
        let plain = |part: &str| !part.is_empty() && !part.starts_with('$') && part.parse::<u32>().is_err();
        let path: Vec<String> = local.split('.').map(str::to_owned).collect();
        (path.iter().all(|part| plain(part)) && field.split('.').all(plain)).then(|| JoinValues {
            path,
            field: field.to_owned(),
            seen: HashSet::new(),
            values: RawArrayBuf::new(),
            bytes: 0,
            given_up: false,
        })
    }

    /// Adds the values of a document.
    pub fn add(&mut self, doc: &RawDocument) {
        if !self.given_up {
            let path = std::mem::take(&mut self.path);
            self.walk(doc, &path);
            self.path = path;
        }
    }

    /// A condition that every document fulfils which may be looked up; `None` where there are too many values.
    pub fn filter(&self) -> Option<RawDocumentBuf> {
        let field = bson::raw::CString::try_from(&*self.field).ok().filter(|_| !self.given_up)?;
        let mut filter = RawDocumentBuf::new();
        filter.append(&field, rawdoc! { "$in": self.values.clone() });
        Some(filter)
    }

    fn walk(&mut self, doc: &RawDocument, path: &[String]) {
        let Some((first, rest)) = path.split_first() else { return };
        match bsonx::get(doc, first) {
            None => self.value(RawBsonRef::Null),
            Some(value) if rest.is_empty() => {
                self.value(value);
                if let RawBsonRef::Array(items) = value {
                    items.into_iter().map_while(Result::ok).for_each(|item| self.value(item));
                }
            }
            Some(RawBsonRef::Document(inner)) => self.walk(inner, rest),
            Some(RawBsonRef::Array(items)) => {
                // What is no document has no such field, which counts as null in some places.
                self.value(RawBsonRef::Null);
                let items = items.into_iter().map_while(Result::ok);
                items.filter_map(|item| item.as_document()).for_each(|item| self.walk(item, rest));
            }
            Some(_) => self.value(RawBsonRef::Null),
        }
    }

    fn value(&mut self, value: RawBsonRef<'_>) {
        if matches!(value, RawBsonRef::Undefined) {
            self.given_up = true;
        }
        let mut one = RawArrayBuf::new();
        one.push(value);
        let key = one.as_bytes().to_vec();
        self.bytes += key.len();
        if self.seen.contains(&key) {
            self.bytes -= key.len();
            return;
        }
        self.seen.insert(key);
        self.values.push(value);
        self.given_up |= self.seen.len() > MAX_VALUES || self.bytes > MAX_BYTES;
    }
}

/// A sink that has a look at the documents on their way.
pub struct Watched<'a, S> {
    pub sink: &'a mut S,
    pub values: Option<&'a mut JoinValues>,
}

impl<S: Sink> Sink for Watched<'_, S> {
    fn count(&self) -> usize {
        self.sink.count()
    }

    fn fits(&self, len: usize) -> bool {
        self.sink.fits(len)
    }

    fn push(&mut self, doc: &Doc<'_>) {
        if let Some(values) = &mut self.values {
            let mut bytes = Vec::with_capacity(doc.len());
            doc.write(&mut bytes);
            values.add(bsonx::view(&bytes));
        }
        self.sink.push(doc);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::{Bson, Document, doc};

    fn values(local: &str, docs: &[Document]) -> Option<Bson> {
        let mut values = JoinValues::new(local, "f").unwrap();
        docs.iter().for_each(|d| values.add(&RawDocumentBuf::try_from(d.clone()).unwrap()));
        let filter = Document::try_from(values.filter()?).unwrap();
        filter.get_document("f").unwrap().get("$in").cloned()
    }

    #[test]
    fn values_of_documents() {
        let docs = [doc! { "a": 1 }, doc! { "a": 1 }, doc! { "a": 1.0 }, doc! { "b": 2 }, doc! { "a": [5, [6]] }];
        let wanted = doc! { "v": [1, 1.0, null, [5, [6]], 5, [6]] };
        assert_eq!(values("a", &docs), wanted.get("v").cloned());
        let nested = [doc! { "a": { "b": 1 } }, doc! { "a": [{ "b": 2 }, 3, { "b": [4] }] }, doc! { "a": 7 }];
        let wanted = doc! { "v": [1, null, 2, [4], 4] };
        assert_eq!(values("a.b", &nested), wanted.get("v").cloned());
    }

    #[test]
    fn too_many_or_odd_ones() {
        let many: Vec<_> = (0..60_000).map(|i| doc! { "a": i }).collect();
        assert_eq!(values("a", &many), None);
        assert_eq!(values("a", &[doc! { "a": Bson::Undefined }]), None);
        assert!(JoinValues::new("a.0", "f").is_none());
        assert!(JoinValues::new("a", "f.1.x").is_none());
        assert!(JoinValues::new("a..b", "f").is_none());
        assert!(JoinValues::new("$a", "f").is_none());
    }
}
