//! Small commands that clients and tools send.

use bson::{doc, rawdoc};
use futures_util::future::BoxFuture;

use super::reply;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};

pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("isdbgrid", Access::Open, "tells that this is a router", is_db_grid)
        .aliases(&["isdbGrid"])
        .secondary_ok(),
    CommandSpec::new("features", Access::Open, "features of this process", features).secondary_ok(),
    CommandSpec::new(
        "getFreeMonitoringStatus",
        Access::Cluster,
        "free monitoring, which the router does not have",
        free_monitoring,
    )
    .admin()
    .secondary_ok(),
    CommandSpec::new(
        "getDiagnosticData",
        Access::Cluster,
        "diagnostic data, which the router does not record: empty",
        diagnostic_data,
    )
    .admin()
    .secondary_ok(),
    CommandSpec::new("replSetGetStatus", Access::Cluster, "refused: a router is no replica set", repl_set_get_status)
        .secondary_ok(),
    CommandSpec::new("invalidateUserCache", Access::Cluster, "there is no user cache yet: does nothing", nothing)
        .admin()
        .secondary_ok(),
];

fn is_db_grid<'a>(ctx: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move { Ok(Reply::ok(rawdoc! { "isdbgrid": 1, "hostname": ctx.router.identity.hostname.as_str() })) })
}

fn features<'a>(ctx: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let id = ctx.router.identity.process_id.bytes();
        let machine = i32::from_be_bytes([0, id[4], id[5], id[6]]);
        reply(&doc! { "js": { "utf8": true }, "oidMachine": machine })
    })
}

fn free_monitoring<'a>(_: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async { reply(&doc! { "state": "disabled", "message": "Mosaic has no free monitoring" }) })
}

fn diagnostic_data<'a>(_: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async { reply(&doc! { "data": {} }) })
}

fn repl_set_get_status<'a>(_: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async {
        Err(Error::new(Code::UnknownError, "replSetGetStatus is not supported through mongos")
            .with_extra(rawdoc! { "info": "mongos" }))
    })
}

fn nothing<'a>(_: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async { Ok(Reply::empty_ok()) })
}
