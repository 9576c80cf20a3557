//! `aggregate`.

use std::sync::Arc;

use bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use futures_util::future::BoxFuture;

use super::agg_merge::merge_into;
use super::agg_plan::{Merge, NoPlan, OWN_STREAMS, TWO_READS, WRITE_BACK, not_yet, plan};
use super::agg_run::{Run, count_doc};
use super::numbers::whole;
use super::pass::{CursorOptions, empty_result};
use super::route::Place;
use super::stages::{self, Foreign};
use crate::bsonx;
use crate::catalog::model::{Namespace, ShardId};
use crate::catalog::snapshot::CollectionRouting;
use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::shard::{ReadPreference, Retryable};
use crate::stats::Hosts;
use crate::target::{Reason, Route};
use crate::wire::OutMsg;

pub fn aggregate<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        refuse_internal_fields(request.body())?;
        if let Some(RawBsonRef::Array(pipeline)) = request.get("pipeline") {
            refuse_internal_targets(&stages::foreign(request.db(), pipeline))?;
        }
        match request.get("explain") {
            None | Some(RawBsonRef::Boolean(false)) => {}
            Some(RawBsonRef::Boolean(true)) => return super::explain::explain_aggregate(ctx, request).await,
            Some(_) => return Err(Error::new(Code::TypeMismatch, "explain must be a boolean")),
        }
        stages::stages(pipeline(request)?)?;
        match request.argument()? {
            other if whole(other) == Some(1) => return on_database(ctx, request).await,
            other if whole(other).is_some() => {
                return Err(Error::new(
                    Code::FailedToParse,
                    "Invalid command format: the 'aggregate' field must specify a collection name or 1",
                ));
            }
            _ => {}
        }
        any(ctx, request, &request.namespace()?).await
    })
}

fn pipeline(request: &Request) -> Result<&RawArray> {
    match request.get("pipeline") {
        Some(RawBsonRef::Array(pipeline)) => Ok(pipeline),
        None => Err(Error::with_code(40414, "BSON field 'aggregate.pipeline' is missing but a required field")),
        _ => Err(Error::new(Code::TypeMismatch, "'pipeline' option must be specified as an array")),
    }
}

/// An aggregation of a collection or view.
pub async fn any(ctx: &Ctx, request: &Request, ns: &Namespace) -> Result<Reply> {
    if matches!(ctx.place(ns), Place::Unsharded(_))
        && let Some(view) = ctx.beneath(ns).await?
    {
        return Box::pin(super::beneath::cursor(ctx, request, &view)).await;
    }
    run(ctx, request, ns, ns).await
}

/// An aggregation of the collection `ns`, whose results the client gets under the name `shown`.
pub async fn run(ctx: &Ctx, request: &Request, ns: &Namespace, shown: &Namespace) -> Result<Reply> {
    let pipeline = pipeline(request)?;
    let stages = stages::stages(pipeline)?;
    let foreign = stages::foreign(ns.db(), pipeline);
    if let Some(target) = ctx.sharded_target(&stages, &foreign) {
        let collation = match ctx.place(ns) {
            Place::Sharded(coll) => coll.default_collation.clone(),
            Place::Unsharded(shard) => ctx.default_collation(ns, &shard).await?,
            Place::Config | Place::Nowhere => None,
        };
        return merge_into(ctx, request, Some(ns), shown, collation.as_deref(), &target).await;
    }
    match ctx.place(ns) {
        Place::Nowhere => Ok(empty_result(shown.as_str())),
        Place::Config => {
            ctx.check_within_config(&foreign)?;
            ctx.read_config(request, ns).await
        }
        Place::Unsharded(shard) => {
            let here = ctx.foreign_is_on(&foreign, &shard).await?;
            ctx.router.stats.targeted.aggregate.count(Hosts::Unsharded);
            if here {
                return pass_on(ctx, request, &shard, &foreign, &stages, (ns != shown).then_some(shown)).await;
            }
            let given = bsonx::doc(request.body(), "collation").is_some_and(|c| !c.is_empty());
            let collation = if given { None } else { ctx.default_collation(ns, &shard).await? };
            let route = Route::new([shard], Reason::Unsharded);
            divided(ctx, request, shown, &route, collation.as_deref(), &stages, &foreign).await
        }
        Place::Sharded(coll) => on_sharded(ctx, request, shown, &coll, &stages, &foreign).await,
    }
}

