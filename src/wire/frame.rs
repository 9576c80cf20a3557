//! Cuts a byte stream into messages.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

use super::MAX_MESSAGE;
use super::header::{HEADER_LEN, int32};

/// What one read call asks for at least.
const READ_SIZE: usize = 16 * 1024;
/// A buffer for a large message grows by at most this much ahead of the bytes that came.
const GROW_SIZE: usize = 1024 * 1024;

thread_local! {
    /// Reads land here first: a connection without a message under way owns no buffer.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_SIZE]);
}

/// Reads whole messages from a stream. While no message has begun to arrive it holds no memory.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: BytesMut,
}

impl FrameReader {
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that have arrived and have not been given out.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// The next whole message that has arrived already.
    ///
    /// # Errors
    /// `InvalidData` where the next header's length cannot be one: the stream is of no more use.
    pub fn next_buffered(&mut self) -> io::Result<Option<Bytes>> {
        let Some(length) = int32(&self.buffer, 0) else { return Ok(None) };
        let length = check_length(length)?;
        if self.buffer.len() < length {
            return Ok(None);
        }
        let frame =
            if self.buffer.len() == length { std::mem::take(&mut self.buffer) } else { self.buffer.split_to(length) };
        Ok(Some(frame.freeze()))
    }

    /// The next message; `None` where the stream ended between messages.
    ///
    /// # Errors
    /// What the stream gives, `InvalidData` for an impossible length, `UnexpectedEof` inside a message.
    pub async fn read<R: AsyncRead + Unpin>(&mut self, stream: &mut R) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(frame) = self.next_buffered()? {
                return Ok(Some(frame));
            }
            if poll_fn(|cx| self.poll_fill(cx, stream)).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// Reads once; gives how many bytes came, 0 at the end of the stream. Loses nothing when dropped while pending.
    pub fn poll_fill<R: AsyncRead + Unpin>(&mut self, cx: &mut Context<'_>, stream: &mut R) -> Poll<io::Result<usize>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut read = ReadBuf::new(scratch);
            ready!(Pin::new(stream).poll_read(cx, &mut read))?;
            self.grow(read.filled().len());
            self.buffer.extend_from_slice(read.filled());
            Poll::Ready(Ok(read.filled().len()))
        })
    }

    /// Makes room for `more` bytes, and for the rest of the message under way as far as that is not too far ahead.
    fn grow(&mut self, more: usize) {
        let wanted = match int32(&self.buffer, 0).and_then(|n| usize::try_from(n).ok()) {
            Some(length) => length.saturating_sub(self.buffer.len()).min(GROW_SIZE),
            None => 0,
        };
        self.buffer.reserve(more.max(wanted));
    }
}

/// A message's length from its header, if it may be one.
fn check_length(length: i32) -> io::Result<usize> {
    match usize::try_from(length) {
        Ok(n) if (HEADER_LEN..=MAX_MESSAGE).contains(&n) => Ok(n),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes is not possible"))),
    }
}
