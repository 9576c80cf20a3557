//! `killCursors`.

use bson::{RawArrayBuf, RawBsonRef, rawdoc};
use futures_util::future::BoxFuture;

use super::numbers::wrong_type;
use crate::command::request::null_array;
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
        Some(RawBsonRef::Null) => return Err(null_array("cursors")),
        Some(other) => return Err(wrong_type("killCursors", "cursors", other, "array")),
        None => {
            return Err(Error::with_code(40414, "BSON field 'killCursors.cursors' is missing but a required field"));
        }
    };
    let id = |(i, value)| match value {
        Ok(RawBsonRef::Int64(id)) => Some(Ok(id)),
        // As good as missing, in arrays too.
        Ok(RawBsonRef::Null) => None,
        Ok(other) => Some(Err(wrong_type("killCursors", &format!("cursors.{i}"), other, "long"))),
        Err(e) => Some(Err(Error::from(e))),
    };
    array.into_iter().enumerate().filter_map(id).collect()
}
