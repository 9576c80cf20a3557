//! Changing documents as bytes: overwriting values in place, copying with fields left out or added.

use bson::{RawDocument, Timestamp};
use bytes::Bytes;

use super::scan::{fields, find_path, kind};

/// Overwrites the 64-bit integer at `path` (names through nested documents) in place.
/// False, and nothing changed, where there is no such int64.
pub fn set_int64(doc: &mut [u8], path: &[&str], value: i64) -> bool {
    let Some(range) = find_path(doc, path).filter(|f| f.kind == kind::INT64).map(|f| f.range()) else { return false };
    doc[range].copy_from_slice(&value.to_le_bytes());
    true
}

/// The same document with another int64 at `path`: in place where nobody else holds the bytes, else in a copy.
pub fn with_int64(doc: Bytes, path: &[&str], value: i64) -> Bytes {
    match doc.try_into_mut() {
        Ok(mut own) => {
            set_int64(&mut own, path, value);
            own.freeze()
        }
        Err(shared) => {
            let mut copy = shared.to_vec();
            set_int64(&mut copy, path, value);
            copy.into()
        }
    }
}

/// Builds one document's bytes. Nested documents are opened and closed; what is open at the end is closed then.
#[derive(Clone, Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    /// Where the documents that are open begin, the outermost first.
    open: smallvec::SmallVec<[usize; 4]>,
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

impl Writer {
    pub fn new() -> Self {
        Self::with_capacity(128)
    }

