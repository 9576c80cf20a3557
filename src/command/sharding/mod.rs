//! The sharding commands: shards, databases, collections, chunks.

pub mod index_rules;

mod add_shard;
pub mod balancer;
mod enable_sharding;
mod list_shards;
mod place_chunk;
mod prepare;
pub mod refine;
mod remove_shard;
mod router_config;
pub mod shard_collection;
mod split;
mod strays;

use bson::{RawDocumentBuf, cstr, rawdoc};

use super::{Access, CatalogUse, CommandSpec, Ctx, Reply};
use crate::catalog::model::ShardId;
use crate::error::Result;
use crate::shard::{Retryable, ShardReply};
use crate::wire::OutMsg;

/// The rows of the command table.
pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("addShard", Access::Cluster, "Adds a replica set to the cluster as a shard", |c, r| {
        Box::pin(add_shard::run(c, r))
    })
    .admin()
    .aliases(&["addshard"]),
    CommandSpec::new("listShards", Access::Cluster, "Lists the cluster's shards", |c, r| {
        Box::pin(list_shards::run(c, r))
    })
    .admin()
    .catalog(CatalogUse::Newest)
    .aliases(&["listshards"]),
    CommandSpec::new("enableSharding", Access::Cluster, "Creates a database, if it is new, on a shard", |c, r| {
        Box::pin(enable_sharding::run(c, r))
    })
    .admin()
    .catalog(CatalogUse::Newest)
    .aliases(&["enablesharding"]),
    CommandSpec::new("shardCollection", Access::Cluster, "Distributes a collection by a shard key", |c, r| {
        Box::pin(shard_collection::run(c, r))
    })
    .admin()
    .aliases(&["shardcollection"]),
    CommandSpec::new("split", Access::Cluster, "Splits a chunk", |c, r| Box::pin(split::run(c, r))).admin(),
    CommandSpec::new("mergeChunks", Access::Cluster, "Merges adjacent chunks of one shard", |c, r| {
        Box::pin(split::merge(c, r))
    })
    .admin(),
    CommandSpec::new("refineCollectionShardKey", Access::Cluster, "Adds fields to the end of a shard key", |c, r| {
        Box::pin(refine::run(c, r))
    })
    .admin(),
    CommandSpec::new("flushRouterConfig", Access::Cluster, "Loads the routing catalog anew", |c, r| {
        Box::pin(router_config::flush(c, r))
    })
    .admin()
    .aliases(&["flushrouterconfig"]),
    CommandSpec::new("getShardVersion", Access::Cluster, "Shows the version of a collection's routing", |c, r| {
        Box::pin(router_config::shard_version(c, r))
    })
    .admin(),
    CommandSpec::new("getShardMap", Access::Cluster, "Shows the shards' and members' addresses", |c, r| {
        Box::pin(router_config::shard_map(c, r))
    })
    .admin()
    .catalog(CatalogUse::Newest),
    CommandSpec::new("balancerStatus", Access::Cluster, "Shows whether the balancer runs", |c, r| {
        Box::pin(balancer::status(c, r))
    })
    .admin()
    .catalog(CatalogUse::Newest),
    CommandSpec::new("balancerStop", Access::Cluster, "Stops the balancer", |c, r| Box::pin(balancer::stop(c, r)))
        .admin(),
    CommandSpec::new("balancerStart", Access::Cluster, "Starts the balancer", |c, r| Box::pin(balancer::start(c, r)))
        .admin(),
    CommandSpec::new("_mosaicPlaceChunk", Access::Cluster, "Assigns an empty chunk to a shard (tests only)", |c, r| {
        Box::pin(place_chunk::run(c, r))
    })
    .admin(),
    CommandSpec::new("removeShard", Access::Cluster, "Drains and removes a shard", |c, r| {
        Box::pin(remove_shard::run(c, r))
    })
    .admin()
    .aliases(&["removeshard"]),
];

impl Ctx {
    /// Runs a command of the router's own on the primary of `shard`; an `ok: 0` reply is an error, and so is a write that
    /// is not known to a majority.
    pub async fn run_on_shard(
        &self,
        shard: &ShardId,
        db: &str,
        mut command: RawDocumentBuf,
        retry: Retryable,
    ) -> Result<ShardReply> {
        command.append(cstr!("$db"), db);
        let reply = self.send_primary(shard, retry, &OutMsg::from_doc(command)).await?;
        super::ddl::job::reached_majority(shard, &reply)?;
        Ok(reply)
    }
}

/// A failure as mongos tells it for some commands: without a code.
fn plain_failure(message: String) -> Reply {
    Reply::doc(rawdoc! { "ok": 0.0, "errmsg": message })
}

/// `{w: "majority"}`, for what has to be there before the catalog says so.
fn majority() -> RawDocumentBuf {
    rawdoc! { "w": "majority", "wtimeout": 60_000 }
}
