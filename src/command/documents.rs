//! Letting a shard evaluate queries on documents the router has made itself: what MongoDB's query language means is
//! decided by a server, never guessed here.

use bson::{RawArray, RawArrayBuf, RawDocument, RawDocumentBuf, rawdoc};
use bytes::Bytes;

use super::Ctx;
use super::read::merged::is_unreachable;
use super::read::{config::documents_aggregate, pass::OpenCursor};
use crate::error::{Code, Error, Result};
use crate::shard::{ReadPreference, Retryable, ShardReply};
use crate::wire::OutMsg;

/// Everything in one batch.
const ALL: i64 = i32::MAX as i64;

/// Runs a pipeline over the documents on the first shard that answers. `options` is the command whose `let`,
/// `collation` and the like apply.
///
/// # Errors
/// The shard's; ShardNotFound (70) without shards; BSONObjectTooLarge (10334) for more than 16 MiB.
pub async fn run(
    ctx: &Ctx,
    options: &RawDocument,
    docs: &[RawDocumentBuf],
    pipeline: &RawArray,
    batch_size: Option<i64>,
) -> Result<ShardReply> {
    let docs: Vec<Bytes> = docs.iter().map(|d| Bytes::copy_from_slice(d.as_bytes())).collect();
    let msg = OutMsg::new(documents_aggregate(options, &docs, pipeline, batch_size)?);
    let mut last = None;
    for shard in ctx.snapshot.shards.keys() {
        match ctx.send(shard, &ReadPreference::PRIMARY, Retryable::Read, &msg).await {
            Err(error) if is_unreachable(&error) && ctx.op.check().is_ok() => last = Some(error),
            other => return other,
        }
    }
    Err(last.unwrap_or_else(|| {
        Error::new(Code::ShardNotFound, "No shards found: evaluating a filter needs one; add a shard first")
    }))
}

/// The documents that match `filter`, in their order.
pub async fn matching(ctx: &Ctx, docs: Vec<RawDocumentBuf>, filter: &RawDocument) -> Result<Vec<RawDocumentBuf>> {
    if docs.is_empty() {
        return Ok(docs);
    }
    let mut pipeline = RawArrayBuf::new();
    pipeline.push(rawdoc! { "$match": filter.to_owned() });
    let reply = run(ctx, &RawDocumentBuf::new(), &docs, &pipeline, Some(ALL)).await?.into_result()?;
    if OpenCursor::read(&reply.body)?.is_some() {
        return Err(Error::new(Code::BSONObjectTooLarge, "The result is larger than one batch; use a narrower filter"));
    }
    Ok(reply.batch().map(RawDocument::to_owned).collect())
}
