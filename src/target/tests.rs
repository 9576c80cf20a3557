//! Targeting: MongoDB's vectors, the features one by one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bson::{Bson, RawBson, RawDocumentBuf, cstr, doc, rawdoc};

use super::{FieldUse, Reason, Route, Scope, full_key_equality, id_equality, key_use, query};
use crate::catalog::table::{ChunkInfo, RoutingTable};
use crate::key::ShardKeyPattern;

/// A collection whose chunk `i` is on shard `i`.
pub(super) struct Fixture {
    pub key: ShardKeyPattern,
    pub table: RoutingTable,
    pub collation: Option<RawDocumentBuf>,
}

impl Fixture {
    /// Split at `bounds`: complete keys, hash applied.
    pub fn new(key: RawDocumentBuf, bounds: &[RawDocumentBuf]) -> Self {
        let key = ShardKeyPattern::parse(&key).unwrap();
        let mut all = vec![key.min_key()];
        all.extend(bounds.iter().cloned());
        all.push(key.max_key());
        let chunks = all.windows(2).enumerate().map(|(i, w)| ChunkInfo {
            id: bson::oid::ObjectId::from_bytes([0; 12]),
            min: w[0].clone(),
            max: w[1].clone(),
            shard: i.to_string().into(),
            lastmod: (1, i as u32),
            jumbo: false,
            since: None,
        });
        let table = RoutingTable::build(&key, chunks.collect()).unwrap();
        Fixture { key, table, collation: None }
    }

    pub fn scope(&self) -> Scope<'_> {
        Scope { key: &self.key, table: &self.table, default_collation: self.collation.as_deref() }
    }

    fn route(&self, filter: bson::Document) -> Route {
        query(&RawDocumentBuf::try_from(filter).unwrap(), None, self.scope()).unwrap()
    }

    fn shards(&self, filter: bson::Document) -> String {
        let route = self.route(filter);
        route.shards.iter().map(|s| s.to_string()).collect::<Vec<_>>().join(",")
    }

    fn reason(&self, filter: bson::Document) -> Reason {
        self.route(filter).reason
    }
}

/// Split at "x", "y", "z".
fn letters() -> Fixture {
    Fixture::new(rawdoc! {"a": 1}, &[rawdoc! {"a": "x"}, rawdoc! {"a": "y"}, rawdoc! {"a": "z"}])
}

/// Split at 0, 10, 20, 30, "m", then null's side: chunk 0 holds all below 0.
fn numbers() -> Fixture {
    Fixture::new(
        rawdoc! {"a": 1},
        &[rawdoc! {"a": 0}, rawdoc! {"a": 10}, rawdoc! {"a": 20}, rawdoc! {"a": 30}, rawdoc! {"a": "m"}],
    )
}

fn compound() -> Fixture {
    Fixture::new(
        rawdoc! {"a": 1, "b": 1},
        &[rawdoc! {"a": 1, "b": 5}, rawdoc! {"a": 1, "b": 10}, rawdoc! {"a": 2, "b": 5}, rawdoc! {"a": 3, "b": 0}],
    )
}

fn hashed() -> Fixture {
    let points = crate::key::initial::hashed_split_points(5);
    Fixture::new(rawdoc! {"k": "hashed"}, &points.iter().map(|p| rawdoc! {"k": *p}).collect::<Vec<_>>())
}

#[test]
fn mongodb_vectors() {
    let f = letters();
    assert_eq!(f.shards(doc! {"a": "y"}), "2");
    assert_eq!(f.shards(doc! {"a": {"$in": ["u", "y"]}}), "0,2");
    assert_eq!(f.shards(doc! {"a": {"$gt": "x"}}), "1,2,3");
    assert_eq!(f.shards(doc! {"a": {"$lte": "y"}}), "0,1,2");
    assert_eq!(f.shards(doc! {"a": {"$lt": "y"}}), "0,1,2");
    assert_eq!(f.shards(doc! {"$or": [{"a": "u"}, {"a": {"$gte": "y"}}]}), "0,2,3");
    assert_eq!(f.shards(doc! {"a": {"$gt": "y", "$lt": "b"}}), "0");
    assert_eq!(f.reason(doc! {"a": {"$gt": "y", "$lt": "b"}}), Reason::Unsatisfiable);
    assert_eq!(f.shards(doc! {"b": 1}), "0,1,2,3");
    assert_eq!(f.shards(doc! {}), "0,1,2,3");
    assert_eq!(f.shards(doc! {"a": {"$in": []}}), "0");
}

