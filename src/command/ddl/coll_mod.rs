//! `collMod`.
//!
//! On a sharded collection the primary shard goes first: if it refuses, nothing has happened. If another one refuses
//! then, the old options are set again, until all shards have them; if one cannot be reached, the command is repeated
//! later.

use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use futures_util::future::BoxFuture;

use super::create_indexes::holders;
use super::job::{self, Driven, Failed, Job, is_transient, pending, undone};
use super::{forward, list_indexes, raw, shard_view};
use crate::bsonx;
use crate::catalog::model::{Namespace, ShardId};
use crate::catalog::snapshot::CollectionRouting;
use crate::command::sharding::index_rules::{self, IndexSpec};
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::shard::Retryable;
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("collMod", Access::DbAdmin, "changes options of a collection, a view or an index", run)];

fn run<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.namespace()?;
        forward::check_writable(ns.db(), "changing a collection")?;
        let Some(primary) = ctx.primary_shard(ns.db()) else {
            return Err(Error::new(Code::NamespaceNotFound, "ns does not exist"));
        };
        if request.bool_arg("dryRun")? == Some(true) {
            let shards = match ctx.snapshot.collection(ns.as_str()) {
                Some(routing) => holders(ctx, routing),
                None => vec![primary],
            };
            let command = forward::on_own_behalf(request, &[], &RawDocumentBuf::new())?;
            let outcomes = ctx.broadcast(&shards, Retryable::No, &OutMsg::from_doc(command)).await;
            return raw::join(&outcomes, &ctx.snapshot, &[]);
        }
        let command = forward::on_own_behalf(request, &[], &RawDocumentBuf::new())?;
        let args = doc! { "ns": ns.as_str(), "command": Document::try_from(&*command)? };
        job::run(ctx, "collMod", vec![ns.as_str().to_owned()], args, drive).await
    })
}

/// What sharded collections do not allow; under the intent, so that what it rests on stays.
async fn check(job: &Job, routing: &CollectionRouting, command: &Document) -> Result<()> {
    for option in ["viewOn", "pipeline"] {
        if command.contains_key(option) {
            return Err(Error::new(
                Code::InvalidOptions,
                format!("'{option}' is for views; {} is a sharded collection", routing.ns),
            ));
        }
    }
    match command.get("index") {
        None => Ok(()),
        Some(Bson::Document(index)) => check_index(&job.ctx, routing, &RawDocumentBuf::try_from(index)?).await,
        Some(_) => Err(Error::new(Code::TypeMismatch, "collMod.index must be a document")),
    }
}

/// The rules of a sharded collection for what `index: {…}` asks.
async fn check_index(ctx: &Ctx, routing: &CollectionRouting, index: &RawDocument) -> Result<()> {
    let hide = bsonx::truthy(index, "hidden") == Some(true);
    let unique = bsonx::truthy(index, "unique") == Some(true) || bsonx::truthy(index, "prepareUnique") == Some(true);
    if !hide && !unique {
        return Ok(());
    }
    let listed = shard_view::indexes(ctx, &list_indexes::source(routing), &routing.ns).await?;
    let specs: Vec<IndexSpec> = listed.iter().filter_map(|spec| IndexSpec::listed(spec)).collect();
    let meant = specs.iter().find(|spec| match bsonx::str(index, "name") {
        Some(name) => spec.name == name,
        None => bsonx::doc(index, "keyPattern").is_some_and(|key| *key == *spec.key),
    });
    let Some(meant) = meant else { return Ok(()) };
    if hide {
        index_rules::check_hide(&specs, &meant.name, &routing.key)?;
    }
    if unique {
        index_rules::check_new_index(&IndexSpec { unique: true, ..meant.clone() }, &routing.key)?;
    }
    Ok(())
}

/// The primary shard was given the command for what is not sharded.
const GIVEN: &str = "given";
const MODIFYING: &str = "modifying";
/// One shard refused: all are set back.
const UNDOING: &str = "undoing";

