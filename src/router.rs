//! The assembled router: everything one process shares between its connections.

pub mod clock;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::oid::ObjectId;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use crate::catalog::Catalog;
use crate::catalog::model::{ShardId, ShardInfo};
use crate::catalog::snapshot::Snapshot;
use crate::command::FailPoints;
use crate::command::ddl;
use crate::command::read::sweep;
use crate::command::read::views::ViewCatalog;
use crate::command::sharding::balancer;
use crate::config::{CatalogConfig, Config, Parameters};
use crate::conn::{Connections, Listener, Topology};
use crate::cursor::CursorRegistry;
use crate::error::Result;
use crate::op::{Cancelled, OpRegistry};
use crate::session::{Sessions, Spare};
use crate::shard::{ShardRegistry, ShardSettings};
use crate::stats::Stats;

use clock::ClusterClock;

/// How long requests under way may take to end when the router stops.
const STOP_PATIENCE: Duration = Duration::from_secs(1);

/// How long the shards may take to end what clients have left behind there.
const SETTLE_PATIENCE: Duration = Duration::from_secs(3);

/// The name under which the catalog's replica set stands among the shards.
pub const CONFIG_SHARD: &str = "config";

/// Who this process is.
#[derive(Clone, Debug)]
pub struct Identity {
    pub hostname: String,
    pub port: u16,
    /// New for every start; drivers compare it in `topologyVersion`.
    pub process_id: ObjectId,
    pub started: Instant,
    pub started_at: bson::DateTime,
}

impl Identity {
    /// `host:port`, as `serverStatus` and `config.mongos` name the router.
    pub fn name(&self) -> String {
        format!("{}:{}", self.hostname, self.port)
    }
}

pub struct Router {
    pub config: Config,
    pub identity: Identity,
    /// The server parameters in effect; `setParameter` changes them.
    pub parameters: RwLock<Parameters>,
    pub catalog: Arc<Catalog>,
    pub shards: Arc<ShardRegistry>,
    pub ops: Arc<OpRegistry>,
    pub cursors: Arc<CursorRegistry>,
    /// The views of databases that have sharded collections.
    pub views: ViewCatalog,
    pub stats: Arc<Stats>,
    pub sessions: Sessions,
    /// Sessions for the router's own transactions.
    pub spare_sessions: Arc<Spare>,
    /// Changes of structure under way.
    pub ddl: Arc<ddl::Coordinator>,
    pub clock: ClusterClock,
    pub failpoints: FailPoints,
    /// The clients that are connected.
    pub connections: Arc<Connections>,
    /// What hello tells of the router itself, and whether it is about to stop.
    pub topology: Topology,
    /// Cancelled when the process is to stop: background work ends, connections are closed.
    pub shutdown: CancellationToken,
}

/// A router that serves clients.
pub struct Running {
    pub router: Arc<Router>,
    /// Where it listens, ports resolved.
    pub addresses: Vec<SocketAddr>,
    serving: tokio::task::JoinHandle<()>,
}

impl Router {
    /// Binds the addresses, opens the catalog, and serves clients until [`Running::stop`].
    ///
    /// # Errors
    /// An address in use; whatever keeps the catalog from being opened: a file in use, a replica set that cannot be reached.
    pub async fn start(config: Config) -> Result<Running> {
        let balancer_port = u16::try_from(config.parameters.int("loadBalancerPort")).ok().filter(|port| *port != 0);
        let listener = Listener::bind(&config.net, balancer_port).await?;
        let addresses = listener.addresses();
        let port = addresses.first().map_or(config.net.port, SocketAddr::port);
        let router = Self::open(config, port).await?;
        let serving = tokio::spawn(listener.serve(router.clone()));
        Ok(Running { router, addresses, serving })
    }

