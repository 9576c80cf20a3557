//! Reads of the database `config`, which is the catalog.
//!
//! On a replica set they are forwarded to it; the catalog's database has another name there, so namespaces in replies
//! are renamed. From the embedded store the documents go to a shard inside a `$documents` stage, so that a real server
//! evaluates the query; what is simple enough is answered here, without any shard.

use std::sync::Arc;

use bson::{RawArray, RawBsonRef, RawDocument, rawdoc};
use bytes::Bytes;

use super::find_args::FindArgs;
use super::pass::{CursorOptions, OpenCursor};
use super::scratch::Scratch;
use super::{config_local as local, config_simple as simple, stages};
use crate::bsonx::{self, Writer, kind};
use crate::catalog::model::{Namespace, collection};
use crate::catalog::store::{ConfigReads, Scan};
use crate::command::{Ctx, Reply, Request};
use crate::cursor::{Cursor, RemoteCursor, StoredCursor, TempCollection};
use crate::error::{Code, Error, Result};
use crate::merge::{CursorFields, ReplyWriter};
use crate::router::CONFIG_SHARD;
use crate::shard::{ReadPreference, Retryable, ShardReply};
use crate::wire::{MAX_BSON, OutMsg};

impl Ctx {
    /// Answers find, aggregate, count or distinct on a collection of `config`.
    pub async fn read_config(&self, request: &Request, ns: &Namespace) -> Result<Reply> {
        match self.router.catalog.store().config_reads() {
            ConfigReads::Forward { db } => {
                let pref = request.read_preference()?;
                let body = with_db(request.body(), &db);
                let reply = self.send(CONFIG_SHARD, &pref, request.read_retry(), &OutMsg::new(body)).await?;
                let options =
                    CursorOptions { no_timeout: FindArgs::scan(request.body()).no_timeout, await_data: false };
                self.adopt_as(request, reply, ns, options)
            }
            ConfigReads::Local => {
                let docs = self.stored(ns, leading_filter(request)?).await?;
                match request.spec.name {
                    "find" => self.find_stored(request, ns, docs).await,
                    "aggregate" => self.aggregate_stored(request, ns, docs).await,
                    "count" => self.count_stored(request, docs).await,
                    "distinct" => self.distinct_stored(request, docs).await,
                    other => Err(Error::new(Code::CommandNotSupported, format!("{other} on config is not supported"))),
                }
            }
        }
    }

    /// [`Ctx::adopt`] for a cursor that has another namespace on its server than `ns`.
    pub fn adopt_as(
        &self,
        request: &Request,
        reply: ShardReply,
        ns: &Namespace,
        options: CursorOptions,
    ) -> Result<Reply> {
        self.adopt_over(request, reply, ns, options, Vec::new())
    }

    /// The same for a cursor over temporary collections, which live no longer than it.
    pub fn adopt_over(
        &self,
        request: &Request,
        reply: ShardReply,
        ns: &Namespace,
        options: CursorOptions,
        beneath: Vec<TempCollection>,
    ) -> Result<Reply> {
        let reply = reply.into_result()?;
        if bsonx::find(&reply.body, "cursor").is_none() {
            return Ok(Reply::raw(reply.body));
        }
        let body = renamed(&reply.body, ns.as_str())?;
        let Some(open) = OpenCursor::read(&reply.body)? else { return Ok(Reply::raw(body)) };
        let killer = self.router.cursors.killer().clone();
        let remote = RemoteCursor::new(reply.shard, reply.server, open.ns, open.id, killer).over(beneath);
        let facts = self.new_cursor(request, ns.as_str().into(), options);
        let id = self.router.cursors.open(facts, Cursor::Passed(remote));
        Ok(Reply::raw(bsonx::with_int64(body, &["cursor", "id"], id)))
    }

    /// The documents of a collection in the embedded store, narrowed by the filter where that is cheap.
    async fn stored(&self, ns: &Namespace, filter: Option<&RawDocument>) -> Result<Vec<Bytes>> {
        let uuid = filter.and_then(|f| bsonx::get(f, "uuid")).filter(|v| matches!(v, RawBsonRef::Binary(_)));
        let scan = match uuid {
            Some(uuid) if ns.coll() == collection::CHUNKS => Scan::ByField("uuid".into(), uuid.try_into()?),
            _ => Scan::All,
        };
        let mut docs = Vec::new();
        let mut view = self.router.catalog.store().view(0).await?;
        let mut keep = |doc: bson::RawDocumentBuf| {
            docs.push(Bytes::from(doc.into_bytes()));
            Ok(())
        };
        view.scan(ns.coll(), &scan, &mut keep).await?;
        Ok(docs)
    }

