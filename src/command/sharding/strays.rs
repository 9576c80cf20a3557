//! Documents that another router, not yet aware of a collection's chunks, wrote to the primary shard.
//!
//! They were acknowledged, so they are moved to the shard that owns them: inserted there first, then deleted.

use bson::{RawDocument, RawDocumentBuf, rawdoc};

use super::majority;
use super::prepare::first_batch;
use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::catalog::snapshot::CollectionRouting;
use crate::command::Ctx;
use crate::error::Result;
use crate::shard::Retryable;
use crate::target;

/// Moves what lies on `shard` and belongs elsewhere; the collection was empty a moment ago.
pub async fn collect(ctx: &Ctx, shard: &ShardId, routing: &CollectionRouting) -> Result<()> {
    let ns = &routing.ns;
    let find = rawdoc! { "find": ns.coll(), "batchSize": 10_000, "singleBatch": true };
    let reply = ctx.run_on_shard(shard, ns.db(), find, Retryable::Read).await?;
    let mut moved = 0;
    for doc in first_batch(&reply) {
        let owner = target::document(doc, routing)?;
        if owner == *shard {
            continue;
        }
        move_one(ctx, doc, shard, &owner, routing).await?;
        moved += 1;
    }
    if moved > 0 {
        tracing::warn!(%ns, moved, "documents written by routers that did not know of the sharding yet were moved");
    }
    Ok(())
}

async fn move_one(
    ctx: &Ctx,
    doc: &RawDocument,
    from: &ShardId,
    to: &ShardId,
    routing: &CollectionRouting,
) -> Result<()> {
    let ns = &routing.ns;
    let insert = rawdoc! { "insert": ns.coll(), "documents": [doc.to_owned()], "writeConcern": majority() };
    let reply = ctx.run_on_shard(to, ns.db(), insert, Retryable::No).await?;
    if let Some(errors) = bsonx::array(reply.doc(), "writeErrors") {
        // The owner has another document under this _id: this one stays where it is, for somebody to look at.
        tracing::error!(%ns, shard = %from, ?errors, "a document lies on a shard that does not own it");
        return Ok(());
    }
    let mut filter = RawDocumentBuf::new();
    if let Some(id) = bsonx::get(doc, "_id") {
        filter.append(bson::cstr!("_id"), id);
    }
    let delete = rawdoc! {
        "delete": ns.coll(),
        "deletes": [{ "q": filter, "limit": 1 }],
        "writeConcern": majority(),
    };
    ctx.run_on_shard(from, ns.db(), delete, Retryable::No).await.map(|_| ())
}
