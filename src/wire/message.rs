//! Messages from clients and replies from shards: OP_MSG and what is wrapped in it.

use std::borrow::Cow;

use bson::RawDocument;
use bytes::{Buf, Bytes};
use smallvec::SmallVec;

use super::header::{HEADER_LEN, Header, OpCode};
use super::out::{Form, ReplyStyle};
use super::{Accepted, Compressor, MAX_BSON_INTERNAL, MAX_MESSAGE, compress, legacy};
use crate::bsonx::{self, int32};
use crate::error::{Code, Error};

/// Document sequences that a message may have; a server closes the connection that brings more.
const MAX_SEQUENCES: usize = 2;

/// The flag bits of an OP_MSG.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    pub const NONE: Flags = Flags(0);
    /// The message ends in a CRC-32C of everything before it.
    pub const CHECKSUM_PRESENT: Flags = Flags(1);
    /// Another message follows without a reply to this one (requests: no reply is wanted).
    pub const MORE_TO_COME: Flags = Flags(1 << 1);
    /// The client is ready for several replies to this request.
    pub const EXHAUST_ALLOWED: Flags = Flags(1 << 16);

    /// Bits 0–15 must be understood by the receiver; bits 16–31 may be ignored.
    const REQUIRED: u32 = 0xffff;
    const KNOWN_REQUIRED: u32 = 0b11;

    pub fn has(self, flag: Flags) -> bool {
        self.0 & flag.0 == flag.0
    }

    pub fn with(self, flag: Flags) -> Flags {
        Flags(self.0 | flag.0)
    }

    pub fn without(self, flag: Flags) -> Flags {
        Flags(self.0 & !flag.0)
    }
}

/// A document sequence (section kind 1) of a message.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// The field it stands for: `documents`, `updates`, `deletes`…
    pub id: Cow<'static, str>,
    /// The documents, one after the other; each one's length has been checked.
    pub docs: Bytes,
    /// How many documents there are.
    pub count: usize,
}

/// One message: a command from a client, or a reply from a server.
#[derive(Clone, Debug)]
pub struct Message {
    pub request_id: i32,
    pub response_to: i32,
    pub flags: Flags,
    /// The command or reply document (section kind 0). Its length is right; what is inside has not been checked.
    pub body: Bytes,
    pub sequences: SmallVec<[Sequence; 1]>,
    /// The compressor the sender used for this message.
    pub compressor: Option<Compressor>,
    /// It came as OP_QUERY and wants an OP_REPLY.
    pub legacy: bool,
}

/// Why a frame is not a message, and what the sender deserves for it.
#[derive(Clone, Debug)]
pub enum Malformed {
    /// The connection survives: answer `request_id` with the error, in `style`, unless the sender wants no reply.
    Reply { request_id: i32, style: ReplyStyle, quiet: bool, error: Error },
    /// The connection must be closed without a reply.
    Close(Error),
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::Reply { error, .. } | Malformed::Close(error) => error,
        }
    }
}

impl Message {
    /// The body as a document.
    pub fn document(&self) -> &RawDocument {
        bsonx::view(&self.body)
    }

    /// The name of the command: the first field of the body.
    pub fn command(&self) -> Option<&str> {
        bsonx::first_key(&self.body)
    }

    /// The documents under `name`: the sequence of that name, else the array field of the body.
    pub fn documents(&self, name: &str) -> Documents<'_> {
        match self.sequences.iter().find(|s| s.id == name) {
            Some(sequence) => Documents::Sequence(&sequence.docs),
            None => match self.array(name) {
                Some(array) => Documents::Array(array, bsonx::fields(array)),
                None => Documents::Sequence(&[]),
            },
        }
    }

    /// The bytes of an array field of the body.
    fn array(&self, name: &str) -> Option<&[u8]> {
        let field = bsonx::find(&self.body, name).filter(|field| field.kind == bsonx::kind::ARRAY)?;
        self.body.get(field.range())
    }

    /// How many documents [`Message::documents`] gives; `None` where there is neither sequence nor array.
    pub fn document_count(&self, name: &str) -> Option<usize> {
        match self.sequences.iter().find(|s| s.id == name) {
            Some(sequence) => Some(sequence.count),
            None => self.array(name).map(|array| Documents::Array(array, bsonx::fields(array)).count()),
        }
    }

    /// About how many bytes the message has without compression.
    pub fn logical_len(&self) -> usize {
        let sequences: usize = self.sequences.iter().map(|s| 6 + s.id.len() + s.docs.len()).sum();
        HEADER_LEN + 5 + self.body.len() + sequences
    }

    /// Checks every document to its last field, and that no sequence stands for a field the body has too.
    fn check(&self) -> Result<(), Error> {
        bsonx::check(&self.body)?;
        for sequence in &self.sequences {
            if bsonx::find(&self.body, &sequence.id).is_some() {
                let message = format!("'{}' is both a field of the body and a document sequence", sequence.id);
                return Err(Error::with_code(40433, message));
            }
            for doc in Documents::Sequence(&sequence.docs) {
                bsonx::check(doc?.as_bytes())?;
            }
        }
        Ok(())
    }

    /// Whether the sender wants no reply.
    pub fn unacknowledged(&self) -> bool {
        self.flags.has(Flags::MORE_TO_COME)
    }
}

