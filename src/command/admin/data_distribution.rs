//! `$shardedDataDistribution`: how much of each sharded collection lies on which shard.

use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::bsonx;
use crate::catalog::snapshot::CollectionRouting;
use crate::command::read::pass::CursorOptions;
use crate::command::{Ctx, Reply, Request, documents};
use crate::error::{Code, Error, Result};
use crate::shard::{ReadPreference, Retryable};
use crate::wire::OutMsg;

/// `{aggregate: 1, pipeline: [{$shardedDataDistribution: {}}, …]}` on `admin`.
pub async fn aggregate(ctx: &Ctx, request: &Request) -> Result<Reply> {
    if request.db() != "admin" {
        return Err(Error::new(
            Code::InvalidNamespace,
            "$shardedDataDistribution must be run against the 'admin' database with {aggregate: 1}",
        ));
    }
    let pipeline = request.array_arg("pipeline")?;
    let mut stages = pipeline.into_iter().flat_map(|p| p.into_iter().flatten()).filter_map(|s| s.as_document());
    let options = stages.next().and_then(|first| bsonx::get(first, "$shardedDataDistribution"));
    if !matches!(options, Some(RawBsonRef::Document(_))) {
        return Err(Error::new(
            Code::FailedToParse,
            "The $shardedDataDistribution stage specification must be an object",
        ));
    }
    let rest = RawArrayBuf::from_iter(stages.map(RawDocument::to_owned));
    let mut names: Vec<_> = ctx.snapshot.collections.values().collect();
    names.sort_unstable_by_key(|coll| coll.ns.as_str());
    let mut docs = Vec::with_capacity(names.len());
    for coll in names {
        docs.push(one_collection(ctx, coll).await?);
    }
    let batch_size = request.doc_arg("cursor")?.and_then(|c| bsonx::int(c, "batchSize"));
    let reply = documents::run(ctx, request.body(), &docs, &rest, batch_size).await?;
    ctx.adopt(request, reply, CursorOptions::default())
}

async fn one_collection(ctx: &Ctx, coll: &CollectionRouting) -> Result<RawDocumentBuf> {
    let command = rawdoc! { "collStats": coll.ns.coll(), "$db": coll.ns.db() };
    let msg = OutMsg::from_doc(command);
    let requests: Vec<_> = coll.table.owners().iter().map(|shard| (shard.clone(), msg.clone())).collect();
    let mut shards = RawArrayBuf::new();
    for (shard, outcome) in ctx.scatter(&requests, &ReadPreference::PRIMARY, Retryable::Read).await {
        let reply = outcome?.into_result()?;
        let number = |name: &str| bsonx::int(reply.doc(), name).unwrap_or(0);
        // Nothing is moved yet, so whatever an owner has is its own.
        shards.push(rawdoc! {
            "shardName": &*shard,
            "numOrphanedDocs": 0_i64,
            "numOwnedDocuments": number("count"),
            "ownedSizeBytes": number("size"),
            "orphanedSizeBytes": 0_i64,
        });
    }
    let mut doc = rawdoc! { "ns": coll.ns.as_str() };
    doc.append(cstr!("shards"), shards);
    Ok(doc)
}
