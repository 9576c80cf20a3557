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
use crate::session::Lease;
use crate::shard::{ReadPreference, Retryable, ShardReply, is_passing};
use crate::wire::{OutMsg, OutSequence};

/// How long an abort that nobody waits for may take.
const ABORT_TIME: Duration = Duration::from_secs(10);

/// A shard refuses (347) statements of a transaction whose API arguments differ, so the transaction sets them.
const API: [&str; 3] = ["apiVersion", "apiStrict", "apiDeprecationErrors"];

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
    /// The session, if it is one of the router's own; given back when the transaction is over.
    lease: Option<Lease>,
    /// The API arguments as fields, for every command of the transaction.
    api: Vec<u8>,
}

impl Participant {
    /// On a session of the router's own.
    pub fn new(router: &Arc<Router>, shard: ShardId) -> Self {
        let lease = router.spare_sessions.lease();
        let member = Member { shard, lsid: lease.lsid().to_owned(), txn_number: lease.txn_number() };
        let mut txn = Self::on(router, member);
        txn.lease = Some(lease);
        txn
    }

    /// On a child of the client's session that belongs to one retryable write: once committed, the shard recognises
    /// the statement numbers used in it when the client retries the write itself. (Servers from 6.0.)
    pub fn for_retryable_write(router: &Arc<Router>, shard: ShardId, lsid: &RawDocument, txn_number: i64) -> Self {
        let mut child = lsid.to_owned();
        child.append(cstr!("txnNumber"), txn_number);
        child.append(cstr!("txnUUID"), Binary::from_uuid(Uuid::new()));
        Self::on(router, Member { shard, lsid: child, txn_number: 0 })
    }

    fn on(router: &Arc<Router>, member: Member) -> Self {
        Participant { router: router.clone(), member, state: State::New, lease: None, api: Vec::new() }
    }

    /// With the API arguments of the client's `command`. Not for a transaction over several shards: what prepares it is
    /// in no API, and whoever recovers it knows no client.
    pub fn with_api_of(mut self, command: &RawDocument) -> Self {
        let bytes = command.as_bytes();
        let api = bsonx::fields(bytes).filter(|f| API.iter().any(|name| name.as_bytes() == f.key));
        self.api = api.flat_map(|f| bytes[f.whole()].iter().copied()).collect();
        self
    }

    pub fn shard(&self) -> &ShardId {
        &self.member.shard
    }

