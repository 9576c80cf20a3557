//! The order, the hash and targeting against a real server. Runs when `MOSAIC_MONGOD` names a mongod.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "shard_support/ports.rs"]
mod ports;
#[path = "../src/target/testgen.rs"]
mod target_values;
#[path = "../src/key/testgen.rs"]
mod values;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bson::{Bson, Document, RawBson, RawDocumentBuf, doc, rawdoc};
use futures_util::TryStreamExt;
use mongodb::options::{ClientOptions, Collation, CollationStrength};
use mongodb::{Client, Collection, Database};
use mosaic::catalog::table::{ChunkInfo, RoutingTable};
use mosaic::key::{ShardKeyPattern, hash, order};
use mosaic::target::{self, Scope};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// A mongod of its own in a temporary directory; stopped when dropped.
struct Server {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Server {
    async fn start(offset: u16) -> Option<Server> {
        let Some(binary) = std::env::var_os("MOSAIC_MONGOD").map(PathBuf::from) else {
            println!("skipped: MOSAIC_MONGOD does not name a mongod");
            return None;
        };
        let (port, dir) = (ports::port(offset), tempfile::tempdir().unwrap());
        let child = Command::new(binary)
            .args(["--port", &port.to_string(), "--bind_ip", "127.0.0.1", "--wiredTigerCacheSizeGB", "0.25"])
            .args(["--setParameter", "diagnosticDataCollectionEnabled=false", "--nounixsocket"])
            .arg("--dbpath")
            .arg(dir.path())
            .arg("--logpath")
            .arg(dir.path().join("log"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "mongod on port {port} does not start");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Some(Server { child, port, _dir: dir })
    }

    async fn db(&self) -> Database {
        let options = ClientOptions::parse(format!("mongodb://127.0.0.1:{}/?directConnection=true", self.port));
        Client::with_options(options.await.unwrap()).unwrap().database("oracle")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn samples<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>, count: usize) -> Vec<T> {
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

fn raw(value: &Bson) -> RawBson {
    RawBson::try_from(value.clone()).unwrap()
}

fn with_id(id: i32, fields: &[(&str, &Bson)]) -> RawDocumentBuf {
    let mut doc = rawdoc! {"_id": id};
    for (name, value) in fields {
        doc.append(<&bson::raw::CStr>::try_from(*name).unwrap(), raw(value));
    }
    doc
}

async fn insert(coll: &Collection<RawDocumentBuf>, docs: &[RawDocumentBuf]) {
    coll.drop().await.unwrap();
    for part in docs.chunks(500) {
        coll.insert_many(part).await.unwrap();
    }
}

async fn aggregate(coll: &Collection<RawDocumentBuf>, stage: Document) -> Vec<RawDocumentBuf> {
    coll.aggregate([stage, doc! {"$sort": {"_id": 1}}])
        .with_type::<RawDocumentBuf>()
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap()
}

#[tokio::test]
async fn hash_and_order() {
    let Some(server) = Server::start(40).await else { return };
    let coll = server.db().await.collection::<RawDocumentBuf>("values");
    let mut all = samples(values::value(), 1500);
    all.extend(samples(values::number(), 1500));

    let docs: Vec<_> = (0..).zip(&all).map(|(i, v)| with_id(i, &[("v", v)])).collect();
    insert(&coll, &docs).await;
    let hashes = aggregate(&coll, doc! {"$project": {"h": {"$toHashedIndexKey": "$v"}}}).await;
    assert_eq!(hashes.len(), all.len());
    for (value, reply) in all.iter().zip(&hashes) {
        let ours = hash::hash64(raw(value).as_raw_bson_ref()).unwrap();
        assert_eq!(ours, reply.get_i64("h").unwrap(), "hash of {value:?}");
    }

    // Every value with its successor and with one far away; wrapped, so that arrays compare as arrays.
    let wrap = |v: &Bson| Bson::Document(doc! {"k": v.clone()});
    let pairs: Vec<(Bson, Bson)> = (0..all.len())
        .flat_map(|i| [(i, (i + 1) % all.len()), (i, (i * 7919 + 13) % all.len())])
        .map(|(i, j)| (wrap(&all[i]), wrap(&all[j])))
        .collect();
    let docs: Vec<_> = (0..).zip(&pairs).map(|(i, (a, b))| with_id(i, &[("a", a), ("b", b)])).collect();
    insert(&coll, &docs).await;
    let orders = aggregate(&coll, doc! {"$project": {"o": {"$cmp": ["$a", "$b"]}}}).await;
    for ((a, b), reply) in pairs.iter().zip(&orders) {
        let ours = order::compare(raw(a).as_raw_bson_ref(), raw(b).as_raw_bson_ref()) as i32;
        assert_eq!(ours, reply.get_i32("o").unwrap(), "{a:?} {b:?}");
    }

    // The whole mixed corpus sorted by an index.
    let docs: Vec<_> = (0..).zip(&all).map(|(i, v)| with_id(i, &[("w", &wrap(v))])).collect();
    insert(&coll, &docs).await;
    let index = mongodb::IndexModel::builder().keys(doc! {"w": 1, "_id": 1}).build();
    coll.create_index(index).await.unwrap();
    let sorted: Vec<RawDocumentBuf> = coll
        .find(doc! {})
        .sort(doc! {"w": 1, "_id": 1})
        .hint(mongodb::options::Hint::Keys(doc! {"w": 1, "_id": 1}))
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    for pair in sorted.windows(2) {
        let (a, b) = (pair[0].get("w").unwrap().unwrap(), pair[1].get("w").unwrap().unwrap());
        let order = order::compare(a, b);
        assert!(order.is_le(), "{a:?} before {b:?}");
        assert!(order.is_lt() || pair[0].get_i32("_id").unwrap() < pair[1].get_i32("_id").unwrap());
    }
}

/// A table split at some documents' keys, one shard per chunk.
fn table(pattern: &ShardKeyPattern, splits: &[RawDocumentBuf]) -> RoutingTable {
    let mut bounds: Vec<(Vec<u8>, RawDocumentBuf)> = splits
        .iter()
        .map(|d| pattern.extract(d).unwrap())
        .chain([pattern.min_key(), pattern.max_key()])
        .map(|k| (pattern.encode(&k).unwrap(), k))
        .collect();
    bounds.sort_by(|a, b| a.0.cmp(&b.0));
    bounds.dedup_by(|a, b| a.0 == b.0);
    let chunks = bounds.windows(2).enumerate().map(|(i, w)| ChunkInfo {
        id: bson::oid::ObjectId::from_bytes([0; 12]),
        min: w[0].1.clone(),
        max: w[1].1.clone(),
        shard: format!("{i:02}").into(),
        lastmod: (1, i as u32),
        jumbo: false,
        since: None,
    });
    RoutingTable::build(pattern, chunks.collect()).unwrap()
}

#[tokio::test]
async fn targeting() {
    let Some(server) = Server::start(41).await else { return };
    let coll = server.db().await.collection::<RawDocumentBuf>("documents");
    let documents = samples(target_values::document(), 400);
    let docs: Vec<RawDocumentBuf> = (0..)
        .zip(&documents)
        .map(|(i, d)| {
            let mut doc = rawdoc! {"_id": i};
            for (name, value) in d {
                doc.append(<&bson::raw::CStr>::try_from(name.as_str()).unwrap(), raw(value));
            }
            doc
        })
        .collect();
    insert(&coll, &docs).await;

    let keys: Vec<(ShardKeyPattern, RoutingTable)> = samples(target_values::key(), 24)
        .iter()
        .enumerate()
        .map(|(i, key)| {
            let pattern = ShardKeyPattern::parse(&RawDocumentBuf::try_from(key).unwrap()).unwrap();
            let table = table(&pattern, &docs[i * 8..i * 8 + 8]);
            (pattern, table)
        })
        .collect();
    let owners: Vec<Vec<_>> = keys
        .iter()
        .map(|(key, table)| {
            docs.iter().map(|d| target::document(d, Scope { key, table, default_collation: None }).unwrap()).collect()
        })
        .collect();

    let folding = Collation::builder().locale("en").strength(CollationStrength::Secondary).build();
    let folding_doc = rawdoc! {"locale": "en", "strength": 2};
    let (mut refused, mut asked, mut needed, mut all) = (0, 0, 0, 0);
    let mut reasons: HashMap<&str, usize> = HashMap::new();
    for (i, filter) in samples(target_values::filter(), 1500).into_iter().enumerate() {
        let fold = i % 5 == 0;
        let mut find = coll.find(filter.clone()).projection(doc! {"_id": 1});
        if fold {
            find = find.collation(folding.clone());
        }
        let ids: Vec<i32> = match find.await {
            Ok(cursor) => {
                let found: Vec<RawDocumentBuf> = cursor.try_collect().await.unwrap();
                found.iter().map(|d| d.get_i32("_id").unwrap()).collect()
            }
            Err(_) => {
                refused += 1;
                continue;
            }
        };
        let raw_filter = RawDocumentBuf::try_from(&filter).unwrap();
        for ((key, table), owners) in keys.iter().zip(&owners) {
            let scope = Scope { key, table, default_collation: None };
            let route = target::query(&raw_filter, fold.then_some(&*folding_doc), scope).unwrap();
            let mut exact: Vec<_> = ids.iter().map(|id| &owners[*id as usize]).collect();
            exact.sort();
            exact.dedup();
            for owner in &exact {
                assert!(
                    route.shards.contains(owner),
                    "{filter} on {:?}: {owner} is not in {:?}",
                    key.to_doc(),
                    route.shards
                );
            }
            *reasons.entry(route.reason.as_str()).or_default() += 1;
            (asked, needed, all) = (asked + route.shards.len(), needed + exact.len(), all + table.owners().len());
        }
    }
    println!("{refused} filters refused; shards asked {asked}, with matches {needed}, in all {all}; {reasons:?}");
    assert!(refused < 100, "the server refuses {refused} of the filters");
}
