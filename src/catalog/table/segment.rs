//! A run of neighbouring chunks, stored column by column; what lookups need of them is in [`super::index`]. Segments never
//! change and are shared between versions of a table.

use bson::oid::ObjectId;
use bson::{RawDocument, RawDocumentBuf, Timestamp};

use crate::error::{Error, Result};

/// One chunk on its way into a segment.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Encoded lower and upper bound.
    pub min: Vec<u8>,
    pub max: Vec<u8>,
    pub min_doc: RawDocumentBuf,
    pub id: ObjectId,
    /// Position in the table's list of shards.
    pub shard: u16,
    pub lastmod: (u32, u32),
    pub jumbo: bool,
    pub since: Option<Timestamp>,
}

/// Sorted chunks without gaps. About 70 bytes per chunk for a hashed key.
#[derive(Debug)]
pub(super) struct Segment {
    keys: Strings,
    docs: Strings,
    ids: Box<[[u8; 12]]>,
    shards: Box<[u16]>,
    lastmods: Box<[(u32, u32)]>,
    /// `onCurrentShardSince` as a number; 0 is none.
    since: Box<[u64]>,
    /// Positions of the jumbo chunks.
    jumbo: Box<[u16]>,
    /// Which shards own a chunk here: one bit each.
    pub owners: ShardSet,
    /// The highest `lastmod`.
    pub version: (u32, u32),
}

impl Segment {
    /// From sorted, gap-free entries, at least one and at most [`super::index::Index::MAX`].
    pub fn new(entries: &[Entry]) -> Result<Self> {
        let keys = Strings::new(entries.iter().map(|e| e.min.as_slice()))?;
        let docs = Strings::new(entries.iter().map(|e| e.min_doc.as_bytes()))?;
        let mut owners = ShardSet::default();
        for entry in entries {
            owners.insert(entry.shard);
        }
        let since = |e: &Entry| e.since.map_or(0, |t| (u64::from(t.time) << 32) | u64::from(t.increment));
        Ok(Segment {
            keys,
            docs,
            ids: entries.iter().map(|e| e.id.bytes()).collect(),
            shards: entries.iter().map(|e| e.shard).collect(),
            lastmods: entries.iter().map(|e| e.lastmod).collect(),
            since: entries.iter().map(since).collect(),
            jumbo: (0u16..).zip(entries).filter(|(_, e)| e.jumbo).map(|(i, _)| i).collect(),
            owners,
            version: entries.iter().map(|e| e.lastmod).max().unwrap_or_default(),
        })
    }

    pub fn len(&self) -> usize {
        self.shards.len()
    }

    /// The table's position of the shard that owns chunk `i`.
    pub fn shard(&self, i: usize) -> u16 {
        self.shards[i]
    }

    /// The same for chunks `from..to`.
    pub fn shards(&self, from: usize, to: usize) -> impl Iterator<Item = u16> + '_ {
        self.shards[from..to].iter().copied()
    }

    /// Encoded lower bound of chunk `i`.
    #[inline]
    pub fn key(&self, i: usize) -> &[u8] {
        self.keys.get(i)
    }

    /// Lower bound of chunk `i`.
    pub fn min(&self, i: usize) -> Result<&RawDocument> {
        RawDocument::from_bytes(self.docs.get(i)).map_err(Error::from)
    }

    pub fn id(&self, i: usize) -> ObjectId {
        ObjectId::from_bytes(self.ids[i])
    }

    pub fn lastmod(&self, i: usize) -> (u32, u32) {
        self.lastmods[i]
    }

    pub fn since(&self, i: usize) -> Option<Timestamp> {
        match self.since[i] {
            0 => None,
            v => Some(Timestamp { time: (v >> 32) as u32, increment: v as u32 }),
        }
    }

    pub fn is_jumbo(&self, i: usize) -> bool {
        self.jumbo.iter().any(|j| usize::from(*j) == i)
    }

    /// Bytes on the heap and of the segment itself.
    pub fn memory(&self) -> usize {
        size_of::<Self>()
            + self.keys.memory()
            + self.docs.memory()
            + self.len() * (12 + 2 + 8 + 8)
            + self.jumbo.len() * 2
            + self.owners.0.len() * 8
    }
}

/// Many byte strings in one allocation.
#[derive(Debug)]
struct Strings {
    bytes: Box<[u8]>,
    /// String `i` is `bytes[ends[i-1]..ends[i]]`.
    ends: Box<[u32]>,
}

impl Strings {
    fn new<'k>(items: impl Iterator<Item = &'k [u8]>) -> Result<Self> {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for item in items {
            bytes.extend_from_slice(item);
            let end =
                u32::try_from(bytes.len()).map_err(|_| Error::internal("a routing table segment exceeds 4 GiB"))?;
            ends.push(end);
        }
        Ok(Strings { bytes: bytes.into(), ends: ends.into() })
    }

    #[inline]
    fn get(&self, i: usize) -> &[u8] {
        let start = i.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.bytes[start..self.ends[i] as usize]
    }

    fn memory(&self) -> usize {
        self.bytes.len() + 4 * self.ends.len()
    }
}

/// A set of shard positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShardSet(smallvec::SmallVec<[u64; 1]>);

impl ShardSet {
    pub fn insert(&mut self, shard: u16) {
        let word = usize::from(shard) / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (shard % 64);
    }

    pub fn union(&mut self, other: &ShardSet) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine |= theirs;
        }
    }

    pub fn contains(&self, shard: u16) -> bool {
        self.0.get(usize::from(shard) / 64).is_some_and(|word| word >> (shard % 64) & 1 == 1)
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|w| *w == 0)
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0u16..).zip(&self.0).flat_map(|(i, word)| (0..64).filter(move |b| word >> b & 1 == 1).map(move |b| i * 64 + b))
    }

    /// Whether every member of `other` is a member of this set.
    pub fn covers(&self, other: &ShardSet) -> bool {
        other.0.iter().enumerate().all(|(i, theirs)| theirs & !self.0.get(i).copied().unwrap_or(0) == 0)
    }
}
