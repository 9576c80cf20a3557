//! The documents of one cursor reply, read one after the other without copying.

use std::ops::Range;

use bytes::Bytes;

use crate::bsonx::{self, kind};
use crate::error::{Code, Error, Result};

/// A `firstBatch` or `nextBatch` array that is being consumed.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The whole array, as bytes.
    array: Bytes,
    at: usize,
}

impl Batch {
    /// Over the bytes of an array of documents.
    pub fn new(array: Bytes) -> Self {
        Batch { array, at: 4 }
    }

    /// Where the next document lies in [`Batch::bytes`]; `None` at the end.
    ///
    /// # Errors
    /// InvalidBSON (22) where the array is malformed or holds something that is no document.
    pub fn advance(&mut self) -> Result<Option<Range<usize>>> {
        let rest = self.array.get(self.at..).unwrap_or_default();
        let Some((&tag, rest)) = rest.split_first() else { return Ok(None) };
        if tag == 0 {
            return Ok(None);
        }
        let name = rest.iter().position(|b| *b == 0).filter(|_| tag == kind::DOCUMENT).ok_or_else(malformed)?;
        let start = self.at + name + 2;
        let length = bsonx::int32(&self.array, start).and_then(|n| usize::try_from(n).ok()).filter(|n| *n >= 5);
        let end = start + length.ok_or_else(malformed)?;
        if self.array.get(end - 1) != Some(&0) {
            return Err(malformed());
        }
        self.at = end;
        Ok(Some(start..end))
    }

    /// The bytes that the ranges of [`Batch::advance`] point into.
    pub fn bytes(&self) -> &[u8] {
        &self.array
    }
}

fn malformed() -> Error {
    Error::new(Code::InvalidBSON, "A shard sent a batch that holds malformed BSON").from_router()
}

/// A document on its way to the client, perhaps with one field to be left out.
#[derive(Clone, Debug)]
pub struct Doc<'a> {
    bytes: &'a [u8],
    /// Where the field lies that the client must not see.
    cut: Range<usize>,
}

impl<'a> Doc<'a> {
    /// The document as it is.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Doc { bytes, cut: 0..0 }
    }

    /// The document without the field at `cut`.
    pub fn without(bytes: &'a [u8], cut: Range<usize>) -> Self {
        Doc { bytes, cut }
    }

    /// Bytes the client gets.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.cut.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() <= 5
    }

    /// Appends what the client gets.
    pub fn write(&self, out: &mut Vec<u8>) {
        if self.cut.is_empty() {
            out.extend_from_slice(self.bytes);
        } else {
            out.extend_from_slice(&(self.len() as i32).to_le_bytes());
            out.extend_from_slice(&self.bytes[4..self.cut.start]);
            out.extend_from_slice(&self.bytes[self.cut.end..]);
        }
    }
}
