//! The shards as the router sees them: replica sets whose members are watched, pooled and sent commands.
//!
//! [`Shard::run`] selects a member, takes a connection from its pool, and writes and reads on it in the caller's own
//! task. See ARCHITECTURE.md.

mod conn;
mod connect;
mod hello;
mod monitor;
mod outcome;
mod pool;
mod progress;
mod read_preference;
mod registry;
mod run;
mod scram;
mod sdam;
mod select;
mod stats;
mod stop;
mod topology;
mod types;

pub use outcome::{is_passing, is_retryable_write};
pub use pool::PoolStats;
pub use read_preference::{MIN_MAX_STALENESS, Mode, ReadPreference, TagSet};
pub use registry::{ShardRegistry, ShardSettings};
pub use run::Shard;
pub use stats::{ServerStats, ShardStats};
pub use types::{Retryable, ServerId, ShardId, ShardReply};
