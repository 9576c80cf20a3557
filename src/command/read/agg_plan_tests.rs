#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bson::{Bson, Document, bson, doc};

use super::*;
use crate::command::read::stages::stages;

fn array(stages: &[Document]) -> RawArrayBuf {
    let mut out = RawArrayBuf::new();
    stages.iter().for_each(|s| out.push(RawDocumentBuf::try_from(s).unwrap()));
    out
}

fn planned(pipeline: &[Document]) -> std::result::Result<Plan, NoPlan> {
    let pipeline = array(pipeline);
    plan(&stages(&pipeline).unwrap())
}

fn documents(pipeline: &RawArrayBuf) -> Bson {
    let doc = rawdoc! { "p": pipeline.clone() };
    Document::try_from(doc).unwrap().remove("p").unwrap()
}

/// The shard part, and whether it gives parts.
fn shard(plan: &Plan) -> (Bson, bool) {
    (documents(&plan.shard), plan.needs_merge)
}

fn order(descending: &[bool]) -> Option<SortOrder> {
    Some(SortOrder::ByFields(descending.iter().copied().collect()))
}

#[test]
fn streams() {
    let plan = planned(&[doc! { "$match": { "a": 1 } }, doc! { "$unwind": "$b" }]).unwrap();
    assert_eq!(shard(&plan), (bson!([{ "$match": { "a": 1 } }, { "$unwind": "$b" }]), false));
    assert_eq!(plan.merge, Merge::Stream(Stream::default()));
    assert_eq!(shard(&planned(&[]).unwrap()), (bson!([]), false));
}

#[test]
fn limits_and_skips_in_any_order() {
    let plan = planned(&[
        doc! { "$sort": { "a": 1, "b": -1 } },
        doc! { "$skip": 5 },
        doc! { "$limit": 10 },
        doc! { "$project": { "a": 1 } },
        doc! { "$skip": 2 },
        doc! { "$limit": 3 },
    ])
    .unwrap();
    let wanted = bson!([
        { "$sort": { "a": 1, "b": -1 } }, { "$limit": 15_i64 }, { "$project": { "a": 1 } }, { "$limit": 10_i64 },
    ]);
    assert_eq!(shard(&plan), (wanted, true));
    assert_eq!(plan.merge, Merge::Stream(Stream { order: order(&[false, true]), skip: 7, limit: Some(3) }));
    let none = planned(&[doc! { "$limit": 3 }, doc! { "$skip": 5.0 }]).unwrap();
    assert_eq!(none.merge, Merge::Stream(Stream { order: None, skip: 5, limit: Some(0) }));
}

#[test]
fn what_follows_a_limit_must_not_change_how_many_there_are() {
    let plan = planned(&[doc! { "$limit": 3 }, doc! { "$match": { "a": 1 } }, doc! { "$limit": 1 }]).unwrap();
    assert_eq!(shard(&plan), (bson!([{ "$limit": 3_i64 }]), false));
    let Merge::Pipeline { input, pipeline } = plan.merge else { panic!() };
    assert_eq!(input, Stream { order: None, skip: 0, limit: Some(3) });
    assert_eq!(documents(&pipeline), bson!([{ "$match": { "a": 1 } }, { "$limit": 1 }]));
}

#[test]
fn groups_in_parts() {
    let group = doc! { "$group": {
        "_id": "$g", "n": { "$sum": "$x" }, "c": { "$count": {} }, "t": { "$top": { "sortBy": { "a": 1 }, "output": "$b" } },
        "f": { "$firstN": { "n": 2, "input": "$b" } },
    } };
    let plan = planned(&[doc! { "$match": { "a": 1 } }, group.clone(), doc! { "$sort": { "n": 1 } }]).unwrap();
    assert_eq!(shard(&plan), (bson!([{ "$match": { "a": 1 } }, group]), true));
    let Merge::Pipeline { input, pipeline } = plan.merge else { panic!() };
    assert_eq!(input, Stream::default());
    let unite = doc! {
        "_id": "$$ROOT._id", "n": { "$sum": "$$ROOT.n" }, "c": { "$sum": "$$ROOT.c" },
        "t": { "$top": { "sortBy": { "a": 1 }, "output": "$$ROOT.t" } },
        "f": { "$firstN": { "n": 2, "input": "$$ROOT.f" } },
        "$doingMerge": true,
    };
    assert_eq!(documents(&pipeline), bson!([{ "$group": unite }, { "$sort": { "n": 1 } }]));
}

