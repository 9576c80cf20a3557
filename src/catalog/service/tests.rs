#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bson::{RawBson, RawDocumentBuf, Uuid, rawdoc};
use rand::{RngExt, SeedableRng};
use tokio_util::sync::CancellationToken;

use super::{Catalog, NewChunk, NewCollection, NewShard};
use crate::bsonx;
use crate::catalog::embedded::EmbeddedStore;
use crate::catalog::model::{ChunkVersion, Namespace, ShardId, collection};
use crate::catalog::snapshot::{CollectionRouting, Snapshot};
use crate::catalog::store::{CatalogTxn, CheckKind, Scan, SharedStore};
use crate::error::{Code, Result};
use crate::key::ShardKeyPattern;
use crate::shard::{ShardRegistry, ShardSettings};

/// Catalogs of several routers over one store.
struct Fixture {
    routers: Vec<Arc<Catalog>>,
    shutdown: CancellationToken,
    _dir: tempfile::TempDir,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn open(path: &Path) -> SharedStore {
    Arc::new(EmbeddedStore::open(path, "test").await.unwrap())
}

async fn fixture(routers: usize) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("catalog.redb")).await;
    let shutdown = CancellationToken::new();
    let mut all = Vec::new();
    for i in 0..routers {
        let shards = ShardRegistry::new(ShardSettings::default());
        let name = format!("router{i}:27017");
        all.push(
            Catalog::with_store(store.clone(), shards, (name, bson::oid::ObjectId::new()), shutdown.clone())
                .await
                .unwrap(),
        );
    }
    for i in 0..3 {
        all[0].add_shard(shard(i)).await.unwrap();
    }
    Fixture { routers: all, shutdown, _dir: dir }
}

fn shard(i: usize) -> NewShard {
    // Nobody listens there; the tests only look at the catalog.
    NewShard { id: format!("s{i}").into(), host: format!("rs{i}/127.0.0.1:{}", 1 + i), databases: Vec::new() }
}

fn ns(text: &str) -> Namespace {
    Namespace::parse(text).unwrap()
}

fn one_chunk(name: &str, key: RawDocumentBuf) -> NewCollection {
    let key = ShardKeyPattern::parse(&key).unwrap();
    let chunk = NewChunk { min: key.min_key(), max: key.max_key(), shard: "s0".into() };
    NewCollection {
        ns: ns(name),
        uuid: Uuid::new(),
        key,
        unique: false,
        default_collation: None,
        primary: "s0".into(),
        chunks: vec![chunk],
    }
}

fn routing(catalog: &Catalog, name: &str) -> Arc<CollectionRouting> {
    catalog.snapshot().collection(name).cloned().unwrap_or_else(|| panic!("{name} is not sharded"))
}

/// Waits until the other router has followed.
async fn follows(catalog: &Catalog, version: u64) -> Arc<Snapshot> {
    let mut changed = catalog.subscribe();
    let seen = tokio::time::timeout(Duration::from_secs(1), changed.wait_for(|v| *v >= version)).await;
    seen.expect("within a second").unwrap();
    catalog.snapshot()
}

async fn logged(catalog: &Catalog, what: &str) -> Vec<RawDocumentBuf> {
    let mut view = catalog.store().view(0).await.unwrap();
    let mut docs = Vec::new();
    let scan = Scan::ByField("what".into(), what.into());
    view.scan(collection::CHANGELOG, &scan, &mut |d| {
        docs.push(d);
        Ok(())
    })
    .await
    .unwrap();
    docs
}

#[tokio::test]
async fn another_routers_changes_are_confirmed_at_once() {
    let f = fixture(2).await;
    let (a, b) = (&f.routers[0], &f.routers[1]);
    for i in 0..20 {
        let db = format!("db{i}");
        assert!(b.confirm().await.unwrap().primary(&db).is_none());
        a.create_database(&db, Some(&"s1".into())).await.unwrap();
        let looks = (0..10).map(|_| b.confirm());
        for seen in futures_util::future::join_all(looks).await {
            assert_eq!(seen.unwrap().primary(&db).map(|s| &**s), Some("s1"));
        }
    }
    // Nobody else can use the file: there is nobody to wait for.
    a.settle().await;
}

#[tokio::test]
async fn a_version_is_served_when_nobody_works_on_an_older_one() {
    let f = fixture(1).await;
    let catalog = &f.routers[0];
    let old = catalog.snapshot();
    assert_eq!(catalog.served(), old.version);
    catalog.create_database("a", Some(&"s1".into())).await.unwrap();
    let newer = catalog.snapshot();
    catalog.create_database("b", Some(&"s1".into())).await.unwrap();
    assert!(catalog.snapshot().version > newer.version);
    assert_eq!(catalog.served(), old.version);
    drop(old);
    assert_eq!(catalog.served(), newer.version);
    drop(newer);
    assert_eq!(catalog.served(), catalog.snapshot().version);
}

