//! `buildInfo`: which MongoDB this router behaves like, and which router it is.

use bson::doc;
use futures_util::future::BoxFuture;

use super::reply;
use crate::SERVER_VERSION;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::Result;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("buildInfo", Access::Open, "the version and build of this router", build_info)
        .aliases(&["buildinfo"])
        .secondary_ok()];

fn build_info<'a>(_: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async {
        let mut version: Vec<i32> = SERVER_VERSION.split('.').filter_map(|part| part.parse().ok()).collect();
        version.resize(4, 0);
        reply(&doc! {
            "version": SERVER_VERSION,
            "gitVersion": "",
            "modules": [],
            "allocator": "system",
            "javascriptEngine": "none",
            "sysInfo": "deprecated",
            "versionArray": version,
            "openssl": { "running": "disabled", "compiled": "disabled" },
            "buildEnvironment": {
                "distmod": "",
                "distarch": std::env::consts::ARCH,
                "cc": "",
                "target_arch": std::env::consts::ARCH,
                "target_os": std::env::consts::OS,
            },
            "bits": 64,
            "debug": cfg!(debug_assertions),
            "maxBsonObjectSize": crate::wire::MAX_BSON as i32,
            "storageEngines": [],
            "mosaicVersion": env!("CARGO_PKG_VERSION"),
        })
    })
}
