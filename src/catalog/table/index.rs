//! Finding a key among sorted keys with few cache misses.

/// Heads per block of the sample level: two cache lines of `u64`.
const BLOCK: usize = 16;

/// An index over sorted byte strings: all share a prefix; of what follows, the first 8 bytes of each are kept in one
/// array (`heads`), and every 16th of those in a smaller one (`samples`), so a search touches a few cache lines. Only keys whose heads are equal are
/// compared in full.
#[derive(Debug)]
pub(super) struct Index {
    prefix: Box<[u8]>,
    /// `heads[i]` is the big-endian number of the 8 bytes after the prefix of key `i`, zero-filled.
    heads: Box<[u64]>,
    samples: Box<[u64]>,
}

impl Index {
    /// `keys` in ascending order.
    pub fn new<'k>(keys: impl Iterator<Item = &'k [u8]> + Clone) -> Self {
        let mut bounds = keys.clone();
        let first = bounds.next().unwrap_or_default();
        // Sorted: what the first and the last key share, all share.
        let shared = bounds.last().map_or(first.len(), |last| common(first, last));
        let heads: Box<[u64]> = keys.map(|key| head(&key[shared.min(key.len())..])).collect();
        let samples = heads.iter().copied().skip(BLOCK - 1).step_by(BLOCK).collect();
        Index { prefix: first[..shared].into(), heads, samples }
    }

    /// How many keys are ≤ `key`. `full(i)` gives key `i` for the rare full comparison.
    #[inline]
    pub fn rank<'k>(&self, key: &[u8], full: impl Fn(usize) -> &'k [u8]) -> usize {
        let rest = match key.strip_prefix(&*self.prefix) {
            Some(rest) => rest,
            None if key < &*self.prefix => return 0,
            None => return self.heads.len(),
        };
        let wanted = head(rest);
        // A sample ≤ wanted means its whole block is.
        let block = count(&self.samples, wanted) * BLOCK;
        let block_heads = &self.heads[block..(block + BLOCK).min(self.heads.len())];
        let at_most = block + block_heads.iter().filter(|h| **h <= wanted).count();
        if at_most == 0 || self.heads[at_most - 1] < wanted {
            return at_most;
        }
        // Equal heads: compare whole keys from the first of them.
        let from = self.heads[..at_most].partition_point(|h| *h < wanted);
        let (mut low, mut high) = (from, at_most);
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

    /// Bytes on the heap.
    pub fn memory(&self) -> usize {
        self.prefix.len() + 8 * (self.heads.len() + self.samples.len())
    }
}

/// How many of the sorted numbers are ≤ `wanted`.
#[inline]
fn count(sorted: &[u64], wanted: u64) -> usize {
    if sorted.len() <= 4 * BLOCK {
        // Short enough that counting them all beats the mispredicted branches of a search.
        sorted.iter().filter(|h| **h <= wanted).count()
    } else {
        sorted.partition_point(|h| *h <= wanted)
    }
}

#[inline]
fn head(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => bytes.iter().enumerate().fold(0, |sum, (i, b)| sum | u64::from(*b) << (56 - 8 * i)),
    }
}

fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}