/// The documents of a command's array or sequence; elements that are not documents are errors.
pub enum Documents<'a> {
    Sequence(&'a [u8]),
    /// The array's bytes and what of it is left.
    Array(&'a [u8], bsonx::Fields<'a>),
}

impl<'a> Iterator for Documents<'a> {
    type Item = Result<&'a RawDocument, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Documents::Sequence(rest) => {
                let length = usize::try_from(int32(rest, 0)?).ok()?;
                let (doc, tail) = rest.split_at_checked(length)?;
                *rest = tail;
                Some(Ok(bsonx::view(doc)))
            }
            Documents::Array(array, elements) => {
                // Servers take null for nothing.
                let element = elements.find(|element| element.kind != bsonx::kind::NULL)?;
                Some(match array.get(element.range()) {
                    Some(doc) if element.kind == bsonx::kind::DOCUMENT => Ok(bsonx::view(doc)),
                    _ => Err(Error::new(Code::TypeMismatch, "Every operation of the array must be a document")),
                })
            }
        }
    }
}

/// Reads one whole message of a client (header included) as it came off the wire and checks its documents to the
/// last field. The parts are slices of `frame`.
///
/// # Errors
/// As a 6.0 server treats the same bytes: see [`Malformed`].
pub fn decode(frame: Bytes) -> Result<Message, Malformed> {
    decode_accepting(frame, Accepted::ALL)
}

/// [`decode`], but only messages in these compressors (or in none) are read.
pub fn decode_accepting(frame: Bytes, accepted: Accepted) -> Result<Message, Malformed> {
    let (header, payload, compressor) = unpack(frame, accepted)?;
    if header.response_to != 0 {
        return Err(close(Code::ProtocolError, "A request claims to be a reply"));
    }
    let style = |form| ReplyStyle { form, compressor, ..ReplyStyle::default() };
    let mut message = match OpCode::from_i32(header.op_code) {
        Some(OpCode::Msg) => {
            let (flags, sections) = open_msg(header, payload, compressor)?;
            let style = ReplyStyle { checksum: flags.has(Flags::CHECKSUM_PRESENT), ..style(Form::Msg) };
            read_sections(header, flags, sections).and_then(|m| m.check().map(|()| m)).map_err(|error| {
                if error.is(Code::TooManyDocumentSequences) {
                    return Malformed::Close(error);
                }
                Malformed::Reply { request_id: header.request_id, style, quiet: flags.has(Flags::MORE_TO_COME), error }
            })?
        }
        Some(OpCode::Query) => {
            legacy::op_query(header, payload).map_err(|fault| fault.into_malformed(header, style))?
        }
        _ if header.op_code == legacy::GET_MORE => return Err(legacy::removed().into_malformed(header, style)),
        _ => return Err(unsupported(header.op_code)),
    };
    message.compressor = compressor;
    Ok(message)
}

/// Reads a reply of a server. Its documents are taken to be well-formed inside: only their lengths and ends are
/// checked. The parts are slices of `frame`.
///
/// # Errors
/// ProtocolError, InvalidBSON: the connection is of no more use.
pub fn decode_reply(frame: Bytes) -> Result<Message, Error> {
    let (header, payload, compressor) = unpack(frame, Accepted::ALL)?;
    if header.op_code != OpCode::Msg as i32 {
        return Err(unsupported(header.op_code).into());
    }
    let (flags, sections) = open_msg(header, payload, compressor)?;
    let mut message = read_sections(header, flags, sections)?;
    message.compressor = compressor;
    Ok(message)
}

/// Takes header and compression off a frame.
fn unpack(mut frame: Bytes, accepted: Accepted) -> Result<(Header, Bytes, Option<Compressor>), Malformed> {
    let header =
        Header::parse(&frame).ok_or_else(|| close(Code::ProtocolError, "A message is shorter than its header"))?;
    if usize::try_from(header.length) != Ok(frame.len()) || frame.len() > MAX_MESSAGE {
        return Err(close(Code::ProtocolError, "A message's length is not what its header says"));
    }
    frame.advance(HEADER_LEN);
    if header.op_code != OpCode::Compressed as i32 {
        return Ok((header, frame, None));
    }
    let (inner, payload, compressor) = compress::unwrap(header, &frame, accepted)?;
    Ok((inner, payload, Some(compressor)))
}

