//! The loop of one connection: read a message, have it served, write the reply.
//!
//! One task does it all. While a request is served the task also reads: that is how it learns that the client is gone
//! (then the operation is cancelled), and pipelined requests are kept meanwhile, up to a limit. A connection that waits
//! for a request owns no buffer.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::ConnState;
use crate::bsonx::{self, Writer};
use crate::command::{Outcome, Reply, prepare};
use crate::op::{Cancelled, OpContext};
use crate::router::Router;
use crate::stats::NetworkStats;
use crate::wire::{self, FrameReader, Malformed, Message, ReplyStyle};

/// Bytes of pipelined requests beyond which a connection is not read until its present request is served.
const EARLY_LIMIT: usize = 64 * 1024;

/// Numbers the replies. Clients see them only as `responseTo` of the next reply of a stream.
static NEXT_ID: AtomicI32 = AtomicI32::new(1);

/// What serves the requests of a connection.
pub(super) trait Service {
    /// Begins to serve a request; the operation can be cancelled through its context.
    ///
    /// # Errors
    /// The finished reply to a request that cannot be served.
    fn begin(&self, message: Message) -> Result<(OpContext, impl Future<Output = Outcome> + Send), Box<Reply>>;

    fn network(&self) -> &NetworkStats;

    /// The compressors that requests may come in.
    fn accepted(&self) -> wire::Accepted;
}

/// The real thing: [`crate::command`].
pub(super) struct Dispatcher {
    pub router: Arc<Router>,
    pub state: Arc<ConnState>,
}

impl Service for Dispatcher {
    fn begin(&self, message: Message) -> Result<(OpContext, impl Future<Output = Outcome> + Send), Box<Reply>> {
        let prepared = prepare(&self.router, &self.state, message)?;
        Ok((prepared.op().clone(), prepared.run()))
    }

    fn network(&self) -> &NetworkStats {
        &self.router.stats.network
    }

    fn accepted(&self) -> wire::Accepted {
        wire::Accepted::only(&self.router.config.net.compressors)
    }
}

/// Serves one connection until it ends.
pub(super) async fn serve<S, T>(service: &S, state: &ConnState, stream: T)
where
    S: Service + Sync,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut client = Client { stream, reader: FrameReader::new(), gone: false };
    if let Err(error) = client.serve(service, state).await {
        tracing::debug!(conn = state.info.connection_id, %error, "a client connection ends");
    }
}