#[test]
fn equality_in_all_its_forms() {
    let f = numbers();
    for filter in [
        doc! {"a": 15},
        doc! {"a": 15.0, "x": 1},
        doc! {"a": {"$eq": 15i64}},
        doc! {"$and": [{"x": 1}, {"a": 15}]},
        doc! {"$and": [{"$and": [{"a": {"$eq": 15}}]}]},
        doc! {"a": {"$in": [15]}},
        doc! {"a": {"$gte": 15, "$lte": 15}},
        doc! {"a": {"$gt": 3, "$eq": 15}},
        doc! {"$or": [{"a": 15}]},
        doc! {"$or": [{"a": 15}, {"a": 15}]},
        doc! {"$expr": {"$eq": ["$a", 15]}},
        doc! {"$expr": {"$eq": [{"$literal": 15}, "$a"]}},
        doc! {"$expr": {"$in": ["$$ROOT.a", [15]]}},
        doc! {"a": 15, "$or": [{"x": 1}, {"y": 1}]},
        doc! {"a": 15, "$nor": [{"a": 3}]},
    ] {
        assert_eq!(f.shards(filter.clone()), "2", "{filter}");
    }
    for filter in [doc! {"a": 15}, doc! {"$and": [{"a": 15}]}, doc! {"a": {"$eq": 15}, "x": {"$gt": 1}}] {
        let route = f.route(filter);
        assert_eq!((route.reason, route.exact_key), (Reason::EqualityOnShardKey, true));
    }
    assert_eq!(f.reason(doc! {"$and": [{"a": 15}, {"a": 16}]}), Reason::Unsatisfiable);
    assert_eq!(f.shards(doc! {"$and": [{"a": {"$in": [1, 11, 21]}}, {"a": {"$gt": 5}}]}), "2,3");
}

#[test]
fn null_missing_and_undefined() {
    let f = Fixture::new(rawdoc! {"a": 1}, &[rawdoc! {"a": RawBson::Undefined}, rawdoc! {"a": null}, rawdoc! {"a": 0}]);
    assert_eq!(f.shards(doc! {"a": null}), "1,2");
    assert_eq!(f.shards(doc! {"a": {"$exists": false}}), "1,2");
    assert_eq!(f.shards(doc! {"a": {"$exists": true}}), "0,1,2,3");
    assert_eq!(f.shards(doc! {"a": {"$gte": null}}), "1,2");
    assert_eq!(f.reason(doc! {"a": {"$gt": null}}), Reason::Unsatisfiable);
    // In expressions missing is less than null, but lies where null does.
    assert_eq!(f.shards(doc! {"$expr": {"$lt": ["$a", null]}}), "0,1,2");
    assert_eq!(f.shards(doc! {"$expr": {"$eq": ["$a", null]}}), "2");
    assert_eq!(f.shards(doc! {"$expr": {"$gt": ["$a", 5]}}), "3");
    assert_eq!(f.shards(doc! {"$expr": {"$gt": ["$a", null]}}), "2,3");
    assert_eq!(f.shards(doc! {"$expr": {"$lt": ["$a", Bson::MinKey]}}), "0");
    assert_eq!(f.shards(doc! {"$expr": {"$gt": ["$a", Bson::MinKey]}}), "0,1,2,3");
}

#[test]
fn ranges_stay_within_their_type() {
    let f = numbers();
    assert_eq!(f.shards(doc! {"a": {"$gt": 25}}), "3,4");
    assert_eq!(f.shards(doc! {"a": {"$lt": 5}}), "0,1");
    assert_eq!(f.shards(doc! {"a": {"$gte": "n"}}), "5");
    assert_eq!(f.shards(doc! {"a": {"$lt": "n"}}), "4,5");
    assert_eq!(f.shards(doc! {"a": {"$gt": 5, "$lt": 15}}), "1,2");
    assert_eq!(f.shards(doc! {"a": {"$lt": f64::NAN}}), "0");
    assert_eq!(f.reason(doc! {"a": {"$lt": f64::NAN}}), Reason::Unsatisfiable);
    assert_eq!(f.reason(doc! {"a": {"$gte": f64::NAN}}), Reason::EqualityOnShardKey);
    assert_eq!(f.shards(doc! {"a": {"$gt": Bson::MinKey}}), "0,1,2,3,4,5");
    assert_eq!(f.shards(doc! {"a": {"$gt": 25, "$lt": "n"}}), "0");
    assert_eq!(f.shards(doc! {"a": {"$type": "string"}}), "4,5");
    assert_eq!(f.shards(doc! {"a": {"$type": ["number", "null"]}}), "0,1,2,3,4");
    assert_eq!(f.reason(doc! {"a": {"$gt": 25}}), Reason::RangeOnShardKey);
    assert_eq!(f.reason(doc! {"a": {"$in": [1, 2]}}), Reason::InOnShardKey);
    assert_eq!(f.reason(doc! {"$or": [{"a": 1}, {"a": {"$gt": 5}}]}), Reason::OrOfTargeted);
}

