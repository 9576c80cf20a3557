//! Key patterns: validity with the recorded errors, extraction, bounds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bson::{RawBson, RawDocumentBuf, rawdoc};

use super::initial::{initial_chunk_count, initial_chunks};
use super::{ShardKeyPattern, hash};

fn key(doc: RawDocumentBuf) -> ShardKeyPattern {
    ShardKeyPattern::parse(&doc).unwrap()
}

fn refusal(doc: RawDocumentBuf) -> (i32, String) {
    let e = ShardKeyPattern::parse(&doc).unwrap_err();
    (e.code(), e.message().to_owned())
}

#[test]
fn recorded_refusals() {
    let text = |doc: &str, field: &str| {
        (
            2,
            format!(
                "Shard key {doc} can contain at most one 'hashed' field, and/or multiple numerical fields set to a value \
                 of 1. Failed to parse field {field}"
            ),
        )
    };
    assert_eq!(refusal(rawdoc! {}), (2, "Shard key is empty".to_owned()));
    assert_eq!(refusal(rawdoc! {"a": "text"}), text("{ a: \"text\" }", "a"));
    assert_eq!(refusal(rawdoc! {"a": -1}), text("{ a: -1 }", "a"));
    assert_eq!(refusal(rawdoc! {"a": "hashed", "b": "hashed"}), text("{ a: \"hashed\", b: \"hashed\" }", "b"));
}

#[test]
fn paths() {
    for (name, valid) in [
        ("a", true),
        ("a.b.c", true),
        ("a.$id", true),
        ("a.$db", true),
        ("a.0", true),
        ("", false),
        (".a", false),
        ("a.", false),
        ("a..b", false),
        ("$a", false),
        ("$id", false),
        ("a.$b", false),
    ] {
        let mut doc = RawDocumentBuf::new();
        doc.append(<&bson::raw::CStr>::try_from(name).unwrap(), 1);
        assert_eq!(ShardKeyPattern::parse(&doc).is_ok(), valid, "{name}");
    }
    assert!(ShardKeyPattern::parse(&rawdoc! {"a": 1, "b": 1i64, "c": 1.0}).is_ok());
    assert!(ShardKeyPattern::parse(&rawdoc! {"a": true}).is_err());
}

#[test]
fn extraction() {
    let k = key(rawdoc! {"a": 1, "b.c": 1});
    let got = |doc: RawDocumentBuf| k.extract(&doc).map_err(|e| e.code());
    assert_eq!(got(rawdoc! {"b": {"x": 0, "c": 2i64}, "a": "s"}), Ok(rawdoc! {"a": "s", "b.c": 2i64}));
    assert_eq!(got(rawdoc! {"b": {"c": {"d": [1, 2]}}}), Ok(rawdoc! {"a": null, "b.c": {"d": [1, 2]}}));
    assert_eq!(got(rawdoc! {"a": 1, "b": 5}), Ok(rawdoc! {"a": 1, "b.c": null}));
    // A literal dot in a document's field name is not the path.
    assert_eq!(got(rawdoc! {"a": 1, "b.c": 5}), Ok(rawdoc! {"a": 1, "b.c": null}));
    assert_eq!(got(rawdoc! {"a": 1, "a": 2}), Ok(rawdoc! {"a": 1, "b.c": null}));
    for doc in [
        rawdoc! {"a": [1]},
        rawdoc! {"a": []},
        rawdoc! {"a": 1, "b": [{"c": 1}]},
        rawdoc! {"a": 1, "b": []},
        rawdoc! {"a": 1, "b": {"c": [1]}},
    ] {
        let e = k.extract(&doc).unwrap_err();
        assert_eq!((e.code(), e.message()), (61, "Shard key cannot contain array values or array descendants."));
        assert!(k.encode_document(&doc, &mut Vec::new()).is_err());
    }
}

