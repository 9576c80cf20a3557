//! Strategies for targeting tests: small documents and filters over values that are often equal or close, so that filters
//! match now and then. Uses nothing of the crate, so that integration tests can include it.

#![allow(clippy::unwrap_used)]

use std::str::FromStr;

use bson::oid::ObjectId;
use bson::{Binary, Bson, DateTime, Decimal128, Document, JavaScriptCodeWithScope, Regex, Timestamp, doc};
use proptest::prelude::*;

/// The shard keys to test with.
pub fn key() -> impl Strategy<Value = Document> {
    prop::sample::select(vec![
        doc! {"a": 1},
        doc! {"a": 1, "b": 1},
        doc! {"c.d": 1},
        doc! {"c": 1},
        doc! {"a": "hashed"},
        doc! {"a": 1, "b": "hashed"},
        doc! {"b": "hashed", "c.d": 1},
        doc! {"c.d": 1, "c.e": 1, "a": 1},
    ])
}

pub fn regex(pattern: &str, options: &str) -> Bson {
    Bson::RegularExpression(Regex {
        pattern: pattern.to_owned().try_into().unwrap(),
        options: options.to_owned().try_into().unwrap(),
    })
}

/// Patterns and options of regexes.
pub const REGEXES: &[(&str, &str)] = &[
    ("^a", ""),
    ("^ab", ""),
    ("^ab*", ""),
    ("^A", "i"),
    ("b", ""),
    ("^a.c", "s"),
    ("^b|^a", ""),
    ("^ab+$", ""),
    ("^\\.x", ""),
    ("^abc?", ""),
];

fn scalar() -> impl Strategy<Value = Bson> {
    let decimal = |s: &&str| Bson::Decimal128(Decimal128::from_str(s).unwrap());
    prop_oneof![
        4 => (-2i32..4).prop_map(Bson::Int32),
        1 => (-2i64..4).prop_map(Bson::Int64),
        3 => (-3i32..7).prop_map(|v| Bson::Double(f64::from(v) / 2.0)),
        1 => prop::sample::select(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.1, 1e300][..]).prop_map(Bson::Double),
        2 => prop::sample::select(&["1.5", "0.1", "2", "3.5", "NaN", "-0", "1E+400", "-1.5"][..])
            .prop_map(move |s| decimal(&s)),
        5 => prop::sample::select(&["", "a", "ab", "abc", "b", "A", "AB", "c", ".x", "ac"][..])
            .prop_map(|s| Bson::String(s.to_owned())),
        1 => prop::sample::select(&["", "a", "ab"][..]).prop_map(|s| Bson::Symbol(s.to_owned())),
        2 => Just(Bson::Null),
        1 => any::<bool>().prop_map(Bson::Boolean),
        1 => (0i64..3).prop_map(|v| Bson::DateTime(DateTime::from_millis(v))),
        1 => (0u32..2, 0u32..2).prop_map(|(time, increment)| Bson::Timestamp(Timestamp { time, increment })),
        1 => (0u8..2).prop_map(|b| Bson::ObjectId(ObjectId::from_bytes([b; 12]))),
        1 => (0u8..2).prop_map(|b| Bson::Binary(Binary { subtype: 0.into(), bytes: vec![b] })),
        1 => prop::sample::select(&[Bson::MinKey, Bson::MaxKey][..]),
    ]
}

/// Code whose scope holds numbers that are equal but not of one type.
fn code() -> impl Strategy<Value = Bson> {
    let number = prop::sample::select(&["3.5", "1.5", "2"][..]);
    (number, any::<bool>()).prop_map(|(text, decimal)| {
        let number = Decimal128::from_str(text).unwrap();
        let number = if decimal { Bson::Decimal128(number) } else { Bson::Double(text.parse().unwrap()) };
        Bson::JavaScriptCodeWithScope(JavaScriptCodeWithScope { code: "f".to_owned(), scope: doc! {"s": number} })
    })
}

/// Values without arrays, as shard key fields may have them.
pub fn stored() -> impl Strategy<Value = Bson> {
    prop_oneof![
        10 => scalar(),
        1 => Just(Bson::Undefined),
        1 => prop::sample::select(REGEXES).prop_map(|(p, o)| regex(p, o)),
        2 => sub_document(),
        1 => code(),
    ]
}

/// `{d: …, e: …}`, a value for `c`.
fn sub_document() -> impl Strategy<Value = Bson> {
    (prop::option::of(scalar()), prop::option::weighted(0.3, scalar())).prop_map(|(d, e)| {
        let mut doc = Document::new();
        d.map(|v| doc.insert("d", v));
        e.map(|v| doc.insert("e", v));
        Bson::Document(doc)
    })
}

