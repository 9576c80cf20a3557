//! Commits about databases.

use std::time::Duration;

use bson::{Timestamp, Uuid, rawdoc};
use futures_util::future::join_all;

use super::{Catalog, Plan};
use crate::bsonx;
use crate::catalog::model::{DatabaseInfo, ShardId, check_database_name, collection};
use crate::catalog::snapshot::Snapshot;
use crate::catalog::store::{CatalogTxn, CheckKind};
use crate::error::{Code, Error, Result};
use crate::op::OpContext;
use crate::shard::{ReadPreference, Retryable};
use crate::wire::OutMsg;

/// How long a shard may take to tell its size before it is left out of the choice.
const SIZE_TIMEOUT: Duration = Duration::from_secs(5);

impl Catalog {
    /// The primary shard of a database, made if it is new; without `primary` it goes to the shard with the least data.
    ///
    /// Errors: DatabaseDifferCase (13297); InvalidNamespace (73); ShardNotFound (70); NamespaceExists (48) where it
    /// exists on another shard than the `primary` asked for.
    pub async fn create_database(&self, db: &str, primary: Option<&ShardId>) -> Result<ShardId> {
        check_database_name(db)?;
        if let Ok(Some(found)) = existing(&self.snapshot(), db, primary) {
            return Ok(found);
        }
        // Another router may have made it or dropped what is in its way, or added the shard it is to go to.
        let snapshot = self.confirm().await?;
        if let Some(found) = existing(&snapshot, db, primary)? {
            return Ok(found);
        }
        let shard = match primary {
            Some(shard) => snapshot.shard(shard)?.id.clone(),
            None => self.emptiest_shard(&snapshot).await?,
        };
        let time = self.tick().await?;
        let (found, created) = self.commit(|snapshot| plan_create(snapshot, db, &shard, primary, time)).await?;
        if created {
            self.log_change("createDatabase", db, rawdoc! { "primary": &*found }).await;
        }
        Ok(found)
    }

    /// The shard that holds the least data (`listDatabases`' `totalSize`), not counting those that are draining or do
    /// not answer.
    async fn emptiest_shard(&self, snapshot: &Snapshot) -> Result<ShardId> {
        let candidates: Vec<_> = snapshot.shards.values().filter(|s| !s.draining).map(|s| s.id.clone()).collect();
        match candidates.as_slice() {
            [] => return Err(Error::new(Code::ShardNotFound, "No shards found: add one with addShard first")),
            [only] => return Ok(only.clone()),
            _ => {}
        }
        let sizes = join_all(candidates.iter().map(|shard| self.data_size(shard))).await;
        let least = candidates.iter().zip(sizes).filter_map(|(s, size)| size.map(|n| (n, s))).min();
        match least {
            Some((_, shard)) => Ok(shard.clone()),
            None => Err(Error::new(Code::HostUnreachable, "No shard answers to hold the new database").from_router()),
        }
    }

    /// Bytes on disk of a shard's databases.
    async fn data_size(&self, shard: &ShardId) -> Option<i64> {
        let op = OpContext::background("listDatabases").with_limit(SIZE_TIMEOUT);
        let msg = OutMsg::from_doc(rawdoc! { "listDatabases": 1, "$db": "admin" });
        let reply = self.shards.get(shard).ok()?.run(&op, &ReadPreference::PRIMARY, Retryable::Read, &msg).await;
        match reply.and_then(|r| r.into_result()) {
            Ok(reply) => bsonx::int(reply.doc(), "totalSize"),
            Err(error) => {
                tracing::warn!(%error, %shard, "left out of the choice for a new database");
                None
            }
        }
    }

    /// Removes a database from the catalog, with every collection of it that is sharded and their zones, in one commit
    /// that begins with `base`.
    pub async fn drop_database(&self, db: &str, base: &CatalogTxn) -> Result<bool> {
        self.commit(|snapshot| {
            let prefix = format!("{db}.");
            let mut txn = base
                .clone()
                .unchanged(collection::DATABASES, snapshot.version)
                .unchanged(collection::COLLECTIONS, snapshot.version)
                .delete(collection::DATABASES, db)
                .touch(collection::DATABASES);
            for c in snapshot.collections.values().filter(|c| c.ns.db() == db) {
                txn = super::collections::remove(txn, c);
            }
            for ns in snapshot.tags.keys().filter(|ns| ns.starts_with(&prefix)) {
                txn = txn.delete_where(collection::TAGS, "ns", ns.as_str()).touch(collection::TAGS);
            }
            match snapshot.databases.contains_key(db) || txn.touches.len() > 1 || !base.writes.is_empty() {
                true => Ok(Plan::Commit(txn, true)),
                false => Ok(Plan::Nothing(false)),
            }
        })
        .await
    }
}

fn existing(snapshot: &Snapshot, db: &str, primary: Option<&ShardId>) -> Result<Option<ShardId>> {
    let Some(found) = snapshot.primary(db) else {
        return match snapshot.database_differing_in_case(db) {
            Some(other) => Err(Error::new(
                Code::DatabaseDifferCase,
                format!("db already exists with different case already have: [{other}] trying to create [{db}]"),
            )),
            None => Ok(None),
        };
    };
    match primary {
        Some(wanted) if wanted != found => Err(Error::new(
            Code::NamespaceExists,
            format!("database already created on a primary which is different from {wanted}: {db} is on {found}"),
        )),
        _ => Ok(Some(found.clone())),
    }
}

fn plan_create(
    snapshot: &Snapshot,
    db: &str,
    shard: &ShardId,
    primary: Option<&ShardId>,
    timestamp: Timestamp,
) -> Result<Plan<(ShardId, bool)>> {
    if let Some(found) = existing(snapshot, db, primary)? {
        return Ok(Plan::Nothing((found, false)));
    }
    snapshot.shard(shard)?;
    let info = DatabaseInfo {
        name: db.to_owned(),
        primary: shard.clone(),
        partitioned: true,
        uuid: Uuid::new(),
        timestamp,
        last_mod: 1,
        rest: bson::RawDocumentBuf::new(),
    };
    let txn = CatalogTxn::new()
        .unchanged(collection::SHARDS, snapshot.version)
        .unchanged(collection::DATABASES, snapshot.version)
        .check(collection::DDL, CheckKind::Absent(db.into()), format!("database {db} is being dropped; try again"))
        .insert(collection::DATABASES, info.to_doc())
        .touch(collection::DATABASES);
    Ok(Plan::Commit(txn, (shard.clone(), true)))
}
