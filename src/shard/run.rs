//! Sending a command to a shard.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::bsonx;
use crate::error::{Code, Error, Result, Retry};
use crate::op::OpContext;
use crate::wire::OutMsg;

use super::conn::{Connection, Failure};
use super::connect::{lost, unreachable_error};
use super::outcome::{self, Facts, Problem, StateChange};
use super::pool::NoConnection;
use super::progress::Progress;
use super::topology::{Member, Topology};
use super::{ReadPreference, Retryable, ServerId, ShardId, ShardReply};

/// A retryable command is sent again this often at most, when the primary changed or the connection broke.
const MAX_RESENDS: u32 = 2;
/// A command no byte of which was sent is tried this often at least, and for this long: a busy server may refuse several
/// connections in a row.
const MIN_UNSENT: u32 = 5;
const UNSENT_TIME: Duration = Duration::from_secs(5);
/// A shard that knows the operation's time limit gets this much longer to say itself that it is over.
const GRACE: Duration = Duration::from_millis(100);

/// One shard: a replica set, its watched members and their connection pools.
pub struct Shard {
    id: ShardId,
    topology: Arc<Topology>,
    progress: Progress,
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.topology.close();
    }
}

/// Why an attempt gave no reply.
enum Failed {
    /// No byte was sent: another attempt does no harm.
    Unsent(Error),
    /// The command may have been carried out.
    Lost(Error),
    /// Another attempt makes no sense.
    Final(Error),
}

/// What a shard answered, in which generation of the pool.
struct Answer {
    body: Bytes,
    generation: u64,
}

impl Shard {
    pub(super) fn new(id: ShardId, topology: Arc<Topology>) -> Arc<Self> {
        Arc::new(Shard { id, topology, progress: Progress::default() })
    }

    pub fn id(&self) -> &ShardId {
        &self.id
    }

    /// Whether nothing that was abandoned still runs on its members.
    pub fn is_settled(&self) -> bool {
        self.topology.state().members.values().all(|member| member.pool.stopper.is_idle())
    }

    /// How far its operations have come, as its replies say.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    pub(super) fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// The connection string as `config.shards` holds it: `setName/host1:port1,host2:port2`, after the newest
    /// configuration of the set that was seen.
    pub fn host(&self) -> String {
        self.topology.state().set.host_string()
    }

    /// The addresses of its members that are known now.
    pub fn members(&self) -> Vec<ServerId> {
        self.topology.state().members.keys().cloned().collect()
    }

    /// The primary's address, if one is known now.
    pub fn primary(&self) -> Option<ServerId> {
        self.topology.state().set.primary().map(|s| s.address.clone())
    }

    /// Sends a command to a member that `pref` allows and reads its reply.
    ///
    /// `Ok` is any reply that arrived, `ok: 0` ones too (state-change errors already as clients may see them);
    /// `Err` means no member could be selected or reached, the reply was lost, the deadline passed or the operation
    /// was cancelled. Dropping the future stops the shard's work. A body for a secondary has to carry the
    /// `$readPreference` too: without it the secondary refuses reads (13435).
    pub async fn run(
        &self,
        op: &OpContext,
        pref: &ReadPreference,
        retry: Retryable,
        msg: &OutMsg,
    ) -> Result<ShardReply> {
        let mut tries = Tries { retry, ..Tries::default() };
        loop {
            let member = match self.topology.select(op, pref).await {
                Ok(member) => member,
                Err(error) => return Err(tries.unselected(&self.id, error)),
            };
            match self.attempt(op, &member, msg).await {
                Ok(answer) => {
                    let facts = Facts::read(&answer.body);
                    let Some(problem) = outcome::inspect(bsonx::view(&answer.body), &facts) else {
                        let server = member.address.clone();
                        return Ok(ShardReply::with_facts(self.id.clone(), server, answer.body, facts));
                    };
                    self.note(&member, &answer, &problem);
                    if !outcome::retryable(problem.code, retry) || !tries.resend() {
                        return Ok(self.reply(&member, outcome::for_client(answer.body, &problem, retry)));
                    }
                    tracing::debug!(shard = &*self.id, server = &*member.address, code = problem.code, "sending again");
                }
                Err(failed) => tries.after(&self.id, failed)?,
            }
        }
    }