/// Reads an OP_MSG's flags and verifies its checksum; gives the flags and the sections.
fn open_msg(header: Header, mut payload: Bytes, compressor: Option<Compressor>) -> Result<(Flags, Bytes), Malformed> {
    let bits = int32(&payload, 0).ok_or_else(|| close(Code::ProtocolError, "An OP_MSG has no flags"))? as u32;
    let flags = Flags(bits);
    if bits & Flags::REQUIRED & !Flags::KNOWN_REQUIRED != 0 {
        return Err(close(Code::ProtocolError, format!("The message has flag bits that are not known: {bits:#x}")));
    }
    if flags.has(Flags::CHECKSUM_PRESENT) {
        let end = payload.len().checked_sub(4).filter(|end| *end >= 4).ok_or_else(|| Malformed::Reply {
            request_id: header.request_id,
            style: ReplyStyle { checksum: true, compressor, ..ReplyStyle::default() },
            quiet: flags.has(Flags::MORE_TO_COME),
            error: Error::with_code(51252, "A message is too short for its checksum"),
        })?;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&header.to_bytes()), &payload[..end]);
        if int32(&payload, end) != Some(crc as i32) {
            return Err(close(Code::ProtocolError, "A message's checksum does not match its bytes"));
        }
        payload.truncate(end);
    }
    payload.advance(4);
    Ok((flags, payload))
}

/// Reads the sections of an OP_MSG.
fn read_sections(header: Header, flags: Flags, mut rest: Bytes) -> Result<Message, Error> {
    let mut message = Message {
        request_id: header.request_id,
        response_to: header.response_to,
        flags,
        body: Bytes::new(),
        sequences: SmallVec::new(),
        compressor: None,
        legacy: false,
    };
    while let Some(&kind) = rest.first() {
        rest.advance(1);
        match kind {
            0 if message.body.is_empty() => {
                let length = document_length(&rest, MAX_BSON_INTERNAL)?;
                message.body = take(&mut rest, length);
            }
            0 => return Err(Error::with_code(40430, "A message may have only one body section")),
            1 if message.sequences.len() == MAX_SEQUENCES => {
                let text = format!("A message may have {MAX_SEQUENCES} document sequences at most");
                return Err(Error::new(Code::TooManyDocumentSequences, text));
            }
            1 => message.sequences.push(sequence(&mut rest, &message.sequences)?),
            2 => return Err(Error::new(Code::Unauthorized, "Security tokens are not supported")),
            _ => return Err(Error::with_code(40432, format!("A message section has the unknown kind {kind}"))),
        }
    }
    if message.body.is_empty() {
        return Err(Error::with_code(40587, "A message must have a body section"));
    }
    Ok(message)
}

/// Reads one document sequence off the front of `rest`.
fn sequence(rest: &mut Bytes, earlier: &[Sequence]) -> Result<Sequence, Error> {
    let short = |what: &'static str| Error::new(Code::Overflow, what);
    let size = int32(rest, 0).and_then(|n| usize::try_from(n).ok()).filter(|n| *n >= 5 && *n <= rest.len());
    let size = size.ok_or_else(|| short("A document sequence's size does not fit its message"))?;
    let mut section = take(rest, size);
    section.advance(4);
    let end = section.iter().position(|b| *b == 0).ok_or_else(|| short("A document sequence's name has no end"))?;
    let id = std::str::from_utf8(&section[..end])
        .map_err(|_| Error::new(Code::InvalidBSON, "A document sequence's name is not UTF-8"))?;
    if earlier.iter().any(|s| s.id == id) {
        return Err(Error::with_code(40431, format!("The document sequence '{id}' is there twice")));
    }
    let id = match id {
        "documents" => Cow::Borrowed("documents"),
        "updates" => Cow::Borrowed("updates"),
        "deletes" => Cow::Borrowed("deletes"),
        other => Cow::Owned(other.to_owned()),
    };
    section.advance(end + 1);
    let (mut at, mut count) = (0, 0);
    while at < section.len() {
        at += document_length(&section[at..], MAX_BSON_INTERNAL)?;
        count += 1;
    }
    Ok(Sequence { id, docs: section, count })
}

/// The length of the document at the start of `bytes`, checked against what is there, its end byte and `max`.
fn document_length(bytes: &[u8], max: usize) -> Result<usize, Error> {
    let length = int32(bytes, 0).and_then(|n| usize::try_from(n).ok()).filter(|n| *n >= 5 && *n <= bytes.len());
    let length = length.ok_or_else(|| Error::new(Code::InvalidBSON, "A document's length does not fit its message"))?;
    if length > max {
        return Err(Error::new(
            Code::BSONObjectTooLarge,
            format!("A document of {length} bytes is larger than the {max} bytes allowed"),
        ));
    }
    if bytes[length - 1] != 0 {
        return Err(Error::new(Code::InvalidBSON, "A document does not end where its length says"));
    }
    Ok(length)
}

/// Splits `count` bytes off the front; where that is all, without a second handle on the buffer.
fn take(rest: &mut Bytes, count: usize) -> Bytes {
    if count == rest.len() { std::mem::take(rest) } else { rest.split_to(count) }
}

pub(super) fn close(code: Code, message: impl Into<Cow<'static, str>>) -> Malformed {
    Malformed::Close(Error::new(code, message))
}

fn unsupported(op_code: i32) -> Malformed {
    close(Code::ProtocolError, format!("Op code {op_code} is not supported; use OP_MSG"))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
