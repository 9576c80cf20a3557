//! Commands as drivers and shells send them: where mutations start from.

use bson::{RawDocumentBuf, Timestamp, oid::ObjectId, rawdoc};

/// One of each command that a router sees often, with the fields that drivers add.
pub fn commands() -> Vec<RawDocumentBuf> {
    let session = || rawdoc! {"id": bson::Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![4; 16] }};
    let time = || Timestamp { time: 1_700_000_000, increment: 3 };
    let clock = || {
        rawdoc! {"clusterTime": time(), "signature": {
        "hash": bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: vec![0; 20] }, "keyId": 0_i64}}
    };
    vec![
        rawdoc! {"hello": 1, "helloOk": true, "topologyVersion": {"processId": ObjectId::from_bytes([1; 12]), "counter": 6_i64},
        "maxAwaitTimeMS": 10_000, "client": {"driver": {"name": "nodejs", "version": "6"}, "os": {"type": "Linux"}},
        "compression": ["zstd", "snappy", "zlib"], "$db": "admin"},
        rawdoc! {"find": "orders", "filter": {"region": "eu", "n": {"$gte": 5, "$lt": 10.5}}, "projection": {"_id": 0, "n": 1},
        "sort": {"n": -1}, "skip": 2, "limit": 10, "batchSize": 5, "singleBatch": false, "hint": "n_1", "lsid": session(),
        "$clusterTime": clock(), "$db": "shop", "$readPreference": {"mode": "secondaryPreferred", "tags": [{"dc": "a"}]},
        "collation": {"locale": "en", "strength": 2}, "readConcern": {"level": "majority", "afterClusterTime": time()}},
        rawdoc! {"getMore": 5_000_000_000_i64, "collection": "orders", "batchSize": 100, "maxTimeMS": 1000, "lsid": session(),
        "$db": "shop"},
        rawdoc! {"killCursors": "orders", "cursors": [5_000_000_000_i64, 6_i64], "$db": "shop"},
        rawdoc! {"aggregate": "orders", "pipeline": [{"$match": {"a": 1, "$expr": {"$eq": ["$a", "$$x"]}}},
        {"$group": {"_id": "$region", "sum": {"$sum": "$n"}}}, {"$sort": {"sum": -1}}, {"$limit": 3}],
        "cursor": {"batchSize": 2}, "let": {"x": 1}, "allowDiskUse": true, "$db": "shop"},
        rawdoc! {"insert": "orders", "documents": [{"_id": 1, "a": "x", "b": 2.5}, {"_id": {"k": 2}, "a": null}],
        "ordered": false, "lsid": session(), "txnNumber": 4_i64, "writeConcern": {"w": "majority", "wtimeout": 100},
        "$db": "shop"},
        rawdoc! {"update": "orders", "updates": [{"q": {"_id": 1}, "u": {"$set": {"b": 3}, "$inc": {"n": 1_i64}}},
        {"q": {"a": "x", "b": {"$in": [1, 2]}}, "u": [{"$set": {"c": {"$add": ["$n", 1]}}}], "multi": true,
        "arrayFilters": [{"x": 1}]}, {"q": {"a": 1}, "u": {"a": 1, "b": 2}, "upsert": true}], "$db": "shop"},
        rawdoc! {"delete": "orders", "deletes": [{"q": {"a": {"$gt": "m"}}, "limit": 0}, {"q": {"_id": 5}, "limit": 1}],
        "$db": "shop"},
        rawdoc! {"findAndModify": "orders", "query": {"a": 5}, "update": {"$set": {"b": 1}}, "new": true, "upsert": true,
        "fields": {"b": 1}, "$db": "shop"},
        rawdoc! {"count": "orders", "query": {"$or": [{"a": 1}, {"a": 2, "b": {"$ne": 3}}]}, "$db": "shop"},
        rawdoc! {"distinct": "orders", "key": "a.b", "query": {"a": {"$exists": true}}, "$db": "shop"},
        rawdoc! {"explain": {"find": "orders", "filter": {"a": {"$regex": "^ab"}}}, "verbosity": "queryPlanner", "$db": "shop"},
        rawdoc! {"commitTransaction": 1, "lsid": session(), "txnNumber": 5_i64, "autocommit": false,
        "recoveryToken": {"recoveryShardId": "shard0"}, "$clusterTime": clock(), "$db": "admin"},
        rawdoc! {"shardCollection": "shop.orders", "key": {"region": 1, "n": "hashed"}, "unique": false,
        "numInitialChunks": 6, "$db": "admin"},
        rawdoc! {"moveChunk": "shop.orders", "bounds": [{"a": bson::RawBson::MinKey}, {"a": 5}], "to": "shard1", "$db": "admin"},
    ]
}

