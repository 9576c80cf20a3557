//! `getDefaultRWConcern` and `setDefaultRWConcern`.
//!
//! The shards apply the defaults: the router forwards commands without read or write concern as they came, so the
//! setting is made on every shard and noted in `config.settings` as MongoDB does.

use bson::{Bson, DateTime, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc, rawdoc};
use futures_util::future::BoxFuture;

use super::reply;
use crate::bsonx;
use crate::catalog::Snapshot;
use crate::catalog::model::{ShardId, collection};
use crate::catalog::store::CatalogTxn;
use crate::command::{Access, CatalogUse, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::shard::Retryable;
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("getDefaultRWConcern", Access::Cluster, "the default read and write concern", get)
        .admin()
        .fields(&["inMemory"])
        .catalog(CatalogUse::Newest)
        .secondary_ok(),
    CommandSpec::new("setDefaultRWConcern", Access::Cluster, "sets the default read and write concern", set)
        .admin()
        .fields(&["defaultReadConcern", "defaultWriteConcern"])
        .catalog(CatalogUse::Newest),
];

/// The `_id` in `config.settings`.
const SETTING: &str = "ReadWriteConcernDefaults";

fn get<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let mut defaults = in_effect(&ctx.snapshot)?;
        if request.bool_arg("inMemory")? == Some(true) {
            defaults.insert("inMemory", true);
        }
        reply(&defaults)
    })
}

/// `{defaultReadConcern, defaultWriteConcern, …Source, …Time}` as `serverStatus` shows it too.
pub(super) fn in_effect(snapshot: &Snapshot) -> Result<Document> {
    let stored = match snapshot.settings.get(SETTING) {
        Some(doc) => Document::try_from(&**doc)?,
        None => Document::new(),
    };
    let concern = |name: &str| stored.get_document(name).ok().filter(|d| !d.is_empty()).cloned();
    let source = |set: bool| if set { "global" } else { "implicit" };
    let (read, write) = (concern("defaultReadConcern"), concern("defaultWriteConcern"));
    let (read_set, write_set) = (read.is_some(), write.is_some());
    let mut defaults = doc! {
        "defaultReadConcern": read.unwrap_or_else(|| doc! { "level": "local" }),
        "defaultWriteConcern": write.unwrap_or_else(|| doc! { "w": "majority", "wtimeout": 0 }),
        "defaultWriteConcernSource": source(write_set),
        "defaultReadConcernSource": source(read_set),
    };
    for name in ["updateOpTime", "updateWallClockTime"] {
        if let Some(value) = stored.get(name) {
            defaults.insert(name, value.clone());
        }
    }
    defaults.insert("localUpdateWallClockTime", DateTime::now());
    Ok(defaults)
}

fn set<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let read = request.doc_arg("defaultReadConcern")?;
        let write = request.doc_arg("defaultWriteConcern")?;
        if read.is_none() && write.is_none() {
            return Err(Error::new(
                Code::BadValue,
                "At least one of the \"defaultReadConcern\" or \"defaultWriteConcern\" fields must be present",
            ));
        }
        check(ctx, read, write)?;
        let mut command = rawdoc! { "setDefaultRWConcern": 1 };
        for (name, value) in [("defaultReadConcern", read), ("defaultWriteConcern", write)] {
            if let Some(value) = value {
                command.append(bson::raw::CString::try_from(name)?, value.to_owned());
            }
        }
        command.append(bson::cstr!("writeConcern"), rawdoc! { "w": "majority", "wtimeout": 60_000 });
        command.append(bson::cstr!("$db"), "admin");
        let msg = OutMsg::from_doc(command);
        set_on(ctx, ctx.snapshot.shards.keys().cloned().collect(), &msg).await?;
        let mut stored = match ctx.snapshot.settings.get(SETTING) {
            Some(doc) => Document::try_from(&**doc)?,
            None => doc! { "_id": SETTING },
        };
        for (name, value) in [("defaultReadConcern", read), ("defaultWriteConcern", write)] {
            if let Some(value) = value {
                stored.insert(name, Document::try_from(value)?);
            }
        }
        stored.insert("updateOpTime", Bson::Timestamp(ctx.router.catalog.tick().await?));
        stored.insert("updateWallClockTime", DateTime::now());
        let txn =
            CatalogTxn::new().put(collection::SETTINGS, RawDocumentBuf::try_from(&stored)?).touch(collection::SETTINGS);
        let version = ctx.router.catalog.store().commit(&txn).await?;
        let snapshot = ctx.router.catalog.refresh_to(version).await?;
        // A shard that was added meanwhile; one that comes later gets what is stored now.
        let newer = snapshot.shards.keys().filter(|id| !ctx.snapshot.shards.contains_key(*id));
        set_on(ctx, newer.cloned().collect(), &msg).await?;
        reply(&in_effect(&snapshot)?)
    })
}

async fn set_on(ctx: &Ctx, shards: Vec<ShardId>, msg: &OutMsg) -> Result<()> {
    for (_, outcome) in ctx.broadcast(&shards, Retryable::No, msg).await {
        outcome?.into_result()?;
    }
    Ok(())
}

/// The defaults that were set for the cluster, as the command that sets them on a shard; `None` where none were.
pub fn for_new_shard(snapshot: &Snapshot) -> Result<Option<Document>> {
    let Some(stored) = snapshot.settings.get(SETTING) else { return Ok(None) };
    let stored = Document::try_from(&**stored)?;
    let mut command = doc! { "setDefaultRWConcern": 1 };
    for name in ["defaultReadConcern", "defaultWriteConcern"] {
        if let Some(concern) = stored.get_document(name).ok().filter(|d| !d.is_empty()) {
            command.insert(name, concern.clone());
        }
    }
    if command.len() == 1 {
        return Ok(None);
    }
    command.insert("writeConcern", doc! { "w": "majority", "wtimeout": 60_000 });
    Ok(Some(command))
}

fn check(ctx: &Ctx, read: Option<&RawDocument>, write: Option<&RawDocument>) -> Result<()> {
    if let Some(level) = read.and_then(|r| bsonx::get(r, "level")) {
        match level {
            RawBsonRef::String("local" | "available" | "majority") => {}
            other => {
                return Err(Error::new(
                    Code::BadValue,
                    format!(
                        "level: {} is not suitable for the default read concern; use local, available or majority",
                        crate::key::text::raw_value(other)
                    ),
                ));
            }
        }
    }
    let Some(write) = write else { return Ok(()) };
    if write.is_empty() {
        let was_set =
            ctx.snapshot.settings.get(SETTING).is_some_and(|d| bsonx::doc(d, "defaultWriteConcern").is_some());
        return match was_set {
            true => Err(Error::new(
                Code::IllegalOperation,
                "The global default write concern cannot be unset once it is set.",
            )),
            false => Ok(()),
        };
    }
    if bsonx::int(write, "w") == Some(0) {
        return Err(Error::new(
            Code::BadValue,
            "Unacknowledged write concern is not suitable for the default write concern",
        ));
    }
    Ok(())
}