struct Client<T> {
    stream: T,
    reader: FrameReader,
    /// The client has closed its side; only what it sent before is left.
    gone: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Client<T> {
    async fn serve<S: Service + Sync>(&mut self, service: &S, state: &ConnState) -> io::Result<()> {
        while let Some(frame) = self.next_frame().await? {
            state.busy.store(true, Ordering::Relaxed);
            let physical = frame.len();
            match decode(frame, service.accepted()).await? {
                Ok(message) => {
                    service.network().received(physical, message.logical_len());
                    if self.gone && !message.unacknowledged() {
                        return Ok(());
                    }
                    self.answer(service, message).await?;
                }
                Err(Malformed::Reply { request_id, style, quiet, error }) => {
                    service.network().received(physical, physical);
                    if !quiet {
                        let body = wire::error_reply(&error, style.form).into();
                        self.write(service.network(), request_id, &body, style).await?;
                    }
                }
                Err(Malformed::Close(error)) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
            state.busy.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The next whole message; `None` where the client is gone.
    async fn next_frame(&mut self) -> io::Result<Option<Bytes>> {
        if self.gone { self.reader.next_buffered() } else { self.reader.read(&mut self.stream).await }
    }

    /// Serves a request: one reply, none if the client wants none, or a stream of them.
    async fn answer<S: Service + Sync>(&mut self, service: &S, mut message: Message) -> io::Result<()> {
        let mut style = ReplyStyle::for_request(&message);
        let mut response_to = message.request_id;
        let quiet = message.unacknowledged();
        loop {
            // A stream's next reply needs the request again; the copy shares its bytes.
            let again = message.flags.has(wire::Flags::EXHAUST_ALLOWED).then(|| message.clone());
            let reply = match service.begin(message) {
                Ok((_, run)) if quiet => run.await,
                Ok((op, run)) => self.watch(&op, run).await,
                Err(reply) => Outcome::Reply(*reply),
            };
            let Outcome::Reply(reply) = reply else {
                return Err(io::Error::other("the connection was to be dropped"));
            };
            if quiet {
                return Ok(());
            }
            let next = again.filter(|again| !self.gone && (reply.more_to_come || cursor_goes_on(again, &reply.body)));
            style.more_to_come = next.is_some();
            let id = self.write(service.network(), response_to, &reply.body, style).await?;
            let Some(next) = next else { return Ok(()) };
            message = follow_up(next, &reply.body);
            response_to = id;
        }
    }

    /// Drives `run` to its end while looking out for the client: if it goes away, `op` is cancelled.
    async fn watch(&mut self, op: &OpContext, run: impl Future<Output = Outcome>) -> Outcome {
        let mut run = pin!(run);
        while !self.gone && self.reader.buffered() < EARLY_LIMIT {
            let read = poll_fn(|cx| {
                if let Poll::Ready(outcome) = run.as_mut().poll(cx) {
                    return Poll::Ready(Ok(outcome));
                }
                self.reader.poll_fill(cx, &mut self.stream).map(Err)
            });
            match read.await {
                Ok(outcome) => return outcome,
                Err(Ok(1..)) => {}
                Err(Ok(0) | Err(_)) => {
                    self.gone = true;
                    op.record.kill(Cancelled::ClientDisconnect);
                }
            }
        }
        run.await
    }

    /// Writes a reply; gives its number.
    async fn write(
        &mut self,
        network: &NetworkStats,
        response_to: i32,
        body: &Bytes,
        style: ReplyStyle,
    ) -> io::Result<i32> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        if let Some(head) = wire::reply_head(id, response_to, body.len(), style) {
            // The usual case: the body is written from where it lies.
            network.sent(head.len() + body.len(), head.len() + body.len());
            write_both(&mut self.stream, &head, body).await?;
        } else {
            let body = body.clone();
            let size = body.len();
            let encode = move || {
                let mut out = BytesMut::new();
                wire::reply(id, response_to, &body, style, &mut out);
                out
            };
            let out = if style.compressor.is_some() { aside(size, encode).await? } else { encode() };
            network.sent(out.len(), wire::HEADER_LEN + size);
            self.stream.write_all(&out).await?;
        }
        self.stream.flush().await?;
        Ok(id)
    }
}

/// Bytes from which compressing or decompressing is no work for a thread that serves others too: a large message takes
/// as long as thousands of small ones.
const LARGE: usize = 128 * 1024;

/// Does a piece of work on `size` bytes, in a thread of its own if that is many.
async fn aside<R: Send + 'static>(size: usize, work: impl FnOnce() -> R + Send + 'static) -> io::Result<R> {
    if size < LARGE { Ok(work()) } else { tokio::task::spawn_blocking(work).await.map_err(io::Error::other) }
}

async fn decode(frame: Bytes, accepted: wire::Accepted) -> io::Result<Result<Message, Malformed>> {
    // What a compressed message will be is told in it; a lie costs a thread.
    let size = wire::inflated_len(&frame).unwrap_or(0);
    aside(size, move || wire::decode_accepting(frame, accepted)).await
}

/// Writes two pieces one after the other, in one call if the stream takes them.
async fn write_both<T: AsyncWrite + Unpin>(stream: &mut T, mut head: &[u8], mut body: &[u8]) -> io::Result<()> {
    while !head.is_empty() {
        let written = stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let of_head = written.min(head.len());
        head = &head[of_head..];
        body = &body[written - of_head..];
    }
    stream.write_all(body).await
}

/// Whether `request` is a getMore whose cursor has more. Sent with exhaustAllowed, it is answered batch by batch to the
/// cursor's end, as servers do (a genuine mongos gives one batch only).
fn cursor_goes_on(request: &Message, reply: &[u8]) -> bool {
    request.command() == Some("getMore")
        && bsonx::find_path(reply, &["cursor", "id"])
            .is_some_and(|id| bsonx::int64(reply, id.value).is_some_and(|n| n != 0))
}

/// The request that a stream's next reply answers: the same again, but a hello waits for what comes after the
/// topology version just told.
fn follow_up(mut request: Message, reply: &[u8]) -> Message {
    let told = bsonx::find(reply, "topologyVersion");
    if let Some(told) = told.filter(|_| bsonx::find(&request.body, "topologyVersion").is_some()) {
        let mut body = Writer::copy_without(&request.body, |key| key == b"topologyVersion");
        body.raw_fields(&reply[told.whole()]);
        request.body = body.finish().into();
    }
    request
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
