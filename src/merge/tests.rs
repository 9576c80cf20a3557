#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::cmp::Ordering;

use bson::{Bson, Document, RawArrayBuf, RawDocumentBuf, Timestamp, doc, rawdoc};
use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::bsonx;

fn array(docs: &[Document]) -> Bytes {
    let mut out = RawArrayBuf::new();
    for doc in docs {
        out.push(RawDocumentBuf::try_from(doc).unwrap());
    }
    Bytes::from(rawdoc! { "a": out }.get_array("a").unwrap().as_bytes().to_vec())
}

/// Runs a merge to its end; source `i` gives its documents in batches of `sizes[i % len]`.
fn run(merger: &mut Merger, sources: &[Vec<Document>], sizes: &[usize]) -> Vec<Document> {
    let mut given = vec![0; sources.len()];
    let mut out = Vec::new();
    loop {
        for source in merger.starving() {
            let all = &sources[source];
            let from = given[source];
            let to = (from + sizes[source % sizes.len()]).min(all.len());
            given[source] = to;
            merger.supply(source, array(&all[from..to]), to == all.len()).unwrap();
        }
        if let Some(doc) = merger.peek().unwrap() {
            let mut bytes = Vec::new();
            doc.write(&mut bytes);
            assert_eq!(bytes.len(), doc.len());
            bsonx::check(&bytes).unwrap();
            out.push(Document::from_reader(&*bytes).unwrap());
            merger.pop().unwrap();
        } else if merger.at_end() {
            return out;
        } else {
            assert!(!merger.starving().is_empty(), "stuck");
        }
    }
}

fn raw(doc: &Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(doc).unwrap()
}

fn sorted(order: &SortOrder, docs: &mut [Document]) {
    let get = |d: &'_ RawDocumentBuf| crate::key::value::get(d.as_bytes(), SORT_KEY.as_bytes()).unwrap().is_some();
    docs.sort_by(|a, b| {
        let (a, b) = (raw(a), raw(b));
        assert!(get(&a) && get(&b));
        let x = crate::key::value::get(a.as_bytes(), SORT_KEY.as_bytes()).unwrap().unwrap();
        let y = crate::key::value::get(b.as_bytes(), SORT_KEY.as_bytes()).unwrap().unwrap();
        order.compare(x, y)
    });
}

