//! One connection to a member: a command out, its reply in, in the caller's own task.
//!
//! Reads land in a buffer of the thread and only the reply's document is copied out of it, so an idle connection holds
//! no buffer and a reply holds no more memory than its own bytes. Large replies are read straight into their place.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::wire::{self, HEADER_LEN, Header, MAX_MESSAGE, OpCode, OutMsg};

use super::ServerId;

/// What one read asks for; a reply up to this size costs one read.
const READ_SIZE: usize = 64 * 1024;
/// A thread's write buffer that grew beyond this is given back.
const KEEP_WRITE: usize = 256 * 1024;
/// Header, flags and section kind in front of a reply's document.
const BODY_AT: usize = HEADER_LEN + 5;

thread_local! {
    static READ: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_SIZE]);
    static WRITE: RefCell<BytesMut> = RefCell::new(BytesMut::new());
}

/// Why a connection is of no more use.
#[derive(Debug)]
pub enum Failure {
    Io(io::Error),
    /// The peer does not speak the protocol.
    Protocol(String),
    /// The pool was cleared while the reply was awaited.
    Interrupted,
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Failure::Io(e)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof => f.write_str("the connection was closed"),
            Failure::Io(e) => write!(f, "{e}"),
            Failure::Protocol(why) => f.write_str(why),
            Failure::Interrupted => f.write_str("the server stopped answering"),
        }
    }
}

/// Where the connection stands between two requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Ready for a request.
    Clean,
    /// A request is on its way; `started` once the kernel took a byte of it.
    Writing {
        started: bool,
    },
    /// The reply to this request is awaited.
    Awaiting(i32),
    Broken,
}

/// Lets the pool wake a task that waits for a reply which will never come.
#[derive(Debug, Default)]
pub struct Interrupt {
    waker: AtomicWaker,
    set: AtomicBool,
}

impl Interrupt {
    pub fn fire(&self) {
        self.set.store(true, Ordering::Release);
        self.waker.wake();
    }
}

#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    pub server: ServerId,
    /// The server's number for this connection (`connectionId` in its `hello` reply); 0 if it told none.
    pub remote_id: i64,
    /// The pool's number for this connection.
    pub number: u64,
    /// The pool's generation the connection was made in.
    pub generation: u64,
    pub idle_since: Instant,
    /// When the server last answered on it.
    pub checked: Instant,
    pub interrupt: Arc<Interrupt>,
    state: State,
    last_request: i32,
    /// The rest of a request that the kernel did not take at once, or the beginning of a large reply.
    pending: BytesMut,
}

impl Connection {
    pub fn new(stream: TcpStream, server: ServerId) -> Self {
        let now = Instant::now();
        Connection {
            stream,
            server,
            remote_id: 0,
            number: 0,
            generation: 0,
            idle_since: now,
            checked: now,
            interrupt: Arc::default(),
            state: State::Clean,
            last_request: 0,
            pending: BytesMut::new(),
        }
    }

    /// Whether the next request can be sent on it.
    pub fn is_clean(&self) -> bool {
        self.state == State::Clean
    }

    /// Whether a request was sent whole and its reply has not come.
    pub fn is_awaiting(&self) -> bool {
        matches!(self.state, State::Awaiting(_))
    }

    /// Whether the server has seen no part of the request.
    pub fn is_untouched(&self) -> bool {
        matches!(self.state, State::Clean | State::Writing { started: false })
    }

    /// Whether the peer has closed it (or sent what nobody asked for). Costs no system call while nothing arrived.
    pub fn is_dead(&self) -> bool {
        let mut byte = [0];
        match self.stream.try_read(&mut byte) {
            Err(e) => e.kind() != io::ErrorKind::WouldBlock,
            Ok(_) => true,
        }
    }

    /// Sends `msg` and reads the reply's document.
    pub async fn call(&mut self, msg: &OutMsg) -> Result<Bytes, Failure> {
        self.send(msg).await?;
        self.receive().await
    }

    /// Sends `msg`. Afterwards the reply is awaited, unless the message asks for none.
    pub async fn send(&mut self, msg: &OutMsg) -> Result<(), Failure> {
        if self.state != State::Clean {
            return Err(Failure::Protocol("the connection is busy".to_owned()));
        }
        self.state = State::Writing { started: false };
        self.last_request = self.last_request.wrapping_add(1);
        let request_id = self.last_request;
        poll_fn(|cx| Poll::Ready(self.write_first(cx, request_id, msg))).await?;
        if !self.pending.is_empty() {
            poll_fn(|cx| self.poll_flush(cx)).await?;
            self.pending = BytesMut::new();
        }
        self.state = if msg.unacknowledged() { State::Clean } else { State::Awaiting(request_id) };
        Ok(())
    }

