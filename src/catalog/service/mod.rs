//! The catalog service: the current snapshot, its refresh, and the commits.

mod background;
mod chunks;
mod collections;
mod confirm;
mod databases;
mod load;
mod log;
mod shards;
#[cfg(test)]
mod tests;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bson::Timestamp;
use bson::oid::ObjectId;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::embedded::EmbeddedStore;
use super::replset::{ReplsetOptions, ReplsetStore};
use super::snapshot::Snapshot;
use super::store::{CatalogTxn, SharedStore};
use crate::config::{CatalogConfig, Config};
use crate::error::{Code, Error, Result, Retry};
use crate::router::Identity;
use crate::shard::ShardRegistry;

pub use collections::{NewChunk, NewCollection};
pub use shards::{NewShard, existing_shard};

/// How often a commit is planned anew when another router changed what it rests on.
const ATTEMPTS: usize = 20;

/// The one catalog of a router.
pub struct Catalog {
    store: SharedStore,
    shards: Arc<ShardRegistry>,
    current: ArcSwap<Snapshot>,
    /// Snapshots before the current one that operations may still work on.
    former: parking_lot::Mutex<Vec<Weak<Snapshot>>>,
    changed: watch::Sender<u64>,
    refreshing: tokio::sync::Mutex<()>,
    confirming: confirm::Confirming,
    /// `host:port` of this router.
    name: String,
    /// Its [`Identity::process_id`].
    process: ObjectId,
    log_counter: AtomicU64,
}

impl Catalog {
    /// Opens the store that the configuration names, loads it, and keeps it loaded until `shutdown`.
    pub async fn open(
        config: &Config,
        identity: &Identity,
        shards: Arc<ShardRegistry>,
        shutdown: CancellationToken,
    ) -> Result<Arc<Self>> {
        let store: SharedStore = match &config.catalog {
            CatalogConfig::Embedded { path } => Arc::new(EmbeddedStore::open(path, &identity.name()).await?),
            CatalogConfig::ReplicaSet { set_name, hosts } => {
                let options = ReplsetOptions {
                    set_name: set_name.clone(),
                    hosts: hosts.clone(),
                    key_file: shards.settings().key_file.clone(),
                };
                Arc::new(open_replset(&options, &shutdown).await?)
            }
        };
        Self::with_store(store, shards, (identity.name(), identity.process_id), shutdown).await
    }

    /// The same on a store that is open already, for the router of this `host:port` and process id.
    pub async fn with_store(
        store: SharedStore,
        shards: Arc<ShardRegistry>,
        (name, process): (String, ObjectId),
        shutdown: CancellationToken,
    ) -> Result<Arc<Self>> {
        let catalog = Arc::new(Catalog {
            store,
            shards,
            current: ArcSwap::from_pointee(Snapshot::default()),
            former: parking_lot::Mutex::default(),
            changed: watch::Sender::new(0),
            refreshing: tokio::sync::Mutex::new(()),
            confirming: confirm::Confirming::default(),
            name,
            process,
            log_counter: AtomicU64::new(0),
        });
        catalog.refresh_to(1).await?;
        background::start(&catalog, shutdown);
        Ok(catalog)
    }

    /// The newest picture this router has. Cheap; take it once per request.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Tells of every new snapshot by its version.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Asks the store for its version (linearizably) and loads what changed since; returns the snapshot then current.
    pub async fn refresh(&self) -> Result<Arc<Snapshot>> {
        let version = self.store.version().await?;
        self.refresh_to(version).await
    }

    /// A snapshot at `version` or later.
    pub async fn refresh_to(&self, version: u64) -> Result<Arc<Snapshot>> {
        let _one_at_a_time = self.refreshing.lock().await;
        let old = self.snapshot();
        if old.version >= version {
            return Ok(old);
        }
        self.load_from(&old, version).await
    }

    /// Forgets the snapshot and loads the whole catalog anew (`flushRouterConfig`).
    pub async fn reload(&self) -> Result<Arc<Snapshot>> {
        let version = self.store.version().await?;
        let _one_at_a_time = self.refreshing.lock().await;
        self.load_from(&Snapshot::default(), version).await
    }

    async fn load_from(&self, old: &Snapshot, version: u64) -> Result<Arc<Snapshot>> {
        let mut view = self.store.view(version).await?;
        let next = Arc::new(load::load(&mut *view, old).await?);
        self.shards.sync_hosts(next.shards.values().map(|s| (&*s.id, s.host.as_str())))?;
        let former = self.current.swap(next.clone());
        self.former.lock().push(Arc::downgrade(&former));
        drop(former);
        self.changed.send_replace(next.version);
        tracing::debug!(version = next.version, "catalog snapshot loaded");
        Ok(next)
    }

    pub fn store(&self) -> &SharedStore {
        &self.store
    }

    /// A time of the catalog's own clock, later than any before it.
    pub async fn tick(&self) -> Result<Timestamp> {
        self.store.tick().await
    }

    /// Plans a commit on the current snapshot and makes it, planning anew when another router was faster.
    /// `plan` returns the transaction and a result, or only a result where nothing is to be done.
    /// When this returns, this router's snapshot shows the change.
    async fn commit<T>(&self, plan: impl Fn(&Snapshot) -> Result<Plan<T>>) -> Result<T> {
        let mut last = None;
        for attempt in 0..ATTEMPTS {
            let (txn, result) = match plan(&self.snapshot())? {
                Plan::Nothing(result) => return Ok(result),
                Plan::Commit(txn, result) => (txn, result),
            };
            match self.store.commit(&txn).await {
                Ok(version) => {
                    self.show(version).await?;
                    return Ok(result);
                }
                Err(e) if e.is(Code::ConflictingOperationInProgress) => {
                    last = Some(e);
                    tokio::time::sleep(Duration::from_millis(5 * attempt as u64)).await;
                    self.refresh().await?;
                }
                Err(e) => return Err(e),
            }
        }
        Err(last.unwrap_or_else(|| Error::internal("a commit was never tried")))
    }

    /// Loads a version this router committed itself; the store may be away for a moment right after.
    async fn show(&self, version: u64) -> Result<()> {
        let mut pause = Duration::from_millis(50);
        loop {
            match self.refresh_to(version).await {
                Ok(_) => return Ok(()),
                Err(e) if pause < Duration::from_secs(5) => {
                    tracing::warn!(error = %e, version, "the catalog was changed but cannot be read; trying again");
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(e) => return Err(e.context("The catalog was changed but cannot be read").retry(Retry::Unknown)),
            }
        }
    }
}

/// Opens the store on a replica set that may be starting at the same time as the router.
async fn open_replset(options: &ReplsetOptions, shutdown: &CancellationToken) -> Result<ReplsetStore> {
    let started = Instant::now();
    loop {
        let away = match ReplsetStore::open(options).await {
            Err(e) if AWAY.iter().any(|code| e.is(*code)) => e,
            other => return other,
        };
        if started.elapsed() > START_TIME || shutdown.is_cancelled() {
            return Err(away);
        }
        tracing::warn!(error = %away, "waiting for the catalog's replica set");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// How long a starting router waits for the catalog's replica set.
const START_TIME: Duration = Duration::from_secs(60);
/// What a replica set says, or does not say, before it has a primary.
const AWAY: &[Code] = &[Code::FailedToSatisfyReadPreference, Code::HostUnreachable, Code::NotWritablePrimary];

/// What a commit's planning came to.
enum Plan<T> {
    Nothing(T),
    Commit(CatalogTxn, T),
}
