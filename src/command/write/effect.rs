//! What an update can do to a document's shard key, decided from the update alone.

use bson::RawDocument;
use bson::raw::RawBsonRef;
use smallvec::{SmallVec, smallvec};

use super::statement::Change;
use crate::bsonx::{self, kind};
use crate::error::Result;
use crate::key::ShardKeyPattern;
use crate::key::value::{Elements, Value, with};

/// What becomes of the shard key.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// It stays as it is.
    None,
    /// It is this afterwards (encoded, hashes applied).
    Known(Vec<u8>),
    /// The document has to be looked at after the update.
    Unknown,
}

/// What is known of the documents an update applies to.
#[derive(Clone, Copy, Default)]
pub struct Known<'a> {
    /// The complete shard key (without hashing) that the filter demands, one field for each field of the pattern.
    pub key: Option<&'a RawDocument>,
    /// The `_id` that the filter demands.
    pub id: Option<RawBsonRef<'a>>,
}

/// The effect on documents that are there.
///
/// # Errors
/// ShardKeyNotFound (61) where a replacement has an array in its shard key.
pub fn on_existing(change: Change<'_>, key: &ShardKeyPattern, known: Known<'_>) -> Result<Effect> {
    match change {
        Change::Replacement(doc) => replacement(doc, key, known),
        Change::Operators(ops) => Ok(operators(ops, key, known, false)),
        Change::Pipeline(stages) => Ok(if pipeline_keeps(stages, key) { Effect::None } else { Effect::Unknown }),
    }
}

/// The shard key of the document that an upsert inserts: never [`Effect::None`].
///
/// # Errors
/// As [`on_existing`].
pub fn on_insert(change: Change<'_>, key: &ShardKeyPattern, known: Known<'_>) -> Result<Effect> {
    let effect = match change {
        Change::Operators(ops) => operators(ops, key, known, true),
        _ => on_existing(change, key, known)?,
    };
    Ok(match (effect, known.key) {
        (Effect::None, Some(raw)) => encode(key, |i| nth(raw, i)),
        (Effect::None, None) => Effect::Unknown,
        (other, _) => other,
    })
}

/// Encodes a complete shard key given without hashing.
pub fn encode_raw(key: &ShardKeyPattern, raw: &RawDocument) -> Option<Vec<u8>> {
    match encode(key, |i| nth(raw, i)) {
        Effect::Known(bytes) => Some(bytes),
        _ => None,
    }
}

/// The value of the `i`th field.
fn nth(raw: &RawDocument, i: usize) -> Option<Value<'_>> {
    Elements::new(raw.as_bytes()).ok()?.nth(i)?.ok()?.value().ok()
}

fn encode<'a>(key: &ShardKeyPattern, value: impl Fn(usize) -> Option<Value<'a>>) -> Effect {
    let mut out = Vec::with_capacity(64);
    for i in 0..key.fields().len() {
        match value(i) {
            Some(value) if key.push_field(&mut out, i, value).is_ok() => {}
            _ => return Effect::Unknown,
        }
    }
    Effect::Known(out)
}

fn replacement(doc: &RawDocument, key: &ShardKeyPattern, known: Known<'_>) -> Result<Effect> {
    let mut bytes = Vec::with_capacity(64);
    // The error for arrays must come in any case.
    key.encode_document(doc, &mut bytes)?;
    if has_empty_timestamp(doc, key) {
        return Ok(Effect::Unknown);
    }
    let from_id = |path: &str| is_id(path) && bsonx::find(doc.as_bytes(), "_id").is_none();
    if !key.paths().any(from_id) {
        return Ok(Effect::Known(bytes));
    }
    // The document keeps its `_id`, which the replacement does not say.
    let fresh = key.extract_raw(doc)?;
    Ok(encode(key, |i| match key.fields().get(i).map(|f| &*f.path) {
        Some(path) if from_id(path) => match (known.key, known.id) {
            (Some(raw), _) => nth(raw, i),
            (None, Some(id)) if path == "_id" => with(id, |v| Ok(own(v))).ok().flatten(),
            _ => None,
        },
        _ => nth(&fresh, i),
    }))
}

