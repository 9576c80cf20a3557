//! `removeShard`: checks its argument; draining a shard needs moving its data, which comes later.

use crate::command::{Ctx, Reply, Request};
use crate::error::{Code, Error, Result};

pub async fn run(ctx: &Ctx, request: &Request) -> Result<Reply> {
    let Some(id) = request.argument()?.as_str() else {
        return Err(Error::new(Code::TypeMismatch, "removeShard takes the name of a shard"));
    };
    ctx.router.catalog.refresh().await?.shard(id)?;
    Err(Error::new(
        Code::CommandNotSupported,
        format!("removeShard is not supported yet: this router cannot move the data of {id} to other shards yet"),
    ))
}
