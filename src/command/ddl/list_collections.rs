//! `listCollections`: from the database's primary shard, which has every collection of the database.

use futures_util::future::BoxFuture;

use crate::command::read::pass::{CursorOptions, empty_result};
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::Result;
use crate::shard::Retryable;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("listCollections", Access::Read, "the collections and views of a database", list_collections)
        .secondary_ok()];

fn list_collections<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        if request.db() == "config" {
            return super::catalog_view::list_collections(ctx, request).await;
        }
        match ctx.primary_shard(request.db()) {
            Some(shard) => ctx.pass(request, &shard, Retryable::Read, CursorOptions::default()).await,
            None => Ok(empty_result(&format!("{}.$cmd.listCollections", request.db()))),
        }
    })
}
