//! Commands of later stages: they say so.

use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};

pub const fn row(name: &'static str, help: &'static str) -> CommandSpec {
    CommandSpec::new(name, Access::Cluster, help, |c, r| Box::pin(run(c, r))).admin()
}

async fn run(_ctx: &Ctx, request: &Request) -> Result<Reply> {
    Err(Error::new(
        Code::CommandNotSupported,
        format!("{} is not supported yet: this router does not move data between shards yet", request.spec.name),
    ))
}
