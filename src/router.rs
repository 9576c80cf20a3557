//! The assembled router: everything one process shares between its connections.

pub mod clock;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bson::RawDocumentBuf;
use bson::oid::ObjectId;

use crate::catalog::Catalog;
use crate::catalog::model::ShardId;
use crate::catalog::snapshot::Snapshot;
use crate::command::FailPoints;
use crate::cursor::CursorRegistry;
use crate::error::Result;
use crate::op::OpRegistry;
use crate::shard::ShardRegistry;
use crate::stats::Stats;

use clock::ClusterClock;

/// The name under which the catalog's replica set stands among the shards.
pub const CONFIG_SHARD: &str = "config";

/// Where the catalog is kept.
#[derive(Clone, Debug)]
pub enum CatalogLocation {
    /// One redb file, one router.
    Embedded(PathBuf),
    /// `set/host:port,…` of a replica set that several routers share.
    ReplicaSet(String),
}

/// Settings of one router, after the command line and the file were merged.
#[derive(Clone, Debug)]
pub struct RouterOptions {
    /// Addresses to listen on; port 0 picks a free one.
    pub listen: Vec<SocketAddr>,
    pub catalog: CatalogLocation,
    /// The keyFile's content without white space; authenticates this router to shards.
    pub key: Option<Arc<str>>,
    /// `enableTestCommands`.
    pub test_commands: bool,
    pub max_incoming_connections: usize,
    /// Compressors offered to clients, in the router's order.
    pub compressors: Vec<String>,
    /// The command line, for `getCmdLineOpts`.
    pub argv: Vec<String>,
    /// The parsed settings as mongos reports them, for `getCmdLineOpts`.
    pub parsed: RawDocumentBuf,
    pub shard: crate::shard::ShardOptions,
    /// Idle cursors die after this many milliseconds (`cursorTimeoutMillis`).
    pub cursor_timeout_ms: u64,
}

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

pub struct Router {
    pub options: RouterOptions,
    pub identity: Identity,
    pub catalog: Arc<Catalog>,
    pub shards: Arc<ShardRegistry>,
    pub ops: Arc<OpRegistry>,
    pub cursors: Arc<CursorRegistry>,
    pub stats: Arc<Stats>,
    pub clock: ClusterClock,
    pub failpoints: FailPoints,
}

impl Router {
    /// Opens the catalog and connects to its shards; does not listen yet.
    ///
    /// # Errors
    /// Whatever keeps the catalog from being opened: a file in use, a replica set that cannot be reached.
    pub async fn open(options: RouterOptions, identity: Identity) -> Result<Arc<Router>> {
        let shards = ShardRegistry::new(options.shard.clone(), options.key.clone());
        let stats = Arc::new(Stats::default());
        let catalog = Catalog::open(&options.catalog, shards.clone(), &identity).await?;
        shards.sync(&catalog.snapshot());
        Ok(Arc::new(Router {
            cursors: CursorRegistry::new(options.cursor_timeout_ms),
            ops: Arc::new(OpRegistry::default()),
            clock: ClusterClock::default(),
            failpoints: FailPoints::default(),
            options,
            identity,
            catalog,
            shards,
            stats,
        }))
    }

    /// `host:port`, as `serverStatus` and `config.mongos` name this router.
    pub fn name(&self) -> String {
        format!("{}:{}", self.identity.hostname, self.identity.port)
    }

    /// Where the `admin` database lives: the catalog's replica set, or the first shard by name.
    pub fn home_of_admin(&self, snapshot: &Snapshot) -> Option<ShardId> {
        match self.options.catalog {
            CatalogLocation::ReplicaSet(_) => Some(ShardId::from(CONFIG_SHARD)),
            CatalogLocation::Embedded(_) => snapshot.shards.keys().next().cloned(),
        }
    }
}
