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
use super::retried::has_retried;
use super::statement::{Change, Delete, Update};
use super::update::{owner_of_replacement, pins_id};
use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::catalog::snapshot::CollectionRouting;
use crate::command::Ctx;
use crate::error::{Code, Error, Result, Retry};
use crate::shard::{ReadPreference, Retryable, ShardReply};
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

/// How the write has to go about it.
pub struct Plan {
    pub route: Route,
    /// The document's shard key may change, so that it may belong elsewhere afterwards.
    pub may_move: bool,
    /// The shard that owns what a replacement says.
    pub replacement_owner: Option<ShardId>,
    /// Where the document that an upsert inserts most likely belongs.
    pub insert_guess: ShardId,
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
        if self.multi() {
            return Box::pin(self.run_multi(&plan)).await;
        }
        let begun = Instant::now();
        let mut attempt = 0;
        while begun.elapsed() < PATIENCE {
            if attempt > 0 {
                self.pause(attempt).await?;
            }
            attempt += 1;
            match self.attempt(&plan).await? {
                Attempt::Done(written) => return Ok(written),
                Attempt::Raced => continue,
                Attempt::NoMatch => {}
            }
            if !self.upsert() {
                return self.no_match(&plan.route).await;
            }
            if let Some(written) = self.already_done(&plan).await? {
                return Ok(written);
            }
            match Box::pin(self.insert(&plan)).await? {
                Attempt::Done(written) => return Ok(written),
                Attempt::Raced | Attempt::NoMatch => {}
            }
        }
        Err(Error::new(
            Code::WriteConflict,
            format!(
                "The document kept changing while the router was about to write it ({attempt} attempts); try again"
            ),
        )
        .from_router()
        .retry(Retry::Safe))
    }

    /// Waits a little longer after every attempt, not quite the same for everybody.
    async fn pause(&self, attempt: u32) -> Result<()> {
        self.ctx.op.check()?;
        let most = 1u64 << attempt.min(7);
        let wait = Duration::from_millis(rand::random_range(0..=most));
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.ctx.op.cancel().cancelled() => {}
        }
        self.ctx.op.check()
    }

    async fn attempt(&self, plan: &Plan) -> Result<Attempt> {
        let one = plan.route.single();
        if !plan.may_move && self.sort().is_none() && pins_id(self.filter(), self.collation(), self.coll) {
            // At most one document anywhere: every shard may try.
            return self.everywhere(&plan.route).await;
        }
        if let (Some(shard), false) = (one, plan.may_move) {
            return self.directly(shard).await;
        }
        if let (Verb::Update(_), Some(owner), None) = (self.verb, &plan.replacement_owner, one)
            // A document that is there keeps its place by becoming what belongs there.
            && let written = self.write(owner, None, false).await?
            && matched(&written.reply)
        {
            // Had it been moved there the first time, the shard would take it for inserted.
            let before = if has_retried(&written.reply) { self.already_done(plan).await? } else { None };
            return Ok(Attempt::Done(before.unwrap_or(written)));
        }
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
        let reply = ShardReply { shard: "s".into(), server: "h:1".into(), body: body.into_bytes().into() };
        let error = write_error(&reply).unwrap();
        assert_eq!((error.code(), error.message()), (11000, "dup"));
        assert_eq!(
            error.to_write_error(4),
            rawdoc! { "index": 4, "code": 11000, "keyValue": { "a": 1 }, "errmsg": "dup" }
        );
    }
}
