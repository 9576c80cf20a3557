//! Messages the router sends: commands to shards, replies to clients.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use smallvec::SmallVec;

use super::header::{HEADER_LEN, Header, OpCode};
use super::message::{Flags, Message, Sequence};
use super::{Compressor, compress, legacy};
use crate::bsonx;
use crate::error::Error;

/// A document sequence of an [`OutMsg`].
#[derive(Clone, Debug, PartialEq)]
pub struct OutSequence {
    pub id: Cow<'static, str>,
    /// The documents, in pieces of one or more whole documents each (slices of a client's message, usually).
    pub docs: SmallVec<[Bytes; 1]>,
}

impl From<Sequence> for OutSequence {
    fn from(sequence: Sequence) -> Self {
        OutSequence { id: sequence.id, docs: SmallVec::from_iter([sequence.docs]) }
    }
}

/// A command on its way to a shard.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutMsg {
    pub flags: Flags,
    /// The command document, `$db` included.
    pub body: Bytes,
    pub sequences: SmallVec<[OutSequence; 1]>,
}

impl OutMsg {
    /// A command without sequences.
    pub fn new(body: impl Into<Bytes>) -> Self {
        OutMsg { flags: Flags::NONE, body: body.into(), sequences: SmallVec::new() }
    }

    /// A command from a document built here.
    pub fn from_doc(doc: bson::RawDocumentBuf) -> Self {
        Self::new(doc.into_bytes())
    }

    /// A client's message as it is, without its checksum and exhaust flags.
    pub fn forward(message: &Message) -> Self {
        OutMsg {
            flags: Flags(message.flags.0 & Flags::MORE_TO_COME.0),
            body: message.body.clone(),
            sequences: message.sequences.iter().cloned().map(OutSequence::from).collect(),
        }
    }

    /// Whether the shard is to send no reply.
    pub fn unacknowledged(&self) -> bool {
        self.flags.has(Flags::MORE_TO_COME)
    }

    /// Bytes on the wire, uncompressed.
    pub fn encoded_len(&self) -> usize {
        let sequences: usize =
            self.sequences.iter().map(|s| 6 + s.id.len() + s.docs.iter().map(Bytes::len).sum::<usize>()).sum();
        HEADER_LEN + 5 + self.body.len() + sequences
    }

    /// Appends the whole message to `out`.
    pub fn encode(&self, request_id: i32, out: &mut BytesMut) {
        let length = self.encoded_len();
        out.reserve(length);
        let header = Header { length: length as i32, request_id, response_to: 0, op_code: OpCode::Msg as i32 };
        out.extend_from_slice(&header.to_bytes());
        out.put_u32_le(self.flags.without(Flags::CHECKSUM_PRESENT).0);
        out.put_u8(0);
        out.extend_from_slice(&self.body);
        for sequence in &self.sequences {
            let size = 5 + sequence.id.len() + sequence.docs.iter().map(Bytes::len).sum::<usize>();
            out.put_u8(1);
            out.put_i32_le(size as i32);
            out.extend_from_slice(sequence.id.as_bytes());
            out.put_u8(0);
            for docs in &sequence.docs {
                out.extend_from_slice(docs);
            }
        }
    }

    /// Appends the message inside an OP_COMPRESSED.
    pub fn encode_compressed(&self, request_id: i32, compressor: Compressor, out: &mut BytesMut) {
        let start = out.len();
        self.encode(request_id, out);
        compress::wrap(compressor, out, start);
    }
}

/// The kind of message a reply is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    #[default]
    Msg,
    /// OP_REPLY, for a command that came as OP_QUERY.
    Reply,
    /// OP_REPLY with the failure flag, for queries of the old protocol.
    QueryFailure,
}

/// How a reply must look on the wire, which depends on the request it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyStyle {
    pub form: Form,
    /// Add a CRC-32C.
    pub checksum: bool,
    /// Another reply to the same request follows (exhaust).
    pub more_to_come: bool,
    pub compressor: Option<Compressor>,
}

impl ReplyStyle {
    /// As the request was sent: servers answer a checksum with one, and a compressor with the same.
    pub fn for_request(request: &Message) -> Self {
        ReplyStyle {
            form: if request.legacy { Form::Reply } else { Form::Msg },
            checksum: request.flags.has(Flags::CHECKSUM_PRESENT),
            more_to_come: false,
            compressor: request.compressor,
        }
    }
}

/// What comes before the body of a reply in the plain style, which many replies have; `None` in any other style.
pub fn reply_head(
    request_id: i32,
    response_to: i32,
    body_len: usize,
    style: ReplyStyle,
) -> Option<[u8; HEADER_LEN + 5]> {
    if style.form != Form::Msg || style.checksum || style.compressor.is_some() {
        return None;
    }
    let length = (HEADER_LEN + 5 + body_len) as i32;
    let header = Header { length, request_id, response_to, op_code: OpCode::Msg as i32 };
    let flags = if style.more_to_come { Flags::MORE_TO_COME } else { Flags::NONE };
    let mut head = [0; HEADER_LEN + 5];
    head[..HEADER_LEN].copy_from_slice(&header.to_bytes());
    head[HEADER_LEN..HEADER_LEN + 4].copy_from_slice(&flags.0.to_le_bytes());
    Some(head)
}

/// Appends a reply with `body` to `out`.
pub fn reply(request_id: i32, response_to: i32, body: &[u8], style: ReplyStyle, out: &mut BytesMut) {
    let start = out.len();
    match style.form {
        Form::Msg => op_msg(request_id, response_to, body, style, out),
        Form::Reply => legacy::op_reply(request_id, response_to, legacy::AWAIT_CAPABLE, body, out),
        Form::QueryFailure => legacy::op_reply(request_id, response_to, legacy::QUERY_FAILURE, body, out),
    }
    if let Some(compressor) = style.compressor {
        compress::wrap(compressor, out, start);
    }
}

/// The document that tells of `error` in a reply of this form.
pub fn error_reply(error: &Error, form: Form) -> Vec<u8> {
    match form {
        Form::Msg | Form::Reply => error.to_reply().into_bytes(),
        Form::QueryFailure => {
            let mut doc = bsonx::Writer::new();
            doc.str("$err", error.message()).int32("code", error.code()).double("ok", 0.0);
            doc.finish()
        }
    }
}

fn op_msg(request_id: i32, response_to: i32, body: &[u8], style: ReplyStyle, out: &mut BytesMut) {
    let start = out.len();
    let mut flags = Flags::NONE;
    if style.more_to_come {
        flags = flags.with(Flags::MORE_TO_COME);
    }
    if style.checksum {
        flags = flags.with(Flags::CHECKSUM_PRESENT);
    }
    let length = HEADER_LEN + 5 + body.len() + if style.checksum { 4 } else { 0 };
    out.reserve(length);
    let header = Header { length: length as i32, request_id, response_to, op_code: OpCode::Msg as i32 };
    out.extend_from_slice(&header.to_bytes());
    out.put_u32_le(flags.0);
    out.put_u8(0);
    out.extend_from_slice(body);
    if style.checksum {
        let crc = crc32c::crc32c(&out[start..]);
        out.put_u32_le(crc);
    }
}
