//! `distinct`.

use bson::{RawBsonRef, RawDocument, Timestamp};
use futures_util::future::BoxFuture;

use super::distinct_values::{DistinctValues, too_big};
use super::merged::carry_on;
use super::route::Place;
use crate::bsonx::{self, Writer, kind};
use crate::catalog::model::ShardId;
use crate::catalog::snapshot::CollectionRouting;
use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::shard::{ReadPreference, Retryable};
use crate::target::Route;
use crate::wire::{MAX_BSON, OutMsg};

pub fn distinct<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.namespace()?;
        match ctx.place(&ns) {
            Place::Nowhere => Ok(Reply::raw(DistinctValues::default().reply(None)?)),
            Place::Config => ctx.read_config(request, &ns).await,
            Place::Unsharded(shard) => {
                if let Some(view) = ctx.beneath(&ns).await? {
                    return Box::pin(super::beneath::distinct(ctx, request, &view)).await;
                }
                distinct_on_one(ctx, request, &shard).await
            }
            Place::Sharded(coll) => {
                if request.generic.in_transaction {
                    return Err(Error::new(
                        Code::OperationNotSupportedInTransaction,
                        "Cannot run 'distinct' on a sharded collection in a multi-document transaction: aggregate \
                         with $group instead",
                    ));
                }
                let query = request.get("query").and_then(|v| v.as_document());
                let collation = request.get("collation").and_then(|v| v.as_document());
                let route = ctx.route_uncounted(&coll, query, collation)?;
                match route.single() {
                    Some(shard) => distinct_on_one(ctx, request, shard).await,
                    None => distinct_on_many(ctx, request, &coll, collation, &route).await,
                }
            }
        }
    })
}

async fn distinct_on_one(ctx: &Ctx, request: &Request, shard: &ShardId) -> Result<Reply> {
    let msg = OutMsg::new(request.message.body.clone());
    let pref = request.read_preference()?;
    let answer = ctx.send(shard, &pref, request.read_retry(), &msg).await?.into_result()?;
    Ok(Reply::raw(answer.body))
}

async fn distinct_on_many(
    ctx: &Ctx,
    request: &Request,
    coll: &CollectionRouting,
    collation: Option<&RawDocument>,
    route: &Route,
) -> Result<Reply> {
    let body = request.body();
    let times = ctx.common_times(body, bsonx::doc(body, "readConcern")).await?;
    // Unlike find, distinct does not know `runtimeConstants`.
    let additions = super::find_args::Additions { now: None, ..times.additions() };
    let mut out = Writer::copy_without(body.as_bytes(), |key| additions.replaces(key));
    additions.append(&mut out, bsonx::doc(body, "readConcern"));
    let msg = OutMsg::new(out.finish());
    let requests: Vec<_> = route.shards.iter().map(|shard| (shard.clone(), msg.clone())).collect();
    let pref = request.read_preference()?;
    let mut values = DistinctValues::default();
    let mut at_cluster_time = None;
    for (_, outcome) in ctx.scatter(&requests, &pref, request.read_retry()).await {
        let answer = outcome?.into_result()?;
        let array = bsonx::find(&answer.body, "values").filter(|f| f.kind == kind::ARRAY).ok_or_else(|| {
            Error::new(Code::UnknownError, "A shard replied to distinct without values").from_router()
        })?;
        values.add_array(&answer.body.slice(array.range()))?;
        if let Some(RawBsonRef::Timestamp(time)) = bsonx::get(answer.doc(), "atClusterTime") {
            at_cluster_time = Some(time);
        }
    }
    let effective = collation.filter(|c| !c.is_empty()).or(coll.default_collation.as_deref());
    match effective.filter(|c| bsonx::str(c, "locale") != Some("simple")) {
        None => Ok(Reply::raw(values.reply(at_cluster_time)?)),
        Some(collation) => united_by_a_shard(ctx, request, collation, &values, route, at_cluster_time).await,
    }
}

/// Lets a shard unite the values under a collation, which the router itself does not know: `$setUnion` compares by
/// the request's collation and gives its result in order.
async fn united_by_a_shard(
    ctx: &Ctx,
    request: &Request,
    collation: &RawDocument,
    values: &DistinctValues,
    route: &Route,
    at_cluster_time: Option<Timestamp>,
) -> Result<Reply> {
    let Some(shard) = route.shards.first() else { return Err(Error::internal("a route without shards")) };
    if values.written_len() > MAX_BSON - 4096 {
        return Err(too_big());
    }
    let msg = OutMsg::new(union_body(request.body(), collation, values));
    let answer = ctx.send(shard, &ReadPreference::PRIMARY, Retryable::Read, &msg).await?.into_result()?;
    let united = bsonx::find_path(&answer.body, &["cursor", "firstBatch"])
        .and_then(|batch| bsonx::doc(bsonx::view(&answer.body[batch.range()]), "0"))
        .and_then(|first| bsonx::array(first, "values"))
        .ok_or_else(|| Error::new(Code::UnknownError, "A shard did not unite the distinct values").from_router())?;
    let mut out = Writer::with_capacity(united.as_bytes().len() + 64);
    out.raw("values", kind::ARRAY, united.as_bytes());
    if let Some(time) = at_cluster_time {
        out.timestamp("atClusterTime", time);
    }
    out.double("ok", 1.0);
    Ok(Reply::raw(out.finish().into()))
}

fn union_body(request: &RawDocument, collation: &RawDocument, values: &DistinctValues) -> Vec<u8> {
    let mut items = Vec::with_capacity(values.written_len());
    values.write(&mut items);
    let mut out = Writer::with_capacity(items.len() + 512);
    out.int32("aggregate", 1).open_array("pipeline");
    out.open_doc("0").open_array("$documents").open_doc("0").close().close().close();
    out.open_doc("1").open_doc("$project").int32("_id", 0).open_doc("values").open_array("$setUnion");
    out.open_doc("0").open_array("$literal").raw_fields(&items);
    // The array and the document of the literal, the union, `values`, `$project`, the stage, the pipeline.
    for _ in 0..7 {
        out.close();
    }
    out.open_doc("cursor").close().doc("collation", collation);
    carry_on(request, &mut out);
    for field in ["maxTimeMS", "$db"] {
        if let Some(found) = bsonx::find(request.as_bytes(), field) {
            out.raw_fields(&request.as_bytes()[found.whole()]);
        }
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::{doc, rawdoc};

    #[test]
    fn values_are_united_literally() {
        let mut values = DistinctValues::default();
        let list = rawdoc! { "v": ["$a", { "$b": 1 }] };
        values.add_array(&bsonx::array(&list, "v").unwrap().as_bytes().to_vec().into()).unwrap();
        let request = rawdoc! { "distinct": "c", "key": "v", "maxTimeMS": 5, "lsid": { "id": 1 }, "$db": "d" };
        let collation = rawdoc! { "locale": "en" };
        let body = union_body(&request, &collation, &values);
        bsonx::check(&body).unwrap();
        let literal = doc! { "$literal": ["$a", { "$b": 1 }] };
        assert_eq!(
            bson::Document::from_reader(&*body).unwrap(),
            doc! {
                "aggregate": 1,
                "pipeline": [
                    { "$documents": [{}] },
                    { "$project": { "_id": 0, "values": { "$setUnion": [literal] } } },
                ],
                "cursor": {},
                "collation": { "locale": "en" },
                "lsid": { "id": 1 },
                "maxTimeMS": 5,
                "$db": "d",
            }
        );
    }
}
