//! Running a change of structure: in the background of its client, recorded, finished or undone whatever happens.

use std::sync::Arc;

use bson::{Document, rawdoc};
use futures_util::future::BoxFuture;

use super::gate::Gate;
use super::intent::Intent;
use crate::bsonx::{self, Writer};
use crate::catalog::model::ShardId;
use crate::command::{Ctx, Reply};
use crate::conn::ConnState;
use crate::error::{Code, Error, Result};
use crate::op::OpContext;
use crate::router::Router;
use crate::scatter::ShardOutcome;
use crate::shard::{Retryable, ShardReply};
use crate::wire::OutMsg;

/// What one router keeps about changes of structure.
#[derive(Debug, Default)]
pub struct Coordinator {
    pub gate: Arc<Gate>,
}

/// How a change failed.
#[derive(Debug)]
pub enum Failed {
    /// Nothing of it is left.
    Undone(Error),
    /// It has begun and must be finished or undone later.
    Pending(Error),
}

impl Failed {
    fn into_error(self) -> Error {
        match self {
            Failed::Undone(e) | Failed::Pending(e) => e,
        }
    }
}

pub type Driven = std::result::Result<Reply, Failed>;

/// An error before anything was changed.
pub fn undone(error: Error) -> Failed {
    Failed::Undone(error)
}

/// An error after something was changed.
pub fn pending(error: Error) -> Failed {
    Failed::Pending(error)
}

/// A change at work: its own operation, not its client's, and its intent.
pub struct Job {
    pub ctx: Ctx,
    pub intent: Arc<Intent>,
    /// Whether the change was begun by somebody else, or earlier, and is taken up now.
    pub resumed: bool,
}

/// Drives a change from the step its intent says to the end.
pub type Drive = for<'a> fn(&'a mut Job) -> BoxFuture<'a, Driven>;

/// Records the intent and drives the change in a task of its own: it goes on when the client goes away.
///
/// # Errors
/// The change's own; ConflictingOperationInProgress (117) while somebody else changes the same names.
pub async fn run(ctx: &Ctx, what: &'static str, names: Vec<String>, args: Document, drive: Drive) -> Result<Reply> {
    let intent = Intent::acquire(&ctx.router, &ctx.op, what, &names, args).await?;
    ctx.router.failpoints.crash_point("ddl.recorded");
    let mut job = Job::new(&ctx.router, intent);
    let record = job.ctx.op.record.clone();
    let mut task = tokio::spawn(async move { job.finish(drive).await });
    let outcome = tokio::select! {
        outcome = &mut task => outcome,
        () = ctx.op.time_up() => {
            tracing::info!(what, ?names, "the client's time is up; the change goes on in the background");
            return Err(OpContext::timeout_error());
        }
        () = ctx.op.cancel().cancelled() => {
            tracing::info!(what, ?names, "the client is gone; the change goes on in the background");
            return Err(ctx.op.cancelled_error());
        }
    };
    let seen = record.operation_time.load(std::sync::atomic::Ordering::Relaxed);
    ctx.op.record.operation_time.fetch_max(seen, std::sync::atomic::Ordering::Relaxed);
    outcome.map_err(|e| Error::internal(format!("a change of structure ended abnormally: {e}")))?
}

impl Job {
    pub fn new(router: &Arc<Router>, intent: Arc<Intent>) -> Self {
        let ctx = Ctx {
            router: router.clone(),
            conn: Arc::new(ConnState::default()),
            op: OpContext::background("ddl"),
            snapshot: router.catalog.snapshot(),
        };
        Job { ctx, intent, resumed: false }
    }

    /// One that was begun before.
    pub fn resumed(router: &Arc<Router>, intent: Arc<Intent>) -> Self {
        Job { resumed: true, ..Self::new(router, intent) }
    }

    /// Drives the change; one that was taken up before it began is forgotten: its client was told that it failed, or
    /// nothing, and may have done something else since.
    async fn work(&mut self, drive: Drive) -> Driven {
        if !self.resumed {
            return drive(self).await;
        }
        if self.intent.is_untouched() {
            let error = Error::new(Code::InterruptedAtShutdown, "the change was broken off before it began");
            return Err(undone(error.from_router()));
        }
        let outcome = drive(self).await;
        if outcome.is_ok() {
            // What was found to be done already may not have reached a majority.
            for shard in self.all_shards() {
                self.majority(&shard).await.map_err(pending)?;
            }
        }
        outcome
    }

    /// Drives the change and settles its intent.
    pub async fn finish(&mut self, drive: Drive) -> Result<Reply> {
        let outcome = self.work(drive).await;
        let names = &self.intent.names;
        self.ctx.router.failpoints.crash_point("ddl.driven");
        let settled = match &outcome {
            Ok(_) | Err(Failed::Undone(_)) => self.intent.finish().await,
            Err(Failed::Pending(error)) => {
                tracing::warn!(what = self.intent.op(), ?names, %error, "a change is left to be finished later");
                self.intent.leave(error).await
            }
        };
        if let Err(error) = settled {
            // The recovery task finds it.
            tracing::warn!(%error, ?names, "the intent of a change could not be updated");
        }
        outcome.map_err(Failed::into_error)
    }

