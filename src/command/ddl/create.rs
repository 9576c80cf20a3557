//! `create`: collections of all kinds and views, on the database's primary shard.

use futures_util::future::BoxFuture;

use super::forward;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::Result;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("create", Access::DbAdmin, "creates a collection or a view", create)];

fn create<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let ns = request.namespace()?;
        forward::check_writable(ns.db(), "creating a collection")?;
        let primary = ctx.ensure_database(ns.db()).await?;
        let reply = forward::to_shard(ctx, request, &primary).await;
        ctx.router.views.forget(ns.db());
        reply
    })
}
