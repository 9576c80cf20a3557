//! Documents that another router, not yet aware of a collection's chunks, wrote to the primary shard.
//!
//! They were acknowledged, so they are moved to the shard that owns them: inserted there first, then deleted.

use std::collections::{BTreeMap, HashSet};

use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::majority;
use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::catalog::snapshot::CollectionRouting;
use crate::command::Ctx;
use crate::error::Result;
use crate::shard::Retryable;
use crate::target;

/// Moves what lies on `shard` and belongs elsewhere; the collection was empty a moment ago. Can be repeated.
///
/// # Errors
/// What a shard says, or that a majority of it does not have a document yet.
pub async fn collect(ctx: &Ctx, shard: &ShardId, routing: &CollectionRouting) -> Result<()> {
    let ns = &routing.ns;
    let find = rawdoc! { "find": ns.coll(), "batchSize": BATCH };
    let mut reply = ctx.run_on_shard(shard, ns.db(), find, Retryable::Read).await?;
    let mut moved = 0;
    loop {
        let mut by_owner: BTreeMap<ShardId, Vec<RawDocumentBuf>> = BTreeMap::new();
        for doc in reply.batch() {
            let owner = target::document(doc, routing)?;
            if owner != *shard {
                by_owner.entry(owner).or_default().push(doc.to_owned());
            }
        }
        for (owner, docs) in &by_owner {
            move_all(ctx, docs, shard, owner, routing).await?;
            moved += docs.len();
        }
        let cursor = bsonx::doc(reply.doc(), "cursor").and_then(|c| bsonx::int(c, "id")).unwrap_or(0);
        if cursor == 0 {
            break;
        }
        let more = rawdoc! { "getMore": cursor, "collection": ns.coll(), "batchSize": BATCH };
        reply = ctx.run_on_shard(shard, ns.db(), more, Retryable::No).await?;
    }
    if moved > 0 {
        tracing::warn!(%ns, moved, "documents written by routers that did not know of the sharding yet were moved");
    }
    Ok(())
}

/// Documents read at once.
const BATCH: i32 = 1_000;

async fn move_all(
    ctx: &Ctx,
    docs: &[RawDocumentBuf],
    from: &ShardId,
    to: &ShardId,
    routing: &CollectionRouting,
) -> Result<()> {
    let ns = &routing.ns;
    let mut insert = rawdoc! { "insert": ns.coll(), "ordered": false, "writeConcern": majority() };
    insert.append(cstr!("documents"), RawArrayBuf::from_iter(docs.iter().cloned()));
    let reply = ctx.run_on_shard(to, ns.db(), insert, Retryable::No).await?;
    let errors = bsonx::array(reply.doc(), "writeErrors").into_iter().flatten().flatten();
    let mut refused = HashSet::new();
    for error in errors.filter_map(|e| e.as_document()) {
        let index = bsonx::int(error, "index").and_then(|i| usize::try_from(i).ok());
        let Some((index, doc)) = index.and_then(|i| docs.get(i).map(|doc| (i, doc))) else { continue };
        // It may have been inserted before, and only the deleting is left.
        if !is_there(ctx, doc, to, routing).await? {
            // The owner has another document under this _id: this one stays where it is, for somebody to look at.
            tracing::error!(%ns, shard = %from, ?error, "a document lies on a shard that does not own it");
            refused.insert(index);
        }
    }
    let moved = docs.iter().enumerate().filter(|(i, _)| !refused.contains(i));
    let deletes: Vec<_> = moved.map(|(_, doc)| rawdoc! { "q": by_id(doc), "limit": 1 }).collect();
    if deletes.is_empty() {
        return Ok(());
    }
    let mut delete = rawdoc! { "delete": ns.coll(), "ordered": false, "writeConcern": majority() };
    delete.append(cstr!("deletes"), RawArrayBuf::from_iter(deletes));
    ctx.run_on_shard(from, ns.db(), delete, Retryable::No).await.map(|_| ())
}

fn by_id(doc: &RawDocument) -> RawDocumentBuf {
    let mut filter = RawDocumentBuf::new();
    if let Some(id) = bsonx::get(doc, "_id") {
        filter.append(cstr!("_id"), id);
    }
    filter
}

/// Whether the shard has the very same document.
async fn is_there(ctx: &Ctx, doc: &RawDocument, shard: &ShardId, routing: &CollectionRouting) -> Result<bool> {
    let ns = &routing.ns;
    let find = rawdoc! {
        "find": ns.coll(), "filter": by_id(doc), "limit": 1, "singleBatch": true,
        "readConcern": { "level": "majority" },
    };
    let found = ctx.run_on_shard(shard, ns.db(), find, Retryable::Read).await?;
    Ok(found.batch().any(|there| there == doc))
}
