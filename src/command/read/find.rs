//! `find`.

use std::sync::Arc;

use bson::RawDocument;
use futures_util::future::BoxFuture;

use super::find_args::{FindArgs, shard_find};
use super::merged::{First, is_unreachable, start};
use super::pass::{CursorOptions, empty_result};
use super::route::Place;
use crate::bsonx::{self, Writer, kind};
use crate::catalog::model::{Namespace, ShardId};
use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::merge::{CursorFields, Merger, ReplyWriter};
use crate::shard::Retryable;
use crate::stats::Hosts;
use crate::target::Route;
use crate::wire::OutMsg;

pub fn find<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.namespace()?;
        let args = FindArgs::scan(request.body());
        if args.resume_token {
            return Err(Error::new(
                Code::BadValue,
                "$_requestResumeToken is not supported by a router: a resume token names one server's record",
            ));
        }
        match ctx.place(&ns) {
            Place::Nowhere => Ok(empty_result(ns.as_str())),
            Place::Config => Box::pin(ctx.read_config(request, &ns)).await,
            Place::Unsharded(shard) => {
                if let Some(view) = ctx.beneath(&ns).await?
                    && !args.odd
                {
                    return Box::pin(super::beneath::cursor(ctx, request, &view)).await;
                }
                ctx.router.stats.targeted.find.count(Hosts::Unsharded);
                find_on_one(ctx, request, &ns, &args, &shard).await
            }
            Place::Sharded(coll) => {
                let route = ctx.route(&coll, args.filter, args.collation, &ctx.router.stats.targeted.find)?;
                match route.single() {
                    Some(shard) => find_on_one(ctx, request, &ns, &args, shard).await,
                    // Boxed: the usual find's future stays small.
                    None => Box::pin(find_on_many(ctx, request, &ns, &args, &route)).await,
                }
            }
        }
    })
}

async fn find_on_one(
    ctx: &Ctx,
    request: &Request,
    ns: &Namespace,
    args: &FindArgs<'_>,
    shard: &ShardId,
) -> Result<Reply> {
    let options = CursorOptions { no_timeout: args.no_timeout, await_data: args.await_data };
    match ctx.pass(request, shard, request.read_retry(), options).await {
        Err(error) if args.allow_partial && is_unreachable(&error) => {
            let fields = CursorFields { ns: ns.as_str(), partial: true, ..CursorFields::default() };
            Ok(Reply::raw(ReplyWriter::new(true).finish(fields)))
        }
        other => other,
    }
}

async fn find_on_many(
    ctx: &Ctx,
    request: &Request,
    ns: &Namespace,
    args: &FindArgs<'_>,
    route: &Route,
) -> Result<Reply> {
    if args.odd || args.tailable {
        return ctx.judge(request, route).await;
    }
    let merging = args.merging()?;
    let times = ctx.common_times(request.body(), args.read_concern).await?;
    let msg = OutMsg::new(shard_find(request.body(), args, &merging, times.additions()));
    let requests: Vec<_> = route.shards.iter().map(|shard| (shard.clone(), msg.clone())).collect();
    let pref = request.read_preference()?;
    let firsts = ctx.open_cursors(request, &requests, &pref, args.allow_partial).await?;
    let limit = args.wanted().map(|n| n as u64);
    let merger = Merger::new(requests.len(), merging.order, args.skip as u64, limit).keep_sort_key(merging.keep);
    let cursor = start(merger, firsts, args.allow_partial)?;
    let ns: Arc<str> = ns.as_str().into();
    let first = First {
        ns: &ns,
        count: usize::try_from(args.first_batch()).unwrap_or(usize::MAX),
        batch_size: args.batch_size,
        close: args.single_batch,
        options: CursorOptions { no_timeout: args.no_timeout, await_data: false },
    };
    ctx.first_reply(request, cursor, first).await
}

impl Ctx {
    /// Lets one shard say what is wrong with a command that the router cannot take apart: the command goes there as
    /// it is, but for a last stage that would write, and only an error comes back.
    pub async fn judge(&self, request: &Request, route: &Route) -> Result<Reply> {
        if let Some(shard) = route.shards.first() {
            // An adopted cursor would be the client's; here it is dropped, and thereby killed.
            let msg = match harmless(request.body()) {
                Some(body) => OutMsg::new(body),
                None => OutMsg::new(request.message.body.clone()),
            };
            let reply = self.send(shard, &request.read_preference()?, Retryable::No, &msg).await?;
            let _killed = self.discard(reply)?;
        }
        Err(Error::new(
            Code::CommandNotSupported,
            format!("This {} has an argument that is not supported on several shards", request.spec.name),
        ))
    }

    fn discard(&self, reply: crate::shard::ShardReply) -> Result<Option<crate::cursor::RemoteCursor>> {
        let reply = reply.into_result()?;
        let killer = self.router.cursors.killer().clone();
        let open = super::pass::OpenCursor::read(&reply.body)?;
        Ok(open.map(|o| crate::cursor::RemoteCursor::new(reply.shard, reply.server, o.ns, o.id, killer)))
    }
}

/// The command without the stage that would write; `None` where there is none. Servers refuse such a stage anywhere but
/// at the end of the outermost pipeline.
fn harmless(body: &RawDocument) -> Option<Vec<u8>> {
    let pipeline = bsonx::array(body, "pipeline")?;
    let writes = |stage: &RawDocument| bsonx::first_key(stage.as_bytes()).is_some_and(|k| k == "$out" || k == "$merge");
    let mut stages: Vec<_> = pipeline.into_iter().map_while(std::result::Result::ok).collect();
    stages.pop_if(|last| last.as_document().is_some_and(writes))?;
    let mut out = Writer::copy_without(body.as_bytes(), |key| matches!(key, b"pipeline" | b"writeConcern"));
    out.raw("pipeline", kind::ARRAY, bson::RawArrayBuf::from_iter(stages).as_bytes());
    Some(out.finish())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::{Document, doc, rawdoc};

    #[test]
    fn what_is_judged_does_not_write() {
        for stage in [rawdoc! { "$out": "x" }, rawdoc! { "$merge": { "into": "x" } }] {
            let body = rawdoc! {
                "aggregate": "c", "pipeline": [{ "$limit": 2.5 }, stage], "cursor": {}, "writeConcern": { "w": 1 }, "$db": "d",
            };
            let sent = harmless(&body).unwrap();
            bsonx::check(&sent).unwrap();
            let wanted = doc! { "aggregate": "c", "cursor": {}, "$db": "d", "pipeline": [{ "$limit": 2.5 }] };
            assert_eq!(Document::from_reader(&*sent).unwrap(), wanted);
        }
        assert!(harmless(&rawdoc! { "aggregate": "c", "pipeline": [{ "$limit": 2.5 }], "$db": "d" }).is_none());
        assert!(harmless(&rawdoc! { "find": "c", "$db": "d" }).is_none());
    }
}