#[tokio::test]
async fn shards_and_databases() {
    let f = fixture(2).await;
    let (a, b) = (&f.routers[0], &f.routers[1]);
    assert_eq!(a.add_shard(shard(1)).await.unwrap(), "s1".into(), "the same again is fine");
    let clash = NewShard { id: "other".into(), ..shard(1) };
    assert!(a.add_shard(clash).await.unwrap_err().is(Code::IllegalOperation));
    let name_taken = NewShard { id: "s1".into(), host: "rs9/127.0.0.1:9".into(), databases: Vec::new() };
    assert!(a.add_shard(name_taken).await.unwrap_err().is(Code::IllegalOperation));

    let primary: ShardId = "s2".into();
    assert_eq!(a.create_database("Shop", Some(&primary)).await.unwrap(), primary);
    assert_eq!(a.snapshot().primary("Shop"), Some(&primary), "shown before the call returns");
    assert_eq!(a.create_database("Shop", None).await.unwrap(), primary);
    let elsewhere = a.create_database("Shop", Some(&"s1".into())).await.unwrap_err();
    assert!(elsewhere.is(Code::NamespaceExists));
    let snapshot = follows(b, a.snapshot().version).await;
    assert_eq!(snapshot.shards.len(), 3);
    let differs = b.create_database("shop", Some(&primary)).await.unwrap_err();
    assert!(differs.is(Code::DatabaseDifferCase), "{differs}");
    assert_eq!(differs.message(), "db already exists with different case already have: [Shop] trying to create [shop]");
    assert!(b.create_database("a b", Some(&primary)).await.unwrap_err().is(Code::InvalidNamespace));
    assert!(b.create_database("x", Some(&"nope".into())).await.unwrap_err().is(Code::ShardNotFound));

    let adopting = NewShard { databases: vec!["old".into()], ..shard(3) };
    a.add_shard(adopting).await.unwrap();
    assert_eq!(a.snapshot().primary("old").map(|s| &**s), Some("s3"));
    let refused = NewShard { databases: vec!["new".into(), "SHOP".into()], ..shard(4) };
    let error = a.add_shard(refused).await.unwrap_err();
    assert!(error.is(Code::OperationFailed), "{error}");
    assert!(a.snapshot().primary("new").is_none() && !a.snapshot().shards.contains_key("s4"), "all or nothing");
    assert_eq!(logged(a, "addShard").await.len(), 4);
    assert!(a.drop_database("Shop", &CatalogTxn::new()).await.unwrap());
    assert!(!a.drop_database("Shop", &CatalogTxn::new()).await.unwrap());
    assert!(a.snapshot().primary("Shop").is_none());
}

#[tokio::test]
async fn a_database_is_made_once_by_many() {
    let f = fixture(3).await;
    let tasks: Vec<_> = (0..9)
        .map(|i| {
            let catalog = f.routers[i % 3].clone();
            let shard: ShardId = format!("s{}", i % 3).into();
            let name = if i < 6 { "db" } else { "DB" };
            tokio::spawn(async move { catalog.create_database(name, Some(&shard)).await.is_ok() })
        })
        .collect();
    let mut made = 0;
    for task in tasks {
        made += usize::from(task.await.unwrap());
    }
    assert!(made >= 1);
    let snapshot = f.routers[0].refresh().await.unwrap();
    assert_eq!(snapshot.databases.len(), 1, "one of the spellings, once");
}