pub fn drive(job: &mut Job) -> BoxFuture<'_, Driven> {
    Box::pin(async move {
        job.refresh();
        let mut args = job.intent.args();
        let ns = Namespace::parse(args.get_str("ns").unwrap_or_default()).map_err(undone)?;
        let Some(primary) = job.ctx.primary_shard(ns.db()) else {
            return Err(undone(Error::new(Code::NamespaceNotFound, "ns does not exist")));
        };
        let routing = job.ctx.snapshot.collection(ns.as_str()).cloned();
        let mut command = args.get_document("command").cloned().unwrap_or_default();
        let step = job.intent.step();
        match (step.as_str(), routing) {
            ("", None) => {
                job.intent.advance(GIVEN, None).await.map_err(undone)?;
                given(job, &ns, primary, &command).await.map_err(undone)
            }
            ("", Some(routing)) => {
                check(job, &routing, &command).await.map_err(undone)?;
                let uuid = bson::Binary::from_uuid(routing.uuid);
                command.insert("collectionUUID", uuid.clone());
                args.extend(doc! { "uuid": uuid, "command": command.clone() });
                let shards = holders(&job.ctx, &routing);
                prepare(job, &ns, &primary, &shards, &command, &mut args).await.map_err(undone)?;
                job.intent.advance(MODIFYING, Some(args.clone())).await.map_err(undone)?;
                modify(job, &primary, shards, &command, &args).await
            }
            // One shard has done it or not.
            (GIVEN, _) => Ok(Reply::empty_ok()),
            (_, Some(routing)) if args.get("uuid") == Some(&Bson::Binary(bson::Binary::from_uuid(routing.uuid))) => {
                let shards = holders(&job.ctx, &routing);
                if step == UNDOING {
                    let why = Error::new(Code::OperationFailed, "a shard refused to change the collection");
                    return Err(undo(job, shards, &args, why.from_router()).await);
                }
                modify(job, &primary, shards, &command, &args).await
            }
            _ => Err(undone(Error::new(Code::NamespaceNotFound, "ns does not exist"))),
        }
    })
}

/// What is not sharded: one command to the primary shard.
async fn given(job: &Job, ns: &Namespace, primary: ShardId, command: &Document) -> Result<Reply> {
    let msg = OutMsg::from_doc(RawDocumentBuf::try_from(command)?);
    let outcome = job.send(&primary, &msg).await;
    job.ctx.router.views.forget(ns.db());
    raw::join(&[(primary, outcome)], &job.ctx.snapshot, &[])
}

/// Everything that can be found out before something is changed, and how to change it back.
async fn prepare(
    job: &Job,
    ns: &Namespace,
    primary: &ShardId,
    shards: &[ShardId],
    command: &Document,
    args: &mut Document,
) -> Result<()> {
    job.ping(shards).await?;
    if command.get_document("index").is_ok_and(|i| i.get_bool("unique").unwrap_or(false)) {
        // Violations of one shard must not leave another with the unique index.
        let mut trial = command.clone();
        trial.insert("dryRun", true);
        trial.remove("writeConcern");
        let msg = OutMsg::from_doc(RawDocumentBuf::try_from(&trial)?);
        let outcomes = job.ctx.broadcast(shards, Retryable::No, &msg).await;
        raw::join(&outcomes, &job.ctx.snapshot, &[])?;
    }
    let entry = shard_view::collection(&job.ctx, primary, ns).await?;
    let options = entry.as_deref().and_then(|e| bsonx::doc(e, "options"));
    let options = options.map(Document::try_from).transpose()?.unwrap_or_default();
    let indexes = shard_view::indexes(&job.ctx, primary, ns).await?;
    let indexes = indexes.iter().map(|i| Document::try_from(&**i)).collect::<std::result::Result<Vec<_>, _>>()?;
    args.insert("undo", undo_command(command, &options, &indexes));
    Ok(())
}

async fn modify(job: &mut Job, primary: &ShardId, shards: Vec<ShardId>, command: &Document, args: &Document) -> Driven {
    let msg = OutMsg::from_doc(RawDocumentBuf::try_from(command).map_err(|e| undone(e.into()))?);
    let requests: Vec<_> = shards.iter().map(|s| (s.clone(), msg.clone())).collect();
    let (first, rest): (Vec<_>, Vec<_>) = requests.into_iter().partition(|(s, _)| s == primary);
    let mut outcomes = job.send_all(&first).await;
    if let Err(error) = raw::join(&outcomes, &job.ctx.snapshot, &[]) {
        let unknown = outcomes.iter().filter_map(raw::error_of).any(|e| is_transient(&e));
        return Err(match unknown {
            true => pending(error),
            false if job.resumed => give_up(job, shards, args, error).await,
            false => undone(error),
        });
    }
    outcomes.extend(job.send_all(&rest).await);
    let error = match raw::join(&outcomes, &job.ctx.snapshot, &[]) {
        Ok(reply) => return Ok(reply),
        Err(error) => error,
    };
    if outcomes.iter().filter_map(raw::error_of).all(|e| is_transient(&e)) {
        return Err(pending(error));
    }
    Err(give_up(job, shards, args, error).await)
}

