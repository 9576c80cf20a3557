//! Where a command on one namespace goes.

use std::sync::Arc;

use bson::RawDocument;

use crate::catalog::model::{Namespace, ShardId};
use crate::catalog::snapshot::CollectionRouting;
use crate::command::{Ctx, Request};
use crate::error::Result;
use crate::shard::{ReadPreference, Retryable};
use crate::stats::{Hosts, TargetCounters};
use crate::target::{self, Route};

/// Where a namespace lives.
#[derive(Clone, Debug)]
pub enum Place {
    /// The database does not exist.
    Nowhere,
    /// In the catalog: a collection of the database `config`.
    Config,
    /// On the primary shard of its database.
    Unsharded(ShardId),
    Sharded(Arc<CollectionRouting>),
}

/// Arguments that every command may have.
pub fn is_generic(key: &str) -> bool {
    key.starts_with('$')
        || matches!(
            key,
            "lsid"
                | "txnNumber"
                | "autocommit"
                | "startTransaction"
                | "comment"
                | "maxTimeMS"
                | "readConcern"
                | "writeConcern"
                | "apiVersion"
                | "apiStrict"
                | "apiDeprecationErrors"
        )
}

impl Ctx {
    /// Where `ns` lives according to this operation's snapshot.
    pub fn place(&self, ns: &Namespace) -> Place {
        if let Some(coll) = self.snapshot.collection(ns.as_str()) {
            return Place::Sharded(coll.clone());
        }
        match ns.db() {
            "config" => Place::Config,
            db => self.primary_shard(db).map_or(Place::Nowhere, Place::Unsharded),
        }
    }

    /// The shards a filter needs, counted in `shardingStatistics.numHostsTargeted`.
    pub fn route(
        &self,
        coll: &CollectionRouting,
        filter: Option<&RawDocument>,
        collation: Option<&RawDocument>,
        counters: &TargetCounters,
    ) -> Result<Route> {
        let route = self.route_uncounted(coll, filter, collation)?;
        counters.count(Hosts::of(route.shards.len(), Some(coll.table.owners().len())));
        Ok(route)
    }

    /// The same for commands that have no such counter.
    pub fn route_uncounted(
        &self,
        coll: &CollectionRouting,
        filter: Option<&RawDocument>,
        collation: Option<&RawDocument>,
    ) -> Result<Route> {
        target::query(filter.unwrap_or(crate::bsonx::view(&[])), collation, coll)
    }
}

impl Request {
    /// The `$readPreference` of the command; primary where it has none.
    pub fn read_preference(&self) -> Result<ReadPreference> {
        Ok(self.generic.read_preference.clone())
    }

    /// Whether a read may be sent once more: always, except in a transaction, whose statements the shard counts.
    pub fn read_retry(&self) -> Retryable {
        if self.generic.in_transaction { Retryable::No } else { Retryable::Read }
    }
}
