//! Reads of views over sharded collections: each becomes an aggregation of what is beneath the view, as a server makes one
//! of a read of a view. The client sees the view's name, and the reply its command has.

use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::agg_bring::{batch_of_reply, next};
use super::aggregate;
use super::count::number;
use super::distinct_values::DistinctValues;
use super::find_args::FindArgs;
use super::merged::carry_on;
use super::numbers::{whole, wrong_type};
use super::views::Beneath;
use crate::bsonx::{self, Writer, kind};
use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};

/// Fields of a read that mean the same to the aggregation that stands for it.
const KEPT: &[&str] = &["let", "allowDiskUse", "hint", "maxTimeMS", "readConcern", "bypassDocumentValidation", "$db"];

/// What a read asks of the view.
#[derive(Debug, Default)]
struct Question {
    stages: RawArrayBuf,
    batch_size: Option<i64>,
    /// `{$natural: 1}` or -1.
    natural: Option<RawDocumentBuf>,
}

impl Question {
    fn stage(&mut self, name: &bson::raw::CStr, argument: impl bson::raw::BindRawBsonRef) {
        let mut stage = RawDocumentBuf::new();
        stage.append(name, argument);
        self.stages.push(stage);
    }

    fn some(&mut self, name: &bson::raw::CStr, argument: Option<&RawDocument>) {
        if let Some(argument) = argument.filter(|a| !a.is_empty()) {
            self.stage(name, argument.to_owned());
        }
    }
}

/// The aggregation that does the work of a read of a view.
///
/// # Errors
/// InvalidPipelineOperator (168) for what has no meaning on a view, OptionNotSupportedOnView (167), wrong types.
pub fn stand_in(command: &str, body: &RawDocument, view: &Beneath) -> Result<Vec<u8>> {
    let question = match command {
        "find" => find_question(body)?,
        "count" => count_question(body),
        "distinct" => distinct_question(body)?,
        _ => return aggregate_body(body, view),
    };
    as_aggregate(body, view, &question)
}

/// The client's pipeline after the view's.
fn aggregate_body(body: &RawDocument, view: &Beneath) -> Result<Vec<u8>> {
    let collation = collation(body, view)?;
    let mut out = Writer::with_capacity(body.as_bytes().len() + 512);
    out.str("aggregate", view.on.coll());
    let asked = bsonx::array(body, "pipeline");
    let first = asked.and_then(|p| p.into_iter().next()?.ok()?.as_document()).map(RawDocument::as_bytes);
    if first.and_then(bsonx::first_key) == Some("$collStats") {
        let text = format!("Taking statistics of a view is not supported: {}", view.name);
        return Err(Error::new(Code::CommandNotSupportedOnView, text));
    }
    pipeline(&mut out, view, asked.into_iter().flatten().map_while(std::result::Result::ok));
    let ours = |key: &[u8]| matches!(key, b"aggregate" | b"pipeline" | b"collation");
    let rest = Writer::copy_without(body.as_bytes(), ours).finish();
    out.raw_fields(&rest[4..rest.len() - 1]).doc("collation", &collation);
    Ok(out.finish())
}

fn find_question(body: &RawDocument) -> Result<Question> {
    let args = FindArgs::scan(body);
    refuse_on_views(body, &args)?;
    // A single batch is allowed with a limit of 1 only, and is to hold that.
    let batch_size = args.batch_size.filter(|_| !args.single_batch);
    let mut question = Question { batch_size, ..Question::default() };
    question.some(cstr!("$match"), args.filter);
    match args.sort {
        // As a hint: an order of the documents on a disk is none of the view's.
        Some(sort) if bsonx::get(sort, "$natural").is_some() => question.natural = Some(sort.to_owned()),
        sort => question.some(cstr!("$sort"), sort),
    }
    if args.skip > 0 {
        question.stage(cstr!("$skip"), args.skip);
    }
    if args.limit > 0 {
        question.stage(cstr!("$limit"), args.limit);
    }
    question.some(cstr!("$project"), args.projection);
    Ok(question)
}

fn refuse_on_views(body: &RawDocument, args: &FindArgs<'_>) -> Result<()> {
    let set = |key: &str| match bsonx::get(body, key) {
        Some(RawBsonRef::Document(doc)) => !doc.is_empty(),
        Some(value) => bsonx::is_true(value),
        None => false,
    };
    let flags =
        ["min", "max", "returnKey", "showRecordId", "tailable", "awaitData", "noCursorTimeout", "allowPartialResults"];
    if let Some(option) = flags.into_iter().find(|option| set(option)) {
        return Err(on_view(&format!("Option {option} not supported in aggregation.")));
    }
    if args.single_batch && args.limit != 1 {
        return Err(on_view("Option singleBatch not supported in aggregation."));
    }
    Ok(())
}

