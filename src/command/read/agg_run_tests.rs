#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bson::{Document, doc};

use super::*;

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
    let plan = super::super::agg_plan::plan(&super::super::stages::stages(&list).unwrap()).unwrap();
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
    let body =
        merge_body(&request, "d", Source::Documents(&docs), &pipeline, Some(&collation), Additions::default()).unwrap();
    assert_eq!(
        decoded(&body),
        doc! {
            "aggregate": 1,
            "pipeline": [{ "$documents": { "$literal": [{ "a": "$b" }] } }, { "$facet": {} }],
            "cursor": { "batchSize": 2 }, "let": { "x": 1 }, "collation": { "locale": "fr" }, "lsid": { "id": 1 }, "$db": "d",
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
fn merging_sees_the_same_time_and_an_empty_collation_is_none() {
    let request = rawdoc! { "aggregate": "c", "pipeline": [], "cursor": {}, "collation": {}, "$db": "d" };
    let now = (bson::DateTime::from_millis(5), bson::Timestamp { time: 6, increment: 7 });
    let times = CommonTimes { now: Some(now), at_cluster_time: Some(now.1), ..CommonTimes::default() };
    let pipeline = array(&[rawdoc! { "$set": { "t": "$$NOW" } }]);
    let collation = rawdoc! { "locale": "fr" };
    let body = merge_body(
        &request,
        "d",
        Source::Documents(&Gathered::default()),
        &pipeline,
        Some(&collation),
        times.now_alone(),
    )
    .unwrap();
    let body = decoded(&body);
    assert_eq!(body.get_document("runtimeConstants").unwrap(), &doc! { "localNow": now.0, "clusterTime": now.1 });
    assert_eq!(body.get_document("collation").unwrap(), &doc! { "locale": "fr" });
    assert!(!body.contains_key("readConcern"));
}
