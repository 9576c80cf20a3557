//! An open transaction on one shard.

use std::sync::Arc;
use std::time::Duration;

use bson::raw::RawBsonRef;
use bson::{Binary, RawDocument, RawDocumentBuf, Timestamp, Uuid, cstr, rawdoc};
use bytes::Bytes;
use smallvec::smallvec;

use super::record::Member;
use crate::bsonx::{self, Writer};
use crate::catalog::model::ShardId;
use crate::error::{Code, Error, LABEL_TRANSIENT_TXN, Result, Retry};
use crate::op::OpContext;
use crate::router::Router;
use crate::shard::{ReadPreference, Retryable, ShardReply};
use crate::wire::{OutMsg, OutSequence};

/// How long an abort that nobody waits for may take.
const ABORT_TIME: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No statement has been sent yet.
    New,
    Open,
    /// Committed, aborted, or in the hands of a coordinator.
    Done,
}

/// A transaction on one shard. One that is dropped while it is open is aborted in the background.
pub struct Participant {
    router: Arc<Router>,
    member: Member,
    state: State,
}

impl Participant {
    /// On a session of its own.
    pub fn new(router: &Arc<Router>, shard: ShardId) -> Self {
        let lsid = rawdoc! { "id": Binary::from_uuid(Uuid::new()) };
        Self::on(router, shard, lsid, 1)
    }

    /// On a child of the client's session that belongs to one retryable write: once committed, the shard recognises
    /// the statement numbers used in it when the client retries the write itself. (Servers from 6.0.)
    pub fn for_retryable_write(router: &Arc<Router>, shard: ShardId, lsid: &RawDocument, txn_number: i64) -> Self {
        let mut child = lsid.to_owned();
        child.append(cstr!("txnNumber"), txn_number);
        child.append(cstr!("txnUUID"), Binary::from_uuid(Uuid::new()));
        Self::on(router, shard, child, 0)
    }

    fn on(router: &Arc<Router>, shard: ShardId, lsid: RawDocumentBuf, txn_number: i64) -> Self {
        Participant { router: router.clone(), member: Member { shard, lsid, txn_number }, state: State::New }
    }

    pub fn shard(&self) -> &ShardId {
        &self.member.shard
    }

    /// Runs a statement in the transaction. `body` has `$db` but neither session nor write concern.
    ///
    /// # Errors
    /// Whatever kept the statement from succeeding as a whole; the transaction is over then.
    pub async fn run(
        &mut self,
        op: &OpContext,
        mut body: Writer,
        docs: Option<(&'static str, Bytes)>,
    ) -> Result<ShardReply> {
        if self.state == State::Done {
            return Err(Error::internal("a statement for a transaction that is over"));
        }
        self.member.sign(&mut body);
        if self.state == State::New {
            body.bool("startTransaction", true);
        }
        let mut msg = OutMsg::new(body.finish());
        if let Some((name, docs)) = docs {
            msg.sequences.push(OutSequence { id: name.into(), docs: smallvec![docs] });
        }
        self.state = State::Open;
        let sent = self.router.send(op, &self.member.shard, &ReadPreference::PRIMARY, Retryable::No, &msg).await;
        let reply = sent?.into_result().inspect_err(|error| {
            if error.labels().iter().any(|l| l == LABEL_TRANSIENT_TXN) {
                self.state = State::Done;
            }
        })?;
        if bsonx::array(reply.doc(), "writeErrors").is_some_and(|errors| !errors.is_empty()) {
            // The server has aborted it by itself.
            self.state = State::Done;
        }
        Ok(reply)
    }

    /// Commits this transaction alone. Gives the write concern error, if there was one.
    pub async fn commit(
        mut self,
        op: &OpContext,
        write_concern: Option<&RawDocument>,
    ) -> Result<Option<RawDocumentBuf>> {
        let mut body = self.member.command("commitTransaction");
        if let Some(concern) = write_concern {
            body.doc("writeConcern", concern);
        }
        self.state = State::Done;
        let msg = OutMsg::new(body.finish());
        let reply = self.router.send(op, &self.member.shard, &ReadPreference::PRIMARY, Retryable::Write, &msg).await?;
        let reply = reply.into_result()?;
        Ok(bsonx::doc(reply.doc(), "writeConcernError").map(RawDocument::to_owned))
    }

    /// Aborts it. Failures do not matter: the shard gives it up by itself after a minute.
    pub async fn abort(mut self) {
        if std::mem::replace(&mut self.state, State::Done) == State::Open {
            self.member.abort_quietly(&self.router).await;
        }
    }

    /// Hands the transaction over to a coordinator.
    pub(super) fn into_member(mut self) -> Member {
        self.state = State::Done;
        self.member.clone()
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        if self.state != State::Open {
            return;
        }
        let (router, member) = (self.router.clone(), self.member.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { member.abort_quietly(&router).await });
        }
    }
}

