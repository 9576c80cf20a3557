//! Authentication commands. The router has no users yet: whoever tries to authenticate is told that it failed, as by a
//! server without such a user; a client that does not try is let in.

use futures_util::future::BoxFuture;

use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};

pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("saslStart", Access::Open, "begins authentication (the router has no users yet)", refuse)
        .secondary_ok(),
    CommandSpec::new("saslContinue", Access::Open, "goes on with authentication", no_conversation).secondary_ok(),
    CommandSpec::new("authenticate", Access::Open, "authenticates by X.509 (the router has no users yet)", refuse)
        .secondary_ok(),
    CommandSpec::new("logout", Access::Open, "ends the authentication of this connection", logout).secondary_ok(),
];

fn refuse<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        tracing::info!(
            conn = ctx.conn.info.connection_id,
            client = ctx.conn.info.address,
            db = request.db(),
            "a client tried to authenticate, but this router has no users: connect without credentials"
        );
        Err(Error::new(Code::AuthenticationFailed, "Authentication failed."))
    })
}

fn no_conversation<'a>(_: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async { Err(Error::new(Code::ProtocolError, "No SASL session state found")) })
}

fn logout<'a>(_: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async { Ok(Reply::empty_ok()) })
}
