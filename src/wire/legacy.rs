//! What is left of the old protocol: OP_QUERY for the first hello, answered by OP_REPLY.

use bytes::{BufMut, Bytes, BytesMut};

use super::header::{Header, OpCode};
use super::message::{Malformed, Message, close};
use crate::error::Code;

/// Reads an OP_QUERY; only hello and isMaster on `<db>.$cmd` are accepted.
pub(super) fn op_query(_header: Header, _frame: Bytes) -> Result<Message, Malformed> {
    Err(close(Code::ProtocolError, "OP_QUERY is not supported; use OP_MSG"))
}

/// Appends an OP_REPLY with one document.
pub(super) fn op_reply(request_id: i32, response_to: i32, body: &[u8], out: &mut BytesMut) {
    let header = Header { length: (36 + body.len()) as i32, request_id, response_to, op_code: OpCode::Reply as i32 };
    out.extend_from_slice(&header.to_bytes());
    out.put_i32_le(8); // AwaitCapable, as servers have set it since 1.6
    out.put_i64_le(0);
    out.put_i32_le(0);
    out.put_i32_le(1);
    out.extend_from_slice(body);
}