    /// Sends a command to the member `server` (getMore, killCursors): never a second time once a byte was sent.
    ///
    /// # Errors
    /// As [`Shard::run`]; HostUnreachable where `server` is no member any more.
    pub async fn run_on(&self, op: &OpContext, server: &ServerId, msg: &OutMsg) -> Result<ShardReply> {
        let mut tries = Tries { on_one_server: true, ..Tries::default() };
        loop {
            let Some(member) = self.topology.member(server) else {
                let text = format!("{server} is no longer a member of its replica set; run the query again");
                return Err(outcome::about_shard(
                    unreachable_error(Code::HostUnreachable, text),
                    &self.id,
                    Retryable::No,
                ));
            };
            match self.attempt(op, &member, msg).await {
                Ok(answer) => {
                    let facts = Facts::read(&answer.body);
                    let Some(problem) = outcome::inspect(bsonx::view(&answer.body), &facts) else {
                        let server = member.address.clone();
                        return Ok(ShardReply::with_facts(self.id.clone(), server, answer.body, facts));
                    };
                    self.note(&member, &answer, &problem);
                    return Ok(self.reply(&member, outcome::for_client(answer.body, &problem, Retryable::No)));
                }
                Err(failed) => tries.after(&self.id, failed)?,
            }
        }
    }

    /// Sends an unacknowledged write to the primary; `msg` has to carry the `moreToCome` flag. There is no reply.
    pub async fn send_only(&self, op: &OpContext, msg: &OutMsg) -> Result<()> {
        if !msg.unacknowledged() {
            return Err(Error::internal("send_only was given a message that asks for a reply"));
        }
        let mut tries = Tries::default();
        loop {
            let member = match self.topology.select(op, &ReadPreference::PRIMARY).await {
                Ok(member) => member,
                Err(error) => return Err(tries.unselected(&self.id, error)),
            };
            match self.attempt(op, &member, msg).await {
                Ok(_) => return Ok(()),
                Err(failed) => tries.after(&self.id, failed)?,
            }
        }
    }

    fn reply(&self, member: &Member, body: Bytes) -> ShardReply {
        ShardReply::new(self.id.clone(), member.address.clone(), body)
    }

    /// One connection, one request, one reply (none for an unacknowledged message).
    async fn attempt(&self, op: &OpContext, member: &Arc<Member>, msg: &OutMsg) -> Result<Answer, Failed> {
        op.check().map_err(Failed::Final)?;
        let mut pooled = match member.pool.check_out(op).await {
            Ok(pooled) => pooled,
            Err(NoConnection::Refused(error)) => return Err(Failed::Final(error)),
            Err(NoConnection::Cleared(error)) => return Err(Failed::Unsent(error)),
            Err(NoConnection::Unreachable { error, generation }) => {
                self.topology.mark_unreachable(member, Some(generation), &error, false);
                return Err(Failed::Unsent(error));
            }
        };
        let generation = pooled.generation();
        let Some(conn) = pooled.get() else { return Err(Failed::Final(Error::internal("an empty pooled connection"))) };
        member.sent.fetch_add(1, Ordering::Relaxed);
        // Pinned here, so that what waits for it holds a pointer and not a second place for it.
        let exchanged = within(op, msg, pin!(exchange(conn, msg))).await.map_err(Failed::Final)?;
        let failure = match exchanged {
            Ok(body) => return Ok(Answer { body, generation }),
            Err(failure) => failure,
        };
        let untouched = conn.is_untouched();
        let error = lost(&member.address, &failure);
        drop(pooled);
        self.topology.mark_unreachable(member, Some(generation), &error, false);
        Err(if untouched { Failed::Unsent(error.retry(Retry::Safe)) } else { Failed::Lost(error) })
    }

