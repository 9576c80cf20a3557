//! One aggregation over several shards: their parts, and the rest over what they give.

use std::sync::Arc;

use bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use bytes::Bytes;
use futures_util::future::try_join;

use super::agg_bring::{Bringing, Site};
use super::agg_foreign::{self, unwrap};
use super::agg_join::{JoinValues, Watched};
use super::agg_plan::{Plan, Stream};
use super::find_args::{Additions, FIRST_BATCH};
use super::merged::{CommonTimes, First, carry_on, start};
use super::pass::CursorOptions;
use super::route::Place;
use super::scratch::INSERT_BYTES;
use super::stages::Foreign;
use crate::bsonx::{self, Writer};
use crate::catalog::model::{Namespace, ShardId};
use crate::command::{Ctx, Reply, Request};
use crate::cursor::{MergedCursor, TempCollection};
use crate::error::{Code, Error, Result};
use crate::merge::{Batch, Doc, Gathered, Merger, Packed, Sink};
use crate::shard::Retryable;
use crate::wire::{MAX_BSON_INTERNAL, OutMsg};

/// One aggregation over several shards.
pub struct Run<'a> {
    pub ctx: &'a Ctx,
    pub request: &'a Request,
    /// What the client reads.
    pub ns: &'a Namespace,
    pub shards: &'a [ShardId],
    /// The collection's.
    pub collation: Option<&'a RawDocument>,
    pub plan: &'a Plan,
    pub batch_size: Option<i64>,
}

