//! `listShards`.

use bson::{RawArrayBuf, RawDocumentBuf, cstr};

use crate::command::{Ctx, Reply, Request};
use crate::error::Result;

pub async fn run(ctx: &Ctx, _request: &Request) -> Result<Reply> {
    let mut shards = RawArrayBuf::new();
    for shard in ctx.snapshot.shards.values() {
        shards.push(shard.to_doc());
    }
    let mut reply = RawDocumentBuf::new();
    reply.append(cstr!("shards"), shards);
    Ok(Reply::ok(reply))
}