fn on_view(text: &str) -> Error {
    Error::new(Code::InvalidPipelineOperator, text.to_owned())
}

fn count_question(body: &RawDocument) -> Question {
    let mut question = Question::default();
    let number = |key| bsonx::get(body, key).and_then(whole).filter(|n| *n != 0);
    question.some(cstr!("$match"), bsonx::doc(body, "query"));
    if let Some(skip) = number("skip") {
        question.stage(cstr!("$skip"), skip);
    }
    if let Some(limit) = number("limit") {
        question.stage(cstr!("$limit"), limit.saturating_abs());
    }
    question.stage(cstr!("$count"), "count");
    question
}

/// Arrays on the way to the field are unwound, as a server does for views.
fn distinct_question(body: &RawDocument) -> Result<Question> {
    let key = match bsonx::get(body, "key") {
        Some(RawBsonRef::String(key)) => key,
        Some(other) => return Err(wrong_type("distinct", "key", other, "string")),
        None => return Err(Error::with_code(40414, "BSON field 'distinct.key' is missing but a required field")),
    };
    let query = match bsonx::get(body, "query") {
        None | Some(RawBsonRef::Null) => None,
        Some(RawBsonRef::Document(query)) => Some(query),
        Some(other) => return Err(wrong_type("distinct", "query", other, "object")),
    };
    let mut question = Question::default();
    question.some(cstr!("$match"), query);
    let mut objects = RawDocumentBuf::new();
    for (end, _) in key.match_indices('.').chain([(key.len(), "")]) {
        let path = &key[..end];
        let inner = end < key.len();
        let unwind = rawdoc! { "path": format!("${path}"), "preserveNullAndEmptyArrays": inner };
        question.stage(cstr!("$unwind"), unwind);
        if inner && let Ok(path) = bson::raw::CString::try_from(path) {
            objects.append(&path, rawdoc! { "$_internalSchemaType": "object" });
        }
    }
    question.some(cstr!("$match"), Some(&objects));
    question.stage(cstr!("$group"), rawdoc! { "_id": format!("${key}") });
    Ok(question)
}

/// `aggregate` or `find` of a view: both give a cursor.
pub async fn cursor(ctx: &Ctx, request: &Request, view: &Beneath) -> Result<Reply> {
    let sub = request.standing_for("aggregate", stand_in(request.spec.name, request.body(), view)?)?;
    aggregate::run(ctx, &sub, &view.on, &view.name).await
}

/// `count` of a view.
pub async fn count(ctx: &Ctx, request: &Request, view: &Beneath) -> Result<Reply> {
    let reply = cursor(ctx, request, view).await?;
    let first = bsonx::find_path(&reply.body, &["cursor", "firstBatch"])
        .and_then(|batch| bsonx::doc(bsonx::view(&reply.body[batch.range()]), "0"));
    let mut out = Writer::new();
    number(&mut out, "n", first.and_then(|doc| bsonx::int(doc, "count")).unwrap_or(0));
    out.double("ok", 1.0);
    Ok(Reply::raw(out.finish().into()))
}

/// `distinct` of a view.
///
/// # Errors
/// 17217 where the values do not fit into one document.
pub async fn distinct(ctx: &Ctx, request: &Request, view: &Beneath) -> Result<Reply> {
    let mut reply = cursor(ctx, request, view).await?;
    let mut values = DistinctValues::default();
    loop {
        let batch = batch_of_reply(&reply)?;
        let mut list = Writer::new();
        for (i, group) in bsonx::view(&batch).iter().map_while(std::result::Result::ok).enumerate() {
            let group = group.1.as_document().map(RawDocument::as_bytes).unwrap_or_default();
            if let Some(id) = bsonx::find(group, "_id") {
                list.raw(&i.to_string(), id.kind, &group[id.range()]);
            }
        }
        values.add_array(&list.finish().into())?;
        match next(ctx, request, &reply).await? {
            Some(more) => reply = more,
            None => break,
        }
    }
    Ok(Reply::raw(values.reply(None)?))
}

fn pipeline<'a>(out: &mut Writer, view: &'a Beneath, asked: impl Iterator<Item = RawBsonRef<'a>>) {
    out.open_array("pipeline");
    let own = view.pipeline.into_iter().map_while(std::result::Result::ok);
    for (i, stage) in own.chain(asked).enumerate() {
        match stage {
            RawBsonRef::Document(stage) => out.doc(&i.to_string(), stage),
            // Not a stage: the check of the whole pipeline says so.
            _ => out.raw(&i.to_string(), kind::NULL, &[]),
        };
    }
    out.close();
}

