//! `explain`: where the router would send a command, why, and what the shards say of their part.

use std::time::Instant;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use futures_util::future::BoxFuture;

use super::agg_plan::{Merge, NoPlan, Plan, plan};
use super::count::number;
use super::explain_shape::{ShardPlan, Verbosity, query, server_parameters, shards};
use super::find_args::{Additions, FindArgs, shard_find};
use super::merged::carry_on;
use super::numbers::wrong_type;
use super::route::{Place, is_generic};
use super::stages::{self, Foreign};
use crate::bsonx::{self, Writer};
use crate::catalog::model::{Namespace, ShardId};
use crate::catalog::snapshot::CollectionRouting;
use crate::command::{Ctx, Reply, Request, lookup, refuse_internal};
use crate::error::{Code, Error, Result};
use crate::shard::ShardReply;
use crate::target::{Reason, Route};
use crate::wire::OutMsg;

pub fn explain<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let (inner, verbosity) = arguments(request)?;
        let name = bsonx::first_key(inner.as_bytes()).unwrap_or("");
        let Some(spec) = lookup(name) else {
            return Err(Error::new(Code::CommandNotFound, format!("Explain failed due to unknown command: {name}")));
        };
        let kind = Kind::of(spec.name)
            .ok_or_else(|| Error::new(Code::IllegalOperation, format!("Cannot explain cmd: {name}")))?;
        if let Some(db) = bsonx::str(inner, "$db").filter(|db| *db != request.db()) {
            return Err(Error::new(
                Code::InvalidNamespace,
                format!("Mismatched $db in explain command. Expected {} but got {db}", request.db()),
            ));
        }
        run(ctx, request, kind, inner, verbosity).await
    })
}

/// `aggregate` with `explain: true`.
pub async fn explain_aggregate(ctx: &Ctx, request: &Request) -> Result<Reply> {
    let body = request.body();
    let mut inner =
        Writer::copy_without(body.as_bytes(), |key| key == b"explain" || key == b"lsid" || key.starts_with(b"$"));
    if bsonx::get(body, "cursor").is_none() {
        inner.open_doc("cursor").close();
    }
    let inner = inner.finish();
    run(ctx, request, Kind::Aggregate, bsonx::view(&inner), Verbosity::QueryPlanner).await
}

/// What can be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Find,
    Count,
    Distinct,
    Aggregate,
    Update,
    Delete,
    FindAndModify,
}

impl Kind {
    fn of(command: &str) -> Option<Self> {
        Some(match command {
            "find" => Kind::Find,
            "count" => Kind::Count,
            "distinct" => Kind::Distinct,
            "aggregate" => Kind::Aggregate,
            "update" => Kind::Update,
            "delete" => Kind::Delete,
            "findAndModify" => Kind::FindAndModify,
            _ => return None,
        })
    }

    fn command(self) -> &'static str {
        match self {
            Kind::Find => "find",
            Kind::Count => "count",
            Kind::Distinct => "distinct",
            Kind::Aggregate => "aggregate",
            Kind::Update => "update",
            Kind::Delete => "delete",
            Kind::FindAndModify => "findAndModify",
        }
    }

    fn writes(self) -> bool {
        matches!(self, Kind::Update | Kind::Delete | Kind::FindAndModify)
    }

    /// The filter and the collation that routing looks at.
    fn conditions(self, inner: &RawDocument) -> (Option<RawDocumentBuf>, Option<RawDocumentBuf>) {
        let owned = |doc: &RawDocument, key: &str| bsonx::doc(doc, key).map(|d| d.to_owned());
        let first = |list: &str| {
            let first = bsonx::array(inner, list).and_then(|l| l.into_iter().next()).and_then(|v| v.ok());
            first.and_then(|v| v.as_document()).map(|d| (owned(d, "q"), owned(d, "collation"))).unwrap_or_default()
        };
        match self {
            Kind::Find => (owned(inner, "filter"), owned(inner, "collation")),
            Kind::Count | Kind::Distinct | Kind::FindAndModify => (owned(inner, "query"), owned(inner, "collation")),
            Kind::Update => first("updates"),
            Kind::Delete => first("deletes"),
            Kind::Aggregate => {
                let stages = bsonx::array(inner, "pipeline").map(stages::stages);
                let filter = match stages {
                    Some(Ok(stages)) => super::aggregate::leading_filter(&stages),
                    _ => None,
                };
                (filter, owned(inner, "collation"))
            }
        }
    }
}