    /// Opens the catalog and connects to the shards; does not listen.
    async fn open(config: Config, port: u16) -> Result<Arc<Router>> {
        let identity = Identity {
            hostname: config.net.advertised_host.clone().unwrap_or_else(host_name),
            port,
            process_id: ObjectId::new(),
            started: Instant::now(),
            started_at: bson::DateTime::now(),
        };
        let shards = ShardRegistry::new(ShardSettings::from_config(&config)?);
        if let Some(host) = config.catalog.config_db() {
            shards.set_config(&host)?;
        }
        let shutdown = CancellationToken::new();
        let catalog = Catalog::open(&config, &identity, shards.clone(), shutdown.clone()).await?;
        let minutes = config.parameters.int("localLogicalSessionTimeoutMinutes").max(1) as u64;
        let session_timeout = Duration::from_secs(minutes * 60);
        let stats = Stats::default();
        stats.slow.set_threshold(config.log.slow_op.map_or(-1, |d| d.as_millis() as i64));
        let router = Arc::new(Router {
            parameters: RwLock::new(config.parameters.clone()),
            ops: Arc::new(OpRegistry::default()),
            cursors: CursorRegistry::new(shards.clone()),
            views: ViewCatalog::default(),
            stats: Arc::new(stats),
            sessions: Sessions::new(session_timeout),
            spare_sessions: Arc::default(),
            ddl: Arc::new(ddl::Coordinator::default()),
            clock: ClusterClock::default(),
            failpoints: FailPoints::default(),
            connections: Arc::new(Connections::default()),
            topology: Topology::new(identity.process_id),
            identity,
            config,
            catalog,
            shards,
            shutdown,
        });
        let weak = Arc::downgrade(&router);
        let timeout = move || {
            let ms = weak.upgrade().map_or(i64::MAX, |router| router.parameters.read().int("cursorTimeoutMillis"));
            Duration::from_millis(ms.max(1) as u64)
        };
        tokio::spawn(router.cursors.clone().run_reaper(timeout, router.shutdown.clone()));
        crate::txn::recovery::start(&router);
        crate::session::start(&router);
        ddl::recovery::start(&router);
        sweep::start(&router);
        balancer::note_absence(&router);
        Ok(router)
    }

    /// Where the `admin` database lives: the catalog's replica set, or the shard that was added first.
    pub fn home_of_admin(&self, snapshot: &Snapshot) -> Option<ShardId> {
        match self.config.catalog {
            CatalogConfig::ReplicaSet { .. } => Some(ShardId::from(CONFIG_SHARD)),
            CatalogConfig::Embedded { .. } => oldest_shard(snapshot),
        }
    }

    /// Closes every cursor on the shards, and waits until abandoned operations have ended there.
    async fn settle(&self) {
        self.cursors.kill_where(|_| true);
        self.cursors.killer().settle().await;
        while !self.shards.all_with_config().iter().all(|shard| shard.is_settled()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub fn test_commands(&self) -> bool {
        self.parameters.read().bool("enableTestCommands")
    }
}

impl Running {
    /// Stops serving. First clients are told so (hello fails with ShutdownInProgress) and have
    /// `mongosShutdownTimeoutMillisForSignaledShutdown` to go elsewhere; no longer than there are clients. Then
    /// connections are closed, those with a request under way when it is served, but soon. The router's entry in the
    /// catalog is left to age.
    pub async fn stop(self) {
        let router = &self.router;
        let millis = router.parameters.read().int("mongosShutdownTimeoutMillisForSignaledShutdown");
        let quiet = Duration::from_millis(millis.max(0) as u64);
        router.topology.quiesce(quiet);
        router.connections.wait_until_empty(quiet).await;
        router.shutdown.cancel();
        for op in router.ops.list() {
            op.kill(Cancelled::Shutdown);
        }
        router.connections.close_all(STOP_PATIENCE).await;
        let _ = tokio::time::timeout(SETTLE_PATIENCE, router.settle()).await;
        if let Err(e) = self.serving.await {
            tracing::warn!(error = %e, "the listener ended abnormally");
        }
    }
}

/// The shard that was added first: it stays the same whatever shards come later.
fn oldest_shard(snapshot: &Snapshot) -> Option<ShardId> {
    let age = |shard: &&ShardInfo| (shard.topology_time.time, shard.topology_time.increment, shard.id.clone());
    snapshot.shards.values().map(|shard| &**shard).min_by_key(age).map(|shard| shard.id.clone())
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|s| s.trim().to_owned())
        .ok()
        .filter(|s| !s.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::{RawDocumentBuf, Timestamp};

    #[test]
    fn the_oldest_shard_stays_the_oldest() {
        let mut snapshot = Snapshot::default();
        let mut add = |id: &str, time| {
            let info = ShardInfo {
                id: id.into(),
                host: format!("{id}/h:1"),
                state: 1,
                topology_time: Timestamp { time, increment: 0 },
                tags: None,
                draining: false,
                rest: RawDocumentBuf::new(),
            };
            snapshot.shards.insert(id.into(), Arc::new(info));
            oldest_shard(&snapshot).unwrap()
        };
        assert_eq!(&*add("m", 5), "m");
        assert_eq!(&*add("aaa", 6), "m");
        assert_eq!(&*add("z", 7), "m");
    }
}
