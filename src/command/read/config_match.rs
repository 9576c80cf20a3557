//! A filter judged without a server: what tools ask of the catalog. Pure; whatever is not certain is `None`.
//!
//! Covered: equality, `$eq $ne $gt $gte $lt $lte $in $nin $exists` on (dotted) fields, `$and $or $nor`, comparison
//! within one type as MongoDB brackets types. Not covered, so left to a shard: arrays on the way, null, regular
//! expressions, collations, expressions.

use std::cmp::Ordering;

use bson::{RawBsonRef, RawDocument};

use crate::bsonx;
use crate::key::order;

/// Whether the document matches; `None`: ask a server.
pub fn matches(doc: &RawDocument, filter: &RawDocument) -> Option<bool> {
    all(filter.iter_elements().map(|element| {
        let element = element.ok()?;
        condition(doc, element.key().as_str(), element.value().ok()?)
    }))
}

/// `$and`: certain as soon as one part is certainly false.
fn all(parts: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut certain = true;
    for part in parts {
        match part {
            Some(false) => return Some(false),
            Some(true) => {}
            None => certain = false,
        }
    }
    certain.then_some(true)
}

fn any(parts: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    all(parts.map(|p| p.map(|b| !b))).map(|b| !b)
}

fn condition(doc: &RawDocument, name: &str, value: RawBsonRef<'_>) -> Option<bool> {
    let branches = || {
        let list = value.as_array()?;
        (!list.is_empty()).then(|| list.into_iter().map(|b| matches(doc, b.ok()?.as_document()?)))
    };
    match name {
        "$and" => all(branches()?),
        "$or" => any(branches()?),
        "$nor" => any(branches()?).map(|b| !b),
        "$comment" => Some(true),
        _ if name.starts_with('$') => None,
        _ => field(found(doc, name)?, value),
    }
}

/// The value at a path; `Some(None)` where it is missing, `None` where an array is on the way.
fn found<'a>(doc: &'a RawDocument, path: &str) -> Option<Option<RawBsonRef<'a>>> {
    let (first, rest) = path.split_once('.').map_or((path, None), |(f, r)| (f, Some(r)));
    match (bsonx::get(doc, first), rest) {
        (Some(RawBsonRef::Array(_)), _) => None,
        (Some(RawBsonRef::Document(inner)), Some(rest)) => found(inner, rest),
        (value, None) => Some(value),
        (_, Some(_)) => Some(None),
    }
}

fn field(found: Option<RawBsonRef<'_>>, value: RawBsonRef<'_>) -> Option<bool> {
    let operators = value.as_document().filter(|d| bsonx::first_key(d.as_bytes()).is_some_and(|k| k.starts_with('$')));
    let Some(operators) = operators else { return compare(found, value, Ordering::is_eq) };
    all(operators.iter_elements().map(|element| {
        let element = element.ok()?;
        operator(found, element.key().as_str(), element.value().ok()?)
    }))
}

fn operator(found: Option<RawBsonRef<'_>>, name: &str, value: RawBsonRef<'_>) -> Option<bool> {
    let among = || {
        let list = value.as_array()?;
        any(list.into_iter().map(|v| compare(found, v.ok()?, Ordering::is_eq)))
    };
    match name {
        "$eq" => compare(found, value, Ordering::is_eq),
        "$ne" => compare(found, value, Ordering::is_eq).map(|b| !b),
        "$gt" => compare(found, value, Ordering::is_gt),
        "$gte" => compare(found, value, Ordering::is_ge),
        "$lt" => compare(found, value, Ordering::is_lt),
        "$lte" => compare(found, value, Ordering::is_le),
        "$in" => among(),
        "$nin" => among().map(|b| !b),
        "$exists" => Some(found.is_some() == bsonx::is_true(value)),
        _ => None,
    }
}

