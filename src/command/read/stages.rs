//! What the router must know of aggregation stages: the namespaces they touch. Pure.

use bson::{RawArray, RawBsonRef, RawDocument};
use smallvec::SmallVec;

use crate::bsonx;
use crate::catalog::model::Namespace;
use crate::error::{Code, Error, Result};

/// How deep pipelines may nest in each other (a server allows fewer).
const MAX_NESTING: usize = 25;

/// How many stages a pipeline may have.
const MAX_STAGES: usize = 1000;

/// A namespace that a pipeline touches beside its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Foreign {
    pub ns: Namespace,
    /// The stage that names it.
    pub stage: &'static str,
    /// Written by `$out` or `$merge`; else read.
    pub written: bool,
}

/// A stage: its name and its argument.
pub fn stage<'a>(value: RawBsonRef<'a>) -> Result<(&'a str, RawBsonRef<'a>)> {
    let RawBsonRef::Document(doc) = value else {
        return Err(Error::new(Code::TypeMismatch, "Each element of the 'pipeline' array must be an object"));
    };
    let mut elements = doc.iter_elements();
    let (Some(first), None) = (elements.next(), elements.next()) else {
        return Err(Error::with_code(40323, "A pipeline stage specification object must contain exactly one field."));
    };
    let first = first?;
    Ok((first.key().as_str(), first.value()?))
}

/// The stages of a pipeline, by name and argument.
///
/// # Errors
/// FailedToParse (9) for too many of them, TypeMismatch (14) and 40323, as a server has them.
pub fn stages(pipeline: &RawArray) -> Result<Vec<(&str, RawBsonRef<'_>)>> {
    let stages = pipeline.into_iter().take(MAX_STAGES + 1).map(|value| stage(value?)).collect::<Result<Vec<_>>>()?;
    if stages.len() > MAX_STAGES {
        let text = format!("Pipeline length must be no longer than {MAX_STAGES} stages");
        return Err(Error::new(Code::FailedToParse, text));
    }
    Ok(stages)
}

/// Every namespace the pipeline (and the pipelines in it) touches beside its own. What is malformed is left to the
/// shard to complain about.
pub fn foreign(db: &str, pipeline: &RawArray) -> SmallVec<[Foreign; 2]> {
    let mut found = SmallVec::new();
    collect(db, pipeline, &mut found, 0);
    found
}

fn collect(db: &str, pipeline: &RawArray, found: &mut SmallVec<[Foreign; 2]>, depth: usize) {
    if depth > MAX_NESTING {
        return;
    }
    for value in pipeline.into_iter().map_while(std::result::Result::ok) {
        let Ok((name, argument)) = stage(value) else { continue };
        let mut add = |stage: &'static str, target: Option<RawBsonRef<'_>>, written: bool| {
            if let Some(ns) = target.and_then(|target| namespace(db, target)) {
                found.push(Foreign { ns, stage, written });
            }
        };
        let spec = argument.as_document();
        let field = |key| spec.and_then(|spec| bsonx::get(spec, key));
        match name {
            "$lookup" => add("$lookup", field("from"), false),
            "$graphLookup" => add("$graphLookup", field("from"), false),
            "$unionWith" => add("$unionWith", field("coll").or(Some(argument)), false),
            "$out" => add("$out", Some(argument), true),
            "$merge" => add("$merge", field("into").or(Some(argument)), true),
            _ => {}
        }
        nested(name, argument).for_each(|inner| collect(db, inner, found, depth + 1));
    }
}

/// The pipelines inside a stage.
fn nested<'a>(name: &str, argument: RawBsonRef<'a>) -> impl Iterator<Item = &'a RawArray> + use<'a> {
    let spec = argument.as_document();
    let named = match name {
        "$lookup" | "$unionWith" => Some("pipeline"),
        "$merge" => Some("whenMatched"),
        _ => None,
    };
    let one = spec.zip(named).and_then(|(spec, name)| bsonx::array(spec, name));
    let facets = spec.filter(|_| name == "$facet").into_iter().flat_map(RawDocument::iter_elements);
    let facets = facets.map_while(std::result::Result::ok).filter_map(|facet| facet.value().ok()?.as_array());
    one.into_iter().chain(facets)
}

