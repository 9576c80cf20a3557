//! `killOp`: "shard:opid" is passed on to the shard, a number is an operation of this router.

use bson::{RawBsonRef, rawdoc};
use futures_util::future::BoxFuture;

use crate::bsonx;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::shard::Retryable;
use crate::wire::OutMsg;

pub const COMMANDS: &[CommandSpec] =
    &[CommandSpec::new("killOp", Access::Cluster, "stops an operation of a shard or of this router", kill_op)
        .aliases(&["killop"])
        .admin()
        .secondary_ok()];

fn kill_op<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        match request.get("op") {
            Some(RawBsonRef::String(text)) => {
                let (shard, opid) = parse(text)?;
                if ctx.snapshot.shard(shard).is_err() {
                    ctx.router.catalog.confirm().await?.shard(shard)?;
                }
                let msg = OutMsg::from_doc(rawdoc! { "killOp": 1, "op": opid, "$db": "admin" });
                // As mongos: the answer does not tell whether there was such an operation.
                if let Err(error) = ctx.send_primary(shard, Retryable::No, &msg).await {
                    tracing::info!(shard, opid, %error, "killOp was not carried out");
                }
                Ok(Reply::ok(rawdoc! { "shard": shard, "shardid": opid }))
            }
            Some(number) => match bsonx::as_int(number) {
                Some(id) => {
                    let known = u32::try_from(id).is_ok_and(|id| ctx.router.ops.kill(id));
                    tracing::debug!(id, known, "killOp");
                    Ok(Reply::empty_ok())
                }
                None => Err(Error::new(
                    Code::TypeMismatch,
                    format!(
                        "Expected field \"op\" to have numeric type, but found {}",
                        bsonx::type_name(number.element_type())
                    ),
                )),
            },
            None => Err(Error::new(Code::NoSuchKey, "Did not provide \"op\" field")),
        }
    })
}

/// The shard and the operation's number there.
fn parse(text: &str) -> Result<(&str, i32)> {
    let bad = || {
        Error::with_code(
            28625,
            format!("The op argument to killOp must be of the format shardid:opid but found \"{text}\""),
        )
    };
    let (shard, id) = text.split_once(':').ok_or_else(bad)?;
    if shard.is_empty() || id.is_empty() {
        return Err(bad());
    }
    let id = id.parse::<i32>().map_err(|_| {
        Error::new(Code::FailedToParse, format!("the operation's number in \"{text}\" is not a 32-bit integer"))
    })?;
    Ok((shard, id))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn operations_of_shards() {
        assert_eq!(parse("sh0:123").unwrap(), ("sh0", 123));
        assert_eq!(parse("sh0:-5").unwrap(), ("sh0", -5));
        for bad in ["123", ":5", "sh0:", ""] {
            assert_eq!(parse(bad).unwrap_err().code(), 28625, "{bad}");
        }
        assert_eq!(parse("sh0:x").unwrap_err().code(), 9);
        assert_eq!(parse("sh0:99999999999").unwrap_err().code(), 9);
    }
}
