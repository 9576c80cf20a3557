//! A router without shards, spoken to over raw sockets: hello in all its forms, limits, shutdown.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use bytes::BytesMut;
use mosaic::config::{CatalogConfig, Config};
use mosaic::router::{Router, Running};
use mosaic::wire::{self, Flags, FrameReader, OutMsg};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

struct Client {
    stream: TcpStream,
    reader: FrameReader,
}

impl Client {
    async fn connect(running: &Running) -> Client {
        Client { stream: TcpStream::connect(running.addresses[0]).await.unwrap(), reader: FrameReader::new() }
    }

    async fn send(&mut self, flags: Flags, command: Document) {
        let mut out = BytesMut::new();
        let body = bson::RawDocumentBuf::try_from(&command).unwrap();
        OutMsg { flags, ..OutMsg::from_doc(body) }.encode(1, &mut out);
        self.stream.write_all(&out).await.unwrap();
    }

    /// The next reply and whether another follows; `None` where the router closed the connection.
    async fn receive(&mut self) -> Option<(Document, bool)> {
        let read = tokio::time::timeout(Duration::from_secs(10), self.reader.read(&mut self.stream)).await.unwrap();
        let message = wire::decode_reply(read.ok()??).unwrap();
        Some((message.document().try_into().unwrap(), message.flags.has(Flags::MORE_TO_COME)))
    }

    async fn run(&mut self, mut command: Document) -> Document {
        command.insert("$db", "admin");
        self.send(Flags::NONE, command).await;
        self.receive().await.unwrap().0
    }

    /// The code of a command that fails.
    async fn code(&mut self, command: Document) -> i32 {
        let reply = self.run(command).await;
        assert_eq!(reply.get_f64("ok").unwrap(), 0.0, "{reply}");
        reply.get_i32("code").unwrap()
    }
}

async fn start(dir: &tempfile::TempDir, edit: impl FnOnce(&mut Config)) -> Running {
    let mut config = Config::new(CatalogConfig::Embedded { path: dir.path().join("catalog") });
    config.net.port = 0;
    config.parameters.set("mongosShutdownTimeoutMillisForSignaledShutdown", &Bson::Int32(0)).unwrap();
    edit(&mut config);
    Router::start(config).await.unwrap()
}

