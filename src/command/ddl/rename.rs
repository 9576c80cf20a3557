//! `renameCollection`.
//!
//! An unsharded collection is renamed by its primary shard, atomically. A sharded one stays in its database; while both
//! names are closed in every router its primary shard renames first (if it refuses, nothing has happened), then the
//! catalog, then the other shards. Shards are told the collection's uuid, so each step can be repeated.

use bson::{Bson, Document, RawDocumentBuf, Uuid, doc, rawdoc};
use futures_util::future::BoxFuture;

use super::drop::{UUID_MISMATCH, drop_by_uuid};
use super::forward::check_writable;
use super::intent::CLOSING;
use super::job::{self, Driven, Failed, Job, is_transient, pending, undone};
use super::shard_view;
use crate::catalog::model::{Namespace, ShardId};
use crate::catalog::store::CatalogTxn;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("renameCollection", Access::DbAdmin, "gives a collection another name", rename)
        .admin()
        .fields(&["to", "dropTarget", "stayTemp", "collectionUUID"])];

fn rename<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let from = request.full_namespace()?;
        let to = match request.str_arg("to")? {
            Some(to) => Namespace::parse(to)?,
            None => return Err(missing("to")),
        };
        if from == to {
            return Err(Error::new(Code::IllegalOperation, "Can't rename a collection to itself"));
        }
        for ns in [&from, &to] {
            check_writable(ns.db(), "renaming a collection")?;
        }
        let Some(primary) = ctx.primary_shard(from.db()) else { return Err(no_source(&from)) };
        if let Some(other) = ctx.primary_shard(to.db()) {
            check_same_shard((&from, &primary), (&to, &other))?;
        }
        let mut args = doc! {
            "from": from.as_str(),
            "to": to.as_str(),
            "primary": &*primary,
            "dropTarget": request.bool_arg("dropTarget")?.unwrap_or(false),
        };
        if let Some(uuid) = request.get("collectionUUID") {
            args.insert("onlyUuid", Bson::try_from(uuid)?);
        }
        let names = vec![from.as_str().to_owned(), to.as_str().to_owned()];
        job::run(ctx, "renameCollection", names, args, drive).await
    })
}

fn check_same_shard((from, primary): (&Namespace, &ShardId), (to, other): (&Namespace, &ShardId)) -> Result<()> {
    if primary == other {
        return Ok(());
    }
    Err(Error::new(
        Code::IllegalOperation,
        format!(
            "Source and destination collections must be on same shard: {} is on {primary}, {} on {other}",
            from.db(),
            to.db()
        ),
    ))
}

fn missing(field: &str) -> Error {
    Error::with_code(40414, format!("BSON field 'renameCollection.{field}' is missing but a required field"))
}

fn no_source(ns: &Namespace) -> Error {
    Error::new(Code::NamespaceNotFound, format!("Source collection {ns} does not exist"))
}

/// What a rename works on.
struct Plan {
    from: Namespace,
    to: Namespace,
    primary: ShardId,
    drop_target: bool,
    /// The collection's, once it was looked up; the same again where it is sharded, and a sharded target's.
    uuid: Option<Uuid>,
    source: Option<Uuid>,
    target: Option<Uuid>,
    only: Option<Bson>,
}

impl Plan {
    fn read(args: &Document) -> Result<Plan> {
        let text = |name: &str| args.get_str(name).unwrap_or_default();
        let uuid = |name: &str| match args.get(name) {
            Some(Bson::Binary(b)) => b.to_uuid().ok(),
            _ => None,
        };
        Ok(Plan {
            from: Namespace::parse(text("from"))?,
            to: Namespace::parse(text("to"))?,
            primary: text("primary").into(),
            drop_target: args.get_bool("dropTarget").unwrap_or(false),
            uuid: uuid("uuid"),
            source: uuid("source"),
            target: uuid("target"),
            only: args.get("onlyUuid").cloned(),
        })
    }

    /// `renameCollection` for a shard; with the source's uuid where it is known.
    fn command(&self, drop_target: bool) -> Result<OutMsg> {
        let mut command = doc! {
            "renameCollection": self.from.as_str(),
            "to": self.to.as_str(),
            "dropTarget": drop_target,
        };
        match (self.uuid, &self.only) {
            (Some(uuid), _) => drop(command.insert("collectionUUID", bson::Binary::from_uuid(uuid))),
            (None, Some(only)) => drop(command.insert("collectionUUID", only.clone())),
            (None, None) => {}
        }
        command.insert("writeConcern", doc! { "w": "majority", "wtimeout": 60_000 });
        command.insert("$db", "admin");
        Ok(OutMsg::from_doc(RawDocumentBuf::try_from(&command)?))
    }
}

/// The primary shard was given the command to rename an unsharded collection.
const GIVEN: &str = "given";
/// The primary shard renames.
const RENAMING: &str = "renaming";
/// Primary shard and catalog have the new name.
const REST: &str = "renamingRest";