#[tokio::test]
async fn collections_are_sharded_split_merged_and_followed() {
    let f = fixture(2).await;
    let (a, b) = (&f.routers[0], &f.routers[1]);
    a.create_database("db", Some(&"s0".into())).await.unwrap();
    let new = one_chunk("db.c", rawdoc! { "u": 1 });
    a.shard_collection(&new, &CatalogTxn::new()).await.unwrap();
    a.shard_collection(&new, &CatalogTxn::new()).await.unwrap();
    let other_key = NewCollection { ..one_chunk("db.c", rawdoc! { "z": 1 }) };
    assert!(a.shard_collection(&other_key, &CatalogTxn::new()).await.unwrap_err().is(Code::AlreadyInitialized));
    let snapshot = follows(b, a.snapshot().version).await;
    let seen = snapshot.collection("db.c").unwrap();
    assert_eq!((seen.uuid, seen.version(), seen.table.len()), (new.uuid, ChunkVersion::FIRST, 1));

    let (min, max) = (new.key.min_key(), new.key.max_key());
    a.split_chunk(&ns("db.c"), &min, &max, &[rawdoc! { "u": 10 }]).await.unwrap();
    assert_eq!(routing(a, "db.c").version(), ChunkVersion { major: 1, minor: 2 });
    let points = [rawdoc! { "u": 1 }, rawdoc! { "u": 5 }];
    follows(b, a.snapshot().version).await;
    b.split_chunk(&ns("db.c"), &min, &rawdoc! { "u": 10 }, &points).await.unwrap();
    let table = &routing(b, "db.c").table;
    assert_eq!(table.len(), 4);
    assert_eq!(table.version(), (1, 5));
    for bad in [rawdoc! { "u": 10 }, rawdoc! { "u": 11 }] {
        assert!(b.split_chunk(&ns("db.c"), &rawdoc! { "u": 5 }, &rawdoc! { "u": 10 }, &[bad]).await.is_err());
    }
    assert!(b.split_chunk(&ns("db.c"), &min, &max, &points).await.is_err(), "no such chunk");
    assert!(b.split_chunk(&ns("db.no"), &min, &max, &points).await.unwrap_err().is(Code::NamespaceNotSharded));
    assert_eq!(logged(a, "split").await.len(), 1);
    assert_eq!(logged(a, "multi-split").await.len(), 3);

    follows(a, b.snapshot().version).await;
    a.merge_chunks(&ns("db.c"), &min, &rawdoc! { "u": 10 }).await.unwrap();
    let table = &routing(a, "db.c").table;
    assert_eq!((table.len(), table.version()), (2, (1, 6)));
    assert!(a.merge_chunks(&ns("db.c"), &min, &rawdoc! { "u": 7 }).await.unwrap_err().is(Code::IllegalOperation));
    let snapshot = follows(b, a.snapshot().version).await;
    assert_eq!(snapshot.collection("db.c").unwrap().table.len(), 2);

    a.set_collection_options(&ns("db.c"), |info| info.no_balance = true).await.unwrap();
    let snapshot = follows(b, a.snapshot().version).await;
    assert!(snapshot.collection("db.c").unwrap().no_balance);
    assert_eq!(snapshot.collection("db.c").unwrap().table.len(), 2);

    // Of another uuid, or in the name of an intent that is not there (any more): nothing happens.
    let gone = CatalogTxn::new().check(collection::DDL, CheckKind::Exists("db.c".into()), "taken over");
    for (uuid, base) in [(Uuid::new(), CatalogTxn::new()), (new.uuid, gone)] {
        let refused = b.drop_collection(&ns("db.c"), Some(uuid), &base).await.unwrap_err();
        assert!(refused.is(Code::ConflictingOperationInProgress));
    }
    assert!(b.refresh().await.unwrap().collection("db.c").is_some());
    assert!(b.drop_collection(&ns("db.c"), Some(new.uuid), &CatalogTxn::new()).await.unwrap());
    assert!(!b.drop_collection(&ns("db.c"), Some(new.uuid), &CatalogTxn::new()).await.unwrap());
    let snapshot = follows(a, b.snapshot().version).await;
    assert!(snapshot.collection("db.c").is_none());
    let mut left = 0;
    let mut view = a.store().view(0).await.unwrap();
    view.scan(collection::CHUNKS, &Scan::All, &mut |_| {
        left += 1;
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn renaming_keeps_chunks_and_zones() {
    let f = fixture(2).await;
    let (a, b) = (&f.routers[0], &f.routers[1]);
    a.create_database("db", Some(&"s0".into())).await.unwrap();
    let new = one_chunk("db.from", rawdoc! { "u": 1 });
    a.shard_collection(&new, &CatalogTxn::new()).await.unwrap();
    a.shard_collection(&one_chunk("db.to", rawdoc! { "z": 1 }), &CatalogTxn::new()).await.unwrap();
    a.split_chunk(&ns("db.from"), &new.key.min_key(), &new.key.max_key(), &[rawdoc! { "u": 1 }]).await.unwrap();
    let tag = rawdoc! { "_id": { "ns": "db.from", "min": { "u": 0 } }, "ns": "db.from", "min": { "u": 0 }, "max": { "u": 5 }, "tag": "Z" };
    let txn = CatalogTxn::new().put(collection::TAGS, tag).touch(collection::TAGS);
    a.store().commit(&txn).await.unwrap();
    a.refresh().await.unwrap();
    assert_eq!(routing(a, "db.from").tags.len(), 1);
    let (from, to, base) = (ns("db.from"), ns("db.to"), CatalogTxn::new());
    let target = routing(a, "db.to").uuid;
    for (source, target) in [(None, Some(target)), (Some(new.uuid), None), (Some(target), Some(new.uuid))] {
        let refused = a.rename_collection((&from, source), (&to, target), &base).await.unwrap_err();
        assert!(refused.is(Code::ConflictingOperationInProgress));
    }
    assert!(a.rename_collection((&from, Some(new.uuid)), (&to, Some(target)), &base).await.unwrap());
    let snapshot = follows(b, a.snapshot().version).await;
    assert!(snapshot.collection("db.from").is_none());
    let to = snapshot.collection("db.to").unwrap();
    assert_eq!((to.uuid, to.table.len(), to.tags.len()), (new.uuid, 2, 1));
    assert_eq!(to.tags[0].ns.as_str(), "db.to");
    assert!(!a.rename_collection((&ns("db.x"), None), (&ns("db.y"), None), &base).await.unwrap());
}

#[tokio::test]
async fn refining_extends_every_bound() {
    let f = fixture(2).await;
    let (a, b) = (&f.routers[0], &f.routers[1]);
    a.create_database("db", Some(&"s0".into())).await.unwrap();
    let new = one_chunk("db.c", rawdoc! { "u": 1 });
    a.shard_collection(&new, &CatalogTxn::new()).await.unwrap();
    a.split_chunk(&ns("db.c"), &new.key.min_key(), &new.key.max_key(), &[rawdoc! { "u": 1 }]).await.unwrap();
    let tag = rawdoc! { "_id": { "ns": "db.c", "min": { "u": 0 } }, "ns": "db.c", "min": { "u": 0 }, "max": { "u": RawBson::MaxKey }, "tag": "Z" };
    a.store().commit(&CatalogTxn::new().put(collection::TAGS, tag).touch(collection::TAGS)).await.unwrap();
    let before = routing(a, "db.c");
    let key = ShardKeyPattern::parse(&rawdoc! { "u": 1, "t": 1, "x": "hashed" }).unwrap();
    a.refresh().await.unwrap();
    a.refine_key(&ns("db.c"), &key, new.uuid, &CatalogTxn::new()).await.unwrap();
    let snapshot = follows(b, a.snapshot().version).await;
    let after = snapshot.collection("db.c").unwrap();
    assert_ne!(after.epoch, before.epoch);
    assert_eq!(after.key.to_doc(), key.to_doc());
    let bounds: Vec<_> = after.table.iter().map(|c| (c.min().to_owned(), c.max().to_owned())).collect();
    let middle = rawdoc! { "u": 1, "t": RawBson::MinKey, "x": RawBson::MinKey };
    assert_eq!(bounds, [(key.min_key(), middle.clone()), (middle, key.max_key())]);
    assert_eq!(after.tags[0].min, rawdoc! { "u": 0, "t": RawBson::MinKey, "x": RawBson::MinKey });
    assert_eq!(after.tags[0].max, key.max_key());
    let shorter = ShardKeyPattern::parse(&rawdoc! { "u": 1 }).unwrap();
    assert!(a.refine_key(&ns("db.c"), &shorter, new.uuid, &CatalogTxn::new()).await.is_err());
}

/// Several routers split and merge at random: the table never has a gap, versions only rise and never stand twice, and
/// every router ends with the same picture as one that loads it anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_splits_and_merges_keep_the_table_whole() {
    let f = fixture(3).await;
    let a = &f.routers[0];
    a.create_database("db", Some(&"s0".into())).await.unwrap();
    a.shard_collection(&one_chunk("db.c", rawdoc! { "k": 1 }), &CatalogTxn::new()).await.unwrap();
    let tasks: Vec<_> = f
        .routers
        .iter()
        .enumerate()
        .map(|(i, catalog)| {
            let catalog = catalog.clone();
            tokio::spawn(async move {
                let mut rng = rand::rngs::StdRng::seed_from_u64(i as u64);
                catalog.refresh().await.unwrap();
                let mut last = ChunkVersion::default();
                for _ in 0..40 {
                    let _ = random_step(&catalog, &mut rng).await;
                    let seen = routing(&catalog, "db.c");
                    check_whole(&seen);
                    assert!(seen.version() >= last, "versions only rise");
                    last = seen.version();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let fresh = a.reload().await.unwrap();
    let expected: Vec<_> = fresh.collection("db.c").unwrap().table.iter().map(|c| c.to_info()).collect();
    assert!(expected.len() > 1);
    for router in &f.routers {
        router.refresh().await.unwrap();
        let seen: Vec<_> = routing(router, "db.c").table.iter().map(|c| c.to_info()).collect();
        assert_eq!(seen, expected);
    }
}

async fn random_step(catalog: &Catalog, rng: &mut rand::rngs::StdRng) -> Result<()> {
    let table = routing(catalog, "db.c");
    let chunks: Vec<_> = table.table.iter().map(|c| (c.min().to_owned(), c.max().to_owned())).collect();
    let i = rng.random_range(0..chunks.len());
    if chunks.len() > 3 && rng.random_range(0..3) == 0 {
        let j = (i + rng.random_range(1..3)).min(chunks.len() - 1);
        return catalog.merge_chunks(&ns("db.c"), &chunks[i].0, &chunks[j].1).await;
    }
    let low = bsonx::int(&chunks[i].0, "k").unwrap_or(-10_000);
    let high = bsonx::int(&chunks[i].1, "k").unwrap_or(10_000);
    if high - low < 3 {
        return Ok(());
    }
    let at = rng.random_range(low + 1..high);
    let mut points = vec![rawdoc! { "k": at }];
    if at + 1 < high {
        points.push(rawdoc! { "k": rng.random_range(at + 1..high) });
    }
    catalog.split_chunk(&ns("db.c"), &chunks[i].0, &chunks[i].1, &points).await
}

fn check_whole(routing: &CollectionRouting) {
    let chunks: Vec<_> = routing.table.iter().map(|c| c.to_info()).collect();
    assert_eq!(chunks[0].min, routing.key.min_key());
    assert_eq!(chunks[chunks.len() - 1].max, routing.key.max_key());
    assert!(chunks.windows(2).all(|w| w[0].max == w[1].min), "no gap, no overlap");
    let mut versions: Vec<_> = chunks.iter().map(|c| c.lastmod).collect();
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions.len(), chunks.len(), "no version stands twice");
    assert_eq!(routing.table.version(), versions[versions.len() - 1]);
}

#[tokio::test]
async fn routers_tell_that_they_live() {
    let f = fixture(1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut view = f.routers[0].store().view(0).await.unwrap();
    let doc = view.get(collection::MONGOS, &"router0:27017".into()).await.unwrap().unwrap();
    assert!(bsonx::get(&doc, "ping").unwrap().as_datetime().is_some());
    assert_eq!(bsonx::str(&doc, "mongoVersion"), Some(crate::SERVER_VERSION));
}

/// A million chunks (or `CHUNKS`): `cargo test --release --lib catalog::service -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, needs a minute"]
async fn a_million_chunks() {
    use std::time::Instant;
    let f = fixture(2).await;
    let (a, b) = (&f.routers[0], &f.routers[1]);
    a.create_database("db", Some(&"s0".into())).await.unwrap();
    let key = ShardKeyPattern::parse(&rawdoc! { "k": 1 }).unwrap();
    let n: i64 = std::env::var("CHUNKS").map_or(1_000_000, |n| n.parse().unwrap());
    let bound = |i: i64| match i {
        0 => key.min_key(),
        _ if i == n => key.max_key(),
        _ => rawdoc! { "k": i },
    };
    let chunk = |i| NewChunk { min: bound(i), max: bound(i + 1), shard: format!("s{}", i % 3).into() };
    let new = NewCollection { chunks: (0..n).map(chunk).collect(), ..one_chunk("db.c", rawdoc! { "k": 1 }) };
    let started = Instant::now();
    a.shard_collection(&new, &CatalogTxn::new()).await.unwrap();
    println!("commit and load of {n} chunks: {:?}", started.elapsed());
    let started = Instant::now();
    b.refresh().await.unwrap();
    println!("(the other router: {:?})", started.elapsed());
    let started = Instant::now();
    b.reload().await.unwrap();
    println!("full load: {:?}", started.elapsed());
    let started = Instant::now();
    for i in 0..20 {
        let at = n / 2 + 2 * i;
        a.split_chunk(&ns("db.c"), &bound(at), &bound(at + 1), &[rawdoc! { "k": at as f64 + 0.5 }]).await.unwrap();
    }
    println!("split: {:?} each", started.elapsed() / 20);
    let started = Instant::now();
    b.refresh().await.unwrap();
    println!("the other router after 20 splits: {:?}", started.elapsed());
    assert_eq!(routing(b, "db.c").table.len(), n as usize + 20);
}
