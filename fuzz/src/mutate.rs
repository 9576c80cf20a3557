//! Mutations: of bytes, and of the BSON documents that are found somewhere in the bytes. A changed document keeps its
//! structure, and the lengths of everything around it (documents, sections, messages) follow.

use std::ops::Range;

use mosaic::bsonx::{self, Writer, kind};

use super::random::Random;

/// No input is longer.
pub const MAX_INPUT: usize = 64 * 1024;

/// A new input from one and, now and then, parts of another.
pub fn mutate(data: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(4) {
        if random.below(3) == 0 || !edit_document(data, other, random) {
            edit_bytes(data, other, random);
        }
    }
    data.truncate(MAX_INPUT);
}

fn edit_bytes(data: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(data.len() + 1);
    let end = (at + 1 + random.below(16)).min(data.len());
    match random.below(9) {
        0 | 1 if at < data.len() => data[at] ^= 1 << random.below(8),
        2 if at < data.len() => data[at] = random.next() as u8,
        3 if at < end => drop(data.drain(at..end)),
        4 => {
            let bytes: Vec<u8> = (0..=random.below(8)).map(|_| random.next() as u8).collect();
            data.splice(at..at, bytes);
        }
        5 if at < end => {
            let copy = data[at..end].to_vec();
            let to = random.below(data.len() + 1);
            data.splice(to..to, copy);
        }
        6 => {
            let from = random.below(other.len() + 1);
            data.truncate(at);
            data.extend_from_slice(&other[from..]);
        }
        7 | 8 if at + 4 <= data.len() => {
            let length = length_like(data.len(), random);
            data[at..at + 4].copy_from_slice(&length);
        }
        _ => {}
    }
}

/// A number that a length may be confused by.
fn length_like(around: usize, random: &mut Random) -> [u8; 4] {
    let n = match random.below(8) {
        0 => i32::MAX,
        1 => -1,
        2 => i32::MIN,
        3 => random.below(32) as i32,
        4 => around as i32 - random.below(24) as i32,
        5 => 48_000_000,
        6 => 16_793_600 + random.below(3) as i32,
        _ => random.next() as i32,
    };
    n.to_le_bytes()
}

/// Where documents are, nested ones too: bytes that begin with their length, end with 0 and hold whole fields.
fn documents(data: &[u8]) -> Vec<Range<usize>> {
    let whole = |at: usize| {
        let size = usize::try_from(bsonx::int32(data, at)?).ok()?;
        let doc = data.get(at..at.checked_add(size)?)?;
        let sound = size >= 5 && doc[size - 1] == 0;
        (sound && bsonx::fields(doc).last().map_or(4, |f| f.end) == size - 1).then_some(at..at + size)
    };
    (0..data.len().saturating_sub(4)).filter_map(whole).collect()
}

/// Changes one document; false if there is none.
fn edit_document(data: &mut Vec<u8>, other: &[u8], random: &mut Random) -> bool {
    let found = documents(data);
    if found.is_empty() {
        return false;
    }
    let doc = random.one(&found).clone();
    let fields: Vec<Range<usize>> = bsonx::fields(&data[doc.clone()]).map(|f| shifted(f.whole(), doc.start)).collect();
    let place = random.below(fields.len() + 1);
    let at = fields.get(place).map_or(doc.end - 1, |f| f.start);
    let change = match (random.below(10), fields.get(place)) {
        (0, Some(field)) => (field.clone(), Vec::new()),
        (1, Some(_)) => (at..at, data[random.one(&fields).clone()].to_vec()),
        (2, Some(field)) => (field.clone(), element(name_of(&data[field.clone()]), &value(random))),
        (3, Some(field)) => {
            let name = random.one(NAMES).as_bytes();
            (field.clone(), renamed(&data[field.clone()], name))
        }
        (4, Some(field)) => (field.clone(), wrapped(&data[field.clone()], random)),
        (5, Some(field)) => {
            // Another field's value.
            let from = random.one(&found).clone();
            let others: Vec<_> = bsonx::fields(&data[from.clone()]).map(|f| shifted(f.whole(), from.start)).collect();
            if others.is_empty() {
                return true;
            }
            let name = name_of(&data[field.clone()]).to_vec();
            (field.clone(), renamed(&data[random.one(&others).clone()], &name))
        }
        (6, Some(field)) => {
            let mut copy = data[field.clone()].to_vec();
            let from = (2 + name_of(&copy).len()).min(copy.len() - 1);
            let spot = from + random.below(copy.len() - from);
            copy[spot] = random.next() as u8;
            (field.clone(), copy)
        }
        (7, _) => {
            let theirs = documents(other);
            if theirs.is_empty() {
                return true;
            }
            let from = random.one(&theirs).clone();
            let fields: Vec<_> = bsonx::fields(&other[from.clone()]).map(|f| shifted(f.whole(), from.start)).collect();
            (at..at, fields.first().map(|_| other[random.one(&fields).clone()].to_vec()).unwrap_or_default())
        }
        _ => (at..at, element(random.one(NAMES).as_bytes(), &value(random))),
    };
    splice(data, change.0, &change.1);
    true
}

