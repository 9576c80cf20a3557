//! `dropIndexes` and its old name `deleteIndexes`.
//!
//! On a sharded collection the names are found first (so that `*` keeps the shard key's index), then every holder drops
//! them; a shard that cannot be reached, or refuses while another has dropped them, drops them later.

use bson::{Bson, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use futures_util::future::BoxFuture;

use super::create_indexes::{holders, is_gone};
use super::job::{self, Driven, Job, is_transient, pending, undone};
use super::{forward, list_indexes, raw, shard_view};
use crate::bsonx;
use crate::catalog::model::Namespace;
use crate::catalog::snapshot::CollectionRouting;
use crate::command::sharding::index_rules::{self, IndexSpec};
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("dropIndexes", Access::DbAdmin, "drops indexes on every shard of a collection", run)
        .aliases(&["deleteIndexes"])
        .fields(&["index", "collectionUUID"])];

fn run<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.namespace()?;
        if ctx.primary_shard(ns.db()).is_none() {
            return Err(Error::new(Code::NamespaceNotFound, format!("ns not found {ns}")));
        }
        let command = forward::on_own_behalf(request, &[], &RawDocumentBuf::new())?;
        // The alias is not sent on.
        let mut command = Document::try_from(&*command)?;
        command.remove("deleteIndexes");
        let mut named = doc! { "dropIndexes": request.argument().ok().map(Bson::try_from).transpose()? };
        named.extend(command);
        let args = doc! { "ns": ns.as_str(), "command": named };
        job::run(ctx, "dropIndexes", vec![ns.as_str().to_owned()], args, drive).await
    })
}

/// The primary shard was given the command for an unsharded collection.
const GIVEN: &str = "given";

pub fn drive(job: &mut Job) -> BoxFuture<'_, Driven> {
    Box::pin(async move {
        job.refresh();
        let args = job.intent.args();
        let ns = Namespace::parse(args.get_str("ns").unwrap_or_default()).map_err(undone)?;
        let command = args.get_document("command").cloned().unwrap_or_default();
        match (job.intent.step().as_str(), job.ctx.snapshot.collection(ns.as_str()).cloned()) {
            ("", None) => {
                job.intent.advance(GIVEN, None).await.map_err(undone)?;
                given(job, &ns, &command).await.map_err(undone)
            }
            ("", Some(routing)) => {
                let command = sharded(job, &routing, command).await.map_err(undone)?;
                job.ping(&holders(&job.ctx, &routing)).await.map_err(undone)?;
                let uuid = bson::Binary::from_uuid(routing.uuid);
                let args = doc! { "ns": ns.as_str(), "uuid": uuid, "command": command.clone() };
                job.intent.advance("dropping", Some(args)).await.map_err(undone)?;
                dropping(job, &routing, &command, false).await
            }
            // One shard has done it or not.
            (GIVEN, _) => Ok(Reply::empty_ok()),
            (_, Some(routing)) if args.get("uuid") == Some(&Bson::Binary(bson::Binary::from_uuid(routing.uuid))) => {
                dropping(job, &routing, &command, true).await
            }
            _ => {
                let text = format!("{ns} was dropped while indexes of it were to be dropped");
                Err(undone(Error::new(Code::NamespaceNotFound, text).from_router()))
            }
        }
    })
}

/// An unsharded collection; sent once: sent again the command would not find what it dropped.
async fn given(job: &Job, ns: &Namespace, command: &Document) -> Result<Reply> {
    let Some(primary) = job.ctx.primary_shard(ns.db()) else {
        return Err(Error::new(Code::NamespaceNotFound, format!("ns not found {ns}")));
    };
    let msg = OutMsg::from_doc(RawDocumentBuf::try_from(command)?);
    let outcome = job.send_once(&primary, &msg).await;
    raw::join(&[(primary, outcome)], &job.ctx.snapshot, &[])
}

/// The command for the shards, by names and uuid; under the intent, so that what it rests on stays.
async fn sharded(job: &Job, routing: &CollectionRouting, mut command: Document) -> Result<Document> {
    let raw = RawDocumentBuf::try_from(&command)?;
    let Some(wanted) = bsonx::get(&raw, "index") else {
        return Err(Error::with_code(40414, "BSON field 'dropIndexes.index' is missing but a required field"));
    };
    let listed = shard_view::indexes(&job.ctx, &list_indexes::source(routing), &routing.ns).await?;
    let specs: Vec<IndexSpec> = listed.iter().filter_map(|spec| IndexSpec::listed(spec)).collect();
    let all = wanted.as_str() == Some("*");
    let names = match all {
        true => {
            specs.iter().filter(|s| !s.is_id_index() && !s.supports(&routing.key)).map(|s| s.name.clone()).collect()
        }
        false => chosen(&specs, wanted)?,
    };
    if !all {
        index_rules::check_drop(&specs, |s| names.contains(&s.name), &routing.key)?;
    }
    command.insert("index", names);
    command.insert("collectionUUID", bson::Binary::from_uuid(routing.uuid));
    Ok(command)
}

