//! `multi: true` updates that cannot simply be sent on: upserts without the shard key, and changes that may touch it.

use std::collections::HashMap;

use bson::{RawArrayBuf, RawBson, RawDocument, RawDocumentBuf, rawdoc};

use super::single::{Attempt, Plan, Single, Written, matched, never, write_error};
use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::error::{Code, Error, Result};
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
        for _ in 0..3 {
            let written = if plan.may_move { self.checked(plan).await? } else { self.all(plan).await? };
            if matched(&written.reply) || !self.upsert() {
                return Ok(written);
            }
            if let Attempt::Done(written) = Box::pin(self.insert(plan)).await? {
                return Ok(written);
            }
        }
        Err(Error::new(
            Code::WriteConflict,
            "Documents kept appearing while the router was about to upsert one; try again",
        )
        .from_router())
    }

    async fn all(&self, plan: &Plan) -> Result<Written> {
        let outcomes = self.ctx.broadcast(&plan.route.shards, self.retry(), &self.command(None, false)).await;
        let mut replies = Vec::new();
        for (_, outcome) in outcomes {
            let reply = outcome?.into_result()?;
            if let Some(error) = write_error(&reply) {
                return Err(error);
            }
            replies.push(reply.doc().to_owned());
        }
        Ok(self.sum(plan, replies))
    }

    /// On each shard in a transaction of its own that is committed only if no shard key has changed.
    async fn checked(&self, plan: &Plan) -> Result<Written> {
        let mut replies = Vec::new();
        for shard in &plan.route.shards {
            replies.push(self.checked_on(shard).await?);
        }
        Ok(self.sum(plan, replies))
    }

    async fn checked_on(&self, shard: &ShardId) -> Result<RawDocumentBuf> {
        let op = &self.ctx.op;
        let mut txn = self.transaction(shard);
        let (first, more) = self.find_keys(None);
        let before = self.keys(first, more, &mut txn).await?;
        let (body, docs) = self.statement(None, false);
        let reply = txn.run(op, body, docs).await?;
        if let Some(error) = write_error(&reply) {
            return Err(error);
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
                    ));
                }
            }
        }
        let mut reply = reply.doc().to_owned();
        if let Some(error) = txn.commit(op, self.write_concern()).await? {
            reply.append(bson::cstr!("writeConcernError"), error);
        }
        Ok(reply)
    }

    /// A `find` of shard keys and `_id`s, and the batch size for more of them.
    fn find_keys(&self, filter: Option<&RawDocument>) -> (bsonx::Writer, i32) {
        let mut body = bsonx::Writer::new();
        let ns = &self.coll.ns;
        body.str("find", ns.coll()).str("$db", ns.db()).doc("filter", filter.unwrap_or(self.filter()));
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

    fn sum(&self, plan: &Plan, replies: Vec<RawDocumentBuf>) -> Written {
        let total = |field: &str| replies.iter().filter_map(|r| bsonx::int(r, field)).sum::<i64>();
        let mut reply = rawdoc! { "n": total("n"), "nModified": total("nModified") };
        if let Some(error) = replies.iter().find_map(|r| bsonx::doc(r, "writeConcernError")) {
            reply.append(bson::cstr!("writeConcernError"), error.to_owned());
        }
        reply.append(bson::cstr!("ok"), 1.0);
        Written { shard: plan.insert_guess.clone(), reply }
    }
}
