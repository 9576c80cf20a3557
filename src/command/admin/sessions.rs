//! Logical sessions: starting, refreshing, ending, killing. Shards keep sessions themselves, so they are told.

use std::collections::HashSet;

use bson::{RawBsonRef, RawDocument, rawdoc};
use futures_util::future::{BoxFuture, join_all};

use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::op::{Cancelled, OpContext};
use crate::session::SessionId;
use crate::shard::{ReadPreference, Retryable};
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("startSession", Access::Authenticated, "starts a logical session", start).secondary_ok(),
    CommandSpec::new("refreshSessions", Access::Authenticated, "keeps sessions alive", refresh)
        .secondary_ok()
        .fields(&[]),
    CommandSpec::new("endSessions", Access::Open, "ends sessions that are no longer needed", end)
        .secondary_ok()
        .fields(&[]),
    CommandSpec::new("killSessions", Access::Authenticated, "stops everything that runs in sessions", kill)
        .secondary_ok(),
    CommandSpec::new("killAllSessions", Access::Cluster, "stops everything that runs in users' sessions", kill_all)
        .secondary_ok(),
    CommandSpec::new(
        "killAllSessionsByPattern",
        Access::Cluster,
        "stops everything that runs in sessions that match",
        kill_by_pattern,
    )
    .secondary_ok(),
];

/// The most sessions one command may name.
const MOST: usize = 10_000;
/// How long shards may take to be told that sessions ended.
const END_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

fn start<'a>(ctx: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let id = SessionId::random();
        ctx.router.sessions.touch(id)?;
        let minutes = (ctx.router.sessions.timeout().as_secs() / 60) as i32;
        Ok(Reply::ok(rawdoc! { "id": id.to_doc(), "timeoutMinutes": minutes }))
    })
}

/// The documents of the command's own array.
fn listed(request: &Request) -> Result<Vec<&RawDocument>> {
    let name = request.spec.name;
    let wrong = |kind: &str, expected: &str| {
        Error::new(
            Code::TypeMismatch,
            format!("BSON field '{name}.{name}' is the wrong type '{kind}', expected type '{expected}'"),
        )
    };
    let RawBsonRef::Array(list) = request.argument()? else {
        return Err(wrong(bsonx::type_name(request.argument()?.element_type()), "array"));
    };
    let mut docs = Vec::new();
    for item in list {
        let item = item?;
        docs.push(item.as_document().ok_or_else(|| wrong(bsonx::type_name(item.element_type()), "object"))?);
    }
    if docs.len() > MOST {
        return Err(Error::with_code(13_111, format!("{name} takes at most {MOST} sessions at one time")));
    }
    Ok(docs)
}

fn session_ids(request: &Request) -> Result<HashSet<SessionId>> {
    listed(request)?.into_iter().map(SessionId::parse).collect()
}

fn all_shards(ctx: &Ctx) -> Vec<ShardId> {
    ctx.snapshot.shards.keys().cloned().collect()
}

fn refresh<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        for id in session_ids(request)? {
            ctx.router.sessions.touch(id)?;
        }
        tell_later(ctx, request);
        Ok(Reply::empty_ok())
    })
}

fn end<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        for id in session_ids(request)? {
            ctx.router.sessions.forget(&id);
            ctx.router.cursors.kill_session(id);
        }
        tell_later(ctx, request);
        Ok(Reply::empty_ok())
    })
}

/// The command for shards: the client's, without what belongs to its own session.
fn for_shards(request: &Request) -> OutMsg {
    const OWN: &[&[u8]] = &[b"lsid", b"txnNumber", b"$clusterTime", b"$readPreference", b"$db"];
    let mut body = bsonx::Writer::copy_without(request.body().as_bytes(), |key| OWN.contains(&key));
    body.str("$db", "admin");
    OutMsg::new(body.finish())
}

/// Tells all shards without waiting: clients end sessions when they are about to leave.
fn tell_later(ctx: &Ctx, request: &Request) {
    let (router, shards, msg) = (ctx.router.clone(), all_shards(ctx), for_shards(request));
    let name = request.spec.name;
    tokio::spawn(async move {
        // At once: a shard that is away takes nothing from the others' time.
        let tell = |id: ShardId| {
            let (router, msg) = (&router, &msg);
            async move {
                let Ok(shard) = router.shards.get(&id) else { return };
                let op = OpContext::background(name).with_limit(END_LIMIT);
                if let Err(error) = shard.run(&op, &ReadPreference::PRIMARY, Retryable::Read, msg).await {
                    tracing::debug!(shard = &*id, %error, name, "a shard was not told");
                }
            }
        };
        join_all(shards.into_iter().map(tell)).await;
    });
}

fn kill<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ids = session_ids(request)?;
        // An empty list means all sessions of the user; without users that is all.
        kill_where(ctx, |id| ids.is_empty() || ids.contains(&id));
        tell(ctx, request).await
    })
}

fn kill_all<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        // Sessions here belong to no user, so only the empty list means any of them.
        if listed(request)?.is_empty() {
            kill_where(ctx, |_| true);
        }
        tell(ctx, request).await
    })
}

fn kill_by_pattern<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let mut ids = HashSet::new();
        let mut any = false;
        for pattern in listed(request)? {
            match bsonx::doc(pattern, "lsid") {
                Some(lsid) => drop(ids.insert(SessionId::parse(lsid)?)),
                None => any |= pattern.is_empty(),
            }
        }
        any |= listed(request)?.is_empty();
        kill_where(ctx, |id| any || ids.contains(&id));
        tell(ctx, request).await
    })
}

/// Stops this router's operations and closes its cursors of the sessions, but not the one that asks.
fn kill_where(ctx: &Ctx, which: impl Fn(SessionId) -> bool) {
    for op in ctx.router.ops.list() {
        if op.id != ctx.op.id() && SessionId::of_command(bsonx::view(&op.body)).is_some_and(&which) {
            op.kill(Cancelled::Interrupted);
        }
    }
    ctx.router.cursors.kill_where(|facts| facts.session.is_some_and(&which));
}

async fn tell(ctx: &Ctx, request: &Request) -> Result<Reply> {
    for (_, outcome) in ctx.broadcast(&all_shards(ctx), Retryable::Read, &for_shards(request)).await {
        outcome?.into_result()?;
    }
    Ok(Reply::empty_ok())
}
