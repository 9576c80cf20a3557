//! `$merge` into a sharded collection: the router reads what the stages before it give and writes it by updates and
//! inserts, as a server does for an unsharded one.

use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, oid::ObjectId, rawdoc};

use super::agg_bring::{batch_of_reply, next};
use super::aggregate;
use super::pass::empty_result;
use super::stages;
use crate::bsonx::{self, Writer, kind};
use crate::catalog::model::Namespace;
use crate::catalog::snapshot::CollectionRouting;
use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::merge::Batch;
use crate::shard::Retryable;
use crate::wire::{MAX_BSON, OutMsg, Sequence};

/// What servers put before an error of a pipeline that has begun.
const PREFIX: &str = "PlanExecutor error during aggregation :: caused by :: ";

/// Statements in one command.
const MAX_STATEMENTS: usize = 10_000;

/// What a document does to the one with the same `on` fields.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Matched<'a> {
    Replace,
    KeepExisting,
    Merge,
    Fail,
    Pipeline(&'a RawDocument),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum NotMatched {
    Insert,
    Discard,
    Fail,
}

/// The argument of the stage; a server has said that it is right.
#[derive(Debug, PartialEq)]
struct Spec<'a> {
    on: Vec<String>,
    matched: Matched<'a>,
    not_matched: NotMatched,
    variables: Option<&'a RawDocument>,
}

impl<'a> Spec<'a> {
    /// `key` are the fields of the target's shard key.
    fn of(argument: RawBsonRef<'a>, key: impl Iterator<Item = String>) -> Self {
        let spec = argument.as_document();
        let field = |name| spec.and_then(|spec| bsonx::get(spec, name));
        let on = match field("on") {
            Some(RawBsonRef::String(path)) => vec![path.to_owned()],
            Some(RawBsonRef::Array(paths)) => {
                paths.into_iter().filter_map(|path| Some(path.ok()?.as_str()?.to_owned())).collect()
            }
            // What names one document in a sharded collection.
            _ => std::iter::once("_id".to_owned()).chain(key.filter(|path| path != "_id")).collect(),
        };
        let matched = match field("whenMatched") {
            Some(RawBsonRef::String("replace")) => Matched::Replace,
            Some(RawBsonRef::String("keepExisting")) => Matched::KeepExisting,
            Some(RawBsonRef::String("fail")) => Matched::Fail,
            Some(RawBsonRef::Array(stages)) => Matched::Pipeline(bsonx::view(stages.as_bytes())),
            _ => Matched::Merge,
        };
        let not_matched = match field("whenNotMatched") {
            Some(RawBsonRef::String("discard")) => NotMatched::Discard,
            Some(RawBsonRef::String("fail")) => NotMatched::Fail,
            _ => NotMatched::Insert,
        };
        let variables = field("let").and_then(|v| v.as_document()).filter(|v| !v.is_empty());
        Spec { on, matched, not_matched, variables }
    }

    /// The command that writes, and the field of its statements.
    fn command(&self) -> (&'static str, &'static str) {
        if self.matched == Matched::Fail { ("insert", "documents") } else { ("update", "updates") }
    }

    /// Whether the variables have to be computed along with the documents.
    fn computes(&self) -> bool {
        matches!(self.matched, Matched::Pipeline(_)) && self.variables.is_some()
    }

    /// The statement that writes a document. `variables` are those of a pipeline.
    ///
    /// # Errors
    /// 51185 and 51132 for `on` fields that name no document, as a server has them.
    fn statement(&self, doc: &RawDocument, variables: Option<&RawDocument>, more: &Writes<'_>) -> Result<Vec<u8>> {
        let made;
        let mut doc = doc;
        if bsonx::find(doc.as_bytes(), "_id").is_none() && self.on.iter().any(|path| path == "_id") {
            made = with_id(doc);
            doc = bsonx::view(&made);
        }
        if self.matched == Matched::Fail {
            return Ok(doc.as_bytes().to_vec());
        }
        let mut out = Writer::with_capacity(doc.as_bytes().len() * 2 + 128);
        out.open_doc("q");
        for path in &self.on {
            let (kind, value) = on_value(doc, path)?;
            out.raw(path, kind, value);
        }
        out.close();
        match self.matched {
            Matched::Replace | Matched::Fail => out.doc("u", doc),
            Matched::KeepExisting => out.open_doc("u").doc("$setOnInsert", doc).close(),
            Matched::Merge => out.open_doc("u").doc("$set", doc).close(),
            Matched::Pipeline(stages) => out.raw("u", kind::ARRAY, stages.as_bytes()),
        };
        let upsert = self.not_matched == NotMatched::Insert;
        out.bool("upsert", upsert).bool("multi", false);
        if let Matched::Pipeline(_) = self.matched {
            out.open_doc("c");
            if let Some(variables) = variables {
                let given = variables.as_bytes();
                out.raw_fields(&given[4..given.len() - 1]);
            }
            if variables.is_none_or(|v| bsonx::get(v, "new").is_none()) {
                out.doc("new", doc);
            }
            out.close();
            if upsert {
                out.bool("upsertSupplied", true);
            }
        }
        if let Some(collation) = more.collation {
            out.doc("collation", collation);
        }
        Ok(out.finish())
    }

