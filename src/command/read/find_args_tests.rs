#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bson::{RawDocumentBuf, doc, rawdoc};

use super::*;

fn shard(find: &RawDocumentBuf, more: Additions<'_>) -> bson::Document {
    let args = FindArgs::scan(find);
    let bytes = shard_find(find, &args, &args.merging().unwrap(), more);
    bsonx::check(&bytes).unwrap();
    bson::Document::from_reader(&*bytes).unwrap()
}

fn plain(find: RawDocumentBuf) -> bson::Document {
    shard(&find, Additions::default())
}

#[test]
fn limit_and_skip_are_pushed_down() {
    assert_eq!(
        plain(rawdoc! { "find": "c", "limit": 5, "skip": 3 }),
        doc! { "find": "c", "limit": 8_i64, "batchSize": 104_i64 }
    );
    assert_eq!(plain(rawdoc! { "find": "c", "skip": 3 }), doc! { "find": "c", "batchSize": 104_i64 });
    assert_eq!(plain(rawdoc! { "find": "c", "limit": 5.7 }), doc! { "find": "c", "limit": 5_i64 });
    assert_eq!(
        plain(rawdoc! { "find": "c", "limit": i64::MAX, "skip": i64::MAX }),
        doc! { "find": "c", "batchSize": i64::MAX }
    );
    assert_eq!(plain(rawdoc! { "find": "c", "batchSize": 0, "skip": 7 }), doc! { "find": "c", "batchSize": 0_i64 });
    assert_eq!(plain(rawdoc! { "find": "c", "batchSize": 2, "limit": 0 }), doc! { "find": "c", "batchSize": 2_i64 });
}

#[test]
fn a_single_batch_bounds_what_shards_give() {
    let one = rawdoc! { "find": "c", "limit": 9, "batchSize": 2, "skip": 1, "singleBatch": true };
    assert_eq!(plain(one), doc! { "find": "c", "limit": 3_i64, "batchSize": 3_i64 });
    assert_eq!(plain(rawdoc! { "find": "c", "singleBatch": true }), doc! { "find": "c", "limit": 101_i64 });
    let none = rawdoc! { "find": "c", "batchSize": 0, "singleBatch": true };
    assert_eq!(plain(none), doc! { "find": "c", "limit": 1_i64, "batchSize": 0_i64 });
}

#[test]
fn the_sort_key_joins_the_projection() {
    let key = doc! { "$meta": "sortKey" };
    assert_eq!(
        plain(rawdoc! { "find": "c", "sort": { "a": 1 }, "$db": "d" }),
        doc! { "find": "c", "sort": { "a": 1 }, "$db": "d", "projection": { "$sortKey": key.clone() } }
    );
    assert_eq!(
        plain(rawdoc! { "find": "c", "projection": { "_id": 0, "b": 1 }, "sort": { "a": 1 } }),
        doc! { "find": "c", "sort": { "a": 1 }, "projection": { "_id": 0, "b": 1, "$sortKey": key.clone() } }
    );
    for unsorted in [rawdoc! {}, rawdoc! { "$natural": -1 }] {
        let find = rawdoc! { "find": "c", "projection": { "b": 1 }, "sort": unsorted };
        assert_eq!(plain(find.clone()), bson::Document::try_from(find).unwrap());
    }
    let own = rawdoc! { "find": "c", "sort": { "a": 1 }, "projection": { "$sortKey": { "$meta": "sortKey" } } };
    assert_eq!(plain(own.clone()), bson::Document::try_from(own.clone()).unwrap());
    assert!(FindArgs::scan(&own).merging().unwrap().keep);
    let clash = rawdoc! { "find": "c", "sort": { "a": 1 }, "projection": { "$sortKey": 1 } };
    assert_eq!(FindArgs::scan(&clash).merging().unwrap_err().code(), 2);
    let free = rawdoc! { "find": "c", "projection": { "$sortKey": 1 } };
    assert!(FindArgs::scan(&free).merging().is_ok());
}

#[test]
fn near_is_merged_by_distance() {
    let distance = doc! { "$sortKey": { "$meta": "geoNearDistance" } };
    for filter in [
        rawdoc! { "p": { "$near": [0, 0] } },
        rawdoc! { "x": 1, "p": { "$maxDistance": 1, "$nearSphere": [0, 0] } },
        rawdoc! { "$and": [ { "x": 1 }, { "$and": [ { "p": { "$geoNear": [0, 0] } } ] } ] },
    ] {
        let find = rawdoc! { "find": "c", "filter": filter.clone() };
        assert_eq!(plain(find).get_document("projection").unwrap(), &distance);
        let sorted = rawdoc! { "find": "c", "filter": filter.clone(), "sort": { "a": 1 } };
        assert!(matches!(FindArgs::scan(&sorted).merging().unwrap().order, Some(SortOrder::ByFields(_))));
        let key = rawdoc! { "find": "c", "filter": filter, "returnKey": true };
        assert_eq!(FindArgs::scan(&key).merging().unwrap_err().code(), 115);
    }
    assert!(!has_near(&rawdoc! { "$or": [ { "p": { "$near": [0, 0] } } ], "q": { "a": { "$near": 1 } } }));
}

#[test]
fn times_are_the_same_everywhere() {
    let time = Timestamp { time: 5, increment: 6 };
    let clock = rawdoc! { "clusterTime": time };
    let more = Additions {
        at_cluster_time: Some(time),
        cluster_time: Some(&clock),
        now: Some((bson::DateTime::from_millis(9), time)),
    };
    let find = rawdoc! {
        "find": "c", "readConcern": { "level": "snapshot", "afterClusterTime": time }, "$clusterTime": { "x": 1 },
        "$db": "d",
    };
    assert_eq!(
        shard(&find, more),
        doc! {
            "find": "c", "$db": "d", "readConcern": { "level": "snapshot", "atClusterTime": time },
            "$clusterTime": { "clusterTime": time },
            "runtimeConstants": { "localNow": bson::DateTime::from_millis(9), "clusterTime": time },
        }
    );
}

#[test]
fn what_only_a_server_can_judge_is_odd() {
    for odd in [
        rawdoc! { "limit": -1 },
        rawdoc! { "skip": "x" },
        rawdoc! { "batchSize": true },
        rawdoc! { "sort": 5 },
        rawdoc! { "filter": [1] },
        rawdoc! { "singleBatch": "x" },
        rawdoc! { "awaitData": true },
        rawdoc! { "ntoreturn": 2 },
    ] {
        assert!(FindArgs::scan(&odd).odd, "{odd:?}");
    }
    for even in [
        rawdoc! { "limit": bson::RawBson::Null, "skip": 1.5, "batchSize": 3_i64, "filter": bson::RawBson::Null },
        rawdoc! { "tailable": true, "awaitData": 1 },
    ] {
        assert!(!FindArgs::scan(&even).odd, "{even:?}");
    }
}