fn as_aggregate(body: &RawDocument, view: &Beneath, question: &Question) -> Result<Vec<u8>> {
    let mut out = Writer::with_capacity(1024);
    out.str("aggregate", view.on.coll());
    pipeline(&mut out, view, question.stages.into_iter().map_while(std::result::Result::ok));
    out.open_doc("cursor");
    if let Some(size) = question.batch_size {
        out.int64("batchSize", size);
    }
    out.close().doc("collation", &collation(body, view)?);
    if let Some(natural) = &question.natural {
        out.doc("hint", natural);
    }
    for name in KEPT.iter().filter(|name| **name != "hint" || question.natural.is_none()) {
        if let Some(field) = bsonx::find(body.as_bytes(), name) {
            out.raw_fields(&body.as_bytes()[field.whole()]);
        }
    }
    carry_on(body, &mut out);
    Ok(out.finish())
}

/// The collation of the view, which no request may change.
///
/// # Errors
/// OptionNotSupportedOnView (167) for another one.
fn collation(body: &RawDocument, view: &Beneath) -> Result<RawDocumentBuf> {
    let own = view.collation.clone().unwrap_or_else(|| rawdoc! { "locale": "simple" });
    match bsonx::doc(body, "collation").filter(|asked| !asked.is_empty()) {
        Some(asked) if !same_collation(asked, &own) => Err(Error::new(
            Code::OptionNotSupportedOnView,
            "Cannot override a view's default collation".to_owned() + &format!(" ({})", view.name),
        )),
        _ => Ok(own),
    }
}

/// Whether all that a request says of a collation is what the whole one says.
fn same_collation(asked: &RawDocument, own: &RawDocument) -> bool {
    asked.iter().map_while(std::result::Result::ok).all(|(key, value)| match bsonx::get(own, key.as_str()) {
        Some(theirs) => theirs == value || whole(theirs).is_some() && whole(theirs) == whole(value),
        None => false,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::catalog::model::Namespace;
    use bson::{Document, doc};

    fn view(collation: Option<RawDocumentBuf>) -> Beneath {
        let mut pipeline = RawArrayBuf::new();
        pipeline.push(rawdoc! { "$match": { "a": 1 } });
        let ns = |name: &str| Namespace::parse(name).unwrap();
        Beneath { name: ns("d.v"), on: ns("d.c"), pipeline, collation }
    }

    #[test]
    fn a_find_becomes_an_aggregation() {
        let body = rawdoc! {
            "find": "v", "filter": { "b": 2 }, "lsid": { "id": 1 }, "maxTimeMS": 5, "hint": "x_1", "comment": "why", "$db": "d",
        };
        let mut question = Question { batch_size: Some(3), ..Question::default() };
        question.some(cstr!("$match"), bsonx::doc(&body, "filter"));
        question.stage(cstr!("$limit"), 5_i64);
        let sent = Document::from_reader(&*as_aggregate(&body, &view(None), &question).unwrap()).unwrap();
        let wanted = doc! {
            "aggregate": "c", "pipeline": [{ "$match": { "a": 1 } }, { "$match": { "b": 2 } }, { "$limit": 5_i64 }],
            "cursor": { "batchSize": 3_i64 }, "collation": { "locale": "simple" }, "hint": "x_1", "maxTimeMS": 5, "$db": "d",
            "lsid": { "id": 1 }, "comment": "why",
        };
        assert_eq!(sent, wanted);
    }

    #[test]
    fn collations() {
        let french = rawdoc! { "locale": "fr", "strength": 3, "backwards": true };
        let asked = |asked: RawDocumentBuf, own: Option<RawDocumentBuf>| {
            collation(&rawdoc! { "find": "v", "collation": asked }, &view(own)).map_err(|e| e.code())
        };
        assert_eq!(asked(rawdoc! {}, Some(french.clone())), Ok(french.clone()));
        assert_eq!(asked(rawdoc! { "locale": "fr", "strength": 3.0 }, Some(french.clone())), Ok(french.clone()));
        assert_eq!(asked(rawdoc! { "locale": "de" }, Some(french)), Err(167));
        assert_eq!(asked(rawdoc! { "locale": "simple" }, None), Ok(rawdoc! { "locale": "simple" }));
        assert_eq!(asked(rawdoc! { "locale": "fr" }, None), Err(167));
    }

    #[test]
    fn what_views_do_not_take() {
        let refused =
            |body: RawDocumentBuf| refuse_on_views(&body, &FindArgs::scan(&body)).map_or_else(|e| e.code(), |()| 0);
        assert_eq!(refused(rawdoc! { "find": "v", "returnKey": true }), 168);
        assert_eq!(refused(rawdoc! { "find": "v", "min": { "a": 1 } }), 168);
        assert_eq!(refused(rawdoc! { "find": "v", "min": {} }), 0);
        assert_eq!(refused(rawdoc! { "find": "v", "singleBatch": true }), 168);
        assert_eq!(refused(rawdoc! { "find": "v", "singleBatch": true, "limit": 1 }), 0);
    }
}