fn without_key(doc: &Document) -> Document {
    doc.iter().filter(|(k, _)| *k != SORT_KEY).map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn value() -> impl Strategy<Value = Bson> {
    prop_oneof![
        (-3..3_i32).prop_map(Bson::Int32),
        (-3..3_i64).prop_map(Bson::Int64),
        (-6..6_i32).prop_map(|n| Bson::Double(f64::from(n) / 2.0)),
        "[ab]{0,2}".prop_map(Bson::String),
        Just(Bson::Null),
        Just(Bson::MinKey),
        any::<bool>().prop_map(Bson::Boolean),
        (0..3_i32).prop_map(|n| Bson::Document(doc! { "a": n })),
        (0..3_i32).prop_map(|n| Bson::Array(vec![Bson::Int32(n)])),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_merge_of_sorted_sources_is_the_sort_of_all(
        keys in prop::collection::vec((prop::collection::vec(value(), 2), 0..4_usize), 0..60),
        sizes in prop::collection::vec(1..7_usize, 1..4),
        directions in (any::<bool>(), any::<bool>()),
        skip in 0..20_u64,
        limit in prop::option::of(1..30_u64),
        whole in any::<bool>(),
    ) {
        let order = match whole {
            true => SortOrder::ByValue,
            false => SortOrder::ByFields([directions.0, directions.1].into_iter().collect()),
        };
        let mut sources = vec![Vec::new(); 4];
        for (i, (key, source)) in keys.iter().enumerate() {
            let key = if whole { key[0].clone() } else { Bson::Array(key.clone()) };
            let doc = if i % 2 == 0 { doc! { "_id": i as i32, SORT_KEY: key } } else { doc! { "_id": i as i32, SORT_KEY: key, "$recordId": 1 } };
            sources[*source].push(doc);
        }
        for source in &mut sources {
            sorted(&order, source);
        }
        // A stable sort of the concatenation gives equals to the source with the lower number, as the merge does.
        let mut expected: Vec<Document> = sources.concat();
        sorted(&order, &mut expected);
        let expected: Vec<Document> = expected.iter().map(without_key)
            .skip(skip as usize).take(limit.unwrap_or(1000) as usize).collect();
        let mut merger = Merger::new(4, Some(order), skip, limit);
        prop_assert_eq!(run(&mut merger, &sources, &sizes), expected);
    }

    #[test]
    fn an_unsorted_merge_gives_every_document_once(
        counts in prop::collection::vec(0..20_usize, 1..5),
        sizes in prop::collection::vec(1..7_usize, 1..4),
        skip in 0..10_u64,
        limit in prop::option::of(1..30_u64),
    ) {
        let sources: Vec<Vec<Document>> = counts.iter().enumerate()
            .map(|(s, n)| (0..*n).map(|i| doc! { "s": s as i32, "i": i as i32 }).collect()).collect();
        let total: usize = counts.iter().sum();
        let mut merger = Merger::new(counts.len(), None, skip, limit);
        let got = run(&mut merger, &sources, &sizes);
        let wanted = total.saturating_sub(skip as usize).min(limit.map_or(usize::MAX, |l| l as usize));
        prop_assert_eq!(got.len(), wanted);
        for s in 0..counts.len() {
            let of_source: Vec<i32> = got.iter().filter(|d| d.get_i32("s").unwrap() == s as i32).map(|d| d.get_i32("i").unwrap()).collect();
            prop_assert!(of_source.windows(2).all(|w| w[0] < w[1]));
        }
    }

    #[test]
    fn malformed_batches_are_errors(bytes in prop::collection::vec(any::<u8>(), 0..80), sort in any::<bool>()) {
        let mut merger = Merger::new(1, sort.then_some(SortOrder::ByValue), 0, None);
        if merger.supply(0, bytes.into(), true).is_ok() {
            while let Ok(Some(doc)) = merger.peek() {
                let mut out = Vec::new();
                doc.write(&mut out);
                if merger.pop().is_err() { break }
            }
        }
    }
}

#[test]
fn collation_keys_need_not_be_utf8() {
    let mut bytes = raw(&doc! { SORT_KEY: ["aX"] }).into_bytes();
    let at = bytes.iter().position(|b| *b == b'X').unwrap();
    bytes[at] = 0x96;
    let small = raw(&doc! { SORT_KEY: ["a\u{1}"] });
    let mut merger = Merger::new(2, SortOrder::parse(&rawdoc! { "x": 1 }), 0, None);
    let one = |doc: &[u8]| {
        let mut out = vec![0; 4];
        out.extend_from_slice(b"\x030\0");
        out.extend_from_slice(doc);
        out.push(0);
        let n = out.len() as i32;
        out[..4].copy_from_slice(&n.to_le_bytes());
        Bytes::from(out)
    };
    merger.supply(0, one(&bytes), true).unwrap();
    merger.supply(1, one(small.as_bytes()), true).unwrap();
    let first = merger.peek().unwrap().unwrap();
    let mut out = Vec::new();
    first.write(&mut out);
    assert_eq!(out, rawdoc! {}.into_bytes());
    merger.pop().unwrap();
    assert_eq!(merger.buffered(), 1);
}

#[test]
fn sort_patterns() {
    let order = |sort: RawDocumentBuf| match SortOrder::parse(&sort) {
        Some(SortOrder::ByFields(f)) => Some(f.to_vec()),
        _ => None,
    };
    assert_eq!(order(rawdoc! { "a": 1, "b": -1, "c": -1.0, "d": 1_i64 }), Some(vec![false, true, true, false]));
    assert_eq!(order(rawdoc! { "a": { "$meta": "textScore" }, "_id": 1 }), Some(vec![true, false]));
    assert_eq!(order(rawdoc! { "$natural": -1 }), None);
    assert_eq!(order(rawdoc! {}), None);
}

#[test]
fn ties_go_to_the_first_source() {
    let order = SortOrder::parse(&rawdoc! { "x": -1 });
    let source = |s: i32| (0..3).map(|i| doc! { "s": s, "i": i, SORT_KEY: [1] }).collect::<Vec<_>>();
    let mut merger = Merger::new(2, order, 0, None);
    let got = run(&mut merger, &[source(0), source(1)], &[2]);
    assert_eq!(got.iter().map(|d| d.get_i32("s").unwrap()).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1]);
}

#[test]
fn the_sort_key_stays_where_it_was_asked_for() {
    let mut merger = Merger::new(1, SortOrder::parse(&rawdoc! { "x": 1 }), 0, None).keep_sort_key(true);
    let docs = vec![doc! { "_id": 1, SORT_KEY: [5] }];
    assert_eq!(run(&mut merger, std::slice::from_ref(&docs), &[5]), docs);
}

#[test]
fn a_limit_ends_the_merge_without_asking_for_more() {
    let mut merger = Merger::new(2, None, 0, Some(1));
    merger.supply(0, array(&[doc! { "a": 1 }, doc! { "a": 2 }]), false).unwrap();
    assert!(merger.starving().is_empty() && merger.peek().unwrap().is_some());
    merger.pop().unwrap();
    assert!(merger.at_end() && merger.starving().is_empty() && merger.peek().unwrap().is_none());
}

#[test]
fn replies_are_well_formed() {
    for (count, first) in [(0, true), (1, false), (12, true), (111, false)] {
        let mut writer = ReplyWriter::new(first);
        let doc = raw(&doc! { "_id": 1, SORT_KEY: [1], "z": 2 });
        let cut = bsonx::find(doc.as_bytes(), SORT_KEY).unwrap().whole();
        for _ in 0..count {
            assert!(writer.fits(100));
            writer.push(&Doc::without(doc.as_bytes(), cut.clone()));
        }
        let time = Timestamp { time: 7, increment: 9 };
        let fields = CursorFields { id: 5, ns: "a.b", partial: first, at_cluster_time: (!first).then_some(time) };
        let bytes = writer.finish(fields);
        bsonx::check(&bytes).unwrap();
        let reply = Document::from_reader(&*bytes).unwrap();
        let batch = vec![Bson::Document(doc! { "_id": 1, "z": 2 }); count];
        let cursor = match first {
            true => doc! { "firstBatch": batch, "partialResultsReturned": true, "id": 5_i64, "ns": "a.b" },
            false => doc! { "nextBatch": batch, "atClusterTime": time, "id": 5_i64, "ns": "a.b" },
        };
        assert_eq!(reply, doc! { "cursor": cursor, "ok": 1.0 });
    }
}

#[test]
fn a_batch_ends_at_16_mib() {
    let mut writer = ReplyWriter::new(true);
    let big = rawdoc! { "x": "y".repeat(1 << 20) };
    while writer.fits(big.as_bytes().len()) {
        writer.push(&Doc::whole(big.as_bytes()));
    }
    assert_eq!(writer.count(), 15);
    assert!(writer.finish(CursorFields::default()).len() <= crate::wire::MAX_BSON);
    assert!(ReplyWriter::new(true).fits(1 << 25));
}

#[test]
fn orders_by_meta_and_value() {
    let order = SortOrder::ByValue;
    let (a, b) = (crate::key::value::Value::Double(1.5), crate::key::value::Value::Int32(2));
    assert_eq!(order.compare(a, b), Ordering::Less);
}

#[test]
fn metadata_goes_altogether() {
    let mut merger = Merger::new(1, SortOrder::parse(&rawdoc! { "x": -1 }), 0, None).with_metadata();
    let doc = doc! { "_id": 1, "$randVal": 0.5, SORT_KEY: [0.5], "$dis": 1 };
    assert_eq!(run(&mut merger, &[vec![doc]], &[5]), [doc! { "_id": 1 }]);
}

/// Since MongoDB 5.0 documents may have fields of such names.
#[test]
fn a_users_fields_called_like_metadata_stay() {
    let merger = || Merger::new(1, SortOrder::parse(&rawdoc! { "x": 1 }), 0, None).with_metadata();
    let own = doc! { "_id": 1, "$dis": 1, "$pt": 3, "y": 2 };
    let mut given = own.clone();
    given.insert(SORT_KEY, vec![2]);
    assert_eq!(run(&mut merger(), &[vec![given]], &[5]), [own]);
    let own = rawdoc! { "_id": 1, "$sortKey": "mine" };
    let mut given = own.clone();
    given.append(bson::cstr!("$sortKey"), rawdoc! { "a": [1] }.get_array("a").unwrap().to_owned());
    let mut list = RawArrayBuf::new();
    list.push(given);
    let mut merger = merger();
    merger.supply(0, Bytes::copy_from_slice(list.as_bytes()), true).unwrap();
    let mut bytes = Vec::new();
    merger.peek().unwrap().unwrap().write(&mut bytes);
    assert_eq!(bytes, own.as_bytes());
}