fn compare(found: Option<RawBsonRef<'_>>, wanted: RawBsonRef<'_>, accept: fn(Ordering) -> bool) -> Option<bool> {
    if bracket(wanted)? == NOT_COVERED {
        return None;
    }
    let Some(found) = found else { return Some(false) };
    if bracket(found)? != bracket(wanted)? {
        return Some(false);
    }
    Some(accept(order::compare(found, wanted)))
}

/// Values that may never be compared here: they have rules of their own.
const NOT_COVERED: u8 = 0;

/// Values are compared with others of their bracket only.
fn bracket(value: RawBsonRef<'_>) -> Option<u8> {
    Some(match value {
        RawBsonRef::Double(d) if d.is_nan() => return None,
        RawBsonRef::Double(_) | RawBsonRef::Int32(_) | RawBsonRef::Int64(_) | RawBsonRef::Decimal128(_) => 1,
        RawBsonRef::String(_) | RawBsonRef::Symbol(_) => 2,
        RawBsonRef::Document(_) => 3,
        RawBsonRef::Binary(_) => 4,
        RawBsonRef::ObjectId(_) => 5,
        RawBsonRef::Boolean(_) => 6,
        RawBsonRef::DateTime(_) => 7,
        RawBsonRef::Timestamp(_) => 8,
        RawBsonRef::MinKey | RawBsonRef::MaxKey => return None,
        _ => NOT_COVERED,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bson::{RawDocumentBuf, rawdoc};

    use super::*;

    #[test]
    fn certain_and_uncertain() {
        let doc = rawdoc! {
            "_id": "a", "n": 3, "f": 2.5, "when": bson::DateTime::from_millis(1000), "details": { "note": "success", "k": 1 },
            "tags": ["x"], "nothing": bson::RawBson::Null,
        };
        let yes = [
            rawdoc! {},
            rawdoc! { "_id": "a" },
            rawdoc! { "n": 3.0, "f": { "$gt": 2, "$lt": 3_i64 } },
            rawdoc! { "details.note": "success" },
            rawdoc! { "details.errmsg": { "$exists": false } },
            rawdoc! { "when": { "$gte": bson::DateTime::from_millis(1000) } },
            rawdoc! { "$or": [{ "n": 4 }, { "_id": { "$in": ["b", "a"] } }] },
            rawdoc! { "n": { "$ne": "3" }, "x": { "$ne": 1 }, "y": { "$nin": [1, 2] } },
            rawdoc! { "$nor": [{ "n": 4 }, { "tags": "y", "n": 4 }] },
            rawdoc! { "details": { "note": "success", "k": 1 } },
        ];
        for filter in yes {
            assert_eq!(matches(&doc, &filter), Some(true), "{filter:?}");
        }
        let no = [
            rawdoc! { "_id": "b" },
            rawdoc! { "n": { "$gt": "2" } },
            rawdoc! { "tags": "x", "n": 4 },
            rawdoc! { "n.x": 1 },
            rawdoc! { "details": { "k": 1, "note": "success" } },
            rawdoc! { "$and": [{ "n": 3 }, { "f": { "$lte": 2 } }] },
            rawdoc! { "nothing": 1 },
        ];
        for filter in no {
            assert_eq!(matches(&doc, &filter), Some(false), "{filter:?}");
        }
        let ask: Vec<RawDocumentBuf> = vec![
            rawdoc! { "tags": "x" },
            rawdoc! { "nothing": bson::RawBson::Null },
            rawdoc! { "n": { "$type": "int" } },
            rawdoc! { "$expr": true },
            rawdoc! { "_id": bson::Regex { pattern: bson::raw::CString::try_from("a").unwrap(), options: bson::raw::CString::try_from("").unwrap() } },
            rawdoc! { "n": { "$not": { "$gt": 5 } } },
            rawdoc! { "$or": [] },
        ];
        for filter in ask {
            assert_eq!(matches(&doc, &filter), None, "{filter:?}");
        }
    }
}
