//! `createIndexes`.
//!
//! On a sharded collection every shard that owns chunks (and the primary shard, whose copy `listCollections` shows)
//! builds the indexes. If one refuses, those that were new are dropped on the others; if one cannot be reached, the
//! command is given again later: builds go on meanwhile, and building what exists does nothing.

use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc, rawdoc};
use futures_util::future::{BoxFuture, try_join_all};

use super::drop::UUID_MISMATCH;
use super::job::{self, Driven, Failed, Job, is_transient, pending, undone};
use super::{forward, raw, shard_view};
use crate::bsonx;
use crate::catalog::model::{Namespace, ShardId};
use crate::catalog::snapshot::CollectionRouting;
use crate::command::sharding::index_rules::{self, IndexSpec};
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::scatter::ShardOutcome;
use crate::shard::Retryable;
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("createIndexes", Access::DbAdmin, "creates indexes on every shard of a collection", create)];

fn create<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.namespace()?;
        forward::check_writable(ns.db(), "creating an index")?;
        match ctx.snapshot.collection(ns.as_str()).cloned() {
            Some(routing) => sharded(ctx, request, &ns, &routing).await,
            None => unsharded(ctx, request, &ns).await,
        }
    })
}

async fn unsharded(ctx: &Ctx, request: &Request, ns: &Namespace) -> Result<Reply> {
    let primary = ctx.ensure_database(ns.db()).await?;
    let outcomes = [on_primary(ctx, request, &primary).await?];
    match super::sharded_meanwhile(ctx, ns).await? {
        Some(newer) => match newer.snapshot.collection(ns.as_str()).cloned() {
            Some(routing) => sharded(&newer, request, ns, &routing).await,
            None => raw::join(&outcomes, &ctx.snapshot, &[]),
        },
        None => raw::join(&outcomes, &ctx.snapshot, &[]),
    }
}

/// The client's command as it came; `Err` only where there is no reply to show.
async fn on_primary(ctx: &Ctx, request: &Request, primary: &ShardId) -> Result<ShardOutcome> {
    let msg = forward::as_it_came(request)?;
    let reply = ctx.send(primary, &crate::shard::ReadPreference::PRIMARY, Retryable::No, &msg).await?;
    Ok((primary.clone(), Ok(reply)))
}

/// The shards that must have the same indexes and options: the owners of chunks and the primary shard.
pub fn holders(ctx: &Ctx, routing: &CollectionRouting) -> Vec<ShardId> {
    let mut shards = routing.table.owners().to_vec();
    if let Some(primary) = ctx.snapshot.primary(routing.ns.db())
        && !shards.contains(primary)
    {
        shards.push(primary.clone());
    }
    shards.sort();
    shards
}

async fn sharded(ctx: &Ctx, request: &Request, ns: &Namespace, routing: &CollectionRouting) -> Result<Reply> {
    let Some(specs) = request.array_arg("indexes")? else {
        return Err(Error::with_code(40414, "BSON field 'createIndexes.indexes' is missing but a required field"));
    };
    let specs: Vec<&RawDocument> = specs.into_iter().flatten().filter_map(|v| v.as_document()).collect();
    check_rules(routing, &specs)?;
    let names: Vec<String> = specs.iter().filter_map(|s| bsonx::str(s, "name").map(str::to_owned)).collect();
    let uuid = rawdoc! { "collectionUUID": bson::Binary::from_uuid(routing.uuid) };
    let command = forward::on_own_behalf(request, &["collectionUUID"], &uuid)?;
    if all_there(ctx, routing, &names).await? {
        // Nothing to build: shards only compare the specifications.
        let msg = OutMsg::from_doc(command);
        let outcomes = ctx.broadcast(&holders(ctx, routing), Retryable::No, &msg).await;
        return raw::join(&outcomes, &ctx.snapshot, &[]);
    }
    let args = doc! {
        "ns": ns.as_str(),
        "uuid": bson::Binary::from_uuid(routing.uuid),
        "command": Document::try_from(&*command)?,
        "names": names,
    };
    job::run(ctx, "createIndexes", vec![ns.as_str().to_owned()], args, drive).await
}

/// The rules for indexes of sharded collections.
fn check_rules(routing: &CollectionRouting, specs: &[&RawDocument]) -> Result<()> {
    let requested = |spec: &&RawDocument| IndexSpec::requested(spec, routing.default_collation.as_deref());
    for spec in specs.iter().filter_map(requested) {
        index_rules::check_new_index(&spec, &routing.key).map_err(|e| {
            let text = format!("Collection {} ( {} ) :: caused by :: {}", routing.ns, routing.uuid, e.message());
            e.with_message(text)
        })?;
    }
    Ok(())
}

