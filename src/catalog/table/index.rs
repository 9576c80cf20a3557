//! Finding a key among sorted keys with few cache misses: a tree of three levels that is laid out for lookups alone.
//!
//! Keys are compared by their *heads*: 8 bytes behind a prefix that all of them share, as a big-endian number. At the top,
//! [`Tops`] finds a segment by the heads of the segments' first keys, through a table over the heads' highest bits. In a
//! segment, an [`Index`] finds a block by the *samples*, the heads of the blocks' first keys. A block is one cache line
//! ([`Line`]): up to 15 chunks, of whose keys it holds 16 bits each, taken where the keys of that block differ, and their
//! shards. Of the three only the lines of a large table do not stay in a processor's own cache, so a lookup waits for about
//! one line. Where these numbers do not tell keys apart, whole keys are compared.
//!
//! Key 0 of a segment takes no part in its prefix (often it is MinKey): a key looked up is never below it.

use std::sync::Arc;

use smallvec::SmallVec;

/// How many leading bytes two keys share.
fn shared(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// 8 bytes of `key` from `at` as a number, zero-filled.
#[inline]
fn head(key: &[u8], at: usize) -> u64 {
    if let Some(bytes) = key.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        return u64::from_be_bytes(*bytes);
    }
    let missing = at + 8 - key.len();
    match key.last_chunk::<8>() {
        Some(bytes) if missing < 8 => u64::from_be_bytes(*bytes) << (8 * missing),
        Some(_) => 0,
        None => (0..8).fold(0, |sum, i| sum << 8 | u64::from(key.get(at + i).copied().unwrap_or(0))),
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
    /// How many heads have a number below `i`, where a head's number is its highest bits: `(head - heads[0]) >> shift`.
    radix: Box<[u32]>,
    shift: u32,
    /// The first step of the search among the heads of one number: a power of two.
    step: usize,
}

impl Tops {
    /// Over ascending keys.
    pub fn new<'k>(keys: impl Iterator<Item = &'k [u8]> + Clone) -> Self {
        let mut rest = keys.skip(1);
        let all = rest.clone();
        let first = rest.next().unwrap_or_default();
        let prefix = &first[..shared(first, rest.last().unwrap_or(first))];
        let heads: Box<[u64]> = all.map(|key| head(key, prefix.len())).collect();
        let (Some(base), Some(last)) = (heads.first(), heads.last()) else {
            return Tops { prefix: SmallVec::new(), heads, radix: Box::new([0, 0]), shift: 63, step: 0 };
        };
        // Eight numbers a head: random heads then share one with few others.
        let bits = heads.len().ilog2() + 3;
        let shift = (64 - (last - base).leading_zeros()).saturating_sub(bits);
        let mut radix = vec![0_u32; (1 << bits) + 1];
        for head in &heads {
            radix[((head - base) >> shift) as usize + 1] += 1;
        }
        let most = radix.iter().max().map_or(0, |n| *n as usize);
        for i in 1..radix.len() {
            radix[i] += radix[i - 1];
        }
        let step = if most == 0 { 0 } else { 1 << most.ilog2() };
        Tops { prefix: SmallVec::from_slice(prefix), heads, radix: radix.into(), shift, step }
    }

    /// The position of the last key that is not above `key`; 0 if all but the first are.
    #[inline]
    pub fn find<'k>(&self, key: &[u8], full: impl Fn(usize) -> &'k [u8]) -> usize {
        let Some(base) = self.heads.first() else { return 0 };
        if !key.starts_with(&self.prefix) {
            return if key < &*self.prefix { 0 } else { self.heads.len() };
        }
        let wanted = head(key, self.prefix.len());
        let number = (wanted.saturating_sub(*base) >> self.shift).min(self.radix.len() as u64 - 2) as usize;
        // Heads of higher numbers are above `wanted`, so the search does not go past its own.
        let mut at_most = self.radix[number] as usize;
        let mut step = self.step;
        while step > 0 {
            let probe = (at_most + step).min(self.heads.len());
            at_most = if self.heads[probe - 1] <= wanted { probe } else { at_most };
            step /= 2;
        }
        if at_most == 0 || self.heads[at_most - 1] < wanted {
            return at_most;
        }
        let from = self.heads.partition_point(|h| *h < wanted);
        settle(key, from + 1, at_most + 1, full) - 1
    }

    /// Bytes on the heap.
    pub fn memory(&self) -> usize {
        8 * self.heads.len() + 4 * self.radix.len()
    }
}

/// The most chunks in a block.
const BLOCK: usize = 15;

/// A block: one cache line.
///
/// Word 0 is the position of its first chunk in the segment, words 1 to 14 are the heads' 16 bits of chunks 1 to 14 (all
/// ones where there is no chunk), word 15 tells how they are taken, words 16 to 30 are the shards.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line([u16; 32]);

const META: usize = 15;
const SHARDS: usize = 16;

