//! `connPoolStats`: the connections to the shards.

use std::collections::BTreeMap;

use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};
use futures_util::future::BoxFuture;

use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::Result;
use crate::shard::{ServerStats, ShardStats};

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("connPoolStats", Access::Cluster, "the connections to the shards' members", conn_pool_stats)
        .aliases(&["connpoolstats"])
        .secondary_ok()];

/// The router's one pool per server, under the name by which tools look for it.
const POOL: &bson::raw::CStr = cstr!("NetworkInterfaceTL-TaskExecutorPool-0");

fn conn_pool_stats<'a>(ctx: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let shards: Vec<ShardStats> = ctx.router.shards.all_with_config().iter().map(|s| s.stats()).collect();
        Ok(Reply::ok(document(&shards)))
    })
}

fn document(shards: &[ShardStats]) -> RawDocumentBuf {
    let servers: BTreeMap<&str, &ServerStats> =
        shards.iter().flat_map(|s| s.servers.iter().map(|m| (&*m.address, m))).collect();
    let sum = |of: fn(&ServerStats) -> usize| servers.values().map(|s| of(s)).sum::<usize>() as i32;
    let (in_use, available) = (sum(|s| s.pool.in_use), sum(|s| s.pool.available));
    let (created, refreshing) = (sum(|s| s.pool.created as usize), sum(|s| s.pool.refreshing));
    let mut pool = rawdoc! {
        "poolInUse": in_use, "poolAvailable": available, "poolCreated": created, "poolRefreshing": refreshing,
    };
    let mut hosts = RawDocumentBuf::new();
    for (address, server) in &servers {
        if let Ok(address) = bson::raw::CString::try_from(*address) {
            pool.append(&address, server.pool_doc());
            hosts.append(&address, server.pool_doc());
        }
    }
    let mut pools = RawDocumentBuf::new();
    pools.append(POOL, pool);
    let mut sets = RawDocumentBuf::new();
    for shard in shards {
        let members = RawArrayBuf::from_iter(shard.servers.iter().map(ServerStats::set_doc));
        if let Ok(name) = bson::raw::CString::try_from(shard.set_name.as_str()) {
            sets.append(&name, rawdoc! { "hosts": members });
        }
    }
    rawdoc! {
        "numClientConnections": 0,
        "numAScopedConnections": 0,
        "totalInUse": in_use,
        "totalAvailable": available,
        "totalCreated": created,
        "totalRefreshing": refreshing,
        "replicaSetMatchingStrategy": "matchPrimaryNode",
        "pools": pools,
        "hosts": hosts,
        "numReplicaSetMonitorsCreated": shards.len() as i32,
        "replicaSets": sets,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_without_shards_has_the_shape_too() {
        let doc = document(&[]);
        for field in ["totalInUse", "pools", "hosts", "replicaSets"] {
            assert!(crate::bsonx::get(&doc, field).is_some(), "{field}");
        }
    }
}