    async fn find_stored(&self, request: &Request, ns: &Namespace, docs: Vec<Bytes>) -> Result<Reply> {
        let args = FindArgs::scan(request.body());
        let plain = !args.odd && args.collation.is_none() && !args.tailable && !args.return_key;
        if plain
            && let Some(docs) = local::filtered(&docs, args.filter)
            && let Some(mut docs) = simple::sorted(&docs, args.sort)
        {
            docs.drain(..docs.len().min(args.skip as usize));
            if let Some(wanted) = args.wanted() {
                docs.truncate(wanted as usize);
            }
            if let Some(docs) = local::projected(docs, args.projection) {
                return Ok(self.stored_reply(request, ns, docs, args.batch_size, false));
            }
        }
        if args.odd {
            return Err(Error::new(Code::BadValue, "An argument of this find has a wrong type or value"));
        }
        let docs = simple::prefilter(docs, args.filter);
        let mut pipeline = bson::RawArrayBuf::new();
        if let Some(filter) = args.filter {
            pipeline.push(rawdoc! { "$match": filter.to_owned() });
        }
        if let Some(sort) = args.sort.filter(|s| !s.is_empty() && bsonx::get(s, "$natural").is_none()) {
            pipeline.push(rawdoc! { "$sort": sort.to_owned() });
        }
        if args.skip > 0 {
            pipeline.push(rawdoc! { "$skip": args.skip });
        }
        if let Some(wanted) = args.wanted().filter(|n| *n > 0) {
            pipeline.push(rawdoc! { "$limit": wanted });
        }
        if let Some(projection) = args.projection.filter(|p| !p.is_empty()) {
            pipeline.push(rawdoc! { "$project": projection.to_owned() });
        }
        let mut reply = self.on_documents(request, ns, &docs, pipeline, args.batch_size).await?;
        if args.single_batch {
            reply.body = bsonx::with_int64(reply.body, &["cursor", "id"], 0);
        }
        Ok(reply)
    }

    async fn aggregate_stored(&self, request: &Request, ns: &Namespace, docs: Vec<Bytes>) -> Result<Reply> {
        let body = request.body();
        let Some(pipeline) = bsonx::array(body, "pipeline") else {
            return Err(Error::new(Code::TypeMismatch, "'pipeline' option must be specified as an array"));
        };
        if bsonx::truthy(body, "explain").unwrap_or(false) {
            return Err(Error::new(Code::CommandNotSupported, "The catalog's reads cannot be explained"));
        }
        let list = stages::stages(pipeline)?;
        let batch_size = bsonx::doc(body, "cursor").and_then(|c| bsonx::int(c, "batchSize"));
        let (docs, done) = match bsonx::get(body, "collation") {
            None => local::run(docs, &list),
            Some(_) => (docs, 0),
        };
        if done == list.len() {
            return Ok(self.stored_reply(request, ns, docs, batch_size, false));
        }
        if let Some(foreign) = stages::foreign(ns.db(), pipeline).first() {
            return Err(Error::new(
                Code::CommandNotSupported,
                format!("{} is not supported on the embedded catalog: it names {}", foreign.stage, foreign.ns),
            ));
        }
        let docs = if done == 0 { simple::prefilter(docs, stages::leading_match(&list)) } else { docs };
        let mut rest = bson::RawArrayBuf::new();
        for stage in pipeline.into_iter().skip(done) {
            rest.push(stage?);
        }
        self.on_documents(request, ns, &docs, rest, batch_size).await
    }

    async fn count_stored(&self, request: &Request, docs: Vec<Bytes>) -> Result<Reply> {
        let query = request.doc_arg("query")?;
        let matching = self.matching(request, docs, query).await?.len() as i64;
        let skip = request.int_arg("skip")?.unwrap_or(0).max(0);
        let limit = request.int_arg("limit")?.unwrap_or(0).saturating_abs();
        let rest = (matching - skip).max(0);
        let n = if limit > 0 { rest.min(limit) } else { rest };
        Ok(Reply::ok(rawdoc! { "n": i32::try_from(n).unwrap_or(i32::MAX) }))
    }

    async fn distinct_stored(&self, request: &Request, docs: Vec<Bytes>) -> Result<Reply> {
        let Some(key) = request.str_arg("key")? else {
            return Err(Error::with_code(40414, "BSON field 'distinct.key' is missing but a required field"));
        };
        let docs = self.matching(request, docs, request.doc_arg("query")?).await?;
        let values = super::distinct_values::DistinctValues::of_documents(docs.iter().map(|d| &d[..]), key)?;
        Ok(Reply::raw(values.reply(None)?))
    }