impl Line {
    #[inline]
    fn start(&self) -> usize {
        usize::from(self.0[0])
    }

    /// By how many bits the difference between a head and the base is cut.
    #[inline]
    fn shift(&self) -> u32 {
        u32::from(self.0[META] & 0x3F)
    }

    /// How many bytes behind the segment's prefix the block's keys share as well, 0 to 7: these are the highest bytes of
    /// the sample, and the heads are taken behind them.
    #[inline]
    fn skip(&self) -> usize {
        usize::from(self.0[META] >> 6 & 7)
    }

    #[inline]
    fn len(&self) -> usize {
        usize::from(self.0[META] >> 9)
    }

    /// How many of the chunks' heads are not above `cut`; the first chunk's never is. There is no branch to mispredict.
    #[inline]
    fn count(&self, cut: u16) -> usize {
        let words = self.0.first_chunk::<16>().unwrap_or(&[0; 16]);
        let all: u16 = words.iter().map(|w| u16::from(*w <= cut)).sum();
        // Words 0 and 15 are no heads.
        let others = u16::from(words[0] <= cut) + u16::from(words[META] <= cut);
        usize::from(all + 1 - others).min(self.len())
    }

    #[inline]
    fn found(&self, slot: usize) -> Found {
        Found { chunk: self.start() + slot, shard: self.0[SHARDS + slot] }
    }
}

/// A chunk's position in its segment, and its shard's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub chunk: usize,
    pub shard: u16,
}

/// The blocks of segments that were made together, so that they lie close in memory.
#[derive(Debug, Default)]
pub(super) struct Slab {
    samples: Vec<u64>,
    lines: Vec<Line>,
}

/// Where a segment's blocks are in a slab.
#[derive(Clone, Debug)]
pub(super) struct Place {
    from: u32,
    blocks: u16,
    len: u16,
    prefix_len: u16,
    prefix: [u8; INLINE],
}

/// Bytes of the prefix kept in [`Index`]; a longer one is looked up.
const INLINE: usize = 46;

impl Slab {
    /// Adds a segment's ascending keys and their shards, at least one and at most [`Index::MAX`].
    pub fn add(&mut self, keys: &[&[u8]], shards: &[u16]) -> Place {
        let from = self.lines.len();
        let prefix = match keys {
            [_, first, .., last] => &first[..shared(first, last).min(usize::from(u16::MAX))],
            [_, only] => &only[..only.len().min(INLINE)],
            _ => &[],
        };
        let mut heads: Vec<u64> = keys.iter().map(|key| head(key, prefix.len().min(key.len()))).collect();
        // Key 0 stands for whatever is below key 1.
        heads[0] = heads.get(1).copied().unwrap_or(0);
        let mut at = 0;
        while at < keys.len() {
            let mut len = BLOCK.min(keys.len() - at);
            let mut line = line(keys, &heads, prefix.len(), at, len);
            // Keys that 16 bits do not tell apart get blocks of their own, cut where the keys differ most.
            while len > 4 && collisions(&line) > 1 {
                let gap = |i: &usize| heads[at + i] - heads[at + i - 1];
                let Some(cut) = (1..len).max_by_key(gap).filter(|i| gap(i) > 0) else { break };
                len = cut;
                line = self::line(keys, &heads, prefix.len(), at, len);
            }
            line.0[SHARDS..SHARDS + len].copy_from_slice(&shards[at..at + len]);
            self.samples.push(heads[at]);
            self.lines.push(line);
            at += len;
        }
        let mut inline = [0; INLINE];
        let kept = prefix.len().min(INLINE);
        inline[..kept].copy_from_slice(&prefix[..kept]);
        Place {
            from: from as u32,
            blocks: (self.lines.len() - from) as u16,
            len: keys.len() as u16,
            prefix_len: prefix.len() as u16,
            prefix: inline,
        }
    }

    /// Adds a copy of a segment's blocks that are in another slab.
    pub fn copy(&mut self, index: &Index) -> Place {
        let place = Place { from: self.lines.len() as u32, ..index.place.clone() };
        self.samples.extend_from_slice(index.samples());
        self.lines.extend_from_slice(index.lines());
        place
    }

    /// Bytes on the heap.
    pub fn memory(&self) -> usize {
        8 * self.samples.capacity() + size_of::<Line>() * self.lines.capacity()
    }

    pub fn finish(mut self) -> Arc<Self> {
        self.samples.shrink_to_fit();
        self.lines.shrink_to_fit();
        Arc::new(self)
    }
}

