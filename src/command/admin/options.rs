//! `getCmdLineOpts`: how the router was started.

use bson::doc;
use futures_util::future::BoxFuture;

use super::reply;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::Result;

pub const COMMANDS: &[CommandSpec] = &[CommandSpec::new(
    "getCmdLineOpts",
    Access::Cluster,
    "the command line and the options in effect",
    get_cmd_line_opts,
)
.admin()
.secondary_ok()];

fn get_cmd_line_opts<'a>(ctx: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let config = &ctx.router.config;
        let mut parsed = config.parsed.clone();
        // Exporters tell a router by `sharding.configDB`, so it is there for the embedded store too.
        if parsed.get_document("sharding").is_ok_and(|s| s.contains_key("configDB")) {
            return reply(&doc! { "argv": config.argv.clone(), "parsed": parsed });
        }
        let mut sharding = parsed.get_document("sharding").cloned().unwrap_or_default();
        sharding.insert("configDB", config.catalog.config_db().unwrap_or_else(|| "embedded".to_owned()));
        parsed.insert("sharding", sharding);
        reply(&doc! { "argv": config.argv.clone(), "parsed": parsed })
    })
}
