//! Order and hash against vectors, against an independent exact comparison of numbers, and by properties.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::cmp::Ordering;

use bson::{Bson, RawBson, RawDocument, RawDocumentBuf, cstr};
use proptest::prelude::*;

use super::number::Decimal;
use super::value::{Elements, Value};
use super::{hash, order, testgen};

fn raw(value: &Bson) -> RawBson {
    RawBson::try_from(value.clone()).unwrap()
}

fn encoded(value: &Bson) -> Vec<u8> {
    let mut out = Vec::new();
    order::push_value(&mut out, raw(value).as_raw_bson_ref()).unwrap();
    out
}

fn compare(a: &Bson, b: &Bson) -> Ordering {
    order::compare(raw(a).as_raw_bson_ref(), raw(b).as_raw_bson_ref())
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

#[test]
fn hash_vectors() {
    let vectors: serde_json::Value = serde_json::from_str(include_str!("testdata/hash_vectors.json")).unwrap();
    let list = vectors["hash"].as_array().unwrap();
    assert_eq!(list.len(), 63);
    for v in list {
        let bytes = hex(v["bson_hex"].as_str().unwrap());
        let doc = RawDocument::from_bytes(&bytes).unwrap();
        let seed = v["seed"].as_i64().unwrap() as i32;
        let expected: i64 = v["hash"].as_str().unwrap().parse().unwrap();
        let value = Elements::new(doc.as_bytes()).unwrap().next().unwrap().unwrap().value().unwrap();
        assert_eq!(hash::hash_value(value, seed).unwrap(), expected, "{}", v["name"]);
    }
    for (n, points) in vectors["initial_split_points"].as_object().unwrap() {
        let expected: Vec<i64> =
            points.as_array().unwrap().iter().map(|p| p.as_str().unwrap().parse().unwrap()).collect();
        assert_eq!(super::initial::hashed_split_points(n.parse().unwrap()), expected, "{n} chunks");
    }
}

#[test]
fn hash_with_another_seed() {
    let h = |v: Bson| hash::hash64_seed(raw(&v).as_raw_bson_ref(), 1).unwrap();
    assert_eq!(h(Bson::String("hashthis".into())), 6_271_151_123_721_111_923);
    assert_eq!(h(Bson::Double(9_223_372_036_854_775_808.0)), 5_744_114_172_487_291_558);
    assert_eq!(h(Bson::Document(bson::doc! {"a": 1, "b": 2})), -7_076_810_813_311_352_857);
}

/// The exact decimal expansion of a finite number: sign, integer digits, fraction digits.
fn expand(value: &Bson) -> Option<(bool, String, String)> {
    let plain = |text: String| {
        let negative = text.starts_with('-');
        let text = text.trim_start_matches('-').to_owned();
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        (negative, whole.trim_start_matches('0').to_owned(), fraction.trim_end_matches('0').to_owned())
    };
    match value {
        Bson::Int32(v) => Some(plain(v.to_string())),
        Bson::Int64(v) => Some(plain(v.to_string())),
        Bson::Double(v) if v.is_finite() => Some(plain(format!("{v:.1080}"))),
        Bson::Decimal128(v) => match Decimal::from_bytes(v.bytes()) {
            Decimal::Finite { negative, coefficient, exponent } => {
                let sign = if negative { "-" } else { "" };
                let digits = coefficient.to_string();
                let n = exponent.unsigned_abs() as usize;
                Some(plain(if exponent >= 0 {
                    format!("{sign}{digits}{}", "0".repeat(n))
                } else {
                    let padded = format!("{}{digits}", "0".repeat((n + 1).saturating_sub(digits.len())));
                    let (whole, fraction) = padded.split_at(padded.len() - n);
                    format!("{sign}{whole}.{fraction}")
                }))
            }
            _ => None,
        },
        _ => None,
    }
}

fn exact_compare(a: &Bson, b: &Bson) -> Option<Ordering> {
    let ((n1, w1, f1), (n2, w2, f2)) = (expand(a)?, expand(b)?);
    let size = w1.len().cmp(&w2.len()).then(w1.cmp(&w2)).then(f1.cmp(&f2));
    let zero = |w: &str, f: &str| w.is_empty() && f.is_empty();
    let (n1, n2) = (n1 && !zero(&w1, &f1), n2 && !zero(&w2, &f2));
    Some(match (n1, n2) {
        (false, false) => size,
        (true, true) => size.reverse(),
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn numbers_compare_by_exact_value(a in testgen::number(), b in testgen::number()) {
        if let Some(expected) = exact_compare(&a, &b) {
            prop_assert_eq!(encoded(&a).cmp(&encoded(&b)), expected);
            prop_assert_eq!(compare(&a, &b), expected);
        }
    }

    #[test]
    fn bytes_agree_with_compare(a in testgen::value(), b in testgen::value(), c in testgen::value()) {
        let (x, y, z) = (encoded(&a), encoded(&b), encoded(&c));
        prop_assert_eq!(x.cmp(&y), compare(&a, &b));
        prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
        if compare(&a, &b).is_le() && compare(&b, &c).is_le() {
            prop_assert!(compare(&a, &c).is_le());
        }
        // Joined encodings compare field by field.
        let joined = |p: &[u8], q: &[u8]| [p, q].concat();
        prop_assert_eq!(joined(&x, &y).cmp(&joined(&y, &z)), compare(&a, &b).then(compare(&b, &c)));
        if x != y {
            prop_assert!(!x.starts_with(&y) && !y.starts_with(&x));
        }
        prop_assert_eq!(order::encoded_len(&joined(&x, &y)).unwrap(), x.len());
    }

    #[test]
    fn values_compare_like_their_documents(a in testgen::value(), b in testgen::value()) {
        let doc = |v: &Bson| Bson::Document(bson::doc! {"k": v.clone()});
        prop_assert_eq!(compare(&doc(&a), &doc(&b)), compare(&a, &b));
    }

    #[test]
    fn equal_integers_share_a_hash(v in any::<i32>()) {
        let h = |v: Bson| hash::hash64(raw(&v).as_raw_bson_ref()).unwrap();
        prop_assert_eq!(h(Bson::Int32(v)), h(Bson::Int64(v.into())));
        prop_assert_eq!(h(Bson::Int32(v)), h(Bson::Double(v.into())));
        prop_assert_eq!(h(Bson::Int32(v)), h(Bson::Decimal128(v.to_string().parse().unwrap())));
    }

    #[test]
    fn any_bytes_are_an_error_or_a_value(mut bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let size = (bytes.len() as u32).to_le_bytes();
        if let Some(head) = bytes.first_chunk_mut::<4>() {
            *head = size;
        }
        if let Some(last) = bytes.last_mut() {
            *last = 0;
        }
        let mut out = Vec::new();
        let pushed = order::push(&mut out, Value::Doc(&bytes));
        prop_assert_eq!(pushed.is_ok(), hash::hash_value(Value::Doc(&bytes), 0).is_ok());
        prop_assert_eq!(pushed.is_ok(), !out.is_empty());
        if pushed.is_ok() {
            prop_assert_eq!(order::encoded_len(&out).unwrap(), out.len());
        }
    }
}

/// A sorted list with MongoDB's order between and within types; neighbours in one row are equal.
#[test]
fn known_order() {
    let d = |s: &str| Bson::Decimal128(s.parse().unwrap());
    let rows: Vec<Vec<Bson>> = vec![
        vec![Bson::MinKey],
        vec![Bson::Undefined],
        vec![Bson::Null],
        vec![Bson::Double(f64::NAN), Bson::Double(-f64::NAN), d("NaN")],
        vec![Bson::Double(f64::NEG_INFINITY), d("-Infinity")],
        vec![d("-1E+400")],
        vec![Bson::Double(f64::MIN)],
        vec![d("-9223372036854775808.5")],
        vec![Bson::Int64(i64::MIN), Bson::Double(-9_223_372_036_854_775_808.0), d("-9223372036854775808")],
        vec![Bson::Int64(i64::MIN + 1)],
        vec![Bson::Int32(-1), d("-1.000")],
        vec![Bson::Double(-0.1)],
        vec![d("-0.1")],
        vec![Bson::Double(-0.0), Bson::Int32(0), d("-0E-50"), Bson::Int64(0), Bson::Double(0.0)],
        vec![d("1E-6176")],
        vec![Bson::Double(5e-324)],
        vec![d("0.1")],
        vec![Bson::Double(0.1)],
        vec![Bson::Int32(1), Bson::Int64(1), Bson::Double(1.0), d("1.00")],
        vec![d("1.000000000000000000000000000000001")],
        vec![Bson::Double(9_007_199_254_740_992.0)],
        vec![Bson::Int64(9_007_199_254_740_993), d("9007199254740993")],
        vec![Bson::Double(9_007_199_254_740_994.0)],
        vec![Bson::Int64(i64::MAX)],
        vec![d("9223372036854775807.5")],
        vec![Bson::Double(9_223_372_036_854_775_808.0), d("9223372036854775808")],
        vec![Bson::Double(f64::MAX)],
        vec![d("1.8E+308")],
        vec![d("9E+6144")],
        vec![Bson::Double(f64::INFINITY), d("Infinity")],
        vec![Bson::String(String::new()), Bson::Symbol(String::new())],
        vec![Bson::String("a".into()), Bson::Symbol("a".into())],
        vec![Bson::String("a\0".into())],
        vec![Bson::String("a\0b".into())],
        vec![Bson::String("aa".into())],
        vec![Bson::String("é".into())],
        vec![Bson::Document(bson::doc! {})],
        vec![Bson::Document(bson::doc! {"b": Bson::MinKey})],
        vec![Bson::Document(bson::doc! {"z": 1}), Bson::Document(bson::doc! {"z": 1.0})],
        vec![Bson::Document(bson::doc! {"z": 1, "a": 1})],
        vec![Bson::Document(bson::doc! {"z": 2})],
        vec![Bson::Document(bson::doc! {"a": "x"})],
        vec![Bson::Array(vec![])],
        vec![Bson::Array(vec![Bson::Int32(9)])],
        vec![Bson::Array(vec![Bson::Int32(9), Bson::MinKey])],
        vec![Bson::Array(vec![Bson::String("".into())])],
        vec![Bson::Binary(bson::Binary { subtype: 9.into(), bytes: vec![] })],
        vec![Bson::Binary(bson::Binary { subtype: 0.into(), bytes: vec![200] })],
        vec![Bson::Binary(bson::Binary { subtype: 5.into(), bytes: vec![1] })],
        vec![Bson::Binary(bson::Binary { subtype: 0.into(), bytes: vec![0, 0] })],
        vec![Bson::Binary(bson::Binary { subtype: 2.into(), bytes: vec![] })],
        vec![Bson::ObjectId(bson::oid::ObjectId::from_bytes([0; 12]))],
        vec![Bson::Boolean(false)],
        vec![Bson::Boolean(true)],
        vec![Bson::DateTime(bson::DateTime::from_millis(-1))],
        vec![Bson::DateTime(bson::DateTime::from_millis(0))],
        vec![Bson::Timestamp(bson::Timestamp { time: 0, increment: 9 })],
        vec![Bson::Timestamp(bson::Timestamp { time: u32::MAX, increment: 0 })],
        vec![Bson::RegularExpression(bson::Regex { pattern: cstr!("a").into(), options: cstr!("").into() })],
        vec![Bson::RegularExpression(bson::Regex { pattern: cstr!("a").into(), options: cstr!("i").into() })],
        vec![testgen::db_pointer("z", [0; 12])],
        vec![testgen::db_pointer("aa", [0; 12])],
        vec![Bson::JavaScriptCode("z".into())],
        vec![Bson::JavaScriptCodeWithScope(bson::JavaScriptCodeWithScope { code: "a".into(), scope: bson::doc! {} })],
        vec![Bson::MaxKey],
    ];
    for (i, row) in rows.iter().enumerate() {
        for a in row {
            for (j, other) in rows.iter().enumerate() {
                for b in other {
                    assert_eq!(encoded(a).cmp(&encoded(b)), i.cmp(&j), "{a:?} {b:?}");
                    assert_eq!(compare(a, b), i.cmp(&j), "{a:?} {b:?}");
                }
            }
        }
    }
}

#[test]
fn nesting_beyond_the_limit_is_refused() {
    let nest = |levels: usize| {
        let mut doc = RawDocumentBuf::new();
        for _ in 0..levels {
            let mut outer = RawDocumentBuf::new();
            outer.append(cstr!("a"), doc);
            doc = outer;
        }
        doc
    };
    let mut out = Vec::new();
    assert!(order::push(&mut out, Value::Doc(nest(199).as_bytes())).is_ok());
    out.clear();
    let deep = nest(5000);
    assert_eq!(order::push(&mut out, Value::Doc(deep.as_bytes())).unwrap_err().code(), 15);
    assert!(out.is_empty());
    assert_eq!(hash::hash_value(Value::Doc(deep.as_bytes()), 0).unwrap_err().code(), 15);
    assert_eq!(order::compare_values(Value::Doc(deep.as_bytes()), Value::Doc(deep.as_bytes())), Ordering::Equal);
}
