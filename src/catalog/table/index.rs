//! Finding a key among sorted keys with few cache misses.
//!
//! Keys are compared by their *heads*: the 8 bytes after a prefix that all of them share, as a big-endian number; within a
//! segment by 16 bits of it where those tell the keys apart, as they do for hashes. Only where heads are equal whole keys
//! are compared. Key 0 is left out of the prefix (often it
//! is MinKey): a key looked up is never below it.

use smallvec::SmallVec;

/// How many leading bytes sorted keys share.
fn shared<'k>(mut keys: impl Iterator<Item = &'k [u8]>) -> usize {
    let first = keys.next().unwrap_or_default();
    // What the first and the last key share, all share.
    keys.last().map_or(0, |last| first.iter().zip(last).take_while(|(x, y)| x == y).count())
}

/// The first 8 bytes as a number, zero-filled.
#[inline]
fn head(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => bytes.iter().enumerate().fold(0, |sum, (i, b)| sum | u64::from(*b) << (56 - 8 * i)),
    }
}

/// How many of the keys before `to` are not above `key`, given that all before `from` are not; `full(i)` gives key `i`.
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

/// The index over the segments of a table.
#[derive(Debug)]
pub(super) struct Tops {
    prefix: SmallVec<[u8; 24]>,
    /// Of keys 1..n.
    heads: Box<[u64]>,
}

impl Tops {
    /// Over ascending keys.
    pub fn new<'k>(keys: impl Iterator<Item = &'k [u8]> + Clone) -> Self {
        let keys = keys.skip(1);
        let shared = shared(keys.clone());
        let prefix = keys.clone().next().and_then(|k| k.get(..shared)).unwrap_or_default();
        Tops { prefix: SmallVec::from_slice(prefix), heads: keys.map(|k| head(&k[shared.min(k.len())..])).collect() }
    }

    /// The position of the last key that is not above `key`; 0 if all but the first are.
    #[inline]
    pub fn find<'k>(&self, key: &[u8], full: impl Fn(usize) -> &'k [u8]) -> usize {
        let wanted = match key.strip_prefix(&*self.prefix) {
            Some(rest) => head(rest),
            None if key < &*self.prefix => return 0,
            None => return self.heads.len(),
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

/// The index over the chunks of a segment.
#[derive(Debug)]
pub(super) enum Index {
    Narrow(Blocks<u16>),
    Wide(Box<Blocks<u64>>),
}

impl Index {
    /// The most chunks.
    pub const MAX: usize = 512;

    /// Over ascending keys and their shards, at least one and at most [`Index::MAX`].
    pub fn new<'k>(entries: impl Iterator<Item = (&'k [u8], u16)> + Clone) -> Self {
        let narrow = Blocks::<u16>::new(entries.clone());
        let equal = (2..narrow.len()).filter(|i| narrow.head(*i) == narrow.head(i - 1)).count();
        if equal * 32 <= narrow.len() { Index::Narrow(narrow) } else { Index::Wide(Box::new(Blocks::new(entries))) }
    }

    pub fn len(&self) -> usize {
        match self {
            Index::Narrow(blocks) => blocks.len(),
            Index::Wide(blocks) => blocks.len(),
        }
    }

    /// The shard of chunk `i`.
    #[inline]
    pub fn shard(&self, i: usize) -> u16 {
        match self {
            Index::Narrow(blocks) => blocks.shard(i),
            Index::Wide(blocks) => blocks.shard(i),
        }
    }

    /// The position of the last key that is not above `key`, which is not below key 0; `full(i)` gives key `i`.
    #[inline]
    pub fn find<'k>(&self, key: &[u8], full: impl Fn(usize) -> &'k [u8]) -> usize {
        match self {
            Index::Narrow(blocks) => blocks.find(key, full),
            Index::Wide(blocks) => blocks.find(key, full),
        }
    }

    /// Bytes on the heap.
    pub fn memory(&self) -> usize {
        match self {
            Index::Narrow(blocks) => blocks.memory(),
            Index::Wide(blocks) => size_of::<Blocks<u64>>() + blocks.memory(),
        }
    }
}

/// What is kept of a key's head.
pub(super) trait Head: Copy + Ord {
    const MAX: Self;
    /// Bits that are kept.
    const BITS: u32;

    fn cut(difference: u64) -> Self;
}

impl Head for u16 {
    const MAX: u16 = u16::MAX;
    const BITS: u32 = 16;

    #[inline]
    fn cut(difference: u64) -> u16 {
        difference.min(u64::from(u16::MAX)) as u16
    }
}

impl Head for u64 {
    const MAX: u64 = u64::MAX;
    const BITS: u32 = 64;

