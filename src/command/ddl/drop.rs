//! `drop`.
//!
//! A sharded collection goes in this order: every shard is asked whether it is there; the gate closes; the catalog
//! forgets the collection and, in the same commit, closes its name in every router; the primary shard drops its part, and
//! the name is free; then all others do. Each shard drops by uuid, so finishing late never touches a collection made anew
//! under the name. An unsharded collection is dropped by its primary shard, and never again by whoever finds the intent.

use bson::{Bson, Document, RawDocument, RawDocumentBuf, Uuid, doc, rawdoc};
use futures_util::future::BoxFuture;

use super::forward::check_writable;
use super::job::{self, Driven, Failed, Job, is_transient, pending, undone};
use super::shard_view;
use crate::catalog::model::{Namespace, ShardId, uuid_bson};
use crate::catalog::snapshot::CollectionRouting;
use crate::catalog::store::CatalogTxn;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("drop", Access::DbAdmin, "drops a collection, with its indexes, chunks and zones", drop)
        .fields(&["collectionUUID"])];

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
            (GIVEN, _) => was_given(job, &ns, &args).await,
            _ => data(job, &ns, &args).await,
        }
    })
}

/// The primary shard was given the command to drop an unsharded collection.
const GIVEN: &str = "given";
/// The catalog has forgotten the collection; requests on the name wait until it is gone from the primary shard.
const DROPPING: &str = "dropping";
/// The name is free.
const CLEARING: &str = "clearing";
/// How often a collection is looked up again that was replaced (`$out` does that) before it could be dropped.
const LOOKS: usize = 5;

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

/// One command to the primary shard, which is atomic there.
async fn unsharded(job: &mut Job, ns: &Namespace, args: &Document) -> Driven {
    let Some(primary) = job.ctx.primary_shard(ns.db()) else { return Ok(Reply::empty_ok()) };
    let reply = match given(job, ns, args, &primary).await {
        Ok(reply) => reply,
        Err(error) if is_transient(&error) && !job.intent.is_untouched() => return Err(pending(error)),
        Err(error) => return Err(undone(error)),
    };
    job.ctx.router.views.forget(ns.db());
    forget_zones(job, ns).await?;
    Ok(Reply::ok(reply))
}

/// Drops the collection that has the name, by its uuid: sent twice, the command never drops another one.
async fn given(job: &Job, ns: &Namespace, args: &Document, primary: &ShardId) -> Result<RawDocumentBuf> {
    let only = args.get("onlyUuid").cloned();
    let mut last = None;
    for _ in 0..LOOKS {
        let found = shard_view::uuid_of(&job.ctx, primary, ns).await?.map(uuid_value);
        let uuid = only.clone().or(found);
        let mut args = args.clone();
        args.insert("uuid", uuid.clone());
        args.insert("primary", &**primary);
        job.intent.advance(GIVEN, Some(args)).await?;
        let mut command = doc! { "drop": ns.coll() };
        if let Some(uuid) = uuid.clone() {
            command.insert("collectionUUID", uuid);
        }
        command.insert("writeConcern", doc! { "w": "majority", "wtimeout": 60_000 });
        command.insert("$db", ns.db());
        let msg = OutMsg::from_doc(RawDocumentBuf::try_from(&command)?);
        // Views and time series have no uuid: the command is sent once.
        let sent = if uuid.is_some() { job.send(primary, &msg).await } else { job.send_once(primary, &msg).await };
        match sent {
            Ok(answer) => return Ok(without_ok(&super::raw::stripped(answer.doc()))),
            Err(error) if error.is(Code::NamespaceNotFound) => return Ok(RawDocumentBuf::new()),
            Err(error) if error.code() == UUID_MISMATCH && only.is_none() => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::internal("a drop was never tried")))
}

fn without_ok(reply: &RawDocument) -> RawDocumentBuf {
    let mut fields = RawDocumentBuf::new();
    for (key, value) in reply.iter().flatten() {
        if key.as_str() != "ok" {
            fields.append(key, value);
        }
    }
    fields
}

/// Whether the primary shard dropped the collection is not known. It is not told again: the collection may have been
/// used since.
async fn was_given(job: &mut Job, ns: &Namespace, args: &Document) -> Driven {
    let primary = ShardId::from(args.get_str("primary").unwrap_or_default());
    let found = shard_view::uuid_of(&job.ctx, &primary, ns).await.map_err(pending)?;
    if found.is_none() {
        forget_zones(job, ns).await?;
    }
    Ok(Reply::empty_ok())
}

/// Zones may be defined for collections that are not sharded yet.
async fn forget_zones(job: &mut Job, ns: &Namespace) -> std::result::Result<(), Failed> {
    job.refresh();
    if !job.ctx.snapshot.tags.contains_key(ns.as_str()) {
        return Ok(());
    }
    let catalog = &job.ctx.router.catalog;
    let forget = async |txn: CatalogTxn| catalog.drop_collection(ns, None, &txn).await.map(|_| ());
    job.intent.advance_with("dropped", None, false, forget).await.map_err(pending)
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
    let uuid = Some(routing.uuid);
    let forget = async |txn: CatalogTxn| router.catalog.drop_collection(ns, uuid, &txn).await.map(|_| ());
    job.intent.advance_with(DROPPING, Some(args.clone()), true, forget).await.map_err(undone)?;
    job.refresh();
    router.failpoints.crash_point("ddl.committed");
    data(job, ns, &args).await
}

/// Drops the collection of this uuid wherever it is, on the primary shard first.
async fn data(job: &mut Job, ns: &Namespace, args: &Document) -> Driven {
    let uuid = args.get("uuid").and_then(|u| match u {
        Bson::Binary(b) => b.to_uuid().ok(),
        _ => None,
    });
    let Some(uuid) = uuid else { return Ok(Reply::empty_ok()) };
    let primary: Option<ShardId> = args.get_str("primary").ok().map(ShardId::from);
    let (first, rest): (Vec<_>, Vec<_>) = job.all_shards().into_iter().partition(|s| Some(s) == primary.as_ref());
    if job.intent.step() == DROPPING {
        job.ctx.router.catalog.settle().await;
        drop_by_uuid(job, ns, uuid, &first).await.map_err(pending)?;
        job.intent.advance_closed(CLEARING, None, false).await.map_err(pending)?;
    }
    drop_by_uuid(job, ns, uuid, &rest).await.map_err(pending)?;
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
