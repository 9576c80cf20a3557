#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

fn array(stages: &[RawDocumentBuf]) -> bson::RawArrayBuf {
    let mut out = bson::RawArrayBuf::new();
    stages.iter().for_each(|s| out.push(s.clone()));
    out
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
