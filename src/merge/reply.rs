//! Writing cursor replies: `{cursor: {firstBatch: […], id, ns}, ok: 1}`.

use bson::Timestamp;
use bytes::Bytes;

use super::Doc;
use crate::bsonx::kind;
use crate::wire::{MAX_BSON, MAX_WRITE_BATCH};

/// What a cursor reply says besides its documents.
#[derive(Clone, Copy, Debug, Default)]
pub struct CursorFields<'a> {
    /// 0 where the result is complete.
    pub id: i64,
    pub ns: &'a str,
    /// Some shards could not be asked and the client allowed that.
    pub partial: bool,
    /// The common time of a snapshot read.
    pub at_cluster_time: Option<Timestamp>,
}

/// Where documents of a merge go.
pub trait Sink {
    /// How many documents are in.
    fn count(&self) -> usize;

    /// Whether another document of `len` bytes may be added.
    fn fits(&self, len: usize) -> bool;

    fn push(&mut self, doc: &Doc<'_>);
}

/// Collects documents as the fields of an array, to be sent on in a command.
#[derive(Debug, Default)]
pub struct Gathered {
    items: Vec<u8>,
    count: usize,
}

impl Gathered {
    /// Room that a command needs beside the documents.
    const SLACK: usize = 64 * 1024;

    /// The array's fields.
    pub fn items(&self) -> &[u8] {
        &self.items
    }

    /// The whole array.
    pub fn into_array(self) -> Bytes {
        let mut array = Vec::with_capacity(self.items.len() + 5);
        array.extend_from_slice(&((self.items.len() + 5) as i32).to_le_bytes());
        array.extend_from_slice(&self.items);
        array.push(0);
        array.into()
    }
}

impl Sink for Gathered {
    fn count(&self) -> usize {
        self.count
    }

    fn fits(&self, len: usize) -> bool {
        self.items.len() + len + 12 <= MAX_BSON - Self::SLACK
    }

    fn push(&mut self, doc: &Doc<'_>) {
        push_item(&mut self.items, self.count, doc);
        self.count += 1;
    }
}

/// Collects documents for a temporary collection, where each becomes `{_id: <its number>, d: <the document>}`: what a
/// pipeline gives may have no `_id`, or the same one twice, or fields that a server would change when it stores them.
#[derive(Debug)]
pub struct Packed {
    docs: Vec<u8>,
    count: usize,
    /// The number of the next document; `None` where they are stored as they are.
    next: Option<i64>,
    limit: usize,
}

impl Packed {
    /// The field that holds the document.
    pub const FIELD: &'static str = "d";

    /// Bytes around each document.
    const AROUND: usize = 4 + (1 + 4 + 8) + (1 + 2) + 1;

    /// Takes `limit` bytes, or a single document of any size.
    pub fn new(wrap: bool, limit: usize) -> Self {
        Packed { docs: Vec::new(), count: 0, next: wrap.then_some(0), limit }
    }

    /// The documents that have come since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        self.count = 0;
        std::mem::take(&mut self.docs)
    }
}

impl Sink for Packed {
    fn count(&self) -> usize {
        self.count
    }

    fn fits(&self, len: usize) -> bool {
        self.count == 0 || self.count < MAX_WRITE_BATCH && self.docs.len() + len + Self::AROUND <= self.limit
    }

    fn push(&mut self, doc: &Doc<'_>) {
        let out = &mut self.docs;
        self.count += 1;
        let Some(number) = &mut self.next else { return doc.write(out) };
        out.reserve(doc.len() + Self::AROUND);
        out.extend_from_slice(&((doc.len() + Self::AROUND) as i32).to_le_bytes());
        out.push(kind::INT64);
        out.extend_from_slice(b"_id\0");
        out.extend_from_slice(&number.to_le_bytes());
        out.push(kind::DOCUMENT);
        out.extend_from_slice(b"d\0");
        doc.write(out);
        out.push(0);
        *number += 1;
    }
}

fn push_item(out: &mut Vec<u8>, index: usize, doc: &Doc<'_>) {
    out.reserve(doc.len() + 12);
    out.push(kind::DOCUMENT);
    push_decimal(out, index);
    out.push(0);
    doc.write(out);
}