/// Every holder drops the indexes; repeated until all have.
async fn dropping(job: &Job, routing: &CollectionRouting, command: &Document, again: bool) -> Driven {
    let msg = OutMsg::from_doc(RawDocumentBuf::try_from(command).map_err(|e| undone(e.into()))?);
    let requests: Vec<_> = holders(&job.ctx, routing).into_iter().map(|s| (s, msg.clone())).collect();
    let outcomes = job.send_all(&requests).await;
    let errors: Vec<Error> = outcomes.iter().filter_map(raw::error_of).collect();
    let gone = errors.iter().all(is_gone) && (again || errors.len() < outcomes.len());
    match raw::join(&outcomes, &job.ctx.snapshot, &[Code::IndexNotFound, Code::NamespaceNotFound]) {
        Ok(reply) => Ok(reply),
        Err(_) if gone => Ok(Reply::empty_ok()),
        // Refused by all: nothing was dropped.
        Err(error) if !again && errors.len() == outcomes.len() && !errors.iter().any(is_transient) => {
            Err(undone(error))
        }
        Err(error) => Err(pending(error)),
    }
}

/// The names that `index` (a name, a key pattern, or a list of names) means.
fn chosen(specs: &[IndexSpec], wanted: RawBsonRef<'_>) -> Result<Vec<String>> {
    let by_name = |name: &str| match specs.iter().find(|s| s.name == name) {
        Some(spec) if spec.is_id_index() => Err(Error::new(Code::InvalidOptions, "cannot drop _id index")),
        Some(spec) => Ok(spec.name.clone()),
        None => Err(Error::new(Code::IndexNotFound, format!("index not found with name [{name}]"))),
    };
    match wanted {
        RawBsonRef::String(name) => Ok(vec![by_name(name)?]),
        RawBsonRef::Document(key) => by_key(specs, key).and_then(|name| by_name(&name)).map(|name| vec![name]),
        RawBsonRef::Array(list) => {
            let names = list.into_iter().map(|item| match item? {
                RawBsonRef::String(name) => by_name(name),
                _ => Err(Error::new(Code::TypeMismatch, "dropIndexes.index must hold names of indexes only")),
            });
            names.collect()
        }
        other => Err(Error::new(
            Code::TypeMismatch,
            format!(
                "BSON field 'dropIndexes.index' is the wrong type '{}', expected types '[string, array, object]'",
                bsonx::type_name(other.element_type())
            ),
        )),
    }
}

fn by_key(specs: &[IndexSpec], key: &RawDocument) -> Result<String> {
    let same = |spec: &&IndexSpec| {
        let (mut a, mut b) = (spec.key.iter().flatten(), key.iter().flatten());
        loop {
            match (a.next(), b.next()) {
                (None, None) => return true,
                (Some((ka, va)), Some((kb, vb))) if ka == kb && crate::key::order::compare(va, vb).is_eq() => {}
                _ => return false,
            }
        }
    };
    let found: Vec<&IndexSpec> = specs.iter().filter(same).collect();
    let shown = crate::key::text::document(key);
    match found.as_slice() {
        [one] => Ok(one.name.clone()),
        [] => Err(Error::new(Code::IndexNotFound, format!("can't find index with key: {shown}"))),
        _ => Err(Error::with_code(
            181,
            format!("{} indexes found for key: {shown}, identify by name instead", found.len()),
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use bson::rawdoc;

    fn specs() -> Vec<IndexSpec> {
        let list = [
            rawdoc! {"name": "_id_", "key": {"_id": 1}},
            rawdoc! {"name": "a_1", "key": {"a": 1}},
            rawdoc! {"name": "b", "key": {"b": 1}},
            rawdoc! {"name": "b2", "key": {"b": 1}, "collation": {"locale": "fr"}},
        ];
        list.iter().map(|d| IndexSpec::listed(d).unwrap()).collect()
    }

    fn names(index: RawDocumentBuf) -> Result<Vec<String>> {
        chosen(&specs(), bsonx::get(&index, "i").unwrap())
    }

    #[test]
    fn indexes_are_found_by_name_key_and_list() {
        assert_eq!(names(rawdoc! {"i": "a_1"}).unwrap(), ["a_1"]);
        assert_eq!(names(rawdoc! {"i": {"a": 1.0}}).unwrap(), ["a_1"]);
        assert_eq!(names(rawdoc! {"i": ["b", "a_1"]}).unwrap(), ["b", "a_1"]);
        assert_eq!(names(rawdoc! {"i": {"b": 1}}).unwrap_err().code(), 181);
        assert_eq!(names(rawdoc! {"i": "zz"}).unwrap_err().code(), 27);
        assert_eq!(names(rawdoc! {"i": {"a": -1}}).unwrap_err().code(), 27);
        assert_eq!(names(rawdoc! {"i": "_id_"}).unwrap_err().code(), 72);
        assert_eq!(names(rawdoc! {"i": 5}).unwrap_err().code(), 14);
    }
}