pub fn drive(job: &mut Job) -> BoxFuture<'_, Driven> {
    Box::pin(async move {
        job.refresh();
        let plan = Plan::read(&job.intent.args()).map_err(undone)?;
        match job.intent.step().as_str() {
            "" => {}
            GIVEN => return was_given(job, &plan).await,
            _ => return over_shards(job, &plan).await,
        }
        let snapshot = job.ctx.snapshot.clone();
        let source = snapshot.collection(plan.from.as_str());
        if source.is_none() && snapshot.collection(plan.to.as_str()).is_none() {
            return unsharded(job, plan).await;
        }
        if source.is_some() && plan.from.db() != plan.to.db() {
            return Err(undone(Error::new(
                Code::CommandFailed,
                format!("{} is sharded: it can be renamed within its database only", plan.from),
            )));
        }
        look(job, &plan).await.map_err(undone)?;
        job.ping(&job.all_shards()).await.map_err(|e| undone(e.context(format!("{} was not renamed", plan.from))))?;
        let router = job.ctx.router.clone();
        let closed = router.ddl.gate.close(&job.intent.names);
        closed.drain(&router.ops, 0).await.map_err(undone)?;
        job.intent.advance_closed(CLOSING, None, true).await.map_err(undone)?;
        router.catalog.settle().await;
        // Both names are at rest now; what was true before may not be.
        job.refresh();
        let args = look(job, &plan).await.map_err(undone)?;
        let plan = Plan::read(&args).map_err(undone)?;
        router.catalog.log_change("renameCollection.start", plan.from.as_str(), details(&plan)).await;
        job.intent.advance_closed(RENAMING, Some(args), true).await.map_err(undone)?;
        over_shards(job, &plan).await
    })
}

/// The arguments with the uuids that have the names now.
///
/// # Errors
/// NamespaceNotFound (26) without a source; NamespaceExists (48) where there is a target that may not be replaced.
async fn look(job: &Job, plan: &Plan) -> Result<Document> {
    let snapshot = &job.ctx.snapshot;
    let source = snapshot.collection(plan.from.as_str());
    let target = snapshot.collection(plan.to.as_str());
    let uuid = match source {
        Some(routing) => Some(routing.uuid),
        None => shard_view::uuid_of(&job.ctx, &plan.primary, &plan.from).await?,
    };
    let Some(uuid) = uuid else { return Err(no_source(&plan.from)) };
    let exists = target.is_some() || shard_view::collection(&job.ctx, &plan.primary, &plan.to).await?.is_some();
    if exists && !plan.drop_target {
        return Err(Error::new(Code::NamespaceExists, "target namespace exists"));
    }
    let mut args = job.intent.args();
    args.insert("uuid", bson::Binary::from_uuid(uuid));
    args.insert("source", source.map(|routing| bson::Binary::from_uuid(routing.uuid)));
    args.insert("target", target.map(|routing| bson::Binary::from_uuid(routing.uuid)));
    Ok(args)
}

fn details(plan: &Plan) -> RawDocumentBuf {
    rawdoc! { "source": plan.from.as_str(), "destination": plan.to.as_str() }
}

/// One command to the primary shard, which is atomic there.
async fn unsharded(job: &mut Job, mut plan: Plan) -> Driven {
    let found = shard_view::uuid_of(&job.ctx, &plan.primary, &plan.from).await.map_err(undone)?;
    // Into another database a shard copies the collection, under another uuid: nothing tells afterwards that it did.
    plan.uuid = found.filter(|_| plan.from.db() == plan.to.db());
    if found.is_some() && job.ctx.primary_shard(plan.to.db()).is_none() {
        let catalog = &job.ctx.router.catalog;
        let other = catalog.create_database(plan.to.db(), Some(&plan.primary)).await.map_err(undone)?;
        check_same_shard((&plan.from, &plan.primary), (&plan.to, &other)).map_err(undone)?;
    }
    let mut args = job.intent.args();
    args.insert("uuid", plan.uuid.map(bson::Binary::from_uuid));
    job.intent.advance(GIVEN, Some(args)).await.map_err(undone)?;
    let msg = plan.command(plan.drop_target).map_err(undone)?;
    let first = job.send_once(&plan.primary, &msg).await;
    job.ctx.router.failpoints.crash_point("ddl.oneShard");
    let sent = match first {
        // The reply was lost. Unlike the first time, an answer that there is no source may mean that it is done.
        Err(error) if is_transient(&error) && plan.uuid.is_some() => match job.send(&plan.primary, &msg).await {
            Err(e) if is_gone(&e) && already_there(job, &plan, &plan.primary).await.map_err(pending)? => Ok(()),
            other => other.map(|_| ()),
        },
        other => other.map(|_| ()),
    };
    match sent {
        Ok(()) => {}
        Err(error) if is_transient(&error) => return Err(pending(error)),
        Err(error) => return Err(undone(error)),
    }
    job.ctx.router.views.forget(plan.from.db());
    job.ctx.router.views.forget(plan.to.db());
    move_zones(job, &plan).await?;
    Ok(Reply::empty_ok())
}

