//! Merging what several shards answer into one result. Pure: bytes in, bytes out.
//!
//! [`Merger`] is told each shard's batches and gives the documents in the order of the result; it says which shards it
//! needs more from. [`ReplyWriter`] puts documents into a cursor reply. [`SortOrder`] compares documents by the
//! `$sortKey` field that the shards compute, so the router needs no collation of its own.

mod batch;
mod merger;
mod order;
mod reply;

pub use batch::{Batch, Doc};
pub use merger::Merger;
pub use order::{SORT_KEY, SortOrder};
pub(crate) use reply::push_decimal;
pub use reply::{CursorFields, Gathered, Packed, ReplyWriter, Sink};

#[cfg(test)]
mod tests;