/// What a server and a router keep for themselves is written by no pipeline.
///
/// # Errors
/// 31321 and 31320, as a server has them.
fn refuse_internal_targets(foreign: &[Foreign]) -> Result<()> {
    match foreign.iter().find(|f| f.written && is_internal(f.ns.db())) {
        None => Ok(()),
        Some(Foreign { ns, stage: "$out", .. }) => {
            Err(Error::with_code(31321, format!("Can't $out to internal database: {}", ns.db())))
        }
        Some(Foreign { ns, .. }) => {
            Err(Error::with_code(31320, format!("Cannot $merge to internal database: {}", ns.db())))
        }
    }
}

fn is_internal(db: &str) -> bool {
    matches!(db, "admin" | "config" | "local")
}

/// Fields that routers send to shards and clients must not send to routers.
fn refuse_internal_fields(body: &RawDocument) -> Result<()> {
    let set = |field| match bsonx::get(body, field) {
        None => Ok(None),
        Some(RawBsonRef::Boolean(set)) => Ok(Some(set)),
        Some(other) => {
            let found = bsonx::type_name(other.element_type());
            let text = format!("Field '{field}' should be a boolean value, but found: {found}");
            Err(Error::new(Code::TypeMismatch, text))
        }
    };
    let (needs_merge, from_mongos) = (set("needsMerge")?, set("fromMongos")?);
    if from_mongos == Some(true) {
        return Err(Error::with_code(
            51089,
            "Internal parameter(s) [needsMerge, fromMongos] cannot be set to 'true' when sent to mongos",
        ));
    }
    if needs_merge.is_some() && from_mongos.is_none() {
        return Err(Error::new(Code::FailedToParse, "Cannot specify 'needsMerge' without 'fromMongos'"));
    }
    if bsonx::get(body, "exchange").is_some_and(|value| value != RawBsonRef::Null) {
        return Err(Error::with_code(51028, "Internal parameter 'exchange' cannot be set when sent to mongos"));
    }
    Ok(())
}