/// The same for the command in an intent: by the time it is held, the shard key may be another one.
fn check_again(routing: &CollectionRouting, args: &Document) -> Result<()> {
    let command = RawDocumentBuf::try_from(&args.get_document("command").cloned().unwrap_or_default())?;
    let specs = bsonx::array(&command, "indexes").into_iter().flatten().flatten();
    check_rules(routing, &specs.filter_map(|v| v.as_document()).collect::<Vec<_>>())
}

/// Whether every shard has indexes of all these names.
async fn all_there(ctx: &Ctx, routing: &CollectionRouting, names: &[String]) -> Result<bool> {
    let shards = holders(ctx, routing);
    let lists = try_join_all(shards.iter().map(|s| shard_view::indexes(ctx, s, &routing.ns))).await?;
    Ok(lists.iter().all(|list| {
        let have = shard_view::names(list);
        names.iter().all(|name| have.contains(name))
    }))
}

pub fn drive(job: &mut Job) -> BoxFuture<'_, Driven> {
    Box::pin(async move {
        job.refresh();
        let mut args = job.intent.args();
        let ns = Namespace::parse(args.get_str("ns").unwrap_or_default()).map_err(undone)?;
        let routing = job.ctx.snapshot.collection(ns.as_str()).cloned();
        let routing = routing.filter(|r| args.get("uuid") == Some(&Bson::Binary(bson::Binary::from_uuid(r.uuid))));
        let Some(routing) = routing else {
            let text = format!("{ns} was dropped while its indexes were to be created; try again");
            return Err(undone(Error::new(Code::ConflictingOperationInProgress, text).from_router()));
        };
        let shards = holders(&job.ctx, &routing);
        match job.intent.step().as_str() {
            "" => {
                check_again(&routing, &args).map_err(undone)?;
                let mut before = Document::new();
                for shard in &shards {
                    let list = shard_view::indexes(&job.ctx, shard, &ns).await.map_err(undone)?;
                    before.insert(&**shard, shard_view::names(&list));
                }
                args.insert("before", before);
                job.intent.advance("building", Some(args.clone())).await.map_err(undone)?;
            }
            "undoing" => {
                let why = Error::new(Code::OperationFailed, "an index could not be built on every shard").from_router();
                return undo(job, &ns, &args, why).await;
            }
            // The client that set a time limit is gone.
            _ => drop(args.get_document_mut("command").map(|c| c.remove("maxTimeMS"))),
        }
        build(job, &ns, &args, shards).await
    })
}

async fn build(job: &mut Job, ns: &Namespace, args: &Document, shards: Vec<ShardId>) -> Driven {
    let command = args.get_document("command").cloned().unwrap_or_default();
    let msg = OutMsg::from_doc(RawDocumentBuf::try_from(&command).map_err(|e| undone(e.into()))?);
    let requests: Vec<_> = shards.into_iter().map(|s| (s, msg.clone())).collect();
    let outcomes = job.send_all(&requests).await;
    let joined = match raw::join(&outcomes, &job.ctx.snapshot, &[]) {
        Ok(reply) => return Ok(reply),
        Err(error) => error,
    };
    let refused = outcomes.iter().filter_map(raw::error_of).any(|e| !is_transient(&e));
    if !refused {
        // Only unreachable shards: the builds go on, and the command is repeated until all have them.
        return Err(pending(joined));
    }
    job.intent.advance("undoing", None).await.map_err(pending)?;
    undo(job, ns, args, joined).await
}

/// Drops the indexes that the command made on the shards where it succeeded.
async fn undo(job: &mut Job, ns: &Namespace, args: &Document, why: Error) -> Driven {
    let strings = |list: Option<&Vec<Bson>>| -> Vec<String> {
        list.into_iter().flatten().filter_map(|n| n.as_str().map(str::to_owned)).collect()
    };
    let names = strings(args.get_array("names").ok());
    for (shard, before) in args.get_document("before").cloned().unwrap_or_default() {
        let before = strings(before.as_array());
        for name in names.iter().filter(|name| !before.contains(name)) {
            let command = doc! {
                "dropIndexes": ns.coll(),
                "index": name,
                "collectionUUID": args.get("uuid").cloned().unwrap_or(Bson::Null),
                "writeConcern": { "w": "majority", "wtimeout": 60_000 },
                "$db": ns.db(),
            };
            let msg = OutMsg::from_doc(RawDocumentBuf::try_from(&command).map_err(|e| pending(e.into()))?);
            match job.send(&shard.as_str().into(), &msg).await {
                Ok(_) => {}
                Err(e) if is_gone(&e) => {}
                Err(e) => {
                    tracing::warn!(shard, name, error = %e, "an index made in vain could not be dropped yet");
                    return Err(pending(why));
                }
            }
        }
    }
    Err(Failed::Undone(why))
}

/// Dropping an index found none.
pub fn is_gone(error: &Error) -> bool {
    error.is(Code::IndexNotFound) || error.is(Code::NamespaceNotFound) || error.code() == UUID_MISMATCH
}
