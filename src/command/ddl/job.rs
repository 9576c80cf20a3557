//! Running a change of structure: in the background of its client, recorded, finished or undone whatever happens.

use std::collections::HashSet;
use std::sync::Arc;

use bson::Document;
use bson::oid::ObjectId;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::gate::Gate;
use super::intent::Intent;
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
    /// The ownerships of intents that this process works under now, or is about to write.
    pub(super) active: Mutex<HashSet<ObjectId>>,
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
        Job { ctx, intent }
    }

    /// Drives the change and settles its intent.
    pub async fn finish(&mut self, drive: Drive) -> Result<Reply> {
        let outcome = drive(self).await;
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

    /// Sends an idempotent command to a shard, once more if the reply was lost.
    pub async fn send(&self, shard: &ShardId, msg: &OutMsg) -> Result<ShardReply> {
        let first = self.ctx.send_primary(shard, Retryable::No, msg).await;
        self.ctx.router.failpoints.crash_point("ddl.oneShard");
        match first {
            Err(error) if is_transient(&error) => {
                tracing::info!(shard = &**shard, %error, "sending a change of structure again");
                self.ctx.send_primary(shard, Retryable::No, msg).await
            }
            other => other,
        }
    }

    /// The same to several shards at once.
    pub async fn send_all(&self, requests: &[(ShardId, OutMsg)]) -> Vec<ShardOutcome> {
        let sends = requests.iter().map(|(shard, msg)| async move { (shard.clone(), self.send(shard, msg).await) });
        futures_util::future::join_all(sends).await
    }
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
    ];
    CODES.iter().any(|code| error.is(*code))
}