/// The whole pipeline on one shard.
async fn pass_on(
    ctx: &Ctx,
    request: &Request,
    shard: &ShardId,
    foreign: &[Foreign],
    stages: &[(&str, RawBsonRef<'_>)],
    shown: Option<&Namespace>,
) -> Result<Reply> {
    let writes = foreign.iter().any(|f| f.written);
    let retry = if writes { Retryable::No } else { request.read_retry() };
    let options =
        CursorOptions { no_timeout: false, await_data: stages.first().is_some_and(|s| s.0 == "$changeStream") };
    ctx.make_target(foreign, shard).await?;
    // Only the primary can write; the server would refuse elsewhere.
    let pref = if writes { ReadPreference::PRIMARY } else { request.read_preference()? };
    let reply = ctx.send(shard, &pref, retry, &OutMsg::new(request.message.body.clone())).await?;
    match shown {
        Some(name) => ctx.adopt_as(request, reply, name, options),
        None => ctx.adopt(request, reply, options),
    }
}

/// `{aggregate: 1}`: stages that make their own documents.
pub async fn on_database(ctx: &Ctx, request: &Request) -> Result<Reply> {
    let db = request.db();
    let pipeline = pipeline(request)?;
    let stages = &*stages::stages(pipeline)?;
    match stages.first().map(|stage| stage.0) {
        None => {
            return Err(Error::new(Code::InvalidNamespace, "{aggregate: 1} is not valid for an empty pipeline."));
        }
        Some("$changeStream") => {
            let whole_cluster = db == "admin";
            let sharded = ctx.snapshot.collections.values().any(|coll| whole_cluster || coll.ns.db() == db);
            if sharded || whole_cluster && ctx.snapshot.shards.len() > 1 {
                return Err(not_yet("$changeStream over several shards", OWN_STREAMS));
            }
        }
        Some("$currentOp") => return crate::command::admin::current_op::aggregate(ctx, request).await,
        Some("$shardedDataDistribution") => {
            return Box::pin(crate::command::admin::data_distribution::aggregate(ctx, request)).await;
        }
        _ => {}
    }
    let foreign = stages::foreign(db, pipeline);
    let shown = Namespace::new(db, "$cmd.aggregate")?;
    if let Some(target) = ctx.sharded_target(stages, &foreign) {
        return merge_into(ctx, request, None, &shown, None, &target).await;
    }
    let home = ctx.primary_shard(db).or_else(|| ctx.snapshot.shards.keys().next().cloned());
    let Some(shard) = home else { return Err(Error::new(Code::ShardNotFound, "No shards found")) };
    let here = ctx.foreign_is_on(&foreign, &shard).await?;
    ctx.router.stats.targeted.aggregate.count(Hosts::Unsharded);
    if here {
        return pass_on(ctx, request, &shard, &foreign, stages, None).await;
    }
    let route = Route::new([shard], Reason::Unsharded);
    divided(ctx, request, &shown, &route, None, stages, &foreign).await
}

async fn on_sharded(
    ctx: &Ctx,
    request: &Request,
    ns: &Namespace,
    coll: &Arc<CollectionRouting>,
    stages: &[(&str, RawBsonRef<'_>)],
    foreign: &[Foreign],
) -> Result<Reply> {
    let collation = request.get("collation").and_then(|v| v.as_document());
    let filter = leading_filter(stages);
    let counters = &ctx.router.stats.targeted.aggregate;
    let route = ctx.route(coll, filter.as_deref(), collation, counters)?;
    if let Some(shard) = route.single()
        && ctx.foreign_is_on(foreign, shard).await?
    {
        return pass_on(ctx, request, shard, foreign, stages, (*ns != coll.ns).then_some(ns)).await;
    }
    divided(ctx, request, ns, &route, coll.default_collation.as_deref(), stages, foreign).await
}

/// One part of the pipeline on each shard of the route, the rest over what they give. `collation` is the collection's.
async fn divided(
    ctx: &Ctx,
    request: &Request,
    ns: &Namespace,
    route: &Route,
    collation: Option<&RawDocument>,
    stages: &[(&str, RawBsonRef<'_>)],
    foreign: &[Foreign],
) -> Result<Reply> {
    let plan = match plan(stages) {
        Ok(plan) => plan,
        Err(NoPlan::AskShard) => return ctx.judge(request, route).await,
        Err(NoPlan::Error(error)) => return Err(error),
    };
    let Some(batch_size) = batch_size(request.body()) else { return ctx.judge(request, route).await };
    let run = Run { ctx, request, ns, shards: &route.shards, collation, plan: &plan, batch_size };
    match &plan.merge {
        Merge::Stream(stream) => run.stream(stream).await,
        Merge::Count { id, field, skip, limit } => {
            let n = run.count().await?;
            let rest = n.saturating_sub(*skip);
            let doc = count_doc(id.as_ref(), field, limit.map_or(rest, |limit| rest.min(limit)));
            // A first batch of nothing leaves the result to the cursor.
            Ok(ctx.stored_reply(request, ns, doc.into_iter().collect(), batch_size, batch_size == Some(0)))
        }
        Merge::Pipeline { input, pipeline } => run.gathered(input, pipeline, foreign).await,
    }
}

/// The `cursor.batchSize`, if there is one; `None` where `cursor` is not as it must be.
fn batch_size(body: &RawDocument) -> Option<Option<i64>> {
    let mut size = None;
    for (key, value) in bsonx::doc(body, "cursor")?.iter().flatten() {
        match (key.as_str(), value) {
            ("batchSize", RawBsonRef::Null) => {}
            ("batchSize", value) => size = Some(whole(value).filter(|n| *n >= 0)?),
            _ => return None,
        }
    }
    Some(size)
}

/// The condition that the documents of the first stages fulfil: the leading `$match`es, or the query of `$geoNear`.
pub fn leading_filter(stages: &[(&str, RawBsonRef<'_>)]) -> Option<RawDocumentBuf> {
    if let Some(("$geoNear", RawBsonRef::Document(spec))) = stages.first() {
        return bsonx::doc(spec, "query").map(|query| query.to_owned());
    }
    let mut filters: Vec<&RawDocument> =
        stages.iter().take_while(|s| s.0 == "$match").filter_map(|s| s.1.as_document()).collect();
    match filters.len() {
        0 => None,
        1 => filters.pop().map(|filter| filter.to_owned()),
        _ => {
            let mut all = bson::RawArrayBuf::new();
            filters.into_iter().for_each(|filter| all.push(filter.to_owned()));
            Some(rawdoc! { "$and": all })
        }
    }
}

impl Ctx {
    /// The sharded collection that the pipeline merges into.
    fn sharded_target(&self, stages: &[(&str, RawBsonRef<'_>)], foreign: &[Foreign]) -> Option<Arc<CollectionRouting>> {
        stages.last().filter(|stage| stage.0 == "$merge")?;
        let target = foreign.iter().rfind(|f| f.stage == "$merge")?;
        match self.place(&target.ns) {
            Place::Sharded(coll) => Some(coll),
            _ => None,
        }
    }

    /// Checks that a pipeline on the catalog reads nothing else: there it would be taken for what it is not.
    ///
    /// # Errors
    /// CommandNotSupported (115).
    fn check_within_config(&self, foreign: &[Foreign]) -> Result<()> {
        let beyond = |f: &&Foreign| f.ns.db() != "config" || !matches!(self.place(&f.ns), Place::Config);
        match foreign.iter().find(beyond) {
            Some(other) => Err(not_yet(&format!("{} from config with {}", other.stage, other.ns), TWO_READS)),
            None => Ok(()),
        }
    }

    /// Makes the database that a pipeline writes, where it is not there yet: on the shard that runs the pipeline.
    pub async fn make_target(&self, foreign: &[Foreign], shard: &ShardId) -> Result<()> {
        for target in foreign.iter().filter(|f| f.written) {
            // Another router may have made it.
            if matches!(self.place(&target.ns), Place::Nowhere)
                && matches!(self.confirmed().await?.place(&target.ns), Place::Nowhere)
            {
                self.router.catalog.create_database(target.ns.db(), Some(shard)).await?;
            }
        }
        Ok(())
    }

    /// Whether every other namespace that a pipeline touches is on the shard.
    ///
    /// # Errors
    /// 28769 for `$out` to a sharded collection; CommandNotSupported (115) for the catalog.
    pub async fn foreign_is_on(&self, foreign: &[Foreign], shard: &ShardId) -> Result<bool> {
        for other in foreign {
            let Foreign { ns, stage, written } = other;
            let place = match self.place(ns) {
                // Another router may have made it.
                Place::Nowhere => self.confirmed().await?.place(ns),
                known => known,
            };
            match place {
                Place::Sharded(_) if *stage == "$out" => {
                    return Err(Error::with_code(28769, format!("{ns} cannot be sharded")));
                }
                Place::Config => {
                    return Err(not_yet(&format!("{stage} with {ns}"), if *written { WRITE_BACK } else { TWO_READS }));
                }
                Place::Nowhere => {}
                Place::Sharded(_) => return Ok(false),
                Place::Unsharded(home) if home != *shard => return Ok(false),
                Place::Unsharded(_) if !written && self.beneath(ns).await?.is_some() => return Ok(false),
                Place::Unsharded(_) => {}
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
#[path = "aggregate_tests.rs"]
mod tests;