/// Replies as servers give them.
pub fn replies() -> Vec<RawDocumentBuf> {
    vec![
        rawdoc! {"cursor": {"firstBatch": [{"_id": 1, "a": "x"}, {"_id": 2}], "id": 77_i64, "ns": "shop.orders"}, "ok": 1.0,
        "operationTime": Timestamp { time: 5, increment: 1 }},
        rawdoc! {"n": 1, "nModified": 0, "upserted": [{"index": 0, "_id": 7}], "ok": 1.0, "writeErrors": [{"index": 1,
        "code": 11000, "keyPattern": {"_id": 1}, "keyValue": {"_id": 1}, "errmsg": "E11000 duplicate key"}],
        "writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}},
        rawdoc! {"ok": 0.0, "errmsg": "not primary", "code": 10107, "codeName": "NotWritablePrimary",
        "errorLabels": ["RetryableWriteError"], "topologyVersion": {"counter": 1_i64}},
    ]
}

/// Filters that targeting has to take apart.
pub fn filters() -> Vec<RawDocumentBuf> {
    let id = ObjectId::from_bytes([3; 12]);
    vec![
        rawdoc! {},
        rawdoc! {"a": 1, "b": "x"},
        rawdoc! {"a": id, "b": {"$gte": bson::DateTime::from_millis(5), "$lt": bson::DateTime::from_millis(9)}},
        rawdoc! {"$or": [{"a": {"$gt": 1, "$lte": "x"}}, {"$and": [{"a.b": 5}, {"b": {"$in": [1, null, "z"]}}]}]},
        rawdoc! {"$expr": {"$and": [{"$gte": ["$a", 5]}, {"$in": ["$b", [1, 2]]}, {"$eq": [{"$literal": "x"}, "$a.b"]}]}},
        rawdoc! {"a": {"$regex": "^ab+", "$options": "s"}, "b": {"$exists": false}, "a.c": {"$type": ["int", 2]}},
        rawdoc! {"a": {"b": 3.5, "c": {"x": []}}, "_id": {"$eq": 7}, "$comment": "c", "b": {"$not": {"$lt": 3}}},
        rawdoc! {"a": {"$in": [1, 1.0, 1_i64, "a", bson::RawBson::MinKey, {"b": 1}]}, "b": {"$nin": [2]}},
        rawdoc! {"a": null, "b": {"$in": [null]}, "$nor": [{"a": 5}]},
        rawdoc! {"a": {"$elemMatch": {"$gt": 5}}, "b": {"$all": [1, 2]}, "a.b": {"$size": 2}},
        rawdoc! {"$and": [{"a": {"$gte": 5}}, {"a": {"$lt": 5}}], "b": {"$mod": [4, 0]}},
        rawdoc! {"$and": [{"$or": [{"a": 1}, {"a": 2}]}, {"$or": [{"b": 1}, {"b": 2}]}], "$where": "1"},
        rawdoc! {"a": {"$eq": {"b": 1, "c": "y"}}, "a.b": 1, "a.c": {"$ne": "z"}},
    ]
}