    /// Takes the newest routing.
    pub fn refresh(&mut self) {
        self.ctx.snapshot = self.ctx.router.catalog.snapshot();
    }

    /// All shards of the cluster.
    pub fn all_shards(&self) -> Vec<ShardId> {
        self.ctx.snapshot.shards.keys().cloned().collect()
    }

    /// Makes sure that every shard has a primary that answers, before anything is changed.
    ///
    /// # Errors
    /// The first shard's that has none.
    pub async fn ping(&self, shards: &[ShardId]) -> Result<()> {
        let msg = OutMsg::from_doc(bson::rawdoc! { "ping": 1, "$db": "admin" });
        for (_, outcome) in self.ctx.broadcast(shards, Retryable::Read, &msg).await {
            outcome?.into_result()?;
        }
        Ok(())
    }

    /// Sends a command that can be repeated to a shard, once more if the reply was lost. What it did is known to a
    /// majority of the shard when this returns.
    pub async fn send(&self, shard: &ShardId, msg: &OutMsg) -> Result<ShardReply> {
        let first = self.send_once(shard, msg).await;
        self.ctx.router.failpoints.crash_point("ddl.oneShard");
        match first {
            Err(error) if is_transient(&error) && !error.is(Code::WriteConcernFailed) => {
                tracing::info!(shard = &**shard, %error, "sending a change of structure again");
                let second = self.send_once(shard, msg).await;
                if second.as_ref().is_err_and(|e| !is_transient(e)) {
                    // It may say that the first one did it; such an answer waits for no majority.
                    self.majority(shard).await?;
                }
                second
            }
            other => other,
        }
    }

    /// The same for a command that cannot be repeated.
    pub async fn send_once(&self, shard: &ShardId, msg: &OutMsg) -> Result<ShardReply> {
        let reply = self.ctx.send_primary(shard, Retryable::No, msg).await?;
        if bsonx::doc(reply.doc(), "writeConcernError").is_some() {
            self.majority(shard).await?;
            let body = Writer::copy_without(reply.doc().as_bytes(), |key| key == b"writeConcernError").finish();
            return Ok(ShardReply::new(reply.shard, reply.server, body.into()));
        }
        Ok(reply)
    }

    /// Waits until a majority of the shard has everything its primary has: a write that changes nothing, with majority
    /// write concern, waits for all before it.
    ///
    /// # Errors
    /// WriteConcernFailed (64), a transient one, where that takes too long.
    pub async fn majority(&self, shard: &ShardId) -> Result<()> {
        let command = rawdoc! {
            "delete": NOTHING,
            "deletes": [{ "q": { "_id": NOTHING }, "limit": 1 }],
            "writeConcern": { "w": "majority", "wtimeout": 60_000 },
            "$db": "config",
        };
        let reply = self.ctx.send_primary(shard, Retryable::No, &OutMsg::from_doc(command)).await?;
        reached_majority(shard, &reply)
    }

    /// The same to several shards at once.
    pub async fn send_all(&self, requests: &[(ShardId, OutMsg)]) -> Vec<ShardOutcome> {
        let sends = requests.iter().map(|(shard, msg)| async move { (shard.clone(), self.send(shard, msg).await) });
        futures_util::future::join_all(sends).await
    }
}

/// A collection that no shard has.
const NOTHING: &str = "mosaic.nothing";

/// An error where the reply says that the write is not known to a majority.
///
/// # Errors
/// WriteConcernFailed (64).
pub fn reached_majority(shard: &str, reply: &ShardReply) -> Result<()> {
    let Some(error) = bsonx::doc(reply.doc(), "writeConcernError") else { return Ok(()) };
    let why = bsonx::str(error, "errmsg").unwrap_or("no reason was given");
    let text = format!("shard {shard} made the change, but a majority of it does not have it yet: {why}");
    Err(Error::new(Code::WriteConcernFailed, text).from_shard(shard))
}

/// Whether the outcome at the shard is unknown and the same command may work later.
pub fn is_transient(error: &Error) -> bool {
    const CODES: &[Code] = &[
        Code::HostUnreachable,
        Code::HostNotFound,
        Code::NetworkTimeout,
        Code::ShutdownInProgress,
        Code::FailedToSatisfyReadPreference,
        Code::PrimarySteppedDown,
        Code::NetworkInterfaceExceededTimeLimit,
        Code::ExceededTimeLimit,
        Code::PooledConnectionAcquisitionExceededTimeLimit,
        Code::SocketException,
        Code::NotWritablePrimary,
        Code::InterruptedAtShutdown,
        Code::InterruptedDueToReplStateChange,
        Code::NotPrimaryNoSecondaryOk,
        Code::NotPrimaryOrSecondary,
        Code::LockTimeout,
        Code::LockBusy,
        Code::CallbackCanceled,
        Code::WriteConcernFailed,
    ];
    CODES.iter().any(|code| error.is(*code))
}