/// The block of `keys[at..at + len]`, without its shards.
fn line(keys: &[&[u8]], heads: &[u64], prefix_len: usize, at: usize, len: usize) -> Line {
    let mut words = [0; 32];
    words[1..META].fill(u16::MAX);
    let (first, last) = (at.max(1), at + len - 1);
    let (mut skip, mut shift) = (0, 0);
    if len > 1 {
        skip = (shared(keys[first], keys[last]) - prefix_len).min(7);
        let base = heads[at] << (8 * skip);
        let above = |i: usize| head(keys[i], prefix_len + skip) - base;
        shift = (64 - above(last).leading_zeros()).saturating_sub(16);
        for (slot, word) in words.iter_mut().enumerate().take(len).skip(1) {
            *word = (above(at + slot) >> shift) as u16;
        }
    }
    words[0] = at as u16;
    words[META] = shift as u16 | (skip as u16) << 6 | (len as u16) << 9;
    Line(words)
}

/// Where to cut ascending keys for segments: around runs of keys that the 8 bytes behind what all of them share do not
/// tell apart (many chunks of one long string), so that they share more with their own.
pub(super) fn cuts(keys: &[&[u8]]) -> Vec<usize> {
    let mut cuts = Vec::new();
    add_cuts(keys, 0, &mut cuts);
    cuts
}

/// The shortest run that becomes a segment.
const RUN: usize = 64;

fn add_cuts(keys: &[&[u8]], offset: usize, cuts: &mut Vec<usize>) {
    let [_, first, .., last] = keys else { return };
    let prefix = shared(first, last);
    let same = |a: &&[u8], b: &&[u8]| head(a, prefix) == head(b, prefix);
    let mut at = 1;
    for run in keys[1..].chunk_by(same) {
        if (RUN..keys.len() - 1).contains(&run.len()) {
            cuts.push(offset + at);
            add_cuts(run, offset + at, cuts);
            cuts.push(offset + at + run.len());
        }
        at += run.len();
    }
}

/// Neighbours in a block whose 16 bits are the same.
fn collisions(line: &Line) -> usize {
    (2..line.len()).filter(|i| line.0[*i] == line.0[i - 1]).count()
}

/// The index over the chunks of a segment.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Index {
    slab: Arc<Slab>,
    place: Place,
}

impl Index {
    /// The most chunks.
    pub const MAX: usize = 512;

    pub fn new(slab: Arc<Slab>, place: Place) -> Self {
        Index { slab, place }
    }

    pub fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    #[inline]
    fn samples(&self) -> &[u64] {
        let from = self.place.from as usize;
        &self.slab.samples[from..from + usize::from(self.place.blocks)]
    }

    #[inline]
    fn lines(&self) -> &[Line] {
        let from = self.place.from as usize;
        &self.slab.lines[from..from + usize::from(self.place.blocks)]
    }

    /// The last key that is not above `key`, which is not below key 0; `full(i)` gives key `i`.
    #[inline]
    pub fn find<'k>(&self, key: &[u8], full: impl Fn(usize) -> &'k [u8]) -> Found {
        let length = usize::from(self.place.prefix_len);
        let prefix = if length <= INLINE { &self.place.prefix[..length] } else { &full(1)[..length] };
        if !key.starts_with(prefix) {
            return self.at(if key < prefix { 0 } else { usize::from(self.place.len) - 1 });
        }
        let wanted = head(key, length);
        let samples = self.samples();
        let block = samples[1..].partition_point(|s| *s <= wanted);
        let (sample, line) = (samples[block], &self.lines()[block]);
        if sample == wanted {
            return self.among_equal(key, block, wanted, full);
        }
        let skip = line.skip();
        // The highest `skip` bytes; twice, for no shift is by 64.
        if ((sample ^ wanted) >> 1) >> (63 - 8 * skip) != 0 {
            // Not what all keys of the block begin with: the key is above them, or between keys 0 and 1.
            return line.found(if wanted < sample { 0 } else { line.len() - 1 });
        }
        let above = head(key, length + skip).saturating_sub(sample << (8 * skip));
        let cut = (above >> line.shift()).min(u64::from(u16::MAX)) as u16;
        let count = line.count(cut);
        if count < 2 || line.0[count - 1] < cut {
            return line.found(count - 1);
        }
        let from = (1..count).find(|i| line.0[*i] == cut).unwrap_or(1);
        let start = line.start();
        line.found(settle(key, start + from, start + count, full) - 1 - start)
    }

    /// Where the key's head is a sample.
    #[cold]
    fn among_equal<'k>(&self, key: &[u8], block: usize, wanted: u64, full: impl Fn(usize) -> &'k [u8]) -> Found {
        // The keys of the block before the first such sample may have the same head, but its first has not.
        let before = self.samples()[1..].partition_point(|s| *s < wanted);
        let from = self.lines()[before].start() + 1;
        let to = self.lines()[block].start() + self.lines()[block].len();
        self.at(settle(key, from, to, full) - 1)
    }

    /// Chunk `i`.
    #[cold]
    fn at(&self, i: usize) -> Found {
        let block = self.lines().partition_point(|line| line.start() <= i) - 1;
        let line = &self.lines()[block];
        line.found(i - line.start())
    }
}
