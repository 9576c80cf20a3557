//! Collections on a shard for a while: documents of the router put where a server can work on them, results of several
//! shards that are more than a message holds, and other collections that a pipeline reads from elsewhere.
//!
//! They lie in the database `local` of one server: nothing of them is replicated, and no client of a router sees them.
//! Their names hold the process's id, so that what a crashed router left behind is recognised and removed (`sweep`).

use bson::oid::ObjectId;
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};
use bytes::{Bytes, BytesMut};

use super::pass::{OpenCursor, batch_of};
use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::command::Ctx;
use crate::cursor::TempCollection;
use crate::error::{Code, Error, Result};
use crate::merge::Batch;
use crate::shard::{Retryable, ServerId, ShardReply};
use crate::wire::{MAX_WRITE_BATCH, OutMsg, OutSequence};

/// Bytes of documents in one insert.
pub const INSERT_BYTES: usize = 8 << 20;

impl Ctx {
    /// The name of a temporary collection that is to be made.
    pub fn temporary_name(&self) -> String {
        format!("{}{}.{}", TempCollection::PREFIX, self.router.identity.process_id, ObjectId::new())
    }

    /// Makes an empty temporary collection on a server of the shard, or its primary. It has no index but the one of a
    /// path, if one is given: `_id`s need not be unique.
    pub async fn make_temporary(
        &self,
        shard: &ShardId,
        server: Option<&ServerId>,
        name: String,
        index: Option<(&str, Option<&RawDocument>)>,
    ) -> Result<TempCollection> {
        let create = rawdoc! { "create": &*name, "autoIndexId": false, "$db": TempCollection::DB };
        let create = OutMsg::from_doc(create);
        let reply = match server {
            Some(server) => self.send_to_server(shard, server, &create).await?.into_result()?,
            None => self.send_primary(shard, Retryable::No, &create).await?,
        };
        let killer = self.router.cursors.killer().clone();
        let made = TempCollection::new(shard.clone(), reply.server, name, killer);
        if let Some((path, collation)) = index
            && let Ok(path) = bson::raw::CString::try_from(path)
        {
            let mut key = RawDocumentBuf::new();
            key.append(&path, 1);
            let mut spec = rawdoc! { "key": key, "name": "looked_up" };
            if let Some(collation) = collation {
                spec.append(cstr!("collation"), collation.to_owned());
            }
            let build = rawdoc! { "createIndexes": &*made.name, "indexes": [spec], "$db": TempCollection::DB };
            self.on_temporary(&made, &OutMsg::from_doc(build)).await?;
        }
        Ok(made)
    }

    /// Sends a command that names the collection; an `ok: 0` reply is an error.
    pub async fn on_temporary(&self, temp: &TempCollection, msg: &OutMsg) -> Result<ShardReply> {
        self.send_to_server(&temp.shard, &temp.server, msg).await?.into_result()
    }

    /// Adds documents, whole ones in a row.
    ///
    /// # Errors
    /// The shard's, also for a single document.
    pub async fn add_to_temporary(&self, temp: &TempCollection, docs: Bytes) -> Result<()> {
        if docs.is_empty() {
            return Ok(());
        }
        let mut msg = OutMsg::from_doc(rawdoc! { "insert": &*temp.name, "$db": TempCollection::DB });
        msg.sequences.push(OutSequence { id: "documents".into(), docs: [docs].into_iter().collect() });
        let reply = self.on_temporary(temp, &msg).await?;
        let errors = bsonx::array(reply.doc(), "writeErrors").and_then(|e| e.into_iter().next()?.ok()?.as_document());
        match errors {
            None => Ok(()),
            Some(error) => {
                let text = bsonx::str(error, "errmsg").unwrap_or("refused by the shard");
                let code = bsonx::int(error, "code").and_then(|c| i32::try_from(c).ok()).unwrap_or(8);
                Err(Error::with_code(code, format!("An intermediate result could not be stored: {text}")))
            }
        }
    }
}

/// A temporary collection with the documents of a catalog collection.
pub struct Scratch<'a> {
    ctx: &'a Ctx,
    temp: TempCollection,
}

impl<'a> Scratch<'a> {
    /// Fills a new one with the documents, on the first shard that takes them.
    pub async fn filled(ctx: &'a Ctx, docs: &[Bytes]) -> Result<Self> {
        let mut last = Error::new(
            Code::ShardNotFound,
            "No shards found: this operation on the catalog needs one to work on it; add a shard first",
        );
        for shard in ctx.snapshot.shards.keys() {
            match Self::filled_on(ctx, shard, docs).await {
                Err(error) if super::merged::is_unreachable(&error) && ctx.op.check().is_ok() => last = error,
                other => return other,
            }
        }
        Err(last)
    }

    async fn filled_on(ctx: &'a Ctx, shard: &ShardId, docs: &[Bytes]) -> Result<Self> {
        let temp = ctx.make_temporary(shard, None, ctx.temporary_name(), None).await?;
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
            ctx.add_to_temporary(&temp, piece.freeze()).await?;
        }
        Ok(Scratch { ctx, temp })
    }

    pub fn name(&self) -> &str {
        &self.temp.name
    }

    /// Sends a command that names this collection; an `ok: 0` reply is an error.
    pub async fn send(&self, msg: &OutMsg) -> Result<ShardReply> {
        self.ctx.on_temporary(&self.temp, msg).await
    }

    /// All results of a pipeline. `options` are further fields of the aggregate.
    pub async fn aggregate(&self, pipeline: RawArrayBuf, options: RawDocumentBuf) -> Result<Vec<Bytes>> {
        let mut command =
            rawdoc! { "aggregate": self.name(), "pipeline": pipeline, "cursor": { "batchSize": 100_000 } };
        for (key, value) in options.iter().flatten() {
            command.append(key, value);
        }
        command.append(cstr!("$db"), TempCollection::DB);
        let mut reply = self.send(&OutMsg::from_doc(command)).await?;
        let mut out = Vec::new();
        let mut field = "firstBatch";
        loop {
            out.extend(documents(batch_of(&reply.body, field)?)?);
            let Some(open) = OpenCursor::read(&reply.body)? else { return Ok(out) };
            let more = rawdoc! { "getMore": open.id, "collection": self.name(), "$db": TempCollection::DB };
            reply = self.send(&OutMsg::from_doc(more)).await?;
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