/// Values that [`with`] can hand out beyond its closure: those that own their bytes.
fn own(value: Value<'_>) -> Option<Value<'static>> {
    Some(match value {
        Value::Null => Value::Null,
        Value::Int32(v) => Value::Int32(v),
        Value::Int64(v) => Value::Int64(v),
        Value::Double(v) => Value::Double(v),
        Value::Decimal(v) => Value::Decimal(v),
        Value::ObjectId(v) => Value::ObjectId(v),
        Value::Bool(v) => Value::Bool(v),
        Value::Date(v) => Value::Date(v),
        _ => return None,
    })
}

/// Servers put the current time where a new document has `Timestamp(0, 0)` at its top level.
pub fn has_empty_timestamp(doc: &RawDocument, key: &ShardKeyPattern) -> bool {
    let bytes = doc.as_bytes();
    bsonx::fields(bytes).any(|f| {
        f.kind == kind::TIMESTAMP
            && bytes[f.range()].iter().all(|b| *b == 0)
            && f.key != b"_id"
            && key.paths().any(|p| p.as_bytes() == f.key)
    })
}

/// `_id` and what is inside it never change.
fn is_id(path: &str) -> bool {
    path == "_id" || path.starts_with("_id.")
}

/// Whether setting one of the paths can change the other.
fn related(a: &str, b: &str) -> bool {
    let below =
        |long: &str, short: &str| long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    below(a, b) || below(b, a)
}

fn operators(ops: &RawDocument, key: &ShardKeyPattern, known: Known<'_>, inserting: bool) -> Effect {
    let fields = key.fields();
    let mut new: SmallVec<[Option<Value<'_>>; 4]> = smallvec![None; fields.len()];
    let mut touched = false;
    let Ok(ops) = Elements::new(ops.as_bytes()) else { return Effect::Unknown };
    for op in ops.map_while(Result::ok) {
        if op.name == b"$setOnInsert" && !inserting {
            continue;
        }
        let Ok(Value::Doc(args)) = op.value() else { continue };
        let Ok(args) = Elements::new(args) else { return Effect::Unknown };
        for arg in args.map_while(Result::ok) {
            let (Ok(path), Ok(value)) = (std::str::from_utf8(arg.name), arg.value()) else { return Effect::Unknown };
            for (i, field) in fields.iter().enumerate().filter(|(_, f)| !is_id(&f.path)) {
                let renamed = match (op.name, value) {
                    (b"$rename", Value::Str(to)) => std::str::from_utf8(to).map_or(true, |to| related(to, &field.path)),
                    _ => false,
                };
                if !renamed && !related(path, &field.path) {
                    continue;
                }
                touched = true;
                match (op.name, value) {
                    _ if *path != *field.path => return Effect::Unknown,
                    (b"$set" | b"$setOnInsert", Value::Array(_)) => return Effect::Unknown,
                    (b"$set" | b"$setOnInsert", value) => new[i] = Some(value),
                    (b"$unset", _) => new[i] = Some(Value::Null),
                    _ => return Effect::Unknown,
                }
            }
        }
    }
    if !touched {
        return Effect::None;
    }
    encode(key, |i| new[i].or_else(|| known.key.and_then(|raw| nth(raw, i))))
}

/// Whether a pipeline can be seen to leave the shard key alone.
fn pipeline_keeps(stages: &RawDocument, key: &ShardKeyPattern) -> bool {
    stages.iter_elements().all(|stage| {
        let Ok(RawBsonRef::Document(stage)) = stage.and_then(|s| s.value()) else { return false };
        let Some(Ok((name, value))) = stage.iter().next() else { return false };
        let touches = |path: &str| key.paths().any(|k| !is_id(k) && related(path, k));
        match (name.as_str(), value) {
            ("$set" | "$addFields", RawBsonRef::Document(fields)) => names(fields).all(|p| !touches(p)),
            ("$unset", RawBsonRef::String(path)) => !touches(path),
            ("$unset", RawBsonRef::Array(paths)) => {
                paths.into_iter().all(|p| p.is_ok_and(|p| p.as_str().is_some_and(|p| !touches(p))))
            }
            ("$project", RawBsonRef::Document(fields)) => project_keeps(fields, key),
            ("$replaceWith", with) => merges_into_root(with, &touches),
            ("$replaceRoot", RawBsonRef::Document(arg)) => {
                bsonx::get(arg, "newRoot").is_some_and(|with| merges_into_root(with, &touches))
            }
            _ => false,
        }
    })
}

fn names(doc: &RawDocument) -> impl Iterator<Item = &str> {
    doc.iter_elements().map_while(Result::ok).map(|e| e.key().as_str())
}

/// `{$mergeObjects: ["$$ROOT", {…}, …]}` with literal field names that are not part of the shard key.
fn merges_into_root(with: RawBsonRef<'_>, touches: &impl Fn(&str) -> bool) -> bool {
    let RawBsonRef::Document(with) = with else { return false };
    let Some(Ok((name, RawBsonRef::Array(parts)))) = with.iter().next() else { return false };
    let mut parts = parts.into_iter();
    let is_root = |first| matches!(first, Some(Ok(RawBsonRef::String("$$ROOT" | "$$CURRENT"))));
    name.as_str() == "$mergeObjects"
        && is_root(parts.next())
        && parts.all(|part| match part {
            Ok(RawBsonRef::Document(doc)) => names(doc).all(|p| !p.starts_with('$') && !touches(p)),
            _ => false,
        })
}

/// A projection that includes every shard key field as it is, or excludes others only.
fn project_keeps(fields: &RawDocument, key: &ShardKeyPattern) -> bool {
    let flag = |value: RawBsonRef<'_>| match value {
        RawBsonRef::Boolean(b) => Some(b),
        RawBsonRef::Int32(_) | RawBsonRef::Int64(_) | RawBsonRef::Double(_) => Some(bsonx::is_true(value)),
        _ => None,
    };
    let pairs: Vec<_> = fields.iter().map_while(Result::ok).map(|(k, v)| (k.as_str(), flag(v))).collect();
    // What is said of `_id` decides only where nothing else is said: `{_id: 1}` alone includes nothing else.
    let only_id = pairs.iter().all(|(name, _)| *name == "_id");
    let excludes = pairs.iter().all(|(name, flag)| match *name {
        "_id" if !only_id => flag.is_some(),
        _ => *flag == Some(false),
    });
    key.paths().filter(|p| !is_id(p)).all(|path| {
        let mut related_to = pairs.iter().filter(|(name, _)| related(name, path));
        if excludes {
            return related_to.next().is_none();
        }
        match (related_to.next(), related_to.next()) {
            (Some((name, Some(true))), None) => path == *name || path.starts_with(&format!("{name}.")),
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use bson::{RawDocumentBuf, rawdoc};

    use super::*;

    fn pattern(doc: RawDocumentBuf) -> ShardKeyPattern {
        ShardKeyPattern::parse(&doc).unwrap()
    }

    fn effect(update: RawDocumentBuf, key: &ShardKeyPattern, known: Option<&RawDocument>) -> Effect {
        let holder = rawdoc! { "u": update };
        let change = Change::parse(bsonx::get(&holder, "u").unwrap()).unwrap();
        on_existing(change, key, Known { key: known, id: None }).unwrap()
    }

    fn key_of(doc: RawDocumentBuf, key: &ShardKeyPattern) -> Effect {
        let mut out = Vec::new();
        key.encode_document(&doc, &mut out).unwrap();
        Effect::Known(out)
    }

    #[test]
    fn operators_beside_the_key_leave_it_alone() {
        let key = pattern(rawdoc! { "a.b": 1, "c": "hashed" });
        for ops in [
            rawdoc! { "$set": { "x": 1, "a.bb": 2, "cc": 1 } },
            rawdoc! { "$inc": { "a.c": 1 }, "$push": { "list": 5 } },
            rawdoc! { "$setOnInsert": { "c": 1 } },
            rawdoc! { "$set": 5 },
            rawdoc! { "$rename": { "x": "y" } },
        ] {
            assert_eq!(effect(ops.clone(), &key, None), Effect::None, "{ops:?}");
        }
    }

    #[test]
    fn operators_on_the_key_are_seen() {
        let key = pattern(rawdoc! { "a.b": 1, "c": "hashed" });
        for ops in [
            rawdoc! { "$inc": { "c": 1 } },
            rawdoc! { "$set": { "a": { "b": 1 } } },
            rawdoc! { "$set": { "a.b.c": 1 } },
            rawdoc! { "$set": { "c": [1] } },
            rawdoc! { "$rename": { "x": "c" } },
            rawdoc! { "$rename": { "c": "x" } },
            rawdoc! { "$set": { "c": 1 } },
        ] {
            assert_eq!(effect(ops.clone(), &key, None), Effect::Unknown, "{ops:?}");
        }
    }

    #[test]
    fn literal_values_give_the_new_key() {
        let key = pattern(rawdoc! { "a.b": 1, "c": "hashed" });
        let known = rawdoc! { "a.b": 7, "c": "x" };
        let expect = |b: i32, c: &str| key_of(rawdoc! { "a": { "b": b }, "c": c }, &key);
        assert_eq!(effect(rawdoc! { "$set": { "c": "y" } }, &key, Some(&known)), expect(7, "y"));
        assert_eq!(effect(rawdoc! { "$set": { "c": "y", "a.b": 9 } }, &key, None), expect(9, "y"));
        assert_eq!(
            effect(rawdoc! { "$unset": { "c": 1 } }, &key, Some(&known)),
            key_of(rawdoc! { "a": { "b": 7 } }, &key)
        );
        assert_eq!(effect(rawdoc! { "a": { "b": 1 }, "c": "z" }, &key, None), expect(1, "z"));
    }

    #[test]
    fn a_replacement_keeps_the_id() {
        let key = pattern(rawdoc! { "_id": "hashed" });
        let known = rawdoc! { "_id": 5 };
        assert_eq!(effect(rawdoc! { "x": 1 }, &key, Some(&known)), key_of(rawdoc! { "_id": 5 }, &key));
        assert_eq!(effect(rawdoc! { "x": 1 }, &key, None), Effect::Unknown);
        assert_eq!(effect(rawdoc! { "_id": 5 }, &key, None), key_of(rawdoc! { "_id": 5 }, &key));
        assert_eq!(effect(rawdoc! { "$set": { "_id": 9 } }, &key, None), Effect::None);
    }

    #[test]
    fn what_an_upsert_inserts() {
        let key = pattern(rawdoc! { "k": 1 });
        let known = rawdoc! { "k": 5 };
        let insert = |ops: RawDocumentBuf, known: Option<&RawDocument>| {
            on_insert(Change::Operators(&ops), &key, Known { key: known, id: None }).unwrap()
        };
        assert_eq!(insert(rawdoc! { "$set": { "x": 1 } }, Some(&known)), key_of(rawdoc! { "k": 5 }, &key));
        assert_eq!(insert(rawdoc! { "$setOnInsert": { "k": 6 } }, Some(&known)), key_of(rawdoc! { "k": 6 }, &key));
        assert_eq!(insert(rawdoc! { "$inc": { "k": 6 } }, Some(&known)), Effect::Unknown);
        assert_eq!(insert(rawdoc! { "$set": { "x": 1 } }, None), Effect::Unknown);
    }

    #[test]
    fn arrays_and_empty_timestamps_in_replacements() {
        let key = pattern(rawdoc! { "k": 1 });
        let doc = rawdoc! { "k": [1] };
        let error = on_existing(Change::Replacement(&doc), &key, Known::default()).unwrap_err();
        assert_eq!(error.code(), 61);
        let zero = bson::Timestamp { time: 0, increment: 0 };
        assert_eq!(effect(rawdoc! { "k": zero }, &key, None), Effect::Unknown);
        assert_ne!(effect(rawdoc! { "k": 1, "t": zero }, &key, None), Effect::Unknown);
    }

    #[test]
    fn pipelines() {
        let key = pattern(rawdoc! { "k": 1, "a.b": 1 });
        let keeps = |stage: RawDocumentBuf| {
            let holder = rawdoc! { "p": [stage] };
            pipeline_keeps(bsonx::view(bsonx::array(&holder, "p").unwrap().as_bytes()), &key)
        };
        for stage in [
            rawdoc! { "$set": { "x": "$k", "a.c": 1 } },
            rawdoc! { "$unset": ["x", "y.k"] },
            rawdoc! { "$unset": "x" },
            rawdoc! { "$project": { "x": 0 } },
            rawdoc! { "$project": { "k": 1, "a": 1, "x": "$y" } },
            rawdoc! { "$replaceWith": { "$mergeObjects": ["$$ROOT", { "x": 1 }] } },
            rawdoc! { "$replaceRoot": { "newRoot": { "$mergeObjects": ["$$ROOT", { "x": 1 }] } } },
        ] {
            assert!(keeps(stage.clone()), "{stage:?}");
        }
        for stage in [
            rawdoc! { "$set": { "k": 1 } },
            rawdoc! { "$set": { "a": 1 } },
            rawdoc! { "$addFields": { "a.b": 1 } },
            rawdoc! { "$unset": ["x", "a"] },
            rawdoc! { "$project": { "k": 1 } },
            rawdoc! { "$project": { "k": "$x", "a": 1 } },
            rawdoc! { "$project": { "k": 0 } },
            rawdoc! { "$replaceWith": "$x" },
            rawdoc! { "$replaceWith": { "$mergeObjects": [{ "x": 1 }, "$$ROOT"] } },
            rawdoc! { "$replaceWith": { "$mergeObjects": ["$$ROOT", { "k": 1 }] } },
            rawdoc! { "$replaceWith": { "$mergeObjects": ["$$ROOT", "$x"] } },
        ] {
            assert!(!keeps(stage.clone()), "{stage:?}");
        }
    }
}
