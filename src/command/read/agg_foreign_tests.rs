#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use bson::{Bson, Document, doc};

fn rewrite(stages: Bson) -> (Bson, Vec<Need>) {
    let wrapper = RawDocumentBuf::try_from(doc! { "p": stages }).unwrap();
    let mut needs = Vec::new();
    let mut bring = |need: Need| {
        needs.push(need);
        format!("t{}", needs.len())
    };
    let out = rewritten("d", bsonx::array(&wrapper, "p").unwrap(), &mut bring).unwrap();
    let out = Document::try_from(rawdoc! { "p": out }).unwrap();
    (out.get("p").unwrap().clone(), needs)
}

fn stages(list: &[Document]) -> Bson {
    Bson::Array(list.iter().cloned().map(Bson::Document).collect())
}

fn pushed(need: &Need) -> Bson {
    Document::try_from(rawdoc! { "p": need.pipeline.clone() }).unwrap().get("p").unwrap().clone()
}

#[test]
fn an_equality_lookup() {
    let lookup = doc! { "$lookup": { "from": "f", "localField": "a.b", "foreignField": "x", "as": "o" } };
    let (out, needs) = rewrite(stages(&[lookup.clone(), lookup]));
    let wanted = |name: &str| {
        doc! { "$lookup": {
            "localField": "a.b", "as": "o", "from": name, "foreignField": "d.x",
            "pipeline": [{ "$replaceRoot": { "newRoot": "$d" } }],
        } }
    };
    assert_eq!(out, stages(&[wanted("t1"), wanted("t2")]));
    assert_eq!(needs[0].ns.as_str(), "d.f");
    assert_eq!(needs[0].index.as_deref(), Some("d.x"));
    assert_eq!(needs[0].join, Some(("a.b".into(), "x".into())));
    // Only the first stage's values are known beforehand.
    assert_eq!(needs[1].join, None);
}

#[test]
fn what_depends_on_no_variable_is_run_where_the_collection_is() {
    let (out, needs) = rewrite(stages(&[doc! { "$lookup": {
        "from": "f", "let": { "k": "$key" }, "as": "o", "pipeline": [
            { "$match": { "live": true } }, { "$project": { "x": 1 } },
            { "$match": { "$expr": { "$and": [{ "$gt": ["$n", 1] }, { "$eq": ["$$k", "$x"] }] } } },
            { "$limit": 1 },
        ],
    } }]));
    assert_eq!(pushed(&needs[0]), stages(&[doc! { "$match": { "live": true } }, doc! { "$project": { "x": 1 } }]));
    assert_eq!(needs[0].index.as_deref(), Some("d.x"));
    let wanted = doc! { "$lookup": { "let": { "k": "$key" }, "as": "o", "from": "t1", "pipeline": [
        { "$match": { "$expr": { "$eq": ["$d.x", "$$k"] } } },
        { "$replaceRoot": { "newRoot": "$d" } },
        { "$match": { "$expr": { "$and": [{ "$gt": ["$n", 1] }, { "$eq": ["$$k", "$x"] }] } } },
        { "$limit": 1 },
    ] } };
    assert_eq!(out, stages(&[wanted]));
}

#[test]
fn what_is_looked_up_by_value_lets_only_filters_pass() {
    let (out, needs) = rewrite(stages(&[doc! { "$lookup": {
        "from": "f", "localField": "a", "foreignField": "x", "as": "o",
        "pipeline": [{ "$match": { "live": true } }, { "$limit": 1 }],
    } }]));
    assert_eq!(pushed(&needs[0]), stages(&[doc! { "$match": { "live": true } }]));
    let lookup = out.as_array().unwrap()[0].as_document().unwrap().get_document("$lookup").unwrap();
    assert_eq!(lookup.get_array("pipeline").unwrap().len(), 2);
}

#[test]
fn variables_of_outer_stages_keep_a_stage_in_its_place() {
    let inner = doc! { "$unionWith": { "coll": "g", "pipeline": [
        { "$match": { "a": 1 } }, { "$match": { "$expr": { "$eq": ["$b", "$$outer"] } } },
    ] } };
    let (out, needs) = rewrite(stages(&[doc! { "$lookup": {
        "from": "f", "let": { "outer": "$v" }, "as": "o", "pipeline": [{ "$match": { "y": "$$outer" } }, inner],
    } }]));
    let stages_of: Vec<_> = needs.iter().map(|n| (n.ns.as_str(), pushed(n).as_array().unwrap().len())).collect();
    assert_eq!(stages_of, [("d.f", 0), ("d.g", 1)]);
    let text = out.to_string();
    assert!(text.contains("t2") && !text.contains("\"g\""), "{text}");
}

#[test]
fn graphs_unions_facets_and_targets() {
    let (out, needs) = rewrite(stages(&[
        doc! { "$graphLookup": {
            "from": "f", "startWith": "$a", "connectFromField": "b", "connectToField": "c", "as": "g",
            "restrictSearchWithMatch": { "q": 1 },
        } },
        doc! { "$unionWith": "u" },
        doc! { "$facet": { "one": [{ "$unionWith": { "coll": "v", "pipeline": [{ "$limit": 1 }] } }] } },
        doc! { "$merge": { "into": "m", "whenMatched": "replace" } },
        doc! { "$merge": "m" },
        doc! { "$out": "o" },
        doc! { "$out": { "db": "e", "coll": "o" } },
        doc! { "$group": { "_id": "$from" } },
    ]));
    let needed: Vec<_> = needs.iter().map(|n| (n.ns.as_str(), n.wrapped, n.index.as_deref())).collect();
    assert_eq!(needed, [("d.f", false, Some("c")), ("d.u", true, None), ("d.v", true, None)]);
    assert_eq!(pushed(&needs[0]), stages(&[doc! { "$match": { "q": 1 } }]));
    let unwrap = doc! { "$replaceRoot": { "newRoot": "$d" } };
    let wanted = [
        doc! { "$graphLookup": {
            "startWith": "$a", "connectFromField": "b", "connectToField": "c", "as": "g",
            "restrictSearchWithMatch": { "q": 1 }, "from": "t1",
        } },
        doc! { "$unionWith": { "coll": "t2", "pipeline": [unwrap.clone()] } },
        doc! { "$facet": { "one": [{ "$unionWith": { "coll": "t3", "pipeline": [unwrap] } }] } },
        doc! { "$merge": { "whenMatched": "replace", "into": { "db": "d", "coll": "m" } } },
        doc! { "$merge": { "into": { "db": "d", "coll": "m" } } },
        doc! { "$out": { "db": "d", "coll": "o" } },
        doc! { "$out": { "db": "e", "coll": "o" } },
        doc! { "$group": { "_id": "$from" } },
    ];
    assert_eq!(out, stages(&wanted));
}

#[test]
fn stages_that_do_not_belong_there_stay() {
    let out = doc! { "$out": "x" };
    let (_, needs) = rewrite(stages(&[doc! { "$unionWith": { "coll": "u", "pipeline": [out] } }]));
    assert_eq!(needs[0].pipeline, RawArrayBuf::new());
    let odd =
        stages(&[doc! { "$lookup": { "as": "x", "pipeline": [{ "$documents": [] }] } }, doc! { "$unionWith": 5 }]);
    let (out, needs) = rewrite(odd.clone());
    assert!(needs.is_empty());
    assert_eq!(out, odd);
}