    /// The documents that match, by a shard's judgement where the filter is not simple.
    async fn matching(&self, request: &Request, docs: Vec<Bytes>, query: Option<&RawDocument>) -> Result<Vec<Bytes>> {
        let plain = bsonx::get(request.body(), "collation").is_none();
        if plain && let Some(docs) = local::filtered(&docs, query) {
            return Ok(docs);
        }
        let docs = simple::prefilter(docs, query);
        let mut pipeline = bson::RawArrayBuf::new();
        if let Some(query) = query {
            pipeline.push(rawdoc! { "$match": query.to_owned() });
        }
        if size(&docs) <= INLINE_BYTES {
            let all = Some(i64::from(i32::MAX));
            let reply = self.inline(request, &docs, &pipeline, all).await?.into_result()?;
            let batch = super::pass::batch_of(&reply.body, "firstBatch")?;
            // One that is left open holds what is beyond 16 MiB.
            if OpenCursor::read(&reply.body)?.is_none() {
                return super::scratch::documents(batch);
            }
        }
        Scratch::filled(self, &docs).await?.aggregate(pipeline, options(request)).await
    }

    /// The reply with the first of these documents; a cursor for the others, or in any case with `keep_open`.
    pub fn stored_reply(
        &self,
        request: &Request,
        ns: &Namespace,
        docs: Vec<Bytes>,
        batch_size: Option<i64>,
        keep_open: bool,
    ) -> Reply {
        let mut cursor = StoredCursor { docs: docs.into() };
        let mut writer = ReplyWriter::new(true);
        let count = batch_size.map_or(super::find_args::FIRST_BATCH as usize, |n| n as usize);
        cursor.fill(&mut writer, count);
        let close =
            cursor.docs.is_empty() && !keep_open || bsonx::truthy(request.body(), "singleBatch").unwrap_or(false);
        let ns: Arc<str> = ns.as_str().into();
        let id = match close {
            true => 0,
            false => {
                let facts = self.new_cursor(request, ns.clone(), CursorOptions::default());
                self.router.cursors.open(facts, Cursor::Stored(cursor))
            }
        };
        Reply::raw(writer.finish(CursorFields { id, ns: &ns, ..CursorFields::default() }))
    }

    /// Runs a pipeline on these documents, on the first shard that answers. What does not fit into one command goes
    /// through a temporary collection there.
    async fn on_documents(
        &self,
        request: &Request,
        ns: &Namespace,
        docs: &[Bytes],
        pipeline: bson::RawArrayBuf,
        batch_size: Option<i64>,
    ) -> Result<Reply> {
        if size(docs) > INLINE_BYTES {
            let docs = Scratch::filled(self, docs).await?.aggregate(pipeline, options(request)).await?;
            return Ok(self.stored_reply(request, ns, docs, batch_size, false));
        }
        let reply = self.inline(request, docs, &pipeline, batch_size).await?;
        self.adopt_as(request, reply, ns, CursorOptions::default())
    }

    /// The pipeline on documents sent with it.
    async fn inline(
        &self,
        request: &Request,
        docs: &[Bytes],
        pipeline: &RawArray,
        batch_size: Option<i64>,
    ) -> Result<ShardReply> {
        let msg = OutMsg::new(documents_aggregate(request.body(), docs, pipeline, batch_size)?);
        let mut last = None;
        for shard in self.snapshot.shards.keys() {
            match self.send(shard, &ReadPreference::PRIMARY, Retryable::Read, &msg).await {
                Err(error) if super::merged::is_unreachable(&error) && self.op.check().is_ok() => last = Some(error),
                other => return other,
            }
        }
        Err(last.unwrap_or_else(|| {
            Error::new(Code::ShardNotFound, "No shards found: this query on the catalog needs one to evaluate it")
        }))
    }
}

/// What goes into a `$documents` stage at most; a command holds 16 MiB.
const INLINE_BYTES: usize = 12 << 20;

fn size(docs: &[Bytes]) -> usize {
    docs.iter().map(|doc| doc.len() + 10).sum()
}

/// The filter that a read begins with.
fn leading_filter(request: &Request) -> Result<Option<&RawDocument>> {
    match request.spec.name {
        "find" => request.doc_arg("filter"),
        "aggregate" => {
            let first = request.array_arg("pipeline")?.and_then(|p| p.into_iter().next());
            Ok(first.and_then(|s| s.ok()?.as_document()).and_then(|s| bsonx::doc(s, "$match")))
        }
        _ => request.doc_arg("query"),
    }
}

/// Arguments that change what a pipeline means.
fn options(request: &Request) -> bson::RawDocumentBuf {
    let mut out = bson::RawDocumentBuf::new();
    for (key, value) in request.body().iter().flatten() {
        if matches!(key.as_str(), "let" | "collation" | "allowDiskUse" | "maxTimeMS") {
            out.append(key, value);
        }
    }
    out
}

