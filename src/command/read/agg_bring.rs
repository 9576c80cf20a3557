//! Brings what a pipeline reads of other collections to the server that runs it.

use bson::{RawArray, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use bytes::Bytes;

use super::agg_foreign::{self, Need};
use super::agg_join::JoinValues;
use super::aggregate;
use super::merged::carry_on;
use super::pass::OpenCursor;
use super::route::Place;
use super::scratch::INSERT_BYTES;
use crate::bsonx::{self, Writer};
use crate::catalog::model::{Namespace, ShardId};
use crate::command::{Ctx, Reply, Request};
use crate::cursor::TempCollection;
use crate::error::{Code, Error, Result};
use crate::merge::{Batch, Doc, Packed, Sink};
use crate::shard::{ReadPreference, Retryable, ServerId, ShardReply};
use crate::wire::OutMsg;

/// The server that runs the rest of a pipeline, and what was put there for it.
#[derive(Debug)]
pub struct Site {
    pub shard: ShardId,
    /// Known once something is there.
    server: Option<ServerId>,
    pub temps: Vec<TempCollection>,
}

impl Site {
    pub fn new(shard: ShardId) -> Self {
        Site { shard, server: None, temps: Vec::new() }
    }

    /// Makes an empty collection there.
    pub async fn make(
        &mut self,
        ctx: &Ctx,
        name: String,
        index: Option<(&str, Option<&RawDocument>)>,
    ) -> Result<usize> {
        let temp = ctx.make_temporary(&self.shard, self.server.as_ref(), name, index).await?;
        self.server = Some(temp.server.clone());
        self.temps.push(temp);
        Ok(self.temps.len() - 1)
    }

    /// Sends a command there.
    pub async fn send(&self, ctx: &Ctx, retry: Retryable, msg: &OutMsg) -> Result<ShardReply> {
        match &self.server {
            Some(server) => ctx.send_to_server(&self.shard, server, msg).await,
            None => ctx.send(&self.shard, &ReadPreference::PRIMARY, retry, msg).await,
        }
    }
}

/// What is to be brought, and for which command.
pub struct Bringing<'a> {
    pub ctx: &'a Ctx,
    pub request: &'a Request,
    /// What the pipeline compares strings by; `None` is the simple one.
    pub collation: Option<&'a RawDocument>,
    /// What the first stage looks up.
    pub values: Option<JoinValues>,
}

impl Bringing<'_> {
    /// The pipeline over what was brought to the site.
    pub async fn bring(&self, site: &mut Site, pipeline: &RawArray) -> Result<RawArrayBuf> {
        let mut needs: Vec<(Need, String)> = Vec::new();
        let rewritten = agg_foreign::rewritten(self.request.db(), pipeline, &mut |need| {
            let name = self.ctx.temporary_name();
            needs.push((need, name.clone()));
            name
        })?;
        for (need, name) in needs {
            self.one(site, need, name).await?;
        }
        Ok(rewritten)
    }

    async fn one(&self, site: &mut Site, need: Need, name: String) -> Result<()> {
        let ctx = self.ctx;
        if matches!(ctx.place(&need.ns), Place::Nowhere) {
            // A collection that is not there is as good as an empty one.
            return Ok(());
        }
        let index = need.index.as_deref().map(|path| (path, self.collation));
        let at = site.make(ctx, name, index).await?;
        let temp = &site.temps[at];
        let sub = self.request.standing_for("aggregate", self.read_body(&need))?;
        let mut packed = Packed::new(need.wrapped, INSERT_BYTES);
        let mut reply = Box::pin(aggregate::any(ctx, &sub, &need.ns)).await?;
        loop {
            let mut batch = Batch::new(batch_of_reply(&reply)?);
            while let Some(range) = batch.advance()? {
                let doc = &batch.bytes()[range];
                if !need.wrapped && !can_be_stored(doc) {
                    return Err(not_storable(&need));
                }
                if !packed.fits(doc.len()) {
                    ctx.add_to_temporary(temp, packed.take().into()).await?;
                }
                packed.push(&Doc::whole(doc));
            }
            match next(ctx, &sub, &reply).await? {
                Some(more) => reply = more,
                None => break,
            }
        }
        ctx.add_to_temporary(temp, packed.take().into()).await
    }

    /// The aggregation that reads what is needed, in the client's name.
    fn read_body(&self, need: &Need) -> Vec<u8> {
        let body = self.request.body();
        let mut out = Writer::with_capacity(1024);
        out.str("aggregate", need.ns.coll()).open_array("pipeline");
        let filter = need.join.as_ref().and(self.values.as_ref()).and_then(JoinValues::filter);
        let first: Option<RawDocumentBuf> = filter.map(|filter| rawdoc! { "$match": filter });
        let stages = need.pipeline.into_iter().map_while(std::result::Result::ok).filter_map(|s| match s {
            RawBsonRef::Document(stage) => Some(stage),
            _ => None,
        });
        for (i, stage) in first.as_deref().into_iter().chain(stages).enumerate() {
            out.doc(&i.to_string(), stage);
        }
        out.close().open_doc("cursor").int32("batchSize", i32::MAX).close();
        let bytes = body.as_bytes();
        for field in ["let", "allowDiskUse", "maxTimeMS", "readConcern"] {
            if let Some(found) = bsonx::find(bytes, field) {
                out.raw_fields(&bytes[found.whole()]);
            }
        }
        let simple = rawdoc! { "locale": "simple" };
        out.doc("collation", self.collation.unwrap_or(&simple));
        carry_on(body, &mut out);
        out.str("$db", need.ns.db());
        out.finish()
    }
}

