//! What a router refuses: `compact`, profiling.

use bson::{RawBsonRef, rawdoc};
use futures_util::future::BoxFuture;

use crate::bsonx;
use crate::command::read::numbers::wrong_type;
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

/// Level 0 changes the threshold and the sample rate of the slow-operation log, -1 only tells them.
fn profile<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let level = match request.argument()? {
            level @ (RawBsonRef::Int32(_) | RawBsonRef::Int64(_) | RawBsonRef::Double(_)) => bsonx::as_int(level),
            other => return Err(wrong_type("profile", "profile", other, "number")),
        };
        if !matches!(level, Some(-1 | 0)) {
            return Err(Error::new(
                Code::BadValue,
                "Profiling is not permitted on mongoS: the 'profile' field should be 0 to change 'slowms', 'sampleRate', \
                 or 'filter' settings for logging, or -1 to view current values",
            ));
        }
        if request.get("filter").is_some() {
            return Err(Error::new(
                Code::CommandNotSupported,
                "a filter for slow operations is not built; 'slowms' and 'sampleRate' are",
            ));
        }
        let slow_ms = request.get("slowms").map(|v| number("slowms", v)).transpose()?;
        let rate = request.get("sampleRate").map(|v| number("sampleRate", v)).transpose()?;
        if rate.is_some_and(|r| !(0.0..=1.0).contains(&r)) {
            return Err(Error::new(Code::BadValue, "'sampleRate' must be between 0.0 and 1.0 inclusive"));
        }
        let slow = &ctx.router.stats.slow;
        let (was_ms, was_rate) = (slow.threshold(), slow.sample_rate());
        if level == Some(0) {
            if let Some(ms) = slow_ms {
                slow.set_threshold(ms as i64);
            }
            if let Some(rate) = rate {
                slow.set_sample_rate(rate);
            }
            if slow_ms.is_some() || rate.is_some() {
                tracing::info!(
                    slowms = slow.threshold(),
                    sample_rate = slow.sample_rate(),
                    "slow-operation log changed"
                );
            }
        }
        let was_ms = i32::try_from(was_ms).unwrap_or(i32::MAX);
        Ok(Reply::ok(rawdoc! { "was": 0, "slowms": was_ms, "sampleRate": was_rate }))
    })
}

fn number(name: &str, value: RawBsonRef<'_>) -> Result<f64> {
    match value {
        RawBsonRef::Int32(n) => Ok(f64::from(n)),
        RawBsonRef::Int64(n) => Ok(n as f64),
        RawBsonRef::Double(n) => Ok(n),
        other => Err(wrong_type("profile", name, other, "number")),
    }
}