/// `{aggregate: 1, pipeline: [{$documents: {$literal: docs}}, …pipeline]}` on `admin`.
///
/// # Errors
/// BSONObjectTooLarge (10334) where the documents do not fit into one command.
pub fn documents_aggregate(
    request: &RawDocument,
    docs: &[Bytes],
    pipeline: &RawArray,
    batch_size: Option<i64>,
) -> Result<Vec<u8>> {
    let size: usize = docs.iter().map(|doc| doc.len() + 10).sum();
    if size + pipeline.as_bytes().len() > MAX_BSON - 4096 {
        return Err(too_much());
    }
    let mut out = Writer::with_capacity(size + 1024);
    out.int32("aggregate", 1).open_array("pipeline");
    out.open_doc("0").open_doc("$documents").open_array("$literal");
    for (i, doc) in docs.iter().enumerate() {
        out.raw(&i.to_string(), kind::DOCUMENT, doc);
    }
    out.close().close().close();
    for (i, stage) in pipeline.into_iter().enumerate() {
        let RawBsonRef::Document(stage) = stage? else {
            return Err(Error::new(Code::TypeMismatch, "Each element of the 'pipeline' array must be an object"));
        };
        out.doc(&(i + 1).to_string(), stage);
    }
    out.close().open_doc("cursor");
    if let Some(size) = batch_size {
        out.int64("batchSize", size);
    }
    out.close();
    for field in ["let", "collation", "allowDiskUse", "maxTimeMS"] {
        if let Some(found) = bsonx::find(request.as_bytes(), field) {
            out.raw_fields(&request.as_bytes()[found.whole()]);
        }
    }
    super::merged::carry_on(request, &mut out);
    out.str("$db", "admin");
    Ok(out.finish())
}

fn too_much() -> Error {
    Error::new(
        Code::BSONObjectTooLarge,
        "The catalog documents this query needs are larger than 16 MiB: name one collection's uuid, or use a replica \
         set as the catalog",
    )
}

/// The command with another `$db`.
pub fn with_db(body: &RawDocument, db: &str) -> Vec<u8> {
    let mut out = Writer::copy_without(body.as_bytes(), |key| key == b"$db");
    out.str("$db", db);
    out.finish()
}

/// A cursor reply with another namespace.
///
/// # Errors
/// InvalidBSON (22) where the reply has no cursor.
pub fn renamed(reply: &Bytes, ns: &str) -> Result<Bytes> {
    let cursor = bsonx::find(reply, "cursor").filter(|f| f.kind == kind::DOCUMENT);
    let cursor = cursor.ok_or_else(|| Error::new(Code::InvalidBSON, "A reply has no cursor").from_router())?;
    let mut out = Writer::with_capacity(reply.len() + ns.len());
    out.open_doc("cursor");
    let inner = Writer::copy_without(&reply[cursor.range()], |key| key == b"ns").finish();
    out.raw_fields(&inner[4..inner.len() - 1]).str("ns", ns).close();
    let rest = Writer::copy_without(reply, |key| key == b"cursor").finish();
    out.raw_fields(&rest[4..rest.len() - 1]);
    Ok(out.finish().into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::doc;

    #[test]
    fn replies_are_renamed() {
        let reply =
            rawdoc! { "cursor": { "firstBatch": [{ "a": 1 }], "id": 7_i64, "ns": "mosaic.chunks" }, "ok": 1.0, "x": 2 };
        let renamed = renamed(&reply.into_bytes().into(), "config.chunks").unwrap();
        bsonx::check(&renamed).unwrap();
        let wanted =
            doc! { "cursor": { "firstBatch": [{ "a": 1 }], "id": 7_i64, "ns": "config.chunks" }, "ok": 1.0, "x": 2 };
        assert_eq!(bson::Document::from_reader(&*renamed).unwrap(), wanted);
    }

    #[test]
    fn documents_are_sent_literally() {
        let request = rawdoc! { "aggregate": "c", "let": { "a": 1 }, "$db": "config", "lsid": { "id": 1 } };
        let mut pipeline = bson::RawArrayBuf::new();
        pipeline.push(rawdoc! { "$match": { "x": 1 } });
        let docs = [Bytes::from(rawdoc! { "x": "$y" }.into_bytes())];
        let body = documents_aggregate(&request, &docs, &pipeline, Some(5)).unwrap();
        bsonx::check(&body).unwrap();
        assert_eq!(
            bson::Document::from_reader(&*body).unwrap(),
            doc! {
                "aggregate": 1,
                "pipeline": [{ "$documents": { "$literal": [{ "x": "$y" }] } }, { "$match": { "x": 1 } }],
                "cursor": { "batchSize": 5_i64 },
                "let": { "a": 1 },
                "lsid": { "id": 1 },
                "$db": "admin",
            }
        );
        let large = vec![Bytes::from(rawdoc! { "x": "y".repeat(1 << 20) }.into_bytes()); 17];
        assert_eq!(documents_aggregate(&request, &large, &pipeline, None).unwrap_err().code(), 10334);
    }
}
