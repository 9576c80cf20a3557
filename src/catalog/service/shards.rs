//! Commits about shards.

use bson::{Timestamp, Uuid, rawdoc};

use super::{Catalog, Plan};
use crate::catalog::model::{DatabaseInfo, ShardId, ShardInfo, collection};
use crate::catalog::snapshot::Snapshot;
use crate::catalog::store::{CatalogTxn, CheckKind};
use crate::error::{Code, Error, Result};

/// A replica set that is to become a shard; it was looked at already.
#[derive(Clone, Debug)]
pub struct NewShard {
    pub id: ShardId,
    /// `set/host:port,…` with all members.
    pub host: String,
    /// Databases it holds, which the cluster adopts with this shard as their primary.
    pub databases: Vec<String>,
}

impl Catalog {
    /// Adds a shard and adopts its databases. Adding the same set under the same name again does nothing.
    ///
    /// Errors: OperationFailed (96) for a database that the cluster has already; IllegalOperation (20) where the name
    /// or the hosts belong to another shard.
    pub async fn add_shard(&self, new: NewShard) -> Result<ShardId> {
        let time = self.tick().await?;
        let added = self.commit(|snapshot| plan_add(snapshot, &new, time)).await?;
        if added {
            let details = rawdoc! { "name": &*new.id, "host": new.host.as_str() };
            self.log_change("addShard", "", details).await;
        }
        Ok(new.id)
    }
}

fn plan_add(snapshot: &Snapshot, new: &NewShard, time: Timestamp) -> Result<Plan<bool>> {
    if existing_shard(snapshot, &new.id, &new.host)?.is_some() {
        return Ok(Plan::Nothing(false));
    }
    let info = ShardInfo {
        id: new.id.clone(),
        host: new.host.clone(),
        state: 1,
        topology_time: time,
        tags: None,
        draining: false,
        rest: bson::RawDocumentBuf::new(),
    };
    let mut txn = CatalogTxn::new()
        .unchanged(collection::SHARDS, snapshot.version)
        .unchanged(collection::DATABASES, snapshot.version)
        .check(collection::SHARDS, CheckKind::Absent((&*new.id).into()), format!("Shard {} exists already", new.id))
        .put(collection::SHARDS, info.to_doc())
        .touch(collection::SHARDS);
    for name in &new.databases {
        database_conflict(snapshot, new, name)?;
        txn = txn.insert(collection::DATABASES, adopted(name, &new.id, time).to_doc());
    }
    if !new.databases.is_empty() {
        txn = txn.touch(collection::DATABASES);
    }
    Ok(Plan::Commit(txn, true))
}

fn adopted(name: &str, primary: &ShardId, timestamp: Timestamp) -> DatabaseInfo {
    DatabaseInfo {
        name: name.to_owned(),
        primary: primary.clone(),
        partitioned: true,
        uuid: Uuid::new(),
        timestamp,
        last_mod: 1,
        rest: bson::RawDocumentBuf::new(),
    }
}

fn database_conflict(snapshot: &Snapshot, new: &NewShard, name: &str) -> Result<()> {
    let shard = match (snapshot.databases.get(name), snapshot.database_differing_in_case(name)) {
        (Some(db), _) => db.primary.clone(),
        (None, Some(other)) => snapshot.primary(other).cloned().unwrap_or_else(|| "?".into()),
        (None, None) => return Ok(()),
    };
    Err(Error::new(
        Code::OperationFailed,
        format!("can't add shard '{}' because a local database '{name}' exists in another {shard}", new.host),
    ))
}

/// The shard that is this one already: the same set of hosts under the same name (or no name asked for).
///
/// Errors: IllegalOperation (20) where the name, the set or one of the hosts belongs to another shard.
pub fn existing_shard<'a>(snapshot: &'a Snapshot, id: &str, host: &str) -> Result<Option<&'a ShardInfo>> {
    let (set, hosts) = host.split_once('/').unwrap_or(("", host));
    for shard in snapshot.shards.values() {
        let shares_host = shard.members().any(|m| hosts.split(',').any(|h| h == m));
        if !shares_host && &*shard.id != id && shard.set_name() != set {
            continue;
        }
        if shares_host && &*shard.id == id && shard.set_name() == set {
            return Ok(Some(shard));
        }
        return Err(Error::new(
            Code::IllegalOperation,
            format!(
                "A shard already exists containing the replica set '{}' (shard '{}' at {}); the new shard would be '{id}' at {host}",
                shard.set_name(),
                shard.id,
                shard.host
            ),
        ));
    }
    Ok(None)
}
