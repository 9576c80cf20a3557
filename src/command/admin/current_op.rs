//! `currentOp`, as a command and as the aggregation stage `$currentOp`.
//!
//! The shards' operations come with `shard`, and `opid` as "shard:opid" (what `killOp` takes); the shards themselves
//! put that into their documents, so that filters mean the changed values. With `localOps` the router's own operations
//! are told.

use bson::{DateTime, Document, RawArray, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, doc, rawdoc};
use futures_util::future::{BoxFuture, try_join_all};

use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::command::read::pass::{CursorOptions, OpenCursor};
use crate::command::{Access, CommandSpec, Ctx, Reply, Request, documents};
use crate::cursor::RemoteCursor;
use crate::error::{Code, Error, Result};
use crate::key::text::raw_value;
use crate::op::{ClientInfo, OpRecord};
use crate::shard::{ReadPreference, Retryable, ShardReply};
use crate::stats::OpKind;
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("currentOp", Access::Cluster, "the operations that run now, on all shards", current_op)
        .aliases(&["currentop"])
        .admin()
        .secondary_ok()];

/// Arguments of the command that are not part of the filter.
const OPTIONS: &[&str] =
    &["$ownOps", "$all", "$local", "$truncateOps", "$db", "lsid", "$clusterTime", "$readPreference"];
const GENERIC: &[&str] =
    &["comment", "maxTimeMS", "apiVersion", "apiStrict", "apiDeprecationErrors", "readConcern", "txnNumber"];

fn current_op<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let flag = |name: &str| bsonx::truthy(request.body(), name) == Some(true);
        let mut stage = rawdoc! { "allUsers": !flag("$ownOps"), "idleConnections": flag("$all") };
        // As a server does it for the command, `$truncateOps` or not.
        stage.append(cstr!("truncateOps"), true);
        if flag("$local") {
            stage.append(cstr!("localOps"), true);
        }
        let mut filter = RawDocumentBuf::new();
        for (key, value) in request.body().iter().flatten().skip(1) {
            if !OPTIONS.contains(&key.as_str()) && !GENERIC.contains(&key.as_str()) {
                filter.append(key, value);
            }
        }
        let mut rest = RawArrayBuf::new();
        if !filter.is_empty() {
            rest.push(rawdoc! { "$match": filter });
        }
        let docs = if flag("$local") {
            let own = own_operations(ctx, &stage)?;
            if rest.is_empty() { own } else { evaluated(ctx, own, &rest).await? }
        } else {
            shards_operations(ctx, &stage, &rest).await?
        };
        let inprog = RawArrayBuf::from_iter(docs);
        Ok(Reply::ok(rawdoc! { "inprog": inprog }))
    })
}

/// `{aggregate: 1, pipeline: [{$currentOp: …}, …]}` on `admin`.
pub async fn aggregate(ctx: &Ctx, request: &Request) -> Result<Reply> {
    if request.db() != "admin" || bsonx::as_int(request.argument()?) != Some(1) {
        return Err(Error::new(
            Code::InvalidNamespace,
            "$currentOp must be run against the 'admin' database with {aggregate: 1}",
        ));
    }
    let pipeline = request.array_arg("pipeline")?;
    let mut stages = pipeline.into_iter().flat_map(|p| p.into_iter().flatten()).filter_map(|s| s.as_document());
    let stage = stages.next().and_then(|first| bsonx::get(first, "$currentOp"));
    let Some(RawBsonRef::Document(stage)) = stage else {
        return Err(Error::new(Code::FailedToParse, "$currentOp options must be specified in an object"));
    };
    let rest: Vec<&RawDocument> = stages.collect();
    // Filters that come first run where the operations are.
    let filters = rest.iter().take_while(|s| bsonx::first_key(s.as_bytes()) == Some("$match")).count();
    let array = |stages: &[&RawDocument]| RawArrayBuf::from_iter(stages.iter().map(|s| (*s).to_owned()));
    let (pushed, kept) = (array(&rest[..filters]), array(&rest[filters..]));
    let (docs, pipeline) = match bsonx::truthy(stage, "localOps") == Some(true) {
        true => (own_operations(ctx, stage)?, array(&rest)),
        false => (shards_operations(ctx, stage, &pushed).await?, kept),
    };
    let batch_size = request.doc_arg("cursor")?.and_then(|c| bsonx::int(c, "batchSize"));
    if pipeline.is_empty() && batch_size.is_none_or(|n| docs.len() as i64 <= n) {
        let batch = RawArrayBuf::from_iter(docs);
        return Ok(Reply::ok(rawdoc! { "cursor": { "firstBatch": batch, "id": 0_i64, "ns": "admin.$cmd.aggregate" } }));
    }
    let reply = documents::run(ctx, request.body(), &docs, &pipeline, batch_size).await?;
    ctx.adopt(request, reply, CursorOptions::default())
}

