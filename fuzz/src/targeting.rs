//! Targeting. Even inputs are filters as they are, odd ones choose a shard key, chunks, documents and a filter: documents
//! that match must be on targeted shards.

use ::bson::{Bson, Document, RawDocument, RawDocumentBuf, doc, oid::ObjectId, rawdoc};
use mosaic::catalog::table::{ChunkInfo, RoutingTable};
use mosaic::key::{self, ShardKeyPattern};
use mosaic::target::{self, Scope};
use proptest::strategy::Strategy;

use super::{choose, class, commands};

mod known;
#[allow(dead_code)]
#[path = "../../src/target/reference.rs"]
mod reference;
#[allow(dead_code)]
#[path = "../../src/target/testgen.rs"]
mod testgen;

pub fn fuzz_one(data: &[u8]) -> u64 {
    match data.split_first() {
        None => 0,
        Some((mode, rest)) if mode % 2 == 0 => bytes(*mode, rest),
        Some((_, rest)) => chosen(rest),
    }
}

/// Any bytes as a filter: an error, or some shards. Where the reference matcher understands the filter, documents made of
/// the filter's own values that match it are on those shards.
fn bytes(mode: u8, data: &[u8]) -> u64 {
    let Ok(filter) = RawDocument::from_bytes(data) else { return 1 };
    let keys = [
        rawdoc! {"a": 1},
        rawdoc! {"a": 1, "b": "hashed"},
        rawdoc! {"a.b": 1, "a.c": 1},
        rawdoc! {"b": "hashed"},
        rawdoc! {"a": 1, "b": 1},
    ];
    let key = ShardKeyPattern::parse(&keys[usize::from(mode / 2) % keys.len()]).expect("valid");
    let decoded = known::decode(filter);
    let documents = decoded.as_ref().map(known::documents).unwrap_or_default();
    let fixed = [doc! {"a": 1, "b": 2}, doc! {"a": "x", "b": 5}, doc! {"a": {"b": 1, "c": "y"}, "b": "z"}];
    // Every document in a chunk of its own, as far as their keys differ.
    let splits: Vec<_> = documents.iter().chain(&fixed).map(raw).collect();
    let table = table(&key, &splits);
    let scope = Scope { key: &key, table: &table, default_collation: None };
    let id = target::id_equality(filter);
    let uses = target::key_use(filter, Some(filter), scope);
    assert!(uses.is_err() || uses.is_ok_and(|u| u.len() == key.fields().len()));
    let full = target::full_key_equality(filter, None, scope);
    if let Some(full) = &full {
        assert_eq!(full.iter().count(), key.fields().len());
    }
    let _ = key.extract(filter).and_then(|k| key.encode(&k)).map(|k| table.chunk_for(&k).index());
    let route = match target::query(filter, None, scope) {
        Err(error) => return class((2, error.code())),
        Ok(route) => route,
    };
    assert!(!route.shards.is_empty() && route.shards.is_sorted() && route.shards.len() <= table.owners().len());
    assert!(!route.exact_key || route.shards.len() == 1);
    let mut matched = 0;
    if let Some(decoded) = &decoded {
        let matcher = reference::Matcher { fold_case: false };
        for document in documents.iter().chain(&fixed).filter(|d| matcher.matches(decoded, d)) {
            let owner = target::document(&raw(document), scope).expect("no arrays");
            let pattern = key::text::document(key.to_doc());
            assert!(route.shards.contains(&owner), "{decoded} on {pattern}: {document} is on {owner}, {route:?}");
            if let Some(full) = &full {
                let owner_by_key = target::document(&unflattened(full), scope).expect("no arrays");
                assert_eq!(owner_by_key, owner, "{decoded} on {pattern}: {document}, the key is {full:?}");
            }
            matched += 1;
        }
    }
    class((
        3,
        route.reason,
        route.shards.len().min(4),
        route.exact_key,
        full.is_some(),
        decoded.is_some(),
        matched.min(3),
        id.is_some(),
    ))
}

/// A key as the document that has it: `{"a.b": 1, "a.c": 2}` is `{a: {b: 1, c: 2}}`.
fn unflattened(key: &RawDocument) -> RawDocumentBuf {
    let decoded = Document::try_from(key).expect("keys decode");
    let mut whole = Document::new();
    for (path, value) in decoded {
        match path.split_once('.') {
            None => drop(whole.insert(path, value)),
            Some((first, rest)) => {
                let inner = whole.entry(first.to_owned()).or_insert_with(|| Bson::Document(Document::new()));
                inner.as_document_mut().expect("it was made so").insert(rest, value);
            }
        }
    }
    raw(&whole)
}

fn chosen(data: &[u8]) -> u64 {
    let strategy = (
        testgen::key(),
        proptest::collection::vec(testgen::document(), 0..6),
        proptest::collection::vec(testgen::document(), 1..8),
        testgen::filter(),
        proptest::bool::weighted(0.2),
    );
    let [(key, splits, documents, filter, fold_case)] = choose([strategy.boxed()], data);
    let key = ShardKeyPattern::parse(&raw(&key)).expect("valid");
    let table = table(&key, &splits.iter().map(raw).collect::<Vec<_>>());
    let scope = Scope { key: &key, table: &table, default_collation: None };
    let collation = fold_case.then(|| rawdoc! {"locale": "en", "strength": 2});
    let route = target::query(&raw(&filter), collation.as_deref(), scope).expect("well-formed");
    let matcher = reference::Matcher { fold_case };
    let mut matched = false;
    for document in documents.iter().filter(|d| matcher.matches(&filter, d)) {
        let owner = target::document(&raw(document), scope).expect("no arrays");
        assert!(
            route.shards.contains(&owner),
            "{filter} on {}: {document} is on {owner}, sent to {:?} ({:?})",
            key::text::document(key.to_doc()),
            route.shards,
            route.reason
        );
        matched = true;
    }
    class((route.reason, route.exact_key, matched, key.is_hashed(), filter.keys().next().cloned()))
}

fn raw(document: &Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(document).expect("chosen documents encode")
}

/// A table split at the documents' keys, one shard per chunk.
fn table(key: &ShardKeyPattern, documents: &[RawDocumentBuf]) -> RoutingTable {
    let keys = documents.iter().map(|d| key.extract(d).expect("no arrays")).chain([key.min_key(), key.max_key()]);
    let mut bounds: Vec<_> = keys.map(|k| (key.encode(&k).expect("complete"), k)).collect();
    bounds.sort_by(|a, b| a.0.cmp(&b.0));
    bounds.dedup_by(|a, b| a.0 == b.0);
    let chunks = bounds.windows(2).enumerate().map(|(i, pair)| ChunkInfo {
        id: ObjectId::from_bytes([0; 12]),
        min: pair[0].1.clone(),
        max: pair[1].1.clone(),
        shard: i.to_string().into(),
        lastmod: (1, i as u32),
        jumbo: false,
        since: None,
    });
    RoutingTable::build(key, chunks.collect()).expect("sorted and complete")
}

pub fn seeds() -> Vec<Vec<u8>> {
    let filters = commands::filters();
    let whole = (0..5u8).flat_map(|mode| filters.iter().map(move |f| [&[mode * 2], f.as_bytes()].concat()));
    whole.chain((0..64).map(|i| super::noise(i, 32, 1))).collect()
}
