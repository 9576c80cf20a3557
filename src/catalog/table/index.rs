//! Finding a key among sorted keys with few cache misses.
//!
//! Keys are compared by their *heads*: the 8 bytes after a prefix that all of them share, as a big-endian number. Only where
//! heads are equal whole keys are compared. Both indexes take keys `1..n` and know that a key looked up is not below key 0.

use smallvec::SmallVec;

/// Chunks per block.
const BLOCK: usize = 16;

/// The prefix shared by sorted keys, and a key's head after it.
#[derive(Debug)]
struct Heads {
    prefix: SmallVec<[u8; 24]>,
}

impl Heads {
    fn new<'k>(mut keys: impl Iterator<Item = &'k [u8]>) -> Self {
        let first = keys.next().unwrap_or_default();
        // Sorted: what the first and the last key share, all share.
        let shared = keys.last().map_or(first.len(), |last| first.iter().zip(last).take_while(|(x, y)| x == y).count());
        Heads { prefix: SmallVec::from_slice(&first[..shared]) }
    }

    /// The head of one of the keys.
    fn of(&self, key: &[u8]) -> u64 {
        head(key.get(self.prefix.len()..).unwrap_or_default())
    }

    /// The head of any key: the extremes where it does not share the prefix.
    #[inline]
    fn wanted(&self, key: &[u8]) -> Wanted {
        match key.strip_prefix(&*self.prefix) {
            Some(rest) => Wanted::Head(head(rest)),
            None if key < &*self.prefix => Wanted::BelowAll,
            None => Wanted::AboveAll,
        }
    }
}

enum Wanted {
    BelowAll,
    AboveAll,
    Head(u64),
}

#[inline]
fn head(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => bytes.iter().enumerate().fold(0, |sum, (i, b)| sum | u64::from(*b) << (56 - 8 * i)),
    }
}

/// Of keys `from..to`, which have the same head as `key`, those that are not above it; `full(i)` gives key `i`.
#[cold]
fn settle<'k>(key: &[u8], from: usize, to: usize, full: impl Fn(usize) -> &'k [u8]) -> usize {
    let (mut low, mut high) = (from, to);
    while low < high {
        let middle = low + (high - low) / 2;
        if full(middle) <= key {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// The index over the segments of a table: one array of heads.
#[derive(Debug)]
pub(super) struct Tops {
    shared: Heads,
    /// Of keys 1..n.
    heads: Box<[u64]>,
}

impl Tops {
    /// Over ascending keys; the first is left out.
    pub fn new<'k>(keys: impl Iterator<Item = &'k [u8]> + Clone) -> Self {
        let shared = Heads::new(keys.clone().skip(1));
        let heads = keys.skip(1).map(|key| shared.of(key)).collect();
        Tops { shared, heads }
    }

    /// The position of the last key that is not above `key`; 0 if all are.
    #[inline]
    pub fn find<'k>(&self, key: &[u8], full: impl Fn(usize) -> &'k [u8]) -> usize {
        let wanted = match self.shared.wanted(key) {
            Wanted::Head(wanted) => wanted,
            Wanted::BelowAll => return 0,
            Wanted::AboveAll => return self.heads.len(),
        };
        let at_most = self.heads.partition_point(|h| *h <= wanted);
        if at_most == 0 || self.heads[at_most - 1] < wanted {
            return at_most;
        }
        let from = self.heads.partition_point(|h| *h < wanted);
        settle(key, from + 1, at_most + 1, full) - 1
    }

    /// Bytes on the heap.
    pub fn memory(&self) -> usize {
        8 * self.heads.len()
    }
}

/// The index over the chunks of a segment, with each chunk's shard next to its head.
#[derive(Debug)]
pub(super) struct Blocks {
    shared: Heads,
    /// The last head of each block; unused ones are the maximum.
    samples: [u64; Blocks::MAX / BLOCK],
    len: usize,
    blocks: Box<[Block]>,
}

#[derive(Clone, Debug)]
struct Block {
    heads: [u64; BLOCK],
    shards: [u16; BLOCK],
}

impl Blocks {
    /// The most chunks.
    pub const MAX: usize = 512;

    /// Over ascending keys and their shards, at most [`Blocks::MAX`].
    pub fn new<'k>(keys: impl Iterator<Item = (&'k [u8], u16)> + Clone) -> Self {
        let shared = Heads::new(keys.clone().skip(1).map(|(key, _)| key));
        let mut blocks: Vec<Block> = Vec::new();
        let mut samples = [u64::MAX; Blocks::MAX / BLOCK];
        let mut len = 0;
        for (i, (key, shard)) in keys.take(Blocks::MAX).enumerate() {
            let (block, slot) = (i / BLOCK, i % BLOCK);
            if slot == 0 {
                blocks.push(Block { heads: [u64::MAX; BLOCK], shards: [0; BLOCK] });
            }
            // Nothing is looked up below the first key.
            let head = if i == 0 { 0 } else { shared.of(key) };
            blocks[block].heads[slot] = head;
            blocks[block].shards[slot] = shard;
            if slot == BLOCK - 1 {
                samples[block] = head;
            }
            len = i + 1;
        }
        Blocks { shared, samples, len, blocks: blocks.into() }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn shard(&self, i: usize) -> u16 {
        self.blocks[i / BLOCK].shards[i % BLOCK]
    }

    /// The shards of chunks `from..to`.
    pub fn shards(&self, from: usize, to: usize) -> impl Iterator<Item = u16> + '_ {
        (from..to).map(|i| self.shard(i))
    }

    /// The position of the last key that is not above `key`.
    #[inline]
    pub fn find<'k>(&self, key: &[u8], full: impl Fn(usize) -> &'k [u8]) -> usize {
        let wanted = match self.shared.wanted(key) {
            Wanted::Head(wanted) => wanted,
            Wanted::BelowAll => return 0,
            Wanted::AboveAll => return self.len - 1,
        };
        // A sample that is not above `wanted`: neither is any head of its block.
        let block = self.samples.partition_point(|h| *h <= wanted).min(self.blocks.len() - 1);
        let heads = &self.blocks[block].heads;
        let at_most = (block * BLOCK + heads.partition_point(|h| *h <= wanted)).min(self.len);
        if at_most == 0 || self.head(at_most - 1) < wanted {
            return at_most.saturating_sub(1);
        }
        let mut from = at_most - 1;
        while from > 0 && self.head(from - 1) == wanted {
            from -= 1;
        }
        settle(key, from, at_most, full).saturating_sub(1)
    }

    #[inline]
    fn head(&self, i: usize) -> u64 {
        self.blocks[i / BLOCK].heads[i % BLOCK]
    }

    /// Bytes on the heap.
    pub fn memory(&self) -> usize {
        self.blocks.len() * size_of::<Block>()
    }
}
