//! Carrying out a batch: its steps one after the other, the answers joined.

use bson::{cstr, rawdoc};
use futures_util::future::join_all;
use smallvec::smallvec;

use super::durability::Durability;
use super::envelope::Envelope;
use super::join::Joined;
use super::ops::Ops;
use super::plan::{Limits, Place, Planner, ShardNo, Shards, Step, SubBatch};
use super::single::{Single, Verb};
use crate::catalog::snapshot::CollectionRouting;
use crate::command::{Ctx, Reply};
use crate::error::{Code, Error, LABEL_RETRYABLE_WRITE, Result};
use crate::shard::{ReadPreference, Retryable, ShardReply};
use crate::wire::{OutMsg, OutSequence};

/// One `insert`, `update` or `delete` on a sharded collection that more than one command has to carry out.
pub struct Batch<'a> {
    pub ctx: &'a Ctx,
    pub coll: &'a CollectionRouting,
    /// The field the statements are in: `documents`, `updates` or `deletes`.
    pub payload: &'static str,
    pub envelope: Envelope,
    pub ops: Ops,
    pub shards: Shards,
    pub places: Vec<Place>,
}

impl Batch<'_> {
    /// Carries it out and joins the replies.
    ///
    /// # Errors
    /// Those that concern the command as a whole: nothing was done, the operation was stopped, or a retry by the client
    /// will find out what was done.
    pub async fn run(&self) -> Result<Reply> {
        let mut joined = self.nothing();
        let size = |index| self.ops.size(index);
        let limits = Limits::for_message(self.envelope.overhead(self.ops.len()));
        let mut durability = Durability::of(&self.envelope, self.payload, &self.places);
        for step in Planner::new(&self.places, &size, limits, self.envelope.ordered) {
            match step {
                Step::Failed(index, error) => joined.fail(index, &error),
                Step::Send(batches) => {
                    let weak = |batch| durability.may_wait(batch);
                    let outcomes = join_all(batches.iter().map(|batch| self.send(batch, weak(batch)))).await;
                    for (batch, outcome) in batches.iter().zip(&outcomes) {
                        let waited = !durability.may_wait(batch);
                        if let Ok(reply) = outcome
                            && !durability.note(batch.shard, waited, reply.doc())
                        {
                            self.may_be_lost(batch.shard, &mut joined)?;
                        }
                    }
                    self.take(&mut joined, &batches, outcomes)?;
                }
                Step::Special(index) => match Box::pin(self.special(index)).await {
                    Ok(written) => joined.add(&written.shard, &[index], &written.reply),
                    Err(error) if self.ends_everything(&error) => return Err(error),
                    // Fields that a statement lacks or must not have make the whole command malformed.
                    Err(error) if joined.is_untouched() && matches!(error.code(), 40414 | 40415) => return Err(error),
                    Err(error) => joined.fail(index, &error),
                },
            }
            if self.envelope.ordered && joined.has_errors() {
                break;
            }
        }
        for shard in durability.open() {
            match self.make_sure(shard).await {
                Ok(reply) => {
                    if !durability.note(shard, true, reply.doc()) {
                        self.may_be_lost(shard, &mut joined)?;
                    }
                    joined.add(self.shards.id(shard), &[], reply.doc());
                }
                Err(error) if self.ends_everything(&error) => return Err(error),
                Err(error) => joined.not_durable(self.shards.id(shard), error.message()),
            }
        }
        if self.envelope.quiet {
            joined = self.nothing();
        }
        Ok(Reply::doc(joined.into_reply()))
    }

    fn nothing(&self) -> Joined {
        if self.payload == "updates" { Joined::for_update() } else { Joined::default() }
    }

    fn retryable(&self) -> bool {
        self.envelope.txn_number().is_some()
    }

    /// Waits until what the shard's primary has is as durable as the client wants: by a write that changes nothing.
    async fn make_sure(&self, shard: ShardNo) -> Result<ShardReply> {
        let mut command = rawdoc! {
            "delete": "mosaic.nothing", "deletes": [{ "q": { "_id": 0 }, "limit": 1 }], "$db": "config",
        };
        if let Some(concern) = self.envelope.get("writeConcern") {
            command.append(cstr!("writeConcern"), concern);
        }
        let msg = OutMsg::from_doc(command);
        self.ctx.send(self.shards.id(shard), &ReadPreference::PRIMARY, Retryable::No, &msg).await?.into_result()
    }

    /// The primary changed after it had acknowledged inserts, perhaps before anybody else had them.
    ///
    /// # Errors
    /// HostUnreachable (6) for the driver to send everything again, if it will; else a write concern error is noted.
    fn may_be_lost(&self, shard: ShardNo, joined: &mut Joined) -> Result<()> {
        let shard = self.shards.id(shard);
        let text = format!("the primary of shard {shard} changed while the batch was inserted; some of it may be lost");
        if self.retryable() {
            return Err(Error::new(Code::HostUnreachable, text).label(LABEL_RETRYABLE_WRITE));
        }
        joined.not_durable(shard, &text);
        Ok(())
    }

    async fn send(&self, batch: &SubBatch, weak: bool) -> Result<ShardReply> {
        let docs = self.ops.pieces(&batch.items);
        let mut msg = OutMsg::new(match weak {
            true => self.envelope.weak_command(&batch.items),
            false => self.envelope.command(&batch.items),
        });
        msg.sequences = smallvec![OutSequence { id: self.payload.into(), docs }];
        let retry = if self.retryable() { Retryable::Write } else { Retryable::No };
        let shard = self.shards.id(batch.shard);
        self.ctx.send(shard, &ReadPreference::PRIMARY, retry, &msg).await?.into_result()
    }

    /// Joins the outcomes of one step.
    fn take(&self, joined: &mut Joined, batches: &[SubBatch], outcomes: Vec<Result<ShardReply>>) -> Result<()> {
        let mut failures = Vec::new();
        for (batch, outcome) in batches.iter().zip(outcomes) {
            match outcome {
                Ok(reply) => joined.add(self.shards.id(batch.shard), &batch.items, reply.doc()),
                Err(error) => failures.push((batch, error)),
            }
        }
        let nothing_done = joined.is_untouched();
        for (batch, error) in failures {
            if nothing_done || self.ends_everything(&error) {
                return Err(error);
            }
            // In an ordered batch the first one stands for all.
            let items = if self.envelope.ordered { &batch.items[..1] } else { &batch.items[..] };
            items.iter().for_each(|index| joined.fail(*index, &error));
        }
        Ok(())
    }

    /// Whether the error must reach the client as the command's own: it was stopped, or its driver will send it again,
    /// and the shards will recognise what they have done.
    fn ends_everything(&self, error: &Error) -> bool {
        let stopped = [Code::MaxTimeMSExpired, Code::Interrupted, Code::ClientDisconnect];
        stopped.iter().any(|code| error.is(*code))
            || self.retryable() && error.labels().iter().any(|l| l == LABEL_RETRYABLE_WRITE)
    }

    async fn special(&self, index: u32) -> Result<super::single::Written> {
        let statement = self.ops.get(index);
        let verb = match self.payload {
            "updates" => Verb::Update(super::statement::Update::parse(statement)?),
            "deletes" => Verb::Delete(super::statement::Delete::parse(statement)?),
            _ => return Err(Error::internal("an insert is never special")),
        };
        Single::new(self.ctx, self.coll, &self.envelope, index, verb).run().await
    }
}