#[test]
fn regexes() {
    let f = letters();
    let re = |p: &str, o: &str| {
        Bson::RegularExpression(bson::Regex {
            pattern: p.to_owned().try_into().unwrap(),
            options: o.to_owned().try_into().unwrap(),
        })
    };
    // Shard 3 as well: a stored regex may match itself.
    assert_eq!(f.shards(doc! {"a": re("^xa", "")}), "1,3");
    assert_eq!(f.shards(doc! {"a": {"$regex": "^xa.*"}}), "1,3");
    assert_eq!(f.shards(doc! {"a": {"$regex": "^y|z"}}), "0,1,2,3");
    assert_eq!(f.shards(doc! {"a": {"$regex": "^xa", "$options": "i"}}), "0,1,2,3");
    assert_eq!(f.shards(doc! {"a": {"$in": [re("^xa", ""), "b"]}}), "0,1,3");
    assert_eq!(f.shards(doc! {"a": re("^xa", "m")}), "0,1,2,3");
    assert!(!f.route(doc! {"a": re("^xa", "")}).exact_key);
}

#[test]
fn dotted_keys() {
    let f = Fixture::new(rawdoc! {"a.b": 1}, &[rawdoc! {"a.b": 0}, rawdoc! {"a.b": 10}]);
    assert_eq!(f.shards(doc! {"a.b": 11}), "2");
    assert_eq!(f.shards(doc! {"a": {"b": 11}}), "2");
    assert_eq!(f.shards(doc! {"a": {"x": 1, "b": 11}}), "2");
    assert_eq!(f.shards(doc! {"a": {"$eq": {"b": 11}}}), "2");
    assert_eq!(f.shards(doc! {"a": {"$in": [{"b": 11}, {"b": 1}]}}), "1,2");
    assert_eq!(f.shards(doc! {"a": {"c": 11}}), "0");
    assert_eq!(f.shards(doc! {"a": 5}), "0");
    assert_eq!(f.shards(doc! {"a": {"b": [11]}}), "0,1,2");
    assert_eq!(f.shards(doc! {"a": [{"b": 11}]}), "0,1,2");
    assert_eq!(f.shards(doc! {"a": {"$gt": {"b": 11}}}), "0,1,2");
    assert_eq!(f.shards(doc! {"a": {"$exists": false}}), "0");
    assert_eq!(f.shards(doc! {"a": {"$elemMatch": {"b": 11}}}), "0,1,2");
    assert_eq!(f.reason(doc! {"a": {"b": 11}}), Reason::EqualityOnShardKey);
}

