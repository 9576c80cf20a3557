//! The table against a plain sorted list, through random splits, moves and merges.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bson::oid::ObjectId;
use bson::{RawBson, RawDocumentBuf, rawdoc};
use proptest::prelude::*;

use super::{ChunkInfo, RoutingTable};
use crate::key::ShardKeyPattern;

fn key() -> ShardKeyPattern {
    ShardKeyPattern::parse(&rawdoc! {"k": 1}).unwrap()
}

/// Where in the key space a bound lies: integers, and strings with a long shared beginning.
fn bound(n: u32) -> RawDocumentBuf {
    match n {
        0 => rawdoc! {"k": RawBson::MinKey},
        u32::MAX => rawdoc! {"k": RawBson::MaxKey},
        n if n % 2 == 1 && n < 1 << 20 => rawdoc! {"k": n as i32},
        n if n < 1 << 20 => rawdoc! {"k": i64::from(n)},
        n => rawdoc! {"k": format!("customer/europe/{n:010}")},
    }
}

fn encoded(n: u32) -> Vec<u8> {
    key().encode(&bound(n)).unwrap()
}

fn chunk(min: u32, max: u32, shard: u8, lastmod: (u32, u32)) -> ChunkInfo {
    ChunkInfo {
        id: ObjectId::from_bytes([shard; 12]),
        min: bound(min),
        max: bound(max),
        shard: format!("shard{shard:02}").into(),
        lastmod,
        jumbo: min % 7 == 3,
        since: min.is_multiple_of(3).then_some(bson::Timestamp { time: min, increment: 1 }),
    }
}

/// The plain model: `(min, max, shard, lastmod)`, sorted.
type Model = Vec<(u32, u32, u8, (u32, u32))>;

fn model(splits: &[u32], shards: u8) -> Model {
    let mut bounds: Vec<u32> = splits.iter().copied().filter(|n| *n != 0 && *n != u32::MAX).collect();
    bounds.extend([0, u32::MAX]);
    bounds.sort_unstable();
    bounds.dedup();
    let pairs = bounds.windows(2).enumerate();
    pairs.map(|(i, w)| (w[0], w[1], (w[0] % u32::from(shards)) as u8, (1, i as u32))).collect()
}

fn build(model: &Model) -> RoutingTable {
    RoutingTable::build(&key(), model.iter().rev().map(|c| chunk(c.0, c.1, c.2, c.3)).collect()).unwrap()
}

fn check(table: &RoutingTable, model: &Model, probes: &[(u32, u32)]) {
    assert_eq!(table.len(), model.len());
    let all: Vec<ChunkInfo> = table.iter().map(|c| c.to_info()).collect();
    let expected: Vec<ChunkInfo> = model.iter().map(|c| chunk(c.0, c.1, c.2, c.3)).collect();
    assert_eq!(all, expected);
    assert!(table.iter().enumerate().all(|(i, c)| c.index() == i));
    assert_eq!(table.version(), model.iter().map(|c| c.3).max().unwrap());
    let owners = |range: &[(u32, u32, u8, (u32, u32))]| {
        let mut names: Vec<String> = range.iter().map(|c| format!("shard{:02}", c.2)).collect();
        names.sort();
        names.dedup();
        names
    };
    assert_eq!(table.owners().iter().map(|s| s.to_string()).collect::<Vec<_>>(), owners(model));
    for (name, count) in table.chunk_counts() {
        assert_eq!(table.chunks_of(&name).count(), count);
        assert!(table.chunks_of(&name).all(|c| *c.shard() == name));
        assert_eq!(
            table.shard_version(&name),
            table.iter().filter(|c| *c.shard() == name).map(|c| c.lastmod()).max().unwrap()
        );
    }
    assert_eq!(table.shard_version("none"), (0, 0));
    for (a, b) in probes {
        let at = |n: u32| model.iter().rposition(|c| c.0 <= n).unwrap();
        let (low, high) = (*a.min(b), *a.max(b));
        let (from, to) = (at(low), at(high));
        assert_eq!(table.chunk_for(&encoded(low)).index(), from, "{low}");
        assert_eq!(table.chunk_for(&encoded(high)).index(), to, "{high}");
        let found: Vec<usize> = table.overlapping(&encoded(low), &encoded(high)).map(|c| c.index()).collect();
        assert_eq!(found, (from..=to).collect::<Vec<_>>());
        let shards: Vec<String> =
            table.shards_for_range(&encoded(low), &encoded(high)).iter().map(|s| s.to_string()).collect();
        assert_eq!(shards, owners(&model[from..=to]));
        let exact = &model[from];
        assert!(table.chunk_exact(&encoded(exact.0), &encoded(exact.1)).is_some());
        assert!(table.chunk_exact(&encoded(exact.0), &encoded(exact.1 - 1)).is_none());
    }
}

