//! The statements of one client command as slices of the message they came in.

use std::collections::HashMap;

use bson::{RawBsonRef, RawDocument};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::bsonx;
use crate::command::Request;
use crate::command::request::null_array;
use crate::error::{Code, Error, Result};
use crate::wire::MAX_WRITE_BATCH;

use super::statement::missing;

/// All statements of a batch. Nothing is copied but those that had to be changed.
#[derive(Clone, Debug)]
pub struct Ops {
    /// The body, or the document sequence.
    parent: Bytes,
    /// Where each statement lies in `parent`: offset and length.
    ranges: Vec<(u32, u32)>,
    changed: HashMap<u32, Bytes>,
}

impl Ops {
    /// Reads the statements from the sequence or array called `payload`.
    ///
    /// # Errors
    /// 40414 where there is neither, InvalidLength (16) for none or too many, TypeMismatch (14) for anything but documents.
    pub fn new(request: &Request, payload: &str) -> Result<Self> {
        let message = &request.message;
        let name = request.spec.name;
        let count = message.document_count(payload).ok_or_else(|| match request.get(payload) {
            Some(RawBsonRef::Null) => null_array(payload),
            Some(other) => Error::new(
                Code::TypeMismatch,
                format!(
                    "BSON field '{name}.{payload}' is the wrong type '{}', expected type 'array'",
                    bsonx::type_name(other.element_type())
                ),
            ),
            None => missing(&format!("{name}.{payload}")),
        })?;
        if count == 0 || count > MAX_WRITE_BATCH {
            return Err(Error::new(
                Code::InvalidLength,
                format!("Write batch sizes must be between 1 and {MAX_WRITE_BATCH}. Got {count} operations."),
            ));
        }
        let parent = match message.sequences.iter().find(|s| s.id == payload) {
            Some(sequence) => sequence.docs.clone(),
            None => message.body.clone(),
        };
        let base = parent.as_ptr() as usize;
        let mut ranges = Vec::with_capacity(count);
        for doc in message.documents(payload) {
            let bytes = doc?.as_bytes();
            ranges.push(((bytes.as_ptr() as usize - base) as u32, bytes.len() as u32));
        }
        Ok(Ops { parent, ranges, changed: HashMap::new() })
    }

    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    fn range(&self, index: u32) -> std::ops::Range<usize> {
        let (start, len) = self.ranges.get(index as usize).copied().unwrap_or_default();
        start as usize..(start + len) as usize
    }

    /// The statement at `index`, as it will be sent.
    pub fn get(&self, index: u32) -> &RawDocument {
        match self.changed.get(&index) {
            Some(bytes) => bsonx::view(bytes),
            None => bsonx::view(&self.parent[self.range(index)]),
        }
    }

    pub fn size(&self, index: u32) -> usize {
        match self.changed.get(&index) {
            Some(bytes) => bytes.len(),
            None => self.range(index).len(),
        }
    }

    pub fn replace(&mut self, index: u32, doc: Vec<u8>) {
        self.changed.insert(index, doc.into());
    }

    pub fn any_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The statements at `items` for a document sequence; neighbours in one piece.
    pub fn pieces(&self, items: &[u32]) -> SmallVec<[Bytes; 1]> {
        let mut pieces = SmallVec::new();
        let mut open: Option<std::ops::Range<usize>> = None;
        for item in items {
            let changed = self.changed.get(item);
            let range = self.range(*item);
            match (&mut open, changed) {
                (Some(run), None) if run.end == range.start => {
                    run.end = range.end;
                    continue;
                }
                (run, _) => pieces.extend(run.take().map(|run| self.parent.slice(run))),
            }
            match changed {
                Some(bytes) => pieces.push(bytes.clone()),
                None => open = Some(range),
            }
        }
        pieces.extend(open.map(|run| self.parent.slice(run)));
        pieces
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use bson::rawdoc;
    use proptest::prelude::*;

    use super::*;

    fn ops(count: usize) -> Ops {
        let mut parent = Vec::new();
        let mut ranges = Vec::new();
        for i in 0..count {
            let doc = rawdoc! { "i": i as i32, "pad": "x".repeat(i % 7) };
            ranges.push((parent.len() as u32, doc.as_bytes().len() as u32));
            parent.extend_from_slice(doc.as_bytes());
        }
        Ops { parent: parent.into(), ranges, changed: HashMap::new() }
    }

    proptest! {
        #[test]
        fn pieces_are_the_statements_one_after_the_other(
            chosen in prop::collection::btree_set(0u32..40, 0..40),
            changed in prop::collection::btree_set(0u32..40, 0..5),
        ) {
            let mut ops = ops(40);
            for index in changed {
                ops.replace(index, rawdoc! { "changed": index as i32 }.into_bytes());
            }
            let items: Vec<_> = chosen.into_iter().collect();
            let expected: Vec<u8> = items.iter().flat_map(|i| ops.get(*i).as_bytes().to_vec()).collect();
            prop_assert_eq!(ops.pieces(&items).concat(), expected);
        }
    }

    #[test]
    fn neighbours_stay_in_one_piece() {
        let ops = ops(10);
        assert_eq!(ops.pieces(&[0, 1, 2, 3]).len(), 1);
        assert_eq!(ops.pieces(&[0, 1, 3, 4]).len(), 2);
    }
}
