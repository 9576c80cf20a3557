//! Commands that need nothing but the router itself.

use bson::rawdoc;
use futures_util::future::BoxFuture;

use super::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};

pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("ping", Access::Open, "a way to check that the server is alive", ping).secondary_ok(),
    CommandSpec::new(
        "configureFailPoint",
        Access::Cluster,
        "makes commands fail on purpose (enableTestCommands)",
        configure_fail_point,
    )
    .admin(),
];

fn ping<'a>(_: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async { Ok(Reply::empty_ok()) })
}

fn configure_fail_point<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        if !ctx.router.test_commands() {
            return Err(Error::new(
                Code::CommandNotFound,
                "no such command: 'configureFailPoint' (start the router with setParameter enableTestCommands=1)",
            ));
        }
        let name = request.argument()?.as_str().unwrap_or_default();
        let mode =
            request.get("mode").ok_or_else(|| Error::new(Code::BadValue, "configureFailPoint needs a 'mode'"))?;
        let count = ctx.router.failpoints.configure(name, mode, request.doc_arg("data")?)?;
        Ok(Reply::ok(rawdoc! { "count": count }))
    })
}
