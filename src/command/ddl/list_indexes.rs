//! `listIndexes`: from the shard that owns the first chunk, or the primary shard.

use futures_util::future::BoxFuture;

use crate::bsonx;
use crate::catalog::model::ShardId;
use crate::catalog::snapshot::CollectionRouting;
use crate::command::read::pass::CursorOptions;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::shard::Retryable;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("listIndexes", Access::Read, "the indexes of a collection", list_indexes).secondary_ok()];

/// The shard whose indexes stand for the collection's: the owner of the first chunk. All owners have the same.
pub fn source(routing: &CollectionRouting) -> ShardId {
    let mut key = Vec::new();
    match routing.key.encode_document(&routing.key.min_key(), &mut key) {
        Ok(()) => routing.table.chunk_for(&key).shard().clone(),
        Err(_) => routing.table.owners().first().cloned().unwrap_or_else(|| "".into()),
    }
}

fn list_indexes<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.namespace()?;
        if ns.db() == "config" {
            return super::catalog_view::list_indexes(ctx, request, &ns).await;
        }
        let shard = match ctx.snapshot.collection(ns.as_str()) {
            Some(routing) => Some(source(routing)),
            None => ctx.primary_shard(ns.db()),
        };
        let Some(shard) = shard else {
            return Err(Error::new(Code::NamespaceNotFound, format!("ns does not exist: {ns}")));
        };
        ctx.pass(request, &shard, Retryable::Read, CursorOptions::default()).await
    })
}

/// Whether a command asks for names only.
pub fn name_only(request: &Request) -> bool {
    bsonx::truthy(request.body(), "nameOnly") == Some(true)
}
