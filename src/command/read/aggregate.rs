//! `aggregate`.

use std::sync::Arc;

use bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::agg_plan::{Merge, NoPlan, ONE_SHARD, OWN_STREAMS, Plan, Stream, TWO_READS, WRITE_BACK, not_yet, plan};
use super::find_args::{Additions, FIRST_BATCH};
use super::merged::{CommonTimes, First, carry_on, start};
use super::numbers::whole;
use super::pass::{CursorOptions, empty_result};
use super::route::Place;
use super::stages::{self, Foreign};
use crate::bsonx::{self, Writer};
use crate::catalog::model::{Namespace, ShardId};
use crate::catalog::snapshot::CollectionRouting;
use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::merge::{Gathered, Merger};
use crate::shard::{ReadPreference, Retryable};
use crate::stats::Hosts;
use crate::target::Route;
use crate::wire::{MAX_BSON_INTERNAL, OutMsg};

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
        let pipeline = match request.get("pipeline") {
            Some(RawBsonRef::Array(pipeline)) => pipeline,
            None => {
                let text = "BSON field 'aggregate.pipeline' is missing but a required field";
                return Err(Error::with_code(40414, text));
            }
            _ => return Err(Error::new(Code::TypeMismatch, "'pipeline' option must be specified as an array")),
        };
        let stages = stages::stages(pipeline)?;
        match request.argument()? {
            other if whole(other) == Some(1) => return on_database(ctx, request, pipeline, &stages).await,
            other if whole(other).is_some() => {
                return Err(Error::new(
                    Code::FailedToParse,
                    "Invalid command format: the 'aggregate' field must specify a collection name or 1",
                ));
            }
            _ => {}
        }
        let ns = request.namespace()?;
        if matches!(ctx.place(&ns), Place::Unsharded(_))
            && let Some(view) = ctx.beneath(&ns).await?
        {
            return Box::pin(super::beneath::cursor(ctx, request, &view)).await;
        }
        run(ctx, request, &ns, &ns).await
    })
}

