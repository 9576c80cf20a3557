//! Cursors: what clients hold open on this router, and what the router holds open on shards.
//!
//! [`RemoteCursor`] owns one cursor of a shard's server and kills it there when it is dropped unfinished, whatever the
//! reason: an error at another shard, a client that went away, a timeout, `killCursors`. [`CursorRegistry`] keeps the
//! client's cursors between two `getMore`s.

mod lifespan;
mod registry;
mod remote;
mod temp;

pub use registry::{Checkout, CursorRegistry, CursorStats, CursorView, NewCursor};
pub use remote::{Killer, RemoteCursor};
pub use temp::TempCollection;

use std::collections::VecDeque;

use bson::Timestamp;
use bytes::Bytes;

use crate::merge::Merger;

/// What stands behind one of a client's cursors.
#[derive(Debug)]
pub enum Cursor {
    /// One shard's cursor, whose replies are passed on.
    Passed(RemoteCursor),
    /// The merged cursors of several shards.
    Merged(Box<MergedCursor>),
    /// A result the router has in memory.
    Stored(StoredCursor),
}

/// The state of a merge over several shards.
#[derive(Debug)]
pub struct MergedCursor {
    pub merger: Merger,
    /// The shards' cursors, by the merger's numbers; `None` where a shard has nothing more.
    pub remotes: Vec<Option<RemoteCursor>>,
    /// Shards that cannot be reached are left out instead of failing the whole (`allowPartialResults`).
    pub allow_partial: bool,
    /// Some shard was left out.
    pub partial: bool,
    /// The common time of a snapshot read, told with every batch.
    pub at_cluster_time: Option<Timestamp>,
}

/// A result that waits in memory.
#[derive(Debug, Default)]
pub struct StoredCursor {
    pub docs: VecDeque<Bytes>,
}
