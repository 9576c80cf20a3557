//! A stream of bytes, cut into messages.

use std::io::ErrorKind;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use mosaic::wire::FrameReader;
use tokio::io::{AsyncRead, ReadBuf};

use super::class;

/// Gives its bytes in pieces whose sizes follow from the bytes themselves, and is not ready between them.
struct Pieces<'a> {
    data: &'a [u8],
    ready: bool,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        self.ready = !self.ready;
        if !self.ready {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let size = self.data.first().map_or(0, |b| 1 + usize::from(*b) * 7);
        let (piece, rest) = self.data.split_at(size.min(self.data.len()).min(out.remaining()));
        out.put_slice(piece);
        self.data = rest;
        Poll::Ready(Ok(()))
    }
}

pub fn fuzz_one(data: &[u8]) -> u64 {
    let mut cutting = pin!(cut(data));
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(outcome) = cutting.as_mut().poll(&mut context) {
            return outcome;
        }
    }
}

async fn cut(data: &[u8]) -> u64 {
    let mut stream = Pieces { data, ready: false };
    let mut reader = FrameReader::new();
    let (mut frames, mut total) = (0, 0);
    let end = loop {
        match reader.read(&mut stream).await {
            Ok(Some(frame)) => {
                assert_eq!(frame, data[total..total + frame.len()], "no byte is lost, added or moved");
                total += frame.len();
                frames += 1;
                super::wire::fuzz_one(&frame);
            }
            Ok(None) => break End::Clean,
            Err(error) if error.kind() == ErrorKind::InvalidData => break End::Impossible,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break End::Inside,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!((frames, total, end), expected(data));
    class((end, frames.min(9)))
}

/// How a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum End {
    Clean,
    /// A length that cannot be one.
    Impossible,
    /// Inside a message.
    Inside,
}

/// The same by looking at all bytes at once: how many messages, their size, the end.
fn expected(data: &[u8]) -> (usize, usize, End) {
    let (mut frames, mut total) = (0, 0);
    loop {
        let rest = &data[total..];
        let Some(head) = rest.first_chunk::<4>() else {
            return (frames, total, if rest.is_empty() { End::Clean } else { End::Inside });
        };
        match i32::from_le_bytes(*head) {
            length if !(16..=48_000_000).contains(&length) => return (frames, total, End::Impossible),
            length if length as usize > rest.len() => return (frames, total, End::Inside),
            length => total += length as usize,
        }
        frames += 1;
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut messages = super::wire::seeds();
    for message in &mut messages {
        let length = message.len() as i32;
        message[..4].copy_from_slice(&length.to_le_bytes());
    }
    let all = messages.concat();
    messages.push(all);
    messages
}
