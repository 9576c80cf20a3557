//! The operations, and running one of them over a number of connections for some time.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, rawdoc};
use mosaic::bsonx;
use mosaic::key::hash;

use crate::client::{Client, Command};

/// Sharded by `{_id: "hashed"}`.
pub const COLLECTION: &str = "items";
/// The same documents, sharded by `{c: "hashed", _id: 1}`: a range of `_id` within one `c` is on one shard.
pub const RANGES: &str = "ranges";
/// The same documents, not sharded.
pub const PLAIN: &str = "plain";
/// Documents `_id` 0 to this; about half of them on each of two shards.
pub const DOCUMENTS: i64 = 20_000;
const BATCH: i64 = 1_000;
/// Documents with the same `c`.
const GROUP: i64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Find,
    /// The same on a collection that is not sharded.
    PlainFind,
    Insert,
    Update,
    /// The keys of both shards: each of two mongods does half of the work that one does for the others.
    FindOnBoth,
    UpdateOnBoth,
    Range,
    Scatter,
    Batch,
    /// Spread over two shards, an ordered batch is a chain of short runs: each must be known to have worked
    /// before the next may go.
    OrderedBatch,
}

pub const ALL: [Op; 10] = [
    Op::Find,
    Op::PlainFind,
    Op::Insert,
    Op::Update,
    Op::FindOnBoth,
    Op::UpdateOnBoth,
    Op::Range,
    Op::Scatter,
    Op::Batch,
    Op::OrderedBatch,
];

impl Op {
    pub fn name(self) -> &'static str {
        match self {
            Op::Find => "point find",
            Op::PlainFind => "point find, unsharded",
            Op::Insert => "insert",
            Op::Update => "update by key",
            Op::FindOnBoth => "point find, both shards",
            Op::UpdateOnBoth => "update by key, both shards",
            Op::Range => "range find, 100 docs",
            Op::Scatter => "sort+limit 20, 2 shards",
            Op::Batch => "insert of 1,000 docs, unordered",
            Op::OrderedBatch => "insert of 1,000 docs, ordered",
        }
    }

    /// One command; inserts take fresh keys above `DOCUMENTS`. Point operations take keys of the first shard, so that the
    /// same mongod does the same work whatever is in the middle.
    fn command(self) -> Command {
        let mut id = rand::random_range(0..DOCUMENTS);
        while matches!(self, Op::Find | Op::Update) && !is_on_first(id) {
            id = rand::random_range(0..DOCUMENTS);
        }
        match self {
            Op::Find | Op::PlainFind | Op::FindOnBoth => {
                let collection = if self == Op::PlainFind { PLAIN } else { COLLECTION };
                rawdoc! {"find": collection, "filter": {"_id": id}, "limit": 1, "singleBatch": true}.into()
            }
            Op::Insert => loop {
                let id = fresh(1);
                if is_on_first(id) {
                    return insert(vec![document(id)], true);
                }
            },
            Op::Update | Op::UpdateOnBoth => {
                let statement = rawdoc! {"q": {"_id": id}, "u": {"$set": {"n": rand::random::<i32>()}}};
                let body = rawdoc! {"update": COLLECTION, "ordered": true, "writeConcern": {"w": 1}};
                Command { body, documents: Some(("updates", vec![statement])) }
            }
            Op::Range => {
                let from = id / GROUP * GROUP + id % (GROUP - 100);
                let filter = rawdoc! {"c": from / GROUP, "_id": {"$gte": from, "$lt": from + 100}};
                rawdoc! {"find": RANGES, "filter": filter, "batchSize": 200}.into()
            }
            Op::Scatter => {
                let from = id * 9 / 10;
                rawdoc! {"find": COLLECTION, "filter": {"g": {"$gte": from}}, "sort": {"g": 1}, "limit": 20}.into()
            }
            Op::Batch | Op::OrderedBatch => {
                let first = fresh(BATCH);
                insert((first..first + BATCH).map(document).collect(), matches!(self, Op::OrderedBatch))
            }
        }
    }
}

/// Whether the first shard has the negative hashes: one chunk on each shard splits them there.
static FIRST_IS_NEGATIVE: OnceLock<bool> = OnceLock::new();

fn is_negative(id: i64) -> bool {
    hash::hash64(RawBsonRef::Int64(id)).is_ok_and(|hash| hash < 0)
}

fn is_on_first(id: i64) -> bool {
    FIRST_IS_NEGATIVE.get() == Some(&is_negative(id))
}