    /// Encodes the message into the thread's buffer and offers it to the kernel once; what is left becomes `pending`.
    fn write_first(&mut self, cx: &mut Context<'_>, request_id: i32, msg: &OutMsg) -> io::Result<()> {
        WRITE.with_borrow_mut(|buffer| {
            buffer.clear();
            msg.encode(request_id, buffer);
            let written = match Pin::new(&mut self.stream).poll_write(cx, buffer) {
                Poll::Ready(Ok(n)) => n,
                Poll::Ready(Err(e)) => return Err(e),
                Poll::Pending => 0,
            };
            if written > 0 {
                self.state = State::Writing { started: true };
            }
            if written < buffer.len() {
                // The large buffer itself moves over; a small rest is copied.
                if buffer.capacity() > KEEP_WRITE {
                    self.pending = std::mem::take(buffer);
                    self.pending.advance(written);
                } else {
                    self.pending = BytesMut::from(&buffer[written..]);
                }
            } else if buffer.capacity() > KEEP_WRITE {
                *buffer = BytesMut::new();
            }
            Ok(())
        })
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        while !self.pending.is_empty() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.pending) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into())),
                Poll::Ready(Ok(n)) => {
                    self.state = State::Writing { started: true };
                    self.pending.advance(n);
                }
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e.into())),
                Poll::Pending => return self.poll_interrupted(cx),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads the reply to the request sent last. Dropped while waiting it can be called again: nothing is lost.
    pub async fn receive(&mut self) -> Result<Bytes, Failure> {
        let State::Awaiting(request_id) = self.state else {
            return Err(Failure::Protocol("no reply is awaited".to_owned()));
        };
        let reply = poll_fn(|cx| self.poll_receive(cx, request_id)).await;
        self.state = if reply.is_ok() { State::Clean } else { State::Broken };
        reply
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, request_id: i32) -> Poll<Result<Bytes, Failure>> {
        loop {
            let read = if self.pending.is_empty() { self.poll_first(cx) } else { self.poll_more(cx) };
            match read {
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Ok(Some(frame))) => return Poll::Ready(document(frame, request_id)),
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => return self.poll_interrupted(cx),
            }
        }
    }

    /// Registers for an interruption while the socket is not ready.
    fn poll_interrupted<T>(&self, cx: &Context<'_>) -> Poll<Result<T, Failure>> {
        self.interrupt.waker.register(cx.waker());
        if self.interrupt.set.load(Ordering::Acquire) { Poll::Ready(Err(Failure::Interrupted)) } else { Poll::Pending }
    }

    /// The first read of a reply, into the thread's buffer.
    fn poll_first(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame>, Failure>> {
        READ.with_borrow_mut(|buffer| {
            let mut read = ReadBuf::new(buffer);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read))?;
            let bytes = read.filled();
            if bytes.is_empty() {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
            }
            if let Some(length) = length(bytes)? {
                if let Some((header, doc)) = simple(bytes, length) {
                    return Poll::Ready(Ok(Some(Frame::Simple(header, Bytes::copy_from_slice(doc)))));
                }
                self.pending.reserve(length.max(bytes.len()));
            }
            self.pending.extend_from_slice(bytes);
            Poll::Ready(self.take_frame())
        })
    }

    /// Further reads, straight into the reply's place.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame>, Failure>> {
        let wanted = match length(&self.pending)? {
            Some(length) => length - self.pending.len(),
            None => HEADER_LEN - self.pending.len(),
        };
        self.pending.reserve(wanted);
        let mut place = (&mut self.pending).limit(wanted);
        let read = ready!(tokio_util::io::poll_read_buf(Pin::new(&mut self.stream), cx, &mut place))?;
        if read == 0 {
            return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
        }
        Poll::Ready(self.take_frame())
    }

    fn take_frame(&mut self) -> Result<Option<Frame>, Failure> {
        match length(&self.pending)? {
            Some(length) if self.pending.len() == length => {
                Ok(Some(Frame::Whole(std::mem::take(&mut self.pending).freeze())))
            }
            Some(length) if self.pending.len() > length => {
                Err(Failure::Protocol("more bytes came than one reply has".to_owned()))
            }
            _ => Ok(None),
        }
    }
}

enum Frame {
    /// The header and the document of a reply that came in one piece.
    Simple(Header, Bytes),
    Whole(Bytes),
}

/// The message's length from its header, if 16 bytes are there; an error if it cannot be one.
fn length(bytes: &[u8]) -> Result<Option<usize>, Failure> {
    let Some(header) = Header::parse(bytes) else { return Ok(None) };
    match usize::try_from(header.length) {
        Ok(n) if (HEADER_LEN..=MAX_MESSAGE).contains(&n) => Ok(Some(n)),
        _ => Err(Failure::Protocol(format!("a reply of {} bytes is not possible", header.length))),
    }
}

/// The document of a whole reply that has one section and no flags, as nearly all have.
fn simple(bytes: &[u8], length: usize) -> Option<(Header, &[u8])> {
    if bytes.len() != length || length < BODY_AT + 5 {
        return None;
    }
    let header = Header::parse(bytes)?;
    let plain = header.op_code == OpCode::Msg as i32 && bytes[HEADER_LEN..BODY_AT] == [0; 5];
    let doc = &bytes[BODY_AT..];
    let fits = doc[..4] == (doc.len() as i32).to_le_bytes() && doc.ends_with(&[0]);
    (plain && fits).then_some((header, doc))
}

fn document(frame: Frame, request_id: i32) -> Result<Bytes, Failure> {
    let (response_to, body) = match frame {
        Frame::Simple(header, body) => (header.response_to, body),
        Frame::Whole(mut bytes) => match simple(&bytes, bytes.len()) {
            Some((header, _)) => {
                bytes.advance(BODY_AT);
                (header.response_to, bytes)
            }
            None => {
                let message = wire::decode_reply(bytes).map_err(|e| Failure::Protocol(e.to_string()))?;
                if message.unacknowledged() {
                    return Err(Failure::Protocol("the reply says that another one follows".to_owned()));
                }
                (message.response_to, message.body)
            }
        },
    };
    if response_to == request_id {
        Ok(body)
    } else {
        Err(Failure::Protocol("a reply to another request came".to_owned()))
    }
}

#[cfg(test)]
#[path = "conn_tests.rs"]
mod tests;
