//! `killCursors`.

use bson::{RawArrayBuf, RawBsonRef, rawdoc};
use futures_util::future::BoxFuture;

use super::numbers::wrong_type;
use crate::command::{Ctx, Reply, Request};
use crate::error::{Error, Result};

pub fn kill_cursors<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        request.namespace()?;
        let ids = cursor_ids(request)?;
        let (mut killed, mut unknown) = (RawArrayBuf::new(), RawArrayBuf::new());
        for id in ids {
            if ctx.router.cursors.kill(id) { &mut killed } else { &mut unknown }.push(id);
        }
        Ok(Reply::ok(rawdoc! {
            "cursorsKilled": killed,
            "cursorsNotFound": unknown,
            "cursorsAlive": [],
            "cursorsUnknown": [],
        }))
    })
}

fn cursor_ids(request: &Request) -> Result<Vec<i64>> {
    let array = match request.get("cursors") {
        Some(RawBsonRef::Array(array)) => array,
        Some(other) => return Err(wrong_type("killCursors", "cursors", other, "array")),
        None => {
            return Err(Error::with_code(40414, "BSON field 'killCursors.cursors' is missing but a required field"));
        }
    };
    let id = |(i, value)| match value {
        Ok(RawBsonRef::Int64(id)) => Ok(id),
        Ok(other) => Err(wrong_type("killCursors", &format!("cursors.{i}"), other, "long")),
        Err(e) => Err(Error::from(e)),
    };
    array.into_iter().enumerate().map(id).collect()
}