/// Whether the primary shard renamed the collection is not known. It is not told again: both names may have been used
/// since.
async fn was_given(job: &mut Job, plan: &Plan) -> Driven {
    if plan.uuid.is_some() && already_there(job, plan, &plan.primary).await.map_err(pending)? {
        move_zones(job, plan).await?;
    }
    Ok(Reply::empty_ok())
}

/// Zones may be defined for collections that are not sharded yet; they follow the name.
async fn move_zones(job: &mut Job, plan: &Plan) -> std::result::Result<(), Failed> {
    job.refresh();
    let tags = &job.ctx.snapshot.tags;
    if !tags.contains_key(plan.from.as_str()) && !tags.contains_key(plan.to.as_str()) {
        return Ok(());
    }
    let catalog = &job.ctx.router.catalog;
    let rename =
        async |txn: CatalogTxn| catalog.rename_collection((&plan.from, None), (&plan.to, None), &txn).await.map(|_| ());
    job.intent.advance_with("renamed", None, false, rename).await.map_err(pending)
}

/// The steps of a rename in which a sharded collection takes part. Every one may have been done already. Until the last
/// one is, requests on both names wait.
async fn over_shards(job: &mut Job, plan: &Plan) -> Driven {
    let router = job.ctx.router.clone();
    if job.intent.step() == RENAMING {
        match rename_on_primary(job, plan).await {
            Ok(()) => {}
            Err(e) if is_transient(&e) => return Err(pending(e)),
            // The primary shard is the first to be changed: it refused, so nothing happened.
            Err(e) => return Err(undone(e)),
        }
        let rename = async |txn: CatalogTxn| {
            let (from, to) = ((&plan.from, plan.source), (&plan.to, plan.target));
            router.catalog.rename_collection(from, to, &txn).await.map(|_| ())
        };
        job.intent.advance_with(REST, None, true, rename).await.map_err(pending)?;
        job.refresh();
        router.failpoints.crash_point("ddl.committed");
    }
    for shard in job.all_shards().iter().filter(|s| **s != plan.primary) {
        rename_on(job, plan, shard).await.map_err(pending)?;
    }
    router.catalog.log_change("renameCollection.end", plan.from.as_str(), details(plan)).await;
    Ok(Reply::empty_ok())
}

/// Renames on the primary shard, replacing a target only if the client said so.
async fn rename_on_primary(job: &Job, plan: &Plan) -> Result<()> {
    match job.send(&plan.primary, &plan.command(plan.drop_target)?).await {
        Ok(_) => Ok(()),
        Err(e) if is_gone(&e) => match already_there(job, plan, &plan.primary).await? {
            true => Ok(()),
            false => Err(e),
        },
        Err(e) => Err(e),
    }
}

/// Renames on another shard; where the collection is not there (any more), what stood under the new name goes all the
/// same.
async fn rename_on(job: &Job, plan: &Plan, shard: &ShardId) -> Result<()> {
    match job.send(shard, &plan.command(true)?).await {
        Ok(_) => Ok(()),
        Err(e) if is_gone(&e) => match plan.target {
            Some(target) => drop_by_uuid(job, &plan.to, target, std::slice::from_ref(shard)).await,
            None => Ok(()),
        },
        Err(e) => Err(e),
    }
}

/// The collection of that uuid does not have the old name (any more).
fn is_gone(error: &Error) -> bool {
    error.is(Code::NamespaceNotFound) || error.code() == UUID_MISMATCH
}

async fn already_there(job: &Job, plan: &Plan, shard: &ShardId) -> Result<bool> {
    Ok(shard_view::uuid_of(&job.ctx, shard, &plan.to).await? == plan.uuid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn plans_are_read_back() {
        let uuid = Uuid::new();
        let args = doc! {
            "from": "a.b", "to": "a.c", "primary": "s", "dropTarget": true, "uuid": bson::Binary::from_uuid(uuid),
        };
        let plan = Plan::read(&args).unwrap();
        assert_eq!((plan.from.as_str(), plan.to.as_str(), &*plan.primary), ("a.b", "a.c", "s"));
        assert_eq!((plan.uuid, plan.target, plan.drop_target), (Some(uuid), None, true));
        let command = plan.command(false).unwrap();
        let doc = bson::RawDocument::from_bytes(&command.body).unwrap();
        assert_eq!(crate::bsonx::str(doc, "renameCollection"), Some("a.b"));
        assert_eq!(crate::bsonx::truthy(doc, "dropTarget"), Some(false));
    }
}
