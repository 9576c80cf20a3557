//! `_mosaicPlaceChunk`: assigns a chunk of an empty collection to a shard. For tests only: nothing is moved.

use super::prepare;
use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};

/// `{_mosaicPlaceChunk: "db.coll", bounds: [min, max], to: shard}`.
///
/// # Errors
/// CommandNotFound unless `enableTestCommands` is set; IllegalOperation (20) if the chunk's shard has documents.
pub async fn run(ctx: &Ctx, request: &Request) -> Result<Reply> {
    if !ctx.router.test_commands() {
        return Err(Error::new(Code::CommandNotFound, "no such command: '_mosaicPlaceChunk'"));
    }
    let bad = |what: &'static str| Error::new(Code::BadValue, what);
    let ns = request.full_namespace()?;
    let bounds = request.array_arg("bounds")?.ok_or_else(|| bad("bounds are missing"))?;
    let bounds: Vec<_> = bounds.into_iter().flatten().filter_map(|b| b.as_document()).collect();
    let [min, max] = bounds.as_slice() else { return Err(bad("bounds must be two documents")) };
    let to: ShardId = request.str_arg("to")?.ok_or_else(|| bad("'to' is missing"))?.into();
    let snapshot = ctx.router.catalog.refresh().await?;
    snapshot.shard(&to)?;
    let Some(coll) = snapshot.collection(ns.as_str()) else {
        return Err(Error::new(Code::NamespaceNotSharded, format!("Collection {ns} is not sharded.")));
    };
    let from = coll.table.chunk_for(&coll.key.encode(min)?).shard().clone();
    if !prepare::is_empty(ctx, &from, &ns).await? {
        return Err(Error::new(Code::IllegalOperation, format!("{ns} is not empty on shard {from}")));
    }
    let model = prepare::describe(ctx, &from, &ns).await?;
    let model = model.ok_or_else(|| Error::internal(format!("{ns} is not on the shard that owns a chunk of it")))?;
    let indexes = crate::command::ddl::shard_view::indexes(ctx, &from, &ns).await?;
    prepare::copy_collection(ctx, &to, &ns, &model, coll.uuid, &indexes).await?;
    ctx.router.catalog.place_chunk(&ns, min, max, &to).await?;
    let reply = bson::rawdoc! { "from": &*from, "to": &*to, "min": bsonx::view(min.as_bytes()).to_owned() };
    Ok(Reply::ok(reply))
}
