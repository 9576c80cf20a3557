//! Copies of a collection on shards that own none of it, left by a `shardCollection` that failed.

use bson::Bson;

use super::drop::drop_by_uuid;
use super::job::{Failed, Job};
use crate::catalog::model::{Namespace, ShardId};
use crate::error::{Error, Result};

/// Removes what sharding `ns` left on other shards than the primary, and says how the change failed with `why`.
pub async fn after_failure(job: &mut Job, ns: &Namespace, why: Error) -> Failed {
    match remove(job, ns).await {
        Ok(()) => Failed::Undone(why),
        Err(error) => {
            tracing::warn!(%ns, %error, "copies of a collection could not be removed yet");
            Failed::Pending(why)
        }
    }
}

async fn remove(job: &mut Job, ns: &Namespace) -> Result<()> {
    let args = job.intent.args();
    let (Some(Bson::Binary(uuid)), Ok(primary)) = (args.get("uuid"), args.get_str("primary")) else { return Ok(()) };
    let Ok(uuid) = uuid.to_uuid() else { return Ok(()) };
    job.ctx.snapshot = job.ctx.router.catalog.refresh().await?;
    if job.ctx.snapshot.collection(ns.as_str()).is_some_and(|c| c.uuid == uuid) {
        return Ok(());
    }
    let others: Vec<ShardId> = job.all_shards().into_iter().filter(|s| **s != *primary).collect();
    drop_by_uuid(job, ns, uuid, &others).await
}
