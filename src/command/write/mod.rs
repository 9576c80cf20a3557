//! `insert`, `update`, `delete` and `findAndModify`.
//!
//! What goes to one shard is forwarded as it came, and so is the reply. The rest is a batch: [`plan`] cuts it into
//! commands, [`batch`] sends them, [`join`] makes one reply. Writes of one document that no forwarded command can do
//! are a [`single::Single`]; see there, in [`strategy`] and in [`shard_key_update`].

mod batch;
mod command;
mod durability;
mod effect;
mod envelope;
mod find_and_modify;
mod insert;
mod join;
mod locate;
mod multi;
mod ops;
mod plan;
mod retried;
mod shard_key_update;
mod single;
mod statement;
mod strategy;
mod update;
mod upsert;

use bson::{RawDocument, rawdoc};
use futures_util::future::BoxFuture;

use super::read::stages;
use super::{Access, CommandSpec, Ctx, Reply, Request};
use crate::bsonx::{self, kind};
use crate::catalog::model::{Namespace, ShardId};
use crate::error::{Code, Error, Result};
use crate::shard::{ReadPreference, Retryable};
use crate::stats::Hosts;
use crate::wire::OutMsg;

pub use find_and_modify::FindAndModify;
pub use statement::{Change, Delete, Update};
pub use update::{Target, place_delete, place_update};

pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("insert", Access::Write, "inserts documents", run_insert),
    CommandSpec::new("update", Access::Write, "updates or replaces documents", run_update),
    CommandSpec::new("delete", Access::Write, "deletes documents", run_delete),
    CommandSpec::new("findAndModify", Access::Write, "changes one document and returns it", run_find_and_modify)
        .aliases(&["findandmodify"]),
];

fn run_insert<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = begin(request)?;
        match ctx.snapshot.collection(ns.as_str()) {
            Some(coll) => insert::run(ctx, request, coll).await,
            None => unsharded(ctx, request, &ns).await,
        }
    })
}

fn run_update<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = begin(request)?;
        match ctx.snapshot.collection(ns.as_str()) {
            Some(coll) => update::run(ctx, request, coll, "updates").await,
            None => unsharded(ctx, request, &ns).await,
        }
    })
}

fn run_delete<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = begin(request)?;
        match ctx.snapshot.collection(ns.as_str()) {
            Some(coll) => update::run(ctx, request, coll, "deletes").await,
            None => unsharded(ctx, request, &ns).await,
        }
    })
}

fn run_find_and_modify<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = begin(request)?;
        match ctx.snapshot.collection(ns.as_str()) {
            Some(coll) => find_and_modify::run(ctx, request, coll).await,
            None => unsharded(ctx, request, &ns).await,
        }
    })
}

/// What is the same for all of them.
fn begin(request: &Request) -> Result<Namespace> {
    let ns = request.namespace()?;
    refuse_internal_changes(request)?;
    match ns.db() {
        "local" => Err(Error::new(Code::IllegalOperation, "The database 'local' cannot be written through the router")),
        _ => Ok(ns),
    }
}

/// A change may be a pipeline, in which servers tell each other what clients must not: see [`stages::refuse_internal`].
fn refuse_internal_changes(request: &Request) -> Result<()> {
    let refuse = |holder: &RawDocument, name: &str| {
        // Mostly it is no pipeline, and nothing is decoded.
        match bsonx::find(holder.as_bytes(), name).filter(|change| change.kind == kind::ARRAY) {
            Some(_) => bsonx::array(holder, name).map_or(Ok(()), stages::refuse_internal),
            None => Ok(()),
        }
    };
    match request.spec.name {
        "update" => request.message.documents("updates").flatten().try_for_each(|statement| refuse(statement, "u")),
        "findAndModify" => refuse(request.body(), "update"),
        _ => Ok(()),
    }
}

/// The collection is whole on its database's primary shard, and so is the command.
async fn unsharded(ctx: &Ctx, request: &Request, ns: &Namespace) -> Result<Reply> {
    count_hosts(ctx, request, Hosts::Unsharded);
    if ns.db() == "config" {
        return Box::pin(ctx.write_config(request, ns)).await;
    }
    let shard = ctx.ensure_database(ns.db()).await?;
    forward(ctx, request, &shard).await
}

/// Counts in `shardingStatistics.numHostsTargeted` how widely a write was spread (findAndModify has no counter).
fn count_hosts(ctx: &Ctx, request: &Request, hosts: Hosts) {
    let targeted = &ctx.router.stats.targeted;
    match request.spec.name {
        "insert" => targeted.insert.count(hosts),
        "update" => targeted.update.count(hosts),
        "delete" => targeted.delete.count(hosts),
        _ => {}
    }
}

/// Sends the client's command to one shard as it came and passes the reply on as it is.
async fn forward(ctx: &Ctx, request: &Request, shard: &ShardId) -> Result<Reply> {
    let msg = OutMsg::forward(&request.message);
    if msg.unacknowledged() {
        ctx.router.shards.get(shard)?.send_only(&ctx.op, &msg).await?;
        return Ok(Reply::ok(rawdoc! { "n": 0 }));
    }
    let retry = if request.generic.txn_number.is_some() { Retryable::Write } else { Retryable::No };
    let reply = ctx.send(shard, &ReadPreference::PRIMARY, retry, &msg).await?;
    Ok(Reply::pass(reply))
}
