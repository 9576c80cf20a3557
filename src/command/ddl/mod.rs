//! Commands that create, change, drop and describe databases, collections and indexes.
//!
//! What one shard does alone is forwarded to it. What several shards must do alike runs as a [`job`]: recorded in the
//! catalog as an [`intent`] before it begins, behind a closed [`gate`] where requests must not see it half done,
//! finished or undone by [`recovery`] if its router cannot.

mod capped;
mod catalog_view;
mod coll_mod;
mod coll_stats;
pub mod copies;
mod create;
mod create_indexes;
mod db_stats;
mod drop;
mod drop_database;
mod drop_indexes;
mod forward;
pub mod gate;
pub mod intent;
pub mod job;
mod list_collections;
mod list_databases;
mod list_indexes;
pub mod raw;
pub mod recovery;
mod refused;
mod rename;
pub mod shard_view;
mod validate;

use std::time::{Duration, Instant};

use bson::Bson;

use super::{CommandSpec, Ctx};
use crate::bsonx;
use crate::catalog::model::Namespace;
use crate::error::Result;

pub use job::Coordinator;

pub const FAMILIES: &[&[CommandSpec]] = &[
    capped::COMMANDS,
    coll_mod::COMMANDS,
    coll_stats::COMMANDS,
    create::COMMANDS,
    create_indexes::COMMANDS,
    db_stats::COMMANDS,
    drop::COMMANDS,
    drop_database::COMMANDS,
    drop_indexes::COMMANDS,
    list_collections::COMMANDS,
    list_databases::COMMANDS,
    list_indexes::COMMANDS,
    refused::COMMANDS,
    rename::COMMANDS,
    validate::COMMANDS,
];

/// The intent under which a collection is sharded.
pub const SHARD_COLLECTION: &str = "shardCollection";

/// After a change to an unsharded collection: whether it was sharded meanwhile, so that the change must be made on its
/// other shards too. Waits for a `shardCollection` that runs. Sharding that begins later sees the change.
///
/// # Errors
/// ConflictingOperationInProgress (117) where the sharding takes too long; the change is made on the primary shard then.
async fn sharded_meanwhile(ctx: &Ctx, ns: &Namespace) -> Result<Option<Ctx>> {
    let catalog = &ctx.router.catalog;
    // The sharding that is waited for must not wait for this one.
    let _parked = ctx.router.ddl.gate.park(ctx.op.id());
    let (began, mut pause) = (Instant::now(), Duration::from_millis(5));
    loop {
        let mut view = catalog.store().view(catalog.store().newest().await?).await?;
        let held = view.get(intent::COLLECTION, &Bson::from(ns.as_str())).await?;
        let version = view.version();
        drop(view);
        if let Some(holder) = held.filter(|doc| bsonx::str(doc, "op") == Some(SHARD_COLLECTION)) {
            intent::wait_for(&ctx.op, &bson::Document::try_from(&*holder)?, began, &mut pause).await?;
            continue;
        }
        catalog.refresh_to(version).await?;
        let newer = ctx.refreshed();
        return Ok(newer.snapshot.collection(ns.as_str()).is_some().then_some(newer));
    }
}
