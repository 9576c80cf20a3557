//! `serverStatus`: what monitoring tools read. `process` is "mongos": tools tell a router by it.

use std::sync::atomic::Ordering;

use bson::{Bson, DateTime, Document, doc};
use futures_util::future::BoxFuture;

use super::proc::Usage;
use super::{reply, rw_concern};
use crate::SERVER_VERSION;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::Result;
use crate::router::Router;
use crate::stats::{Latency, OpKind, TargetCounters};

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("serverStatus", Access::Cluster, "counters and state of this router", server_status)
        .aliases(&["serverstatus"])
        .secondary_ok()];

fn server_status<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let mut status = head(&ctx.router);
        let options = Document::try_from(request.body())?;
        for (name, section) in SECTIONS {
            // `{section: 0}` leaves it out; a document or 1 asks for details.
            let asked = options.get(*name);
            if asked.is_some_and(is_off) || (asked.is_none() && options.get("none").is_some_and(|v| !is_off(v))) {
                continue;
            }
            status.insert(*name, section(ctx, asked)?);
        }
        reply(&status)
    })
}

fn is_off(value: &Bson) -> bool {
    matches!(value, Bson::Boolean(false) | Bson::Int32(0) | Bson::Int64(0) | Bson::Null)
        || matches!(value, Bson::Double(d) if *d == 0.0)
}

fn head(router: &Router) -> Document {
    let uptime = router.identity.started.elapsed();
    doc! {
        "host": router.identity.name(),
        "version": SERVER_VERSION,
        "process": "mongos",
        "mosaicVersion": env!("CARGO_PKG_VERSION"),
        "pid": i64::from(std::process::id()),
        "uptime": uptime.as_secs() as f64,
        "uptimeMillis": uptime.as_millis() as i64,
        "uptimeEstimate": uptime.as_secs() as i64,
        "localTime": DateTime::now(),
    }
}

/// Builds one section; the second argument is what the command said about it.
type Section = fn(&Ctx, Option<&Bson>) -> Result<Bson>;

const SECTIONS: &[(&str, Section)] = &[
    ("asserts", asserts),
    ("connections", connections),
    ("defaultRWConcern", |ctx, _| Ok(rw_concern::in_effect(&ctx.snapshot)?.into())),
    ("extra_info", extra_info),
    ("hedgingMetrics", hedging),
    ("logicalSessionRecordCache", sessions),
    ("network", network),
    ("opLatencies", latencies),
    ("opcounters", opcounters),
    ("sharding", sharding),
    ("shardingStatistics", sharding_statistics),
    ("transactions", transactions),
    ("mem", memory),
    ("metrics", metrics),
];

fn asserts(ctx: &Ctx, _: Option<&Bson>) -> Result<Bson> {
    let user = ctx.router.stats.failed.get() as i64;
    Ok(doc! { "regular": 0, "warning": 0, "msg": 0, "user": user, "tripwire": 0, "rollovers": 0 }.into())
}

fn connections(ctx: &Ctx, _: Option<&Bson>) -> Result<Bson> {
    let c = &ctx.router.stats.connections;
    let current = c.current.load(Ordering::Relaxed);
    let most = ctx.router.config.net.max_incoming_connections as i64;
    Ok(doc! {
        "current": current,
        "available": (most - current).max(0),
        "totalCreated": c.total_created.load(Ordering::Relaxed) as i64,
        "rejected": c.rejected.load(Ordering::Relaxed) as i64,
        "active": ctx.router.ops.len() as i64,
        "threaded": 0,
        "exhaustIsMaster": 0,
        "exhaustHello": c.exhaust_hello.load(Ordering::Relaxed),
        "awaitingTopologyChanges": c.awaiting_topology.load(Ordering::Relaxed),
    }
    .into())
}

fn extra_info(_: &Ctx, _: Option<&Bson>) -> Result<Bson> {
    let usage = Usage::now();
    Ok(doc! {
        "note": "fields vary by platform",
        "user_time_us": usage.user_micros,
        "system_time_us": usage.system_micros,
        "maximum_resident_set_kb": usage.peak_resident_kb,
        "page_reclaims": usage.minor_faults,
        "page_faults": usage.major_faults,
        "voluntary_context_switches": usage.voluntary_switches,
        "involuntary_context_switches": usage.involuntary_switches,
        "threads": usage.threads,
    }
    .into())
}

fn hedging(_: &Ctx, _: Option<&Bson>) -> Result<Bson> {
    Ok(doc! {
        "numTotalOperations": 0,
        "numTotalHedgedOperations": 0,
        "numAdvantageouslyHedgedOperations": 0,
    }
    .into())
}

fn sessions(ctx: &Ctx, _: Option<&Bson>) -> Result<Bson> {
    Ok(doc! { "activeSessionsCount": ctx.router.sessions.len() as i64 }.into())
}