/// Where a command that could be explained goes, by this operation's snapshot; of a write's statements only the first
/// counts. For the log: the command itself may have found a better way meanwhile.
pub fn route_of(ctx: &Ctx, request: &Request) -> Option<Route> {
    let kind = Kind::of(request.spec.name)?;
    let ns = request.namespace().ok()?;
    match ctx.place(&ns) {
        Place::Sharded(coll) => {
            let statement = match kind {
                Kind::Update => request.message.documents("updates").next(),
                Kind::Delete => request.message.documents("deletes").next(),
                _ => None,
            };
            let (filter, collation) = match statement {
                Some(first) => {
                    let first = first.ok()?;
                    let owned = |key: &str| bsonx::doc(first, key).map(|d| d.to_owned());
                    (owned("q"), owned("collation"))
                }
                None => kind.conditions(request.body()),
            };
            ctx.route_uncounted(&coll, filter.as_deref(), collation.as_deref()).ok()
        }
        Place::Unsharded(shard) => Some(Route::new([shard], Reason::Unsharded)),
        Place::Config | Place::Nowhere => None,
    }
}

/// The inner command and the verbosity.
fn arguments(request: &Request) -> Result<(&RawDocument, Verbosity)> {
    let inner = match request.argument()? {
        RawBsonRef::Document(inner) => inner,
        other => return Err(wrong_type("explain", "explain", other, "object")),
    };
    refuse_internal(inner)?;
    for element in request.body().iter_elements().skip(1) {
        let key = element?.key().as_str();
        if key != "verbosity" && !is_generic(key) {
            return Err(Error::with_code(40415, format!("BSON field 'explain.{key}' is an unknown field.")));
        }
    }
    let verbosity = match request.get("verbosity") {
        None => Verbosity::AllPlans,
        Some(RawBsonRef::String(text)) => Verbosity::parse(text).ok_or_else(|| {
            Error::new(
                Code::BadValue,
                format!("Enumeration value '{text}' for field 'explain.verbosity' is not a valid value."),
            )
        })?,
        Some(other) => return Err(wrong_type("explain", "verbosity", other, "string")),
    };
    Ok((inner, verbosity))
}

async fn run(ctx: &Ctx, request: &Request, kind: Kind, inner: &RawDocument, verbosity: Verbosity) -> Result<Reply> {
    let ns = match inner.iter().next() {
        Some(Ok((_, RawBsonRef::String(coll)))) => Namespace::new(request.db(), coll)?,
        _ if kind == Kind::Aggregate => Namespace::new(request.db(), "$cmd.aggregate")?,
        _ => return Err(Error::new(Code::InvalidNamespace, "The explained command names no collection")),
    };
    let (filter, collation) = kind.conditions(inner);
    let first_shard = || ctx.snapshot.shards.keys().next().cloned();
    let (route, coll) = match ctx.place(&ns) {
        Place::Sharded(coll) => {
            let route = ctx.route_uncounted(&coll, filter.as_deref(), collation.as_deref())?;
            (route, Some(coll))
        }
        Place::Unsharded(shard) => {
            if !kind.writes()
                && let Some(view) = ctx.beneath(&ns).await?
            {
                let inner = super::beneath::stand_in(kind.command(), inner, &view)?;
                return Box::pin(run(ctx, request, Kind::Aggregate, bsonx::view(&inner), verbosity)).await;
            }
            (Route::new([shard], Reason::Unsharded), None)
        }
        Place::Config => {
            return Err(Error::new(Code::CommandNotSupported, "Commands on the catalog cannot be explained"));
        }
        // A server explains well enough what it means to read nothing.
        Place::Nowhere => match first_shard() {
            Some(shard) => (Route::new([shard], Reason::Unsharded), None),
            None => return Err(Error::new(Code::ShardNotFound, "No shards found")),
        },
    };
    let task = Task { ctx, request, kind, inner, verbosity, route: &route, coll: coll.as_deref() };
    if kind == Kind::Aggregate { task.aggregate(&ns).await } else { task.query().await }
}

