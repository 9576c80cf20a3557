//! What `shardCollection` and `refineCollectionShardKey` ask and do on shards: options, indexes, emptiness, copies.

use bson::{RawArrayBuf, RawBson, RawDocument, RawDocumentBuf, Uuid, cstr, rawdoc};

use super::index_rules::IndexSpec;
use super::majority;
use crate::bsonx;
use crate::catalog::model::{Namespace, ShardId};
use crate::command::Ctx;
use crate::command::ddl::shard_view;
use crate::error::{Code, Error, Result};
use crate::key::ShardKeyPattern;
use crate::shard::Retryable;

/// A collection as `listCollections` describes it.
pub struct Described {
    pub kind: String,
    pub options: RawDocumentBuf,
    pub uuid: Option<Uuid>,
}

impl Described {
    pub fn collation(&self) -> Option<&RawDocument> {
        bsonx::doc(&self.options, "collation")
    }
}

/// The collection on one shard; `None` where it does not exist there.
pub async fn describe(ctx: &Ctx, shard: &ShardId, ns: &Namespace) -> Result<Option<Described>> {
    let found = shard_view::collection(ctx, shard, ns).await?;
    Ok(found.map(|entry| Described {
        kind: bsonx::str(&entry, "type").unwrap_or("collection").to_owned(),
        options: bsonx::doc(&entry, "options").map(RawDocument::to_owned).unwrap_or_default(),
        uuid: shard_view::uuid_in(&entry),
    }))
}

/// The indexes; those that could support `key` are also asked whether they hold arrays.
pub async fn indexes(ctx: &Ctx, shard: &ShardId, ns: &Namespace, key: &ShardKeyPattern) -> Result<Vec<IndexSpec>> {
    let mut specs = Vec::new();
    for doc in shard_view::indexes(ctx, shard, ns).await? {
        let Some(mut spec) = IndexSpec::listed(&doc) else { continue };
        if spec.supports(key) {
            spec.multikey = is_multikey(ctx, shard, ns, &spec).await?;
        }
        specs.push(spec);
    }
    Ok(specs)
}

/// Only `explain` tells whether an index holds arrays.
async fn is_multikey(ctx: &Ctx, shard: &ShardId, ns: &Namespace, spec: &IndexSpec) -> Result<bool> {
    let find = rawdoc! { "find": ns.coll(), "hint": spec.key.clone() };
    let command = rawdoc! { "explain": find, "verbosity": "queryPlanner" };
    let reply = ctx.run_on_shard(shard, ns.db(), command, Retryable::Read).await?;
    let plan = bsonx::doc(reply.doc(), "queryPlanner").and_then(|q| bsonx::doc(q, "winningPlan"));
    let mut stage = plan.map(|p| bsonx::doc(p, "queryPlan").unwrap_or(p));
    while let Some(s) = stage {
        if let Some(multikey) = bsonx::truthy(s, "isMultiKey") {
            return Ok(multikey);
        }
        stage = bsonx::doc(s, "inputStage");
    }
    // Nothing was scanned by the index: a collection that does not exist, say.
    Ok(false)
}

/// Whether the collection holds no document on this shard.
pub async fn is_empty(ctx: &Ctx, shard: &ShardId, ns: &Namespace) -> Result<bool> {
    let command = rawdoc! {
        "find": ns.coll(),
        "limit": 1,
        "singleBatch": true,
        "projection": { "_id": 1 },
        "readConcern": { "level": "local" },
    };
    let reply = ctx.run_on_shard(shard, ns.db(), command, Retryable::Read).await?;
    Ok(reply.batch().next().is_none())
}

/// Creates the collection with the server's defaults.
pub async fn create(ctx: &Ctx, shard: &ShardId, ns: &Namespace) -> Result<()> {
    let command = rawdoc! { "create": ns.coll(), "writeConcern": majority() };
    match ctx.run_on_shard(shard, ns.db(), command, Retryable::No).await {
        Err(e) if !e.is(Code::NamespaceExists) => Err(e),
        _ => Ok(()),
    }
}

