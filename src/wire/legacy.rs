//! What is left of the old protocol: OP_QUERY for the first hello, answered by OP_REPLY.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use smallvec::SmallVec;

use super::MAX_BSON_INTERNAL;
use super::header::{HEADER_LEN, Header, OpCode};
use super::message::{Flags, Malformed, Message, close};
use super::out::{Form, ReplyStyle};
use crate::bsonx::{self, int32, kind};
use crate::error::{Code, Error};

/// The op code of the old getMore. It is the one removed operation that is answered instead of hung up on.
pub(super) const GET_MORE: i32 = 2005;

/// Flags of OP_REPLY.
pub(super) const QUERY_FAILURE: i32 = 1 << 1;
pub(super) const AWAIT_CAPABLE: i32 = 1 << 3;

/// A flag of OP_QUERY.
const EXHAUST: i32 = 1 << 6;

/// The commands that may still come as OP_QUERY: what a client sends before it knows that it may use OP_MSG.
const ALLOWED: &[&str] =
    &["hello", "isMaster", "ismaster", "buildInfo", "buildinfo", "saslStart", "saslContinue", "authenticate"];

/// How an OP_QUERY fails.
pub(super) enum Fault {
    Close(Error),
    Reply(Form, Error),
}

impl Fault {
    pub(super) fn into_malformed(self, header: Header, style: impl Fn(Form) -> ReplyStyle) -> Malformed {
        match self {
            Fault::Close(error) => Malformed::Close(error),
            Fault::Reply(form, error) => {
                Malformed::Reply { request_id: header.request_id, style: style(form), quiet: false, error }
            }
        }
    }
}

/// The answer to queries and getMores of the old protocol.
pub(super) fn removed() -> Fault {
    let error =
        Error::with_code(5_739_101, "This operation of the old wire protocol is no longer supported; use OP_MSG");
    Fault::Reply(Form::QueryFailure, error)
}

/// Reads an OP_QUERY without its header; only a few commands on `<db>.$cmd` are accepted. The message has the form
/// of an OP_MSG: a wrapped `$query` is unwrapped, `$db` is added.
pub(super) fn op_query(header: Header, mut rest: Bytes) -> Result<Message, Fault> {
    let close = |what: &'static str| match close(Code::ProtocolError, what) {
        Malformed::Close(error) | Malformed::Reply { error, .. } => Fault::Close(error),
    };
    let flags = int32(&rest, 0).ok_or_else(|| close("An OP_QUERY is too short"))?;
    rest.advance(4);
    let end = rest.iter().position(|b| *b == 0).ok_or_else(|| close("An OP_QUERY's namespace has no end"))?;
    let namespace = rest.split_to(end);
    let namespace = std::str::from_utf8(&namespace).map_err(|_| close("An OP_QUERY's namespace is not UTF-8"))?;
    rest.advance(1);
    let wanted = int32(&rest, 4).ok_or_else(|| close("An OP_QUERY is too short"))?;
    rest.advance(8);
    let Some(db) = namespace.strip_suffix(".$cmd") else { return Err(removed()) };
    let body = command(db, flags, wanted, &rest).map_err(|error| Fault::Reply(Form::Reply, error))?;
    Ok(Message {
        request_id: header.request_id,
        response_to: header.response_to,
        flags: Flags::NONE,
        body: body.into(),
        sequences: SmallVec::new(),
        compressor: None,
        legacy: true,
    })
}

/// The command in an OP_QUERY as the body of an OP_MSG.
fn command(db: &str, flags: i32, wanted: i32, rest: &[u8]) -> Result<Vec<u8>, Error> {
    let length = int32(rest, 0).and_then(|n| usize::try_from(n).ok()).filter(|n| *n <= rest.len());
    let query =
        length.map(|n| &rest[..n]).ok_or_else(|| Error::new(Code::InvalidBSON, "An OP_QUERY's query is cut off"))?;
    bsonx::check(query)?;
    if query.len() < rest.len() {
        bsonx::check(&rest[query.len()..])?; // a projection, without meaning for commands
    }
    if query.len() > MAX_BSON_INTERNAL {
        return Err(Error::new(Code::BSONObjectTooLarge, "An OP_QUERY's query is too large"));
    }
    if wanted != 1 && wanted != -1 {
        let message = format!("A command sent as OP_QUERY must ask for 1 or -1 documents, not for {wanted}");
        return Err(Error::with_code(16979, message));
    }
    if flags & EXHAUST != 0 {
        return Err(Error::with_code(18527, "A command sent as OP_QUERY cannot have the exhaust flag"));
    }
    let inner = match bsonx::first_key(query) {
        Some("$query" | "query") => {
            bsonx::fields(query).next().filter(|f| f.kind == kind::DOCUMENT).map_or(query, |f| &query[f.range()])
        }
        _ => query,
    };
    let name = bsonx::first_key(inner).unwrap_or_default();
    if !ALLOWED.contains(&name) {
        let message = format!("The command '{name}' cannot be sent as OP_QUERY; use OP_MSG");
        return Err(Error::with_code(352, message));
    }
    if bsonx::find(inner, "$db").is_some() {
        return Err(Error::with_code(40621, "A command sent as OP_QUERY cannot have the field $db"));
    }
    let mut body = bsonx::Writer::copy(inner);
    body.str("$db", db);
    Ok(body.finish())
}

/// Appends an OP_REPLY with one document.
pub(super) fn op_reply(request_id: i32, response_to: i32, flags: i32, body: &[u8], out: &mut BytesMut) {
    let length = (HEADER_LEN + 20 + body.len()) as i32;
    let header = Header { length, request_id, response_to, op_code: OpCode::Reply as i32 };
    out.extend_from_slice(&header.to_bytes());
    out.put_i32_le(flags);
    out.put_i64_le(0); // cursor
    out.put_i32_le(0); // position in the cursor
    out.put_i32_le(1); // documents
    out.extend_from_slice(body);
}