/// The part of an aggregation that runs over the shards' results.
struct Merging {
    shard: ShardId,
    /// The other collections that are copied there first, as far as the pipeline needs them.
    brings: Vec<Namespace>,
}

/// One command to be explained, and where it goes.
struct Task<'a> {
    ctx: &'a Ctx,
    request: &'a Request,
    kind: Kind,
    inner: &'a RawDocument,
    verbosity: Verbosity,
    route: &'a Route,
    coll: Option<&'a CollectionRouting>,
}

impl Task<'_> {
    async fn query(&self) -> Result<Reply> {
        let (stage, inner) = self.stage()?;
        let started = Instant::now();
        let replies = self.ask(&inner).await?;
        let connections = self.connections();
        let plans = shard_plans(&replies, &connections);
        let mut out = Writer::with_capacity(4096);
        query(&mut out, stage, &plans, self.verbosity, started.elapsed().as_millis() as u64);
        self.finish(out)
    }

    /// The router's stage, and the command as the shards get it.
    fn stage(&self) -> Result<(&'static str, Vec<u8>)> {
        let as_it_is = self.inner.as_bytes().to_vec();
        if self.kind.writes() {
            return Ok(("SHARD_WRITE", as_it_is));
        }
        if self.route.shards.len() == 1 {
            return Ok(("SINGLE_SHARD", as_it_is));
        }
        if self.kind != Kind::Find {
            return Ok(("SHARD_MERGE", as_it_is));
        }
        let args = FindArgs::scan(self.inner);
        if args.odd {
            return Ok(("SHARD_MERGE", as_it_is));
        }
        let merging = args.merging()?;
        let stage = if merging.order.is_some() { "SHARD_MERGE_SORT" } else { "SHARD_MERGE" };
        Ok((stage, shard_find(self.inner, &args, &merging, Additions::default())))
    }

    async fn aggregate(&self, ns: &Namespace) -> Result<Reply> {
        let pipeline = bsonx::array(self.inner, "pipeline");
        let stages = match pipeline {
            Some(pipeline) => stages::stages(pipeline)?,
            None => return Err(Error::new(Code::TypeMismatch, "'pipeline' option must be specified as an array")),
        };
        let foreign = pipeline.map(|pipeline| stages::foreign(ns.db(), pipeline)).unwrap_or_default();
        let whole = match self.route.single() {
            Some(shard) => self.ctx.foreign_is_on(&foreign, shard).await?,
            None => false,
        };
        if self.coll.is_none() && whole {
            return self.unsharded_aggregate().await;
        }
        let divided = if whole {
            None
        } else {
            match plan(&stages) {
                Ok(plan) => Some(plan),
                Err(NoPlan::Error(error)) => return Err(error),
                // The shards' own error comes back.
                Err(NoPlan::AskShard) => None,
            }
        };
        let inner = match &divided {
            None => self.inner.as_bytes().to_vec(),
            Some(plan) => shard_part(self.inner, plan),
        };
        let replies = self.ask(&inner).await?;
        let connections = self.connections();
        let plans = shard_plans(&replies, &connections);
        let mut out = Writer::with_capacity(4096);
        self.server(&mut out);
        match &divided {
            None => {
                out.raw("splitPipeline", bsonx::kind::NULL, &[]);
            }
            Some(plan) => split(&mut out, plan),
        }
        shards(&mut out, &plans);
        out.raw("command", bsonx::kind::DOCUMENT, self.inner.as_bytes());
        let merging = match divided.as_ref().map(|plan| &plan.merge) {
            Some(Merge::Pipeline { .. }) => Some(self.merging(&foreign).await?),
            _ => None,
        };
        self.routing(&mut out, merging.as_ref());
        out.double("ok", 1.0);
        Ok(Reply::raw(out.finish().into()))
    }

    /// An unsharded aggregation is its shard's alone, and so is its explain.
    async fn unsharded_aggregate(&self) -> Result<Reply> {
        let replies = self.ask(self.inner.as_bytes()).await?;
        let Some(reply) = replies.first() else { return Err(Error::internal("a route without shards")) };
        let mut out = Writer::copy_without(&reply.body, |key| key == b"ok" || key.starts_with(b"$"));
        self.routing(&mut out, None);
        out.double("ok", 1.0);
        Ok(Reply::raw(out.finish().into()))
    }

    /// Where the rest of the pipeline runs, and what is brought there for it.
    async fn merging(&self, foreign: &[Foreign]) -> Result<Merging> {
        let shard = self.ctx.merging_shard(&self.route.shards, foreign)?;
        let all = self.ctx.foreign_is_on(foreign, &shard).await?;
        let read = foreign.iter().filter(|f| !f.written && !all).map(|f| f.ns.clone());
        Ok(Merging { brings: read.collect(), shard })
    }

    /// Sends the explain to every shard of the route.
    async fn ask(&self, inner: &[u8]) -> Result<Vec<ShardReply>> {
        let mut body = Writer::with_capacity(inner.len() + 256);
        body.raw("explain", bsonx::kind::DOCUMENT, inner).str("verbosity", self.verbosity.as_str());
        carry_on(self.request.body(), &mut body);
        if let Some(limit) = self.request.generic.max_time_ms {
            number(&mut body, "maxTimeMS", i64::try_from(limit).unwrap_or(i64::MAX));
        }
        body.str("$db", self.request.db());
        let msg = OutMsg::new(body.finish());
        let requests: Vec<_> = self.route.shards.iter().map(|shard| (shard.clone(), msg.clone())).collect();
        let pref = self.request.read_preference()?;
        let outcomes = self.ctx.scatter(&requests, &pref, self.request.read_retry()).await;
        outcomes.into_iter().map(|(_, outcome)| outcome?.into_result()).collect()
    }

    /// The shards' connection strings, in the order of the route.
    fn connections(&self) -> Vec<String> {
        let host = |shard: &ShardId| {
            let known = self.ctx.router.shards.get(shard).map(|s| s.host()).ok().filter(|h| !h.is_empty());
            known.or_else(|| self.ctx.snapshot.shards.get(shard).map(|s| s.host.clone())).unwrap_or_default()
        };
        self.route.shards.iter().map(host).collect()
    }

    fn finish(&self, mut out: Writer) -> Result<Reply> {
        self.server(&mut out);
        let mut command = Writer::copy_without(self.inner.as_bytes(), |key| key == b"$db");
        command.str("$db", self.request.db());
        out.raw("command", bsonx::kind::DOCUMENT, &command.finish());
        self.routing(&mut out, None);
        out.double("ok", 1.0);
        Ok(Reply::raw(out.finish().into()))
    }

    fn server(&self, out: &mut Writer) {
        let identity = &self.ctx.router.identity;
        out.open_doc("serverInfo")
            .str("host", &identity.hostname)
            .int32("port", i32::from(identity.port))
            .str("version", crate::SERVER_VERSION)
            .str("gitVersion", "")
            .close();
        server_parameters(out);
    }

    /// The router's own section: where the command goes, and why.
    fn routing(&self, out: &mut Writer, merging: Option<&Merging>) {
        let route = self.route;
        out.open_doc("mosaic").str("reason", route.reason.as_str()).str("explanation", route.reason.explanation());
        out.open_array("shards");
        for (i, shard) in route.shards.iter().enumerate() {
            out.str(&i.to_string(), shard);
        }
        out.close();
        if let Some(coll) = self.coll {
            out.doc("shardKey", coll.key.to_doc());
            number(out, "owningShards", coll.table.owners().len() as i64);
            number(out, "totalChunks", coll.table.len() as i64);
            number(out, "ranges", route.bounds.ranges as i64);
            number(out, "chunks", route.bounds.chunks as i64);
            out.bool("exactKey", route.exact_key);
            out.str("collectionVersion", &coll.version().to_string());
        }
        if let Some(merging) = merging {
            out.open_doc("merge").str("shard", &merging.shard).open_array("brings");
            merging.brings.iter().enumerate().for_each(|(i, ns)| {
                out.str(&i.to_string(), ns.as_str());
            });
            out.close().close();
        }
        number(out, "catalogVersion", i64::try_from(self.ctx.snapshot.version).unwrap_or(i64::MAX));
        out.close();
    }
}

