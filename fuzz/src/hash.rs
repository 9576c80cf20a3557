//! The hash: values that compare equal have hashes that targeting knows of.

use mosaic::key::value::{self, Value};
use mosaic::key::{hash, order};

use super::order::{raw, values};
use super::{choose, class, reference};

pub fn fuzz_one(data: &[u8]) -> u64 {
    let Some((mode, rest)) = data.split_first() else { return 0 };
    let [a, b] = if mode % 2 == 0 {
        choose([values::number(), values::number()], rest)
    } else {
        choose([values::value(), values::value()], rest)
    };
    let (x, y) = (raw(&a), raw(&b));
    let seeded = |seed| hash::hash64_seed(x.as_raw_bson_ref(), seed).expect("well-formed");
    let (h, other) = (seeded(0), hash::hash64(y.as_raw_bson_ref()).expect("well-formed"));
    assert_eq!(h, hash::hash64(x.as_raw_bson_ref()).expect("well-formed"), "the same value, the same hash");
    assert_ne!(h, seeded(1));
    for (value, hash) in [(&a, h), (&b, other)] {
        if let Some(expected) = reference::hash(value, 0) {
            assert_eq!(hash, expected, "{value:?}");
        }
    }
    let equal = order::compare(x.as_raw_bson_ref(), y.as_raw_bson_ref()).is_eq();
    if equal {
        let known = value::with(x.as_raw_bson_ref(), |v| {
            Ok(match v {
                Value::Doc(doc) => !hash::is_hash_unique(doc)? || h == other,
                v if v.is_number() => {
                    let mut candidates = hash::integers_of_equal_numbers(v).into_iter();
                    candidates.any(|i| hash::hash_value(Value::Int64(i), 0).is_ok_and(|h| h == other))
                }
                // Equal numbers inside may be hashed differently; targeting takes such values as they come only where
                // a query cannot name them.
                Value::Array(_) | Value::CodeWithScope { .. } => true,
                _ => h == other,
            })
        });
        assert!(known.expect("well-formed"), "{a:?} {b:?}");
    }
    class((a.element_type() as u8, b.element_type() as u8, equal))
}

pub fn seeds() -> Vec<Vec<u8>> {
    (0..32).map(|i| super::noise(i, 32, i as u8 % 2)).collect()
}
