//! Logical sessions this router has seen.
//!
//! A shard keeps its own record of every `lsid` it is sent and expires it by itself, so what the router needs to know
//! is only when it last saw a session: to end the router's cursors of sessions that expired, to keep cursors' sessions
//! alive on shards that the session does not happen to use, and to report them.

mod id;
mod spare;
mod tracker;
mod upkeep;

pub use id::SessionId;
pub use spare::{Lease, Spare};
pub use tracker::Sessions;
pub use upkeep::start;