    /// Runs a statement in the transaction. `body` has `$db` but neither session nor write concern; API arguments in it
    /// are replaced by those of the transaction.
    ///
    /// # Errors
    /// Whatever kept the statement from succeeding as a whole; the transaction is over then.
    pub async fn run(
        &mut self,
        op: &OpContext,
        body: Writer,
        docs: Option<(&'static str, Bytes)>,
    ) -> Result<ShardReply> {
        if self.state == State::Done {
            return Err(Error::internal("a statement for a transaction that is over"));
        }
        let mut body = Writer::copy_without(&body.finish(), |key| API.iter().any(|name| name.as_bytes() == key));
        body.raw_fields(&self.api);
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
            if error.has_label(LABEL_TRANSIENT_TXN) {
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
    ///
    /// # Errors
    /// The shard's. After one marked [`Retry::Safe`] it is certain that nothing was committed; after one marked
    /// [`Retry::Unknown`] it is not known.
    pub async fn commit(
        mut self,
        op: &OpContext,
        write_concern: Option<&RawDocument>,
    ) -> Result<Option<RawDocumentBuf>> {
        self.state = State::Done;
        let first = self.send_commit(op, Retryable::No, write_concern).await;
        let again = match &first {
            Err(error) => is_passing(error),
            Ok(reply) if !reply.ok() => is_passing(&reply.error()),
            Ok(reply) => bsonx::doc(reply.doc(), "writeConcernError")
                .is_some_and(|error| is_passing(&Error::from_reply(&self.member.shard, error))),
        };
        let reply = if again {
            // Asked again, only what a majority knows is certain: an old primary may know less than the new one.
            let majority = rawdoc! { "w": "majority", "wtimeout": 10_000 };
            self.send_commit(op, Retryable::Write, Some(&majority)).await
        } else {
            first
        };
        let reply = reply.map_err(|error| error.retry(Retry::Unknown))?;
        let concern = bsonx::doc(reply.doc(), "writeConcernError").map(RawDocument::to_owned);
        if reply.ok() {
            return Ok(concern);
        }
        let error = reply.error();
        // What only a minority knows of may be otherwise elsewhere.
        let certain = concern.is_none() && error.has_label(LABEL_TRANSIENT_TXN);
        Err(error.retry(if certain { Retry::Safe } else { Retry::Unknown }))
    }

    async fn send_commit(
        &self,
        op: &OpContext,
        retry: Retryable,
        write_concern: Option<&RawDocument>,
    ) -> Result<ShardReply> {
        let mut body = self.member.command("commitTransaction");
        body.raw_fields(&self.api);
        if let Some(concern) = write_concern {
            body.doc("writeConcern", concern);
        }
        let msg = OutMsg::new(body.finish());
        self.router.send(op, &self.member.shard, &ReadPreference::PRIMARY, retry, &msg).await
    }

    /// Aborts it. Failures do not matter: the shard gives it up by itself after a minute.
    pub async fn abort(mut self) {
        if std::mem::replace(&mut self.state, State::Done) == State::Open {
            self.member.abort_quietly(&self.router, &self.api).await;
        }
    }

    /// Hands the transaction over to a coordinator.
    pub(super) fn into_member(mut self) -> Member {
        self.state = State::Done;
        if let Some(lease) = self.lease.take() {
            // Nobody tells when it is free again.
            lease.retire();
        }
        self.member.clone()
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        if self.state != State::Open {
            return;
        }
        let (router, member, api) = (self.router.clone(), self.member.clone(), std::mem::take(&mut self.api));
        // The session is free again when the abort is through.
        let lease = self.lease.take();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                member.abort_quietly(&router, &api).await;
                drop(lease);
            });
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
        settled(reply)
    }

    async fn abort_quietly(&self, router: &Router, api: &[u8]) {
        let op = OpContext::background("abortTransaction").with_limit(ABORT_TIME);
        let mut body = self.command("abortTransaction");
        body.raw_fields(api);
        let msg = OutMsg::new(body.finish());
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

    /// Commits what is prepared, or finds that it has been committed. (A shard that has committed it says so by `ok: 1`.)
    pub(super) async fn commit_prepared(&self, router: &Router, op: &OpContext, at: Timestamp) -> Result<()> {
        let mut body = self.command("commitTransaction");
        body.timestamp("commitTimestamp", at);
        let Err(error) = self.send(router, op, body).await else { return Ok(()) };
        // 225: the session went on to a newer transaction, which it can do only after this one was committed.
        if error.is(Code::TransactionTooOld) {
            return Ok(());
        }
        if !error.is(Code::NoSuchTransaction) {
            return Err(error);
        }
        match self.remembered(router, op).await? {
            Remembered::Committed => Ok(()),
            Remembered::Prepared => Err(error),
            // A prepared transaction never goes away by itself, so it was committed and then forgotten, as servers do
            // with sessions that were not used for half an hour. Anything else must not go unnoticed.
            Remembered::No => {
                tracing::error!(
                    shard = &*self.shard, lsid = ?self.lsid, txn_number = self.txn_number, %error,
                    "a committed transaction is unknown on a shard that had prepared it: if it was not committed more \
                     than half an hour ago, the shard has lost this part of it"
                );
                Ok(())
            }
        }
    }

    /// Aborts what may be prepared, or finds that it is gone.
    pub(super) async fn abort_prepared(&self, router: &Router, op: &OpContext) -> Result<()> {
        let Err(error) = self.send(router, op, self.command("abortTransaction")).await else { return Ok(()) };
        if error.is(Code::TransactionTooOld) {
            return Ok(());
        }
        if !error.is(Code::NoSuchTransaction) && !error.is(Code::TransactionCommitted) {
            return Err(error);
        }
        match self.remembered(router, op).await? {
            Remembered::No => Ok(()),
            Remembered::Prepared => Err(error),
            Remembered::Committed => {
                tracing::error!(shard = &*self.shard, lsid = ?self.lsid, "an aborted transaction is committed on a shard");
                Ok(())
            }
        }
    }

    /// What the majority of the shard's members remembers of the transaction.
    async fn remembered(&self, router: &Router, op: &OpContext) -> Result<Remembered> {
        let lsid = self.lsid.as_bytes();
        let mut filter = Writer::new();
        for field in bsonx::fields(lsid) {
            if let Ok(name) = std::str::from_utf8(field.key) {
                filter.raw(&format!("_id.{name}"), field.kind, &lsid[field.range()]);
            }
        }
        filter.int64("txnNum", self.txn_number);
        let mut body = Writer::new();
        body.str("find", "transactions").str("$db", "config");
        body.doc("filter", bsonx::view(&filter.finish())).int32("limit", 1).bool("singleBatch", true);
        body.open_doc("readConcern").str("level", "majority").close();
        let msg = OutMsg::new(body.finish());
        let reply =
            router.send(op, &self.shard, &ReadPreference::PRIMARY, Retryable::Read, &msg).await?.into_result()?;
        Ok(match reply.batch().next().and_then(|entry| bsonx::str(entry, "state")) {
            Some("committed") => Remembered::Committed,
            Some("prepared") => Remembered::Prepared,
            _ => Remembered::No,
        })
    }
}

/// What a shard's own table of transactions holds of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remembered {
    Committed,
    Prepared,
    /// Nothing, or that it was aborted.
    No,
}

/// A reply that a majority stands behind. The `writeConcernError` comes first, for it stands beside `ok: 0` too: what only
/// a minority knows may be forgotten, and what an old primary does not know the new one may.
fn settled(reply: ShardReply) -> Result<ShardReply> {
    match bsonx::doc(reply.doc(), "writeConcernError") {
        Some(error) => Err(Error::from_reply(&reply.shard, error)),
        None => reply.into_result(),
    }
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
    if error.has_label(LABEL_TRANSIENT_TXN) { error.retry(Retry::Safe) } else { error }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn what_a_minority_says_is_not_believed() {
        let code = |body: RawDocumentBuf| {
            let reply = ShardReply::new("s".into(), "h:1".into(), body.into_bytes().into());
            settled(reply).map_or_else(|error| error.code(), |_| 0)
        };
        let concern =
            rawdoc! { "code": 100, "codeName": "UnsatisfiableWriteConcern", "errmsg": "Not enough data-bearing nodes" };
        // As a mongod answers.
        let both =
            rawdoc! { "writeConcernError": concern.clone(), "ok": 0.0, "code": 251, "codeName": "NoSuchTransaction" };
        assert_eq!(code(both), 100);
        assert_eq!(code(rawdoc! { "writeConcernError": concern, "ok": 1.0 }), 100);
        assert_eq!(code(rawdoc! { "ok": 0.0, "code": 251, "codeName": "NoSuchTransaction" }), 251);
        assert_eq!(code(rawdoc! { "ok": 1.0 }), 0);
    }
}
