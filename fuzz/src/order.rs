//! The order-preserving encoding. Even inputs are documents as they are, odd ones choose values of every type.

use bson::{Bson, Document, RawBson, RawDocument};
use mosaic::key::value::Value;
use mosaic::key::{hash, order, text};

use super::{choose, class, reference};

#[allow(dead_code)]
#[path = "../../src/key/testgen.rs"]
pub mod values;

pub fn fuzz_one(data: &[u8]) -> u64 {
    match data.split_first() {
        None => 0,
        Some((mode, rest)) if mode % 2 == 0 => bytes(rest),
        Some((mode, rest)) => chosen(*mode, rest),
    }
}

/// Any bytes as a document: an error, or an encoding that ends where it says.
fn bytes(data: &[u8]) -> u64 {
    let mut data = data.to_vec();
    if data.len() >= 5 {
        let size = (data.len() as u32).to_le_bytes();
        data[..4].copy_from_slice(&size);
        if let Some(last) = data.last_mut() {
            *last = 0;
        }
    }
    let mut out = vec![7];
    let pushed = order::push(&mut out, Value::Doc(&data)).map_err(|e| e.code());
    let hashed = hash::hash_value(Value::Doc(&data), 0).map_err(|e| e.code());
    assert_eq!(pushed.err(), hashed.err(), "both read all of it");
    assert!(text::value(Value::Doc(&data)).len() <= 64 + 64 * data.len());
    assert!(order::compare_values(Value::Doc(&data), Value::Doc(&data)).is_eq());
    against_reference(&data, &out[1..]);
    if pushed.is_err() {
        assert_eq!(out, [7], "nothing is left behind");
    } else {
        assert_eq!(order::encoded_len(&out[1..]).expect("complete"), out.len() - 1);
    }
    let _ = order::encoded_len(&data);
    class((pushed, data.get(4).copied(), out.len().min(32)))
}

/// What the library can decode, it and a simpler neighbour of it are ordered and hashed as the reference says.
fn against_reference(data: &[u8], encoding: &[u8]) {
    let decode = |bytes: &[u8]| RawDocument::from_bytes(bytes).ok().and_then(|d| Document::try_from(d).ok());
    let Some(decoded) = decode(data) else { return };
    // Repeated names, arrays with odd names and deprecated spellings do not survive decoding.
    if encoding.is_empty() || decoded.to_vec().is_ok_and(|again| again != data) {
        return;
    }
    let mut shorter = decoded.clone();
    if let Some((last, _)) = decoded.iter().last() {
        shorter.remove(last);
    }
    let (whole, part) = (Bson::Document(decoded), Bson::Document(shorter));
    if let Some(expected) = reference::compare(&whole, &part) {
        assert_eq!(encoding.cmp(&encoded(&part)), expected, "{whole}");
    }
    if let Some(expected) = reference::hash(&whole, 0) {
        assert_eq!(hash::hash_value(Value::Doc(data), 0).expect("it was read"), expected, "{whole}");
    }
}

/// Three chosen values: bytes and comparison agree, it is an order, encodings can be joined.
fn chosen(mode: u8, data: &[u8]) -> u64 {
    let [a, b, c] = if mode % 4 == 1 {
        choose([values::value(), values::value(), values::value()], data)
    } else {
        choose([values::number(), values::number(), values::number()], data)
    };
    let (x, y, z) = (encoded(&a), encoded(&b), encoded(&c));
    let compare = |a: &Bson, b: &Bson| order::compare(raw(a).as_raw_bson_ref(), raw(b).as_raw_bson_ref());
    assert_eq!(x.cmp(&y), compare(&a, &b), "{a:?} {b:?}");
    for (v, w) in [(&a, &b), (&b, &c), (&a, &c)] {
        if let Some(expected) = reference::compare(v, w) {
            assert_eq!(compare(v, w), expected, "{v:?} {w:?}");
        }
    }
    assert_eq!(compare(&b, &a), compare(&a, &b).reverse());
    if compare(&a, &b).is_le() && compare(&b, &c).is_le() {
        assert!(compare(&a, &c).is_le(), "{a:?} {b:?} {c:?}");
    }
    // Where one begins another (strings up to a NUL), that goes on as no encoding begins.
    let goes_on = x.strip_prefix(&*y).or_else(|| y.strip_prefix(&*x)).and_then(|rest| rest.first());
    assert!(goes_on.is_none_or(|byte| *byte == 0xFF), "{a:?} {b:?}: {x:x?} {y:x?}");
    assert!(z.first() != Some(&0xFF));
    let joined = [x.as_slice(), &y].concat();
    assert_eq!(order::encoded_len(&joined).expect("complete"), x.len());
    assert_eq!(joined.cmp(&[y.as_slice(), &z].concat()), compare(&a, &b).then(compare(&b, &c)));
    class((a.element_type() as u8, b.element_type() as u8, x.cmp(&y), x.len().min(32)))
}

pub fn raw(value: &Bson) -> RawBson {
    RawBson::try_from(value.clone()).expect("chosen values encode")
}

fn encoded(value: &Bson) -> Vec<u8> {
    let mut out = Vec::new();
    order::push_value(&mut out, raw(value).as_raw_bson_ref()).expect("chosen values are well-formed");
    out
}

pub fn seeds() -> Vec<Vec<u8>> {
    let documents = super::bson::seeds().into_iter().map(|doc| [vec![0], doc].concat());
    documents.chain((0..32).map(|i| super::noise(i, 32, 1 + 2 * (i as u8 % 2)))).collect()
}