/// An aggregation of the collection `ns`, whose results the client gets under the name `shown`.
pub async fn run(ctx: &Ctx, request: &Request, ns: &Namespace, shown: &Namespace) -> Result<Reply> {
    let Some(pipeline) = request.get("pipeline").and_then(|v| v.as_array()) else {
        return Err(Error::new(Code::TypeMismatch, "'pipeline' option must be specified as an array"));
    };
    let stages = stages::stages(pipeline)?;
    let foreign = stages::foreign(ns.db(), pipeline);
    match ctx.place(ns) {
        Place::Nowhere => Ok(empty_result(shown.as_str())),
        Place::Config => {
            ctx.check_within_config(&foreign)?;
            ctx.read_config(request, ns).await
        }
        Place::Unsharded(shard) => {
            ctx.check_foreign(&foreign, &shard).await?;
            ctx.router.stats.targeted.aggregate.count(Hosts::Unsharded);
            pass_on(ctx, request, &shard, &foreign, &stages, (ns != shown).then_some(shown)).await
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
    // Only the primary can write; the server would refuse elsewhere.
    let pref = if writes { ReadPreference::PRIMARY } else { request.read_preference()? };
    let reply = ctx.send(shard, &pref, retry, &OutMsg::new(request.message.body.clone())).await?;
    match shown {
        Some(name) => ctx.adopt_as(request, reply, name, options),
        None => ctx.adopt(request, reply, options),
    }
}

/// `{aggregate: 1}`: stages that make their own documents.
async fn on_database(
    ctx: &Ctx,
    request: &Request,
    pipeline: &RawArray,
    stages: &[(&str, RawBsonRef<'_>)],
) -> Result<Reply> {
    let db = request.db();
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
    let home = ctx.primary_shard(db).or_else(|| ctx.snapshot.shards.keys().next().cloned());
    let Some(shard) = home else { return Err(Error::new(Code::ShardNotFound, "No shards found")) };
    ctx.check_foreign(&foreign, &shard).await?;
    ctx.router.stats.targeted.aggregate.count(Hosts::Unsharded);
    pass_on(ctx, request, &shard, &foreign, stages, None).await
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
    if let Some(shard) = route.single() {
        match ctx.check_foreign(foreign, shard).await {
            Ok(()) => return pass_on(ctx, request, shard, foreign, stages, (*ns != coll.ns).then_some(ns)).await,
            // The other collection may be where the rest of the pipeline can run.
            Err(error) if error.is(Code::CommandNotSupported) => {}
            Err(error) => return Err(error),
        }
    }
    let plan = match plan(stages) {
        Ok(plan) => plan,
        Err(NoPlan::AskShard) => return ctx.judge(request, &route).await,
        Err(NoPlan::Error(error)) => return Err(error),
    };
    let Some(batch_size) = batch_size(request.body()) else { return ctx.judge(request, &route).await };
    let run = Run { ctx, request, ns, coll, route: &route, plan: &plan, batch_size };
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

/// One aggregation over several shards.
struct Run<'a> {
    ctx: &'a Ctx,
    request: &'a Request,
    ns: &'a Namespace,
    coll: &'a CollectionRouting,
    route: &'a Route,
    plan: &'a Plan,
    batch_size: Option<i64>,
}

impl Run<'_> {
    /// Opens the shards' cursors and merges them.
    async fn open(
        &self,
        stream: &Stream,
        batch_size: Option<i64>,
        times: &CommonTimes,
    ) -> Result<crate::cursor::MergedCursor> {
        let body = self.request.body();
        let read_concern = bsonx::doc(body, "readConcern");
        let request = |shard: &ShardId| {
            let body = shard_body(body, self.plan, shard, batch_size, times.additions(), read_concern);
            (shard.clone(), OutMsg::new(body))
        };
        let requests: Vec<_> = self.route.shards.iter().map(request).collect();
        let pref = self.request.read_preference()?;
        let firsts = self.ctx.open_cursors(self.request, &requests, &pref, false).await?;
        let mut merger = Merger::new(requests.len(), stream.order.clone(), stream.skip, stream.limit);
        if self.plan.needs_merge {
            merger = merger.with_metadata();
        }
        start(merger, firsts, false)
    }

    async fn times(&self) -> Result<CommonTimes> {
        let body = self.request.body();
        self.ctx.common_times(body, bsonx::doc(body, "readConcern")).await
    }

    async fn stream(&self, stream: &Stream) -> Result<Reply> {
        let size = self.batch_size.map(|size| match size {
            0 => 0,
            size => size.saturating_add(i64::try_from(stream.skip).unwrap_or(i64::MAX)),
        });
        let cursor = self.open(stream, size, &self.times().await?).await?;
        let ns: Arc<str> = self.ns.as_str().into();
        let count = usize::try_from(self.batch_size.unwrap_or(FIRST_BATCH)).unwrap_or(usize::MAX);
        let first =
            First { ns: &ns, count, batch_size: self.batch_size, close: false, options: CursorOptions::default() };
        self.ctx.first_reply(self.request, cursor, first).await
    }

    /// The sum of what the shards count.
    async fn count(&self) -> Result<u64> {
        let mut cursor = self.open(&Stream::default(), None, &self.times().await?).await?;
        let mut counts = Gathered::default();
        self.ctx.fill(self.request, &mut cursor, &mut counts, usize::MAX, None).await?;
        let mut out = Writer::new();
        out.raw_fields(counts.items());
        let counts = out.finish();
        let values = bsonx::view(&counts).iter().map_while(std::result::Result::ok);
        let numbers = values.filter_map(|(_, count)| bsonx::int(count.as_document()?, "n"));
        Ok(numbers.fold(0, |sum: u64, n| sum.saturating_add(n.max(0) as u64)))
    }

    /// Gathers the shards' results and has one shard run the rest of the pipeline over them.
    async fn gathered(&self, input: &Stream, pipeline: &RawArray, foreign: &[Foreign]) -> Result<Reply> {
        let shard = self.merging_shard(foreign)?;
        self.ctx.check_foreign(foreign, &shard).await?;
        let times = self.times().await?;
        let mut cursor = self.open(input, Some(i64::from(i32::MAX)), &times).await?;
        let mut docs = Gathered::default();
        let size = Some(i64::from(i32::MAX));
        self.ctx.fill(self.request, &mut cursor, &mut docs, usize::MAX, size).await?;
        if !cursor.merger.at_end() {
            let what = format!("A pipeline that has to gather more than 16 MiB of {} in one place", self.ns);
            return Err(not_yet(&what, ONE_SHARD));
        }
        drop(cursor);
        let collation = self.coll.default_collation.as_deref();
        let body = merge_body(self.request.body(), &docs, pipeline, collation, times.now_alone())?;
        let writes = foreign.iter().any(|f| f.written);
        let retry = if writes { Retryable::No } else { self.request.read_retry() };
        let reply = self.ctx.send(&shard, &ReadPreference::PRIMARY, retry, &OutMsg::new(body)).await?;
        self.ctx.adopt_as(self.request, reply, self.ns, CursorOptions::default())
    }

    /// Where the rest runs: with the other collections it needs, else on one of the shards that were read.
    fn merging_shard(&self, foreign: &[Foreign]) -> Result<ShardId> {
        let home = foreign.iter().find_map(|f| self.ctx.primary_shard(f.ns.db()));
        home.or_else(|| self.route.shards.first().cloned()).ok_or_else(|| Error::internal("a route without shards"))
    }
}

/// What one shard gets.
fn shard_body(
    body: &RawDocument,
    plan: &Plan,
    shard: &str,
    batch_size: Option<i64>,
    more: Additions<'_>,
    read_concern: Option<&RawDocument>,
) -> Vec<u8> {
    let mut out = Writer::copy_without(body.as_bytes(), |key| {
        matches!(key, b"pipeline" | b"cursor" | b"fromMongos" | b"needsMerge" | b"writeConcern") || more.replaces(key)
    });
    out.open_array("pipeline");
    let (mut index, mut first) = (0, true);
    let mut push = |out: &mut Writer, stage: &RawDocument| {
        out.doc(&index.to_string(), stage);
        index += 1;
    };
    for stage in plan.shard.into_iter().map_while(std::result::Result::ok).filter_map(|s| s.as_document()) {
        push(&mut out, stage);
        if plan.add_shard && first {
            push(&mut out, &rawdoc! { "$addFields": { "shard": { "$literal": shard } } });
        }
        first = false;
    }
    out.close().open_doc("cursor");
    if let Some(size) = batch_size {
        out.int64("batchSize", size);
    }
    out.close();
    if plan.needs_merge {
        out.bool("fromMongos", true).bool("needsMerge", true);
    }
    more.append(&mut out, read_concern);
    out.finish()
}

/// `{aggregate: 1, pipeline: [{$documents: …}, …]}` in the client's database, under the collection's collation.
///
/// # Errors
/// BSONObjectTooLarge (10334) where documents and pipeline do not fit into one command.
fn merge_body(
    request: &RawDocument,
    docs: &Gathered,
    pipeline: &RawArray,
    default_collation: Option<&RawDocument>,
    now: Additions<'_>,
) -> Result<Vec<u8>> {
    let mut out = Writer::with_capacity(docs.items().len() + 1024);
    out.int32("aggregate", 1).open_array("pipeline");
    out.open_doc("0").open_doc("$documents").open_array("$literal").raw_fields(docs.items());
    out.close().close().close();
    for (i, stage) in pipeline.into_iter().map_while(std::result::Result::ok).enumerate() {
        if let RawBsonRef::Document(stage) = stage {
            out.doc(&(i + 1).to_string(), stage);
        }
    }
    out.close();
    let bytes = request.as_bytes();
    for field in ["cursor", "let", "allowDiskUse", "maxTimeMS", "writeConcern", "bypassDocumentValidation", "$db"] {
        if let Some(found) = bsonx::find(bytes, field) {
            out.raw_fields(&bytes[found.whole()]);
        }
    }
    now.append(&mut out, None);
    // An empty collation is as good as none.
    match bsonx::doc(request, "collation").filter(|c| !c.is_empty()).or(default_collation) {
        Some(collation) => out.doc("collation", collation),
        None => &mut out,
    };
    carry_on(request, &mut out);
    if out.len() > MAX_BSON_INTERNAL {
        return Err(Error::new(Code::BSONObjectTooLarge, "The pipeline is too large to be sent with what it merges"));
    }
    Ok(out.finish())
}

/// The result of a pipeline that counts: one document, or none for a count of 0.
fn count_doc(id: Option<&bson::RawBson>, field: &str, n: u64) -> Option<Bytes> {
    if n == 0 {
        return None;
    }
    let mut doc = RawDocumentBuf::new();
    if let Some(id) = id {
        doc.append(cstr!("_id"), id.clone());
    }
    if let Ok(field) = bson::raw::CString::try_from(field) {
        match i32::try_from(n) {
            Ok(n) => doc.append(&field, n),
            Err(_) => doc.append(&field, i64::try_from(n).unwrap_or(i64::MAX)),
        }
    }
    Some(doc.into_bytes().into())
}

impl Ctx {
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

    /// Checks that every other namespace a pipeline touches is where the pipeline runs.
    ///
    /// # Errors
    /// 28769 for `$out` to a sharded collection; CommandNotSupported (115) for the rest.
    pub async fn check_foreign(&self, foreign: &[Foreign], shard: &ShardId) -> Result<()> {
        for other in foreign {
            let Foreign { ns, stage, written } = other;
            let instead = if *written { WRITE_BACK } else { TWO_READS };
            let place = match self.place(ns) {
                // Another router may have made it.
                Place::Nowhere => self.confirmed().await?.place(ns),
                known => known,
            };
            let home = match place {
                Place::Sharded(_) if *stage == "$out" => {
                    return Err(Error::with_code(28769, format!("{ns} cannot be sharded")));
                }
                Place::Sharded(_) => {
                    return Err(not_yet(&format!("{stage} with the sharded collection {ns}"), instead));
                }
                Place::Config => return Err(not_yet(&format!("{stage} with {ns}"), instead)),
                Place::Nowhere if *written => {
                    self.router.catalog.create_database(ns.db(), Some(shard)).await?;
                    continue;
                }
                Place::Nowhere => continue,
                Place::Unsharded(home) => home,
            };
            if home != *shard {
                let what = format!("{stage} with {ns}, which is on shard {home} and not on {shard},");
                return Err(not_yet(&what, instead));
            }
            if !written && let Some(view) = self.beneath(ns).await? {
                let what = format!("{stage} with {ns}, a view over the sharded collection {},", view.on);
                return Err(not_yet(&what, instead));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "aggregate_tests.rs"]
mod tests;