/// Refuses what servers tell each other in pipelines; a shard obeys it, and may abort at a part of a `$group` that no
/// server has made. For pipelines of clients: the router's own have such parts.
///
/// # Errors
/// 5491300, as a server answers to most of these; BadValue (2) for pipelines nested too deep to be looked through.
pub fn refuse_internal(pipeline: &RawArray) -> Result<()> {
    refuse(pipeline, 0)
}

fn refuse(pipeline: &RawArray, depth: usize) -> Result<()> {
    if depth > MAX_NESTING {
        return Err(Error::new(Code::BadValue, format!("Pipelines may be nested {MAX_NESTING} levels deep")));
    }
    // A stage with several fields is no stage to a server; each is looked at all the same.
    let stages = pipeline.into_iter().map_while(std::result::Result::ok).filter_map(|value| value.as_document());
    for element in stages.flat_map(RawDocument::iter_elements).map_while(std::result::Result::ok) {
        let name = element.key().as_str();
        let Ok(argument) = element.value() else { continue };
        let merges = name == "$group" && argument.as_document().is_some_and(|g| bsonx::get(g, "$doingMerge").is_some());
        let internal = name.starts_with("$_") && !HARMLESS.contains(&name) || name == "$mergeCursors";
        if merges || internal {
            let what = if merges { "$doingMerge" } else { name };
            return Err(Error::with_code(5_491_300, format!("{what} is not allowed in user requests")));
        }
        for inner in nested(name, argument) {
            refuse(inner, depth + 1)?;
        }
    }
    Ok(())
}

/// Internal stages that change nothing but how a server plans: people use them to try plans out.
const HARMLESS: &[&str] = &["$_internalInhibitOptimization", "$_internalSplitPipeline"];

/// `"coll"` or `{db: "db", coll: "coll"}`.
fn namespace(db: &str, target: RawBsonRef<'_>) -> Option<Namespace> {
    match target {
        RawBsonRef::String(coll) => Namespace::new(db, coll).ok(),
        RawBsonRef::Document(doc) => Namespace::new(bsonx::str(doc, "db").unwrap_or(db), bsonx::str(doc, "coll")?).ok(),
        _ => None,
    }
}

