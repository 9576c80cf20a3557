//! `convertToCapped` and `cloneCollectionAsCapped`: on unsharded collections only.

use bson::{Document, RawDocumentBuf, doc};
use futures_util::future::BoxFuture;

use super::forward;
use super::job::{self, Driven, Job, undone};
use crate::catalog::model::{Namespace, ShardId};
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("convertToCapped", Access::DbAdmin, "makes an unsharded collection capped", convert),
    CommandSpec::new(
        "cloneCollectionAsCapped",
        Access::DbAdmin,
        "copies an unsharded collection to a capped one",
        clone,
    ),
];

fn convert<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.namespace()?;
        start(ctx, request, &[ns]).await
    })
}

fn clone<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.namespace()?;
        let Some(to) = request.str_arg("toCollection")? else {
            return Err(Error::new(Code::InvalidNamespace, "cloneCollectionAsCapped needs 'toCollection'"));
        };
        let to = Namespace::new(ns.db(), to)?;
        start(ctx, request, &[ns, to]).await
    })
}

/// Under an intent, so that nobody shards the collection meanwhile.
async fn start(ctx: &Ctx, request: &Request, names: &[Namespace]) -> Result<Reply> {
    let db = request.db();
    forward::check_writable(db, request.spec.name)?;
    let Some(primary) = ctx.primary_shard(db) else {
        return Err(Error::new(
            Code::NamespaceNotFound,
            format!("source collection {} does not exist", names.first().map_or(db, Namespace::as_str)),
        ));
    };
    let command = forward::on_own_behalf(request, &[], &RawDocumentBuf::new())?;
    let args = doc! { "command": Document::try_from(&*command)?, "shard": &*primary };
    let names = names.iter().map(|n| n.as_str().to_owned()).collect();
    job::run(ctx, request.spec.name, names, args, drive).await
}

/// One command on one shard: nothing is ever left to finish.
pub fn drive(job: &mut Job) -> BoxFuture<'_, Driven> {
    Box::pin(async move {
        let args = job.intent.args();
        job.refresh();
        for name in &job.intent.names {
            if job.ctx.snapshot.collection(name).is_some() {
                let text = format!("You can't {} a sharded collection ({name})", job.intent.op());
                return Err(undone(Error::new(Code::IllegalOperation, text)));
            }
        }
        let command = args.get_document("command").ok().and_then(|d| RawDocumentBuf::try_from(d).ok());
        let (Some(command), Ok(shard)) = (command, args.get_str("shard")) else {
            return Err(undone(Error::internal("an intent lacks its command")));
        };
        if job.resumed {
            // It was given to the shard, which has done it or not.
            return Ok(Reply::empty_ok());
        }
        job.intent.advance("given", None).await.map_err(undone)?;
        let (shard, msg) = (ShardId::from(shard), OutMsg::from_doc(command));
        // A copy that was made cannot be told from one in the way: where the reply is lost, the client is told so.
        let reply = match job.intent.op() == "convertToCapped" {
            true => job.send(&shard, &msg).await,
            false => job.send_once(&shard, &msg).await,
        };
        Ok(Reply::raw(reply.map_err(undone)?.body))
    })
}
