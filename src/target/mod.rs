//! Targeting: which shards an operation must go to, and why.
//!
//! The rule is *exact or wide, never narrow*: a document that matches the filter is always on one of the shards. A filter
//! becomes a union of boxes, one set of values per shard key field ([`filter`], [`predicate`], [`expr`]); the boxes become
//! ranges of encoded keys and those the owners of chunks ([`plan`], REFERENCE E6). The common filter, plain equality on
//! every key field, is recognised in one scan before any of that.

mod equality;
mod expr;
mod filter;
mod interval;
mod plan;
mod predicate;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod reference;
mod regex;
mod route;
#[cfg(test)]
mod testgen;
#[cfg(test)]
mod tests;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use smallvec::{SmallVec, smallvec};

pub use route::{Bounds, FieldUse, Reason, Route};

use crate::catalog::model::ShardId;
use crate::catalog::snapshot::CollectionRouting;
use crate::catalog::table::RoutingTable;
use crate::error::Result;
#[cfg(test)]
use crate::key;
use crate::key::value::{Elements, Value};
use crate::key::{KeyKind, ShardKeyPattern};

/// What targeting needs to know of a sharded collection.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    pub key: &'a ShardKeyPattern,
    pub table: &'a RoutingTable,
    pub default_collation: Option<&'a RawDocument>,
}

impl Scope<'_> {
    /// Whether a request with this collation compares strings by their bytes. An empty collation counts as none.
    fn compares_bytes(&self, collation: Option<&RawDocument>) -> bool {
        is_simple(collation.filter(|c| !c.is_empty()).or(self.default_collation))
    }
}

impl<'a> From<&'a CollectionRouting> for Scope<'a> {
    fn from(coll: &'a CollectionRouting) -> Self {
        Scope { key: &coll.key, table: &coll.table, default_collation: coll.default_collation.as_deref() }
    }
}

/// The shards that can hold documents matching `filter`. `collation` is the request's, if it has one.
///
/// Errors: InvalidBSON for malformed input, 17439 for filters that combine to more than 4,000,000 key ranges. What the
/// server would refuse (an unknown operator) is not checked here: it narrows nothing.
pub fn query<'a>(filter: &RawDocument, collation: Option<&RawDocument>, coll: impl Into<Scope<'a>>) -> Result<Route> {
    let scope = coll.into();
    if let Some(route) = plain_equality(filter, collation, scope)? {
        return Ok(route);
    }
    let cx = filter::Context::new(scope, collation);
    let boxes = filter::analyse(&cx, filter.as_bytes(), 0)?;
    plan::route(&cx, &boxes, scope.table)
}

/// The route of a filter whose top level gives every shard key field a plain value; `None` if it is not that simple.
fn plain_equality(filter: &RawDocument, collation: Option<&RawDocument>, scope: Scope<'_>) -> Result<Option<Route>> {
    let fields = scope.key.fields();
    let mut values: SmallVec<[Option<Value<'_>>; 4]> = smallvec![None; fields.len()];
    let mut missing = fields.len();
    for elem in Elements::new(filter.as_bytes())? {
        let elem = elem?;
        for (slot, field) in values.iter_mut().zip(fields) {
            match filter::place(field.path.as_bytes(), elem.name) {
                None => {}
                // A parent's value, or a second condition.
                Some(rest) if !rest.is_empty() || slot.is_some() => return Ok(None),
                Some(_) => {
                    *slot = Some(elem.value()?);
                    missing -= 1;
                }
            }
        }
    }
    if missing > 0 {
        return Ok(None);
    }
    let mut key = Vec::with_capacity(64);
    for (i, (value, field)) in values.iter().flatten().zip(fields).enumerate() {
        let plain = match value {
            Value::Str(_) => scope.compares_bytes(collation),
            Value::Double(_) | Value::Decimal(_) => field.kind == KeyKind::Ranged,
            Value::Int32(_) | Value::Int64(_) | Value::ObjectId(_) | Value::Bool(_) => true,
            Value::Date(_) | Value::Timestamp(_) | Value::Binary { .. } => true,
            _ => false,
        };
        if !plain {
            return Ok(None);
        }
        scope.key.push_field(&mut key, i, *value)?;
    }
    let mut route = Route::new([scope.table.chunk_for(&key).shard().clone()], Reason::EqualityOnShardKey);
    route.bounds = Bounds { ranges: 1, chunks: 1 };
    route.exact_key = true;
    Ok(Some(route))
}

/// The shard that owns `document` (for inserts). Errors: ShardKeyNotFound (61) for arrays in the key.
pub fn document<'a>(document: &RawDocument, coll: impl Into<Scope<'a>>) -> Result<ShardId> {
    let scope = coll.into();
    let mut key = Vec::with_capacity(64);
    scope.key.encode_document(document, &mut key)?;
    Ok(scope.table.chunk_for(&key).shard().clone())
}

/// The complete shard key (hash not applied) when the filter pins every key field to one value, directly, through `$eq`,
/// `$and`, or equality of a parent document, and the collation permits to use it.
///
/// This is what names the owner of an upsert. Fields pinned to null stand for missing ones as well.
pub fn full_key_equality<'a>(
    filter: &RawDocument,
    collation: Option<&RawDocument>,
    coll: impl Into<Scope<'a>>,
) -> Option<RawDocumentBuf> {
    let scope = coll.into();
    equality::full_key(filter, scope.compares_bytes(collation), scope)
}

/// The value of a plain `_id` equality (`{_id: v}`, `{_id: {$eq: v}}`, also inside `$and`); the caller checks the
/// collation.
pub fn id_equality(filter: &RawDocument) -> Option<RawBsonRef<'_>> {
    equality::id(filter, 0)
}

/// How the filter uses each shard key field, in key order: for explain's hints.
pub fn key_use<'a>(
    filter: &RawDocument,
    collation: Option<&RawDocument>,
    coll: impl Into<Scope<'a>>,
) -> Result<Vec<(&'a str, FieldUse)>> {
    let scope = coll.into();
    let cx = filter::Context::new(scope, collation);
    let boxes = filter::analyse(&cx, filter.as_bytes(), 0)?;
    let of = |i: usize| {
        let mut sets = boxes.iter().map(|b| b.get(i).and_then(Option::as_ref));
        match (sets.len(), boxes.first().and_then(|b| b.get(i)?.as_ref())) {
            (0, _) => FieldUse::Nothing,
            (1, Some(set)) if set.is_single() => FieldUse::Equality,
            _ if sets.any(|s| s.is_none()) => FieldUse::Free,
            _ if boxes.iter().all(|b| b.get(i).and_then(Option::as_ref).is_some_and(|s| s.is_points())) => {
                FieldUse::Values
            }
            _ => FieldUse::Range,
        }
    };
    Ok(scope.key.paths().enumerate().map(|(i, path)| (path, of(i))).collect())
}

/// Whether a collation compares strings by their bytes: none, or `{locale: "simple"}`.
pub fn is_simple(collation: Option<&RawDocument>) -> bool {
    collation.is_none_or(|c| crate::bsonx::str(c, "locale").is_none_or(|locale| locale == "simple"))
}
