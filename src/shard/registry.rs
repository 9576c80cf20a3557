//! All shards by id.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::catalog::snapshot::Snapshot;
use crate::config::keyfile::keys_of;
use crate::config::{Config, Pool};
use crate::error::{Code, Error, Result};

use super::connect::Connector;
use super::pool::PoolSettings;
use super::sdam::HostString;
use super::topology::Topology;
use super::{Shard, ShardId};

/// The `_id` under which the catalog's replica set is known.
const CONFIG: &str = "config";
/// An unused connection is asked this often whether the server is still there.
const REFRESH_REQUIREMENT: Duration = Duration::from_secs(60);
/// How long an operation waits for a connection of a full pool.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(20);

/// How the router talks to its shards.
#[derive(Clone, Debug)]
pub struct ShardSettings {
    /// Content of the keyFile: authenticates to every member as `__system`.
    pub key_file: Option<String>,
    pub pool: Pool,
    pub refresh_requirement: Duration,
    pub refresh_timeout: Duration,
    /// Members that answer this much slower than the nearest are not chosen.
    pub local_threshold: Duration,
}

impl Default for ShardSettings {
    fn default() -> Self {
        ShardSettings {
            key_file: None,
            pool: Pool::default(),
            refresh_requirement: REFRESH_REQUIREMENT,
            refresh_timeout: REFRESH_TIMEOUT,
            local_threshold: Duration::from_millis(15),
        }
    }
}

impl ShardSettings {
    /// Reads the keyFile and takes the pool's numbers from the configuration.
    ///
    /// # Errors
    /// BadValue where the keyFile cannot be read or is empty.
    pub fn from_config(config: &Config) -> Result<Self> {
        let key_file = match &config.key_file {
            Some(path) => {
                let bad = |why: String| {
                    Error::new(Code::BadValue, format!("cannot use the keyFile {}: {why}", path.display()))
                        .from_router()
                };
                let content = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
                if keys_of(&content).is_empty() {
                    return Err(bad("there is no key in it".to_owned()));
                }
                Some(content)
            }
            None => None,
        };
        Ok(ShardSettings {
            key_file,
            pool: config.pool.clone(),
            local_threshold: config.local_threshold,
            ..ShardSettings::default()
        })
    }

    pub(super) fn pool_settings(&self) -> PoolSettings {
        PoolSettings {
            min_size: self.pool.min_size,
            max_size: self.pool.max_size.max(1),
            max_connecting: self.pool.max_connecting.max(1),
            idle_timeout: self.pool.idle_timeout,
            refresh_requirement: self.refresh_requirement,
            refresh_timeout: self.refresh_timeout,
        }
    }
}

type Shards = HashMap<ShardId, Arc<Shard>>;

/// All shards by id, and `config` for the replica set that holds the catalog.
pub struct ShardRegistry {
    settings: Arc<ShardSettings>,
    connector: Arc<Connector>,
    shards: ArcSwap<Shards>,
    /// Held while the map is changed.
    update: Mutex<()>,
    hosts_changed: watch::Sender<u64>,
}

impl ShardRegistry {
    pub fn new(settings: ShardSettings) -> Arc<Self> {
        let keys = settings.key_file.as_deref().map(keys_of).unwrap_or_default();
        Arc::new(ShardRegistry {
            connector: Arc::new(Connector::new(keys, settings.pool.connect_timeout)),
            settings: Arc::new(settings),
            shards: ArcSwap::default(),
            update: Mutex::new(()),
            hosts_changed: watch::Sender::new(0),
        })
    }

    pub fn settings(&self) -> &ShardSettings {
        &self.settings
    }

    /// The shard called `id`; ShardNotFound (70) if there is none.
    pub fn get(&self, id: &str) -> Result<Arc<Shard>> {
        match self.shards.load().get(id) {
            Some(shard) => Ok(shard.clone()),
            None => Err(Error::new(Code::ShardNotFound, format!("Shard {id} not found"))),
        }
    }

    /// Makes the registry hold the shards of this snapshot, besides `config`.
    pub fn sync(&self, snapshot: &Snapshot) -> Result<()> {
        self.sync_hosts(snapshot.shards.values().map(|s| (&*s.id, s.host.as_str())))
    }

    /// Makes the registry hold exactly these shards (`id`, `setName/h1:p,h2:p`), besides `config`. Shards that stay
    /// keep their connections; a shard whose replica set has another name now is made anew.
    ///
    /// # Errors
    /// FailedToParse for a malformed address; the other shards are taken in all the same.
    pub fn sync_hosts<'a>(&self, shards: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<()> {
        let _held = self.update.lock();
        let old = self.shards.load_full();
        let mut new = Shards::new();
        let mut outcome = Ok(());
        if let Some((id, shard)) = old.get_key_value(CONFIG) {
            new.insert(id.clone(), shard.clone());
        }
        for (id, host) in shards.into_iter().filter(|(id, _)| *id != CONFIG) {
            match self.keep_or_make(old.get(id), id, host) {
                Ok(shard) => drop(new.insert(shard.id().clone(), shard)),
                Err(error) => outcome = Err(error),
            }
        }
        self.shards.store(Arc::new(new));
        outcome
    }

    /// Makes (or replaces the seeds of) the shard `config`.
    pub fn set_config(&self, host: &str) -> Result<()> {
        let _held = self.update.lock();
        let old = self.shards.load_full();
        let shard = self.keep_or_make(old.get(CONFIG), CONFIG, host)?;
        let mut new = (*old).clone();
        new.insert(shard.id().clone(), shard);
        self.shards.store(Arc::new(new));
        Ok(())
    }

    fn keep_or_make(&self, known: Option<&Arc<Shard>>, id: &str, host: &str) -> Result<Arc<Shard>> {
        let host = HostString::parse(host)?;
        match known {
            Some(shard) if shard.topology().state().set.set_name == host.set_name => {
                shard.topology().add_seeds(&host);
                Ok(shard.clone())
            }
            _ => Ok(self.make(id, &host)),
        }
    }

    fn make(&self, id: &str, host: &HostString) -> Arc<Shard> {
        let id = ShardId::from(id);
        let topology = Topology::start(
            id.clone(),
            host,
            self.settings.clone(),
            self.connector.clone(),
            self.hosts_changed.clone(),
        );
        Shard::new(id, topology)
    }

    /// A shard for a connection string that is not in the catalog (yet): `addShard` looks at it with this. A bare
    /// `host:port` is taken as a single server of any kind. It is closed when dropped.
    pub fn probe(&self, id: &str, host: &str) -> Result<Arc<Shard>> {
        Ok(self.make(id, &HostString::parse(host)?))
    }

    /// All shards now, in no order, without `config`.
    pub fn all(&self) -> Vec<Arc<Shard>> {
        self.shards.load().iter().filter(|(id, _)| &***id != CONFIG).map(|(_, s)| s.clone()).collect()
    }

    /// All shards now, in no order, with `config`.
    pub fn all_with_config(&self) -> Vec<Arc<Shard>> {
        self.shards.load().values().cloned().collect()
    }

    /// Counts how often [`Shard::host`] of any shard changed: the catalog writes the new one to `config.shards`.
    pub fn host_changes(&self) -> watch::Receiver<u64> {
        self.hosts_changed.subscribe()
    }
}
