//! Reads that wait for a cluster time on a shard that nobody writes to.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bson::{cstr, rawdoc};

use crate::bsonx;
use crate::error::Result;
use crate::op::OpContext;
use crate::router::{Router, clock};
use crate::shard::{ReadPreference, Retryable, Shard, ShardReply};
use crate::wire::OutMsg;

/// A read that has not been answered after this long is taken to wait for the shard's time. Shards with writes of their
/// own answer before, and are never asked for a note.
const STALL: Duration = Duration::from_millis(5);
/// What one note may take.
const NOTE_LIMIT: Duration = Duration::from_secs(10);

impl Router {
    /// The time that the operation's reads wait for, where this shard is not known to have reached it.
    pub(super) fn awaited(&self, op: &OpContext, shard: &Shard) -> Option<u64> {
        let time = op.record.awaited.load(Ordering::Relaxed);
        (time != 0 && !shard.progress().has_reached(time)).then_some(time)
    }

    /// Drives `read` to its end; if it stalls, the shard's primary writes a note that lets it go on.
    pub(super) async fn with_note(
        &self,
        shard: &Arc<Shard>,
        time: u64,
        read: impl Future<Output = Result<ShardReply>>,
    ) -> Result<ShardReply> {
        let mut read = std::pin::pin!(read);
        tokio::select! {
            biased;
            reply = &mut read => return reply,
            () = tokio::time::sleep(STALL) => {}
        }
        if shard.progress().want(time) {
            tokio::spawn(write_notes(shard.clone(), self.clock.document()));
        }
        read.await
    }
}

/// Writes notes until the shard has reached what is wanted; many who wait share one.
async fn write_notes(shard: Arc<Shard>, cluster_time: Option<bson::RawDocumentBuf>) {
    while let Some(time) = shard.progress().next() {
        // With `maxClusterTime` a primary that has come there already writes nothing (StaleClusterTime).
        let mut note = rawdoc! {
            "appendOplogNote": 1,
            "maxClusterTime": clock::unpack(time),
            "data": { "msg": "a read waits for this time" },
            "$db": "admin",
        };
        if let Some(cluster_time) = &cluster_time {
            note.append(cstr!("$clusterTime"), cluster_time.clone());
        }
        let op = OpContext::background("appendOplogNote").with_limit(NOTE_LIMIT);
        match shard.run(&op, &ReadPreference::PRIMARY, Retryable::No, &OutMsg::from_doc(note)).await {
            Ok(reply) => {
                shard.progress().learn(clock::operation_time(reply.doc()));
                if !shard.progress().has_reached(time) {
                    tracing::debug!(shard = &**shard.id(), reply = ?reply.doc(), "a note did not bring the shard forward");
                    return shard.progress().give_up();
                }
            }
            Err(error) => {
                tracing::debug!(shard = &**shard.id(), %error, "no note could be written");
                return shard.progress().give_up();
            }
        }
    }
}

/// The cluster time that a read concern names, packed; 0 where it names none.
pub fn named_time(read_concern: &bson::RawDocument) -> u64 {
    ["afterClusterTime", "atClusterTime"]
        .into_iter()
        .filter_map(|name| match bsonx::get(read_concern, name) {
            Some(bson::RawBsonRef::Timestamp(time)) => Some(clock::pack(time)),
            _ => None,
        })
        .max()
        .unwrap_or(0)
}
