//! `getLog`, `clearLog`, `logRotate`.

use bson::{Bson, RawBsonRef, doc};
use futures_util::future::BoxFuture;

use super::reply;
use crate::bsonx;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::error::{Code, Error, Result};
use crate::stats::log;

pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("getLog", Access::Cluster, "the newest lines of the log: 'global', 'startupWarnings' or '*'", get)
        .admin()
        .fields(&[])
        .secondary_ok(),
    CommandSpec::new("clearLog", Access::Cluster, "forgets the newest lines of the log 'global'", clear)
        .admin()
        .secondary_ok(),
    CommandSpec::new("logRotate", Access::Cluster, "moves the log file aside and starts a new one", rotate)
        .admin()
        .secondary_ok(),
];

fn get<'a>(_: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let (lines, total) = match log_name(request)? {
            "*" => return reply(&doc! { "names": ["global", "startupWarnings"] }),
            "global" => log::recent(),
            "startupWarnings" => log::startup_warnings(),
            other => return Err(Error::new(Code::OperationFailed, format!("No log named '{other}'"))),
        };
        reply(&doc! { "totalLinesWritten": Bson::from(total as i32), "log": lines })
    })
}

fn clear<'a>(_: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        match log_name(request)? {
            "global" => log::clear(),
            _ => return Err(Error::new(Code::InvalidOptions, "Only the 'global' log can be cleared")),
        }
        Ok(Reply::empty_ok())
    })
}

fn log_name(request: &Request) -> Result<&str> {
    match request.argument()? {
        RawBsonRef::String(name) => Ok(name),
        other => Err(Error::new(
            Code::TypeMismatch,
            format!(
                "BSON field '{0}.{0}' is the wrong type '{1}', expected type 'string'",
                request.spec.name,
                bsonx::type_name(other.element_type())
            ),
        )),
    }
}

fn rotate<'a>(_: &'a Ctx, _: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async {
        log::rotate()?;
        Ok(Reply::empty_ok())
    })
}