/// A document; any field may be missing.
pub fn document() -> impl Strategy<Value = Document> {
    let field = || prop::option::weighted(0.85, stored());
    (field(), field(), prop::option::weighted(0.9, prop_oneof![4 => sub_document(), 1 => stored()]), -1i32..3).prop_map(
        |(a, b, c, x)| {
            let mut doc = Document::new();
            a.map(|v| doc.insert("a", v));
            b.map(|v| doc.insert("b", v));
            c.map(|v| doc.insert("c", v));
            doc.insert("x", x);
            doc
        },
    )
}

/// What a comparison may be made with.
fn operand() -> impl Strategy<Value = Bson> {
    prop_oneof![16 => scalar(), 2 => sub_document(), 1 => code()]
}

/// One operator of `{path: {$op: …}}`.
fn operator() -> impl Strategy<Value = (String, Bson)> {
    let comparison = prop::sample::select(&["$eq", "$gt", "$gte", "$lt", "$lte", "$ne"][..]);
    let list = || {
        let item = prop_oneof![6 => operand(), 1 => prop::sample::select(REGEXES).prop_map(|(p, o)| regex(p, o))];
        prop::collection::vec(item, 0..4).prop_map(Bson::Array)
    };
    let types = prop::sample::select(
        &["number", "int", "string", "null", "undefined", "object", "bool", "minKey", "regex", "date"][..],
    );
    prop_oneof![
        8 => (comparison, operand()).prop_map(|(op, v)| (op.to_owned(), v)),
        3 => list().prop_map(|v| ("$in".to_owned(), v)),
        1 => list().prop_map(|v| ("$nin".to_owned(), v)),
        1 => any::<bool>().prop_map(|v| ("$exists".to_owned(), Bson::Boolean(v))),
        1 => types.clone().prop_map(|t| ("$type".to_owned(), Bson::String(t.to_owned()))),
        1 => prop::collection::vec(types, 1..3).prop_map(|t| ("$type".to_owned(), Bson::from(t))),
        1 => prop::sample::select(REGEXES).prop_map(|(p, o)| ("$regex".to_owned(), regex(p, o))),
    ]
}

fn operators() -> impl Strategy<Value = Document> {
    let plain = || prop::collection::vec(operator(), 1..3).prop_map(|ops| ops.into_iter().collect::<Document>());
    prop_oneof![
        6 => plain(),
        1 => plain().prop_map(|inner| doc! {"$not": inner}),
    ]
}

fn path() -> impl Strategy<Value = String> {
    prop::sample::select(&["a", "a", "b", "b", "c", "c.d", "c.d", "c.e", "x"][..]).prop_map(str::to_owned)
}

fn condition() -> impl Strategy<Value = Bson> {
    prop_oneof![
        4 => operand(),
        1 => prop::sample::select(REGEXES).prop_map(|(p, o)| regex(p, o)),
        5 => operators().prop_map(Bson::Document),
    ]
}

fn expression() -> impl Strategy<Value = Bson> {
    let literal = operand().prop_map(|v| Bson::Document(doc! {"$literal": v}));
    let constant = prop_oneof![
        3 => scalar().prop_map(|v| match v {
            Bson::String(s) if s.starts_with('$') => Bson::Null,
            v => v,
        }),
        1 => literal,
    ];
    let op = prop::sample::select(&["$eq", "$gt", "$gte", "$lt", "$lte"][..]);
    let leaf = (op, path(), constant.clone(), any::<bool>()).prop_map(|(op, path, value, swap)| {
        let field = Bson::String(format!("${path}"));
        let operands = if swap { vec![value, field] } else { vec![field, value] };
        Bson::Document(doc! {op: operands})
    });
    let list = (path(), prop::collection::vec(constant, 0..3))
        .prop_map(|(path, list)| Bson::Document(doc! {"$in": [format!("${path}"), list]}));
    prop_oneof![4 => leaf, 1 => list].prop_recursive(2, 6, 3, |inner| {
        (prop::sample::select(&["$and", "$or"][..]), prop::collection::vec(inner, 1..3))
            .prop_map(|(op, parts)| Bson::Document(doc! {op: parts}))
    })
}

/// Filters with everything that targeting looks at.
pub fn filter() -> impl Strategy<Value = Document> {
    let fields = prop::collection::vec((path(), condition()), 1..3).prop_map(|f| f.into_iter().collect::<Document>());
    let leaf = prop_oneof![8 => fields, 2 => expression().prop_map(|e| doc! {"$expr": e})];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let parts = || prop::collection::vec(inner.clone(), 1..4).prop_map(Bson::from);
        prop_oneof![
            3 => parts().prop_map(|p| doc! {"$or": p}),
            2 => parts().prop_map(|p| doc! {"$and": p}),
            1 => parts().prop_map(|p| doc! {"$nor": p}),
            2 => (inner.clone(), parts()).prop_map(|(mut one, p)| {
                one.insert("$or", p);
                one
            }),
        ]
    })
}