    /// Tells the topology what an error says about the member.
    fn note(&self, member: &Member, answer: &Answer, problem: &Problem) {
        let Some(change) = outcome::state_change(problem.code) else { return };
        let error = Error::from_reply(&self.id, bsonx::view(&answer.body));
        let stopping = change == StateChange::Stopping;
        self.topology.mark_changed(member, answer.generation, problem.topology_version, &error, stopping);
    }
}

async fn exchange(conn: &mut Connection, msg: &OutMsg) -> Result<Bytes, Failure> {
    conn.send(msg).await?;
    if msg.unacknowledged() { Ok(Bytes::new()) } else { conn.receive().await }
}

/// `work`, ended by the operation's cancellation or deadline.
async fn within<T>(op: &OpContext, msg: &OutMsg, work: impl Future<Output = T> + Unpin) -> Result<T> {
    if let Some(deadline) = op.deadline {
        return Box::pin(until(deadline, op, msg, work)).await;
    }
    tokio::select! {
        biased;
        done = work => Ok(done),
        () = op.cancel().cancelled() => Err(op.cancelled_error()),
    }
}

async fn until<T>(deadline: Instant, op: &OpContext, msg: &OutMsg, work: impl Future<Output = T>) -> Result<T> {
    // A shard that was told the limit answers better than the router can.
    let told = bsonx::get(bsonx::view(&msg.body), "maxTimeMS").is_some();
    let end = if told { deadline + GRACE } else { deadline };
    tokio::select! {
        biased;
        done = work => Ok(done),
        () = op.cancel().cancelled() => Err(op.cancelled_error()),
        () = tokio::time::sleep_until(end.into()) => Err(OpContext::timeout_error()),
    }
}

/// How often a command was tried, and what became of it.
struct Tries {
    retry: Retryable,
    resends: u32,
    unsent: u32,
    began: Instant,
    /// A lost attempt may have been carried out: what the client must know at the end.
    lost: bool,
    on_one_server: bool,
}

impl Default for Tries {
    fn default() -> Self {
        Tries { retry: Retryable::No, resends: 0, unsent: 0, began: Instant::now(), lost: false, on_one_server: false }
    }
}

impl Tries {
    /// Whether the command may be sent once more, and counts it.
    fn resend(&mut self) -> bool {
        self.resends += 1;
        self.resends <= MAX_RESENDS
    }

    /// Decides after a failed attempt: `Ok` to try again.
    fn after(&mut self, shard: &str, failed: Failed) -> Result<()> {
        let error = match failed {
            Failed::Unsent(error) => {
                self.unsent += 1;
                // Somebody who asks one server gets its failure at once; a stale connection is worth a second try.
                let goes_on = match self.on_one_server {
                    true => self.unsent < 2,
                    false => self.unsent < MIN_UNSENT || self.began.elapsed() < UNSENT_TIME,
                };
                if goes_on {
                    return Ok(());
                }
                error
            }
            Failed::Lost(error) => {
                self.lost = true;
                if self.retry != Retryable::No && self.resend() {
                    return Ok(());
                }
                error
            }
            Failed::Final(error) => return Err(self.finish(error)),
        };
        let error = outcome::about_shard(error, shard, self.retry);
        Err(self.finish(error))
    }

    /// No member was found: a retryable write that was lost before may have been carried out, and may be retried.
    fn unselected(&self, shard: &str, error: Error) -> Error {
        let message = format!("{} :: at shard {shard}", error.message());
        let error = error.with_message(message);
        let error = if self.lost && self.retry == Retryable::Write && error.is(Code::FailedToSatisfyReadPreference) {
            error.label(crate::error::LABEL_RETRYABLE_WRITE)
        } else {
            error
        };
        self.finish(error)
    }

    fn finish(&self, error: Error) -> Error {
        if self.lost { error.retry(Retry::Unknown) } else { error }
    }
}
