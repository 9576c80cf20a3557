//! The 16 bytes in front of every message.

use crate::bsonx::int32;

/// Length of a message header in bytes.
pub const HEADER_LEN: usize = 16;

/// What kind of message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum OpCode {
    Reply = 1,
    Query = 2004,
    Compressed = 2012,
    Msg = 2013,
}

impl OpCode {
    /// The op code with this number, if the router speaks it.
    pub fn from_i32(code: i32) -> Option<Self> {
        Some(match code {
            1 => Self::Reply,
            2004 => Self::Query,
            2012 => Self::Compressed,
            2013 => Self::Msg,
            _ => return None,
        })
    }
}

/// A message header: four little-endian 32-bit integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes in the message, header included.
    pub length: i32,
    pub request_id: i32,
    pub response_to: i32,
    pub op_code: i32,
}

impl Header {
    /// Reads the header at the start of `bytes`; `None` where there are fewer than 16.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Header {
            length: int32(bytes, 0)?,
            request_id: int32(bytes, 4)?,
            response_to: int32(bytes, 8)?,
            op_code: int32(bytes, 12)?,
        })
    }

    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        for (slot, value) in out.chunks_exact_mut(4).zip([self.length, self.request_id, self.response_to, self.op_code])
        {
            slot.copy_from_slice(&value.to_le_bytes());
        }
        out
    }
}