    /// An empty document with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut writer = Writer { bytes: Vec::with_capacity(capacity), open: smallvec::smallvec![0] };
        writer.bytes.extend_from_slice(&[0; 4]);
        writer
    }

    /// A copy of `doc` without the top-level fields whose name `drop` accepts, open for more fields.
    pub fn copy_without(doc: &[u8], drop: impl Fn(&[u8]) -> bool) -> Self {
        let mut writer = Self::with_capacity(doc.len() + 96);
        // Fields that stay and stand side by side are copied in one piece.
        let mut run = 4..4;
        for field in fields(doc) {
            if drop(field.key) {
                writer.bytes.extend_from_slice(&doc[run]);
                run = field.end..field.end;
            } else {
                run.end = field.end;
            }
        }
        writer.bytes.extend_from_slice(doc.get(run).unwrap_or_default());
        writer
    }

    /// A copy of `doc`, open for more fields.
    pub fn copy(doc: &[u8]) -> Self {
        let mut writer = Self::with_capacity(doc.len() + 96);
        writer.bytes.extend_from_slice(doc.get(4..doc.len().saturating_sub(1)).unwrap_or_default());
        writer
    }

    /// Appends fields as they stand in another document (type, name and value of each).
    pub fn raw_fields(&mut self, fields: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(fields);
        self
    }

    /// Appends a value of type `kind` as bytes.
    pub fn raw(&mut self, key: &str, kind: u8, value: &[u8]) -> &mut Self {
        self.head(key, kind);
        self.bytes.extend_from_slice(value);
        self
    }

    pub fn double(&mut self, key: &str, value: f64) -> &mut Self {
        self.raw(key, kind::DOUBLE, &value.to_le_bytes())
    }

    pub fn int32(&mut self, key: &str, value: i32) -> &mut Self {
        self.raw(key, kind::INT32, &value.to_le_bytes())
    }

    pub fn int64(&mut self, key: &str, value: i64) -> &mut Self {
        self.raw(key, kind::INT64, &value.to_le_bytes())
    }

    pub fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, kind::BOOL, &[u8::from(value)])
    }

    pub fn timestamp(&mut self, key: &str, value: Timestamp) -> &mut Self {
        self.raw(key, kind::TIMESTAMP, &((u64::from(value.time) << 32) | u64::from(value.increment)).to_le_bytes())
    }

    pub fn str(&mut self, key: &str, value: &str) -> &mut Self {
        self.head(key, kind::STRING);
        self.bytes.extend_from_slice(&(value.len() as i32 + 1).to_le_bytes());
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self
    }

    pub fn doc(&mut self, key: &str, value: &RawDocument) -> &mut Self {
        self.raw(key, kind::DOCUMENT, value.as_bytes())
    }

    /// Begins a nested document; [`Writer::close`] ends it.
    pub fn open_doc(&mut self, key: &str) -> &mut Self {
        self.open(key, kind::DOCUMENT)
    }

    /// Begins a nested array, whose fields must be named "0", "1" and so on; [`Writer::close`] ends it.
    pub fn open_array(&mut self, key: &str) -> &mut Self {
        self.open(key, kind::ARRAY)
    }

    /// Ends the innermost open document or array, but never the outermost.
    pub fn close(&mut self) -> &mut Self {
        if self.open.len() > 1 {
            self.end_innermost();
        }
        self
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.len() <= 4
    }

    /// The finished document.
    pub fn finish(mut self) -> Vec<u8> {
        while !self.open.is_empty() {
            self.end_innermost();
        }
        self.bytes
    }

    fn open(&mut self, key: &str, kind: u8) -> &mut Self {
        self.head(key, kind);
        self.open.push(self.bytes.len());
        self.bytes.extend_from_slice(&[0; 4]);
        self
    }

    fn end_innermost(&mut self) {
        let Some(start) = self.open.pop() else { return };
        self.bytes.push(0);
        let length = (self.bytes.len() - start) as i32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Type and name. A NUL in a name would end it early, so the name is cut there.
    fn head(&mut self, key: &str, kind: u8) {
        let name = key.split('\0').next().unwrap_or_default();
        self.bytes.push(kind);
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use bson::{RawDocument, rawdoc};

    use super::*;

    fn parse(bytes: &[u8]) -> &RawDocument {
        super::super::check(bytes).unwrap();
        RawDocument::from_bytes(bytes).unwrap()
    }

    #[test]
    fn a_cursor_id_is_overwritten_in_place() {
        let doc = rawdoc! { "cursor": { "firstBatch": [], "id": 7_i64, "ns": "a.b" }, "ok": 1.0 };
        let patched = with_int64(doc.into_bytes().into(), &["cursor", "id"], -5);
        assert_eq!(
            parse(&patched).to_owned(),
            rawdoc! { "cursor": { "firstBatch": [], "id": -5_i64, "ns": "a.b" }, "ok": 1.0 }
        );
    }

    #[test]
    fn shared_bytes_are_copied_and_other_types_left_alone() {
        let doc = Bytes::from(rawdoc! { "id": 7_i64, "n": 1_i32 }.into_bytes());
        let kept = doc.clone();
        assert_eq!(parse(&with_int64(doc, &["id"], 8)).get_i64("id").unwrap(), 8);
        assert_eq!(parse(&kept).get_i64("id").unwrap(), 7);
        let mut bytes = kept.to_vec();
        assert!(!set_int64(&mut bytes, &["n"], 8) && !set_int64(&mut bytes, &["id", "x"], 8));
        assert_eq!(bytes, kept);
    }

    #[test]
    fn fields_are_dropped_and_added_while_copying() {
        let doc = rawdoc! { "find": "c", "$db": "d", "limit": 1, "lsid": { "id": 1 } };
        for (drop, rest) in [
            (&["find"][..], rawdoc! { "$db": "d", "limit": 1, "lsid": { "id": 1 }, "x": true }),
            (&["$db", "limit"], rawdoc! { "find": "c", "lsid": { "id": 1 }, "x": true }),
            (&["lsid"], rawdoc! { "find": "c", "$db": "d", "limit": 1, "x": true }),
            (&["nothing"], rawdoc! { "find": "c", "$db": "d", "limit": 1, "lsid": { "id": 1 }, "x": true }),
            (&["find", "$db", "limit", "lsid"], rawdoc! { "x": true }),
        ] {
            let mut copy = Writer::copy_without(doc.as_bytes(), |key| drop.iter().any(|d| d.as_bytes() == key));
            copy.bool("x", true);
            assert_eq!(parse(&copy.finish()).to_owned(), rest, "{drop:?}");
        }
        assert_eq!(parse(&Writer::copy(doc.as_bytes()).finish()).to_owned(), doc);
    }

    #[test]
    fn all_kinds_of_values_are_written() {
        let mut w = Writer::new();
        w.double("d", 1.5).int32("i", 2).int64("l", 3).bool("b", false).str("s", "x");
        w.timestamp("t", Timestamp { time: 9, increment: 4 }).doc("e", &rawdoc! { "y": 1 });
        w.open_doc("o").open_array("a").int32("0", 5).close().int32("z", 6).close().int32("end", 7);
        let wanted = rawdoc! {
            "d": 1.5, "i": 2, "l": 3_i64, "b": false, "s": "x", "t": Timestamp { time: 9, increment: 4 },
            "e": { "y": 1 }, "o": { "a": [5], "z": 6 }, "end": 7,
        };
        assert_eq!(parse(&w.finish()).to_owned(), wanted);
        assert_eq!(Writer::new().finish(), [5, 0, 0, 0, 0]);
        assert_eq!(Writer::new().open_doc("x").clone().finish(), rawdoc! { "x": {} }.into_bytes());
    }
}
