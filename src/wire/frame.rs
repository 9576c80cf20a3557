//! Cuts a byte stream into messages.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::io::poll_read_buf;

use super::MAX_MESSAGE;
use super::header::HEADER_LEN;
use crate::bsonx::int32;

/// What one read call asks for, but for large messages.
const READ_SIZE: usize = 16 * 1024;

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
        let missing = self.missing();
        if missing > READ_SIZE {
            // A large message: straight into its buffer, which doubles as bytes come, never far ahead of them.
            self.buffer.reserve(missing.min(self.buffer.len().max(READ_SIZE)));
            return poll_read_buf(Pin::new(stream), cx, &mut self.buffer);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut read = ReadBuf::new(scratch);
            ready!(Pin::new(stream).poll_read(cx, &mut read))?;
            self.buffer.reserve(read.filled().len().max(missing));
            self.buffer.extend_from_slice(read.filled());
            Poll::Ready(Ok(read.filled().len()))
        })
    }

    /// How many bytes of the message under way have not come, as far as its header says.
    fn missing(&self) -> usize {
        let length = int32(&self.buffer, 0).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        length.saturating_sub(self.buffer.len()).min(MAX_MESSAGE)
    }
}

/// A message's length from its header, if it may be one.
fn check_length(length: i32) -> io::Result<usize> {
    match usize::try_from(length) {
        Ok(n) if (HEADER_LEN..=MAX_MESSAGE).contains(&n) => Ok(n),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes is not possible"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    fn frame(length: usize, fill: u8) -> Vec<u8> {
        let mut bytes = vec![fill; length];
        bytes[..4].copy_from_slice(&(length as i32).to_le_bytes());
        bytes
    }

    #[tokio::test]
    async fn messages_are_cut_however_the_bytes_come() {
        let sizes = [16, 17, 100, 16_384, 16_385, 70_000, 1_000_000, 16];
        let all: Vec<u8> = sizes.iter().enumerate().flat_map(|(i, n)| frame(*n, i as u8)).collect();
        for chunk in [1_000, 7, 16_384, 400_000] {
            let (mut near, mut far) = duplex(chunk);
            let bytes = all.clone();
            let writer = tokio::spawn(async move { near.write_all(&bytes).await.unwrap() });
            let mut reader = FrameReader::new();
            for (i, size) in sizes.iter().enumerate() {
                assert_eq!(reader.read(&mut far).await.unwrap().unwrap(), frame(*size, i as u8));
            }
            writer.await.unwrap();
            assert_eq!(reader.read(&mut far).await.unwrap(), None);
            assert_eq!(reader.buffer.capacity(), 0, "an idle reader holds no memory");
        }
    }

    #[tokio::test]
    async fn impossible_lengths_are_refused_before_memory_is_taken() {
        for length in [0, -1, 15, i32::MIN, 48_000_001, i32::MAX] {
            let mut stream = &length.to_le_bytes()[..];
            let mut reader = FrameReader::new();
            assert_eq!(reader.read(&mut stream).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
            assert!(reader.buffer.capacity() <= READ_SIZE);
        }
    }

    #[tokio::test]
    async fn a_promise_of_48_mb_takes_little_memory_until_it_is_kept() {
        let (mut near, mut far) = duplex(1 << 20);
        let mut start = frame(20, 0);
        start[..4].copy_from_slice(&48_000_000_i32.to_le_bytes());
        near.write_all(&start).await.unwrap();
        let mut reader = FrameReader::new();
        let wait = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(wait, reader.read(&mut far)).await.is_err());
        assert!(reader.buffer.capacity() <= 4 * READ_SIZE, "{}", reader.buffer.capacity());
        near.write_all(&[0; 100_000]).await.unwrap();
        assert!(tokio::time::timeout(wait, reader.read(&mut far)).await.is_err());
        assert!(reader.buffer.capacity() <= 500_000, "{}", reader.buffer.capacity());
        drop(near);
        assert_eq!(reader.read(&mut far).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