fn words(list: &[&'static str], random: &mut Random) -> &'static str {
    list[random.below(list.len())]
}

fn shifted(range: Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

fn name_of(field: &[u8]) -> &[u8] {
    let name = field.get(1..).unwrap_or_default();
    &name[..name.iter().position(|b| *b == 0).unwrap_or(name.len())]
}

fn renamed(field: &[u8], name: &[u8]) -> Vec<u8> {
    let value = field.get(2 + name_of(field).len()..).unwrap_or_default();
    [&field[..1], name, &[0], value].concat()
}

fn element(name: &[u8], (kind, value): &(u8, Vec<u8>)) -> Vec<u8> {
    [&[*kind], name, &[0], value].concat()
}

/// `{name: value}` as `{name: {op: value}}` or `{name: [value, value]}`.
fn wrapped(field: &[u8], random: &mut Random) -> Vec<u8> {
    let value = field.get(2 + name_of(field).len()..).unwrap_or_default();
    let mut inner = Writer::new();
    if random.below(2) == 0 {
        inner.raw(words(NAMES, random), field[0], value);
        element(name_of(field), &(kind::DOCUMENT, inner.finish()))
    } else {
        for i in 0..1 + random.below(3) {
            inner.raw(&i.to_string(), field[0], value);
        }
        element(name_of(field), &(kind::ARRAY, inner.finish()))
    }
}

/// Replaces bytes, and makes every number before them that looks like the length of something around them follow.
fn splice(data: &mut Vec<u8>, range: Range<usize>, with: &[u8]) {
    let grown = with.len() as i64 - range.len() as i64;
    for at in 0..range.start.saturating_sub(3) {
        let Some(size) = bsonx::int32(data, at).and_then(|n| usize::try_from(n).ok()) else { continue };
        let end = at.saturating_add(size);
        // The end of a document lies behind its last field; a section or a message may end right there.
        if size >= 5 && end >= range.end && end > range.start && end <= data.len() {
            data[at..at + 4].copy_from_slice(&((size as i64 + grown) as i32).to_le_bytes());
        }
    }
    data.splice(range, with.iter().copied());
}

/// A value's type and bytes, one that something is likely to trip over.
fn value(random: &mut Random) -> (u8, Vec<u8>) {
    let text = |s: &str| [&(s.len() as i32 + 1).to_le_bytes(), s.as_bytes(), &[0]].concat();
    let doc = |name: &str, n: i32| {
        let mut doc = Writer::new();
        doc.int32(name, n);
        doc.finish()
    };
    match random.below(24) {
        0 | 1 => (kind::INT32, random.one(&[0, 1, -1, 2, 5, 101, i32::MAX, i32::MIN]).to_le_bytes().to_vec()),
        2 | 3 => {
            (kind::INT64, random.one(&[0, 1, -1, 1 << 53, (1 << 53) + 1, i64::MAX, i64::MIN]).to_le_bytes().to_vec())
        }
        4 | 5 => (kind::DOUBLE, random.one(DOUBLES).to_le_bytes().to_vec()),
        6 => (kind::DECIMAL128, (0..16).map(|_| random.next() as u8).collect()),
        7 => {
            let decimal: bson::Decimal128 = random.one(DECIMALS).parse().expect("these are decimals");
            (kind::DECIMAL128, decimal.bytes().to_vec())
        }
        8 | 9 => (kind::STRING, text(words(TEXTS, random))),
        10 => (kind::SYMBOL, text(words(TEXTS, random))),
        11 => (kind::CODE, text(words(TEXTS, random))),
        12 => (kind::NULL, Vec::new()),
        13 => (*random.one(&[kind::MIN_KEY, kind::MAX_KEY, kind::UNDEFINED]), Vec::new()),
        14 => (kind::BOOL, vec![random.below(2) as u8]),
        15 => (*random.one(&[kind::DATE, kind::TIMESTAMP]), random.next().to_le_bytes().to_vec()),
        16 => (kind::OBJECT_ID, vec![random.below(3) as u8; 12]),
        17 => {
            let subtype = *random.one(&[0_u8, 2, 3, 4, 6, 128]);
            let size = random.below(4) * 4;
            (kind::BINARY, [&(size as i32).to_le_bytes()[..], &[subtype], &vec![subtype; size]].concat())
        }
        18 | 19 => (
            kind::REGEX,
            [random.one(REGEXES).as_bytes(), &[0], random.one(&["", "i", "s", "m", "x"]).as_bytes(), &[0]].concat(),
        ),
        20 => (kind::DOCUMENT, doc(words(NAMES, random), 1)),
        21 => (kind::DOCUMENT, Writer::new().finish()),
        22 => {
            let (code, scope) = (text("f()"), doc("x", 1));
            let size = (4 + code.len() + scope.len()) as i32;
            (kind::CODE_WITH_SCOPE, [&size.to_le_bytes()[..], &code, &scope].concat())
        }
        _ => {
            let mut list = Writer::new();
            for i in 0..random.below(4) {
                list.int32(&i.to_string(), i as i32);
            }
            (kind::ARRAY, list.finish())
        }
    }
}

const DOUBLES: &[f64] = &[
    0.0,
    -0.0,
    1.0,
    1.5,
    0.1,
    5.0,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    9007199254740993.0,
    9.3e18,
    1e300,
    5e-324,
];

const DECIMALS: &[&str] = &[
    "0",
    "-0",
    "1",
    "1.0",
    "1.5",
    "0.1",
    "5",
    "NaN",
    "Infinity",
    "-Infinity",
    "1E+400",
    "9007199254740993",
    "1E-6176",
];

const TEXTS: &[&str] =
    &["", "a", "ab", "abc", "$a", "$b", "$a.b", "$$ROOT", "x", "y", "z", "hashed", "simple", "en", "a.b"];

const REGEXES: &[&str] =
    &["^a", "^ab", "^ab*", "^A", "b", "^a.c", "^b|^a", "^ab+$", "^\\.x", "^abc?", "^\\Qab\\E", "^(a)", "", "^"];

/// Names that mean something somewhere.
const NAMES: &[&str] = &[
    "",
    "_id",
    "a",
    "b",
    "c",
    "d",
    "a.b",
    "a.c",
    "c.d",
    "c.e",
    "x",
    "0",
    "1",
    "$and",
    "$or",
    "$nor",
    "$expr",
    "$eq",
    "$ne",
    "$gt",
    "$gte",
    "$lt",
    "$lte",
    "$in",
    "$nin",
    "$not",
    "$exists",
    "$type",
    "$regex",
    "$options",
    "$elemMatch",
    "$all",
    "$size",
    "$mod",
    "$text",
    "$where",
    "$comment",
    "$literal",
    "$ref",
    "$id",
    "$db",
    "filter",
    "documents",
    "updates",
    "deletes",
    "q",
    "u",
    "limit",
    "multi",
    "upsert",
    "collation",
    "locale",
    "cursor",
    "id",
    "ns",
    "firstBatch",
    "lsid",
    "txnNumber",
    "$clusterTime",
    "$readPreference",
    "mode",
    "comment",
    "maxTimeMS",
    "ordered",
    "hint",
    "let",
    "ok",
    "code",
    "errmsg",
    "errorLabels",
];