/// Collects the documents of one batch, at most 16 MiB of them with the array's own overhead.
#[derive(Debug)]
pub struct ReplyWriter {
    out: Vec<u8>,
    count: usize,
    /// Where the `cursor` document and the batch array begin.
    cursor: usize,
    array: usize,
}

impl ReplyWriter {
    /// A `firstBatch` or a `nextBatch`.
    pub fn new(first: bool) -> Self {
        let mut out = Vec::with_capacity(1024);
        out.extend_from_slice(&[0; 4]);
        out.push(kind::DOCUMENT);
        out.extend_from_slice(b"cursor\0");
        let cursor = out.len();
        out.extend_from_slice(&[0; 4]);
        out.push(kind::ARRAY);
        out.extend_from_slice(if first { b"firstBatch\0" } else { b"nextBatch\0" });
        let array = out.len();
        out.extend_from_slice(&[0; 4]);
        ReplyWriter { out, count: 0, cursor, array }
    }

    /// The whole reply.
    pub fn finish(mut self, fields: CursorFields<'_>) -> Bytes {
        self.close(self.array);
        if fields.partial {
            self.out.push(kind::BOOL);
            self.out.extend_from_slice(b"partialResultsReturned\0\x01");
        }
        if let Some(time) = fields.at_cluster_time {
            self.out.push(kind::TIMESTAMP);
            self.out.extend_from_slice(b"atClusterTime\0");
            self.out.extend_from_slice(&time.increment.to_le_bytes());
            self.out.extend_from_slice(&time.time.to_le_bytes());
        }
        self.out.push(kind::INT64);
        self.out.extend_from_slice(b"id\0");
        self.out.extend_from_slice(&fields.id.to_le_bytes());
        self.out.push(kind::STRING);
        self.out.extend_from_slice(b"ns\0");
        self.out.extend_from_slice(&(fields.ns.len() as i32 + 1).to_le_bytes());
        self.out.extend_from_slice(fields.ns.as_bytes());
        self.out.push(0);
        self.close(self.cursor);
        self.out.push(kind::DOUBLE);
        self.out.extend_from_slice(b"ok\0");
        self.out.extend_from_slice(&1.0_f64.to_le_bytes());
        self.close(0);
        self.out.into()
    }

    /// Ends the document or array that begins at `start`.
    fn close(&mut self, start: usize) {
        self.out.push(0);
        let length = (self.out.len() - start) as i32;
        self.out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }
}

impl Sink for ReplyWriter {
    fn count(&self) -> usize {
        self.count
    }

    /// The first document always fits.
    fn fits(&self, len: usize) -> bool {
        self.count == 0 || self.out.len() - self.array + len + 12 <= MAX_BSON
    }

    fn push(&mut self, doc: &Doc<'_>) {
        push_item(&mut self.out, self.count, doc);
        self.count += 1;
    }
}

/// Appends a number in decimal.
pub(crate) fn push_decimal(out: &mut Vec<u8>, mut n: usize) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::bsonx;
    use bson::rawdoc;

    #[test]
    fn packed_documents() {
        let doc = rawdoc! { "a": 1 };
        let mut wrapped = Packed::new(true, 100);
        wrapped.push(&Doc::whole(doc.as_bytes()));
        let first = wrapped.take();
        assert_eq!(bsonx::view(&first), &*rawdoc! { "_id": 0_i64, "d": { "a": 1 } });
        bsonx::check(&first).unwrap();
        assert!(wrapped.fits(1000));
        wrapped.push(&Doc::whole(doc.as_bytes()));
        assert_eq!(bsonx::int(bsonx::view(&wrapped.docs), "_id"), Some(1));
        assert!(!wrapped.fits(100));
        let mut plain = Packed::new(false, 100);
        plain.push(&Doc::whole(doc.as_bytes()));
        plain.push(&Doc::whole(doc.as_bytes()));
        assert_eq!(plain.take(), [doc.as_bytes(), doc.as_bytes()].concat());
    }
}
