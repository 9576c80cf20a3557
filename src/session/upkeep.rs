//! Background work on sessions.
//!
//! Sessions that were not used for the timeout are forgotten, and their cursors on this router closed. A shard expires
//! a session it has not heard of for half an hour, with its cursors, even while the session works on other shards; so
//! the shards are reminded of every session that has a cursor open here. Sessions without cursors need no reminder:
//! a shard that has nothing of a session loses nothing by forgetting it.

use std::sync::Arc;
use std::time::Duration;

use bson::{RawArrayBuf, rawdoc};

use crate::op::OpContext;
use crate::router::Router;
use crate::shard::{ReadPreference, Retryable};
use crate::wire::OutMsg;

/// How often expired sessions are looked for.
const PERIOD: Duration = Duration::from_secs(60);
/// The shards are reminded in every so many-th period: as often as mongod refreshes its own.
const REMIND_EVERY: u32 = 5;
/// Sessions named in one command.
const BATCH: usize = 1_000;

/// Runs until the router stops.
pub fn start(router: &Arc<Router>) {
    let (weak, shutdown) = (Arc::downgrade(router), router.shutdown.clone());
    tokio::spawn(async move {
        for round in 1_u32.. {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
            let Some(router) = weak.upgrade() else { return };
            let expired = router.sessions.expire();
            let closed: usize = expired.iter().map(|id| router.cursors.kill_session(*id)).sum();
            if !expired.is_empty() {
                tracing::debug!(sessions = expired.len(), cursors = closed, "expired sessions forgotten");
            }
            if round.is_multiple_of(REMIND_EVERY) {
                remind(&router).await;
            }
        }
    });
}

/// Tells every shard that the sessions with open cursors live.
async fn remind(router: &Router) {
    let sessions = router.cursors.sessions();
    for batch in sessions.chunks(BATCH) {
        let ids = RawArrayBuf::from_iter(batch.iter().map(|id| id.to_doc()));
        let msg = OutMsg::from_doc(rawdoc! { "refreshSessions": ids, "$db": "admin" });
        let op = OpContext::background("refreshSessions").with_limit(PERIOD);
        let tell = router.shards.all().into_iter().map(|shard| {
            let (op, msg) = (&op, &msg);
            async move {
                if let Err(error) = shard.run(op, &ReadPreference::PRIMARY, Retryable::Read, msg).await {
                    tracing::debug!(shard = &**shard.id(), %error, "a shard was not reminded of sessions");
                }
            }
        });
        futures_util::future::join_all(tell).await;
    }
}
