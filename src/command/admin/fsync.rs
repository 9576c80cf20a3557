//! `fsync` and `fsyncUnlock` on every shard's primary. With `lock: true` the shards take no writes until they are
//! unlocked: for backups of the shards' files. The catalog's replica set is not locked, so that the router goes on.

use bson::{RawDocumentBuf, cstr, rawdoc};
use futures_util::future::BoxFuture;

use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::command::ddl::raw::{self, Names};
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::scatter::ShardOutcome;
use crate::shard::Retryable;
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("fsync", Access::Cluster, "writes all shards' data to disk; lock: true stops writes", fsync)
        .admin(),
    CommandSpec::new("fsyncUnlock", Access::Cluster, "lets all shards write again after fsync with lock", unlock)
        .admin(),
];

fn fsync<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let lock = request.bool_arg("lock")? == Some(true);
        let outcomes = everywhere(ctx, request.message.body.clone()).await?;
        let mut reply = RawDocumentBuf::new();
        reply.append(cstr!("numFiles"), 1);
        reply.append(cstr!("all"), raw::raw_field(&outcomes, &ctx.snapshot, Names::Shard));
        let Some(error) = raw::first_error(&outcomes, &[]) else { return Ok(Reply::ok(reply)) };
        if lock {
            unlock_again(ctx, &outcomes).await;
        }
        Err(error.with_extra(reply))
    })
}

fn unlock<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let outcomes = everywhere(ctx, request.message.body.clone()).await?;
        let mut reply = RawDocumentBuf::new();
        let locks = |outcome: &ShardOutcome| bsonx::int(&raw::reply_of(outcome), "lockCount");
        reply.append(cstr!("lockCount"), outcomes.iter().filter_map(locks).max().unwrap_or(0));
        reply.append(cstr!("all"), raw::raw_field(&outcomes, &ctx.snapshot, Names::Shard));
        match raw::first_error(&outcomes, &[]) {
            None => Ok(Reply::ok(reply)),
            // A server's own error ("not locked") has no code.
            Some(error) if error.is(Code::UnknownError) => {
                Err(Error::new(Code::IllegalOperation, error.message().to_owned()).with_extra(reply))
            }
            Some(error) => Err(error.with_extra(reply)),
        }
    })
}

async fn everywhere(ctx: &Ctx, body: bytes::Bytes) -> Result<Vec<ShardOutcome>> {
    let shards: Vec<ShardId> = ctx.snapshot.shards.keys().cloned().collect();
    if shards.is_empty() {
        return Err(Error::new(Code::ShardNotFound, "No shards found"));
    }
    Ok(ctx.broadcast(&shards, Retryable::No, &OutMsg::new(body)).await)
}

/// A lock that not every shard took is no lock: those that did are let go.
async fn unlock_again(ctx: &Ctx, outcomes: &[ShardOutcome]) {
    let locked: Vec<ShardId> =
        outcomes.iter().filter(|o| raw::error_of(o).is_none()).map(|(shard, _)| shard.clone()).collect();
    let msg = OutMsg::from_doc(rawdoc! { "fsyncUnlock": 1, "$db": "admin" });
    for (shard, outcome) in ctx.broadcast(&locked, Retryable::No, &msg).await {
        if let Err(error) = outcome.and_then(crate::shard::ShardReply::into_result) {
            tracing::warn!(shard = &*shard, %error, "a shard stays locked against writes; run fsyncUnlock on it");
        }
    }
}
