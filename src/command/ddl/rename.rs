//! `renameCollection`.
//!
//! An unsharded collection is renamed by its primary shard, atomically. A sharded one stays in its database; behind the
//! closed gate its primary shard renames first (if it refuses, nothing has happened), then the catalog, then the other
//! shards. Shards are told the collection's uuid, so each step can be repeated.

use bson::{Bson, Document, RawDocumentBuf, Uuid, doc, rawdoc};
use futures_util::future::BoxFuture;

use super::drop::{UUID_MISMATCH, drop_by_uuid};
use super::forward::check_writable;
use super::job::{self, Driven, Job, is_transient, pending, undone};
use super::shard_view;
use crate::catalog::model::{Namespace, ShardId};
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("renameCollection", Access::DbAdmin, "gives a collection another name", rename).admin()];

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
        if to.db() != from.db() {
            let other = match ctx.primary_shard(to.db()) {
                Some(other) => other,
                None => ctx.router.catalog.create_database(to.db(), Some(&primary)).await?,
            };
            if other != primary {
                return Err(Error::new(
                    Code::IllegalOperation,
                    format!(
                        "Source and destination collections must be on same shard: {} is on {primary}, {} on {other}",
                        from.db(),
                        to.db()
                    ),
                ));
            }
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
    /// The source's and a sharded target's, once they were looked up.
    uuid: Option<Uuid>,
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

pub fn drive(job: &mut Job) -> BoxFuture<'_, Driven> {
    Box::pin(async move {
        job.refresh();
        let plan = Plan::read(&job.intent.args()).map_err(undone)?;
        if job.intent.step() == "renaming" {
            return over_shards(job, &plan).await;
        }
        let snapshot = job.ctx.snapshot.clone();
        let source = snapshot.collection(plan.from.as_str());
        let target = snapshot.collection(plan.to.as_str());
        if source.is_none() && target.is_none() {
            return unsharded(job, &plan).await;
        }
        if source.is_some() && plan.from.db() != plan.to.db() {
            return Err(undone(Error::new(
                Code::CommandFailed,
                format!("{} is sharded: it can be renamed within its database only", plan.from),
            )));
        }
        let source_uuid = match source {
            Some(routing) => Some(routing.uuid),
            None => shard_view::uuid_of(&job.ctx, &plan.primary, &plan.from).await.map_err(undone)?,
        };
        let Some(uuid) = source_uuid else { return Err(undone(no_source(&plan.from))) };
        let target_exists = target.is_some()
            || shard_view::collection(&job.ctx, &plan.primary, &plan.to).await.map_err(undone)?.is_some();
        if target_exists && !plan.drop_target {
            return Err(undone(Error::new(Code::NamespaceExists, "target namespace exists")));
        }
        job.ping(&job.all_shards()).await.map_err(|e| undone(e.context(format!("{} was not renamed", plan.from))))?;
        let mut args = job.intent.args();
        args.insert("uuid", bson::Binary::from_uuid(uuid));
        if let Some(target) = target {
            args.insert("target", bson::Binary::from_uuid(target.uuid));
        }
        let plan = Plan::read(&args).map_err(undone)?;
        let router = job.ctx.router.clone();
        let closed = router.ddl.gate.close(&job.intent.names);
        closed.drain(&router.ops, 0).await.map_err(undone)?;
        router.catalog.log_change("renameCollection.start", plan.from.as_str(), details(&plan)).await;
        job.intent.advance("renaming", Some(args)).await.map_err(undone)?;
        over_shards(job, &plan).await
    })
}

fn details(plan: &Plan) -> RawDocumentBuf {
    rawdoc! { "source": plan.from.as_str(), "destination": plan.to.as_str() }
}

async fn unsharded(job: &mut Job, plan: &Plan) -> Driven {
    let msg = plan.command(plan.drop_target).map_err(undone)?;
    job.send(&plan.primary, &msg).await.map_err(undone)?;
    job.ctx.router.views.forget(plan.from.db());
    job.ctx.router.views.forget(plan.to.db());
    // Zones may be defined for collections that are not sharded yet; they follow the name.
    job.ctx.router.catalog.rename_collection(&plan.from, &plan.to).await.map_err(undone)?;
    Ok(Reply::empty_ok())
}

/// The steps of a rename in which a sharded collection takes part. Every one may have been done already.
async fn over_shards(job: &mut Job, plan: &Plan) -> Driven {
    let router = job.ctx.router.clone();
    match rename_on(job, plan, &plan.primary).await {
        Ok(()) => {}
        Err(e) if is_transient(&e) => return Err(pending(e)),
        // The primary shard is the first to be changed: it refused, so nothing happened.
        Err(e) => return Err(undone(e)),
    }
    let renamed = job.ctx.snapshot.collection(plan.to.as_str()).is_some_and(|c| Some(c.uuid) == plan.uuid);
    if !renamed {
        router.catalog.rename_collection(&plan.from, &plan.to).await.map_err(pending)?;
        job.refresh();
        router.failpoints.crash_point("ddl.committed");
        router.catalog.settle().await;
    }
    for shard in job.all_shards().iter().filter(|s| **s != plan.primary) {
        rename_on(job, plan, shard).await.map_err(pending)?;
    }
    router.catalog.log_change("renameCollection.end", plan.from.as_str(), details(plan)).await;
    Ok(Reply::empty_ok())
}

/// Renames on one shard; where the collection is not there (any more), what stood under the new name goes all the same.
async fn rename_on(job: &Job, plan: &Plan, shard: &ShardId) -> Result<()> {
    match job.send(shard, &plan.command(true)?).await {
        Ok(_) => Ok(()),
        Err(e) if e.is(Code::NamespaceNotFound) || e.code() == UUID_MISMATCH => {
            if *shard == plan.primary && e.code() == UUID_MISMATCH && !already_there(job, plan, shard).await? {
                return Err(e);
            }
            match plan.target {
                Some(target) => drop_by_uuid(job, &plan.to, target, std::slice::from_ref(shard)).await,
                None => Ok(()),
            }
        }
        Err(e) => Err(e),
    }
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