#[test]
fn hashed_extraction() {
    let k = key(rawdoc! {"r": 1, "h": "hashed"});
    let doc = rawdoc! {"h": "abc", "r": 5};
    let extracted = k.extract(&doc).unwrap();
    assert_eq!(extracted, rawdoc! {"r": 5, "h": 8478485326885698097i64});
    assert_eq!(k.extract_raw(&doc).unwrap(), rawdoc! {"r": 5, "h": "abc"});
    let null_hash = hash::hash64(bson::RawBsonRef::Null).unwrap();
    assert_eq!(k.extract(&rawdoc! {}).unwrap(), rawdoc! {"r": null, "h": null_hash});
    let mut bytes = Vec::new();
    k.encode_document(&doc, &mut bytes).unwrap();
    assert_eq!(bytes, k.encode(&extracted).unwrap());
}

#[test]
fn bounds() {
    let k = key(rawdoc! {"r": 1, "h": "hashed"});
    assert!(k.validate_bound(&k.min_key()).is_ok());
    assert!(k.validate_bound(&rawdoc! {"r": "x", "h": 5i64}).is_ok());
    let e = k.validate_bound(&rawdoc! {"r": 10}).unwrap_err();
    assert_eq!(e.message(), "{ r: 10 } is not valid for shard key pattern { r: 1, h: \"hashed\" }");
    for bad in [
        rawdoc! {"h": 5i64, "r": 1},
        rawdoc! {"r": 1, "h": 5},
        rawdoc! {"r": [1], "h": 5i64},
        rawdoc! {"r": 1, "h": 5i64, "x": 1},
        rawdoc! {},
    ] {
        assert!(k.validate_bound(&bad).is_err(), "{bad:?}");
    }
    assert!(k.encode(&rawdoc! {"r": 1}).is_err());
    assert_eq!(k.extend_with_min(&rawdoc! {"r": 3}).unwrap(), rawdoc! {"r": 3, "h": RawBson::MinKey});
    assert_eq!(k.extend_with_min(&rawdoc! {"r": RawBson::MaxKey}).unwrap(), k.max_key());
    assert!(k.extend_with_min(&rawdoc! {"h": 3i64}).is_err());
}

#[test]
fn prefixes() {
    let (a, ab) = (key(rawdoc! {"a": 1}), key(rawdoc! {"a": 1, "b": 1}));
    assert!(a.is_prefix_of(&ab) && ab.extends(&a) && !ab.is_prefix_of(&a) && !a.extends(&ab));
    assert!(!key(rawdoc! {"a": "hashed"}).is_prefix_of(&ab));
}

#[test]
fn first_chunks() {
    let hashed = key(rawdoc! {"h": "hashed", "x": 1});
    let shards: Vec<_> = ["s0", "s1", "s2"].map(|s| s.into()).to_vec();
    assert_eq!(initial_chunk_count(&hashed, true, None, 3).unwrap(), 3);
    assert_eq!(initial_chunk_count(&hashed, true, Some(7), 3).unwrap(), 7);
    assert_eq!(initial_chunk_count(&hashed, true, Some(8192 * 3), 3).unwrap_err().code(), 72);
    assert_eq!(initial_chunk_count(&hashed, false, Some(7), 3).unwrap_err().code(), 72);
    assert_eq!(initial_chunk_count(&hashed, false, None, 3).unwrap(), 1);
    assert_eq!(initial_chunk_count(&key(rawdoc! {"a": 1}), true, None, 3).unwrap(), 1);

    let chunks = initial_chunks(&hashed, &shards, 7).unwrap();
    let owners: Vec<_> = chunks.iter().map(|c| c.shard.to_string()).collect();
    assert_eq!(owners, ["s0", "s0", "s1", "s1", "s2", "s2", "s0"]);
    assert_eq!(chunks[0].min, hashed.min_key());
    assert_eq!(chunks[6].max, hashed.max_key());
    assert_eq!(chunks[1].min, rawdoc! {"h": -6588122883467697005i64, "x": RawBson::MinKey});
    assert!(chunks.windows(2).all(|w| w[0].max == w[1].min));
    // A hashed field that is not the first gives one chunk.
    assert_eq!(initial_chunks(&key(rawdoc! {"x": 1, "h": "hashed"}), &shards, 6).unwrap().len(), 1);
    assert!(initial_chunks(&hashed, &[], 6).is_err());
}
