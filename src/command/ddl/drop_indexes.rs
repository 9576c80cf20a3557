//! `dropIndexes` and its old name `deleteIndexes`.
//!
//! On a sharded collection the names are found first (so that `*` keeps the shard key's index), then every holder drops
//! them; a shard that cannot be reached drops them later.

use bson::{Bson, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc, rawdoc};
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
use crate::shard::Retryable;
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("dropIndexes", Access::DbAdmin, "drops indexes on every shard of a collection", run)
        .aliases(&["deleteIndexes"])];

fn run<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.namespace()?;
        match ctx.snapshot.collection(ns.as_str()).cloned() {
            Some(routing) => sharded(ctx, request, &ns, &routing).await,
            None => unsharded(ctx, request, &ns).await,
        }
    })
}

async fn unsharded(ctx: &Ctx, request: &Request, ns: &Namespace) -> Result<Reply> {
    let Some(primary) = ctx.primary_shard(ns.db()) else {
        return Err(Error::new(Code::NamespaceNotFound, format!("ns not found {ns}")));
    };
    let msg = forward::as_it_came(request)?;
    let outcomes = ctx.broadcast(std::slice::from_ref(&primary), Retryable::No, &msg).await;
    if let Some(newer) = super::sharded_meanwhile(ctx, ns).await?
        && let Some(routing) = newer.snapshot.collection(ns.as_str()).cloned()
    {
        return sharded(&newer, request, ns, &routing).await;
    }
    raw::join(&outcomes, &ctx.snapshot, &[])
}

async fn sharded(ctx: &Ctx, request: &Request, ns: &Namespace, routing: &CollectionRouting) -> Result<Reply> {
    let Some(wanted) = request.get("index") else {
        return Err(Error::with_code(40414, "BSON field 'dropIndexes.index' is missing but a required field"));
    };
    let shard = list_indexes::source(routing);
    let listed = shard_view::indexes(ctx, &shard, ns).await?;
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
    let uuid = bson::Binary::from_uuid(routing.uuid);
    let more = rawdoc! { "index": bson::RawArrayBuf::from_iter(names.iter().map(String::as_str)), "collectionUUID": uuid.clone() };
    let command = forward::on_own_behalf(request, &["index", "collectionUUID"], &more)?;
    // The alias is not sent on.
    let mut command = Document::try_from(&*command)?;
    command.remove("deleteIndexes");
    let mut named = doc! { "dropIndexes": ns.coll() };
    named.extend(command);
    let args = doc! { "ns": ns.as_str(), "uuid": uuid, "command": named, "all": all };
    job::run(ctx, "dropIndexes", vec![ns.as_str().to_owned()], args, drive).await
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

pub fn drive(job: &mut Job) -> BoxFuture<'_, Driven> {
    Box::pin(async move {
        job.refresh();
        let args = job.intent.args();
        let ns = Namespace::parse(args.get_str("ns").unwrap_or_default()).map_err(undone)?;
        let routing = job.ctx.snapshot.collection(ns.as_str()).cloned();
        let routing = routing.filter(|r| args.get("uuid") == Some(&Bson::Binary(bson::Binary::from_uuid(r.uuid))));
        let Some(routing) = routing else {
            let text = format!("{ns} was dropped while indexes of it were to be dropped");
            return Err(undone(Error::new(Code::NamespaceNotFound, text).from_router()));
        };
        let command = args.get_document("command").cloned().unwrap_or_default();
        let msg = OutMsg::from_doc(RawDocumentBuf::try_from(&command).map_err(|e| undone(e.into()))?);
        let shards = holders(&job.ctx, &routing);
        let again = !job.intent.step().is_empty();
        if !again {
            job.ping(&shards).await.map_err(undone)?;
            job.intent.advance("dropping", None).await.map_err(undone)?;
        }
        let requests: Vec<_> = shards.into_iter().map(|s| (s, msg.clone())).collect();
        let outcomes = job.send_all(&requests).await;
        let errors: Vec<Error> = outcomes.iter().filter_map(raw::error_of).collect();
        let gone = errors.iter().all(is_gone) && (again || errors.len() < outcomes.len());
        match raw::join(&outcomes, &job.ctx.snapshot, &[Code::IndexNotFound, Code::NamespaceNotFound]) {
            Ok(reply) => Ok(reply),
            Err(_) if gone => Ok(Reply::empty_ok()),
            Err(error) if errors.iter().any(is_transient) => Err(pending(error)),
            Err(error) => Err(undone(error)),
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

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
