//! Commands that need nothing but the router itself.

use bson::{RawBsonRef, rawdoc};
use futures_util::future::BoxFuture;

use super::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};

pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("ping", Access::Open, "a way to check that the server is alive", ping).secondary_ok().fields(&[]),
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
        let mode = request
            .get("mode")
            .ok_or_else(|| Error::new(Code::IllegalOperation, "When setting a failpoint, you must supply a 'mode'"))?;
        let data = match request.get("data") {
            None => None,
            Some(RawBsonRef::Document(data)) => Some(data),
            Some(_) => return Err(Error::new(Code::TypeMismatch, "the 'data' option must be a JSON object")),
        };
        let count = ctx.router.failpoints.configure(name, mode, data)?;
        Ok(Reply::ok(rawdoc! { "count": count }))
    })
}
