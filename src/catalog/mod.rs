//! The routing catalog: its documents, the stores that keep it, and the service that serves snapshots of it.

pub mod chunk;
pub mod embedded;
mod embedded_apply;
pub mod model;
mod service;
pub mod snapshot;
pub mod store;
pub mod table;

pub use model::{ChunkVersion, Namespace, ShardId, ShardInfo};
pub use service::Catalog;
pub use snapshot::{CollectionRouting, Snapshot};
