#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use bson::{RawDocumentBuf, rawdoc};
use bytes::BufMut;
use tokio::io::{AsyncReadExt, DuplexStream, duplex};
use tokio::task::JoinHandle;

use super::*;
use crate::wire::{Flags, Form, HEADER_LEN, Header, OutMsg};

/// Answers `{echo: x}` with x, `{sleep: ms}` after that time unless cancelled, `{stream: n}` n times.
#[derive(Default)]
struct Fake {
    network: NetworkStats,
    served: AtomicUsize,
    begun: AtomicUsize,
    cancelled: Arc<AtomicBool>,
}

impl Service for Arc<Fake> {
    fn begin(&self, message: Message) -> Result<(OpContext, impl Future<Output = Outcome> + Send), Box<Reply>> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        if message.command() == Some("refuse") {
            return Err(Box::new(Reply::doc(rawdoc! { "ok": 0.0 })));
        }
        let op = OpContext::background("fake");
        let (this, context) = (self.clone(), op.clone());
        Ok((op, async move {
            let doc = message.document().to_owned();
            let n = bsonx::int(&doc, doc.iter().next().unwrap().unwrap().0.as_str()).unwrap_or(0);
            let mut reply = Reply::ok(rawdoc! { "n": n });
            match message.command() {
                Some("sleep") => tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(n as u64)) => {}
                    () = context.cancel().cancelled() => this.cancelled.store(true, Ordering::SeqCst),
                },
                Some("stream") => {
                    reply.more_to_come = (this.served.load(Ordering::SeqCst) as i64) < n - 1;
                    let seen = bsonx::doc(&doc, "topologyVersion").and_then(|v| bsonx::int(v, "c")).unwrap_or(-1);
                    let mut doc = rawdoc! { "n": n, "seen": seen };
                    doc.append(bson::cstr!("topologyVersion"), rawdoc! { "c": seen + 1 });
                    reply.body = doc.into_bytes().into();
                }
                Some("big") => reply = Reply::ok(rawdoc! { "n": n, "pad": "x".repeat(n as usize) }),
                Some("getMore") => {
                    let id = if this.served.load(Ordering::SeqCst) < 2 { n } else { 0 };
                    reply = Reply::ok(rawdoc! { "cursor": { "nextBatch": [], "id": id, "ns": "a.b" }, "n": n });
                }
                Some("drop") => return Outcome::CloseConnection,
                _ => {}
            }
            this.served.fetch_add(1, Ordering::SeqCst);
            Outcome::Reply(reply)
        }))
    }

    fn network(&self) -> &NetworkStats {
        &self.network
    }

    fn accepted(&self) -> wire::Accepted {
        wire::Accepted::ALL
    }
}

struct Peer {
    stream: DuplexStream,
    fake: Arc<Fake>,
    task: JoinHandle<()>,
}

fn connect() -> Peer {
    let (stream, far) = duplex(1 << 20);
    let fake = Arc::new(Fake::default());
    let service = fake.clone();
    let task = tokio::spawn(async move { serve(&service, &ConnState::default(), far).await });
    Peer { stream, fake, task }
}

fn request(id: i32, flags: Flags, doc: RawDocumentBuf) -> Vec<u8> {
    let mut out = BytesMut::new();
    OutMsg { flags, ..OutMsg::from_doc(doc) }.encode(id, &mut out);
    out.to_vec()
}

impl Peer {
    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// The next message, without touching what follows it.
    async fn exact(&mut self) -> Bytes {
        let mut head = [0; HEADER_LEN];
        self.stream.read_exact(&mut head).await.unwrap();
        let length = Header::parse(&head).unwrap().length as usize;
        let mut whole = head.to_vec();
        whole.resize(length, 0);
        self.stream.read_exact(&mut whole[HEADER_LEN..]).await.unwrap();
        whole.into()
    }

    /// The next reply: its number, what it answers, whether more follow, and `n`.
    async fn next(&mut self) -> (i32, i32, bool, i64) {
        let message = wire::decode_reply(self.exact().await).unwrap();
        let n = bsonx::int(message.document(), "n").unwrap_or(-1);
        (message.request_id, message.response_to, message.flags.has(Flags::MORE_TO_COME), n)
    }

    async fn ended(mut self) {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"", "nothing more is written");
        self.task.await.unwrap();
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let mut peer = connect();
    let mut all = Vec::new();
    for i in 0..50 {
        let doc = if i % 7 == 0 {
            rawdoc! { "sleep": 2, "i": i }
        } else {
            rawdoc! { "echo": i }
        };
        all.extend(request(1000 + i, Flags::NONE, doc));
    }
    // In pieces that respect no message's limits.
    for piece in all.chunks(97) {
        peer.send(piece).await;
    }
    for i in 0..50 {
        let (_, response_to, more, n) = peer.next().await;
        assert_eq!((response_to, more), (1000 + i, false));
        assert_eq!(n, if i % 7 == 0 { 2 } else { i64::from(i) });
    }
}

