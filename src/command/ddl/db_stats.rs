//! `dbStats`: every shard's reply and their sums.

use bson::{RawDocumentBuf, cstr};
use futures_util::future::BoxFuture;

use super::raw::{self, Names, raw_field};
use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::router::CONFIG_SHARD;
use crate::scatter::ShardOutcome;
use crate::shard::{ReadPreference, Retryable};
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("dbStats", Access::Read, "size and storage of a database", db_stats)
        .aliases(&["dbstats"])
        .secondary_ok()];

fn db_stats<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let scale = match request.int_arg("scale")? {
            None => 1,
            Some(n) if n >= 1 => n,
            Some(_) => return Err(Error::new(Code::BadValue, "BSON field 'scale' value must be >= 1")),
        };
        let mut shards: Vec<ShardId> = match request.db() {
            "admin" => ctx.primary_shard("admin").into_iter().collect(),
            _ => ctx.snapshot.shards.keys().cloned().collect(),
        };
        if request.db() == "config" && ctx.router.config.catalog.config_db().is_some() {
            shards.push(CONFIG_SHARD.into());
        }
        let pref = ReadPreference::from_command(request.body())?;
        let msg = OutMsg::new(request.message.body.clone());
        let requests: Vec<_> = shards.into_iter().map(|s| (s, msg.clone())).collect();
        let outcomes = ctx.scatter(&requests, &pref, Retryable::Read).await;
        let raw = raw_field(&outcomes, &ctx.snapshot, Names::ConnectionString);
        if let Some(error) = raw::first_error(&outcomes, &[Code::ShardNotFound]) {
            let mut extra = RawDocumentBuf::new();
            extra.append(cstr!("raw"), raw);
            return Err(error.with_extra(extra));
        }
        let mut reply = RawDocumentBuf::new();
        reply.append(cstr!("raw"), raw);
        reply.append(cstr!("db"), request.db());
        sums(&mut reply, &outcomes, scale);
        Ok(Reply::ok(reply))
    })
}

fn sums(reply: &mut RawDocumentBuf, outcomes: &[ShardOutcome], scale: i64) {
    let docs: Vec<_> = outcomes.iter().filter_map(|(_, o)| o.as_ref().ok()).map(|r| r.doc()).collect();
    let sum = |name: &str| docs.iter().map(|d| bsonx::int(d, name).unwrap_or(0)).sum::<i64>();
    let mut put = |name: &'static bson::raw::CStr, value: i64| match i32::try_from(value) {
        Ok(small) => reply.append(name, small),
        Err(_) => reply.append(name, value),
    };
    let (objects, size) = (sum("objects"), sum("dataSize"));
    put(cstr!("collections"), sum("collections"));
    put(cstr!("views"), sum("views"));
    put(cstr!("objects"), objects);
    // Each shard divided its own size by the scale.
    let average = if objects > 0 { (size * scale) as f64 / objects as f64 } else { 0.0 };
    reply.append(cstr!("avgObjSize"), average);
    let mut put = |name: &'static bson::raw::CStr, value: i64| match i32::try_from(value) {
        Ok(small) => reply.append(name, small),
        Err(_) => reply.append(name, value),
    };
    put(cstr!("dataSize"), size);
    put(cstr!("storageSize"), sum("storageSize"));
    if docs.iter().any(|d| bsonx::get(d, "freeStorageSize").is_some()) {
        put(cstr!("freeStorageSize"), sum("freeStorageSize"));
        put(cstr!("indexFreeStorageSize"), sum("indexFreeStorageSize"));
        put(cstr!("totalFreeStorageSize"), sum("totalFreeStorageSize"));
    }
    put(cstr!("totalSize"), sum("totalSize"));
    put(cstr!("indexes"), sum("indexes"));
    put(cstr!("indexSize"), sum("indexSize"));
    put(cstr!("scaleFactor"), scale);
    put(cstr!("fileSize"), 0);
}
