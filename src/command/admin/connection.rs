//! Commands about the client's own connection.

use bson::{Document, doc, rawdoc};
use futures_util::future::BoxFuture;

use super::reply;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::Result;

pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("connectionStatus", Access::Open, "who is authenticated on this connection", connection_status)
        .secondary_ok()
        .fields(&["showPrivileges"]),
    CommandSpec::new("whatsmyuri", Access::Open, "this client's address as the router sees it", whats_my_uri)
        .secondary_ok(),
];

fn connection_status<'a>(_: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let mut info = doc! { "authenticatedUsers": [], "authenticatedUserRoles": [] };
        if request.bool_arg("showPrivileges")? == Some(true) {
            info.insert("authenticatedUserPrivileges", Vec::<Document>::new());
        }
        reply(&doc! { "authInfo": info })
    })
}

fn whats_my_uri<'a>(ctx: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move { Ok(Reply::ok(rawdoc! { "you": ctx.conn.info.address.as_str() })) })
}
