//! Queries on catalog documents that are simple enough to be answered without a server: equality on top-level fields,
//! sorting by top-level fields. Pure.

use std::cmp::Ordering;

use bson::{RawBsonRef, RawDocument};
use bytes::Bytes;

use crate::bsonx;
use crate::key::order::compare_values;
use crate::key::value::{self, Elements, Value};

/// Leaves out documents that certainly do not match, by the equalities among the filter's conditions.
pub fn prefilter(mut docs: Vec<Bytes>, filter: Option<&RawDocument>) -> Vec<Bytes> {
    let Some(filter) = filter.filter(|filter| is_short(filter)) else { return docs };
    for element in filter.iter_elements().map_while(Result::ok) {
        if is_equality(element.key().as_str(), element.value())
            && let Ok(wanted) = element.value()
        {
            docs.retain(|doc| equals(doc, element.key().as_str(), wanted));
        }
    }
    docs
}

/// A condition `name: value` on a top-level field that nothing but equality can be meant by.
fn is_equality(name: &str, value: Result<RawBsonRef<'_>, impl Sized>) -> bool {
    let fixed = match value {
        Ok(RawBsonRef::Document(doc)) => !bsonx::first_key(doc.as_bytes()).is_some_and(|key| key.starts_with('$')),
        Ok(value) => !matches!(
            value,
            RawBsonRef::Null | RawBsonRef::Undefined | RawBsonRef::RegularExpression(_) | RawBsonRef::Array(_)
        ),
        Err(_) => false,
    };
    fixed && !name.starts_with('$') && !name.contains('.')
}

/// Whether the field equals the value, or is an array that holds it.
fn equals(doc: &[u8], name: &str, wanted: RawBsonRef<'_>) -> bool {
    let Ok(Some(found)) = value::get(doc, name.as_bytes()) else { return false };
    let same = |found: Value<'_>| {
        value::with(wanted, |wanted| Ok(compare_values(found, wanted) == Ordering::Equal)).unwrap_or(false)
    };
    match found {
        Value::Array(items) => {
            Elements::new(items).into_iter().flatten().flatten().any(|item| item.value().is_ok_and(same))
        }
        other => same(other),
    }
}

/// Whether an argument is short enough to be held against every document of a collection right here; a server takes
/// the longer ones, and can interrupt itself.
pub fn is_short(argument: &RawDocument) -> bool {
    argument.as_bytes().len() <= 16 * 1024
}

/// The documents in the order of `sort`; `None` where that takes a server to know.
pub fn sorted(docs: &[Bytes], sort: Option<&RawDocument>) -> Option<Vec<Bytes>> {
    if sort.is_some_and(|sort| !is_short(sort)) {
        return None;
    }
    let mut keys = Vec::new();
    for element in sort.into_iter().flat_map(|sort| sort.iter_elements()) {
        let element = element.ok()?;
        let (name, direction) = (element.key().as_str(), bsonx::as_int(element.value().ok()?)?);
        if name.contains('.') || name.starts_with('$') || !matches!(direction, 1 | -1) {
            return None;
        }
        keys.push((name, direction < 0));
    }
    let read = |doc: &'_ Bytes, name: &str| value::get(doc, name.as_bytes()).ok().flatten().map(|v| v.tag());
    let has_array = |doc| keys.iter().any(|(name, _)| read(doc, name) == Some(value::tag::ARRAY));
    if docs.iter().any(has_array) {
        return None;
    }
    let mut sorted = docs.to_vec();
    sorted.sort_by(|a, b| {
        let by = |(name, descending): &(&str, bool)| {
            let get = |doc| value::get(doc, name.as_bytes()).ok().flatten().unwrap_or(Value::Null);
            let order = compare_values(get(a), get(b));
            if *descending { order.reverse() } else { order }
        };
        keys.iter().map(by).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    });
    Some(sorted)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::{RawDocumentBuf, rawdoc};

    fn docs() -> Vec<Bytes> {
        [
            rawdoc! { "_id": "b", "state": 1, "tags": ["x", "y"] },
            rawdoc! { "_id": "a", "state": 1.0, "key": { "u": 1 } },
            rawdoc! { "_id": "c", "state": 2_i64 },
        ]
        .map(|doc| Bytes::from(doc.into_bytes()))
        .to_vec()
    }

    fn ids(docs: &[Bytes]) -> String {
        docs.iter().filter_map(|doc| bsonx::str(bsonx::view(doc), "_id")).collect()
    }

    #[test]
    fn equality() {
        let filter = |doc: RawDocumentBuf| ids(&prefilter(docs(), Some(&doc)));
        assert_eq!(filter(rawdoc! { "_id": "a" }), "a");
        assert_eq!(filter(rawdoc! { "state": 1_i64 }), "ba");
        assert_eq!(filter(rawdoc! { "tags": "x" }), "b");
        assert_eq!(filter(rawdoc! { "key": { "u": 1 }, "state": 1 }), "a");
        assert_eq!(filter(rawdoc! { "state": { "$gt": 1 } }), "bac");
        assert_eq!(filter(rawdoc! { "_id": "c", "key.u": 1 }), "c");
        assert_eq!(filter(rawdoc! { "$or": [{ "_id": "a" }] }), "bac");
        assert_eq!(filter(rawdoc! { "key": bson::RawBson::Null }), "bac");
    }

    #[test]
    fn sorting() {
        let sort = |doc: RawDocumentBuf| sorted(&docs(), Some(&doc)).map(|docs| ids(&docs));
        assert_eq!(sort(rawdoc! { "_id": 1 }), Some("abc".into()));
        assert_eq!(sort(rawdoc! { "state": -1, "_id": 1 }), Some("cab".into()));
        assert_eq!(sort(rawdoc! { "key": 1 }), Some("bca".into()));
        assert_eq!(sort(rawdoc! {}), Some("bac".into()));
        assert_eq!(sort(rawdoc! { "tags": 1 }), None);
        assert_eq!(sort(rawdoc! { "key.u": 1 }), None);
        assert_eq!(sorted(&docs(), None).map(|docs| ids(&docs)), Some("bac".into()));
    }
}