fn metadata(driver: Document) -> Document {
    doc! { "driver": driver, "os": { "type": "Linux" } }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hello_tells_what_a_router_is() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(&dir, |_| {}).await;
    let mut client = Client::connect(&running).await;
    let reply = client.run(doc! { "hello": 1 }).await;
    let keys: Vec<_> = reply.keys().map(String::as_str).collect();
    // The recorded order of a genuine mongos.
    assert_eq!(
        keys,
        [
            "isWritablePrimary",
            "msg",
            "topologyVersion",
            "maxBsonObjectSize",
            "maxMessageSizeBytes",
            "maxWriteBatchSize",
            "localTime",
            "logicalSessionTimeoutMinutes",
            "connectionId",
            "maxWireVersion",
            "minWireVersion",
            "ok"
        ]
    );
    assert_eq!(reply.get_str("msg").unwrap(), "isdbgrid");
    assert_eq!(reply.get_i32("maxWireVersion").unwrap(), 17);
    let old = client.run(doc! { "ismaster": 1, "helloOk": true, "compression": ["zlib", "x", "snappy", "zlib"] }).await;
    assert!(old.get_bool("ismaster").unwrap());
    assert!(old.get_bool("helloOk").unwrap());
    assert_eq!(old.get_array("compression").unwrap(), &vec![Bson::from("zlib"), Bson::from("snappy")]);
    let fine = [
        doc! { "hello": 1, "saslSupportedMechs": "admin.someone" },
        doc! { "hello": 1, "speculativeAuthenticate": { "saslStart": 1 }, "anything": "else" },
        doc! { "isMaster": 1, "loadBalanced": false },
    ];
    for command in fine {
        assert_eq!(client.run(command).await.get_f64("ok").unwrap(), 1.0);
    }
    for (command, code) in [
        (doc! { "hello": 1, "compression": "zlib" }, 14),
        (doc! { "hello": 1, "compression": [1] }, 14),
        (doc! { "hello": 1, "saslSupportedMechs": "someone" }, 2),
        (doc! { "hello": 1, "speculativeAuthenticate": 1 }, 14),
        (doc! { "hello": 1, "helloOk": "x" }, 14),
        (doc! { "hello": 1, "loadBalanced": true }, 354),
    ] {
        assert_eq!(client.code(command.clone()).await, code, "{command}");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_metadata_comes_once_and_has_rules() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(&dir, |_| {}).await;
    let driver = || doc! { "name": "d", "version": "1" };
    for (metadata, code) in [
        (Bson::from(1), 14),
        (doc! {}.into(), 183),
        (doc! { "driver": driver() }.into(), 183),
        (metadata(doc! { "name": "d" }).into(), 183),
        (metadata(doc! { "name": 1, "version": "1" }).into(), 14),
        (doc! { "driver": driver(), "os": {} }.into(), 183),
        (doc! { "driver": driver(), "os": { "type": "x" }, "application": { "name": "a".repeat(129) } }.into(), 184),
        (doc! { "driver": driver(), "os": { "type": "x" }, "pad": "a".repeat(500) }.into(), 185),
    ] {
        let mut client = Client::connect(&running).await;
        assert_eq!(client.code(doc! { "hello": 1, "client": metadata.clone() }).await, code, "{metadata}");
    }
    let mut client = Client::connect(&running).await;
    let hello = doc! { "hello": 1, "client": metadata(driver()) };
    assert_eq!(client.run(hello.clone()).await.get_f64("ok").unwrap(), 1.0);
    assert_eq!(client.code(hello.clone()).await, 186);
    assert_eq!(client.run(doc! { "hello": 1 }).await.get_f64("ok").unwrap(), 1.0);
    let mut client = Client::connect(&running).await;
    client.run(doc! { "hello": 1 }).await;
    assert_eq!(client.code(hello).await, 186, "not even where the first hello had none");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hellos_wait_stream_and_are_told_of_the_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(&dir, |config| {
        config.parameters.set("mongosShutdownTimeoutMillisForSignaledShutdown", &Bson::Int32(700)).unwrap();
    })
    .await;
    let mut client = Client::connect(&running).await;
    let version = client.run(doc! { "hello": 1 }).await.get_document("topologyVersion").unwrap().clone();
    let with = |counter: i64| doc! { "processId": version.get_object_id("processId").unwrap(), "counter": counter };
    for (command, code) in [
        (doc! { "hello": 1, "maxAwaitTimeMS": 10 }, 51760),
        (doc! { "hello": 1, "topologyVersion": with(0) }, 51760),
        (doc! { "hello": 1, "topologyVersion": with(0), "maxAwaitTimeMS": -1 }, 51759),
        (doc! { "hello": 1, "topologyVersion": with(-1), "maxAwaitTimeMS": 10 }, 51758),
        (doc! { "hello": 1, "topologyVersion": with(5), "maxAwaitTimeMS": 10 }, 51761),
        (doc! { "hello": 1, "topologyVersion": 5, "maxAwaitTimeMS": 10 }, 14),
        (doc! { "hello": 1, "topologyVersion": { "counter": 0_i64 }, "maxAwaitTimeMS": 10 }, 40414),
        (doc! { "hello": 1, "topologyVersion": { "counter": 0, "processId": 1 }, "maxAwaitTimeMS": 10 }, 14),
    ] {
        assert_eq!(client.code(command.clone()).await, code, "{command}");
    }
    client.send(Flags::EXHAUST_ALLOWED, doc! { "hello": 1, "$db": "admin" }).await;
    assert_eq!(client.receive().await.unwrap().0.get_i32("code").unwrap(), 51763);

    let begun = Instant::now();
    let wait = |ms: i32| doc! { "hello": 1, "topologyVersion": with(0), "maxAwaitTimeMS": ms };
    assert_eq!(client.run(wait(150)).await.get_f64("ok").unwrap(), 1.0);
    assert!(begun.elapsed() >= Duration::from_millis(150));
    let other = doc! { "processId": bson::oid::ObjectId::new(), "counter": 9_i64 };
    let begun = Instant::now();
    client.run(doc! { "hello": 1, "topologyVersion": other, "maxAwaitTimeMS": 10_000 }).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "another process's version is out of date");

    let mut streaming = Client::connect(&running).await;
    let mut command = wait(50);
    command.insert("$db", "admin");
    streaming.send(Flags::EXHAUST_ALLOWED, command).await;
    for _ in 0..4 {
        let (reply, more) = streaming.receive().await.unwrap();
        assert!(more && reply.get_f64("ok").unwrap() == 1.0);
    }
    let mut waiting = Client::connect(&running).await;
    let mut command = wait(60_000);
    command.insert("$db", "admin");
    waiting.send(Flags::NONE, command).await;
    tokio::time::sleep(Duration::from_millis(50)).await;

    let address = running.addresses[0];
    let stopping = tokio::spawn(running.stop());
    let (reply, more) = waiting.receive().await.unwrap();
    assert!(!more);
    assert_eq!(reply.get_i32("code").unwrap(), 91);
    assert_eq!(reply.get_document("topologyVersion").unwrap().get_i64("counter").unwrap(), 1);
    assert!(reply.get_i64("remainingQuiesceTimeMillis").unwrap() <= 700);
    while let Some((reply, more)) = streaming.receive().await {
        if !more {
            assert_eq!(reply.get_i32("code").unwrap(), 91);
            break;
        }
    }
    assert_eq!(client.run(doc! { "ping": 1 }).await.get_f64("ok").unwrap(), 1.0, "other commands are still served");
    assert_eq!(client.code(doc! { "hello": 1 }).await, 91);
    assert!(client.receive().await.is_none(), "in the end connections are closed");
    stopping.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_limit_are_closed() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(&dir, |config| config.net.max_incoming_connections = 2).await;
    let mut first = Client::connect(&running).await;
    first.run(doc! { "ping": 1 }).await;
    let mut second = Client::connect(&running).await;
    second.run(doc! { "ping": 1 }).await;
    let mut third = Client::connect(&running).await;
    assert!(third.receive().await.is_none());
    drop(second);
    for _ in 0..100 {
        if running.router.connections.len() < 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut fourth = Client::connect(&running).await;
    assert_eq!(fourth.run(doc! { "ping": 1 }).await.get_f64("ok").unwrap(), 1.0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_balancers_have_a_port_of_their_own() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let running = start(&dir, |config| {
        config.parameters.set("loadBalancerPort", &Bson::Int32(i32::from(free.port()))).unwrap();
    })
    .await;
    let through = async |header: &[u8]| {
        let mut stream = TcpStream::connect(free).await.unwrap();
        stream.write_all(header).await.unwrap();
        Client { stream, reader: FrameReader::new() }
    };
    let header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x0a\x01\x02\x03\x7f\0\0\x01\x1f\x90\x69\x89";
    let mut client = through(header).await;
    let reply = client.run(doc! { "hello": 1, "loadBalanced": true }).await;
    let service = reply.get_object_id("serviceId").unwrap();
    let seen: Vec<String> = running.router.connections.list().iter().map(|c| c.info.address.clone()).collect();
    assert_eq!(seen, ["10.1.2.3:8080"], "the client's own address counts");
    assert_eq!(client.run(doc! { "ping": 1 }).await.get_f64("ok").unwrap(), 1.0);
    let mut other = through(b"PROXY UNKNOWN\r\n").await;
    let reply = other.run(doc! { "hello": 1, "loadBalanced": true }).await;
    assert_eq!(reply.get_object_id("serviceId").unwrap(), service);
    let mut unaware = through(header).await;
    assert_eq!(unaware.code(doc! { "hello": 1 }).await, 354);
    let mut plain = through(b"").await;
    plain.send(Flags::NONE, doc! { "hello": 1, "$db": "admin" }).await;
    assert!(plain.receive().await.is_none(), "without the header it is closed");
    let mut direct = Client::connect(&running).await;
    assert!(!direct.run(doc! { "hello": 1 }).await.contains_key("serviceId"));
    running.stop().await;
}

/// A client behind a load balancer cannot come back to this router: its cursors end with the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursors_end_with_a_load_balanced_connection() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let running = start(&dir, |config| {
        config.parameters.set("loadBalancerPort", &Bson::Int32(i32::from(free.port()))).unwrap();
    })
    .await;
    let open = async |mut client: Client| {
        client.send(Flags::NONE, doc! { "find": "version", "batchSize": 0, "$db": "config" }).await;
        let reply = client.receive().await.unwrap().0;
        assert_ne!(reply.get_document("cursor").unwrap().get_i64("id").unwrap(), 0, "{reply}");
        client
    };
    let direct = open(Client::connect(&running).await).await;
    let mut stream = TcpStream::connect(free).await.unwrap();
    stream.write_all(b"PROXY UNKNOWN\r\n").await.unwrap();
    let mut balanced = Client { stream, reader: FrameReader::new() };
    balanced.run(doc! { "hello": 1, "loadBalanced": true }).await;
    let balanced = open(balanced).await;
    let count = || running.router.cursors.stats().open;
    assert_eq!(count(), 2);
    drop((balanced, direct));
    for _ in 0..500 {
        if running.router.connections.is_empty() && count() == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((running.router.connections.len(), count()), (0, 1), "the other one may be asked for on any connection");
    running.stop().await;
}
