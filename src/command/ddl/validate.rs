//! `validate`, `dataSize` and the plan cache commands: asked of the owners, told shard by shard.

use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use futures_util::future::BoxFuture;

use super::raw::{self, Names, raw_field, reply_of};
use crate::bsonx;
use crate::catalog::model::{Namespace, ShardId};
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::scatter::ShardOutcome;
use crate::shard::{ReadPreference, Retryable};
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("validate", Access::DbAdmin, "checks a collection's data and indexes on its shards", validate),
    CommandSpec::new("dataSize", Access::Read, "the size of a range of a collection", data_size)
        .aliases(&["datasize"])
        .secondary_ok(),
    CommandSpec::new("planCacheClear", Access::DbAdmin, "forgets cached query plans", plan_cache),
    CommandSpec::new("planCacheClearFilters", Access::DbAdmin, "removes index filters", plan_cache),
    CommandSpec::new("planCacheSetFilter", Access::DbAdmin, "sets an index filter", plan_cache),
    CommandSpec::new("planCacheListFilters", Access::Read, "the index filters of a collection", list_filters)
        .secondary_ok(),
];

/// The chunks' owners, or the primary shard; none without a database.
fn owners(ctx: &Ctx, ns: &Namespace) -> Vec<ShardId> {
    match ctx.snapshot.collection(ns.as_str()) {
        Some(routing) => routing.table.owners().to_vec(),
        None => ctx.primary_shard(ns.db()).into_iter().collect(),
    }
}

async fn ask(ctx: &Ctx, request: &Request, shards: &[ShardId]) -> Result<Vec<ShardOutcome>> {
    let pref = ReadPreference::from_command(request.body())?;
    let msg = OutMsg::new(request.message.body.clone());
    let requests: Vec<_> = shards.iter().map(|s| (s.clone(), msg.clone())).collect();
    Ok(ctx.scatter(&requests, &pref, Retryable::Read).await)
}

fn validate<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.namespace()?;
        let shards = owners(ctx, &ns);
        if shards.is_empty() {
            return Err(Error::new(Code::NamespaceNotFound, format!("Collection '{ns}' does not exist to validate.")));
        }
        let outcomes = ask(ctx, request, &shards).await?;
        if let Some(error) = raw::first_error(&outcomes, &[]) {
            return Err(error);
        }
        let valid = outcomes.iter().all(|o| bsonx::truthy(&reply_of(o), "valid") == Some(true));
        let mut reply = RawDocumentBuf::new();
        reply.append(cstr!("raw"), raw_field(&outcomes, &ctx.snapshot, Names::Shard));
        reply.append(cstr!("valid"), valid);
        Ok(Reply::ok(reply))
    })
}

fn data_size<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.full_namespace()?;
        if let Some(routing) = ctx.snapshot.collection(ns.as_str()) {
            let pattern = request.doc_arg("keyPattern")?;
            if pattern.is_some_and(|p| *p != *routing.key.to_doc()) {
                return Err(Error::new(Code::BadValue, "keyPattern must equal shard key"));
            }
            for bound in ["min", "max"] {
                if let Some(given) = request.doc_arg(bound)? {
                    check_bound(given, routing.key.to_doc())?;
                }
            }
        }
        let began = std::time::Instant::now();
        let (mut size, mut objects, mut estimate) = (0.0, 0.0, None);
        for outcome in ask(ctx, request, &owners(ctx, &ns)).await? {
            let reply = outcome.1?.into_result()?;
            size += number(reply.doc(), "size");
            objects += number(reply.doc(), "numObjects");
            estimate = estimate.or(bsonx::truthy(reply.doc(), "estimate"));
        }
        let mut reply = RawDocumentBuf::new();
        if let Some(estimate) = estimate {
            reply.append(cstr!("estimate"), estimate);
        }
        reply.append(cstr!("size"), size);
        reply.append(cstr!("numObjects"), objects);
        reply.append(cstr!("millis"), began.elapsed().as_millis() as i32);
        Ok(Reply::ok(reply))
    })
}

fn check_bound(bound: &RawDocument, key: &RawDocument) -> Result<()> {
    let same = bound.iter().flatten().map(|(k, _)| k).eq(key.iter().flatten().map(|(k, _)| k));
    match same {
        true => Ok(()),
        false => Err(Error::new(Code::BadValue, "min and max must have the fields of the shard key")),
    }
}

fn number(doc: &RawDocument, name: &str) -> f64 {
    match bsonx::get(doc, name) {
        Some(RawBsonRef::Double(d)) => d,
        Some(other) => bsonx::as_int(other).unwrap_or(0) as f64,
        None => 0.0,
    }
}

/// `{<shard>: {ok: 1}, …, ok: 1}`.
fn plan_cache<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.namespace()?;
        let outcomes = ask(ctx, request, &owners(ctx, &ns)).await?;
        by_shard(&outcomes, RawDocumentBuf::new())
    })
}

fn list_filters<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.namespace()?;
        let outcomes = ask(ctx, request, &owners(ctx, &ns)).await?;
        let mut reply = RawDocumentBuf::new();
        let first = outcomes.first().map(reply_of).unwrap_or_default();
        let filters = bsonx::array(&first, "filters").map_or_else(RawArrayBuf::new, |f| f.to_owned());
        reply.append(cstr!("filters"), filters);
        by_shard(&outcomes, reply)
    })
}

fn by_shard(outcomes: &[ShardOutcome], mut reply: RawDocumentBuf) -> Result<Reply> {
    if let Some(error) = raw::first_error(outcomes, &[]) {
        return Err(error);
    }
    for outcome in outcomes {
        if let Ok(name) = bson::raw::CString::try_from(&*outcome.0) {
            reply.append(&name, reply_of(outcome));
        }
    }
    Ok(Reply::ok(reply))
}
