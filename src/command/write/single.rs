//! One write that cannot simply be sent on: its filter does not lead to one shard, or the document may have to move.
//!
//! The document is found first (its shard and `_id`), then written there under the client's filter *and* its `_id`, so
//! that the write applies only if the document still matches. If it does not, everything begins anew, a few times.
//! An upsert that finds nothing inserts the document that a server computes for it on the shard that owns it.

use std::time::{Duration, Instant};

use bson::{RawBson, RawDocument, RawDocumentBuf, rawdoc};

use super::effect::{self, Effect, Known};
use super::envelope::Envelope;
use super::find_and_modify::FindAndModify;
use super::retried::{has_retried, was_other_kind};
use super::statement::{Change, Delete, Update};
use super::strategy::{Facts, Plan, Strategy};
use super::update::{owner_of_replacement, pins_id};
use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::catalog::snapshot::CollectionRouting;
use crate::command::Ctx;
use crate::error::{Code, Error, LABEL_RETRYABLE_WRITE, LABEL_TRANSIENT_TXN, Result, Retry};
use crate::shard::{ReadPreference, Retryable, ShardReply, is_passing};
use crate::target::{self, Route};

/// For how long a write is begun anew because its document changed meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);

/// The write itself.
#[derive(Clone, Copy)]
pub enum Verb<'a> {
    Update(Update<'a>),
    Delete(Delete<'a>),
    FindAndModify(FindAndModify<'a>),
}

/// A write that was done, or found nothing to do.
#[derive(Clone, Debug)]
pub struct Written {
    /// The shard that answered.
    pub shard: ShardId,
    /// A reply as a shard gives it to this write alone.
    pub reply: RawDocumentBuf,
}

impl From<ShardReply> for Written {
    fn from(reply: ShardReply) -> Self {
        Written { shard: reply.shard.clone(), reply: reply.doc().to_owned() }
    }
}

/// What became of one attempt.
pub enum Attempt {
    Done(Written),
    /// No document matches.
    NoMatch,
    /// A document matched but was changed before it could be written.
    Raced,
    /// A shard could not do it now. Nothing has changed, and it may work a little later; if it never does, this is why.
    Again(Error),
}

impl Attempt {
    /// What an error means that came up before anything was committed.
    ///
    /// # Errors
    /// The error, if beginning anew does not help.
    pub fn after(error: Error) -> Result<Self> {
        let conflicts = [Code::WriteConflict, Code::NoSuchTransaction, Code::LockTimeout];
        let conflict = conflicts.iter().any(|code| error.is(*code)) && error.has_label(LABEL_TRANSIENT_TXN);
        // Begun anew, a write that was executed before in another form will be found to have been.
        if conflict || was_other_kind(&error) {
            Ok(Attempt::Raced)
        } else if error.retry_of() == Retry::Safe || error.has_label(LABEL_TRANSIENT_TXN) || is_passing(&error) {
            Ok(Attempt::Again(error))
        } else {
            Err(error)
        }
    }
}

/// Beginning anew for a while, with a pause that grows.
pub struct Patience<'a> {
    ctx: &'a Ctx,
    begun: Instant,
    attempts: u32,
    /// Why the last attempt failed, if not by a race.
    error: Option<Error>,
}

impl<'a> Patience<'a> {
    pub fn new(ctx: &'a Ctx) -> Self {
        Patience { ctx, begun: Instant::now(), attempts: 0, error: None }
    }

    /// Waits a little longer before every attempt but the first, not quite the same for everybody. `false`: no more.
    ///
    /// # Errors
    /// The operation was stopped, or its time is over.
    pub async fn next(&mut self) -> Result<bool> {
        let op = &self.ctx.op;
        op.check()?;
        if self.attempts > 0 {
            if self.begun.elapsed() >= PATIENCE {
                return Ok(false);
            }
            let most = 1u64 << self.attempts.min(7);
            let wait = Duration::from_millis(rand::random_range(0..=most));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = op.cancel().cancelled() => {}
            }
            op.check()?;
            self.error = None;
        }
        self.attempts += 1;
        Ok(true)
    }

    pub fn note(&mut self, error: Error) {
        tracing::debug!(%error, attempt = self.attempts, "a write is begun anew");
        self.error = Some(error);
    }

    /// The error for the client when patience is over.
    pub fn over(self) -> Error {
        let attempts = self.attempts;
        self.error.unwrap_or_else(|| {
            let text = format!(
                "The document kept changing while the router was about to write it ({attempts} attempts); try again"
            );
            Error::new(Code::WriteConflict, text).from_router()
        })
    }
}