async fn evaluated(ctx: &Ctx, docs: Vec<RawDocumentBuf>, rest: &RawArray) -> Result<Vec<RawDocumentBuf>> {
    let all = Some(i64::from(i32::MAX));
    let reply = documents::run(ctx, &RawDocumentBuf::new(), &docs, rest, all).await?.into_result()?;
    Ok(reply.batch().map(RawDocument::to_owned).collect())
}

/// All shards' operations, by shard.
async fn shards_operations(ctx: &Ctx, stage: &RawDocument, filters: &RawArray) -> Result<Vec<RawDocumentBuf>> {
    let shards: Vec<ShardId> = ctx.snapshot.shards.keys().cloned().collect();
    let lists = try_join_all(shards.iter().map(|shard| one_shard(ctx, shard, stage, filters))).await?;
    Ok(lists.into_iter().flatten().collect())
}

async fn one_shard(ctx: &Ctx, shard: &ShardId, stage: &RawDocument, filters: &RawArray) -> Result<Vec<RawDocumentBuf>> {
    let mut pipeline = RawArrayBuf::new();
    pipeline.push(rawdoc! { "$currentOp": stage.to_owned() });
    for stage in RawDocumentBuf::try_from(&renamed(shard))?.iter().flatten() {
        if let RawBsonRef::Document(stage) = stage.1 {
            pipeline.push(stage.to_owned());
        }
    }
    for stage in filters.into_iter().flatten() {
        pipeline.push(stage);
    }
    let mut command = rawdoc! { "aggregate": 1, "pipeline": pipeline, "cursor": { "batchSize": i32::MAX } };
    command.append(cstr!("$db"), "admin");
    let reply =
        ctx.send(shard, &ReadPreference::PRIMARY, Retryable::Read, &OutMsg::from_doc(command)).await?.into_result()?;
    all_batches(ctx, reply).await
}

/// The stages (by number) that make a shard's document the cluster's.
fn renamed(shard: &str) -> Document {
    let when_there = |field: &str, put: Document| {
        doc! { "$cond": [{ "$eq": [{ "$type": field }, "missing"] }, {}, put] }
    };
    let opid = doc! { "opid": { "$concat": [{ "$literal": format!("{shard}:") }, { "$toString": "$opid" }] } };
    doc! {
        "0": { "$replaceRoot": { "newRoot": { "$mergeObjects": [
            { "shard": { "$literal": shard } },
            "$$ROOT",
            when_there("$opid", opid),
            when_there("$client", doc! { "client_s": "$client" }),
        ] } } },
        "1": { "$unset": "client" },
    }
}

/// A cursor's documents to its end.
async fn all_batches(ctx: &Ctx, reply: ShardReply) -> Result<Vec<RawDocumentBuf>> {
    let mut docs: Vec<_> = reply.batch().map(RawDocument::to_owned).collect();
    let Some(open) = OpenCursor::read(&reply.body)? else { return Ok(docs) };
    let (shard, server) = (reply.shard, reply.server);
    let remote =
        RemoteCursor::new(shard.clone(), server.clone(), open.ns.clone(), open.id, ctx.router.cursors.killer().clone());
    loop {
        let mut command = rawdoc! { "getMore": open.id, "collection": open.ns.coll() };
        command.append(cstr!("$db"), open.ns.db());
        let reply = ctx.send_to_server(&shard, &server, &OutMsg::from_doc(command)).await?.into_result()?;
        docs.extend(reply.batch().map(RawDocument::to_owned));
        if OpenCursor::read(&reply.body)?.is_none() {
            remote.exhausted();
            return Ok(docs);
        }
    }
}

/// This router's operations, and what else the stage's options ask for.
fn own_operations(ctx: &Ctx, stage: &RawDocument) -> Result<Vec<RawDocumentBuf>> {
    const KNOWN: &[&str] =
        &["allUsers", "idleConnections", "idleCursors", "idleSessions", "localOps", "truncateOps", "backtrace"];
    for (name, _) in stage.iter().flatten() {
        if !KNOWN.contains(&name.as_str()) {
            let text = format!("Unrecognized option '{name}' in $currentOp stage.");
            return Err(Error::new(Code::FailedToParse, text));
        }
    }
    let on = |name: &str| bsonx::truthy(stage, name) == Some(true);
    let router = &ctx.router;
    let host = router.identity.name();
    let now = now();
    let mut docs = Vec::new();
    let running = router.ops.list();
    for op in &running {
        docs.push(operation(op, &host, &now, on("truncateOps"))?);
    }
    if on("idleConnections") {
        for conn in router.connections.list() {
            if !running.iter().any(|op| op.client.connection_id == conn.info.connection_id) {
                docs.push(RawDocumentBuf::try_from(&connection(&conn.info, &host, &now, false))?);
            }
        }
    }
    if on("idleCursors") {
        for cursor in router.cursors.idle() {
            let age = |at: std::time::Instant| {
                DateTime::from_millis(DateTime::now().timestamp_millis() - at.elapsed().as_millis() as i64)
            };
            let command = shown(bsonx::view(&cursor.facts.command), on("truncateOps"));
            docs.push(RawDocumentBuf::try_from(&doc! {
                "type": "idleCursor",
                "host": host.as_str(),
                "ns": &*cursor.facts.ns,
                "cursor": {
                    "cursorId": cursor.id,
                    "createdDate": age(cursor.created),
                    "lastAccessDate": age(cursor.last_used),
                    "noCursorTimeout": cursor.facts.no_timeout,
                    "awaitData": cursor.facts.await_data,
                    "originatingCommand": command,
                },
            })?);
        }
    }
    Ok(docs)
}