/// Finds out which keys the first shard has. `shard` is its mongod's port, `db` the routed database.
pub async fn learn_first_shard(shard: u16, db: &str) -> io::Result<()> {
    let mut client = Client::connect(shard).await?;
    let find = rawdoc! {"find": COLLECTION, "projection": {"_id": 1}, "batchSize": DOCUMENTS};
    let reply = client.run(db, find.into()).await?;
    let documents = bsonx::doc(reply, "cursor").and_then(|c| bsonx::array(c, "firstBatch")).into_iter().flatten();
    let ids = documents.flatten().filter_map(|v| bsonx::int(v.as_document()?, "_id"));
    let signs: Vec<bool> = ids.map(is_negative).collect();
    match signs.first() {
        Some(first) if signs.iter().all(|sign| sign == first) => {
            FIRST_IS_NEGATIVE.get_or_init(|| *first);
            Ok(())
        }
        _ => Err(io::Error::other("the first shard's keys are not those of one half of the hashes")),
    }
}

fn fresh(count: i64) -> i64 {
    static NEXT: AtomicI64 = AtomicI64::new(1_000_000_000);
    NEXT.fetch_add(count, Ordering::Relaxed)
}

fn insert(documents: Vec<RawDocumentBuf>, ordered: bool) -> Command {
    let body = rawdoc! {"insert": COLLECTION, "ordered": ordered, "writeConcern": {"w": 1}};
    Command { body, documents: Some(("documents", documents)) }
}

/// About 200 bytes. `g` has nothing to do with where a document lives, so a sort by it needs both shards.
pub fn document(id: i64) -> RawDocumentBuf {
    rawdoc! {
        "_id": id,
        "c": id / GROUP,
        "g": id.wrapping_mul(7_919).rem_euclid(DOCUMENTS),
        "n": 0,
        "name": "a name of ordinary length",
        "text": "some more text, so that the document is about as long as documents in applications are at least",
    }
}

/// Fills both collections by batches and makes the indexes that are not there yet.
pub async fn fill(port: u16, db: &str) -> io::Result<()> {
    let mut client = Client::connect(port).await?;
    for collection in [COLLECTION, RANGES, PLAIN] {
        let mut indexes = RawArrayBuf::new();
        indexes.push(rawdoc! {"key": {"g": 1}, "name": "g_1"});
        indexes.push(rawdoc! {"key": {"c": "hashed", "_id": 1}, "name": "c_hashed__id_1"});
        client.run(db, rawdoc! {"createIndexes": collection, "indexes": indexes}.into()).await?;
        for first in (0..DOCUMENTS).step_by(1_000) {
            let documents = (first..first + 1_000).map(document).collect();
            let body = rawdoc! {"insert": collection, "ordered": true};
            client.run(db, Command { body, documents: Some(("documents", documents)) }).await?;
        }
    }
    Ok(())
}

/// Removes what inserts added, so that rounds are alike.
pub async fn clean(port: u16, db: &str) -> io::Result<()> {
    let mut client = Client::connect(port).await?;
    let mut all = RawArrayBuf::new();
    all.push(rawdoc! {"q": {"_id": {"$gte": DOCUMENTS}}, "limit": 0});
    client.run(db, rawdoc! {"delete": COLLECTION, "deletes": all}.into()).await?;
    Ok(())
}

/// What one run measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub operations: usize,
    pub seconds: f64,
    pub p50: Duration,
    pub p99: Duration,
}

impl Measured {
    pub fn per_second(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }
}

/// Runs `op` on `connections` connections for `time`.
pub async fn run(port: u16, db: &'static str, op: Op, connections: usize, time: Duration) -> io::Result<Measured> {
    let mut clients = Vec::new();
    for _ in 0..connections {
        clients.push(Client::connect(port).await?);
    }
    let began = Instant::now();
    let end = began + time;
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            tokio::task::spawn_local(async move {
                let mut taken: Vec<Duration> = Vec::with_capacity(65_536);
                loop {
                    let start = Instant::now();
                    if start >= end {
                        return io::Result::Ok(taken);
                    }
                    client.run(db, op.command()).await?;
                    taken.push(start.elapsed());
                }
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.map_err(io::Error::other)??);
    }
    let seconds = began.elapsed().as_secs_f64();
    all.sort_unstable();
    let at = |share: f64| all.get(((all.len() as f64 * share) as usize).min(all.len().saturating_sub(1))).copied();
    Ok(Measured { operations: all.len(), seconds, p50: at(0.5).unwrap_or_default(), p99: at(0.99).unwrap_or_default() })
}
