//! Exact or wide, never narrow: documents that match a filter are on the shards it is sent to.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bson::{Bson, Document, RawBson, RawDocumentBuf, rawdoc};
use proptest::prelude::*;

use super::reference::Matcher;
use super::tests::Fixture;
use super::{Reason, document, full_key_equality, query, testgen};
use crate::key::{ShardKeyPattern, order};

fn raw(doc: &Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(doc).unwrap()
}

/// A table split at the keys of some documents, one shard per chunk.
fn fixture(key: &Document, splits: &[Document]) -> Fixture {
    let pattern = ShardKeyPattern::parse(&raw(key)).unwrap();
    let mut bounds: Vec<(Vec<u8>, RawDocumentBuf)> = splits
        .iter()
        .map(|d| pattern.extract(&raw(d)).unwrap())
        .map(|k| (pattern.encode(&k).unwrap(), k))
        .filter(|(e, _)| {
            *e != pattern.encode(&pattern.min_key()).unwrap() && *e != pattern.encode(&pattern.max_key()).unwrap()
        })
        .collect();
    bounds.sort_by(|a, b| a.0.cmp(&b.0));
    bounds.dedup_by(|a, b| a.0 == b.0);
    Fixture::new(raw(key), &bounds.into_iter().map(|(_, k)| k).collect::<Vec<_>>())
}

fn check(f: &Fixture, filter: &Document, docs: &[Document], fold_case: bool) -> Result<(), TestCaseError> {
    let collation = fold_case.then(|| rawdoc! {"locale": "en", "strength": 2});
    let route = query(&raw(filter), collation.as_deref(), f.scope()).unwrap();
    let full = full_key_equality(&raw(filter), collation.as_deref(), f.scope());
    let matcher = Matcher { fold_case };
    prop_assert!(!route.shards.is_empty() && route.shards.is_sorted());
    prop_assert!(!route.exact_key || route.shards.len() == 1);
    for doc in docs.iter().filter(|d| matcher.matches(filter, d)) {
        let owner = document(&raw(doc), f.scope()).unwrap();
        prop_assert!(
            route.shards.contains(&owner),
            "{} is on {}, sent to {:?} ({:?})",
            doc,
            owner,
            route.shards,
            route.reason
        );
        prop_assert!(route.reason != Reason::Unsatisfiable);
        if let Some(full) = &full {
            let own = f.key.extract_raw(&raw(doc)).unwrap();
            for ((_, wanted), (_, value)) in full.iter().flatten().zip(own.iter().flatten()) {
                let null = |v| matches!(v, bson::RawBsonRef::Null | bson::RawBsonRef::Undefined);
                prop_assert!(order::compare(wanted, value).is_eq() || (null(wanted) && null(value)));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn never_narrow(
        key in testgen::key(),
        splits in prop::collection::vec(testgen::document(), 0..8),
        docs in prop::collection::vec(testgen::document(), 1..12),
        filter in testgen::filter(),
        fold_case in prop::bool::weighted(0.2),
    ) {
        check(&fixture(&key, &splits), &filter, &docs, fold_case)?;
    }

    /// Filters made from a document's own values: equality that does match.
    #[test]
    fn own_values_find_their_shard(
        key in testgen::key(),
        splits in prop::collection::vec(testgen::document(), 0..8),
        doc in testgen::document(),
        shape in 0u8..4,
    ) {
        let f = fixture(&key, &splits);
        let mut filter = Document::new();
        for path in key.keys() {
            let raw_key = f.key.extract_raw(&raw(&doc)).unwrap();
            let value: Bson = RawBson::from(raw_key.iter().flatten().find(|(k, _)| k.as_str() == path.as_str()).unwrap().1).try_into().unwrap();
            // Neither can be asked for by equality.
            prop_assume!(!matches!(value, Bson::Undefined | Bson::RegularExpression(_)));
            match shape {
                0 => { filter.insert(path.clone(), value); }
                1 => { filter.insert(path.clone(), bson::doc! {"$eq": value}); }
                2 => { filter.insert(path.clone(), bson::doc! {"$in": [value, "never"]}); }
                _ => {
                    let parts = filter.entry("$and".to_owned()).or_insert_with(|| Bson::Array(Vec::new()));
                    let Bson::Array(parts) = parts else { panic!() };
                    parts.push(Bson::Document(bson::doc! {path.clone(): value}));
                }
            }
        }
        check(&f, &filter, std::slice::from_ref(&doc), false)?;
        let route = query(&raw(&filter), None, f.scope()).unwrap();
        prop_assert!(route.shards.contains(&document(&raw(&doc), f.scope()).unwrap()));
        if shape != 2 {
            prop_assert!(f.key.is_hashed() || route.reason == Reason::EqualityOnShardKey);
            prop_assert!(full_key_equality(&raw(&filter), None, f.scope()).is_some());
        }
    }
}
