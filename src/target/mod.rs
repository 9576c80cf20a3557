//! Targeting: which shards an operation must go to, and why (stub bodies).

mod route;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

pub use route::{Bounds, Reason, Route};

use crate::catalog::model::ShardId;
use crate::catalog::snapshot::CollectionRouting;
use crate::catalog::table::RoutingTable;
use crate::error::Result;
use crate::key::ShardKeyPattern;

/// What targeting needs to know of a sharded collection.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    pub key: &'a ShardKeyPattern,
    pub table: &'a RoutingTable,
    pub default_collation: Option<&'a RawDocument>,
}

impl<'a> From<&'a CollectionRouting> for Scope<'a> {
    fn from(coll: &'a CollectionRouting) -> Self {
        Scope { key: &coll.key, table: &coll.table, default_collation: coll.default_collation.as_deref() }
    }
}

/// The shards that can hold documents matching `filter`. `collation` is the request's, if it has one.
pub fn query<'a>(_filter: &RawDocument, _collation: Option<&RawDocument>, coll: impl Into<Scope<'a>>) -> Result<Route> {
    let scope = coll.into();
    Ok(Route::new(scope.table.owners().iter().cloned(), Reason::NoShardKey))
}

/// The shard that owns `document` (for inserts).
pub fn document<'a>(document: &RawDocument, coll: impl Into<Scope<'a>>) -> Result<ShardId> {
    let scope = coll.into();
    let mut key = Vec::with_capacity(64);
    scope.key.encode_document(document, &mut key)?;
    Ok(scope.table.chunk_for(&key).shard().clone())
}

/// The complete shard key (hash not applied) when the filter pins every key field to one value and the collation
/// permits to use it.
pub fn full_key_equality<'a>(
    _filter: &RawDocument,
    _collation: Option<&RawDocument>,
    _coll: impl Into<Scope<'a>>,
) -> Option<RawDocumentBuf> {
    None
}

/// The value of a plain `_id` equality (`{_id: v}`, `{_id: {$eq: v}}`, also inside `$and`); the caller checks the collation.
pub fn id_equality(filter: &RawDocument) -> Option<RawBsonRef<'_>> {
    crate::bsonx::get(filter, "_id")
}