/// The first or the next batch of a cursor reply of this router.
pub fn batch_of_reply(reply: &Reply) -> Result<Bytes> {
    let found = ["firstBatch", "nextBatch"].iter().find_map(|b| bsonx::find_path(&reply.body, &["cursor", b]));
    found.map(|field| reply.body.slice(field.range())).ok_or_else(|| Error::internal("a cursor reply without a batch"))
}

/// What the cursor of this reply gives next; `None` at its end.
pub async fn next(ctx: &Ctx, request: &Request, reply: &Reply) -> Result<Option<Reply>> {
    let Some(open) = OpenCursor::read(&reply.body)? else { return Ok(None) };
    let mut more = Writer::new();
    more.int64("getMore", open.id).str("collection", open.ns.coll());
    carry_on(request.body(), &mut more);
    more.str("$db", open.ns.db());
    let more = request.standing_for("getMore", more.finish())?;
    (more.spec.run)(ctx, &more).await.map(Some)
}

/// Whether a server stores exactly this document: it puts `_id` first, makes one where there is none, refuses some
/// kinds of it, and fills in empty timestamps.
fn can_be_stored(doc: &[u8]) -> bool {
    let mut fields = bsonx::fields(doc);
    let id = fields.next().filter(|f| f.key == b"_id").map(|f| f.kind);
    use bsonx::kind;
    let good = id.is_some_and(|k| !matches!(k, kind::ARRAY | kind::REGEX | kind::UNDEFINED));
    good && fields.all(|f| f.kind != kind::TIMESTAMP || doc[f.range()] != [0; 8])
}

fn not_storable(need: &Need) -> Error {
    let Need { ns, stage, .. } = need;
    Error::new(
        Code::CommandNotSupported,
        format!(
            "{stage} over {ns}, of which a document has no usable _id or an empty timestamp, needs all data on one shard"
        ),
    )
}

impl Ctx {
    /// What an unsharded collection compares strings by, if it is not the simple collation.
    pub async fn default_collation(&self, ns: &Namespace, shard: &ShardId) -> Result<Option<RawDocumentBuf>> {
        let filter = rawdoc! { "name": ns.coll() };
        let mut command = rawdoc! { "listCollections": 1, "filter": filter, "cursor": {} };
        command.append(bson::cstr!("$db"), ns.db());
        let reply = self.send_primary(shard, Retryable::Read, &OutMsg::from_doc(command)).await?;
        let found = bsonx::doc(reply.doc(), "cursor").and_then(|c| bsonx::array(c, "firstBatch"));
        let first = found.and_then(|batch| batch.into_iter().next()?.ok()?.as_document());
        let collation = first.and_then(|coll| bsonx::doc(bsonx::doc(coll, "options")?, "collation"));
        Ok(collation.map(|c| c.to_owned()))
    }
}
