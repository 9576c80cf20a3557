//! Pipelines on catalog documents answered without a server: what `sh.status()` and the monitoring tools ask. Pure;
//! whatever is not covered is `None` and goes to a shard.
//!
//! Covered: `$match` (see `config_match`), `$sort` by top-level fields, `$skip`, `$limit`, `$count`, `$group` that counts by one
//! field, `$project` that renames. Nothing left to work on makes any further stage of the ordinary kind trivial.

use std::collections::HashSet;

use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use bytes::Bytes;

use super::{config_match, config_simple};
use crate::bsonx;
use crate::key::order;

/// Stages that give nothing when they get nothing.
const EMPTY_STAYS_EMPTY: &[&str] = &[
    "$match",
    "$sort",
    "$skip",
    "$limit",
    "$project",
    "$addFields",
    "$set",
    "$unset",
    "$unwind",
    "$group",
    "$sortByCount",
    "$count",
    "$lookup",
    "$replaceRoot",
    "$replaceWith",
    "$redact",
    "$sample",
];

/// The documents that match; `None` where only a server can tell.
pub fn filtered(docs: &[Bytes], filter: Option<&RawDocument>) -> Option<Vec<Bytes>> {
    let Some(filter) = filter else { return Some(docs.to_vec()) };
    if !config_simple::is_short(filter) {
        return None;
    }
    let mut out = Vec::new();
    for doc in docs {
        if config_match::matches(bsonx::view(doc), filter)? {
            out.push(doc.clone());
        }
    }
    Some(out)
}

