//! The k-way merge of shards' batches.

use std::cmp::Ordering;
use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;

use super::order::METADATA;
use super::{Batch, Doc, SORT_KEY, SortOrder};
use crate::bsonx;
use crate::error::{Code, Error, Result};
use crate::key::value::{Elem, Value};

/// One shard's part of the result.
#[derive(Debug, Default)]
struct Source {
    batch: Batch,
    head: Option<Head>,
    /// No batch will follow the one at hand.
    done: bool,
}

/// The next document of a source.
#[derive(Clone, Debug)]
struct Head {
    doc: Range<usize>,
    /// What the client must not see, counted from the document's first byte; empty without a sort.
    cut: Range<usize>,
    /// Where the value of `$sortKey` lies, and its type.
    key: Range<usize>,
    kind: u8,
}

/// Gives the documents of several sources in the order of the result, after `skip` and up to `limit` of them.
///
/// Sorted: the smallest head of all sources comes next, so every source that is not done must have one. Ties go to the
/// source that was numbered first. Unsorted: one source's batch after the other's, in turns.
#[derive(Debug)]
pub struct Merger {
    sources: Vec<Source>,
    order: Option<SortOrder>,
    /// Leave `$sortKey` in the documents: the client asked for it.
    keep_sort_key: bool,
    /// The documents come from an aggregation that is to be merged: other metadata stands beside `$sortKey`, all of it
    /// at the end.
    metadata: bool,
    /// Sorted: the sources that have a head, the one with the smallest last.
    /// Unsorted: the sources that have one, the one whose turn it is last.
    ready: Vec<usize>,
    skip: u64,
    limit: Option<u64>,
}

impl Merger {
    /// `limit` counts after `skip`; `None` is no limit.
    pub fn new(sources: usize, order: Option<SortOrder>, skip: u64, limit: Option<u64>) -> Self {
        Merger {
            sources: (0..sources).map(|_| Source::default()).collect(),
            order,
            keep_sort_key: false,
            metadata: false,
            ready: Vec::with_capacity(sources),
            skip,
            limit,
        }
    }

    /// The client's own projection asks for `$sortKey`.
    pub fn keep_sort_key(mut self, keep: bool) -> Self {
        self.keep_sort_key = keep;
        self
    }

    /// The shards append metadata of every kind.
    pub fn with_metadata(mut self) -> Self {
        self.metadata = true;
        self
    }

    /// Hands over a source's next batch (the bytes of an array of documents) and whether it is the last.
    ///
    /// # Errors
    /// InvalidBSON (22) for malformed batches and for sorted documents without `$sortKey`.
    pub fn supply(&mut self, source: usize, batch: Bytes, done: bool) -> Result<()> {
        let slot = &mut self.sources[source];
        slot.batch = Batch::new(batch);
        slot.done = done;
        self.step(source, false)
    }

    /// A source that gives nothing more.
    pub fn finish_source(&mut self, source: usize) {
        self.sources[source].done = true;
    }

    /// The sources that must be supplied before the next document is known; none where there is one, or the end.
    pub fn starving(&self) -> SmallVec<[usize; 4]> {
        if self.limit == Some(0) || (self.order.is_none() && !self.ready.is_empty()) {
            return SmallVec::new();
        }
        (0..self.sources.len()).filter(|i| self.sources[*i].head.is_none() && !self.sources[*i].done).collect()
    }

