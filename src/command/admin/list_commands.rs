//! `listCommands`: the command table.

use bson::{Document, doc};
use futures_util::future::BoxFuture;

use super::reply;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request, all};
use crate::error::Result;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("listCommands", Access::Open, "the commands of this router", list_commands).secondary_ok()];

fn list_commands<'a>(_: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async {
        let mut specs: Vec<_> = all().collect();
        specs.sort_unstable_by_key(|spec| spec.name);
        let commands: Document = specs
            .into_iter()
            .map(|spec| {
                let row = doc! {
                    "help": spec.help,
                    "requiresAuth": spec.access != Access::Open,
                    "secondaryOk": spec.secondary_ok,
                    "adminOnly": spec.admin_only,
                    "apiVersions": [],
                    "deprecatedApiVersions": [],
                };
                (spec.name.to_owned(), row.into())
            })
            .collect();
        reply(&doc! { "commands": commands })
    })
}
