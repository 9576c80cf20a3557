//! `drop`.
//!
//! A sharded collection goes in this order: every shard is asked whether it is there; the gate closes; the catalog
//! forgets the collection; the primary shard drops its part (from then on the name is free), then all others do. Each
//! shard drops by uuid, so finishing late never touches a collection made anew under the name.

use bson::{Bson, Document, RawDocumentBuf, Uuid, doc, rawdoc};
use futures_util::future::BoxFuture;

use super::forward::check_writable;
use super::job::{self, Driven, Failed, Job, is_transient, pending, undone};
use crate::catalog::model::{Namespace, ShardId, uuid_bson};
use crate::catalog::snapshot::CollectionRouting;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("drop", Access::DbAdmin, "drops a collection, with its indexes, chunks and zones", drop)];

/// `CollectionUUIDMismatch`: the collection of that uuid is not there (any more).
pub const UUID_MISMATCH: i32 = 361;

fn drop<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.namespace()?;
        check_writable(ns.db(), "dropping a collection")?;
        if ctx.primary_shard(ns.db()).is_none() {
            return Ok(Reply::empty_ok());
        }
        let mut args = doc! { "ns": ns.as_str() };
        if let Some(uuid) = request.get("collectionUUID") {
            args.insert("onlyUuid", Bson::try_from(uuid)?);
        }
        job::run(ctx, "drop", vec![ns.as_str().to_owned()], args, drive).await
    })
}

pub fn drive(job: &mut Job) -> BoxFuture<'_, Driven> {
    Box::pin(async move {
        let args = job.intent.args();
        let ns = Namespace::parse(args.get_str("ns").unwrap_or_default()).map_err(undone)?;
        job.refresh();
        let routing = job.ctx.snapshot.collection(ns.as_str()).cloned();
        match (job.intent.step().as_str(), routing) {
            ("", None) => unsharded(job, &ns, &args).await,
            ("", Some(routing)) => {
                if let Some(wanted) = args.get("onlyUuid") {
                    check_uuid(&ns, &routing, wanted).map_err(undone)?;
                }
                sharded(job, &ns, &routing).await
            }
            // A router died before the catalog forgot the collection: nothing happened.
            (_, Some(routing)) if args.get("uuid") == Some(&uuid_value(routing.uuid)) => Err(Failed::Undone(
                Error::new(Code::InterruptedAtShutdown, format!("dropping {ns} was interrupted")).from_router(),
            )),
            _ => data(job, &ns, &args).await,
        }
    })
}

fn uuid_value(uuid: Uuid) -> Bson {
    Bson::Binary(bson::Binary::from_uuid(uuid))
}

fn check_uuid(ns: &Namespace, routing: &CollectionRouting, wanted: &Bson) -> Result<()> {
    if *wanted == uuid_value(routing.uuid) {
        return Ok(());
    }
    let extra = doc! {
        "db": ns.db(), "collectionUUID": wanted.clone(), "expectedCollection": ns.coll(), "actualCollection": Bson::Null,
    };
    Err(Error::with_code(UUID_MISMATCH, "Collection UUID does not match that specified")
        .with_extra(RawDocumentBuf::try_from(&extra)?))
}

/// One command to the primary shard; it is atomic there.
async fn unsharded(job: &mut Job, ns: &Namespace, args: &Document) -> Driven {
    let Some(primary) = job.ctx.primary_shard(ns.db()) else { return Ok(Reply::empty_ok()) };
    let mut command = doc! { "drop": ns.coll() };
    if let Some(uuid) = args.get("onlyUuid") {
        command.insert("collectionUUID", uuid.clone());
    }
    command.insert("writeConcern", doc! { "w": "majority", "wtimeout": 60_000 });
    command.insert("$db", ns.db());
    let msg = OutMsg::from_doc(RawDocumentBuf::try_from(&command).map_err(|e| undone(e.into()))?);
    let mut reply = RawDocumentBuf::new();
    match job.send(&primary, &msg).await {
        Ok(answer) => {
            for (key, value) in super::raw::stripped(answer.doc()).iter().flatten() {
                if key.as_str() != "ok" {
                    reply.append(key, value);
                }
            }
        }
        Err(error) if error.is(Code::NamespaceNotFound) => {}
        Err(error) => return Err(undone(error)),
    }
    job.ctx.router.views.forget(ns.db());
    // Zones may be defined for collections that are not sharded yet.
    job.ctx.router.catalog.drop_collection(ns).await.map_err(undone)?;
    Ok(Reply::ok(reply))
}