fn shard_plans<'a>(replies: &'a [ShardReply], connections: &'a [String]) -> Vec<ShardPlan<'a>> {
    let plan = |(reply, connection): (&'a ShardReply, &'a String)| ShardPlan {
        shard: &reply.shard,
        connection,
        host: &reply.server,
        reply: reply.doc(),
    };
    replies.iter().zip(connections).map(plan).collect()
}

/// The aggregation that each shard runs.
fn shard_part(inner: &RawDocument, plan: &Plan) -> Vec<u8> {
    let mut out =
        Writer::copy_without(inner.as_bytes(), |key| matches!(key, b"pipeline" | b"fromMongos" | b"needsMerge"));
    out.raw("pipeline", bsonx::kind::ARRAY, plan.shard.as_bytes());
    if plan.needs_merge {
        out.bool("fromMongos", true).bool("needsMerge", true);
    }
    out.finish()
}

/// `mergeType` and `splitPipeline: {shardsPart, mergerPart}`.
fn split(out: &mut Writer, plan: &Plan) {
    let here = !matches!(plan.merge, Merge::Pipeline { .. });
    out.str("mergeType", if here { "mongos" } else { "anyShard" });
    out.open_doc("splitPipeline").raw("shardsPart", bsonx::kind::ARRAY, plan.shard.as_bytes());
    out.open_array("mergerPart");
    let mut index = 0;
    let mut next = || {
        index += 1;
        (index - 1).to_string()
    };
    let (skip, limit) = match &plan.merge {
        Merge::Stream(stream) | Merge::Pipeline { input: stream, .. } => {
            if stream.order.is_some() {
                out.open_doc(&next()).open_doc("$mergeCursors").bool("compareSortKeys", true).close().close();
            }
            (stream.skip, stream.limit)
        }
        Merge::Count { skip, limit, .. } => {
            out.open_doc(&next()).open_doc("$sum").str("field", "n").close().close();
            (*skip, *limit)
        }
    };
    if skip > 0 {
        number(out.open_doc(&next()), "$skip", i64::try_from(skip).unwrap_or(i64::MAX));
        out.close();
    }
    if let Some(limit) = limit {
        number(out.open_doc(&next()), "$limit", i64::try_from(limit).unwrap_or(i64::MAX));
        out.close();
    }
    if let Merge::Pipeline { pipeline, .. } = &plan.merge {
        for stage in pipeline.into_iter().map_while(std::result::Result::ok) {
            if let RawBsonRef::Document(stage) = stage {
                out.doc(&next(), stage);
            }
        }
    }
    out.close().close();
}