fn network(ctx: &Ctx, _: Option<&Bson>) -> Result<Bson> {
    let n = &ctx.router.stats.network;
    Ok(doc! {
        "bytesIn": n.bytes_in.get() as i64,
        "bytesOut": n.bytes_out.get() as i64,
        "physicalBytesIn": n.physical_in.get() as i64,
        "physicalBytesOut": n.physical_out.get() as i64,
        "numRequests": n.requests.get() as i64,
    }
    .into())
}

fn latencies(ctx: &Ctx, asked: Option<&Bson>) -> Result<Bson> {
    let details = asked.and_then(Bson::as_document).and_then(|d| d.get("histograms")).is_some_and(|v| !is_off(v));
    let one = |latency: &Latency| {
        let mut doc = Document::new();
        if details {
            let buckets: Vec<Document> = latency
                .histogram
                .buckets()
                .map(|(micros, count)| doc! { "micros": micros as i64, "count": count as i64 })
                .collect();
            doc.insert("histogram", buckets);
        }
        doc.insert("latency", latency.micros.get() as i64);
        doc.insert("ops", latency.operations.get() as i64);
        doc
    };
    let l = &ctx.router.stats.latencies;
    Ok(doc! { "reads": one(&l.reads), "writes": one(&l.writes), "commands": one(&l.commands) }.into())
}

fn opcounters(ctx: &Ctx, _: Option<&Bson>) -> Result<Bson> {
    let counters = &ctx.router.stats.operations;
    let counts: Document =
        OpKind::ALL.iter().map(|kind| (kind.as_str().to_owned(), Bson::Int64(counters.get(*kind) as i64))).collect();
    Ok(counts.into())
}

fn sharding(ctx: &Ctx, _: Option<&Bson>) -> Result<Bson> {
    Ok(doc! {
        "configsvrConnectionString": ctx.router.config.catalog.config_db().unwrap_or_else(|| "embedded".to_owned()),
        "lastSeenConfigServerOpTime": { "ts": ctx.router.clock.newest(), "t": -1_i64 },
        "maxChunkSizeInBytes": ctx.snapshot.chunk_size_mb() * 1024 * 1024,
    }
    .into())
}

fn sharding_statistics(ctx: &Ctx, _: Option<&Bson>) -> Result<Bson> {
    let one = |c: &TargetCounters| {
        doc! {
            "allShards": c.all_shards.get() as i64,
            "manyShards": c.many_shards.get() as i64,
            "oneShard": c.one_shard.get() as i64,
            "unsharded": c.unsharded.get() as i64,
        }
    };
    let t = &ctx.router.stats.targeted;
    Ok(doc! {
        "numHostsTargeted": {
            "find": one(&t.find),
            "insert": one(&t.insert),
            "update": one(&t.update),
            "delete": one(&t.delete),
            "aggregate": one(&t.aggregate),
        },
        "catalogCache": {
            "numDatabaseEntries": ctx.snapshot.databases.len() as i64,
            "numCollectionEntries": ctx.snapshot.collections.len() as i64,
            // Shards do not reject a stale router here, so there are no such errors.
            "countStaleConfigErrors": 0_i64,
        },
        "catalogVersion": ctx.snapshot.version as i64,
    }
    .into())
}

fn transactions(ctx: &Ctx, _: Option<&Bson>) -> Result<Bson> {
    Ok(ctx.router.stats.transactions.to_doc().into())
}

fn memory(_: &Ctx, _: Option<&Bson>) -> Result<Bson> {
    let usage = Usage::now();
    Ok(doc! {
        "bits": 64,
        "resident": (usage.resident_kb / 1024) as i32,
        "virtual": (usage.virtual_kb / 1024) as i32,
        "supported": true,
    }
    .into())
}

fn metrics(ctx: &Ctx, _: Option<&Bson>) -> Result<Bson> {
    let stats = &ctx.router.stats;
    let mut commands = doc! { "<UNKNOWN>": stats.unknown_commands() as i64 };
    for (name, total, failed) in stats.command_counts() {
        commands.insert(name, doc! { "failed": failed as i64, "total": total as i64 });
    }
    Ok(doc! { "commands": commands, "cursor": cursors(&ctx.router) }.into())
}

fn cursors(router: &Router) -> Document {
    let c = router.cursors.stats();
    let lifespan: Document = c.lifespans.iter().map(|(name, n)| ((*name).to_owned(), Bson::Int64(*n as i64))).collect();
    doc! {
        "moreThanOneBatch": c.more_than_one_batch as i64,
        "timedOut": c.timed_out as i64,
        "totalOpened": c.total_opened as i64,
        "lifespan": lifespan,
        "open": {
            "noTimeout": c.no_timeout as i64,
            "pinned": c.pinned as i64,
            "singleTarget": c.single_target as i64,
            "multiTarget": c.multi_target as i64,
            "total": c.open as i64,
        },
    }
}