/// One shard refused for good: notes that, and sets the others back.
async fn give_up(job: &mut Job, shards: Vec<ShardId>, args: &Document, why: Error) -> Failed {
    match job.intent.advance(UNDOING, None).await {
        Ok(()) => undo(job, shards, args, why).await,
        Err(error) => {
            tracing::warn!(%error, "old options are not restored yet");
            pending(why)
        }
    }
}

/// Sets the options on every shard to what they were; what cannot be done now is done later.
async fn undo(job: &mut Job, shards: Vec<ShardId>, args: &Document, why: Error) -> Failed {
    let undo = args.get_document("undo").cloned().unwrap_or_default();
    let Ok(command) = RawDocumentBuf::try_from(&undo) else { return pending(why) };
    let msg = OutMsg::from_doc(command);
    let requests: Vec<_> = shards.into_iter().map(|shard| (shard, msg.clone())).collect();
    let mut failed = false;
    for (shard, outcome) in job.send_all(&requests).await {
        if let Err(e) = outcome {
            tracing::warn!(%shard, error = %e, "old options could not be restored yet");
            failed = true;
        }
    }
    if failed { pending(why) } else { undone(why) }
}

/// The `collMod` that sets what `command` changes back to what it was.
fn undo_command(command: &Document, options: &Document, indexes: &[Document]) -> Document {
    let mut undo = Document::new();
    for (name, value) in command {
        let old = match name.as_str() {
            "collMod" | "collectionUUID" | "writeConcern" | "$db" => value.clone(),
            "validator" => options.get(name).cloned().unwrap_or_else(|| doc! {}.into()),
            "validationLevel" => options.get(name).cloned().unwrap_or_else(|| "strict".into()),
            "validationAction" => options.get(name).cloned().unwrap_or_else(|| "error".into()),
            "changeStreamPreAndPostImages" => {
                options.get(name).cloned().unwrap_or_else(|| doc! { "enabled": false }.into())
            }
            "expireAfterSeconds" => options.get(name).cloned().unwrap_or_else(|| "off".into()),
            "index" => match value.as_document().and_then(|i| old_index(i, indexes)) {
                Some(old) => old.into(),
                None => continue,
            },
            _ => continue,
        };
        undo.insert(name, old);
    }
    undo
}

/// The `index` argument with the index's present settings, for those it would change.
fn old_index(change: &Document, indexes: &[Document]) -> Option<Document> {
    let found = indexes.iter().find(|index| match change.get("name") {
        Some(name) => index.get("name") == Some(name),
        None => index.get("key") == change.get("keyPattern"),
    })?;
    let mut old = doc! { "name": found.get("name")?.clone() };
    for flag in ["hidden", "prepareUnique"] {
        if change.contains_key(flag) {
            old.insert(flag, found.get_bool(flag).unwrap_or(false));
        }
    }
    if change.contains_key("expireAfterSeconds")
        && let Some(seconds) = found.get("expireAfterSeconds")
    {
        old.insert("expireAfterSeconds", seconds.clone());
    }
    (old.len() > 1).then_some(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undo_sets_what_was() {
        let command = doc! {
            "collMod": "c", "validator": { "a": 1 }, "validationLevel": "off", "$db": "d",
            "index": { "keyPattern": { "a": 1 }, "hidden": true, "expireAfterSeconds": 5 }, "comment": "x",
        };
        let options = doc! { "validator": { "old": 1 } };
        let indexes = [doc! { "name": "a_1", "key": { "a": 1 }, "expireAfterSeconds": 9 }];
        assert_eq!(
            undo_command(&command, &options, &indexes),
            doc! {
                "collMod": "c", "validator": { "old": 1 }, "validationLevel": "strict", "$db": "d",
                "index": { "name": "a_1", "hidden": false, "expireAfterSeconds": 9 },
            }
        );
    }
}
