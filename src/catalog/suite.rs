//! One set of tests for every store; `embedded` always, `replset` where `MOSAIC_MONGOD` names a mongod.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use bson::oid::ObjectId;
use bson::{Bson, RawDocumentBuf, Timestamp, Uuid, rawdoc};

use super::chunk::{ChunkDoc, HistoryEntry};
use super::model::{ChunkVersion, collection};
use super::store::{CatalogTxn, CheckKind, Scan, SharedStore, Touch, View};
use super::table::ChunkInfo;
use crate::bsonx;
use crate::error::Code;

/// Everything a store must do. `other` is a second handle on the same catalog (the same one for the embedded store).
pub(super) async fn run(store: SharedStore, other: SharedStore) {
    fresh(&store).await;
    views_of_a_moment_before_the_first_document(&store).await;
    put_get_delete(&store, &other).await;
    checks(&store).await;
    atomic(&store).await;
    scans(&store).await;
    one_winner(&store, &other).await;
    views_are_consistent(&store, &other).await;
    notices(&store, &other).await;
    clock(&store, &other).await;
    notes(&store).await;
    many_documents(&store).await;
}

async fn get(store: &SharedStore, collection: &str, id: impl Into<Bson>) -> Option<RawDocumentBuf> {
    let version = store.version().await.unwrap();
    store.view(version).await.unwrap().get(collection, &id.into()).await.unwrap()
}

async fn scan_view(view: &mut dyn View, collection: &str, scan: Scan) -> Vec<RawDocumentBuf> {
    let mut docs = Vec::new();
    view.scan(collection, &scan, &mut |d| {
        docs.push(d);
        Ok(())
    })
    .await
    .unwrap();
    docs
}

async fn scan(store: &SharedStore, collection: &str, what: Scan) -> Vec<RawDocumentBuf> {
    let version = store.version().await.unwrap();
    let mut view = store.view(version).await.unwrap();
    scan_view(&mut *view, collection, what).await
}

/// A replica set has no answer for a view of a collection that was made after it.
async fn views_of_a_moment_before_the_first_document(store: &SharedStore) {
    for name in [collection::DDL, collection::TXNS, collection::SETTINGS, collection::LOCKS, collection::MIGRATIONS] {
        let version = store.version().await.unwrap();
        let mut before = store.view(version).await.unwrap();
        store.commit(&CatalogTxn::new().put(name, rawdoc! { "_id": "first" })).await.unwrap();
        assert!(scan_view(&mut *before, name, Scan::All).await.is_empty(), "{name}");
        store.commit(&CatalogTxn::new().delete(name, "first")).await.unwrap();
    }
}

async fn fresh(store: &SharedStore) {
    assert!(store.version().await.unwrap() >= 1);
    let version = get(store, collection::VERSION, 1).await.expect("config.version is there from the start");
    assert!(bsonx::get(&version, "clusterId").unwrap().as_object_id().is_some());
    // Numbers are equal across types.
    assert!(get(store, collection::VERSION, 1.0).await.is_some());
    assert!(scan(store, collection::SHARDS, Scan::All).await.is_empty());
}

async fn put_get_delete(store: &SharedStore, other: &SharedStore) {
    let before = store.version().await.unwrap();
    let txn = CatalogTxn::new()
        .put("settings", rawdoc! { "_id": "chunksize", "value": 64 })
        .put("settings", rawdoc! { "_id": "balancer", "stopped": true })
        .touch("settings");
    let version = store.commit(&txn).await.unwrap();
    assert_eq!(version, before + 1);
    let found = get(other, "settings", "chunksize").await.unwrap();
    assert_eq!(bsonx::int(&found, "value"), Some(64));
    let mark = get(other, collection::CHANGES, "settings").await.unwrap();
    assert_eq!(bsonx::int(&mark, "version"), Some(version as i64));
    let ids: Vec<_> = scan(other, "settings", Scan::All).await;
    let ids: Vec<_> = ids.iter().map(|d| bsonx::str(d, "_id").unwrap().to_owned()).collect();
    assert_eq!(ids, ["balancer", "chunksize"], "in the order of _id");
    let txn = CatalogTxn::new().delete("settings", "chunksize").delete_where("settings", "stopped", true);
    assert_eq!(other.commit(&txn).await.unwrap(), version + 1);
    assert!(scan(store, "settings", Scan::All).await.is_empty());
    assert!(store.collections().await.unwrap().iter().any(|c| c == "settings"));
}