/// The filter of the pipeline's leading `$match`, if it begins with one.
pub fn leading_match<'a>(stages: &[(&'a str, RawBsonRef<'a>)]) -> Option<&'a RawDocument> {
    match stages.first() {
        Some(("$match", RawBsonRef::Document(filter))) => Some(filter),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::{RawArrayBuf, rawdoc};

    fn pipeline(stages: &[bson::RawDocumentBuf]) -> RawArrayBuf {
        let mut array = RawArrayBuf::new();
        stages.iter().for_each(|s| array.push(s.clone()));
        array
    }

    #[test]
    fn namespaces_are_found_wherever_they_stand() {
        let found = foreign(
            "d",
            &pipeline(&[
                rawdoc! { "$match": { "from": "no" } },
                rawdoc! { "$lookup": { "from": "a", "pipeline": [{ "$unionWith": "b" }], "as": "x" } },
                rawdoc! { "$lookup": { "pipeline": [{ "$documents": [] }], "as": "x" } },
                rawdoc! { "$graphLookup": { "from": "c" } },
                rawdoc! { "$unionWith": { "coll": "e", "pipeline": [{ "$graphLookup": { "from": "f" } }] } },
                rawdoc! { "$facet": { "one": [{ "$lookup": { "from": "g" } }], "two": [] } },
                rawdoc! { "$lookup": { "from": { "db": "other", "coll": "h" } } },
                rawdoc! { "$merge": { "into": { "db": "o", "coll": "i" }, "whenMatched": "replace" } },
                rawdoc! { "$merge": "j" },
                rawdoc! { "$out": { "db": "o", "coll": "k" } },
                rawdoc! { "$out": 5 },
            ]),
        );
        let names: Vec<_> = found.iter().map(|f| (f.ns.as_str(), f.stage, f.written)).collect();
        assert_eq!(
            names,
            [
                ("d.a", "$lookup", false),
                ("d.b", "$unionWith", false),
                ("d.c", "$graphLookup", false),
                ("d.e", "$unionWith", false),
                ("d.f", "$graphLookup", false),
                ("d.g", "$lookup", false),
                ("other.h", "$lookup", false),
                ("o.i", "$merge", true),
                ("d.j", "$merge", true),
                ("o.k", "$out", true),
            ]
        );
    }

    #[test]
    fn stages_have_one_field() {
        let array = |stage: bson::RawDocumentBuf| pipeline(&[stage]);
        assert_eq!(stages(&array(rawdoc! { "a": 1, "b": 2 })).unwrap_err().code(), 40323);
        assert_eq!(stages(&array(rawdoc! {})).unwrap_err().code(), 40323);
        let mut odd = RawArrayBuf::new();
        odd.push(5);
        assert_eq!(stages(&odd).unwrap_err().code(), 14);
        let many = |n| pipeline(&vec![rawdoc! { "$match": {} }; n]);
        assert_eq!(stages(&many(1000)).unwrap().len(), 1000);
        assert_eq!(stages(&many(1001)).unwrap_err().code(), 9);
        let good = array(rawdoc! { "$match": { "a": 1 } });
        assert_eq!(leading_match(&stages(&good).unwrap()), Some(&*rawdoc! { "a": 1 }));
    }

    #[test]
    fn what_servers_tell_each_other_is_refused() {
        let merge = || rawdoc! { "$group": { "_id": 1, "$doingMerge": true, "a": { "$sum": "$x" } } };
        let code =
            |stages: &[bson::RawDocumentBuf]| refuse_internal(&pipeline(stages)).map_or_else(|e| e.code(), |()| 0);
        let within = |inner: bson::RawDocumentBuf| {
            [
                rawdoc! { "$lookup": { "from": "c", "as": "x", "pipeline": [inner.clone()] } },
                rawdoc! { "$unionWith": { "coll": "c", "pipeline": [{ "$match": {} }, inner.clone()] } },
                rawdoc! { "$facet": { "a": [{ "$match": {} }], "b": [inner.clone()] } },
                rawdoc! { "$merge": { "into": "c", "whenMatched": [inner] } },
            ]
        };
        let refused = [
            merge(),
            rawdoc! { "$mergeCursors": { "remotes": [] } },
            rawdoc! { "$_internalApplyOplogUpdate": {} },
            rawdoc! { "$match": {}, "$_unpackBucket": {} },
        ];
        for stage in refused {
            assert_eq!(code(std::slice::from_ref(&stage)), 5_491_300, "{stage:?}");
            for outer in within(stage) {
                assert_eq!(code(&[rawdoc! { "$match": {} }, outer.clone()]), 5_491_300, "{outer:?}");
                assert_eq!(code(&within(outer)), 5_491_300);
            }
        }
        let allowed = [
            rawdoc! { "$group": { "_id": "$doingMerge", "n": { "$sum": 1 } } },
            rawdoc! { "$_internalInhibitOptimization": {} },
            rawdoc! { "$merge": { "into": "c", "whenMatched": "replace" } },
        ];
        assert_eq!(code(&allowed), 0);
        let deep = (0..MAX_NESTING + 2).fold(merge(), |inner, _| rawdoc! { "$facet": { "a": [inner] } });
        assert_eq!(code(&[deep]), 2);
    }
}