    /// What a server makes of an error of a write.
    fn error(&self, error: &RawDocument) -> Error {
        let code = bsonx::int(error, "code").and_then(|c| i32::try_from(c).ok()).unwrap_or(8);
        let text = bsonx::str(error, "errmsg").unwrap_or("a write failed");
        let fail = "$merge with whenMatched: fail found an existing document with the same values for the 'on' fields \
                    :: caused by :: ";
        let duplicate = self.matched == Matched::Fail && code == 11000;
        Error::with_code(code, format!("{PREFIX}{}{text}", if duplicate { fail } else { "" }))
    }
}

/// The value of an `on` field, null where there is none.
fn on_value<'d>(doc: &'d RawDocument, path: &str) -> Result<(u8, &'d [u8])> {
    let mut at = doc;
    let mut parts = path.split('.').peekable();
    while let Some(part) = parts.next() {
        let Some(found) = bsonx::find(at.as_bytes(), part) else { break };
        if found.kind == kind::ARRAY {
            return Err(Error::with_code(
                51185,
                format!("{PREFIX}$merge write error: 'on' field '{path}' is an array"),
            ));
        }
        let value = &at.as_bytes()[found.range()];
        match parts.peek() {
            None => return Ok((found.kind, value)),
            Some(_) if found.kind == kind::DOCUMENT => at = bsonx::view(value),
            Some(_) => break,
        }
    }
    Ok((kind::NULL, &[]))
}

fn with_id(doc: &RawDocument) -> Vec<u8> {
    let mut out = rawdoc! { "_id": ObjectId::new() };
    doc.iter_elements().map_while(std::result::Result::ok).for_each(|e| {
        if let Ok(value) = e.value() {
            out.append(e.key(), value);
        }
    });
    out.into_bytes()
}

/// What all write commands of one `$merge` have in common.
struct Writes<'a> {
    ctx: &'a Ctx,
    request: &'a Request,
    target: &'a Namespace,
    collation: Option<&'a RawDocument>,
}

impl Writes<'_> {
    /// Lets a shard of the target say what is wrong with the stage; nothing is written.
    async fn check(&self, coll: &CollectionRouting, argument: RawBsonRef<'_>) -> Result<()> {
        let (ctx, target) = (self.ctx, self.target);
        let Some(shard) = coll.table.owners().first() else { return Ok(()) };
        let mut merge = rawdoc! { "into": { "db": target.db(), "coll": target.coll() } };
        for (key, value) in argument.as_document().into_iter().flatten().map_while(std::result::Result::ok) {
            if key.as_str() != "into" {
                merge.append(key, value);
            }
        }
        let mut command =
            rawdoc! { "aggregate": 1, "pipeline": [{ "$documents": [] }, { "$merge": merge }], "cursor": {} };
        for field in ["let", "collation"] {
            if let (Some(value), Ok(field)) = (self.request.get(field), bson::raw::CString::try_from(field)) {
                command.append(&field, value);
            }
        }
        command.append(cstr!("$db"), target.db());
        ctx.send_primary(shard, Retryable::No, &OutMsg::from_doc(command)).await.map(|_| ())
    }

    /// Writes these statements. A writeConcernError is kept.
    async fn write(
        &self,
        spec: &Spec<'_>,
        statements: Vec<u8>,
        count: usize,
        concern: &mut Option<RawDocumentBuf>,
    ) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let (command, field) = spec.command();
        let mut out = Writer::with_capacity(512);
        out.str(command, self.target.coll()).bool("ordered", false);
        let body = self.request.body();
        for name in ["writeConcern", "bypassDocumentValidation", "comment", "lsid", "maxTimeMS"] {
            if let Some(found) = bsonx::find(body.as_bytes(), name) {
                out.raw_fields(&body.as_bytes()[found.whole()]);
            }
        }
        if let Some(variables) = bsonx::doc(body, "let").filter(|_| command == "update") {
            out.doc("let", variables);
        }
        out.str("$db", self.target.db());
        let mut sub = self.request.standing_for(command, out.finish())?;
        sub.message.sequences.push(Sequence { id: field.into(), docs: statements.into(), count });
        let reply = (sub.spec.run)(self.ctx, &sub).await?;
        let reply = bsonx::view(&reply.body);
        let error = bsonx::array(reply, "writeErrors").and_then(|e| e.into_iter().next()?.ok()?.as_document());
        if let Some(error) = error {
            return Err(spec.error(error));
        }
        if let Some(error) = bsonx::doc(reply, "writeConcernError").filter(|_| concern.is_none()) {
            *concern = Some(error.to_owned());
        }
        let n = bsonx::int(reply, "n").unwrap_or(0);
        if spec.not_matched == NotMatched::Fail && n < count as i64 {
            let text = "$merge could not find a matching document in the target collection for at least one document \
                        in the source collection";
            return Err(Error::with_code(13113, format!("{PREFIX}{text}")));
        }
        Ok(())
    }
}

