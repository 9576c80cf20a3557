//! `multi: true` updates that cannot simply be sent on: upserts without the shard key, and changes that may touch it.

use std::collections::HashMap;

use bson::{RawArrayBuf, RawBson, RawDocument, RawDocumentBuf, rawdoc};

use super::single::{Attempt, Patience, Single, Written, matched, never, write_error};
use super::strategy::Plan;
use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::error::{Code, Error, Result, Retry};
use crate::shard::ShardReply;

/// The most documents on one shard whose shard keys are compared before and after.
const MOST: usize = 50_000;

impl Single<'_> {
    /// Does a `multi: true` update.
    ///
    /// # Errors
    /// InvalidOptions (72) where it would change the shard key of a document; nothing has changed on that shard then.
    pub async fn run_multi(&self, plan: &Plan) -> Result<Written> {
        if self.stmt_id().is_some() {
            // The shard says what is wrong with that.
            let shard = plan.route.shards.first().ok_or_else(|| Error::internal("a route without shards"))?;
            return self.write(shard, Some(&never()), false).await;
        }
        let mut patience = Patience::new(self.ctx);
        while patience.next().await? {
            let done = if plan.may_move { self.checked(plan).await } else { self.all(plan).await };
            let written = done.written(self, plan)?;
            let failed = bsonx::get(&written.reply, "writeErrors").is_some();
            if matched(&written.reply) || failed || !self.upsert() {
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

    async fn all(&self, plan: &Plan) -> Done {
        let mut done = Done::default();
        for (_, outcome) in self.ctx.broadcast(&plan.route.shards, self.retry(), &self.command(None, false)).await {
            match outcome.and_then(ShardReply::into_result) {
                Ok(reply) => {
                    done.failures.extend(write_error(&reply));
                    done.replies.push(reply.doc().to_owned());
                }
                Err(error) => done.failures.push(error),
            }
        }
        done
    }

    /// On each shard in a transaction of its own that is committed only if no shard key has changed. The shards after one
    /// that refuses are left alone.
    async fn checked(&self, plan: &Plan) -> Done {
        let mut done = Done::default();
        for shard in &plan.route.shards {
            match self.checked_patiently(shard).await {
                Ok(reply) => done.replies.push(reply),
                Err(error) => {
                    done.failures.push(error);
                    break;
                }
            }
        }
        done
    }

    /// A server begins a multi-update anew by itself when it meets another write, but not in a transaction.
    async fn checked_patiently(&self, shard: &ShardId) -> Result<RawDocumentBuf> {
        let mut patience = Patience::new(self.ctx);
        while patience.next().await? {
            match self.checked_on(shard).await {
                Ok(reply) => return Ok(reply),
                Err(Failed::Before(error)) => match Attempt::after(error)? {
                    Attempt::Again(error) => patience.note(error),
                    _ => continue,
                },
                Err(Failed::AtCommit(error)) => return Err(error),
            }
        }
        Err(patience.over())
    }

    async fn checked_on(&self, shard: &ShardId) -> Result<RawDocumentBuf, Failed> {
        let op = &self.ctx.op;
        let mut txn = self.transaction(shard);
        let (first, more) = self.find_keys(None);
        let before = self.keys(first, more, &mut txn).await?;
        let (body, docs) = self.statement(None, false);
        let reply = txn.run(op, body, docs).await?;
        if let Some(error) = write_error(&reply) {
            return Err(error.into());
        }
        let ids: Vec<_> = before.keys().cloned().collect();
        for ids in ids.chunks(5_000) {
            let mut list = RawArrayBuf::new();
            ids.iter().filter_map(|id| bsonx::get(bsonx::view(id), "_id")).for_each(|id| list.push(RawBson::from(id)));
            let filter = rawdoc! { "_id": { "$in": list } };
            let (first, more) = self.find_keys(Some(&filter));
            for (id, key) in self.keys(first, more, &mut txn).await? {
                if before.get(&id).is_some_and(|old| *old != key) {
                    txn.abort().await;
                    return Err(Error::new(
                        Code::InvalidOptions,
                        "Multi-update operations are not allowed when updating the shard key field.",
                    )
                    .into());
                }
            }
        }
        let mut reply = reply.doc().to_owned();
        match txn.commit(op, self.write_concern()).await {
            Ok(None) => {}
            Ok(Some(error)) => reply.append(bson::cstr!("writeConcernError"), error),
            Err(error) if error.retry_of() == Retry::Safe => return Err(Failed::Before(error)),
            Err(error) => return Err(Failed::AtCommit(error)),
        }
        Ok(reply)
    }

    /// A `find` of shard keys and `_id`s, and the batch size for more of them.
    fn find_keys(&self, filter: Option<&RawDocument>) -> (bsonx::Writer, i32) {
        let mut body = self.other("find");
        body.doc("filter", filter.unwrap_or(self.filter()));
        if let (None, Some(collation)) = (filter, self.collation()) {
            body.doc("collation", collation);
        }
        if let Some(bson::RawBsonRef::Document(variables)) = self.envelope.get("let") {
            body.doc("let", variables);
        }
        body.open_doc("projection").int32("_id", 1);
        self.coll.key.paths().filter(|p| *p != "_id" && !p.starts_with("_id.")).for_each(|p| {
            body.int32(p, 1);
        });
        body.close().int32("batchSize", 10_000);
        (body, 10_000)
    }

    /// The encoded shard key by `{_id: …}` of everything the `find` gives.
    async fn keys(
        &self,
        first: bsonx::Writer,
        batch: i32,
        txn: &mut crate::txn::Participant,
    ) -> Result<HashMap<Vec<u8>, Vec<u8>>> {
        let mut keys = HashMap::new();
        let mut reply = txn.run(&self.ctx.op, first, None).await?;
        loop {
            self.take_keys(&reply, &mut keys)?;
            let cursor = bsonx::doc(reply.doc(), "cursor").and_then(|c| bsonx::int(c, "id")).unwrap_or(0);
            if cursor == 0 {
                return Ok(keys);
            }
            let mut body = bsonx::Writer::new();
            body.int64("getMore", cursor).str("collection", self.coll.ns.coll()).str("$db", self.coll.ns.db());
            body.int32("batchSize", batch);
            reply = txn.run(&self.ctx.op, body, None).await?;
        }
    }

    fn take_keys(&self, reply: &ShardReply, keys: &mut HashMap<Vec<u8>, Vec<u8>>) -> Result<()> {
        let Some(cursor) = bsonx::doc(reply.doc(), "cursor") else { return Ok(()) };
        let batch = bsonx::array(cursor, "firstBatch").or_else(|| bsonx::array(cursor, "nextBatch"));
        for doc in batch.into_iter().flatten() {
            let Some(doc) = doc?.as_document() else { continue };
            let Some(id) = bsonx::get(doc, "_id") else { continue };
            let mut key = Vec::new();
            self.coll.key.encode_document(doc, &mut key)?;
            keys.insert(rawdoc! { "_id": RawBson::from(id) }.into_bytes(), key);
        }
        if keys.len() > MOST {
            return Err(Error::new(
                Code::IllegalOperation,
                format!(
                    "This update may change the shard key, so that every document has to be checked, and it matches more \
                     than {MOST} on one shard; do it in smaller steps, or so that it visibly leaves the shard key alone"
                ),
            ));
        }
        Ok(())
    }
}

/// What became of a multi-update on the shards.
#[derive(Default)]
struct Done {
    replies: Vec<RawDocumentBuf>,
    failures: Vec<Error>,
}

impl Done {
    /// One reply. Where some shards have done something and others failed, it has the counts of the former and the errors.
    ///
    /// # Errors
    /// The first one, if nothing was done or the operation was stopped.
    fn written(mut self, single: &Single<'_>, plan: &Plan) -> Result<Written> {
        let stopped = [Code::MaxTimeMSExpired, Code::Interrupted, Code::ClientDisconnect];
        let stop = self.failures.iter().position(|error| stopped.iter().any(|code| error.is(*code)));
        let nothing = self.sum("n") == 0;
        match stop.or((nothing && !self.failures.is_empty()).then_some(0)) {
            Some(at) => Err(self.failures.swap_remove(at)),
            None => Ok(Written { shard: plan.insert_guess.clone(), reply: self.reply(single) }),
        }
    }

    fn sum(&self, field: &str) -> i64 {
        self.replies.iter().filter_map(|reply| bsonx::int(reply, field)).sum()
    }

    fn reply(self, single: &Single<'_>) -> RawDocumentBuf {
        let mut reply = rawdoc! { "n": self.sum("n"), "nModified": self.sum("nModified") };
        if !self.failures.is_empty() {
            let mut errors = RawArrayBuf::new();
            self.failures.into_iter().for_each(|error| errors.push(single.for_driver(error).to_write_error(0)));
            reply.append(bson::cstr!("writeErrors"), errors);
        }
        if let Some(error) = self.replies.iter().find_map(|r| bsonx::doc(r, "writeConcernError")) {
            reply.append(bson::cstr!("writeConcernError"), error.to_owned());
        }
        reply.append(bson::cstr!("ok"), 1.0);
        reply
    }
}

/// Where a transaction on one shard failed.
enum Failed {
    /// Nothing was committed.
    Before(Error),
    /// It is not known whether it was.
    AtCommit(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed::Before(error)
    }
}
