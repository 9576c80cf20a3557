//! OP_COMPRESSED: another message inside, compressed.
//!
//! zstd is the C library's. The pure-Rust encoder took 4 to 6 times its time for a fifth more bytes, the decoder twice
//! its time for large messages (measured on 300 bytes to 16 MB), and that decoder rests on unsafe code too, which fewer
//! have tried to break.

use std::cell::RefCell;

use bytes::{BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::MAX_MESSAGE;
use super::header::{HEADER_LEN, Header, OpCode};
use super::message::{Malformed, close};
use crate::bsonx::int32;
use crate::error::Code;

/// Bytes between the header of an OP_COMPRESSED and its compressed data: op code, size, compressor.
const PREFIX: usize = 9;
const ZSTD_LEVEL: i32 = 3;
/// A decompressed message grows by this much at a time, so that memory follows data and not claims.
const INFLATE_STEP: usize = 256 * 1024;

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
    /// Those that may be negotiated, best first.
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

    /// The compressor of that name, if it may be negotiated.
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

/// The compressors that messages may come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted(u8);

impl Accepted {
    pub const ALL: Accepted = Accepted(0xff);

    pub fn only(compressors: &[Compressor]) -> Self {
        Accepted(compressors.iter().fold(0, |set, c| set | 1 << *c as u8))
    }

    pub fn has(self, compressor: Compressor) -> bool {
        self.0 & 1 << compressor as u8 != 0
    }
}

/// Contexts that are dear to set up are kept per thread.
struct Contexts {
    snappy: snap::raw::Encoder,
    deflate: Compress,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    unzstd: Option<zstd::bulk::Decompressor<'static>>,
}

thread_local! {
    static CONTEXTS: RefCell<Option<Box<Contexts>>> = const { RefCell::new(None) };
}

fn with_contexts<T>(work: impl FnOnce(&mut Contexts) -> T) -> T {
    CONTEXTS.with_borrow_mut(|slot| {
        work(slot.get_or_insert_with(|| {
            Box::new(Contexts {
                snappy: snap::raw::Encoder::new(),
                deflate: Compress::new(Compression::default(), true),
                zstd: zstd::bulk::Compressor::new(ZSTD_LEVEL).ok(),
                unzstd: zstd::bulk::Decompressor::new().ok(),
            })
        }))
    })
}

/// How many bytes the message in a frame says that it has without compression; `None` for one that is not compressed.
pub fn inflated_len(frame: &[u8]) -> Option<usize> {
    Header::parse(frame).filter(|header| header.op_code == OpCode::Compressed as i32)?;
    usize::try_from(int32(frame, HEADER_LEN + 4)?).ok()
}

/// Decompresses the message in `body` (an OP_COMPRESSED without its header). Gives the header the inner message would
/// have, what follows that header, and the compressor. As on a server, a compressor counts that is switched on, whether
/// this connection's hello agreed on it or not.
pub(super) fn unwrap(outer: Header, body: &[u8], accepted: Accepted) -> Result<(Header, Bytes, Compressor), Malformed> {
    let bad = |what: &'static str| close(Code::ProtocolError, what);
    let (Some(op_code), Some(size), Some(&number)) = (int32(body, 0), int32(body, 4), body.get(8)) else {
        return Err(bad("A compressed message is too short"));
    };
    let size = usize::try_from(size).ok().filter(|n| *n <= MAX_MESSAGE - HEADER_LEN);
    let size = size.ok_or_else(|| bad("A compressed message says it is larger than messages may be"))?;
    let compressor = Compressor::by_number(number).ok_or_else(|| bad("A message uses an unknown compressor"))?;
    if !accepted.has(compressor) {
        return Err(bad("A message uses a compressor that is switched off"));
    }
    let message = inflate(compressor, &body[PREFIX..], size);
    let message = message.filter(|m| m.len() == size);
    let message = message.ok_or_else(|| bad("A compressed message does not decompress to the size it says"))?;
    let inner = Header { length: (size + HEADER_LEN) as i32, op_code, ..outer };
    Ok((inner, Bytes::from(message), compressor))
}

/// Decompresses `data`; `None` where it is malformed or gives more than `size` bytes.
fn inflate(compressor: Compressor, data: &[u8], size: usize) -> Option<Vec<u8>> {
    match compressor {
        Compressor::Noop => (data.len() == size).then(|| data.to_vec()),
        Compressor::Snappy => {
            if snap::raw::decompress_len(data).ok()? != size {
                return None;
            }
            // Zeroed memory is mapped when it is first written to: a lie about the size costs nothing.
            let mut out = vec![0; size];
            let written = snap::raw::Decoder::new().decompress(data, &mut out).ok()?;
            (written == size).then_some(out)
        }
        Compressor::Zlib => inflate_zlib(data, size),
        Compressor::Zstd => with_contexts(|c| c.unzstd.as_mut()?.decompress(data, size).ok()),
    }
}

fn inflate_zlib(data: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut state = Decompress::new(true);
    let mut out = Vec::with_capacity(size.min(INFLATE_STEP));
    loop {
        // Not `Finish`, which takes the room there is for all there will be.
        let taken = state.total_in() as usize;
        match state.decompress_vec(data.get(taken..)?, &mut out, FlushDecompress::None).ok()? {
            Status::StreamEnd => return Some(out),
            // Out of room: grow towards the promised size, once.
            _ if out.len() == out.capacity() && out.len() < size => {
                out.reserve_exact(INFLATE_STEP.max(out.len()).min(size - out.len()));
            }
            // Full but not at the end: the end marker may still need a byte of room to be read.
            _ if out.len() == size && out.len() == out.capacity() => out.reserve_exact(1),
            _ => return None,
        }
        if out.len() > size {
            return None;
        }
    }
}

/// Wraps the message in `out[start..]` (header included) into an OP_COMPRESSED in place. Should the compressor fail,
/// which it does only for want of memory, the message is left as it is, which is valid too.
pub(super) fn wrap(compressor: Compressor, out: &mut BytesMut, start: usize) {
    let Some(header) = out.get(start..).and_then(Header::parse) else { return };
    let message = out.split_off(start);
    let payload = &message[HEADER_LEN..];
    out.extend_from_slice(&[0; HEADER_LEN]);
    out.put_i32_le(header.op_code);
    out.put_i32_le(payload.len() as i32);
    out.put_u8(compressor as u8);
    if deflate(compressor, payload, out).is_none() {
        out.truncate(start);
        out.extend_from_slice(&message);
        return;
    }
    let length = (out.len() - start) as i32;
    let outer = Header { length, op_code: OpCode::Compressed as i32, ..header };
    out[start..start + HEADER_LEN].copy_from_slice(&outer.to_bytes());
}

/// Appends the compressed `data`.
fn deflate(compressor: Compressor, data: &[u8], out: &mut BytesMut) -> Option<()> {
    let start = out.len();
    match compressor {
        Compressor::Noop => out.extend_from_slice(data),
        Compressor::Snappy => {
            out.resize(start + snap::raw::max_compress_len(data.len()), 0);
            let written = with_contexts(|c| c.snappy.compress(data, &mut out[start..])).ok()?;
            out.truncate(start + written);
        }
        Compressor::Zlib => out.extend_from_slice(&with_contexts(|c| deflate_zlib(&mut c.deflate, data))?),
        Compressor::Zstd => out.extend_from_slice(&with_contexts(|c| c.zstd.as_mut()?.compress(data).ok())?),
    }
    Some(())
}

fn deflate_zlib(state: &mut Compress, data: &[u8]) -> Option<Vec<u8>> {
    state.reset();
    // Deflate stores what it cannot shrink: at most 5 bytes for each 16 KB, and a few around it.
    let mut out = Vec::with_capacity(data.len() / 2 + 64);
    loop {
        let taken = state.total_in() as usize;
        match state.compress_vec(data.get(taken..)?, &mut out, FlushCompress::Finish).ok()? {
            Status::StreamEnd => return Some(out),
            _ => out.reserve(data.len() / 2 + 64),
        }
    }
}