/// One write and everything that it is planned by.
pub struct Single<'a> {
    pub ctx: &'a Ctx,
    pub coll: &'a CollectionRouting,
    pub envelope: &'a Envelope,
    /// Position in the client's batch.
    pub index: u32,
    pub verb: Verb<'a>,
}

impl<'a> Single<'a> {
    pub fn new(ctx: &'a Ctx, coll: &'a CollectionRouting, envelope: &'a Envelope, index: u32, verb: Verb<'a>) -> Self {
        Single { ctx, coll, envelope, index, verb }
    }

    pub fn filter(&self) -> &'a RawDocument {
        match self.verb {
            Verb::Update(u) => u.filter,
            Verb::Delete(d) => d.filter,
            Verb::FindAndModify(f) => f.filter,
        }
    }

    pub fn collation(&self) -> Option<&'a RawDocument> {
        match self.verb {
            Verb::Update(u) => u.collation,
            Verb::Delete(d) => d.collation,
            Verb::FindAndModify(f) => f.collation,
        }
    }

    pub fn sort(&self) -> Option<&'a RawDocument> {
        match self.verb {
            Verb::FindAndModify(f) => f.sort,
            _ => None,
        }
    }

    pub fn change(&self) -> Option<Change<'a>> {
        match self.verb {
            Verb::Update(u) => Some(u.change),
            Verb::Delete(_) => None,
            Verb::FindAndModify(f) => f.change,
        }
    }

    pub fn upsert(&self) -> bool {
        match self.verb {
            Verb::Update(u) => u.upsert,
            Verb::Delete(_) => false,
            Verb::FindAndModify(f) => f.upsert,
        }
    }

    fn multi(&self) -> bool {
        matches!(self.verb, Verb::Update(u) if u.multi)
    }

    /// The number a retry of this write is recognised by; `None` if the client will not retry it.
    pub fn stmt_id(&self) -> Option<i32> {
        self.envelope.txn_number().map(|_| self.envelope.stmt_id(self.index))
    }

    pub fn retry(&self) -> Retryable {
        if self.stmt_id().is_some() { Retryable::Write } else { Retryable::No }
    }

    /// Plans from the filter and the change alone.
    pub fn plan(&self) -> Result<Plan> {
        let route = target::query(self.filter(), self.collation(), self.coll)?;
        let pinned = target::full_key_equality(self.filter(), self.collation(), self.coll);
        let known = Known { key: pinned.as_deref(), id: target::id_equality(self.filter()) };
        let any = route.shards.first().cloned().ok_or_else(|| Error::internal("a route without shards"))?;
        let Some(change) = self.change() else {
            return Ok(Plan { may_move: false, replacement_owner: None, insert_guess: any, route });
        };
        let owner = |key: &[u8]| self.coll.table.chunk_for(key).shard().clone();
        let may_move = match effect::on_existing(change, &self.coll.key, known)? {
            Effect::None => false,
            Effect::Unknown => true,
            Effect::Known(_) if self.multi() => true,
            Effect::Known(key) => route.single() != Some(&owner(&key)),
        };
        let insert_guess = match effect::on_insert(change, &self.coll.key, known) {
            Ok(Effect::Known(key)) => owner(&key),
            _ => any,
        };
        let replacement_owner = owner_of_replacement(change, known, self.coll);
        Ok(Plan { route, may_move, replacement_owner, insert_guess })
    }

    /// Does it.
    ///
    /// # Errors
    /// What is wrong with the write, from here or from a shard; WriteConflict (112) where the document kept changing.
    pub async fn run(&self) -> Result<Written> {
        let plan = self.plan()?;
        let outcome = if self.multi() { Box::pin(self.run_multi(&plan)).await } else { self.run_one(&plan).await };
        outcome.map_err(|error| self.for_driver(error))
    }

    /// The error with the label that makes a driver send a retryable write again, where that may help; without those for
    /// transactions, which the client has none of.
    pub fn for_driver(&self, error: Error) -> Error {
        let stopped = [Code::MaxTimeMSExpired, Code::Interrupted, Code::ClientDisconnect];
        let may_help =
            (error.retry_of() == Retry::Unknown || is_passing(&error)) && !stopped.iter().any(|code| error.is(*code));
        let error = error.without_label(LABEL_TRANSIENT_TXN);
        match self.stmt_id() {
            Some(_) if may_help => error.label(LABEL_RETRYABLE_WRITE),
            Some(_) => error,
            None => error.without_label(LABEL_RETRYABLE_WRITE),
        }
    }

    async fn run_one(&self, plan: &Plan) -> Result<Written> {
        let mut patience = Patience::new(self.ctx);
        while patience.next().await? {
            match self.attempt(plan).await? {
                Attempt::Done(written) => return Ok(written),
                Attempt::Raced => continue,
                Attempt::Again(error) => {
                    patience.note(error);
                    continue;
                }
                Attempt::NoMatch => {}
            }
            if !self.upsert() {
                return self.no_match(&plan.route).await;
            }
            if let Some(written) = self.already_done(plan).await? {
                return Ok(written);
            }
            match Box::pin(self.insert(plan)).await? {
                Attempt::Done(written) => return Ok(written),
                Attempt::Again(error) => patience.note(error),
                Attempt::Raced | Attempt::NoMatch => {}
            }
        }
        Err(patience.over())
    }

    async fn attempt(&self, plan: &Plan) -> Result<Attempt> {
        let facts = Facts {
            update: matches!(self.verb, Verb::Update(_)),
            sorted: self.sort().is_some(),
            pins_id: pins_id(self.filter(), self.collation(), self.coll),
        };
        match Strategy::of(plan, facts) {
            Strategy::Everywhere => self.everywhere(&plan.route).await,
            Strategy::Directly(shard) => self.directly(shard).await,
            Strategy::Locate { first: None } => self.located(plan).await,
            Strategy::Locate { first: Some(owner) } => {
                let written = self.write(owner, None, false).await?;
                if !matched(&written.reply) {
                    return self.located(plan).await;
                }
                // Had it been moved there the first time, the shard would take it for inserted.
                let before = if has_retried(&written.reply) { self.already_done(plan).await? } else { None };
                Ok(Attempt::Done(before.unwrap_or(written)))
            }
        }
    }

    /// Finds the document and writes it where it is.
    async fn located(&self, plan: &Plan) -> Result<Attempt> {
        let (done, found) = tokio::join!(self.already_done(plan), self.locate(&plan.route));
        if let Some(written) = done? {
            return Ok(Attempt::Done(written));
        }
        let Some((shard, id)) = found? else { return Ok(Attempt::NoMatch) };
        let filter = with_id(self.filter(), &id);
        let stays = plan.replacement_owner.as_ref() == Some(&shard);
        if plan.may_move && !stays {
            return Box::pin(self.move_or_write(&shard, &filter)).await;
        }
        let reply = self.write(&shard, Some(&filter), false).await?;
        Ok(if matched(&reply.reply) { Attempt::Done(reply) } else { Attempt::Raced })
    }

    /// Sends the write to a shard, as it is or with another filter.
    ///
    /// # Errors
    /// The shard's, also those it reports as a write error.
    pub async fn write(&self, shard: &ShardId, filter: Option<&RawDocument>, upsert: bool) -> Result<Written> {
        let msg = self.command(filter, upsert);
        let reply = self.ctx.send(shard, &ReadPreference::PRIMARY, self.retry(), &msg).await?.into_result()?;
        match write_error(&reply) {
            Some(error) => Err(error),
            None => Ok(reply.into()),
        }
    }

    async fn directly(&self, shard: &ShardId) -> Result<Attempt> {
        self.write(shard, None, false).await.map(|written| self.whether_matched(written))
    }

    /// Only an upsert goes on where nothing matches.
    fn whether_matched(&self, written: Written) -> Attempt {
        if matched(&written.reply) || !self.upsert() { Attempt::Done(written) } else { Attempt::NoMatch }
    }

    async fn everywhere(&self, route: &Route) -> Result<Attempt> {
        let msg = self.command(None, false);
        let (mut failed, mut idle) = (None, None);
        for (_, outcome) in self.ctx.broadcast(&route.shards, self.retry(), &msg).await {
            match outcome.and_then(ShardReply::into_result) {
                Ok(reply) => match write_error(&reply) {
                    None if matched(reply.doc()) => return Ok(Attempt::Done(reply.into())),
                    None => idle = Some(reply),
                    Some(error) => failed = failed.or(Some(error)),
                },
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match (failed, idle) {
            (Some(error), _) => Err(error),
            (None, Some(reply)) => Ok(self.whether_matched(reply.into())),
            (None, None) => Ok(Attempt::NoMatch),
        }
    }

    /// The reply for a write that matches nothing. A shard gives it, because it also finds what is wrong with the write.
    async fn no_match(&self, route: &Route) -> Result<Written> {
        let shard = route.shards.first().ok_or_else(|| Error::internal("a route without shards"))?;
        self.write(shard, Some(&never()), false).await
    }
}

/// A filter that no document matches.
pub fn never() -> RawDocumentBuf {
    rawdoc! { "$alwaysFalse": 1 }
}

/// The filter, for the document with this `_id` only.
pub fn with_id(filter: &RawDocument, id: &RawBson) -> RawDocumentBuf {
    let own = rawdoc! { "_id": { "$eq": id.clone() } };
    if filter.is_empty() {
        own
    } else {
        rawdoc! { "$and": [filter.to_owned(), own] }
    }
}

/// Whether a reply says that a document was written (or would have been, had the change changed it).
pub fn matched(reply: &RawDocument) -> bool {
    let counts = bsonx::doc(reply, "lastErrorObject").unwrap_or(reply);
    bsonx::int(counts, "n").unwrap_or(0) > 0
}

/// The error of a reply that is `ok: 1` but has a write error.
pub fn write_error(reply: &ShardReply) -> Option<Error> {
    let errors = bsonx::array(reply.doc(), "writeErrors")?;
    let first = errors.into_iter().next()?.ok()?.as_document()?.to_owned();
    let copy = bsonx::Writer::copy_without(first.as_bytes(), |key| key == b"index").finish();
    Some(Error::from_reply(&reply.shard, bsonx::view(&copy)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn a_located_document_is_written_under_the_whole_filter() {
        assert_eq!(with_id(&rawdoc! {}, &RawBson::Int32(5)), rawdoc! { "_id": { "$eq": 5 } });
        assert_eq!(
            with_id(&rawdoc! { "a": 1 }, &RawBson::Int32(5)),
            rawdoc! { "$and": [{ "a": 1 }, { "_id": { "$eq": 5 } }] }
        );
    }

    #[test]
    fn replies_of_both_kinds_say_whether_something_matched() {
        assert!(matched(&rawdoc! { "n": 1, "nModified": 0 }));
        assert!(!matched(&rawdoc! { "n": 0 }));
        assert!(matched(&rawdoc! { "lastErrorObject": { "n": 1 }, "value": {} }));
        assert!(!matched(&rawdoc! { "lastErrorObject": { "n": 0, "updatedExisting": false }, "value": null }));
    }

    #[test]
    fn a_write_error_becomes_an_error() {
        let body = rawdoc! { "n": 0, "writeErrors": [{ "index": 0, "code": 11000, "errmsg": "dup", "keyValue": { "a": 1 } }],
        "ok": 1.0 };
        let reply = ShardReply::new("s".into(), "h:1".into(), body.into_bytes().into());
        let error = write_error(&reply).unwrap();
        assert_eq!((error.code(), error.message()), (11000, "dup"));
        assert_eq!(
            error.to_write_error(4),
            rawdoc! { "index": 4, "code": 11000, "keyValue": { "a": 1 }, "errmsg": "dup" }
        );
    }
}