async fn checks(store: &SharedStore) {
    store.commit(&CatalogTxn::new().put("shards", rawdoc! { "_id": "a", "host": "h", "n": 1 })).await.unwrap();
    let refused = [
        CheckKind::Absent("a".into()),
        CheckKind::Exists("b".into()),
        CheckKind::Fields("a".into(), rawdoc! { "n": 2 }),
        CheckKind::Fields("b".into(), rawdoc! { "n": 1 }),
        CheckKind::NoneWhere("host".into(), "h".into()),
    ];
    for kind in refused {
        let txn = CatalogTxn::new().check("shards", kind.clone(), "refused").put("shards", rawdoc! { "_id": "x" });
        let error = store.commit(&txn).await.unwrap_err();
        assert!(error.is(Code::ConflictingOperationInProgress), "{kind:?}: {error}");
        assert_eq!(error.message(), "refused");
    }
    let insert = CatalogTxn::new().insert("shards", rawdoc! { "_id": "a" });
    assert!(store.commit(&insert).await.unwrap_err().is(Code::ConflictingOperationInProgress));
    assert!(get(store, "shards", "x").await.is_none());
    let held = [
        CheckKind::Exists("a".into()),
        CheckKind::Absent("b".into()),
        CheckKind::Fields("a".into(), rawdoc! { "n": 1, "host": "h" }),
        CheckKind::NoneWhere("host".into(), "other".into()),
    ];
    let mut txn = CatalogTxn::new().put("shards", rawdoc! { "_id": "x" }).touch("shards");
    for kind in held {
        txn = txn.check("shards", kind, "held");
    }
    let version = store.commit(&txn).await.unwrap();
    assert!(get(store, "shards", "x").await.is_some());
    let stale = CatalogTxn::new().unchanged("shards", version - 1).put("shards", rawdoc! { "_id": "y" });
    assert!(store.commit(&stale).await.unwrap_err().is(Code::ConflictingOperationInProgress));
    store.commit(&CatalogTxn::new().unchanged("shards", version).unchanged("never", 0)).await.unwrap();
    store.commit(&CatalogTxn::new().delete("shards", "a").delete("shards", "x").forget("shards")).await.unwrap();
    store.commit(&CatalogTxn::new().unchanged("shards", 0)).await.unwrap();
}

/// The last write is refused: none of those before it is seen.
async fn atomic(store: &SharedStore) {
    store.commit(&CatalogTxn::new().put("locks", rawdoc! { "_id": "there" })).await.unwrap();
    let before = store.version().await.unwrap();
    let mut txn = CatalogTxn::new();
    for i in 0..50 {
        txn = txn.put("locks", rawdoc! { "_id": i });
    }
    txn = txn.delete("locks", "there").insert("locks", rawdoc! { "_id": 7 });
    assert!(store.commit(&txn).await.is_err());
    assert_eq!(scan(store, "locks", Scan::All).await.len(), 1);
    assert_eq!(store.version().await.unwrap(), before);
    store.commit(&CatalogTxn::new().delete("locks", "there")).await.unwrap();
}

fn chunk(uuid: Uuid, i: i32, lastmod: (u32, u32)) -> ChunkDoc {
    let shard: Arc<str> = "s0".into();
    let since = Timestamp { time: 5, increment: 6 };
    let info = ChunkInfo {
        id: ObjectId::new(),
        min: rawdoc! { "k": i },
        max: rawdoc! { "k": i + 1 },
        shard: shard.clone(),
        lastmod,
        jumbo: i % 2 == 0,
        since: Some(since),
    };
    let history = vec![HistoryEntry { valid_after: since, shard }];
    ChunkDoc { uuid, info, history, rest: rawdoc! { "custom": i } }
}

