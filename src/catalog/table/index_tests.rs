//! The index against a plain search, with keys that are hard to tell apart.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use proptest::prelude::*;

use super::index::{Index, Slab, Tops, cuts};

/// The three levels over sorted keys, laid out as a table does.
struct Whole {
    keys: Vec<Vec<u8>>,
    tops: Tops,
    starts: Vec<usize>,
    indexes: Vec<Index>,
}

fn shard(i: usize) -> u16 {
    (i % 251) as u16
}

fn build(mut keys: Vec<Vec<u8>>) -> Whole {
    // The first key is below whatever is looked up, as MinKey is.
    keys.push(Vec::new());
    keys.sort();
    keys.dedup();
    let mut slab = Slab::default();
    let (mut starts, mut places) = (Vec::new(), Vec::new());
    for (n, piece) in keys.chunks(Index::MAX).enumerate() {
        let refs: Vec<&[u8]> = piece.iter().map(Vec::as_slice).collect();
        let mut from = 0;
        for to in cuts(&refs).into_iter().chain([refs.len()]).filter(|to| *to > 0) {
            if to > from {
                let start = n * Index::MAX + from;
                let shards: Vec<u16> = (start..start + to - from).map(shard).collect();
                starts.push(start);
                places.push(slab.add(&refs[from..to], &shards));
            }
            from = to;
        }
    }
    let slab = slab.finish();
    let mut indexes: Vec<Index> = places.into_iter().map(|p| Index::new(slab.clone(), p)).collect();
    // Half of them moved to another slab, as when changes have scattered them.
    let mut other = Slab::default();
    let moved: Vec<_> = indexes.iter().step_by(2).map(|i| other.copy(i)).collect();
    let other: Arc<Slab> = other.finish();
    for (i, place) in moved.into_iter().enumerate() {
        indexes[2 * i] = Index::new(other.clone(), place);
    }
    let tops = Tops::new(starts.iter().map(|s| keys[*s].as_slice()));
    Whole { tops, starts, indexes, keys }
}

impl Whole {
    fn check(&self, key: &[u8]) {
        let expected = self.keys.partition_point(|k| k.as_slice() <= key) - 1;
        let segment = self.tops.find(key, |i| &self.keys[self.starts[i]]);
        let found = self.indexes[segment].find(key, |i| &self.keys[self.starts[segment] + i]);
        assert_eq!(self.starts[segment] + found.chunk, expected, "{key:02x?}");
        assert_eq!(found.shard, shard(expected), "{key:02x?}");
    }

    /// Every key, what is right before and behind it, and what shares its beginning.
    fn check_all(&self) {
        for key in &self.keys {
            self.check(key);
            self.check(&[key.as_slice(), &[0]].concat());
            self.check(&[key.as_slice(), &[0xFF; 9]].concat());
            if let Some((last, rest)) = key.split_last() {
                self.check(rest);
                self.check(&[rest, &[last.wrapping_add(1)]].concat());
                self.check(&[rest, &[last.wrapping_sub(1)], &[0xFF; 3]].concat());
                self.check(&key[..key.len() / 2]);
            }
        }
    }
}

/// Keys of few bytes and few lengths, many the beginning of others; numbers in a row; random ones; all behind one of a few
/// beginnings, short and longer than what an index keeps in itself.
fn keys(max: usize) -> impl Strategy<Value = Vec<Vec<u8>>> {
    let few = prop::collection::vec(prop::sample::select(&[0_u8, 1, 0x30, 0x31, 0xFE, 0xFF][..]), 0..14);
    let row = (0_u32..2000, any::<bool>()).prop_map(|(n, long)| match long {
        false => n.to_be_bytes().to_vec(),
        true => [&[7; 11][..], &n.to_be_bytes(), &[0]].concat(),
    });
    let random = any::<u64>().prop_map(|n| [&[0x33][..], &n.to_be_bytes()].concat());
    let scales = (0_u32..64, 0_u64..3).prop_map(|(bits, n)| ((1_u64 << bits) + n).to_be_bytes().to_vec());
    let tail = prop_oneof![2 => few, 3 => row, 2 => random, 1 => scales];
    let begin =
        prop::sample::select(vec![vec![], vec![0x3C], b"customers/europe/".to_vec(), vec![b'x'; 60], vec![0; 9]]);
    (prop::collection::vec(begin.clone(), 1..4), prop::collection::vec((any::<prop::sample::Index>(), tail), 0..max))
        .prop_map(|(begins, tails)| {
            tails.into_iter().map(|(i, tail)| [i.get(&begins).as_slice(), &tail].concat()).collect()
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn finds_what_a_plain_search_finds(keys in keys(2500), probes in keys(300)) {
        let whole = build(keys);
        whole.check_all();
        probes.iter().for_each(|key| whole.check(key));
    }

    #[test]
    fn small_sets_as_well(keys in keys(40), probes in keys(40)) {
        let whole = build(keys);
        whole.check_all();
        probes.iter().for_each(|key| whole.check(key));
    }
}

/// Many chunks each of long names that differ early: the 8 bytes behind what a segment shares do not tell a name's apart.
#[test]
fn long_names_with_many_chunks_get_segments_of_their_own() {
    let name = |i: u64| format!("{:032x}", i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let key = |i: u64| [&[0x3C][..], name(i / 100).as_bytes(), &[0, 0x2D], &(i as u16).to_be_bytes()].concat();
    let whole = build((0..5000).map(key).collect());
    assert!((40..110).contains(&whole.indexes.len()), "{}", whole.indexes.len());
    whole.check_all();
}
