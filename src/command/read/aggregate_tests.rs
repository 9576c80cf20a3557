#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bson::{Document, doc};

use super::*;
use crate::merge::{Doc, Sink};

fn decoded(bytes: &[u8]) -> Document {
    bsonx::check(bytes).unwrap();
    Document::from_reader(bytes).unwrap()
}

fn array(stages: &[RawDocumentBuf]) -> bson::RawArrayBuf {
    let mut out = bson::RawArrayBuf::new();
    stages.iter().for_each(|s| out.push(s.clone()));
    out
}

#[test]
fn shards_get_their_part() {
    let request = rawdoc! {
        "aggregate": "c", "pipeline": [{ "$indexStats": {} }, { "$sort": { "a": 1 } }], "cursor": { "batchSize": 2 },
        "hint": "x", "$db": "d",
    };
    let list = array(&[rawdoc! { "$indexStats": {} }, rawdoc! { "$sort": { "a": 1 } }]);
    let plan = plan(&stages::stages(&list).unwrap()).unwrap();
    let body = shard_body(&request, &plan, "s1", Some(2), Additions::default(), None);
    assert_eq!(
        decoded(&body),
        doc! {
            "aggregate": "c", "hint": "x", "$db": "d",
            "pipeline": [
                { "$indexStats": {} }, { "$addFields": { "shard": { "$literal": "s1" } } }, { "$sort": { "a": 1 } },
            ],
            "cursor": { "batchSize": 2_i64 }, "fromMongos": true, "needsMerge": true,
        }
    );
}

#[test]
fn the_rest_runs_over_what_was_gathered() {
    let request = rawdoc! {
        "aggregate": "c", "pipeline": [], "cursor": { "batchSize": 2 }, "let": { "x": 1 }, "$db": "d",
        "lsid": { "id": 1 },
    };
    let mut docs = Gathered::default();
    let doc = rawdoc! { "a": "$b" };
    docs.push(&Doc::whole(doc.as_bytes()));
    let pipeline = array(&[rawdoc! { "$facet": {} }]);
    let collation = rawdoc! { "locale": "fr" };
    let body = merge_body(&request, &docs, &pipeline, Some(&collation), Additions::default()).unwrap();
    assert_eq!(
        decoded(&body),
        doc! {
            "aggregate": 1,
            "pipeline": [{ "$documents": { "$literal": [{ "a": "$b" }] } }, { "$facet": {} }],
            "cursor": { "batchSize": 2 }, "let": { "x": 1 }, "$db": "d", "collation": { "locale": "fr" },
            "lsid": { "id": 1 },
        }
    );
}

#[test]
fn counts() {
    let count = |id: Option<bson::RawBson>, n| count_doc(id.as_ref(), "n", n).map(|doc| decoded(&doc));
    assert_eq!(count(None, 5), Some(doc! { "n": 5 }));
    assert_eq!(count(Some(bson::RawBson::Null), 5), Some(doc! { "_id": null, "n": 5 }));
    assert_eq!(count(None, 1 << 40), Some(doc! { "n": 1_i64 << 40 }));
    assert_eq!(count(None, 0), None);
}

#[test]
fn filters_that_targeting_sees() {
    let filter = |list: &[RawDocumentBuf]| {
        let list = array(list);
        leading_filter(&stages::stages(&list).unwrap())
    };
    assert_eq!(filter(&[]), None);
    let (a, b) = (rawdoc! { "$match": { "a": 1 } }, rawdoc! { "$match": { "b": 1 } });
    assert_eq!(filter(&[a.clone(), rawdoc! { "$limit": 1 }, b.clone()]), Some(rawdoc! { "a": 1 }));
    assert_eq!(filter(&[a, b]), Some(rawdoc! { "$and": [{ "a": 1 }, { "b": 1 }] }));
    let near = rawdoc! { "$geoNear": { "near": [0, 0], "query": { "k": 5 } } };
    assert_eq!(filter(&[near]), Some(rawdoc! { "k": 5 }));
}

#[test]
fn internal_fields_are_refused() {
    let code = |body: RawDocumentBuf| refuse_internal_fields(&body).unwrap_err().code();
    assert_eq!(code(rawdoc! { "aggregate": "c", "fromMongos": true, "needsMerge": true }), 51089);
    assert_eq!(code(rawdoc! { "aggregate": "c", "needsMerge": true }), 9);
    assert_eq!(code(rawdoc! { "aggregate": "c", "exchange": {} }), 51028);
    assert!(refuse_internal_fields(&rawdoc! { "aggregate": "c", "fromMongos": false }).is_ok());
}

#[test]
fn merging_sees_the_same_time_and_an_empty_collation_is_none() {
    let request = rawdoc! { "aggregate": "c", "pipeline": [], "cursor": {}, "collation": {}, "$db": "d" };
    let now = (bson::DateTime::from_millis(5), bson::Timestamp { time: 6, increment: 7 });
    let times = CommonTimes { now: Some(now), at_cluster_time: Some(now.1), ..CommonTimes::default() };
    let pipeline = array(&[rawdoc! { "$set": { "t": "$$NOW" } }]);
    let collation = rawdoc! { "locale": "fr" };
    let body = merge_body(&request, &Gathered::default(), &pipeline, Some(&collation), times.now_alone()).unwrap();
    let body = decoded(&body);
    assert_eq!(body.get_document("runtimeConstants").unwrap(), &doc! { "localNow": now.0, "clusterTime": now.1 });
    assert_eq!(body.get_document("collation").unwrap(), &doc! { "locale": "fr" });
    assert!(!body.contains_key("readConcern"));
}

#[test]
fn internal_databases_are_not_written() {
    let refused = |db: &str, stage: RawDocumentBuf| {
        refuse_internal_targets(&stages::foreign(db, &array(&[stage]))).err().map(|e| e.code())
    };
    assert_eq!(refused("config", rawdoc! { "$out": "chunks" }), Some(31321));
    assert_eq!(refused("config", rawdoc! { "$merge": "chunks" }), Some(31320));
    assert_eq!(refused("d", rawdoc! { "$out": { "db": "admin", "coll": "x" } }), Some(31321));
    assert_eq!(refused("d", rawdoc! { "$merge": { "into": { "db": "local", "coll": "x" } } }), Some(31320));
    assert_eq!(refused("d", rawdoc! { "$facet": { "a": [{ "$out": { "db": "config", "coll": "x" } }] } }), Some(31321));
    assert_eq!(refused("config", rawdoc! { "$out": { "db": "d", "coll": "x" } }), None);
    assert_eq!(refused("config", rawdoc! { "$lookup": { "from": "chunks" } }), None);
}