/// Runs as many leading stages as are covered; gives the documents then and the number of stages done.
pub fn run(mut docs: Vec<Bytes>, stages: &[(&str, RawBsonRef<'_>)]) -> (Vec<Bytes>, usize) {
    for (done, (name, argument)) in stages.iter().enumerate() {
        docs = match stage(&docs, name, *argument) {
            Some(next) => next,
            None => return (docs, done),
        };
    }
    (docs, stages.len())
}

fn stage(docs: &[Bytes], name: &str, argument: RawBsonRef<'_>) -> Option<Vec<Bytes>> {
    if docs.is_empty() && EMPTY_STAYS_EMPTY.contains(&name) {
        // Only arguments of the right shape: a server would refuse others.
        let fits = match name {
            "$skip" | "$limit" => bsonx::as_int(argument).is_some_and(|n| n > 0),
            "$count" | "$unwind" | "$sortByCount" | "$unset" | "$replaceWith" | "$redact" => true,
            _ => argument.as_document().is_some(),
        };
        return fits.then(Vec::new);
    }
    let count = |min| bsonx::as_int(argument).filter(|n| *n >= min).and_then(|n| usize::try_from(n).ok());
    match name {
        "$match" => filtered(docs, Some(argument.as_document()?)),
        "$sort" => config_simple::sorted(docs, Some(argument.as_document()?)),
        "$skip" => Some(docs.iter().skip(count(0)?).cloned().collect()),
        "$limit" => Some(docs.iter().take(count(1)?).cloned().collect()),
        "$count" => {
            let name = field_name(argument.as_str()?)?;
            let mut doc = RawDocumentBuf::new();
            doc.append(name, i32::try_from(docs.len()).ok()?);
            Some(vec![doc.into_bytes().into()])
        }
        "$group" => group(docs, argument.as_document()?),
        "$project" => project(docs, argument.as_document()?),
        _ => None,
    }
}

/// A projection that only keeps or only leaves out top-level fields.
pub fn projected(docs: Vec<Bytes>, projection: Option<&RawDocument>) -> Option<Vec<Bytes>> {
    let Some(projection) = projection.filter(|p| !p.is_empty()) else { return Some(docs) };
    let (mut names, mut keep, mut keep_id) = (HashSet::new(), None, None);
    for element in projection.iter_elements() {
        let element = element.ok()?;
        let value = element.value().ok()?;
        let flag = value.as_bool().or_else(|| bsonx::as_int(value).map(|n| n != 0))?;
        match element.key().as_str() {
            "_id" => keep_id = Some(flag),
            name if name.starts_with('$') || name.contains('.') || *keep.get_or_insert(flag) != flag => return None,
            name => drop(names.insert(name)),
        }
    }
    let keep = keep.or(keep_id)?;
    let keep_id = keep_id.unwrap_or(true);
    let kept = |name: &str| if name == "_id" { keep_id } else { names.contains(name) == keep };
    let apply = |bytes: &Bytes| {
        let mut out = RawDocumentBuf::new();
        for (name, value) in bsonx::view(bytes).iter().flatten() {
            if kept(name.as_str()) {
                out.append(name, value);
            }
        }
        out.into_bytes().into()
    };
    Some(docs.iter().map(apply).collect())
}

fn field_name(name: &str) -> Option<bson::raw::CString> {
    let plain = !name.is_empty() && !name.starts_with('$') && !name.contains('.');
    plain.then(|| bson::raw::CString::try_from(name).ok()).flatten()
}

/// The value of `"$path"`; `Some(None)` where it is missing.
fn value_of<'a>(doc: &'a RawDocument, expression: RawBsonRef<'_>) -> Option<Option<RawBsonRef<'a>>> {
    let mut path = expression.as_str()?.strip_prefix('$').filter(|p| !p.starts_with('$'))?;
    let mut doc = doc;
    while let Some((first, rest)) = path.split_once('.') {
        match bsonx::get(doc, first) {
            Some(RawBsonRef::Document(inner)) => (doc, path) = (inner, rest),
            Some(RawBsonRef::Array(_)) => return None,
            _ => return Some(None),
        }
    }
    Some(bsonx::get(doc, path))
}

/// `{_id: "$path" | null, n: {$sum: 1}, …}`: one document for each value, in the order they come.
fn group(docs: &[Bytes], spec: &RawDocument) -> Option<Vec<Bytes>> {
    let mut fields = spec.iter_elements();
    let first = fields.next()?.ok().filter(|e| e.key() == "_id")?;
    let by = first.value().ok()?;
    let counters: Vec<_> = fields
        .map(|element| {
            let element = element.ok()?;
            let sum = element.value().ok()?.as_document()?;
            let one = matches!(bsonx::get(sum, "$sum")?, RawBsonRef::Int32(1)) && sum.iter_elements().count() == 1;
            one.then(|| field_name(element.key().as_str())).flatten()
        })
        .collect::<Option<_>>()?;
    let mut groups: Vec<(Vec<u8>, RawBson, i32)> = Vec::new();
    let mut index = std::collections::HashMap::new();
    for doc in docs {
        let value = match by {
            RawBsonRef::Null => RawBsonRef::Null,
            path => value_of(bsonx::view(doc), path)?.unwrap_or(RawBsonRef::Null),
        };
        if matches!(value, RawBsonRef::Array(_) | RawBsonRef::Undefined) {
            return None;
        }
        let mut key = Vec::new();
        order::push_value(&mut key, value).ok()?;
        let at = *index.entry(key.clone()).or_insert_with(|| {
            groups.push((key, value.into(), 0));
            groups.len() - 1
        });
        let (_, _, n) = groups.get_mut(at)?;
        *n = n.checked_add(1)?;
    }
    let out = groups.into_iter().map(|(_, id, n)| {
        let mut doc = RawDocumentBuf::new();
        doc.append(cstr!("_id"), id);
        counters.iter().for_each(|name| doc.append(name, n));
        Bytes::from(doc.into_bytes())
    });
    Some(out.collect())
}

/// `{_id: 0, a: "$x", b: "$y.z"}`: renames; with `_id` unless it is 0.
fn project(docs: &[Bytes], spec: &RawDocument) -> Option<Vec<Bytes>> {
    let mut keep_id = true;
    let mut renames = Vec::new();
    for element in spec.iter_elements() {
        let element = element.ok()?;
        let value = element.value().ok()?;
        match element.key().as_str() {
            "_id" if !bsonx::is_true(value) => keep_id = false,
            "_id" => return None,
            name => renames.push((field_name(name)?, value.as_str().map(|_| value)?)),
        }
    }
    if renames.is_empty() {
        return None;
    }
    let rename = |bytes: &Bytes| {
        let doc = bsonx::view(bytes);
        let mut out = RawDocumentBuf::new();
        if keep_id && let Some(id) = bsonx::get(doc, "_id") {
            out.append(cstr!("_id"), id);
        }
        for (name, expression) in &renames {
            if let Some(value) = value_of(doc, *expression)? {
                out.append(name, value);
            }
        }
        Some(Bytes::from(out.into_bytes()))
    };
    docs.iter().map(rename).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use bson::{Document, RawArrayBuf, doc, rawdoc};

    use super::*;
    use crate::command::read::stages;

    fn chunks() -> Vec<Bytes> {
        (0..5)
            .map(|i| rawdoc! { "_id": i, "shard": if i < 3 { "b" } else { "a" }, "min": { "k": i } })
            .map(|d| Bytes::from(d.into_bytes()))
            .collect()
    }

    fn run_all(docs: Vec<Bytes>, pipeline: &[RawDocumentBuf]) -> (Vec<Document>, usize) {
        let mut array = RawArrayBuf::new();
        pipeline.iter().for_each(|s| array.push(s.clone()));
        let list = stages::stages(&array).unwrap();
        let (docs, done) = run(docs, &list);
        (docs.iter().map(|d| Document::from_reader(&d[..]).unwrap()).collect(), done)
    }

    #[test]
    fn what_sh_status_asks() {
        let pipeline = [
            rawdoc! { "$match": { "_id": { "$gte": 1 } } },
            rawdoc! { "$group": { "_id": "$shard", "cnt": { "$sum": 1 } } },
            rawdoc! { "$project": { "_id": 0, "shard": "$_id", "nChunks": "$cnt" } },
            rawdoc! { "$sort": { "shard": 1 } },
        ];
        let wanted = vec![doc! { "shard": "a", "nChunks": 2 }, doc! { "shard": "b", "nChunks": 2 }];
        assert_eq!(run_all(chunks(), &pipeline), (wanted, 4));
        let migrations = [
            rawdoc! { "$match": { "what": "moveChunk.from", "details.note": "success" } },
            rawdoc! { "$group": { "_id": { "msg": "$details.errmsg" }, "count": { "$sum": 1 } } },
            rawdoc! { "$project": { "_id": { "$ifNull": ["$_id.msg", "Success"] }, "count": "$count" } },
        ];
        assert_eq!(run_all(chunks(), &migrations), (vec![], 3));
    }

    #[test]
    fn stops_where_a_server_is_needed() {
        let pipeline = [rawdoc! { "$limit": 2 }, rawdoc! { "$project": { "a": { "$add": [1, 2] } } }];
        let (docs, done) = run_all(chunks(), &pipeline);
        assert_eq!((docs.len(), done), (2, 1));
        for stage in [
            rawdoc! { "$group": { "_id": "$min", "n": { "$max": "$x" } } },
            rawdoc! { "$group": { "_id": { "a": "$min" }, "n": { "$sum": 1 } } },
            rawdoc! { "$project": { "shard": 1 } },
            rawdoc! { "$match": { "$expr": true } },
            rawdoc! { "$limit": 0 },
            rawdoc! { "$facet": {} },
        ] {
            assert_eq!(run_all(chunks(), std::slice::from_ref(&stage)).1, 0, "{stage:?}");
        }
        assert_eq!(run_all(vec![], &[rawdoc! { "$facet": {} }]).1, 0);
        assert_eq!(run_all(vec![], &[rawdoc! { "$limit": -1 }]).1, 0);
    }

    #[test]
    fn projections() {
        let show = |p: RawDocumentBuf| {
            let docs = projected(chunks(), Some(&p))?;
            Some(Document::from_reader(&docs[0][..]).unwrap())
        };
        assert_eq!(show(rawdoc! { "min": 0, "other": 0 }), Some(doc! { "_id": 0, "shard": "b" }));
        assert_eq!(show(rawdoc! { "shard": 1 }), Some(doc! { "_id": 0, "shard": "b" }));
        assert_eq!(show(rawdoc! { "shard": true, "_id": 0 }), Some(doc! { "shard": "b" }));
        assert_eq!(show(rawdoc! { "_id": 1 }), Some(doc! { "_id": 0 }));
        assert_eq!(show(rawdoc! { "_id": 0 }), Some(doc! { "shard": "b", "min": { "k": 0 } }));
        assert_eq!(show(rawdoc! { "min": 0, "_id": 1 }), Some(doc! { "_id": 0, "shard": "b" }));
        assert_eq!(show(rawdoc! { "shard": 1, "min": 0 }), None);
        assert_eq!(show(rawdoc! { "min.k": 1 }), None);
        assert_eq!(show(rawdoc! { "x": "$min" }), None);
        assert_eq!(show(rawdoc! {}).unwrap().len(), 3);
    }

    #[test]
    fn counting() {
        assert_eq!(run_all(chunks(), &[rawdoc! { "$skip": 1 }, rawdoc! { "$count": "n" }]).0, vec![doc! { "n": 4 }]);
        assert_eq!(run_all(vec![], &[rawdoc! { "$count": "n" }]).0, Vec::<Document>::new());
        let all = rawdoc! { "$group": { "_id": bson::RawBson::Null, "n": { "$sum": 1 } } };
        assert_eq!(run_all(chunks(), &[all]).0, vec![doc! { "_id": bson::Bson::Null, "n": 5 }]);
    }
}