    #[inline]
    fn cut(difference: u64) -> u64 {
        difference
    }
}

/// Chunks per block.
const BLOCK: usize = 16;

/// Heads in blocks, with each chunk's shard next to its head. With narrow heads a lookup touches three cache lines: two of
/// this struct, which lie together, and one block.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Blocks<H> {
    blocks: Box<[Block<H>]>,
    /// The head of key 1, and how many bits of the difference to it are dropped.
    base: u64,
    shift: u8,
    len: u16,
    prefix_len: u16,
    prefix: [u8; INLINE],
    /// The last of each block's heads; the maximum where the block is not full.
    samples: [H; Index::MAX / BLOCK],
}

/// Bytes of the prefix kept in [`Blocks`]; a longer one is looked up.
const INLINE: usize = 32;

#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Block<H> {
    heads: [H; BLOCK],
    shards: [u16; BLOCK],
}

impl<H: Head> Blocks<H> {
    fn new<'k>(entries: impl Iterator<Item = (&'k [u8], u16)> + Clone) -> Self {
        let keys = entries.clone().skip(1).map(|(key, _)| key);
        let prefix_len = shared(keys.clone()).min(usize::from(u16::MAX));
        let head_of = |key: &[u8]| head(key.get(prefix_len..).unwrap_or_default());
        let base = keys.clone().next().map_or(0, head_of);
        let span = keys.clone().last().map_or(0, head_of) - base;
        let mut index = Blocks {
            blocks: Box::default(),
            base,
            shift: (64 - span.leading_zeros()).saturating_sub(H::BITS) as u8,
            len: 0,
            prefix_len: prefix_len as u16,
            prefix: [0; INLINE],
            samples: [H::MAX; Index::MAX / BLOCK],
        };
        let prefix = keys.clone().next().and_then(|key| key.get(..prefix_len)).unwrap_or_default();
        let inline = prefix.len().min(INLINE);
        index.prefix[..inline].copy_from_slice(&prefix[..inline]);
        let mut blocks: Vec<Block<H>> = Vec::new();
        for (i, (key, shard)) in entries.take(Index::MAX).enumerate() {
            let (block, slot) = (i / BLOCK, i % BLOCK);
            if slot == 0 {
                blocks.push(Block { heads: [H::MAX; BLOCK], shards: [0; BLOCK] });
            }
            let head = if i == 0 { H::cut(0) } else { index.cut(head_of(key)) };
            blocks[block].heads[slot] = head;
            blocks[block].shards[slot] = shard;
            if slot == BLOCK - 1 {
                index.samples[block] = head;
            }
            index.len = i as u16 + 1;
        }
        index.blocks = blocks.into();
        index
    }

    /// What is compared of a head; heads below key 1's count as equal to it.
    #[inline]
    fn cut(&self, head: u64) -> H {
        H::cut(head.saturating_sub(self.base) >> self.shift)
    }

    fn len(&self) -> usize {
        usize::from(self.len)
    }

    #[inline]
    fn head(&self, i: usize) -> H {
        self.blocks[i / BLOCK].heads[i % BLOCK]
    }

    #[inline]
    fn shard(&self, i: usize) -> u16 {
        self.blocks[i / BLOCK].shards[i % BLOCK]
    }

    #[inline]
    fn find<'k>(&self, key: &[u8], full: impl Fn(usize) -> &'k [u8]) -> usize {
        let length = usize::from(self.prefix_len);
        let prefix = if length <= INLINE { &self.prefix[..length] } else { &full(1)[..length] };
        let wanted = match key.strip_prefix(prefix) {
            Some(rest) => self.cut(head(rest)),
            None if key < prefix => return 0,
            None => return self.len() - 1,
        };
        // A block whose last head is not above `wanted`: neither are its others. Counting has no branch to mispredict.
        let block = self.samples.iter().filter(|h| **h <= wanted).count().min(self.blocks.len() - 1);
        let in_block = self.blocks[block].heads.iter().filter(|h| **h <= wanted).count();
        let at_most = (block * BLOCK + in_block).min(self.len());
        // Chunk 0 is never above, whatever its head.
        if at_most < 2 || self.head(at_most - 1) < wanted {
            return at_most.saturating_sub(1);
        }
        let block = self.samples.partition_point(|h| *h < wanted).min(self.blocks.len() - 1);
        let from = block * BLOCK + self.blocks[block].heads.partition_point(|h| *h < wanted);
        settle(key, from.max(1), at_most, full) - 1
    }

    fn memory(&self) -> usize {
        self.blocks.len() * size_of::<Block<H>>()
    }
}
