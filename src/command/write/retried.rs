//! Writes that a client sends a second time because it lost the answer to the first.
//!
//! A shard remembers the statement numbers it executed, but only for itself. A write without a shard key could find
//! another document on another shard the second time, so every shard that may have executed it is asked first. The
//! question is a delete that matches nothing: a shard that has executed a statement of that number answers with it.

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::single::{Single, Verb, Written, never};
use super::strategy::Plan;
use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::error::{Code, Error, Result};
use crate::shard::{ReadPreference, Retryable};

/// What a shard says when the statement it executed was of another kind than the one retried: the document was moved
/// away (a delete there) or arrived (an insert there).
const OTHER_KIND: &[i32] = &[40606, 40607, 40608, 40638];

impl Single<'_> {
    /// The result of this write if some shard executed it before.
    ///
    /// # Errors
    /// A shard's; TransactionTooOld (225) where the session has gone on.
    pub async fn already_done(&self, plan: &Plan) -> Result<Option<Written>> {
        if self.stmt_id().is_none() {
            return Ok(None);
        }
        let anywhere = plan.may_move || self.upsert();
        let shards = if anywhere { self.coll.table.owners() } else { &plan.route.shards };
        let mut executed = Vec::new();
        for (shard, outcome) in self.ctx.broadcast(shards, Retryable::Write, &self.question()).await {
            if has_retried(outcome?.into_result()?.doc()) {
                executed.push(shard);
            }
        }
        if executed.is_empty() {
            return Ok(None);
        }
        tracing::debug!(?executed, "a retried write was executed before");
        self.result(&executed).await.map(Some)
    }

    /// Collects the first execution's result from the shards that took part in it.
    async fn result(&self, executed: &[ShardId]) -> Result<Written> {
        let mut plain = None;
        let mut moved = executed.len() > 1;
        for shard in executed {
            let msg = self.command(Some(&never()), false);
            let reply = self.ctx.send(shard, &ReadPreference::PRIMARY, Retryable::Write, &msg).await?;
            match reply.ok() {
                true => plain = Some(Written::from(reply)),
                // The insert of an upsert is recognised only by an upsert.
                false if reply.error().code() == 40608 && self.upsert() && executed.len() == 1 => {
                    plain = Some(self.write(shard, Some(&never()), true).await?);
                }
                false if OTHER_KIND.contains(&reply.error().code()) => moved = true,
                false => return Err(reply.error()),
            }
        }
        match (plain, &self.verb) {
            (Some(written), _) if !moved => Ok(written),
            (_, Verb::FindAndModify(command)) => self.moved_image(executed, command.new).await,
            _ => {
                let shard = executed.first().cloned().unwrap_or_else(|| "".into());
                let mut reply = rawdoc! { "n": 1, "nModified": 1 };
                if let Some(id) = self.stmt_id() {
                    reply.append(cstr!("retriedStmtIds"), [id].into_iter().collect::<bson::RawArrayBuf>());
                }
                reply.append(cstr!("ok"), 1.0);
                Ok(Written { shard, reply })
            }
        }
    }

    /// The document before or after a findAndModify that moved it: the donor keeps the one, the recipient the other.
    async fn moved_image(&self, executed: &[ShardId], new: bool) -> Result<Written> {
        for shard in executed {
            let msg = self.image_question(!new);
            let reply = self.ctx.send(shard, &ReadPreference::PRIMARY, Retryable::Write, &msg).await?;
            if let (true, Some(RawBsonRef::Document(value))) = (reply.ok(), bsonx::get(reply.doc(), "value")) {
                let mut done = RawDocumentBuf::new();
                done.append(cstr!("lastErrorObject"), rawdoc! { "n": 1, "updatedExisting": true });
                done.append(cstr!("value"), value.to_owned());
                if let Some(id) = self.stmt_id() {
                    done.append(cstr!("retriedStmtId"), id);
                }
                done.append(cstr!("ok"), 1.0);
                return Ok(Written { shard: shard.clone(), reply: done });
            }
        }
        // IncompleteTransactionHistory: the write was done, but its image is gone.
        Err(Error::with_code(
            217,
            "This findAndModify was executed before, but the document it returned is not known any more",
        )
        .from_router())
    }
}

/// Whether a shard's reply is that of an earlier execution.
pub fn has_retried(reply: &RawDocument) -> bool {
    bsonx::array(reply, "retriedStmtIds").is_some_and(|ids| !ids.is_empty())
        || bsonx::get(reply, "retriedStmtId").is_some()
}

/// Whether an error says that the statement was executed before in another form.
pub fn was_other_kind(error: &Error) -> bool {
    OTHER_KIND.contains(&error.code()) && !error.is(Code::InternalError)
}
