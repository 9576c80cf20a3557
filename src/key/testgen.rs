//! Strategies for property tests: BSON values of every type, with many that are close to each other or equal.

#![allow(clippy::unwrap_used)]

use std::str::FromStr;

use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Decimal128, Document, JavaScriptCodeWithScope, RawDocumentBuf, Regex, Timestamp};
use proptest::prelude::*;

const INTS: &[i64] = &[
    0,
    1,
    -1,
    2,
    5,
    -5,
    10,
    127,
    128,
    255,
    256,
    -128,
    -129,
    32767,
    65536,
    2147483647,
    -2147483648,
    2147483648,
    4294967296,
    9007199254740991,
    9007199254740992,
    9007199254740993,
    -9007199254740993,
    1152921504606846976,
    4611686018427387904,
    -4611686018427387904,
    i64::MAX,
    i64::MAX - 1,
    i64::MIN,
    i64::MIN + 1,
];
const DOUBLES: &[f64] = &[
    0.0,
    -0.0,
    0.1,
    0.5,
    1.0,
    1.5,
    -1.5,
    2.5,
    5.0,
    0.3,
    1e-5,
    9007199254740992.0,
    9007199254740994.0,
    9223372036854775807.0,
    -9223372036854775808.0,
    9223372036854777856.0,
    1e19,
    1e300,
    -1e300,
    f64::MAX,
    f64::MIN,
    f64::MIN_POSITIVE,
    5e-324,
    -5e-324,
    2.225_073_858_507_201e-308,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    4503599627370497.5,
    1024.0,
];
const DECIMALS: &[&str] = &[
    "0",
    "-0",
    "0E+6000",
    "0.1",
    "0.10",
    "0.5",
    "1",
    "1.00",
    "1.5",
    "-1.5",
    "2.5",
    "5",
    "0.3",
    "3E-1",
    "1E-5",
    "9007199254740993",
    "9007199254740992.5",
    "9223372036854775807",
    "9223372036854775807.5",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "-9223372036854775808.5",
    "9223372036854775809",
    "1E+19",
    "0.1000000000000000055511151231257827",
    "0.1000000000000000055511151231257828",
    "1E+300",
    "1797693134862315708145274237317043",
    "1.797693134862315708145274237317043E+308",
    "1.797693134862315708145274237317044E+308",
    "1E+309",
    "9.999999999999999999999999999999999E+6144",
    "1E-6176",
    "-1E-6176",
    "4.940656458412465441765687928682213E-324",
    "4.940656458412465441765687928682214E-324",
    "2E-324",
    "2.225073858507201383090232717332404E-308",
    "Infinity",
    "-Infinity",
    "NaN",
    "4503599627370497.5",
    "123456789012345678901234567890.1234",
    "0.4999999999999999999999999999999999",
    "3.7",
];

fn decimal(text: &str) -> Bson {
    Bson::Decimal128(Decimal128::from_str(text).unwrap_or_else(|_| Decimal128::from_str("7").unwrap()))
}

/// Numbers of all four types, mostly interesting ones.
pub fn number() -> impl Strategy<Value = Bson> {
    prop_oneof![
        3 => prop::sample::select(INTS).prop_map(Bson::Int64),
        3 => prop::sample::select(DOUBLES).prop_map(Bson::Double),
        4 => prop::sample::select(DECIMALS).prop_map(decimal),
        2 => any::<i32>().prop_map(Bson::Int32),
        1 => (-3i32..4).prop_map(Bson::Int32),
        1 => any::<i64>().prop_map(Bson::Int64),
        2 => any::<u64>().prop_map(|bits| Bson::Double(f64::from_bits(bits))),
        1 => (-3i32..4).prop_map(|v| Bson::Double(f64::from(v) / 2.0)),
        1 => any::<[u8; 16]>().prop_map(|b| Bson::Decimal128(Decimal128::from_bytes(b))),
        2 => (any::<i64>(), -40i32..30).prop_map(|(c, e)| decimal(&format!("{c}E{e}"))),
        1 => (any::<i64>(), any::<u32>(), -6170i32..6080).prop_map(|(c, d, e)| decimal(&format!("{c}{d}E{e}"))),
        1 => any::<f64>().prop_map(|v| decimal(&format!("{v:.33e}"))),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[ab\u{0}\u{1}]{0,4}", "[a-c]{0,3}", "\\PC{0,8}", Just("abc".to_owned())]
}

fn name() -> impl Strategy<Value = String> {
    "[ab.$é]{0,2}"
}

fn scalar() -> impl Strategy<Value = Bson> {
    prop_oneof![
        6 => number(),
        2 => text().prop_map(Bson::String),
        1 => text().prop_map(Bson::Symbol),
        1 => prop::sample::select(&[Bson::Null, Bson::Undefined, Bson::MinKey, Bson::MaxKey][..]),
        1 => any::<bool>().prop_map(Bson::Boolean),
        1 => prop_oneof![any::<i64>(), -2i64..3].prop_map(|v| Bson::DateTime(DateTime::from_millis(v))),
        1 => (any::<u32>(), 0u32..3).prop_map(|(time, increment)| Bson::Timestamp(Timestamp { time, increment })),
        1 => any::<[u8; 12]>().prop_map(|b| Bson::ObjectId(ObjectId::from_bytes(b))),
        1 => (0u8..8, prop::collection::vec(0u8..3, 0..4)).prop_map(|(subtype, bytes)| {
            Bson::Binary(Binary { subtype: BinarySubtype::from(subtype), bytes })
        }),
        1 => ("[a-c^.]{0,3}", "[imsx]{0,2}").prop_map(|(pattern, mut options)| {
            options = { let mut o: Vec<char> = options.chars().collect(); o.sort_unstable(); o.dedup(); o.into_iter().collect() };
            Bson::RegularExpression(Regex { pattern: pattern.try_into().unwrap(), options: options.try_into().unwrap() })
        }),
        1 => text().prop_map(Bson::JavaScriptCode),
        1 => ("[ab]{0,2}", any::<u8>()).prop_map(|(ns, b)| db_pointer(&ns, [b % 3; 12])),
    ]
}

/// A DBPointer, which the `bson` crate does not let one construct.
pub fn db_pointer(ns: &str, id: [u8; 12]) -> Bson {
    let mut bytes = vec![0, 0, 0, 0, 0x0C, b'v', 0];
    bytes.extend_from_slice(&(ns.len() as u32 + 1).to_le_bytes());
    bytes.extend_from_slice(ns.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(&id);
    bytes.push(0);
    let size = (bytes.len() as u32).to_le_bytes();
    bytes[..4].copy_from_slice(&size);
    Document::try_from(RawDocumentBuf::from_bytes(bytes).unwrap()).unwrap().remove("v").unwrap()
}

/// Values of every type, nested up to three levels.
pub fn value() -> impl Strategy<Value = Bson> {
    scalar().prop_recursive(3, 12, 3, |inner| {
        let fields = || prop::collection::vec((name(), inner.clone()), 0..3);
        prop_oneof![
            2 => fields().prop_map(|f| Bson::Document(f.into_iter().collect())),
            1 => prop::collection::vec(inner.clone(), 0..3).prop_map(Bson::Array),
            1 => (text(), fields()).prop_map(|(code, f)| {
                Bson::JavaScriptCodeWithScope(JavaScriptCodeWithScope { code, scope: f.into_iter().collect() })
            }),
        ]
    })
}