#[test]
fn compound_keys() {
    let f = compound();
    assert_eq!(f.shards(doc! {"a": 1, "b": 7}), "1");
    assert_eq!(f.shards(doc! {"b": 7, "a": 1}), "1");
    assert_eq!(f.shards(doc! {"a": 1}), "0,1,2");
    assert_eq!(f.shards(doc! {"b": 7}), "0,1,2,3,4");
    assert_eq!(f.shards(doc! {"a": 1, "b": {"$gt": 20}}), "2");
    assert_eq!(f.shards(doc! {"a": {"$in": [1, 2]}, "b": 7}), "1,3");
    assert_eq!(f.shards(doc! {"a": {"$in": [1, 3]}, "b": {"$in": [1, 7]}}), "0,1,4");
    assert_eq!(f.shards(doc! {"a": {"$gt": 2}}), "3,4");
    assert_eq!(f.shards(doc! {"$or": [{"a": 1, "b": 1}, {"a": 2, "b": 9}]}), "0,3");
    assert_eq!(f.shards(doc! {"a": 1, "$or": [{"b": 1}, {"b": 12}]}), "0,2");
    assert_eq!(f.shards(doc! {"$or": [{"a": 1, "b": 1}, {"b": 9}]}), "0,1,2,3,4");
    for (filter, reason) in [
        (doc! {"a": 1, "b": 7}, Reason::EqualityOnShardKey),
        (doc! {"a": 1}, Reason::EqualityOnPrefix),
        (doc! {"a": 1, "b": {"$lt": 5}}, Reason::RangeOnShardKey),
        (doc! {"a": {"$gt": 1}}, Reason::RangeOnPrefix),
        (doc! {"a": {"$gt": 1}, "b": 5}, Reason::RangeOnPrefix),
        (doc! {"a": {"$in": [1, 2]}}, Reason::InOnPrefix),
        (doc! {"a": {"$in": [1, 2]}, "b": 1}, Reason::InOnShardKey),
        (doc! {"$or": [{"a": 1, "b": 1}, {"a": 2, "b": 9}]}, Reason::OrOfTargeted),
        (doc! {"b": 7}, Reason::NoShardKey),
        (doc! {"b": {"$ne": 7}}, Reason::NoShardKey),
        (doc! {"_id": 7}, Reason::IdOnly),
        (doc! {"_id": 7, "x": 1}, Reason::NoShardKey),
        (doc! {"a": {"$ne": 7}}, Reason::NotSelective),
        (doc! {"$where": "1"}, Reason::NotSelective),
        (doc! {"a": {"$not": {"$gt": 7}}}, Reason::NotSelective),
        (doc! {"a": {"$mod": [7, 1]}}, Reason::NotSelective),
        (doc! {"a": [1]}, Reason::NoShardKey),
    ] {
        assert_eq!(f.reason(filter.clone()), reason, "{filter}");
    }
}

#[test]
fn hashed_keys() {
    let f = hashed();
    let at = |v: Bson| {
        let raw = RawBson::try_from(v).unwrap();
        let hash = crate::key::hash::hash64(raw.as_raw_bson_ref()).unwrap();
        f.table.chunk_for(&f.key.encode(&rawdoc! {"k": hash}).unwrap()).shard().to_string()
    };
    for v in [Bson::Int32(5), Bson::String("abc".into()), Bson::Double(7.0), Bson::Boolean(true)] {
        let route = f.route(doc! {"k": v.clone()});
        assert_eq!((route.shards[0].to_string(), route.exact_key), (at(v.clone()), true));
        assert_eq!(f.shards(doc! {"k": {"$in": [v.clone()]}}), at(v));
    }
    // 3.5 is hashed as 3 when it is a double and as 4 when it is a Decimal128; both are equal to 3.5.
    let mut both = vec![at(Bson::Int32(3)), at(Bson::Int32(4))];
    both.sort();
    both.dedup();
    assert_eq!(f.shards(doc! {"k": 3.5}), both.join(","));
    assert_eq!(f.shards(doc! {"k": Bson::Decimal128("3.5".parse().unwrap())}), both.join(","));
    assert_eq!(f.shards(doc! {"k": {"x": 3.5}}), "0,1,2,3,4");
    assert_eq!(f.route(doc! {"k": {"x": 3}}).shards.len(), 1);
    for filter in [doc! {"k": {"$gt": 5}}, doc! {"k": {"$regex": "^a"}}, doc! {"k": {"$type": 2}}] {
        assert_eq!(f.reason(filter.clone()), Reason::HashedRange);
        assert_eq!(f.shards(filter), "0,1,2,3,4");
    }
    assert_eq!(f.shards(doc! {"k": {"$ne": 5}}), "0,1,2,3,4");
    assert_eq!(f.shards(doc! {"k": {"$gt": 3, "$lt": 9, "$eq": 5}}), at(Bson::Int32(5)));
}