async fn scans(store: &SharedStore) {
    let (one, two) = (Uuid::new(), Uuid::new());
    let mut txn = CatalogTxn::new();
    let mut docs = Vec::new();
    for i in 0..10 {
        docs.push(chunk(one, i, (1 + i as u32 / 5, i as u32 % 5)));
        txn = txn.put("chunks", docs[i as usize].to_doc()).put("chunks", chunk(two, i, (1, i as u32)).to_doc());
    }
    store.commit(&txn).await.unwrap();
    let since = |major, minor| Scan::ChunksSince { uuid: one, lastmod: ChunkVersion { major, minor } };
    let all = scan(store, "chunks", since(0, 0)).await;
    let parsed: Vec<_> = all.iter().map(|d| ChunkDoc::parse(d).unwrap()).collect();
    assert_eq!(parsed, docs, "in the order of lastmod, nothing lost");
    assert_eq!(scan(store, "chunks", since(2, 3)).await.len(), 2);
    assert_eq!(scan(store, "chunks", since(2, 5)).await.len(), 0);
    // A chunk whose version rises is found under the new one only.
    let mut moved = docs[0].clone();
    moved.info.lastmod = (9, 0);
    store.commit(&CatalogTxn::new().put("chunks", moved.to_doc())).await.unwrap();
    let newest = scan(store, "chunks", since(2, 5)).await;
    assert_eq!(newest.len(), 1);
    assert_eq!(scan(store, "chunks", since(0, 0)).await.len(), 10);
    let by_uuid = Scan::ByField("uuid".into(), bson::Binary::from_uuid(two).into());
    assert_eq!(scan(store, "chunks", by_uuid.clone()).await.len(), 10);
    store.commit(&CatalogTxn::new().delete_where("chunks", "uuid", bson::Binary::from_uuid(two))).await.unwrap();
    assert_eq!(scan(store, "chunks", by_uuid).await.len(), 0);
    assert_eq!(scan(store, "chunks", Scan::All).await.len(), 10);
    assert_eq!(scan(store, "chunks", Scan::ByField("custom".into(), 3.0.into())).await.len(), 1);
    assert_eq!(scan(store, "chunks", Scan::Greater("custom".into(), 6)).await.len(), 3);
    store.commit(&CatalogTxn::new().delete_where("chunks", "uuid", bson::Binary::from_uuid(one))).await.unwrap();
}