    /// The next document. `None` at the end, and while a source is [starving](Self::starving).
    ///
    /// # Errors
    /// As [`Merger::supply`].
    pub fn peek(&mut self) -> Result<Option<Doc<'_>>> {
        while self.skip > 0 && self.limit != Some(0) && self.starving().is_empty() && !self.ready.is_empty() {
            self.skip -= 1;
            self.drop_head()?;
        }
        if self.skip > 0 || self.limit == Some(0) || !self.starving().is_empty() {
            return Ok(None);
        }
        let Some(&source) = self.ready.last() else { return Ok(None) };
        let source = &self.sources[source];
        let Some(head) = &source.head else { return Ok(None) };
        let bytes = &source.batch.bytes()[head.doc.clone()];
        Ok(Some(match self.keep_sort_key {
            true => Doc::whole(bytes),
            false => Doc::without(bytes, head.cut.clone()),
        }))
    }

    /// Goes past the document that [`Merger::peek`] gave.
    ///
    /// # Errors
    /// As [`Merger::supply`].
    pub fn pop(&mut self) -> Result<()> {
        if let Some(limit) = &mut self.limit {
            *limit = limit.saturating_sub(1);
        }
        self.drop_head()
    }

    /// Whether nothing more will come.
    pub fn at_end(&self) -> bool {
        self.limit == Some(0) || (self.ready.is_empty() && self.sources.iter().all(|s| s.done))
    }

    /// Documents that lie here, not yet given (only those at the heads of batches are known: a lower bound).
    pub fn buffered(&self) -> usize {
        self.ready.len()
    }

    fn drop_head(&mut self) -> Result<()> {
        match self.ready.pop() {
            Some(source) => {
                self.sources[source].head = None;
                self.step(source, true)
            }
            None => Ok(()),
        }
    }

    /// Reads the next head of a source that has none and puts the source in its place. Unsorted, the source whose
    /// batch was begun stays in turn and newcomers wait behind the others.
    fn step(&mut self, source: usize, in_turn: bool) -> Result<()> {
        let slot = &mut self.sources[source];
        let Some(doc) = slot.batch.advance()? else { return Ok(()) };
        let Some(order) = &self.order else {
            slot.head = Some(Head { doc, cut: 0..0, key: 0..0, kind: 0 });
            let at = if in_turn { self.ready.len() } else { 0 };
            self.ready.insert(at, source);
            return Ok(());
        };
        let bytes = &slot.batch.bytes()[doc.clone()];
        let (key, kind, cut) = if self.metadata {
            let metadata = trailing_metadata(bytes);
            let found = metadata.iter().find(|f| f.key == SORT_KEY.as_bytes()).ok_or_else(no_sort_key)?;
            let start = metadata.first().map_or(found.start, |first| first.start);
            (found.range(), found.kind, start..bytes.len() - 1)
        } else {
            let found = bsonx::find(bytes, SORT_KEY).ok_or_else(no_sort_key)?;
            (found.range(), found.kind, found.whole())
        };
        slot.head = Some(Head { doc, cut, key, kind });
        let key = head_key(&self.sources[source])?;
        let mut keys = Ok(());
        let at = self.ready.partition_point(|other| {
            let by_key = match head_key(&self.sources[*other]) {
                Ok(theirs) => order.compare(theirs, key),
                Err(e) => {
                    keys = Err(e);
                    Ordering::Equal
                }
            };
            // The smallest is last, and of equals the one with the lowest number.
            by_key.then(other.cmp(&source)).is_gt()
        });
        keys?;
        self.ready.insert(at, source);
        Ok(())
    }
}

/// The metadata that a server has appended: the fields of such names at the document's end, each once. Fields of a user
/// that are called the same stand before them.
fn trailing_metadata(bytes: &[u8]) -> SmallVec<[bsonx::Field<'_>; 4]> {
    let mut run = SmallVec::<[bsonx::Field<'_>; 4]>::new();
    for field in bsonx::fields(bytes) {
        if !METADATA.contains(&field.key) {
            run.clear();
            continue;
        }
        if let Some(users) = run.iter().position(|earlier| earlier.key == field.key) {
            run.drain(..=users);
        }
        run.push(field);
    }
    run
}

/// The sort key of a source's head.
fn head_key(source: &Source) -> Result<Value<'_>> {
    let head = source.head.as_ref().ok_or_else(no_sort_key)?;
    let doc = &source.batch.bytes()[head.doc.clone()];
    Elem { tag: head.kind, name: SORT_KEY.as_bytes(), data: &doc[head.key.clone()] }.value()
}

fn no_sort_key() -> Error {
    Error::new(Code::InvalidBSON, "A shard sent a document without the sort key that it was asked for").from_router()
}