fn now() -> String {
    DateTime::now().try_to_rfc3339_string().unwrap_or_default()
}

fn connection(client: &ClientInfo, host: &str, now: &str, active: bool) -> Document {
    let mut doc = doc! {
        "type": "op",
        "host": host,
        "desc": format!("conn{}", client.connection_id),
        "connectionId": client.connection_id,
        "client": client.address.as_str(),
    };
    if let Some(metadata) = client.metadata.get().and_then(|m| Document::try_from(&**m).ok()) {
        if let Some(name) = metadata.get_document("application").ok().and_then(|a| a.get("name")) {
            doc.insert("appName", name.clone());
        }
        doc.insert("clientMetadata", metadata);
    }
    doc.insert("active", active);
    doc.insert("currentOpTime", now);
    doc
}

/// Bytes beyond which a command is told in short, and about how many of its text are left then.
const LONG: usize = 1000;

/// A command as `$currentOp` has it: `{$truncated: text}` where it is long and is to be told in short.
fn shown(command: &RawDocument, truncate: bool) -> Document {
    if !truncate || command.as_bytes().len() <= LONG {
        return Document::try_from(command).unwrap_or_default();
    }
    let mut text = String::from("{");
    for (name, value) in command.iter().map_while(std::result::Result::ok) {
        // A value that alone is too long is not even looked at.
        let long = match value {
            RawBsonRef::Document(doc) => doc.as_bytes().len() > LONG,
            RawBsonRef::Array(list) => list.as_bytes().len() > LONG,
            RawBsonRef::String(text) => text.len() > LONG,
            RawBsonRef::Binary(binary) => binary.bytes.len() > LONG,
            _ => false,
        };
        let value = if long { "...".to_owned() } else { raw_value(value) };
        let separator = if text.len() > 1 { "," } else { "" };
        text.push_str(&format!("{separator} {name}: {value}"));
        if text.len() > LONG {
            let end = text.floor_char_boundary(LONG);
            text.truncate(end);
            break;
        }
    }
    text.push_str("...");
    doc! { "$truncated": text }
}

fn operation(op: &OpRecord, host: &str, now: &str, truncate: bool) -> Result<RawDocumentBuf> {
    let mut doc = connection(&op.client, host, now, true);
    let body = bsonx::view(&op.body);
    let mut command = shown(body, truncate);
    doc.insert("threaded", true);
    doc.insert("opid", op.id as i32);
    if let Some(lsid) = bsonx::doc(body, "lsid").and_then(|lsid| Document::try_from(lsid).ok()) {
        doc.insert("lsid", lsid);
    }
    let running = op.started.elapsed();
    doc.insert("secs_running", running.as_secs() as i64);
    doc.insert("microsecs_running", running.as_micros() as i64);
    doc.insert("op", OpKind::of(op.command).op_name());
    let db = bsonx::str(body, "$db").unwrap_or("admin");
    let ns = match body.iter().next() {
        Some(Ok((_, RawBsonRef::String(coll)))) => format!("{db}.{coll}"),
        _ => format!("{db}.$cmd"),
    };
    doc.insert("ns", ns);
    command.remove("$clusterTime");
    doc.insert("command", command);
    doc.insert("numYields", 0);
    Ok(RawDocumentBuf::try_from(&doc)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn long_commands_are_told_in_short() {
        let short = rawdoc! { "find": "c", "filter": { "a": 1 } };
        assert_eq!(shown(&short, true), doc! { "find": "c", "filter": { "a": 1 } });
        let long = rawdoc! { "find": "c", "filter": { "a": "y".repeat(1 << 20) }, "limit": 1 };
        assert_eq!(shown(&long, true), doc! { "$truncated": "{ find: \"c\", filter: ..., limit: 1..." });
        assert_eq!(shown(&long, false), Document::try_from(&*long).unwrap());
        let mut many = rawdoc! { "find": "c" };
        (0..5000).for_each(|_| many.append(cstr!("a"), "\u{e9}"));
        let text = shown(&many, true).get_str("$truncated").unwrap().to_owned();
        assert!(text.len() > 990 && text.len() <= 1003, "{}", text.len());
    }
}
