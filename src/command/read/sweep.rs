//! Removes temporary collections that nobody needs any more: a router that was killed leaves its own behind, and a member
//! that could not be reached keeps what should have been dropped.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bson::oid::ObjectId;
use bson::rawdoc;

use super::pass::batch_of;
use super::scratch::documents;
use crate::bsonx;
use crate::cursor::TempCollection;
use crate::error::Result;
use crate::op::OpContext;
use crate::router::Router;
use crate::shard::{ServerId, Shard};
use crate::wire::OutMsg;

/// After the start: the shards' members are known by then.
const FIRST: Duration = Duration::from_secs(2);
const PERIOD: Duration = Duration::from_secs(60);
/// How long one member may take.
const LIMIT: Duration = Duration::from_secs(10);
/// A collection that is younger may belong to a router that has not told yet that it lives, or be on its way into or out
/// of this one's books; in milliseconds.
const YOUNG: i64 = 60_000;

pub fn start(router: &Arc<Router>) {
    let (weak, shutdown) = (Arc::downgrade(router), router.shutdown.clone());
    tokio::spawn(async move {
        let mut pause = FIRST;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            let Some(router) = weak.upgrade() else { return };
            sweep(&router).await;
            pause = PERIOD;
        }
    });
}

async fn sweep(router: &Router) {
    let living = match router.catalog.living().await {
        Ok(living) => living,
        Err(error) => return tracing::debug!(%error, "temporary collections are not looked for"),
    };
    for shard in router.shards.all() {
        for server in shard.members() {
            if let Err(error) = sweep_member(router, &shard, &server, &living).await {
                tracing::debug!(%server, %error, "temporary collections of a member are not looked for");
            }
        }
    }
}

async fn sweep_member(router: &Router, shard: &Shard, server: &ServerId, living: &HashSet<ObjectId>) -> Result<()> {
    let op = OpContext::background("listCollections").with_limit(LIMIT);
    let prefix = format!("^{}", TempCollection::PREFIX.replace('.', "\\."));
    let list = rawdoc! {
        "listCollections": 1, "nameOnly": true, "filter": { "name": { "$regex": prefix } }, "cursor": {},
        "$readPreference": { "mode": "primaryPreferred" }, "$db": TempCollection::DB,
    };
    let reply = shard.run_on(&op, server, &OutMsg::from_doc(list)).await?.into_result()?;
    let now = bson::DateTime::now().timestamp_millis();
    // More than a batch of them wait for the next time.
    for doc in documents(batch_of(&reply.body, "firstBatch")?)? {
        let Some(name) = bsonx::str(bsonx::view(&doc), "name") else { continue };
        let kept = |name: &str| router.cursors.killer().is_kept(name);
        if is_left_behind(name, router.identity.process_id, living, router.catalog.is_shared(), now, &kept) {
            tracing::info!(%server, name, "dropping a temporary collection that was left behind");
            let drop = rawdoc! { "drop": name, "$db": TempCollection::DB };
            let op = OpContext::background("drop").with_limit(LIMIT);
            shard.run_on(&op, server, &OutMsg::from_doc(drop)).await?.into_result()?;
        }
    }
    Ok(())
}

/// `own` is this process; with an unshared catalog there is no other that lives.
fn is_left_behind(
    name: &str,
    own: ObjectId,
    living: &HashSet<ObjectId>,
    shared: bool,
    now: i64,
    kept: &dyn Fn(&str) -> bool,
) -> bool {
    let Some(maker) = TempCollection::maker(name) else { return false };
    let made = name.rsplit('.').next().and_then(|id| id.parse::<ObjectId>().ok()).map(|id| id.timestamp());
    let young = made.is_none_or(|made| now - made.timestamp_millis() < YOUNG);
    if maker == own {
        return !young && !kept(name);
    }
    let may_live = living.contains(&maker) || shared && young;
    !may_live
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_behind() {
        let (own, other) = (ObjectId::new(), ObjectId::new());
        let name = |maker: ObjectId| format!("{}{maker}.{}", TempCollection::PREFIX, ObjectId::new());
        let now = bson::DateTime::now().timestamp_millis();
        let later = now + YOUNG + 2_000;
        let living: HashSet<_> = [own].into_iter().collect();
        let both: HashSet<_> = [own, other].into_iter().collect();
        let left = |name: &str, living: &HashSet<ObjectId>, shared, now, kept: bool| {
            is_left_behind(name, own, living, shared, now, &|_| kept)
        };
        // A dead router's: at once where there can be no other, else when it is not young.
        assert!(left(&name(other), &living, false, now, false));
        assert!(!left(&name(other), &living, true, now, false));
        assert!(left(&name(other), &living, true, later, false));
        assert!(!left(&name(other), &both, true, later, false));
        // Its own, if nobody needs it.
        assert!(!left(&name(own), &living, true, now, false));
        assert!(left(&name(own), &living, true, later, false));
        assert!(!left(&name(own), &living, true, later, true));
        assert!(!left("oplog.rs", &living, false, later, false));
        assert!(!left("mosaic.tmp.x", &living, false, later, false));
    }
}