#[test]
fn groups_over_sorted_input() {
    let sort = doc! { "$sort": { "a": 1 } };
    let sum = planned(&[sort.clone(), doc! { "$group": { "_id": "$g", "n": { "$max": "$x" } } }]).unwrap();
    assert!(sum.needs_merge && matches!(&sum.merge, Merge::Pipeline { input, .. } if input.order.is_none()));
    let first = doc! { "$group": { "_id": "$g", "n": { "$first": "$x" } } };
    let first = planned(&[sort.clone(), first.clone()]).unwrap();
    assert_eq!(shard(&first), (bson!([sort]), true));
    assert!(matches!(&first.merge, Merge::Pipeline { input, .. } if input.order == order(&[false])));
    // An accumulator that nobody knows here is not computed in parts.
    let other = planned(&[doc! { "$group": { "_id": "$g", "n": { "$median": "$x" } } }]).unwrap();
    assert_eq!(shard(&other), (bson!([]), false));
}

#[test]
fn counts() {
    let count = |pipeline: &[Document]| {
        let plan = planned(pipeline).unwrap();
        (shard(&plan), plan.merge)
    };
    let all = count(&[doc! { "$match": { "a": 1 } }, doc! { "$group": { "_id": 1, "n": { "$sum": 1 } } }]);
    let wanted = (bson!([{ "$match": { "a": 1 } }, { "$count": "n" }]), false);
    let merge = |id, field: &str, skip, limit| Merge::Count { id, field: field.into(), skip, limit };
    assert_eq!(all, (wanted, merge(Some(RawBson::Int32(1)), "n", 0, None)));
    let bounded = count(&[doc! { "$skip": 2 }, doc! { "$limit": 5 }, doc! { "$count": "total" }]);
    assert_eq!(bounded, ((bson!([{ "$limit": 7_i64 }, { "$count": "n" }]), false), merge(None, "total", 2, Some(5))));
    // More comes after, or it is no plain count: parts.
    let more = planned(&[doc! { "$count": "n" }, doc! { "$match": { "n": 5 } }]).unwrap();
    assert_eq!(shard(&more), (bson!([{ "$group": { "_id": null, "n": { "$sum": 1 } } }]), true));
    let by = planned(&[doc! { "$sortByCount": "$a" }]).unwrap();
    assert_eq!(shard(&by), (bson!([{ "$group": { "_id": "$a", "count": { "$sum": 1 } } }]), true));
    let doubles = planned(&[doc! { "$group": { "_id": 1, "n": { "$sum": 1.0 } } }]).unwrap();
    assert!(matches!(doubles.merge, Merge::Pipeline { .. }));
}

#[test]
fn per_shard_stages_name_their_shard() {
    let plan = planned(&[doc! { "$collStats": { "count": {} } }]).unwrap();
    assert!(plan.add_shard && !plan.needs_merge);
    assert!(matches!(planned(&[doc! { "$match": {} }, doc! { "$collStats": {} }]), Err(NoPlan::AskShard)));
}

#[test]
fn samples_and_distances() {
    let sample = planned(&[doc! { "$sample": { "size": 3 } }, doc! { "$project": { "a": 1 } }]).unwrap();
    assert_eq!(sample.merge, Merge::Stream(Stream { order: order(&[true]), skip: 0, limit: Some(3) }));
    let near = planned(&[doc! { "$geoNear": { "near": [0, 0] } }, doc! { "$limit": 2 }]).unwrap();
    assert_eq!(near.merge, Merge::Stream(Stream { order: order(&[false]), skip: 0, limit: Some(2) }));
}

#[test]
fn what_cannot_be_planned() {
    let ask = |pipeline: &[Document]| matches!(planned(pipeline), Err(NoPlan::AskShard));
    assert!(ask(&[doc! { "$nope": 1 }]));
    assert!(ask(&[doc! { "$limit": 0 }]) && ask(&[doc! { "$limit": "x" }]) && ask(&[doc! { "$skip": -1 }]));
    assert!(ask(&[doc! { "$limit": 1.5 }]) && ask(&[doc! { "$sort": 5 }]) && ask(&[doc! { "$group": 5 }]));
    assert!(ask(&[doc! { "$count": "a.b" }]) && ask(&[doc! { "$sample": {} }]) && ask(&[doc! { "$sortByCount": 5 }]));
    let code = |pipeline: &[Document]| match planned(pipeline) {
        Err(NoPlan::Error(error)) => error.code(),
        _ => 0,
    };
    assert_eq!(code(&[doc! { "$changeStream": {} }]), 115);
    let meta = doc! { "$addFields": { "s": { "$meta": "textScore" } } };
    assert_eq!(code(&[doc! { "$facet": {} }, meta.clone()]), 115);
    assert_eq!(code(&[doc! { "$sort": { "a": 1 } }, meta]), 0);
}

#[test]
fn whole_decimals_are_limits() {
    let number = |text: &str| integer(RawBsonRef::Decimal128(text.parse().unwrap()));
    assert_eq!((number("2"), number("2.0"), number("1E+1")), (Some(2), Some(2), Some(10)));
    for odd in ["2.5", "2.0000000000000000000000001", "NaN", "Infinity", "1E+40"] {
        assert_eq!(number(odd), None, "{odd}");
    }
}