/// Commits that rest on the same state at the same time: exactly one is made, the others are told.
async fn one_winner(store: &SharedStore, other: &SharedStore) {
    for round in 0..5 {
        let base = store.version().await.unwrap();
        let tasks: Vec<_> = (0..6)
            .map(|i| {
                let store = if i % 2 == 0 { store.clone() } else { other.clone() };
                tokio::spawn(async move {
                    let txn = CatalogTxn::new()
                        .unchanged("databases", base)
                        .put("databases", rawdoc! { "_id": format!("r{round}"), "by": i })
                        .touch("databases");
                    store.commit(&txn).await
                })
            })
            .collect();
        let mut winners = Vec::new();
        for (i, task) in tasks.into_iter().enumerate() {
            match task.await.unwrap() {
                Ok(_) => winners.push(i as i64),
                Err(e) => assert!(e.is(Code::ConflictingOperationInProgress), "{e}"),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}");
        let doc = get(store, "databases", format!("r{round}")).await.unwrap();
        assert_eq!(bsonx::int(&doc, "by"), Some(winners[0]));
        assert_eq!(store.version().await.unwrap(), base + 1);
    }
    let mut txn = CatalogTxn::new();
    for round in 0..5 {
        txn = txn.delete("databases", format!("r{round}"));
    }
    store.commit(&txn).await.unwrap();
}

/// Two documents always changed together are never seen apart, while commits go on.
async fn views_are_consistent(store: &SharedStore, other: &SharedStore) {
    let write = |n: i32| {
        CatalogTxn::new().put("tags", rawdoc! { "_id": "a", "n": n }).put("locks", rawdoc! { "_id": "b", "n": n })
    };
    store.commit(&write(0)).await.unwrap();
    let writer = store.clone();
    let writing = tokio::spawn(async move {
        for n in 1..40 {
            writer.commit(&write(n)).await.unwrap();
        }
    });
    while !writing.is_finished() {
        let mut view = other.view(0).await.unwrap();
        let a = view.get("tags", &"a".into()).await.unwrap().unwrap();
        tokio::task::yield_now().await;
        let b = view.get("locks", &"b".into()).await.unwrap().unwrap();
        assert_eq!(bsonx::int(&a, "n"), bsonx::int(&b, "n"));
        let at = view.get(collection::CATALOG, &"version".into()).await.unwrap().unwrap();
        assert_eq!(bsonx::int(&at, "version"), Some(view.version() as i64));
    }
    writing.await.unwrap();
    store.commit(&CatalogTxn::new().delete("tags", "a").delete("locks", "b")).await.unwrap();
}

async fn notices(store: &SharedStore, other: &SharedStore) {
    let mut watch = other.watch();
    let version = store.commit(&CatalogTxn::new().touch("settings")).await.unwrap();
    let seen = tokio::time::timeout(Duration::from_secs(1), watch.wait_for(|v| *v >= version)).await;
    seen.expect("a change is noticed within a second").unwrap();
}

async fn clock(store: &SharedStore, other: &SharedStore) {
    let mut last = Timestamp { time: 0, increment: 0 };
    for i in 0..20 {
        let now = if i % 2 == 0 { store.tick() } else { other.tick() }.await.unwrap();
        assert!(now > last, "{now:?} after {last:?}");
        last = now;
    }
    assert!(last.time > 1_700_000_000);
}

async fn notes(store: &SharedStore) {
    let before = store.version().await.unwrap();
    store.note("mongos", rawdoc! { "_id": "h:1", "up": 1 }).await.unwrap();
    store.note("mongos", rawdoc! { "_id": "h:1", "up": 2 }).await.unwrap();
    store.note(collection::CHANGELOG, rawdoc! { "_id": "l1", "what": "split" }).await.unwrap();
    assert_eq!(bsonx::int(&get(store, "mongos", "h:1").await.unwrap(), "up"), Some(2));
    assert_eq!(store.version().await.unwrap(), before);
}

/// One commit of more than a batch of documents, more than one message holds.
async fn many_documents(store: &SharedStore) {
    let uuid = Uuid::new();
    let mut txn = CatalogTxn::new();
    for i in 0..5000 {
        txn = txn.insert("chunks", chunk(uuid, i, (1, i as u32)).to_doc());
    }
    store.commit(&txn).await.unwrap();
    let found = scan(store, "chunks", Scan::ChunksSince { uuid, lastmod: ChunkVersion::default() }).await;
    assert_eq!(found.len(), 5000);
    assert!(found.windows(2).all(|w| bsonx::int(&w[0], "custom") < bsonx::int(&w[1], "custom")));
    let mut rewrite = CatalogTxn::new();
    for doc in &found {
        let mut chunk = ChunkDoc::parse(doc).unwrap();
        chunk.info.lastmod = (2, chunk.info.lastmod.1);
        rewrite = rewrite.put("chunks", chunk.to_doc());
    }
    store.commit(&rewrite.touch(Touch::chunks(uuid))).await.unwrap();
    let from = Scan::ChunksSince { uuid, lastmod: ChunkVersion { major: 2, minor: 0 } };
    assert_eq!(scan(store, "chunks", from).await.len(), 5000);
    store.commit(&CatalogTxn::new().delete_where("chunks", "uuid", bson::Binary::from_uuid(uuid))).await.unwrap();
}

/// A mongod of a replica set with one member, for the time of a test.
pub(crate) struct Mongod {
    process: std::process::Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Drop for Mongod {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Mongod {
    /// Starts one if `MOSAIC_MONGOD` names the program; `None` (with a note) otherwise.
    pub(crate) async fn start(set: &str) -> Option<Mongod> {
        let Some(program) = std::env::var_os("MOSAIC_MONGOD") else {
            eprintln!("skipped: MOSAIC_MONGOD is not set");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = std::process::Command::new(program)
            .args(["--replSet", set, "--bind_ip", "127.0.0.1", "--wiredTigerCacheSizeGB", "0.25"])
            .args(["--setParameter", "diagnosticDataCollectionEnabled=false"])
            .arg("--port")
            .arg(port.to_string())
            .arg("--dbpath")
            .arg(dir.path())
            .arg("--logpath")
            .arg(dir.path().join("log"))
            .spawn()
            .unwrap();
        let mongod = Mongod { process, port, _dir: dir };
        let options = mongodb::options::ClientOptions::builder()
            .hosts(vec![mongodb::options::ServerAddress::Tcp { host: "127.0.0.1".into(), port: Some(port) }])
            .direct_connection(true)
            .server_selection_timeout(Duration::from_secs(60))
            .build();
        let admin = mongodb::Client::with_options(options).unwrap().database("admin");
        let members = bson::doc! { "_id": set, "members": [{ "_id": 0, "host": mongod.host() }] };
        admin.run_command(bson::doc! { "replSetInitiate": members }).await.unwrap();
        while !admin.run_command(bson::doc! { "hello": 1 }).await.unwrap().get_bool("isWritablePrimary").unwrap() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Some(mongod)
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}
