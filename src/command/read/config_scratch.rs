//! A collection on some shard for a while: catalog documents of the embedded store put where a server can work on them.
//!
//! It lies in the shard's database `config`, which clients of the router never see. Its name holds this process's id, so
//! that what a crashed router left behind is recognised and removed.

use std::sync::Arc;

use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};
use bytes::{Bytes, BytesMut};

use super::pass::{OpenCursor, batch_of};
use crate::catalog::model::ShardId;
use crate::command::Ctx;
use crate::error::{Code, Error, Result};
use crate::merge::Batch;
use crate::op::OpContext;
use crate::router::Router;
use crate::shard::{ReadPreference, Retryable, ShardReply};
use crate::wire::{MAX_WRITE_BATCH, OutMsg, OutSequence};

const DB: &str = "config";
const PREFIX: &str = "mosaic.tmp.";
/// Bytes of documents in one insert.
const INSERT_BYTES: usize = 32 << 20;

/// Dropped on the shard when it goes out of scope.
pub struct Scratch<'a> {
    ctx: &'a Ctx,
    shard: ShardId,
    name: String,
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let (router, shard, name) = (self.ctx.router.clone(), self.shard.clone(), self.name.clone());
        tokio::spawn(async move {
            if let Err(error) = remove(&router, &shard, &name).await {
                tracing::warn!(%error, %shard, name, "a temporary collection could not be dropped");
            }
        });
    }
}

async fn remove(router: &Arc<Router>, shard: &ShardId, name: &str) -> Result<()> {
    let op = OpContext::background("drop").with_limit(std::time::Duration::from_secs(30));
    let msg = OutMsg::from_doc(rawdoc! { "drop": name, "$db": DB });
    router.shards.get(shard)?.run(&op, &ReadPreference::PRIMARY, Retryable::Read, &msg).await.map(|_| ())
}

impl<'a> Scratch<'a> {
    /// Fills a new one with the documents, on the first shard that takes them.
    pub async fn filled(ctx: &'a Ctx, docs: &[Bytes]) -> Result<Self> {
        let mut last = Error::new(
            Code::ShardNotFound,
            "No shards found: this operation on the catalog needs one to work on it; add a shard first",
        );
        for shard in ctx.snapshot.shards.keys() {
            let name = format!("{PREFIX}{}.{}", ctx.router.identity.process_id, bson::oid::ObjectId::new());
            let scratch = Scratch { ctx, shard: shard.clone(), name };
            match scratch.fill(docs).await {
                Ok(()) => return Ok(scratch),
                Err(error) if super::merged::is_unreachable(&error) && ctx.op.check().is_ok() => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    async fn fill(&self, docs: &[Bytes]) -> Result<()> {
        self.remove_left_behind().await?;
        let mut rest = docs;
        while !rest.is_empty() {
            let mut piece = BytesMut::new();
            let mut count = 0;
            while let Some(doc) = rest.get(count)
                && count < MAX_WRITE_BATCH
                && (piece.is_empty() || piece.len() + doc.len() < INSERT_BYTES)
            {
                piece.extend_from_slice(doc);
                count += 1;
            }
            rest = &rest[count..];
            let mut msg = OutMsg::from_doc(rawdoc! { "insert": &*self.name, "$db": DB });
            msg.sequences.push(OutSequence { id: "documents".into(), docs: [piece.freeze()].into_iter().collect() });
            let reply = self.send(&msg).await?;
            if let Some(errors) = crate::bsonx::array(reply.doc(), "writeErrors") {
                return Err(Error::internal(format!("catalog documents were refused by a shard: {errors:?}")));
            }
        }
        Ok(())
    }

    /// What another process of this router, gone now, did not drop.
    async fn remove_left_behind(&self) -> Result<()> {
        let other = format!("^{}(?!{})", PREFIX.replace('.', "\\."), self.ctx.router.identity.process_id);
        let filter = rawdoc! { "name": { "$regex": other } };
        let command = rawdoc! { "listCollections": 1, "nameOnly": true, "filter": filter, "$db": DB };
        let reply = self.send(&OutMsg::from_doc(command)).await?;
        for doc in documents(batch_of(&reply.body, "firstBatch")?)? {
            if let Some(name) = crate::bsonx::str(crate::bsonx::view(&doc), "name") {
                remove(&self.ctx.router, &self.shard, name).await?;
            }
        }
        Ok(())
    }

    /// Sends a command that names this collection; an `ok: 0` reply is an error.
    pub async fn send(&self, msg: &OutMsg) -> Result<ShardReply> {
        self.ctx.send_primary(&self.shard, Retryable::No, msg).await
    }

    /// All results of a pipeline. `options` are further fields of the aggregate.
    pub async fn aggregate(&self, pipeline: RawArrayBuf, options: RawDocumentBuf) -> Result<Vec<Bytes>> {
        let mut command =
            rawdoc! { "aggregate": &*self.name, "pipeline": pipeline, "cursor": { "batchSize": 100_000 } };
        for (key, value) in options.iter().flatten() {
            command.append(key, value);
        }
        command.append(cstr!("$db"), DB);
        let mut reply = self.send(&OutMsg::from_doc(command)).await?;
        let mut out = Vec::new();
        let mut field = "firstBatch";
        loop {
            out.extend(documents(batch_of(&reply.body, field)?)?);
            let Some(open) = OpenCursor::read(&reply.body)? else { return Ok(out) };
            let more = rawdoc! { "getMore": open.id, "collection": &*self.name, "$db": DB };
            let more = OutMsg::from_doc(more);
            reply = self.ctx.send_to_server(&self.shard, &reply.server, &more).await?.into_result()?;
            field = "nextBatch";
        }
    }
}

/// The documents of a batch.
pub fn documents(batch: Bytes) -> Result<Vec<Bytes>> {
    let mut batch = Batch::new(batch);
    let mut out = Vec::new();
    while let Some(range) = batch.advance()? {
        out.push(Bytes::copy_from_slice(&batch.bytes()[range]));
    }
    Ok(out)
}
