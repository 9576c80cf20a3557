//! The routing catalog: its documents, the stores that keep it, and the service that serves snapshots of it.

pub mod chunk;
pub mod driver;
pub mod embedded;
mod embedded_apply;
pub mod model;
pub mod replset;
mod replset_apply;
mod service;
pub mod snapshot;
pub mod standstill;
pub mod store;
#[cfg(test)]
mod suite;
pub mod table;

pub use model::{ChunkVersion, Namespace, ShardId, ShardInfo};
pub use service::{Catalog, NewChunk, NewCollection, NewShard, existing_shard};
pub use snapshot::{CollectionRouting, Snapshot};