#[test]
fn compound_hashed_keys() {
    let f = Fixture::new(
        rawdoc! {"a": 1, "b": "hashed"},
        &[rawdoc! {"a": 1, "b": 0i64}, rawdoc! {"a": 2, "b": RawBson::MinKey}],
    );
    assert_eq!(f.route(doc! {"a": 1, "b": 3}).shards.len(), 1);
    assert_eq!(f.shards(doc! {"a": 1}), "0,1");
    // A chunk that begins at {a: 2, b: MinKey} holds all of a: 2.
    assert_eq!(f.shards(doc! {"a": 2}), "2");
    assert_eq!(f.shards(doc! {"a": {"$gte": 2}, "b": {"$gt": 5}}), "2");
    assert_eq!(f.shards(doc! {"b": 3}), "0,1,2");
    let f = Fixture::new(rawdoc! {"b": "hashed", "a": 1}, &[rawdoc! {"b": 0i64, "a": RawBson::MinKey}]);
    assert_eq!(f.route(doc! {"b": 3, "a": {"$gt": 5}}).shards.len(), 1);
    assert_eq!(f.route(doc! {"b": 3}).reason, Reason::EqualityOnPrefix);
    assert_eq!(f.reason(doc! {"b": {"$gt": 3}, "a": 5}), Reason::HashedRange);
}

#[test]
fn collations() {
    let mut f = letters();
    let french = rawdoc! {"locale": "fr"};
    let simple = rawdoc! {"locale": "simple"};
    let filters = [
        rawdoc! {"a": "y"},
        rawdoc! {"a": {"$gt": "y"}},
        rawdoc! {"a": {"x": 1}},
        rawdoc! {"$expr": {"$eq": ["$a", "y"]}},
    ];
    for filter in &filters {
        let route = query(filter, Some(&french), f.scope()).unwrap();
        assert_eq!((route.shards.len(), route.reason), (4, Reason::NonSimpleCollation));
        assert!(full_key_equality(filter, Some(&french), f.scope()).is_none());
        assert!(query(filter, Some(&simple), f.scope()).unwrap().shards.len() < 4);
    }
    assert_eq!(query(&rawdoc! {"a": 5}, Some(&french), f.scope()).unwrap().shards.len(), 1);
    f.collation = Some(french);
    assert_eq!(query(&filters[0], None, f.scope()).unwrap().shards.len(), 4);
    assert_eq!(query(&filters[0], Some(&rawdoc! {}), f.scope()).unwrap().shards.len(), 4);
    assert_eq!(query(&filters[0], Some(&simple), f.scope()).unwrap().shards.len(), 1);
}

#[test]
fn full_keys() {
    let f = compound();
    let full = |d: RawDocumentBuf| full_key_equality(&d, None, f.scope());
    let expected = Some(rawdoc! {"a": 1, "b": "x"});
    assert_eq!(full(rawdoc! {"b": "x", "a": 1, "c": 3}), expected);
    assert_eq!(full(rawdoc! {"$and": [{"b": {"$eq": "x"}}, {"a": 1}]}), expected);
    assert_eq!(full(rawdoc! {"a": 1, "$or": [{"b": "x"}]}), expected);
    assert_eq!(full(rawdoc! {"a": 1, "b": null}), Some(rawdoc! {"a": 1, "b": null}));
    for none in [
        rawdoc! {"a": 1},
        rawdoc! {"a": 1, "b": {"$gt": 1}},
        rawdoc! {"a": 1, "b": [1]},
        rawdoc! {"a": 1, "b": 1, "$and": [{"b": 2}]},
        rawdoc! {"a": 1, "$or": [{"b": 1}, {"b": 1}]},
        rawdoc! {"a": 1, "b": {"$eq": [2]}},
    ] {
        assert_eq!(full(none.clone()), None, "{none:?}");
    }
    let f = Fixture::new(rawdoc! {"a.b": 1, "a.c": 1}, &[]);
    let full = |d: RawDocumentBuf| full_key_equality(&d, None, f.scope());
    assert_eq!(full(rawdoc! {"a": {"c": 2, "b": 1}}), Some(rawdoc! {"a.b": 1, "a.c": 2}));
    assert_eq!(full(rawdoc! {"a.c": 2, "a.b": 1}), Some(rawdoc! {"a.b": 1, "a.c": 2}));
}

#[test]
fn ids() {
    let id = |d: &RawDocumentBuf| id_equality(d).map(RawBson::from);
    assert_eq!(id(&rawdoc! {"_id": 5}), Some(RawBson::Int32(5)));
    assert_eq!(id(&rawdoc! {"x": 1, "_id": {"$eq": 5}}), Some(RawBson::Int32(5)));
    assert_eq!(id(&rawdoc! {"$and": [{"x": 1}, {"_id": 5}]}), Some(RawBson::Int32(5)));
    for none in [rawdoc! {"_id": {"$gt": 5}}, rawdoc! {"x": 5}, rawdoc! {"_id": [5]}, rawdoc! {"$or": [{"_id": 5}]}] {
        assert_eq!(id(&none), None);
    }
}

