//! Updates that may change the value of the shard key, and with it the shard a document belongs to.
//!
//! The update runs in a transaction on the document's shard, and its result is looked at there. If the document stays,
//! the transaction is committed. If it does not, the transaction is given up, and the document is removed here and
//! inserted there in one transaction over both shards.

use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::retried::has_retried;
use super::single::{Attempt, Single, Written, matched, write_error};
use super::upsert::without_times;
use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::error::{Code, Error, Result, Retry};
use crate::txn::{self, Participant};

/// What the update would do to the document.
struct WhatIf {
    before: RawDocumentBuf,
    after: RawDocumentBuf,
    /// The shard's reply to the update.
    reply: RawDocumentBuf,
}

impl Single<'_> {
    /// Updates the document on `shard` that `filter` names, and moves it if it belongs elsewhere afterwards.
    ///
    /// # Errors
    /// IllegalOperation (20) where it would have to move but the client neither uses retryable writes nor a transaction;
    /// ShardKeyNotFound (61) for an array in the new shard key; DuplicateKey (11000) where the new shard has that `_id`.
    pub async fn move_or_write(&self, shard: &ShardId, filter: &RawDocument) -> Result<Attempt> {
        let mut txn = self.transaction(shard);
        let what_if = match self.what_if(&mut txn, filter).await {
            Ok(Some(what_if)) => what_if,
            Ok(None) => return Ok(Attempt::Raced),
            Err(error) => return Attempt::after(error),
        };
        let owner = self.owner_of(&what_if.after)?;
        if owner == *shard {
            return self.keep(txn, what_if.reply).await;
        }
        txn.abort().await;
        if self.stmt_id().is_none() {
            return Err(Error::new(
                Code::IllegalOperation,
                "Must run update to shard key field in a multi-statement transaction or with retryWrites: true.",
            ));
        }
        self.relocate(shard, &owner, what_if).await
    }

    /// Runs the update in the transaction. `None` if the document does not match any more.
    async fn what_if(&self, txn: &mut Participant, filter: &RawDocument) -> Result<Option<WhatIf>> {
        let op = &self.ctx.op;
        let found = txn.run(op, self.find_matching(filter), None).await?;
        let Some(before) = found.batch().next() else { return Ok(None) };
        if found.batch().nth(1).is_some() {
            return Err(Error::new(
                Code::IllegalOperation,
                "Under this collation several documents have the _id of the document whose shard key would change; update \
                 it without the collation",
            ));
        }
        let (body, docs) = self.statement(Some(filter), false);
        let reply = txn.run(op, body, docs).await?;
        if let Some(error) = write_error(&reply) {
            return Err(error);
        }
        if !matched(reply.doc()) || has_retried(reply.doc()) {
            return Ok(None);
        }
        let Some(id) = bsonx::get(before, "_id") else { return Ok(None) };
        let Some(after) = self.read_back(txn, id).await? else { return Ok(None) };
        Ok(Some(WhatIf { before: before.to_owned(), after, reply: reply.doc().to_owned() }))
    }

    /// Removes the document from the donor and inserts its new form on the recipient.
    async fn relocate(&self, donor: &ShardId, recipient: &ShardId, what_if: WhatIf) -> Result<Attempt> {
        let Some(id) = bsonx::get(&what_if.before, "_id") else {
            return Err(Error::internal("a document without _id"));
        };
        let (mut from, mut to) = (self.part_of_move(donor), self.part_of_move(recipient));
        let filter = rawdoc! { "_id": { "$eq": RawBson::from(id) } };
        let (body, docs) = self.insertion_statement(&what_if.after);
        let (removed, inserted) = tokio::join!(
            from.run(&self.ctx.op, self.removal_statement(&filter), None),
            to.run(&self.ctx.op, body, docs)
        );
        let removed = match removed {
            Err(error) => return Attempt::after(error),
            Ok(reply) => reply,
        };
        // It must be the very document whose new form was computed.
        let same = matches!(bsonx::get(removed.doc(), "value"),
            Some(RawBsonRef::Document(doc)) if doc.as_bytes() == what_if.before.as_bytes());
        if !same || has_retried(removed.doc()) {
            return Ok(Attempt::Raced);
        }
        let inserted = match inserted {
            Err(error) => return Attempt::after(error),
            Ok(reply) => reply,
        };
        if let Some(error) = write_error(&inserted) {
            return Err(error);
        }
        match txn::commit(&self.ctx.router, &self.ctx.op, vec![from, to]).await {
            Ok(()) => {}
            // Otherwise it may be committed.
            Err(error) if error.retry_of() == Retry::Safe => return Attempt::after(error),
            Err(error) => return Err(error),
        }
        tracing::debug!(ns = %self.coll.ns, %donor, %recipient, "an update moved a document to another shard");
        Ok(Attempt::Done(Written { shard: recipient.clone(), reply: without_times(&what_if.reply) }))
    }
}
