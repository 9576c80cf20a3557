#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use bson::rawdoc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

async fn pair() -> (Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    (Connection::new(client, "peer:1".into()), server)
}

fn ping() -> OutMsg {
    OutMsg::from_doc(rawdoc! {"ping": 1, "$db": "admin"})
}

fn reply(response_to: i32, size: usize) -> Vec<u8> {
    let mut out = BytesMut::new();
    let doc = rawdoc! {"ok": 1, "x": "x".repeat(size)};
    wire::reply(7, response_to, doc.as_bytes(), wire::ReplyStyle::default(), &mut out);
    out.to_vec()
}

/// Sends a request, lets the peer answer with `bytes`, closing afterwards if `close`.
async fn answered(bytes: Vec<u8>, close: bool) -> (Result<Bytes, Failure>, Connection) {
    let (mut conn, mut peer) = pair().await;
    conn.send(&ping()).await.unwrap();
    peer.write_all(&bytes).await.unwrap();
    if close {
        drop(peer);
        return (conn.receive().await, conn);
    }
    let reply = tokio::time::timeout(Duration::from_secs(10), conn.receive()).await.unwrap();
    (reply, conn)
}

fn protocol(outcome: Result<Bytes, Failure>) -> String {
    match outcome {
        Err(Failure::Protocol(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn replies_of_all_sizes() {
    for size in [0, 1, 65_400, 65_440, 65_480, 65_500, 65_550, 200_000, 3_000_000] {
        let (mut conn, mut peer) = pair().await;
        conn.send(&ping()).await.unwrap();
        assert!(!conn.is_clean() && conn.is_awaiting());
        let writer = tokio::spawn(async move {
            peer.write_all(&reply(1, size)).await.unwrap();
            peer
        });
        let body = conn.receive().await.unwrap();
        assert_eq!(crate::bsonx::str(crate::bsonx::view(&body), "x").unwrap().len(), size);
        assert!(conn.is_clean());
        let _peer = writer.await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!conn.is_dead(), "{size}");
    }
}

#[tokio::test]
async fn a_reply_in_single_bytes_survives_being_given_up_and_taken_up_again() {
    let (mut conn, mut peer) = pair().await;
    conn.send(&ping()).await.unwrap();
    for byte in reply(1, 10) {
        peer.write_all(&[byte]).await.unwrap();
        if let Ok(done) = tokio::time::timeout(Duration::from_millis(1), conn.receive()).await {
            done.unwrap();
        }
    }
    if !conn.is_clean() {
        conn.receive().await.unwrap();
    }
    assert!(conn.is_clean());
}

#[tokio::test]
async fn nonsense_from_the_peer_is_an_error() {
    assert!(protocol(answered(reply(2, 1), false).await.0).contains("another request"));
    let mut extra = reply(1, 1);
    extra.push(0);
    assert!(protocol(answered(extra, false).await.0).contains("more bytes"));
    for length in [0, 15, -1, i32::MAX, 48_000_001_i32] {
        let mut bytes = reply(1, 1);
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        let (outcome, conn) = answered(bytes, false).await;
        assert!(protocol(outcome).contains("not possible"), "{length}");
        assert!(!conn.is_clean() && !conn.is_awaiting());
    }
    // A document that is shorter than the message says.
    let mut bytes = reply(1, 1);
    bytes[21] -= 1;
    protocol(answered(bytes, false).await.0);
    // Another reply is announced.
    let mut bytes = reply(1, 1);
    bytes[16] = 2;
    assert!(protocol(answered(bytes, false).await.0).contains("another one follows"));
    // One with a checksum is none.
    let mut out = BytesMut::new();
    let style = wire::ReplyStyle { checksum: true, ..wire::ReplyStyle::default() };
    wire::reply(7, 1, rawdoc! {"ok": 1}.as_bytes(), style, &mut out);
    answered(out.to_vec(), false).await.0.unwrap();
    // A message of no section.
    protocol(
        answered(
            [&20_i32.to_le_bytes()[..], &[0; 4], &1_i32.to_le_bytes(), &2013_i32.to_le_bytes(), &[0; 4]].concat(),
            false,
        )
        .await
        .0,
    );
}

#[tokio::test]
async fn the_end_of_the_stream_is_noticed_anywhere() {
    let whole = reply(1, 100);
    for cut in [0, 3, 16, 21, 50, whole.len() - 1] {
        let (outcome, conn) = answered(whole[..cut].to_vec(), true).await;
        assert!(matches!(outcome, Err(Failure::Io(_))), "{cut}");
        assert!(!conn.is_clean());
    }
    let (outcome, conn) = answered(whole, true).await;
    outcome.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(conn.is_dead());
}

#[tokio::test]
async fn unasked_bytes_make_a_connection_useless() {
    let (conn, mut peer) = pair().await;
    assert!(!conn.is_dead());
    peer.write_all(&[0]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(conn.is_dead());
}

#[tokio::test]
async fn a_large_request_to_a_slow_reader() {
    let (mut conn, mut peer) = pair().await;
    let big = OutMsg::from_doc(rawdoc! {"x": "x".repeat(10_000_000), "$db": "d"});
    let length = big.encoded_len();
    let reader = tokio::spawn(async move {
        let mut bytes = vec![0; length];
        tokio::time::sleep(Duration::from_millis(50)).await;
        peer.read_exact(&mut bytes).await.unwrap();
        peer.write_all(&reply(1, 1)).await.unwrap();
        (bytes, peer)
    });
    conn.call(&big).await.unwrap();
    let (bytes, _peer) = reader.await.unwrap();
    let mut expected = BytesMut::new();
    big.encode(1, &mut expected);
    assert!(bytes == expected);
    assert!(conn.pending.capacity() == 0, "the request's buffer is given back");
}

#[tokio::test]
async fn interruption_wakes_a_reader_and_a_writer() {
    let (mut conn, _peer) = pair().await;
    conn.send(&ping()).await.unwrap();
    let interrupt = conn.interrupt.clone();
    let task = tokio::spawn(async move { conn.receive().await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    interrupt.fire();
    assert!(matches!(task.await.unwrap(), Err(Failure::Interrupted)));

    let (mut conn, _peer) = pair().await;
    let interrupt = conn.interrupt.clone();
    let big = OutMsg::from_doc(rawdoc! {"x": "x".repeat(15_000_000), "$db": "d"});
    let task = tokio::spawn(async move { (conn.send(&big).await, conn.is_untouched()) });
    tokio::time::sleep(Duration::from_millis(20)).await;
    interrupt.fire();
    let (sent, untouched) = task.await.unwrap();
    assert!(matches!(sent, Err(Failure::Interrupted)) && !untouched);
}

#[tokio::test]
async fn a_busy_connection_takes_no_second_request() {
    let (mut conn, _peer) = pair().await;
    protocol(conn.receive().await);
    conn.send(&ping()).await.unwrap();
    protocol(conn.call(&ping()).await);
    let (mut conn, _peer) = pair().await;
    let mut quiet = ping();
    quiet.flags = wire::Flags::MORE_TO_COME;
    conn.send(&quiet).await.unwrap();
    assert!(conn.is_clean());
}