async fn sharded(job: &mut Job, ns: &Namespace, routing: &CollectionRouting) -> Driven {
    let router = job.ctx.router.clone();
    job.ping(&job.all_shards()).await.map_err(|e| undone(e.context(format!("{ns} was not dropped"))))?;
    let closed = router.ddl.gate.close(&[ns.as_str().to_owned()]);
    closed.drain(&router.ops, 0).await.map_err(undone)?;
    router.catalog.log_change("dropCollection.start", ns.as_str(), rawdoc! {}).await;
    let primary = job.ctx.primary_shard(ns.db());
    let args = doc! {
        "ns": ns.as_str(),
        "uuid": uuid_value(routing.uuid),
        "primary": primary.as_deref(),
    };
    job.intent.advance("dropping", Some(args.clone())).await.map_err(undone)?;
    router.catalog.drop_collection(ns).await.map_err(pending)?;
    job.refresh();
    router.failpoints.crash_point("ddl.committed");
    router.catalog.settle().await;
    data(job, ns, &args).await
}

/// Drops the collection of this uuid wherever it is, on the primary shard first.
async fn data(job: &mut Job, ns: &Namespace, args: &Document) -> Driven {
    let uuid = args.get("uuid").and_then(|u| match u {
        Bson::Binary(b) => b.to_uuid().ok(),
        _ => None,
    });
    let Some(uuid) = uuid else {
        return Err(undone(Error::internal(format!("the intent to drop {ns} has no uuid"))));
    };
    let primary: Option<ShardId> = args.get_str("primary").ok().map(ShardId::from);
    let mut shards = job.all_shards();
    shards.sort_by_key(|shard| Some(shard) != primary.as_ref());
    let split = usize::from(shards.first().is_some_and(|first| Some(first) == primary.as_ref()));
    for group in [&shards[..split], &shards[split..]] {
        drop_by_uuid(job, ns, uuid, group).await.map_err(pending)?;
    }
    job.ctx.router.catalog.log_change("dropCollection", ns.as_str(), rawdoc! {}).await;
    Ok(Reply::empty_ok())
}

/// Drops the collection with this name and uuid on the shards; where it is not there nothing happens.
pub async fn drop_by_uuid(job: &Job, ns: &Namespace, uuid: Uuid, shards: &[ShardId]) -> Result<()> {
    let mut command = rawdoc! { "drop": ns.coll(), "collectionUUID": uuid_bson(uuid) };
    command.append(bson::cstr!("writeConcern"), rawdoc! { "w": "majority", "wtimeout": 60_000 });
    command.append(bson::cstr!("$db"), ns.db());
    let msg = OutMsg::from_doc(command);
    let requests: Vec<_> = shards.iter().map(|s| (s.clone(), msg.clone())).collect();
    let mut failure = None;
    for (shard, outcome) in job.send_all(&requests).await {
        match outcome {
            Ok(_) => {}
            Err(e) if e.is(Code::NamespaceNotFound) || e.code() == UUID_MISMATCH => {}
            Err(e) if is_transient(&e) => failure = Some(e),
            Err(e) => {
                tracing::error!(%shard, %ns, error = %e, "a shard refuses to drop a collection");
                failure = Some(e);
            }
        }
    }
    failure.map_or(Ok(()), Err)
}
