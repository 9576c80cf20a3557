//! `hostInfo`: the machine the router runs on.

use bson::{DateTime, doc};
use futures_util::future::BoxFuture;

use super::proc::Machine;
use super::reply;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::Result;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("hostInfo", Access::Cluster, "the machine the router runs on", host_info)
        .secondary_ok()
        .fields(&[])];

fn host_info<'a>(ctx: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let machine = Machine::now();
        reply(&doc! {
            "system": {
                "currentTime": DateTime::now(),
                "hostname": ctx.router.identity.name(),
                "cpuAddrSize": 64,
                "memSizeMB": machine.memory_mb,
                "memLimitMB": machine.memory_mb,
                "numCores": machine.cores,
                "cpuArch": std::env::consts::ARCH,
                "numaEnabled": false,
            },
            "os": {
                "type": "Linux",
                "name": machine.os_name,
                "version": format!("Kernel {}", machine.kernel),
            },
            "extra": {
                "versionString": machine.version,
                "kernelVersion": machine.kernel,
                "cpuFrequencyMHz": machine.cpu_mhz,
                "cpuFeatures": machine.cpu_features,
                "pageSize": 4096_i64,
                "numPages": machine.memory_mb * 256,
                "maxOpenFiles": machine.max_open_files,
                "physicalCores": machine.cores,
                "mountInfo": [],
            },
        })
    })
}
