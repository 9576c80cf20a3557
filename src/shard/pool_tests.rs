#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use crate::wire::{self, OutMsg};
use bson::rawdoc;
use rand::RngExt;
use std::sync::atomic::AtomicBool;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server that knows `hello`, `ping` and `slow` (which it answers late), and counts.
#[derive(Default)]
struct Fake {
    open: AtomicUsize,
    accepted: AtomicUsize,
    greeting: AtomicUsize,
    most_greeting: AtomicUsize,
    /// Answers are held back while this is set.
    silent: AtomicBool,
}

impl Fake {
    async fn start() -> (Arc<Fake>, ServerId) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = ServerId::from(listener.local_addr().unwrap().to_string());
        let fake = Arc::new(Fake::default());
        let server = fake.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                server.accepted.fetch_add(1, Ordering::Relaxed);
                server.open.fetch_add(1, Ordering::Relaxed);
                let server = server.clone();
                tokio::spawn(async move {
                    let _ = server.serve(stream).await;
                    server.open.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        (fake, address)
    }

    async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        loop {
            let length = stream.read_i32_le().await?;
            let mut frame = vec![0; length as usize];
            frame[..4].copy_from_slice(&length.to_le_bytes());
            stream.read_exact(&mut frame[4..]).await?;
            let message = wire::decode(frame.into()).unwrap();
            match message.command() {
                Some("hello") => {
                    let now = self.greeting.fetch_add(1, Ordering::Relaxed) + 1;
                    self.most_greeting.fetch_max(now, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    self.greeting.fetch_sub(1, Ordering::Relaxed);
                }
                Some("slow") => tokio::time::sleep(Duration::from_millis(20)).await,
                _ => {}
            }
            while self.silent.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let mut reply = bytes::BytesMut::new();
            let doc = rawdoc! {"ok": 1, "isWritablePrimary": true, "setName": "r", "connectionId": 0};
            wire::reply(0, message.request_id, doc.as_bytes(), wire::ReplyStyle::default(), &mut reply);
            stream.write_all(&reply).await?;
        }
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

fn settings(max_size: usize) -> PoolSettings {
    PoolSettings {
        min_size: 1,
        max_size,
        max_connecting: 2,
        idle_timeout: Duration::from_secs(300),
        refresh_requirement: Duration::from_secs(60),
        refresh_timeout: Duration::from_secs(5),
    }
}

fn pool(server: &ServerId, settings: PoolSettings) -> Arc<Pool> {
    Pool::new(server.clone(), settings, Arc::new(Connector::new(Vec::new(), Duration::from_secs(5))))
}

fn op() -> OpContext {
    OpContext::background("test")
}

async fn call(pool: &Arc<Pool>, command: &str) {
    let mut doc = bson::RawDocumentBuf::new();
    doc.append(bson::raw::CString::try_from(command).unwrap(), 1);
    doc.append(bson::cstr!("$db"), "admin");
    let mut pooled = pool.check_out(&op()).await.unwrap();
    pooled.get().unwrap().call(&OutMsg::from_doc(doc)).await.unwrap();
}

fn totals(pool: &Pool) -> (usize, usize, usize, usize) {
    let inner = pool.inner.lock();
    (inner.total, inner.connecting, inner.live.len(), inner.idle.len())
}

async fn settle() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

#[tokio::test]
async fn the_connection_used_last_is_used_first() {
    let (fake, server) = Fake::start().await;
    let pool = pool(&server, settings(10));
    let (mut a, mut b) = (pool.check_out(&op()).await.unwrap(), pool.check_out(&op()).await.unwrap());
    let (a_number, b_number) = (a.get().unwrap().number, b.get().unwrap().number);
    assert_eq!(pool.load(), 2);
    drop(b);
    drop(a);
    assert_eq!(pool.check_out(&op()).await.unwrap().get().unwrap().number, a_number);
    let first = pool.check_out(&op()).await.unwrap();
    assert_eq!(pool.check_out(&op()).await.unwrap().get().unwrap().number, b_number);
    drop(first);
    assert_eq!(pool.load(), 0);
    assert_eq!(fake.accepted.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn no_more_than_two_connect_at_one_time() {
    let (fake, server) = Fake::start().await;
    let pool = pool(&server, settings(50));
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { call(&pool, "slow").await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(fake.most_greeting.load(Ordering::Relaxed), 2);
    assert_eq!(pool.load(), 0);
}

#[tokio::test]
async fn connections_closed_by_the_peer_are_not_given_out() {
    let (_, server) = Fake::start().await;
    let pool = pool(&server, settings(10));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // Two idle connections whose peers are gone.
    for _ in 0..2 {
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        drop(listener.accept().await.unwrap());
        let mut conn = Connection::new(stream, server.clone());
        let mut inner = pool.inner.lock();
        inner.next_number += 1;
        inner.total += 1;
        conn.number = inner.next_number;
        inner.live.insert(conn.number, conn.interrupt.clone());
        inner.idle.push(conn);
    }
    settle().await;
    call(&pool, "ping").await;
    assert_eq!(totals(&pool), (1, 0, 1, 1));
}

#[tokio::test]
async fn clearing_closes_what_is_idle_and_what_comes_back() {
    let (fake, server) = Fake::start().await;
    let pool = pool(&server, settings(2));
    let (idle, used) = (pool.check_out(&op()).await.unwrap(), pool.check_out(&op()).await.unwrap());
    let waiter = {
        let pool = pool.clone();
        tokio::spawn(async move { pool.check_out(&op()).await.map(|_| ()) })
    };
    settle().await;
    assert_eq!(pool.stats().waiting, 1);
    pool.clear(Some(0), false);
    assert!(matches!(waiter.await.unwrap(), Err(NoConnection::Cleared(_))));
    // News of the generation before do nothing.
    pool.clear(Some(0), false);
    assert_eq!(pool.stats().cleared, 1);
    drop(idle);
    drop(used);
    settle().await;
    assert_eq!((totals(&pool), fake.open()), ((0, 0, 0, 0), 0));
    call(&pool, "ping").await;
}

#[tokio::test]
async fn interrupting_fails_those_who_wait_for_a_reply() {
    let (fake, server) = Fake::start().await;
    let pool = pool(&server, settings(2));
    call(&pool, "ping").await;
    fake.silent.store(true, Ordering::Relaxed);
    let task = {
        let pool = pool.clone();
        tokio::spawn(async move {
            let mut pooled = pool.check_out(&op()).await.unwrap();
            let ping = OutMsg::from_doc(rawdoc! {"ping": 1, "$db": "admin"});
            pooled.get().unwrap().call(&ping).await.is_err()
        })
    };
    settle().await;
    pool.clear(None, true);
    assert!(task.await.unwrap());
    assert_eq!(totals(&pool), (0, 0, 0, 0));
}

#[tokio::test]
async fn a_closed_pool_gives_nothing() {
    let (fake, server) = Fake::start().await;
    let pool = pool(&server, settings(2));
    let used = pool.check_out(&op()).await.unwrap();
    pool.close();
    assert!(matches!(pool.check_out(&op()).await, Err(NoConnection::Cleared(_))));
    drop(used);
    settle().await;
    assert_eq!((totals(&pool), fake.open()), ((0, 0, 0, 0), 0));
}

#[tokio::test]
async fn nobody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = ServerId::from(listener.local_addr().unwrap().to_string());
    drop(listener);
    let pool = pool(&server, settings(2));
    match pool.check_out(&op()).await {
        Err(NoConnection::Unreachable { error, generation: 0 }) => assert!(error.is(Code::HostUnreachable)),
        other => panic!("{:?}", other.map(|_| ())),
    }
    assert_eq!(totals(&pool), (0, 0, 0, 0));
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = ServerId::from(listener.local_addr().unwrap().to_string());
    let connector = Arc::new(Connector::new(Vec::new(), Duration::from_millis(50)));
    let pool = Pool::new(server, settings(2), connector);
    match pool.check_out(&op()).await {
        Err(NoConnection::Unreachable { error, .. }) => assert!(error.is(Code::NetworkTimeout)),
        other => panic!("{:?}", other.map(|_| ())),
    }
}

#[tokio::test]
async fn maintenance_keeps_the_minimum_and_closes_the_rest() {
    let (fake, server) = Fake::start().await;
    let quick =
        PoolSettings { min_size: 2, idle_timeout: Duration::ZERO, refresh_requirement: Duration::ZERO, ..settings(10) };
    let pool = pool(&server, quick);
    pool.maintain().await;
    assert_eq!(totals(&pool), (2, 0, 2, 2));
    let all: Vec<_> =
        futures_util::future::join_all((0..6).map(|_| pool.clone()).map(async |p| p.check_out(&op()).await)).await;
    drop(all);
    assert_eq!(totals(&pool).0, 6);
    pool.maintain().await;
    settle().await;
    assert_eq!((totals(&pool), fake.open()), ((2, 0, 2, 2), 2));
    assert_eq!(pool.stats().refreshing, 0);
    // A connection that does not answer when asked is replaced.
    let silent = PoolSettings { refresh_timeout: Duration::from_millis(20), ..pool.settings.clone() };
    let pool = super::Pool::new(server.clone(), silent, pool.connector.clone());
    pool.maintain().await;
    fake.silent.store(true, Ordering::Relaxed);
    let maintained = {
        let pool = pool.clone();
        tokio::spawn(async move { pool.maintain().await })
    };
    tokio::time::sleep(Duration::from_millis(200)).await;
    fake.silent.store(false, Ordering::Relaxed);
    maintained.await.unwrap();
    assert_eq!((totals(&pool).0, pool.stats().created), (2, 4));
}

/// Whatever is dropped at whatever moment, no place in the pool is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_leaks_when_callers_vanish() {
    let (fake, server) = Fake::start().await;
    let pool = pool(&server, settings(5));
    for round in 0..5 {
        let tasks: Vec<_> = (0..200)
            .map(|i| {
                let pool = pool.clone();
                let patience = Duration::from_micros(rand::rng().random_range(0..20_000));
                tokio::spawn(async move {
                    let command = if i % 5 == 0 { "slow" } else { "ping" };
                    let _ = tokio::time::timeout(patience, call(&pool, command)).await;
                })
            })
            .collect();
        if round % 2 == 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            pool.clear(None, true);
        }
        for task in tasks {
            let _ = task.await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        let (total, connecting, live, idle) = totals(&pool);
        assert_eq!((connecting, live, pool.load()), (0, total, 0), "round {round}");
        assert!(total <= 5 && idle == total, "round {round}: {total} {idle}");
        assert!(fake.open() <= 5, "round {round}");
        let all: Vec<_> =
            futures_util::future::join_all((0..5).map(|_| pool.clone()).map(async |p| p.check_out(&op()).await)).await;
        assert!(all.iter().all(Result::is_ok), "round {round}");
    }
}
