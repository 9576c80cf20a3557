//! The insert of an upsert whose filter does not lead to one shard.
//!
//! Which document an upsert inserts is for a server to say: it computes it in a transaction that is given up (unless
//! the document belongs right there), and the shard that owns it gets it as a plain insert.

use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::single::{Attempt, Single, Written, write_error};
use super::strategy::Plan;
use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::error::{Code, Error, LABEL_RETRYABLE_WRITE, Result, Retry};
use crate::shard::{ReadPreference, is_passing};
use crate::txn::Participant;

impl Single<'_> {
    /// Inserts what the upsert says. [`Attempt::Raced`] if a matching document has appeared.
    ///
    /// # Errors
    /// What is wrong with the upsert; DuplicateKey (11000).
    pub async fn insert(&self, plan: &Plan) -> Result<Attempt> {
        if let Some(owner) = &plan.replacement_owner {
            // The replacement says where it belongs: the shard there can do all of it.
            return self.write(owner, None, true).await.map(Attempt::Done);
        }
        let mut txn = self.transaction(&plan.insert_guess);
        let outcome = self.compute(&mut txn).await;
        let (reply, doc) = match outcome {
            Ok(Some(computed)) => computed,
            Ok(None) => return Ok(Attempt::Raced),
            Err(error) => return Attempt::after(error),
        };
        let owner = self.owner_of(&doc)?;
        let shard = txn.shard().clone();
        if owner == shard {
            return self.keep(txn, reply).await;
        }
        txn.abort().await;
        let sent = self.ctx.send(&owner, &ReadPreference::PRIMARY, self.retry(), &self.insertion(&doc)).await?;
        let inserted = sent.into_result()?;
        match write_error(&inserted) {
            None => Ok(Attempt::Done(Written {
                shard: owner,
                reply: with_write_concern_error(without_times(&reply), inserted.doc()),
            })),
            // Somebody else inserted it, and perhaps it is what the filter asks for.
            Some(error) if error.is(Code::DuplicateKey) && self.locate(&plan.route).await?.is_some() => {
                Ok(Attempt::Raced)
            }
            Some(error) => Err(error),
        }
    }

    /// Runs the upsert in the transaction: the reply, and the document it inserted. `None` if it found one instead.
    async fn compute(&self, txn: &mut Participant) -> Result<Option<(RawDocumentBuf, RawDocumentBuf)>> {
        let (body, docs) = self.statement(None, true);
        let reply = txn.run(&self.ctx.op, body, docs).await?;
        if let Some(error) = write_error(&reply) {
            return Err(error);
        }
        let Some(id) = upserted_id(reply.doc()) else { return Ok(None) };
        let doc = self.read_back(txn, id).await?;
        Ok(doc.map(|doc| (reply.doc().to_owned(), doc)))
    }

    /// The document with this `_id` as the transaction sees it.
    pub async fn read_back(&self, txn: &mut Participant, id: RawBsonRef<'_>) -> Result<Option<RawDocumentBuf>> {
        let reply = txn.run(&self.ctx.op, self.find_id(id), None).await?;
        Ok(reply.batch().next().map(RawDocument::to_owned))
    }

    /// The shard a document belongs to.
    ///
    /// # Errors
    /// ShardKeyNotFound (61) for an array in the shard key.
    pub fn owner_of(&self, doc: &RawDocument) -> Result<ShardId> {
        crate::target::document(doc, self.coll)
    }

    /// Commits the transaction whose result stays where it is.
    pub async fn keep(&self, txn: Participant, reply: RawDocumentBuf) -> Result<Attempt> {
        let shard = txn.shard().clone();
        match txn.commit(&self.ctx.op, self.write_concern()).await {
            Ok(concern) => {
                let mut reply = without_times(&reply);
                if let Some(error) = concern {
                    if self.stmt_id().is_some() && is_passing(&Error::from_reply(&shard, &error)) {
                        let labels: bson::RawArrayBuf = [LABEL_RETRYABLE_WRITE].into_iter().collect();
                        reply.append(bson::cstr!("errorLabels"), labels);
                    }
                    reply.append(bson::cstr!("writeConcernError"), error);
                }
                Ok(Attempt::Done(Written { shard, reply }))
            }
            Err(error) if error.retry_of() == Retry::Safe => Attempt::after(error),
            Err(error) => Err(error),
        }
    }
}

/// A reply from inside a transaction: what it says of times was true before the commit.
pub fn without_times(reply: &RawDocument) -> RawDocumentBuf {
    let times: [&[u8]; 4] = [b"operationTime", b"$clusterTime", b"opTime", b"electionId"];
    bsonx::view(&bsonx::Writer::copy_without(reply.as_bytes(), |key| times.contains(&key)).finish()).to_owned()
}

/// The `_id` of the document that an upsert's reply says it inserted.
fn upserted_id(reply: &RawDocument) -> Option<RawBsonRef<'_>> {
    if let Some(last) = bsonx::doc(reply, "lastErrorObject") {
        return bsonx::get(last, "upserted");
    }
    let first = bsonx::array(reply, "upserted")?.into_iter().next()?.ok()?;
    bsonx::get(first.as_document()?, "_id")
}

fn with_write_concern_error(mut reply: RawDocumentBuf, from: &RawDocument) -> RawDocumentBuf {
    if let Some(error) = bsonx::doc(from, "writeConcernError") {
        reply.append(bson::cstr!("writeConcernError"), RawBson::Document(error.to_owned()));
    }
    reply
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use bson::rawdoc;

    use super::*;

    #[test]
    fn both_kinds_of_reply_name_the_inserted_document() {
        let update = rawdoc! { "n": 1, "upserted": [{ "index": 0, "_id": "a" }] };
        assert_eq!(upserted_id(&update).unwrap().as_str(), Some("a"));
        let modify = rawdoc! { "lastErrorObject": { "n": 1, "upserted": "b" }, "value": null };
        assert_eq!(upserted_id(&modify).unwrap().as_str(), Some("b"));
        assert!(upserted_id(&rawdoc! { "n": 1, "nModified": 1 }).is_none());
        assert!(upserted_id(&rawdoc! { "lastErrorObject": { "n": 1 }, "value": {} }).is_none());
    }
}
