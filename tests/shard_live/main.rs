//! The shard layer against real mongods. Skipped where `MOSAIC_MONGOD` does not name one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod failover;
#[path = "../shard_support/mod.rs"]
mod shard_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::rawdoc;
use mosaic::bsonx;
use mosaic::config::Pool;
use mosaic::shard::{ReadPreference, Retryable, Shard, ShardRegistry, ShardSettings};
use mosaic::wire::Flags;
use shard_support::{Set, count, eventually, mongod, msg, ok, op, run, running};

/// One set of mongods at a time: the tests measure times.
static ONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn registry(pool: Pool) -> Arc<ShardRegistry> {
    ShardRegistry::new(ShardSettings { pool, ..ShardSettings::default() })
}

fn connect(registry: &ShardRegistry, set: &Set) -> Arc<Shard> {
    registry.sync_hosts([("sh0", set.host().as_str())]).unwrap();
    registry.get("sh0").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_replies_and_sizes() {
    let Some(binary) = mongod() else { return };
    let _one = ONE.lock().await;
    let set = Set::start(binary, "live", 0, 1, &[]).await;
    let registry = registry(Pool::default());
    let shard = connect(&registry, &set);

    ok(&shard, rawdoc! {"ping": 1, "$db": "admin"}).await;
    assert_eq!(shard.host(), set.host());
    assert_eq!(shard.primary().unwrap().as_ref(), set.members[0].host());

    // An error reply arrives as a reply.
    let reply = run(&shard, rawdoc! {"nonsense": 1, "$db": "admin"}).await.unwrap();
    assert!(!reply.ok());
    assert_eq!(reply.into_result().unwrap_err().code(), 59);

    // Large messages in both directions: 40 documents of 400 kB out, 16 MB back.
    let big = "x".repeat(400_000);
    let mut docs = Vec::new();
    for i in 0..40 {
        docs.extend_from_slice(rawdoc! {"_id": i, "x": big.as_str()}.as_bytes());
    }
    let mut insert = msg(rawdoc! {"insert": "big", "$db": "t"});
    insert.sequences.push(mosaic::wire::OutSequence { id: "documents".into(), docs: smallvec::smallvec![docs.into()] });
    let reply = shard.run(&op(), &ReadPreference::PRIMARY, Retryable::No, &insert).await.unwrap();
    assert_eq!(bsonx::int(reply.doc(), "n"), Some(40));
    let reply = ok(&shard, rawdoc! {"find": "big", "batchSize": 100, "$db": "t"}).await;
    assert!(reply.as_bytes().len() > 15_000_000);
    let cursor = bsonx::doc(&reply, "cursor").unwrap();
    assert_eq!(bsonx::array(cursor, "firstBatch").unwrap().into_iter().count(), 40);
    // One with a size just around the read buffer's.
    for size in [65_000, 65_400, 65_450, 65_480, 65_500, 65_536, 70_000, 131_072] {
        let text = "y".repeat(size);
        let reply =
            ok(&shard, rawdoc! {"aggregate": 1, "pipeline": [{"$documents": [{"t": text}]}], "cursor": {}, "$db": "t"})
                .await;
        assert!(reply.as_bytes().len() > size);
    }

    // Unacknowledged.
    let mut write = msg(rawdoc! {"insert": "quiet", "documents": [{"_id": 1}], "writeConcern": {"w": 0}, "$db": "t"});
    write.flags = Flags::MORE_TO_COME;
    shard.send_only(&op(), &write).await.unwrap();
    eventually(Duration::from_secs(5), "the write arrives", async || count(&shard, "quiet").await == 1).await;
    assert!(shard.send_only(&op(), &msg(rawdoc! {"ping": 1, "$db": "admin"})).await.is_err());
}

fn slow(comment: &str, kind: &str) -> bson::RawDocumentBuf {
    let slowly = "function() { sleep(60000); return true; }";
    match kind {
        "find" => rawdoc! {"find": "s", "filter": {"$where": slowly}, "comment": comment, "$db": "t"},
        "aggregate" => rawdoc! {
            "aggregate": "s", "pipeline": [{"$match": {"$expr": {"$function": {"body": slowly, "args": [], "lang": "js"}}}}],
            "cursor": {}, "comment": comment, "$db": "t",
        },
        "update" => rawdoc! {
            "update": "s", "updates": [{"q": {"$where": slowly}, "u": {"$inc": {"n": 1}}, "multi": true}], "comment": comment, "$db": "t",
        },
        "findAndModify" => rawdoc! {
            "findAndModify": "s", "query": {"$where": slowly}, "update": {"$inc": {"n": 1}}, "comment": comment, "$db": "t",
        },
        _ => rawdoc! {"sleep": 1, "millis": 60_000, "lock": "none", "comment": comment, "$db": "admin"},
    }
}

/// Whether it is the client that goes away, the deadline that passes or the caller that drops the future: the work on
/// the shard ends, and the connection is used again.
#[tokio::test(flavor = "multi_thread")]
async fn abandoned_work_is_stopped() {
    let Some(binary) = mongod() else { return };
    let _one = ONE.lock().await;
    let set = Set::start(binary, "cancel", 0, 1, &[]).await;
    let registry = registry(Pool::default());
    let shard = connect(&registry, &set);
    ok(&shard, rawdoc! {"insert": "s", "documents": [{"_id": 1, "n": 0}, {"_id": 2, "n": 0}], "$db": "t"}).await;

    for (i, kind) in ["find", "aggregate", "update", "findAndModify", "sleep"].into_iter().enumerate() {
        for way in ["cancel", "drop", "deadline"] {
            let comment = format!("{kind} {way}");
            let command = msg(slow(&comment, kind));
            let op = op();
            let limit = Duration::from_secs(if way == "deadline" { 1 } else { 60 });
            let context = op.clone().with_limit(limit);
            let task = {
                let (shard, context) = (shard.clone(), context.clone());
                tokio::spawn(
                    async move { shard.run(&context, &ReadPreference::PRIMARY, Retryable::No, &command).await },
                )
            };
            if way != "deadline" {
                eventually(Duration::from_secs(30), &comment, async || running(&shard, &comment).await == 1).await;
            }
            match way {
                "cancel" => {
                    op.record.kill(mosaic::op::Cancelled::ClientDisconnect);
                    assert_eq!(task.await.unwrap().unwrap_err().code(), 279);
                }
                "drop" => task.abort(),
                _ => assert_eq!(task.await.unwrap().unwrap_err().code(), 50),
            }
            let took =
                eventually(Duration::from_secs(10), &comment, async || running(&shard, &comment).await == 0).await;
            println!("{comment}: stopped after {took:?}");
        }
        assert_eq!(
            ok(&shard, rawdoc! {"count": "s", "query": {"n": 0}, "$db": "t"}).await.get_i32("n").unwrap(),
            2,
            "{i}"
        );
    }
    let idle = async || shard.stats().servers[0].pool.in_use == 0;
    eventually(Duration::from_secs(3), "connections come back", idle).await;
    let stats = &shard.stats().servers[0];
    println!("{stats:?}");
    assert!(stats.killed >= 15);
    assert!(stats.pool.created <= 6, "connections are used again: {stats:?}");
}

/// A cursor whose opening nobody waited for does not stay open on the shard.
#[tokio::test(flavor = "multi_thread")]
async fn late_cursors_are_closed() {
    let Some(binary) = mongod() else { return };
    let _one = ONE.lock().await;
    let set = Set::start(binary, "late", 0, 1, &[]).await;
    let registry = registry(Pool::default());
    let shard = connect(&registry, &set);
    let docs: bson::RawArrayBuf = (0..1000).map(|i| rawdoc! {"_id": i}).collect();
    ok(&shard, rawdoc! {"insert": "s", "documents": docs, "$db": "t"}).await;
    for _ in 0..50 {
        let (shard, find) = (shard.clone(), msg(rawdoc! {"find": "s", "batchSize": 2, "$db": "t"}));
        let task = tokio::spawn(async move { shard.run(&op(), &ReadPreference::PRIMARY, Retryable::No, &find).await });
        tokio::time::sleep(Duration::from_micros(300)).await;
        task.abort();
        if let Ok(Ok(reply)) = task.await {
            let id = bsonx::int(bsonx::doc(reply.doc(), "cursor").unwrap(), "id").unwrap();
            ok_kill(&registry, id).await;
        }
    }
    eventually(Duration::from_secs(5), "all cursors are closed", async || {
        let status = ok(&shard, rawdoc! {"serverStatus": 1, "$db": "admin"}).await;
        let cursors = bsonx::doc(bsonx::doc(&status, "metrics").unwrap(), "cursor").unwrap();
        bsonx::int(bsonx::doc(cursors, "open").unwrap(), "total") == Some(0)
    })
    .await;
}

async fn ok_kill(registry: &ShardRegistry, id: i64) {
    let shard = registry.get("sh0").unwrap();
    let mut ids = bson::RawArrayBuf::new();
    ids.push(id);
    ok(&shard, rawdoc! {"killCursors": "s", "cursors": ids, "$db": "t"}).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_are_bounded_and_fair() {
    let Some(binary) = mongod() else { return };
    let _one = ONE.lock().await;
    let set = Set::start(binary, "pool", 0, 1, &[]).await;

    // Never more than four connections, whatever is asked of them.
    let four = registry(Pool { max_size: 4, ..Pool::default() });
    let shard = connect(&four, &set);
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let shard = shard.clone();
            tokio::spawn(
                async move { ok(&shard, rawdoc! {"sleep": 1, "millis": 5, "lock": "none", "$db": "admin"}).await },
            )
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let pool = shard.stats().servers[0].pool;
    assert_eq!((pool.created, pool.in_use, pool.available, pool.waiting), (4, 0, 4, 0));

    // One connection: who came first is served first, and somebody who gave up does not hold up the others.
    let one = registry(Pool { max_size: 1, ..Pool::default() });
    let shard = connect(&one, &set);
    ok(&shard, rawdoc! {"ping": 1, "$db": "admin"}).await;
    let (sender, mut order) = tokio::sync::mpsc::channel(20);
    let mut tasks = Vec::new();
    for i in 0..20 {
        let (shard, sender) = (shard.clone(), sender.clone());
        tasks.push(tokio::spawn(async move {
            let millis = if i == 0 { 2000 } else { 5 };
            ok(&shard, rawdoc! {"sleep": 1, "millis": millis, "lock": "none", "$db": "admin"}).await;
            sender.send(i).await.unwrap();
        }));
        let queued = async || {
            let pool = one.get("sh0").unwrap().stats().servers[0].pool;
            (pool.in_use, pool.waiting) == (1, i)
        };
        eventually(Duration::from_secs(5), "queued", queued).await;
    }
    for gone in [5, 6, 19] {
        tasks[gone].abort();
    }
    drop(sender);
    let mut served = Vec::new();
    while let Some(i) = order.recv().await {
        served.push(i);
    }
    let expected: Vec<usize> = (0..20).filter(|i| ![5, 6, 19].contains(i)).collect();
    assert_eq!(served, expected);

    // Waiting has an end.
    let mut settings = ShardSettings { pool: Pool { max_size: 1, ..Pool::default() }, ..ShardSettings::default() };
    settings.refresh_timeout = Duration::from_millis(300);
    let short = ShardRegistry::new(settings);
    let shard = connect(&short, &set);
    ok(&shard, rawdoc! {"ping": 1, "$db": "admin"}).await;
    let long = {
        let shard = shard.clone();
        tokio::spawn(
            async move { ok(&shard, rawdoc! {"sleep": 1, "millis": 1500, "lock": "none", "$db": "admin"}).await },
        )
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(run(&shard, rawdoc! {"ping": 1, "$db": "admin"}).await.unwrap_err().code(), 407);
    let limited = op().with_limit(Duration::from_millis(50));
    let ping = msg(rawdoc! {"ping": 1, "$db": "admin"});
    let error = shard.run(&limited, &ReadPreference::PRIMARY, Retryable::No, &ping).await.unwrap_err();
    assert_eq!(error.code(), 50);
    long.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_at_once() {
    let Some(binary) = mongod() else { return };
    let _one = ONE.lock().await;
    let set = Set::start(binary, "many", 0, 1, &[]).await;
    let registry = registry(Pool { max_size: 200, ..Pool::default() });
    let shard = connect(&registry, &set);
    let start = Instant::now();
    let tasks: Vec<_> = (0..1000)
        .map(|i| {
            let shard = shard.clone();
            tokio::spawn(async move {
                for j in 0..10 {
                    ok(&shard, rawdoc! {"insert": "c", "documents": [{"_id": i * 10 + j}], "$db": "t"}).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    println!("10,000 inserts by 1,000 tasks in {:?}; {:?}", start.elapsed(), shard.stats().servers[0].pool);
    assert_eq!(count(&shard, "c").await, 10_000);
    assert!(shard.stats().servers[0].pool.created <= 200);
}

/// Without a primary nothing can be sent; a member that comes back costs no error.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_costs_no_error_and_absence_is_told() {
    let Some(binary) = mongod() else { return };
    let _one = ONE.lock().await;
    let mut set = Set::start(binary, "again", 0, 1, &[]).await;
    let quick = registry(Pool { server_selection_timeout: Duration::from_secs(1), ..Pool::default() });
    let patient = registry(Pool::default());
    let (hasty, shard) = (connect(&quick, &set), connect(&patient, &set));
    for shard in [&hasty, &shard] {
        ok(shard, rawdoc! {"insert": "c", "documents": [{"x": 1}], "$db": "t"}).await;
    }

    set.members[0].kill();
    let error = run(&hasty, rawdoc! {"ping": 1, "$db": "admin"}).await.unwrap_err();
    assert_eq!(error.code(), 133, "{error}");
    assert!(
        error.message().starts_with("Could not find host matching read preference { mode: \"primary\" } for set again"),
        "{error}"
    );
    let limited = op().with_limit(Duration::from_millis(100));
    let ping = msg(rawdoc! {"ping": 1, "$db": "admin"});
    let error = shard.run(&limited, &ReadPreference::PRIMARY, Retryable::No, &ping).await.unwrap_err();
    assert_eq!(error.code(), 50);
    let server = shard.stats().servers[0].address.clone();
    let error = shard.run_on(&op(), &server, &ping).await.unwrap_err();
    assert_eq!(error.code(), 6, "{error}");

    let waiting = {
        let shard = shard.clone();
        tokio::spawn(async move { run(&shard, rawdoc! {"insert": "c", "documents": [{"x": 2}], "$db": "t"}).await })
    };
    set.members[0].start().await;
    assert!(waiting.await.unwrap().unwrap().ok());
    assert_eq!(count(&shard, "c").await, 3);

    // Killed and started again between two commands, with an idle connection in the pool.
    let before = shard.stats().servers[0].pool.available;
    assert!(before > 0);
    set.members[0].kill();
    set.members[0].start().await;
    assert!(run(&shard, rawdoc! {"insert": "c", "documents": [{"x": 3}], "$db": "t"}).await.unwrap().ok());
    assert_eq!(count(&shard, "c").await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn key_file_and_bare_hosts() {
    let Some(binary) = mongod() else { return };
    let _one = ONE.lock().await;
    let set = Set::start(binary.clone(), "open", 0, 1, &[]).await;
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, "c2VjcmV0 IGtleQ==\nabc\n").unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    // The localhost exception lets the set be initiated.
    let locked = Set::start(binary, "locked", 1, 1, &["--keyFile", key.to_str().unwrap()]).await;

    let find = || rawdoc! {"find": "c", "$db": "t"};
    let without = registry(Pool::default());
    let shard = without.probe("x", &locked.host()).unwrap();
    assert_eq!(run(&shard, find()).await.unwrap().into_result().unwrap_err().code(), 13);
    let with = |content: &str| {
        ShardRegistry::new(ShardSettings { key_file: Some(content.to_owned()), ..ShardSettings::default() })
    };
    let registry = with("c2VjcmV0IGtleQ==abc");
    let shard = registry.probe("x", &locked.host()).unwrap();
    ok(&shard, find()).await;
    let status = ok(&shard, rawdoc! {"connectionStatus": 1, "$db": "admin"}).await;
    assert!(String::from_utf8_lossy(status.as_bytes()).contains("__system"), "{status:?}");
    let error = run(&with("wrongkey").probe("x", &locked.host()).unwrap(), find()).await.unwrap_err();
    assert_eq!(error.code(), 18, "{error}");

    // A bare address is looked at as it is; a wrong set name is told.
    let shard = without.probe("x", &set.members[0].host()).unwrap();
    let hello = ok(&shard, rawdoc! {"hello": 1, "$db": "admin"}).await;
    assert_eq!(bsonx::str(&hello, "setName"), Some("open"));
    let quick = self::registry(Pool { server_selection_timeout: Duration::from_millis(500), ..Pool::default() });
    let shard = quick.probe("x", &format!("other/{}", set.members[0].host())).unwrap();
    let error = run(&shard, find()).await.unwrap_err();
    assert_eq!(error.code(), 133);
    assert!(error.internal_text().unwrap().contains("another replica set"), "{error}");
}

/// Errors the server is made to give: what is retried, what the client sees, and that the primary is found again at once.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_retried_and_what_is_seen() {
    let Some(binary) = mongod() else { return };
    let _one = ONE.lock().await;
    let set = Set::start(binary, "told", 0, 1, &[]).await;
    let registry = registry(Pool { server_selection_timeout: Duration::from_secs(5), ..Pool::default() });
    let shard = connect(&registry, &set);
    ok(&shard, rawdoc! {"insert": "c", "documents": [{"x": 1}], "$db": "t"}).await;
    let session = bson::Uuid::new();
    let mut number = 0_i64;
    let mut write = || {
        number += 1;
        msg(rawdoc! {
            "insert": "c", "documents": [{"x": number}],
            "lsid": {"id": bson::Binary::from(session)}, "txnNumber": number, "$db": "t",
        })
    };
    let fail = async |times: i32, data: bson::Document| {
        let mut data = data;
        data.insert("failCommands", ["insert", "find"].as_slice());
        let command = bson::doc! {"configureFailPoint": "failCommand", "mode": {"times": times}, "data": data};
        set.admin(0, command).await.unwrap();
    };
    let send = async |retry, msg: &mosaic::wire::OutMsg| shard.run(&op(), &ReadPreference::PRIMARY, retry, msg).await;
    let label = |reply: &bson::RawDocument| {
        bsonx::array(reply, "errorLabels")
            .is_some_and(|l| l.into_iter().flatten().any(|l| l.as_str() == Some("RetryableWriteError")))
    };

    for code in [10107, 13435, 13436, 189, 91, 11600, 11602] {
        // Once: nobody notices, and it does not take long.
        fail(1, bson::doc! {"errorCode": code}).await;
        let start = Instant::now();
        let reply = send(Retryable::Write, &write()).await.unwrap();
        assert!(reply.ok() && bsonx::int(reply.doc(), "n") == Some(1), "{code}");
        assert!(start.elapsed() < Duration::from_secs(5), "{code}: {:?}", start.elapsed());
        // Not retried: seen as what drivers do not take for a change of the router.
        fail(1, bson::doc! {"errorCode": code}).await;
        let reply = send(Retryable::No, &write()).await.unwrap();
        assert_eq!(bsonx::int(reply.doc(), "code"), Some(6), "{code}");
        assert_eq!(bsonx::str(reply.doc(), "codeName"), Some("HostUnreachable"));
        assert!(bsonx::get(reply.doc(), "topologyVersion").is_none());
        // Again and again: the label lets the driver decide.
        fail(9, bson::doc! {"errorCode": code}).await;
        let reply = send(Retryable::Write, &write()).await.unwrap();
        assert!(bsonx::int(reply.doc(), "code") == Some(6) && label(reply.doc()), "{code}: {:?}", reply.doc());
        fail(1, bson::doc! {"errorCode": code}).await;
        let find = msg(rawdoc! {"find": "c", "$db": "t"});
        assert!(send(Retryable::Read, &find).await.unwrap().ok(), "{code}");
    }
    // The connection is closed instead of an answer.
    fail(1, bson::doc! {"closeConnection": true}).await;
    assert!(send(Retryable::Write, &write()).await.unwrap().ok());
    fail(1, bson::doc! {"closeConnection": true}).await;
    let error = send(Retryable::No, &write()).await.unwrap_err();
    assert_eq!((error.code(), error.retry_of()), (6, mosaic::error::Retry::Unknown), "{error}");
    assert!(error.message().ends_with(":: at shard sh0") && error.labels().is_empty(), "{error}");
    fail(9, bson::doc! {"closeConnection": true}).await;
    let error = send(Retryable::Write, &write()).await.unwrap_err();
    assert_eq!(error.labels(), ["RetryableWriteError"], "{error}");
    fail(0, bson::doc! {}).await;
    // A write concern error of a stopping server: the write is there, its acknowledgement is asked for again.
    let concern = bson::doc! {"writeConcernError": {"code": 91, "codeName": "ShutdownInProgress", "errmsg": "x"}};
    fail(1, concern.clone()).await;
    let reply = send(Retryable::Write, &write()).await.unwrap();
    assert!(bsonx::get(reply.doc(), "writeConcernError").is_none());
    fail(1, concern).await;
    let reply = send(Retryable::No, &write()).await.unwrap();
    let error = bsonx::doc(reply.doc(), "writeConcernError").unwrap();
    assert_eq!((reply.ok(), bsonx::int(error, "code")), (true, Some(6)));
    // A server that does not answer in time.
    fail(1, bson::doc! {"blockConnection": true, "blockTimeMS": 3000}).await;
    let start = Instant::now();
    let limited = op().with_limit(Duration::from_millis(300));
    let error = shard.run(&limited, &ReadPreference::PRIMARY, Retryable::Write, &write()).await.unwrap_err();
    assert!(error.code() == 50 && start.elapsed() < Duration::from_millis(2500), "{error}");
}