/// Makes the index of the shard key.
pub async fn create_key_index(
    ctx: &Ctx,
    shard: &ShardId,
    ns: &Namespace,
    key: &ShardKeyPattern,
    unique: bool,
    simple_collation: bool,
) -> Result<()> {
    let mut index = rawdoc! { "key": key.to_doc().to_owned(), "name": super::index_rules::default_name(key.to_doc()) };
    if unique {
        index.append(cstr!("unique"), true);
    }
    if simple_collation {
        index.append(cstr!("collation"), rawdoc! { "locale": "simple" });
    }
    create_indexes(ctx, shard, ns, &[index]).await
}

async fn create_indexes(ctx: &Ctx, shard: &ShardId, ns: &Namespace, indexes: &[RawDocumentBuf]) -> Result<()> {
    let mut list = RawArrayBuf::new();
    indexes.iter().for_each(|i| list.push(i.clone()));
    let command = rawdoc! { "createIndexes": ns.coll(), "indexes": list, "writeConcern": majority() };
    ctx.run_on_shard(shard, ns.db(), command, Retryable::No).await.map(|_| ())
}

/// Makes `ns` exist on `shard` exactly as `model` has it on its primary: same uuid, options and indexes.
///
/// What stands in the way is removed only where it is empty (the remains of an attempt that was broken off); otherwise
/// IllegalOperation (20).
pub async fn copy_collection(
    ctx: &Ctx,
    shard: &ShardId,
    ns: &Namespace,
    model: &Described,
    uuid: Uuid,
    indexes: &[RawDocumentBuf],
) -> Result<()> {
    match describe(ctx, shard, ns).await? {
        Some(found) if found.uuid == Some(uuid) => {}
        found => {
            if found.is_some() {
                drop_empty(ctx, shard, ns).await?;
            }
            create_with_uuid(ctx, shard, ns, model, uuid).await?;
        }
    }
    let wanted: Vec<RawDocumentBuf> = indexes
        .iter()
        .filter(|i| IndexSpec::listed(i).is_some_and(|s| !s.is_id_index()))
        .map(|i| without(i, "ns"))
        .collect();
    if wanted.is_empty() { Ok(()) } else { create_indexes(ctx, shard, ns, &wanted).await }
}

async fn drop_empty(ctx: &Ctx, shard: &ShardId, ns: &Namespace) -> Result<()> {
    if !is_empty(ctx, shard, ns).await? {
        return Err(Error::new(
            Code::IllegalOperation,
            format!(
                "{ns} exists with documents on shard {shard}, which is not the database's primary shard. They were not \
                 written through the router; move or drop them there first"
            ),
        ));
    }
    let command = rawdoc! { "drop": ns.coll(), "writeConcern": majority() };
    ctx.run_on_shard(shard, ns.db(), command, Retryable::No).await.map(|_| ())
}

/// Only `applyOps` creates a collection with a given uuid.
async fn create_with_uuid(ctx: &Ctx, shard: &ShardId, ns: &Namespace, model: &Described, uuid: Uuid) -> Result<()> {
    let mut create = rawdoc! { "create": ns.coll() };
    for (key, value) in model.options.iter().flatten() {
        if key.as_str() != "uuid" {
            create.append(key, value);
        }
    }
    let mut id_index = rawdoc! { "v": 2, "key": { "_id": 1 }, "name": "_id_" };
    if let Some(collation) = model.collation() {
        id_index.append(cstr!("collation"), collation.to_owned());
    }
    if bsonx::get(&model.options, "clusteredIndex").is_none() {
        create.append(cstr!("idIndex"), id_index);
    }
    let mut op = rawdoc! { "op": "c", "ns": format!("{}.$cmd", ns.db()) };
    op.append(cstr!("ui"), RawBson::Binary(bson::Binary::from_uuid(uuid)));
    op.append(cstr!("o"), create);
    let command = rawdoc! { "applyOps": [op], "writeConcern": majority() };
    match ctx.run_on_shard(shard, "admin", command, Retryable::No).await {
        Err(e) if !e.is(Code::NamespaceExists) => Err(e.context(format!("Cannot create {ns} on shard {shard}"))),
        _ => Ok(()),
    }
}

fn without(doc: &RawDocument, field: &str) -> RawDocumentBuf {
    let mut out = RawDocumentBuf::new();
    for (key, value) in doc.iter().flatten() {
        if key.as_str() != field {
            out.append(key, value);
        }
    }
    out
}