#[tokio::test]
async fn what_wants_no_reply_gets_none_and_is_served_even_if_the_client_leaves() {
    let mut peer = connect();
    for i in 0..10 {
        peer.send(&request(i, Flags::MORE_TO_COME, rawdoc! { "sleep": 1 })).await;
    }
    peer.send(&request(77, Flags::NONE, rawdoc! { "echo": 5 })).await;
    assert_eq!(peer.next().await.1, 77);
    for i in 0..10 {
        peer.send(&request(i, Flags::MORE_TO_COME, rawdoc! { "sleep": 1 })).await;
    }
    let (fake, task) = (peer.fake.clone(), peer.task);
    drop(peer.stream);
    task.await.unwrap();
    assert_eq!(fake.served.load(Ordering::SeqCst), 21);
    assert!(!fake.cancelled.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_operation() {
    let mut peer = connect();
    peer.send(&request(1, Flags::NONE, rawdoc! { "sleep": 60_000 })).await;
    // Pipelined behind it: of no more use to anyone, so never begun.
    peer.send(&request(2, Flags::NONE, rawdoc! { "echo": 1 })).await;
    while peer.fake.begun.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (fake, task) = (peer.fake.clone(), peer.task);
    drop(peer.stream);
    tokio::time::timeout(Duration::from_secs(5), task).await.unwrap().unwrap();
    assert!(fake.cancelled.load(Ordering::SeqCst));
    assert_eq!(fake.begun.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_stream_chains_its_replies_and_tells_the_newest_version() {
    let mut peer = connect();
    let doc = rawdoc! { "stream": 4, "topologyVersion": { "c": 7 }, "x": 1 };
    peer.send(&request(9, Flags::EXHAUST_ALLOWED, doc)).await;
    let mut answers = 9;
    for i in 0..4 {
        let message = wire::decode_reply(peer.exact().await).unwrap();
        assert_eq!(message.response_to, answers);
        assert_eq!(message.flags.has(Flags::MORE_TO_COME), i < 3);
        assert_eq!(bsonx::int(message.document(), "seen"), Some(7 + i));
        answers = message.request_id;
    }
    // Without the flag, one reply, and no moreToCome.
    peer.send(&request(10, Flags::NONE, rawdoc! { "stream": 100 })).await;
    let (_, response_to, more, _) = peer.next().await;
    assert_eq!((response_to, more), (10, false));
}

#[tokio::test]
async fn a_cursor_is_streamed_to_its_end() {
    let mut peer = connect();
    peer.send(&request(9, Flags::EXHAUST_ALLOWED, rawdoc! { "getMore": 77_i64 })).await;
    let mut answers = 9;
    for i in 0..3 {
        let (id, response_to, more, _) = peer.next().await;
        assert_eq!((response_to, more), (answers, i < 2));
        answers = id;
    }
    peer.send(&request(10, Flags::EXHAUST_ALLOWED, rawdoc! { "echo": 1 })).await;
    assert!(!peer.next().await.2);
}

#[tokio::test]
async fn a_stream_ends_when_its_client_leaves() {
    let mut peer = connect();
    peer.send(&request(9, Flags::EXHAUST_ALLOWED, rawdoc! { "stream": 1_000_000_000 })).await;
    for _ in 0..5 {
        peer.next().await;
    }
    let task = peer.task;
    drop(peer.stream);
    tokio::time::timeout(Duration::from_secs(5), task).await.unwrap().unwrap();
}

#[tokio::test]
async fn malformed_messages_are_answered_or_end_the_connection() {
    let mut peer = connect();
    let two_bodies = {
        let one = request(5, Flags::NONE, rawdoc! { "echo": 1 });
        let mut bytes = one.clone();
        bytes.extend_from_slice(&one[HEADER_LEN + 4..]);
        let length = bytes.len() as i32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes
    };
    peer.send(&two_bodies).await;
    let message = wire::decode_reply(peer.exact().await).unwrap();
    assert_eq!((message.response_to, bsonx::int(message.document(), "code")), (5, Some(40430)));
    let mut quiet = two_bodies.clone();
    quiet[HEADER_LEN] |= Flags::MORE_TO_COME.0 as u8;
    peer.send(&quiet).await;
    let mut old = Vec::new();
    old.extend_from_slice(&Header { length: 36, request_id: 6, response_to: 0, op_code: 2005 }.to_bytes());
    old.extend_from_slice(&[0; 20]);
    peer.send(&old).await;
    let answer = peer.exact().await;
    assert_eq!(Header::parse(&answer).unwrap().op_code, 1);
    assert_eq!(bsonx::int(bsonx::view(&answer[36..]), "code"), Some(5_739_101));
    peer.send(&request(7, Flags::NONE, rawdoc! { "refuse": 1 })).await;
    assert_eq!(peer.next().await.1, 7);
    peer.send(&request(8, Flags(1 << 5), rawdoc! { "echo": 1 })).await;
    peer.ended().await;
}

#[tokio::test]
async fn lengths_that_cannot_be_and_dropped_connections_end_it() {
    for bytes in [&15_i32.to_le_bytes()[..], &i32::MAX.to_le_bytes()[..], &(-5_i32).to_le_bytes()[..]] {
        let mut peer = connect();
        peer.send(bytes).await;
        peer.ended().await;
    }
    let mut peer = connect();
    peer.send(&request(8, Flags::NONE, rawdoc! { "drop": 1 })).await;
    peer.ended().await;
}

#[tokio::test]
async fn old_hellos_compression_and_checksums_are_answered_in_kind() {
    let mut peer = connect();
    let mut query = 0_i32.to_le_bytes().to_vec();
    query.extend_from_slice(b"admin.$cmd\0");
    query.put_i32_le(0);
    query.put_i32_le(-1);
    query.extend_from_slice(rawdoc! { "isMaster": 4 }.as_bytes());
    let header = Header { length: (HEADER_LEN + query.len()) as i32, request_id: 3, response_to: 0, op_code: 2004 };
    peer.send(&header.to_bytes()).await;
    peer.send(&query).await;
    let answer = peer.exact().await;
    assert_eq!(Header::parse(&answer).unwrap().op_code, 1);
    assert_eq!(bsonx::int(bsonx::view(&answer[36..]), "n"), Some(4));

    let mut out = BytesMut::new();
    OutMsg::from_doc(rawdoc! { "echo": 6 }).encode_compressed(4, wire::Compressor::Zstd, &mut out);
    peer.send(&out).await;
    let message = wire::decode_reply(peer.exact().await).unwrap();
    assert_eq!((message.compressor, message.response_to), (Some(wire::Compressor::Zstd), 4));
    assert_eq!(ReplyStyle::for_request(&message).form, Form::Msg);
}

#[tokio::test]
async fn large_replies_arrive_whole() {
    let mut peer = connect();
    for size in [10, 70_000, 3_000_000] {
        peer.send(&request(1, Flags::NONE, rawdoc! { "big": size })).await;
        let (_, _, _, n) = peer.next().await;
        assert_eq!(n, i64::from(size));
    }
    peer.send(&request(2, Flags::NONE, rawdoc! { "echo": 1 })).await;
    assert_eq!(peer.next().await.3, 1);
}

#[tokio::test]
async fn a_flood_of_early_requests_is_not_kept_in_memory() {
    let (stream, far) = duplex(4096);
    let fake = Arc::new(Fake::default());
    let service = fake.clone();
    let task = tokio::spawn(async move { serve(&service, &ConnState::default(), far).await });
    let (mut read, mut write) = tokio::io::split(stream);
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let writer = tokio::spawn(async move {
        write.write_all(&request(1, Flags::NONE, rawdoc! { "sleep": 300 })).await.unwrap();
        for i in 0..20_000 {
            write.write_all(&request(i, Flags::NONE, rawdoc! { "echo": i })).await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        }
        write
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let early = sent.load(Ordering::SeqCst) * 50;
    assert!(early < 2 * EARLY_LIMIT, "{early} bytes were taken while the first request ran");
    let mut replies = 0;
    let mut reader = FrameReader::new();
    while replies <= 20_000 {
        reader.read(&mut read).await.unwrap().unwrap();
        replies += 1;
    }
    drop((writer.await.unwrap(), read));
    task.await.unwrap();
}

#[test]
fn an_idle_connection_is_small() {
    let (_near, far) = duplex(1);
    let state = ConnState::default();
    let service = Arc::new(Fake::default());
    let size = size_of_val(&serve(&service, &state, far));
    assert!(size <= 3_000, "the task of a connection takes {size} bytes");
    let prepared = size_of::<crate::command::Prepared>();
    println!("task {size}, prepared command {prepared}, state {}", size_of::<ConnState>());
}

#[tokio::test]
async fn large_compressed_messages_are_worked_on_in_another_thread() {
    let here = std::thread::current().id();
    let thread = || std::thread::current().id();
    assert_eq!(aside(LARGE - 1, thread).await.unwrap(), here);
    assert_ne!(aside(LARGE, thread).await.unwrap(), here);

    for size in [10, LARGE, 3_000_000] {
        let mut peer = connect();
        let doc = rawdoc! { "big": size as i64, "pad": "y".repeat(size), "$db": "d" };
        let mut bytes = BytesMut::new();
        OutMsg::from_doc(doc).encode_compressed(7, wire::Compressor::Zlib, &mut bytes);
        assert!(wire::inflated_len(&bytes).unwrap() > size && bytes.len() < size + 100);
        peer.send(&bytes).await;
        let reply = wire::decode_reply(peer.exact().await).unwrap();
        assert_eq!(reply.compressor, Some(wire::Compressor::Zlib));
        assert_eq!(bsonx::str(reply.document(), "pad").unwrap().len(), size);
    }
}
