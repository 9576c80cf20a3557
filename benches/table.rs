//! Routing table: nanoseconds per lookup of an encoded key, per route of a point filter, and per range; memory; and the cost
//! of an incremental change, for 1 thousand to 1 million chunks. Run with `cargo bench --bench table`.

#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use bson::oid::ObjectId;
use bson::{RawBson, RawDocumentBuf, rawdoc};
use mosaic::catalog::table::{ChunkInfo, RoutingTable};
use mosaic::key::{ShardKeyPattern, initial};
use mosaic::target::{self, Scope};

/// A fixed sequence of well-mixed numbers.
struct Mix(u64);

impl Mix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// A kind of shard key: its pattern, `n - 1` split points, and random complete keys.
struct Kind {
    name: &'static str,
    pattern: RawDocumentBuf,
    splits: fn(usize) -> Vec<RawDocumentBuf>,
    random: fn(&mut Mix, usize) -> RawDocumentBuf,
}

fn hashed_splits(n: usize) -> Vec<RawDocumentBuf> {
    initial::hashed_split_points(n).into_iter().map(|p| rawdoc! {"k": p}).collect()
}

fn text_key(i: u64) -> RawDocumentBuf {
    rawdoc! {"tenant": format!("customers/europe/{:06}", i / 1000), "id": i as i64}
}

fn kinds() -> Vec<Kind> {
    vec![
        Kind {
            name: "hashed",
            pattern: rawdoc! {"k": "hashed"},
            splits: hashed_splits,
            random: |mix, _| rawdoc! {"k": mix.next() as i64},
        },
        Kind {
            name: "string+int",
            pattern: rawdoc! {"tenant": 1, "id": 1},
            splits: |n| (1..n as u64).map(|i| text_key(i * 10)).collect(),
            random: |mix, n| text_key(mix.next() % (n as u64 * 10)),
        },
    ]
}

fn build(kind: &Kind, n: usize) -> RoutingTable {
    let key = ShardKeyPattern::parse(&kind.pattern).unwrap();
    let mut bounds = vec![key.min_key()];
    bounds.extend((kind.splits)(n));
    bounds.push(key.max_key());
    let chunk = |(i, w): (usize, &[RawDocumentBuf])| ChunkInfo {
        id: ObjectId::from_bytes([0; 12]),
        min: w[0].clone(),
        max: w[1].clone(),
        shard: format!("shard{:02}", i % 20).into(),
        lastmod: (1, i as u32),
        jumbo: false,
        since: None,
    };
    RoutingTable::build(&key, bounds.windows(2).enumerate().map(chunk).collect()).unwrap()
}

/// Nanoseconds per item, `run` taking a batch of items at a time: the lower quartile of all batches, which leaves out those
/// that the machine interrupted.
fn time<T>(batches: &[T], per_batch: usize, mut run: impl FnMut(&T)) -> f64 {
    let mut times: Vec<f64> = batches
        .iter()
        .map(|batch| {
            let start = Instant::now();
            run(batch);
            start.elapsed().as_nanos() as f64 / per_batch as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}

fn main() {
    println!(
        "{:<12} {:>9} {:>10} {:>9} {:>12} {:>12} {:>12} {:>12}",
        "key", "chunks", "ns/lookup", "ns/route", "ns/range", "bytes/chunk", "MB", "µs/change"
    );
    for kind in kinds() {
        for n in [1_000, 100_000, 1_000_000] {
            let table = build(&kind, n);
            let key = ShardKeyPattern::parse(&kind.pattern).unwrap();
            let mut mix = Mix(7);
            let keys: Vec<Vec<u8>> = (0..200_000).map(|_| key.encode(&(kind.random)(&mut mix, n)).unwrap()).collect();
            let batches: Vec<&[Vec<u8>]> = keys.chunks(1000).collect();
            let lookup = time(&batches, 1000, |batch| {
                for key in *batch {
                    black_box(table.chunk_for(black_box(key)).shard());
                }
            });
            let filters: Vec<RawDocumentBuf> = (0..100_000).map(|_| (kind.random)(&mut mix, n)).collect();
            let scope = Scope { key: &key, table: &table, default_collation: None };
            let route = time(&filters.chunks(1000).collect::<Vec<_>>(), 1000, |batch| {
                for filter in *batch {
                    black_box(target::query(black_box(filter), None, scope).unwrap());
                }
            });
            let range = time(&batches[..20], 500, |batch| {
                for pair in batch.chunks(2) {
                    let (a, b) = if pair[0] < pair[1] { (&pair[0], &pair[1]) } else { (&pair[1], &pair[0]) };
                    black_box(table.shards_for_range(a, b).len());
                }
            });
            let middle = table.chunk_for(&keys[0]).to_info();
            let change = time(&[(); 20], 1, |()| {
                let moved = ChunkInfo { lastmod: (2, 0), shard: "shard00".into(), ..middle.clone() };
                black_box(table.with_changes(vec![moved]).unwrap());
            });
            let bytes = table.memory();
            println!(
                "{:<12} {:>9} {:>10.1} {:>9.1} {:>12.1} {:>12.1} {:>12.1} {:>12.1}",
                kind.name,
                n,
                lookup,
                route,
                range,
                bytes as f64 / n as f64,
                bytes as f64 / 1e6,
                change / 1000.0
            );
        }
    }
    encode_cost();
}

/// What a point operation pays before the lookup.
fn encode_cost() {
    let doc = rawdoc! {"_id": ObjectId::from_bytes([7; 12]), "name": "x", "k": 123_456_i64, "rest": RawBson::Null};
    for pattern in [rawdoc! {"k": 1}, rawdoc! {"k": "hashed"}] {
        let key = ShardKeyPattern::parse(&pattern).unwrap();
        let mut out = Vec::with_capacity(64);
        let ns = time(&[(); 100], 1000, |()| {
            for _ in 0..1000 {
                out.clear();
                key.encode_document(black_box(&doc), &mut out).unwrap();
                black_box(&out);
            }
        });
        println!("encode_document {:<16} {ns:>8.1} ns", mosaic::key::text::document(&pattern));
    }
}
