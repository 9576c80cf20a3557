//! What a router refuses: `compact`, profiling.

use bson::rawdoc;
use futures_util::future::BoxFuture;

use crate::bsonx;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};

pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("compact", Access::DbAdmin, "refused: connect to the shard's members themselves", compact),
    CommandSpec::new(
        "profile",
        Access::DbAdmin,
        "the router's slow-operation threshold; profiling is refused",
        profile,
    ),
];

fn compact<'a>(_: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async { Err(Error::new(Code::CommandNotSupported, "compact not allowed through mongos")) })
}

fn profile<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let level = bsonx::as_int(request.argument()?);
        if !matches!(level, Some(-1 | 0)) {
            return Err(Error::new(
                Code::BadValue,
                "Profiling is not permitted on mongoS: the 'profile' field should be 0 to change 'slowms', 'sampleRate', \
                 or 'filter' settings for logging, or -1 to view current values",
            ));
        }
        if level == Some(0) && ["slowms", "sampleRate", "filter"].iter().any(|f| request.get(f).is_some()) {
            return Err(Error::new(
                Code::CommandNotSupported,
                "the threshold of slow operations is set in the router's configuration (operationProfiling.slowOpThresholdMs)",
            ));
        }
        let slow = ctx.router.config.log.slow_op.map_or(-1, |d| d.as_millis() as i32);
        Ok(Reply::ok(rawdoc! { "was": 0, "slowms": slow, "sampleRate": 1.0 }))
    })
}
