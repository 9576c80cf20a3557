#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{
    Binary, Bson, DateTime, Decimal128, Document, JavaScriptCodeWithScope, RawDocument, Regex, Timestamp, doc, rawdoc,
};

use super::*;

/// A document with a value of every type.
pub(crate) fn everything() -> Vec<u8> {
    let doc = doc! {
        "double": 1.5, "string": "text", "doc": { "a": { "b": [] } }, "array": [1, { "x": "y" }, [2]],
        "bin": Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 2, 3] },
        "old": Binary { subtype: BinarySubtype::BinaryOld, bytes: vec![1, 2] },
        "undef": Bson::Undefined, "oid": ObjectId::from_bytes([7; 12]), "yes": true, "no": false,
        "date": DateTime::from_millis(77), "null": Bson::Null,
        "re": Regex { pattern: "a+".try_into().unwrap(), options: "i".try_into().unwrap() },
        "code": Bson::JavaScriptCode("f()".into()), "symbol": Bson::Symbol("s".into()),
        "cws": JavaScriptCodeWithScope { code: "g()".into(), scope: doc! { "v": 1 } },
        "int": 5, "ts": Timestamp { time: 1, increment: 2 }, "long": 6_i64,
        "dec": "1.5".parse::<Decimal128>().unwrap(), "min": Bson::MinKey, "max": Bson::MaxKey, "": "empty name",
    };
    doc.to_vec().unwrap()
}

/// `{a: {a: … }}` with `depth` documents below the outermost.
fn nested(depth: usize) -> Vec<u8> {
    let mut doc = vec![5, 0, 0, 0, 0];
    for _ in 0..depth {
        let mut outer = ((doc.len() + 8) as i32).to_le_bytes().to_vec();
        outer.extend_from_slice(&[kind::DOCUMENT, b'a', 0]);
        outer.extend_from_slice(&doc);
        outer.push(0);
        doc = outer;
    }
    doc
}

/// `{x: <value>}` with a value of any bytes.
fn with_value(kind: u8, value: &[u8]) -> Vec<u8> {
    let mut doc = ((value.len() + 8) as i32).to_le_bytes().to_vec();
    doc.extend_from_slice(&[kind, b'x', 0]);
    doc.extend_from_slice(value);
    doc.push(0);
    doc
}

#[test]
fn every_type_is_walked_as_the_library_walks_it() {
    let bytes = everything();
    check(&bytes).unwrap();
    let theirs: Vec<(String, u8, usize)> = RawDocument::from_bytes(&bytes)
        .unwrap()
        .iter_elements()
        .map(|e| e.map(|e| (e.key().to_string(), e.element_type() as u8, e.size())).unwrap())
        .collect();
    let ours: Vec<(String, u8, usize)> =
        fields(&bytes).map(|f| (String::from_utf8(f.key.to_vec()).unwrap(), f.kind, f.range().len())).collect();
    assert_eq!(ours, theirs);
}

#[test]
fn fields_are_found_by_name_and_path() {
    let bytes = rawdoc! { "a": 1, "cursor": { "ns": "x.y", "id": 9_i64 }, "ok": 1.0 }.into_bytes();
    assert_eq!(int32(&bytes, find(&bytes, "a").unwrap().value), Some(1));
    let id = find_path(&bytes, &["cursor", "id"]).unwrap();
    assert_eq!((id.kind, id.key), (kind::INT64, &b"id"[..]));
    assert_eq!(int64(&bytes, id.value), Some(9));
    assert_eq!(bytes[id.start], kind::INT64);
    assert_eq!(find(&bytes, "b"), None);
    assert_eq!(find_path(&bytes, &["a", "b"]), None);
    assert_eq!(find_path(&bytes, &[]), None);
}

#[test]
fn truncated_documents_are_refused_at_every_byte() {
    let bytes = everything();
    for end in 0..bytes.len() {
        assert!(check(&bytes[..end]).is_err(), "{end}");
        // The same with an outer length and end byte that fit.
        if end >= 5 {
            let mut cut = bytes[..end].to_vec();
            cut[..4].copy_from_slice(&(end as i32).to_le_bytes());
            cut[end - 1] = 0;
            if check(&cut).is_ok() {
                walk(&cut);
            }
        }
        fields(&bytes[..end]).count();
    }
}

/// Reads everything in a checked document through the library; only UTF-8 and old binaries may be refused.
fn walk(bytes: &[u8]) {
    let Ok(doc) = RawDocument::from_bytes(bytes) else { panic!("a checked document is refused") };
    for element in doc.iter_elements().map_while(Result::ok) {
        match element.value() {
            Ok(bson::RawBsonRef::Document(d)) => walk(d.as_bytes()),
            Ok(bson::RawBsonRef::Array(a)) => walk(a.as_bytes()),
            _ => {}
        }
    }
    let _ = Document::try_from(doc);
}

#[test]
fn flipped_bits_never_panic() {
    let bytes = everything();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << bit;
            fields(&bad).count();
            if check(&bad).is_ok() {
                walk(&bad);
            }
        }
    }
}

#[test]
fn depth_is_limited_as_on_servers() {
    check(&nested(MAX_DEPTH)).unwrap();
    let error = check(&nested(MAX_DEPTH + 1)).unwrap_err();
    assert!(error.is(Code::Overflow), "{error}");
}

// Each of these was put to a server: what it takes must pass here, what it calls InvalidBSON must not.
#[test]
fn odd_values_are_judged_as_servers_judge_them() {
    let scope = |total: i32| [&total.to_le_bytes()[..], b"\x02\0\0\0a\0\x05\0\0\0\0"].concat();
    let pointer = [&b"\x02\0\0\0a\0"[..], &[b'1'; 12]].concat();
    let cases: &[(u8, &[u8], bool)] = &[
        (kind::BOOL, b"\x02", false),
        (kind::BOOL, b"\x01", true),
        (kind::BINARY, b"\xff\xff\xff\xff\0", false),
        (kind::BINARY, b"\x05\0\0\0\x02\x07\0\0\0z", true),
        (kind::STRING, b"\0\0\0\0", false),
        (kind::STRING, b"\x01\0\0\0z", false),
        (kind::STRING, b"\xff\xff\xff\xff\0", false),
        (kind::STRING, b"\x03\0\0\0\xff\xfe\0", true),
        (kind::CODE_WITH_SCOPE, &scope(15), true),
        (kind::CODE_WITH_SCOPE, &scope(16), false),
        (kind::CODE_WITH_SCOPE, b"\x04\0\0\0", false),
        (0x14, b"", false),
        (kind::MAX_KEY, b"", true),
        (kind::MIN_KEY, b"", true),
        (kind::UNDEFINED, b"", true),
        (kind::DB_POINTER, &pointer, true),
        (kind::REGEX, b"a\0b\0", true),
        (kind::REGEX, b"a\0b", false),
        (kind::DOCUMENT, b"\x04\0\0\0", false),
        (kind::DOCUMENT, b"\x06\0\0\0\0\0", false),
        (kind::DOCUMENT, b"\x07\0\0\0\0\0\0", false),
        (kind::ARRAY, b"\x0c\0\0\0\x10a\0\x01\0\0\0\0", true),
    ];
    for (kind, value, fine) in cases {
        assert_eq!(check(&with_value(*kind, value)).is_ok(), *fine, "{kind:#x} {value:?}");
    }
}