impl Member {
    /// Appends the session's fields.
    fn sign(&self, body: &mut Writer) {
        body.doc("lsid", &self.lsid).int64("txnNumber", self.txn_number).bool("autocommit", false);
    }

    fn command(&self, name: &str) -> Writer {
        let mut body = Writer::new();
        body.int32(name, 1).str("$db", "admin");
        self.sign(&mut body);
        body
    }

    async fn send(&self, router: &Router, op: &OpContext, mut body: Writer) -> Result<ShardReply> {
        body.open_doc("writeConcern").str("w", "majority").close();
        let msg = OutMsg::new(body.finish());
        let reply = router.send(op, &self.shard, &ReadPreference::PRIMARY, Retryable::Write, &msg).await?;
        let reply = reply.into_result()?;
        match bsonx::doc(reply.doc(), "writeConcernError") {
            // What only a minority knows may be forgotten.
            Some(error) => Err(Error::from_reply(&self.shard, error)),
            None => Ok(reply),
        }
    }

    async fn abort_quietly(&self, router: &Router) {
        let op = OpContext::background("abortTransaction").with_limit(ABORT_TIME);
        let msg = OutMsg::new(self.command("abortTransaction").finish());
        let sent = router.send(&op, &self.shard, &ReadPreference::PRIMARY, Retryable::Write, &msg).await;
        if let Err(error) = sent {
            tracing::debug!(%error, "a transaction could not be aborted; the shard will do it by itself");
        }
    }

    /// Prepares; the shard keeps the transaction over restarts and elections from then on.
    pub(super) async fn prepare(&self, router: &Router, op: &OpContext) -> Result<Timestamp> {
        let reply = self.send(router, op, self.command("prepareTransaction")).await.map_err(explain_prepare)?;
        match bsonx::get(reply.doc(), "prepareTimestamp") {
            Some(RawBsonRef::Timestamp(at)) => Ok(at),
            _ => Err(Error::internal("prepareTransaction gave no prepareTimestamp")),
        }
    }

    /// Commits what is prepared, or finds that it has been committed.
    pub(super) async fn commit_prepared(&self, router: &Router, op: &OpContext, at: Timestamp) -> Result<()> {
        let mut body = self.command("commitTransaction");
        body.timestamp("commitTimestamp", at);
        self.send(router, op, body).await.map(drop).or_else(gone_is_done)
    }

    /// Aborts what may be prepared, or finds that it is gone.
    pub(super) async fn abort_prepared(&self, router: &Router, op: &OpContext) -> Result<()> {
        self.send(router, op, self.command("abortTransaction")).await.map(drop).or_else(gone_is_done)
    }
}

/// A prepared transaction never goes away by itself; one that is not there any more has been finished. (251: the shard
/// does not know it or it is over; 225: its session went on to a newer one, which it can do only afterwards.)
fn gone_is_done(error: Error) -> Result<()> {
    let gone = [Code::NoSuchTransaction, Code::TransactionTooOld, Code::TransactionCommitted];
    if gone.iter().any(|code| error.is(*code)) { Ok(()) } else { Err(error) }
}

fn explain_prepare(error: Error) -> Error {
    let refused = [Code::CommandNotFound, Code::CommandNotSupported, Code::IllegalOperation];
    // 193 NoShardingEnabled is what a plain replica set says.
    if error.code() == 193 || refused.iter().any(|code| error.is(*code)) {
        let shard = match error.source_of() {
            crate::error::Source::Shard(shard) => shard.clone(),
            _ => String::new(),
        };
        return Error::new(
            Code::CommandNotSupported,
            format!(
                "This write moves a document to another shard, which needs a two-phase commit, and shard {shard} refuses \
                 it; start the shards' mongods with --setParameter enableTestCommands=1, or delete and insert instead"
            ),
        )
        .because(error.to_string());
    }
    if error.labels().iter().any(|l| l == LABEL_TRANSIENT_TXN) { error.retry(Retry::Safe) } else { error }
}
