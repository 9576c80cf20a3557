//! Sending a command to one shard or to several at once, on behalf of one client operation.
//!
//! What a client's operation sends and waits for goes through here, so that the cluster time and the operation time are
//! learned from every reply.

mod note;

pub use note::named_time;

use futures_util::future::join_all;

use crate::catalog::model::ShardId;
use crate::command::Ctx;
use crate::error::Result;
use crate::op::OpContext;
use crate::router::Router;
use crate::shard::{ReadPreference, Retryable, ServerId, ShardReply};
use crate::wire::OutMsg;

/// The outcome at one shard: `Ok` is any reply that arrived, `ok: 0` included.
pub type ShardOutcome = (ShardId, Result<ShardReply>);

impl Router {
    /// [`Ctx::send`] for work that goes on without the client, or beside it.
    pub async fn send(
        &self,
        op: &OpContext,
        shard: &str,
        pref: &ReadPreference,
        retry: Retryable,
        msg: &OutMsg,
    ) -> Result<ShardReply> {
        let target = self.shards.get(shard)?;
        let waiting = op.record.waiting();
        // The usual case keeps the future in one place only.
        let reply = match self.awaited(op, &target) {
            None => target.run(op, pref, retry, msg).await?,
            Some(time) => Box::pin(self.with_note(&target, time, target.run(op, pref, retry, msg))).await?,
        };
        drop(waiting);
        target.progress().learn(self.clock.observe(op, &reply));
        Ok(reply)
    }
}

impl Ctx {
    /// Sends one command to `shard` and waits for its reply, which may be `ok: 0`.
    pub async fn send(&self, shard: &str, pref: &ReadPreference, retry: Retryable, msg: &OutMsg) -> Result<ShardReply> {
        self.router.send(&self.op, shard, pref, retry, msg).await
    }

    /// The same to one certain server of the shard: cursors live on one server.
    pub async fn send_to_server(&self, shard: &str, server: &ServerId, msg: &OutMsg) -> Result<ShardReply> {
        let target = self.router.shards.get(shard)?;
        let waiting = self.op.record.waiting();
        let reply = target.run_on(&self.op, server, msg).await?;
        drop(waiting);
        target.progress().learn(self.router.clock.observe(&self.op, &reply));
        Ok(reply)
    }

    /// Sends to the shard's primary and turns `ok: 0` into an error.
    pub async fn send_primary(&self, shard: &str, retry: Retryable, msg: &OutMsg) -> Result<ShardReply> {
        self.send(shard, &ReadPreference::PRIMARY, retry, msg).await?.into_result()
    }

    /// Sends a command to each of several shards at once and waits for all. The outcomes come in the order of
    /// the requests.
    pub async fn scatter(
        &self,
        requests: &[(ShardId, OutMsg)],
        pref: &ReadPreference,
        retry: Retryable,
    ) -> Vec<ShardOutcome> {
        join_all(
            requests
                .iter()
                .map(|(shard, msg)| async move { (shard.clone(), self.send(shard, pref, retry, msg).await) }),
        )
        .await
    }

    /// Sends the same command to the primaries of several shards at once.
    pub async fn broadcast(&self, shards: &[ShardId], retry: Retryable, msg: &OutMsg) -> Vec<ShardOutcome> {
        let requests: Vec<_> = shards.iter().map(|s| (s.clone(), msg.clone())).collect();
        self.scatter(&requests, &ReadPreference::PRIMARY, retry).await
    }
}