/// Applies one random change to the model and returns the chunks that it changes in the table.
fn change(model: &mut Model, kind: u8, at: usize, n: u32, shard: u8, version: &mut (u32, u32)) -> Vec<ChunkInfo> {
    let at = at % model.len();
    let mut bump = |major: bool| {
        *version = if major { (version.0 + 1, 0) } else { (version.0, version.1 + 1) };
        *version
    };
    let replaced: Vec<(u32, u32, u8, (u32, u32))> = match kind {
        0 => {
            // Split.
            let (min, max, shard, _) = model[at];
            let middle = min + (n % (max - min)).max(1);
            if middle >= max {
                return Vec::new();
            }
            vec![(min, middle, shard, bump(false)), (middle, max, shard, bump(false))]
        }
        1 => vec![(model[at].0, model[at].1, shard, bump(true))],
        _ => {
            // Merge up to 1,500 neighbours.
            let to = (at + (n as usize) % 1500).min(model.len() - 1);
            vec![(model[at].0, model[to].1, shard, bump(true))]
        }
    };
    let (low, high) = (replaced[0].0, replaced.last().unwrap().1);
    model.retain(|c| c.1 <= low || c.0 >= high);
    model.extend(replaced.iter().copied());
    model.sort_unstable();
    replaced.into_iter().map(|c| chunk(c.0, c.1, c.2, c.3)).collect()
}

fn bounds_strategy(max: usize) -> impl Strategy<Value = Vec<u32>> {
    let near = prop_oneof![0u32..3000, 1u32 << 20..(1 << 20) + 3000, any::<u32>()];
    prop::collection::vec(near, 0..max)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    #[test]
    fn behaves_like_a_list(
        splits in bounds_strategy(2500),
        shards in 1u8..100,
        probes in prop::collection::vec((any::<u32>(), 0u32..4000), 20),
        batches in prop::collection::vec(
            prop::collection::vec((0u8..3, any::<usize>(), any::<u32>(), 0u8..100), 1..6), 0..6),
    ) {
        let mut model = model(&splits, shards);
        let mut table = build(&model);
        check(&table, &model, &probes);
        let mut version = table.version();
        for batch in batches {
            let mut changed = Vec::new();
            for (kind, at, n, shard) in batch {
                // Later changes of one batch may replace chunks of earlier ones: all are delivered, the newest count.
                changed.extend(change(&mut model, kind, at, n, shard, &mut version));
            }
            table = table.with_changes(changed).unwrap();
            check(&table, &model, &probes);
        }
    }

    #[test]
    fn bad_sets_are_refused(splits in bounds_strategy(30), victim in any::<usize>(), how in 0u8..3) {
        let mut list = model(&splits, 3);
        let at = victim % list.len();
        match how {
            0 => { list.remove(at); }
            1 => {
                let c = list[at];
                list.push(c);
            }
            _ => list[at].1 = list[at].1.saturating_sub(1).max(list[at].0),
        }
        let chunks = list.iter().map(|c| chunk(c.0, c.1, c.2, c.3)).collect();
        prop_assert_eq!(RoutingTable::build(&key(), chunks).unwrap_err().code(), 117);
    }
}

#[test]
fn a_change_that_leaves_a_gap_is_refused() {
    let model = model(&[10, 20, 30], 3);
    let table = build(&model);
    for bad in [chunk(10, 15, 1, (2, 0)), chunk(15, 20, 1, (2, 0)), chunk(5, 25, 1, (2, 0)), chunk(20, 20, 1, (2, 0))] {
        assert_eq!(table.with_changes(vec![bad]).unwrap_err().code(), 117);
    }
    let other = ChunkInfo { min: rawdoc! {"x": 1}, ..chunk(10, 20, 1, (2, 0)) };
    assert_eq!(table.with_changes(vec![other]).unwrap_err().code(), 2);
}

#[test]
fn untouched_segments_are_shared() {
    let splits: Vec<u32> = (1..20_000).collect();
    let model = model(&splits, 4);
    let table = build(&model);
    let segments = table.0.segments.len();
    assert!(segments >= 39, "{segments}");
    let next = table.with_changes(vec![chunk(7000, 7001, 9, (2, 0)), chunk(7001, 7002, 9, (2, 1))]).unwrap();
    assert_eq!(next.shared_segments(&table), segments - 1);
    assert_eq!(&**next.chunk_for(&encoded(7001)).shard(), "shard09");
    assert_eq!(next.owners().len(), table.owners().len() + 1);
    assert_eq!(table.owners().len(), 4);
    // Everything merged into one chunk.
    let one = next.with_changes(vec![chunk(0, u32::MAX, 2, (3, 0))]).unwrap();
    assert_eq!((one.len(), one.owners().len()), (1, 1));
}