impl Run<'_> {
    /// Opens the shards' cursors and merges them.
    async fn open(&self, stream: &Stream, batch_size: Option<i64>, times: &CommonTimes) -> Result<MergedCursor> {
        let body = self.request.body();
        let read_concern = bsonx::doc(body, "readConcern");
        let request = |shard: &ShardId| {
            let body = shard_body(body, self.plan, shard, batch_size, times.additions(), read_concern);
            (shard.clone(), OutMsg::new(body))
        };
        let requests: Vec<_> = self.shards.iter().map(request).collect();
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

    pub async fn stream(&self, stream: &Stream) -> Result<Reply> {
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
    pub async fn count(&self) -> Result<u64> {
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
    pub async fn gathered(&self, input: &Stream, pipeline: &RawArray, foreign: &[Foreign]) -> Result<Reply> {
        let ctx = self.ctx;
        let shard = ctx.merging_shard(self.shards, foreign)?;
        ctx.make_target(foreign, &shard).await?;
        let here = ctx.foreign_is_on(foreign, &shard).await?;
        let times = self.times().await?;
        let mut site = Site::new(shard);
        let mut values = if here { None } else { looked_up(pipeline) };
        let (docs, temp) = self.gather(input, &times, &mut site, values.as_mut()).await?;
        let collation = bsonx::doc(self.request.body(), "collation").filter(|c| !c.is_empty()).or(self.collation);
        let brought = match (here, &temp) {
            (true, None) => None,
            // What is here is reached from another database only by bringing it.
            _ => {
                let bringing = Bringing { ctx, request: self.request, collation, values };
                Some(bringing.bring(&mut site, pipeline).await?)
            }
        };
        let source = match &temp {
            Some(name) => Source::Temporary(name),
            None => Source::Documents(&docs),
        };
        let (pipeline, db) = match &brought {
            Some(pipeline) => (&**pipeline, TempCollection::DB),
            None => (pipeline, self.request.db()),
        };
        let body = merge_body(self.request.body(), db, source, pipeline, collation, times.now_alone())?;
        drop(docs);
        let writes = foreign.iter().any(|f| f.written);
        let retry = if writes { Retryable::No } else { self.request.read_retry() };
        let reply = site.send(ctx, retry, &OutMsg::new(body)).await?;
        ctx.adopt_over(self.request, reply, self.ns, CursorOptions::default(), site.temps)
    }

    /// The shards' results: as they are, or where they are more than one message holds, the name of the collection at
    /// the site that they were put in.
    async fn gather(
        &self,
        input: &Stream,
        times: &CommonTimes,
        site: &mut Site,
        mut values: Option<&mut JoinValues>,
    ) -> Result<(Gathered, Option<String>)> {
        let ctx = self.ctx;
        let size = Some(i64::from(i32::MAX));
        let mut cursor = self.open(input, size, times).await?;
        let mut docs = Gathered::default();
        let mut sink = Watched { sink: &mut docs, values: values.as_deref_mut() };
        ctx.fill(self.request, &mut cursor, &mut sink, usize::MAX, size).await?;
        if cursor.merger.at_end() {
            return Ok((docs, None));
        }
        let name = ctx.temporary_name();
        let at = site.make(ctx, name.clone(), None).await?;
        let temp = &site.temps[at];
        let mut packed = Packed::new(true, INSERT_BYTES);
        let items = std::mem::take(&mut docs).into_array();
        let mut items = Batch::new(items);
        while let Some(range) = items.advance()? {
            if !packed.fits(range.len()) {
                ctx.add_to_temporary(temp, packed.take().into()).await?;
            }
            packed.push(&Doc::whole(&items.bytes()[range]));
        }
        drop(items);
        loop {
            let full = packed.take();
            if full.is_empty() {
                return Ok((docs, Some(name)));
            }
            let mut sink = Watched { sink: &mut packed, values: values.as_deref_mut() };
            let more = ctx.fill(self.request, &mut cursor, &mut sink, usize::MAX, size);
            try_join(ctx.add_to_temporary(temp, full.into()), more).await?;
        }
    }
}

impl Ctx {
    /// Where the rest of a divided pipeline runs: where it writes, else with another collection it needs, else on one of
    /// the shards that are read.
    pub fn merging_shard(&self, shards: &[ShardId], foreign: &[Foreign]) -> Result<ShardId> {
        let home = |f: &Foreign| match self.place(&f.ns) {
            Place::Unsharded(home) => Some(home),
            _ => None,
        };
        let written = foreign.iter().filter(|f| f.written).find_map(home);
        let home = written.or_else(|| foreign.iter().find_map(home));
        home.or_else(|| shards.first().cloned()).ok_or_else(|| Error::internal("a route without shards"))
    }
}

/// What the pipeline's first stage looks up by value in another collection.
fn looked_up(pipeline: &RawArray) -> Option<JoinValues> {
    let mut first = None;
    agg_foreign::rewritten("any", pipeline, &mut |need| {
        first = first.take().or(need.join);
        String::new()
    })
    .ok()?;
    first.and_then(|(local, field)| JoinValues::new(&local, &field))
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

/// What the rest of a pipeline runs over.
enum Source<'a> {
    /// Sent with the pipeline.
    Documents(&'a Gathered),
    /// A collection of wrapped documents.
    Temporary(&'a str),
}

/// The rest of the pipeline in the database `db`.
///
/// # Errors
/// BSONObjectTooLarge (10334) where documents and pipeline do not fit into one command.
fn merge_body(
    request: &RawDocument,
    db: &str,
    source: Source<'_>,
    pipeline: &RawArray,
    collation: Option<&RawDocument>,
    now: Additions<'_>,
) -> Result<Vec<u8>> {
    let mut out;
    match source {
        Source::Documents(docs) => {
            out = Writer::with_capacity(docs.items().len() + 1024);
            out.int32("aggregate", 1).open_array("pipeline");
            out.open_doc("0").open_doc("$documents").open_array("$literal").raw_fields(docs.items());
            out.close().close().close();
        }
        Source::Temporary(name) => {
            out = Writer::with_capacity(1024);
            // In the order in which they came.
            out.str("aggregate", name).open_doc("hint").int32("$natural", 1).close();
            out.open_array("pipeline").doc("0", &unwrap());
        }
    }
    for (i, stage) in pipeline.into_iter().map_while(std::result::Result::ok).enumerate() {
        if let RawBsonRef::Document(stage) = stage {
            out.doc(&(i + 1).to_string(), stage);
        }
    }
    out.close();
    let bytes = request.as_bytes();
    for field in ["cursor", "let", "allowDiskUse", "maxTimeMS", "writeConcern", "bypassDocumentValidation"] {
        if let Some(found) = bsonx::find(bytes, field) {
            out.raw_fields(&bytes[found.whole()]);
        }
    }
    now.append(&mut out, None);
    if let Some(collation) = collation {
        out.doc("collation", collation);
    }
    carry_on(request, &mut out);
    out.str("$db", db);
    if out.len() > MAX_BSON_INTERNAL {
        return Err(Error::new(Code::BSONObjectTooLarge, "The pipeline is too large to be sent with what it merges"));
    }
    Ok(out.finish())
}

/// The result of a pipeline that counts: one document, or none for a count of 0.
pub fn count_doc(id: Option<&bson::RawBson>, field: &str, n: u64) -> Option<Bytes> {
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

#[cfg(test)]
#[path = "agg_run_tests.rs"]
mod tests;