/// An aggregation whose last stage is a `$merge` into the sharded collection `coll`. `ns` is what it reads, `None` where its
/// first stage makes the documents; `collation` is the one of that collection.
pub async fn merge_into(
    ctx: &Ctx,
    request: &Request,
    ns: Option<&Namespace>,
    shown: &Namespace,
    collation: Option<&RawDocument>,
    coll: &CollectionRouting,
) -> Result<Reply> {
    let list = bsonx::array(request.body(), "pipeline").map(|p| p.to_owned()).unwrap_or_default();
    let mut list =
        stages::stages(&list)?.into_iter().map(|(name, argument)| stage_doc(name, argument)).collect::<Vec<_>>();
    let Some(merge) = list.pop() else { return Err(Error::internal("a pipeline without its last stage")) };
    let (_, argument) = stages::stage(RawBsonRef::Document(&merge))?;
    let collation = bsonx::doc(request.body(), "collation").filter(|c| !c.is_empty()).or(collation);
    let writes = Writes { ctx, request, target: &coll.ns, collation };
    writes.check(coll, argument).await?;
    let spec = Spec::of(argument, coll.key.paths().map(str::to_owned));
    let sub = request.standing_for("aggregate", source_body(request.body(), list, &spec)?)?;
    let mut concern = None;
    let mut reply = match ns {
        Some(ns) => Box::pin(aggregate::run(ctx, &sub, ns, shown)).await?,
        None => Box::pin(aggregate::on_database(ctx, &sub)).await?,
    };
    loop {
        let mut batch = Batch::new(batch_of_reply(&reply)?);
        let (mut statements, mut count) = (Vec::new(), 0);
        while let Some(range) = batch.advance()? {
            let doc = bsonx::view(&batch.bytes()[range]);
            let statement = match bsonx::doc(doc, "d").filter(|_| spec.computes()) {
                Some(inner) => spec.statement(inner, bsonx::doc(doc, "l"), &writes)?,
                None => spec.statement(doc, None, &writes)?,
            };
            if count == MAX_STATEMENTS || count > 0 && statements.len() + statement.len() > MAX_BSON {
                writes.write(&spec, std::mem::take(&mut statements), count, &mut concern).await?;
                count = 0;
            }
            statements.extend_from_slice(&statement);
            count += 1;
        }
        writes.write(&spec, statements, count, &mut concern).await?;
        match next(ctx, &sub, &reply).await? {
            Some(more) => reply = more,
            None => break,
        }
    }
    let done = empty_result(shown.as_str());
    Ok(match concern {
        None => done,
        Some(error) => {
            let mut out = Writer::copy(&done.body);
            out.doc("writeConcernError", &error);
            Reply::raw(out.finish().into())
        }
    })
}

/// The stages before the last one, with the variables beside each document where the last one has some.
fn source_body(body: &RawDocument, stages: Vec<RawDocumentBuf>, spec: &Spec<'_>) -> Result<Vec<u8>> {
    let mut pipeline = RawArrayBuf::new();
    stages.into_iter().for_each(|stage| pipeline.push(stage));
    if let Some(variables) = spec.variables.filter(|_| spec.computes()) {
        pipeline.push(rawdoc! { "$replaceRoot": { "newRoot": { "d": "$$ROOT", "l": variables.to_owned() } } });
    }
    let mut out = Writer::copy_without(body.as_bytes(), |key| matches!(key, b"pipeline" | b"cursor" | b"writeConcern"));
    out.raw("pipeline", kind::ARRAY, pipeline.as_bytes());
    out.open_doc("cursor").int32("batchSize", MAX_STATEMENTS as i32).close();
    if out.len() > MAX_BSON {
        return Err(Error::new(Code::BSONObjectTooLarge, "The pipeline is too large"));
    }
    Ok(out.finish())
}

fn stage_doc(name: &str, argument: RawBsonRef<'_>) -> RawDocumentBuf {
    let mut doc = RawDocumentBuf::new();
    if let Ok(name) = bson::raw::CString::try_from(name) {
        doc.append(&name, argument);
    }
    doc
}