#[test]
fn hints() {
    let f = compound();
    let uses =
        |d: RawDocumentBuf| key_use(&d, None, f.scope()).unwrap().into_iter().map(|(_, u)| u).collect::<Vec<_>>();
    assert_eq!(uses(rawdoc! {"a": 1}), [FieldUse::Equality, FieldUse::Free]);
    assert_eq!(uses(rawdoc! {"a": {"$in": [1, 2]}, "b": {"$gt": 3}}), [FieldUse::Values, FieldUse::Range]);
    assert_eq!(uses(rawdoc! {"a": {"$in": []}}), [FieldUse::Nothing, FieldUse::Nothing]);
}

#[test]
fn deep_filters_are_wide() {
    let f = numbers();
    let mut filter = rawdoc! {"a": 15};
    for _ in 0..90 {
        filter = rawdoc! {"$and": [filter]};
    }
    assert_eq!(query(&filter, None, f.scope()).unwrap().shards.len(), 1);
    for _ in 0..5000 {
        filter = rawdoc! {"$or": [filter]};
    }
    assert_eq!(query(&filter, None, f.scope()).unwrap().shards.len(), 6);
    assert!(full_key_equality(&filter, None, f.scope()).is_none());
    let mut expr = rawdoc! {"$eq": ["$a", 15]};
    for _ in 0..5000 {
        expr = rawdoc! {"$and": [expr]};
    }
    assert_eq!(query(&rawdoc! {"$expr": expr}, None, f.scope()).unwrap().shards.len(), 6);
}

#[test]
fn large_combinations_stay_cheap() {
    let f = compound();
    let many: Vec<i32> = (0..20_000).collect();
    let list = |n: usize| many[..n].iter().map(|i| Bson::Int32(*i)).collect::<Vec<_>>();
    let branches: Vec<_> = (0..300).map(|i| doc! {"a": {"$in": list(50)}, "b": i}).collect();
    f.route(doc! {"a": {"$in": list(20_000)}, "b": {"$in": list(20_000)}, "$or": branches.clone()});
    f.route(doc! {"$and": [{"$or": branches.clone()}, {"$or": branches.clone()}, {"$or": branches}]});
}

#[test]
fn many_conditions_stay_cheap() {
    let f = compound();
    let started = std::time::Instant::now();
    let branches: Vec<_> = (0..1000).map(|i| doc! {"a": i, "b": i}).collect();
    let mut all = vec![Bson::from(doc! {"$or": branches})];
    all.extend((0..20_000).map(|_| Bson::from(doc! {"a": {"$gte": 0}})));
    f.route(doc! {"$and": all});
    let list: Vec<_> = (0..20_000).map(Bson::Int32).collect();
    let mut repeated = rawdoc! {};
    repeated.append(cstr!("a"), RawDocumentBuf::try_from(&doc! {"$in": list}).unwrap());
    let one = rawdoc! {"$gte": 0};
    (0..20_000).for_each(|_| repeated.append(cstr!("a"), one.clone()));
    query(&repeated, None, f.scope()).unwrap();
    let mut regexes = rawdoc! {};
    (0..20_000).for_each(|_| regexes.append(cstr!("$regex"), "^a"));
    query(&rawdoc! {"a": regexes}, None, f.scope()).unwrap();
    assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
}

#[test]
fn single_boxes_narrow_before_unions_multiply() {
    let f = compound();
    let branches = |n: i32| Bson::from((0..n).map(|i| doc! {"a": i, "b": i}).collect::<Vec<_>>());
    // The two unions cannot be multiplied; the equality after them still counts.
    let filter = doc! {"$and": [{"$or": branches(900)}, {"$or": branches(900)}, {"a": 1, "b": 1}]};
    assert_eq!(f.route(filter).shards.len(), 1);
}

#[test]
fn hashed_code_with_scope_is_wide_where_types_hash_differently() {
    let f = Fixture::new(rawdoc! {"a": "hashed"}, &[rawdoc! {"a": 0_i64}]);
    let code = |scope| bson::JavaScriptCodeWithScope { code: "f".to_owned(), scope };
    assert_eq!(f.route(doc! {"a": code(doc! {"s": 3.5})}).shards.len(), 2);
    assert_eq!(f.route(doc! {"a": code(doc! {"s": 3})}).shards.len(), 1);
}
