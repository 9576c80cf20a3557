//! The order of a sorted result, decided by the `$sortKey` the shards add to each document.

use std::cmp::Ordering;

use bson::RawDocument;
use bson::raw::RawBsonRef;
use smallvec::SmallVec;

use crate::bsonx;
use crate::key::order::compare_values;
use crate::key::value::{Elements, Value};

/// The field that carries a document's sort key from the shard to the router.
pub const SORT_KEY: &str = "$sortKey";

/// What servers append to documents of an aggregation that is to be merged, the sort key among them.
pub(super) const METADATA: &[&[u8]] = &[
    b"$textScore",
    b"$randVal",
    b"$sortKey",
    b"$dis",
    b"$pt",
    b"$searchScore",
    b"$searchHighlights",
    b"$searchScoreDetails",
    b"$searchSortValues",
    b"$indexKey",
    b"$storedSource",
    b"$vectorSearchScore",
];

/// How to compare two `$sortKey` values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SortOrder {
    /// `$sortKey` is an array with one value for each field of the sort pattern; true means descending.
    ///
    /// The values are ready to be compared bytewise under the simple collation: under another one the shard has
    /// replaced strings by their collation keys (which need not be UTF-8).
    ByFields(SmallVec<[bool; 4]>),
    /// `$sortKey` is one number, smallest first (distances of `$near`).
    ByValue,
}

impl SortOrder {
    /// Reads a sort pattern. `None` where it asks for no order: `{}` and `{$natural: …}`.
    ///
    /// A pattern that no server accepts gets some order; the shards refuse it.
    pub fn parse(sort: &RawDocument) -> Option<SortOrder> {
        let mut descending = SmallVec::new();
        for element in sort.iter_elements().map_while(std::result::Result::ok) {
            if element.key().as_str() == "$natural" {
                return None;
            }
            descending.push(match element.value() {
                // Every order by metadata is largest first, distances too.
                Ok(RawBsonRef::Document(_)) => true,
                Ok(value) => bsonx::as_int(value).is_some_and(|n| n < 0),
                Err(_) => false,
            });
        }
        (!descending.is_empty()).then_some(SortOrder::ByFields(descending))
    }

    /// Compares the values of two `$sortKey` fields. What is malformed compares as equal.
    pub fn compare(&self, a: Value<'_>, b: Value<'_>) -> Ordering {
        let (SortOrder::ByFields(descending), Value::Array(a), Value::Array(b)) = (self, a, b) else {
            return compare_values(a, b);
        };
        let (Ok(mut a), Ok(mut b)) = (Elements::new(a), Elements::new(b)) else { return Ordering::Equal };
        for descending in descending {
            let (Some(Ok(x)), Some(Ok(y))) = (a.next(), b.next()) else { return Ordering::Equal };
            let (Ok(x), Ok(y)) = (x.value(), y.value()) else { return Ordering::Equal };
            let order = compare_values(x, y);
            if order.is_ne() {
                return if *descending { order.reverse() } else { order };
            }
        }
        Ordering::Equal
    }
}
