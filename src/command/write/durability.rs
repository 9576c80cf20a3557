//! When the inserts of an ordered batch become durable. Pure.
//!
//! Spread over shards, such a batch is a chain of short runs. Were each of them to wait for a majority, the batch would wait
//! as often as it has runs. So only the last run on each shard gets the client's write concern; those before it are
//! acknowledged by the primary alone. A member's log has no gaps: what a primary wrote earlier in its term is wherever that
//! is which it wrote later, so the last run stands for all. Where the term changed in between it does not: runs before may be
//! gone, and the batch must not be acknowledged.
//!
//! Only inserts: one that is repeated after it was lost does the same whatever was done after it; an update does not.

use bson::{RawBsonRef, RawDocument};

use super::envelope::Envelope;
use super::plan::{Place, ShardNo, SubBatch};
use crate::bsonx;

/// What is known of one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Shard {
    /// The last statement that goes there.
    last: u32,
    /// The primary's term, as its first reply says.
    term: Option<i64>,
    /// Something was acknowledged by the primary alone, and nothing since by as many as the client wants.
    open: bool,
}

/// What of a batch is durable so far. One without shards waits for every run.
#[derive(Debug, Default)]
pub struct Durability {
    shards: Vec<Shard>,
}

impl Durability {
    pub fn of(envelope: &Envelope, payload: &str, places: &[Place]) -> Self {
        let plain = payload == "documents" && envelope.ordered && !envelope.quiet;
        if !plain || !waits_for_others(envelope.get("writeConcern")) {
            return Self::default();
        }
        let mut shards: Vec<Shard> = Vec::new();
        for (index, place) in places.iter().enumerate() {
            let Place::One(shard) = place else { return Self::default() };
            let shard = usize::from(*shard);
            if shards.len() <= shard {
                shards.resize(shard + 1, Shard::default());
            }
            shards[shard].last = index as u32;
        }
        Durability { shards }
    }

    /// Whether a later run on the same shard will stand for this one.
    pub fn may_wait(&self, run: &SubBatch) -> bool {
        let last = self.shards.get(usize::from(run.shard)).map(|shard| shard.last);
        last.zip(run.items.last().copied()).is_some_and(|(last, own)| own < last)
    }

    /// Takes in a shard's reply to a run, or to what made sure of those before. False where the primary is not the one
    /// that acknowledged what is still open: that may be lost.
    pub fn note(&mut self, number: ShardNo, waited: bool, reply: &RawDocument) -> bool {
        let Some(shard) = self.shards.get_mut(usize::from(number)) else { return true };
        let term = bsonx::doc(reply, "opTime").and_then(|time| bsonx::int(time, "t"));
        let same = !shard.open || term.is_some() && term == shard.term;
        *shard = Shard { term, open: !waited, ..*shard };
        same
    }

    /// The shards where something is still open.
    pub fn open(&self) -> Vec<ShardNo> {
        let open = self.shards.iter().enumerate().filter(|(_, shard)| shard.open);
        open.filter_map(|(number, _)| ShardNo::try_from(number).ok()).collect()
    }
}

/// Whether a write concern asks for more than the primary's own word. Where it does not say, the cluster's default decides,
/// which is a majority.
fn waits_for_others(concern: Option<RawBsonRef<'_>>) -> bool {
    match concern.and_then(|c| c.as_document()).and_then(|c| bsonx::get(c, "w")) {
        Some(w) => bsonx::as_int(w).is_none_or(|n| n > 1),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::rawdoc;

    fn over(places: &[ShardNo]) -> Durability {
        let mut durability = Durability { shards: vec![Shard::default(); 3] };
        for (index, shard) in places.iter().enumerate() {
            durability.shards[usize::from(*shard)].last = index as u32;
        }
        durability
    }

    fn run(shard: ShardNo, items: &[u32]) -> SubBatch {
        SubBatch { shard, items: items.to_vec() }
    }

    #[test]
    fn the_last_run_on_each_shard_waits() {
        let durability = over(&[0, 0, 1, 0, 1]);
        assert!(durability.may_wait(&run(0, &[0, 1])));
        assert!(durability.may_wait(&run(1, &[2])));
        assert!(!durability.may_wait(&run(0, &[3])));
        assert!(!durability.may_wait(&run(1, &[4])));
        assert!(!Durability::default().may_wait(&run(0, &[0])));
    }

    #[test]
    fn a_change_of_primary_is_noticed() {
        let reply = |term: i64| rawdoc! { "n": 1, "opTime": { "ts": bson::Timestamp { time: 1, increment: 1 }, "t": term }, "ok": 1 };
        let mut durability = over(&[0, 1, 0, 1, 0]);
        assert!(durability.note(0, false, &reply(1)));
        assert!(durability.note(1, false, &reply(7)));
        assert!(durability.note(0, false, &reply(1)));
        assert_eq!(durability.open(), [0, 1]);
        assert!(durability.note(1, true, &reply(7)));
        assert_eq!(durability.open(), [0]);
        assert!(!durability.note(0, true, &reply(2)), "another primary");
        // Nothing is open there any more, so a new primary takes nothing away.
        assert!(durability.note(0, true, &reply(3)));
        assert!(durability.note(1, false, &reply(8)));
        assert!(!durability.note(1, true, &rawdoc! { "n": 1, "ok": 1 }), "nobody says whose word it is");
    }

    #[test]
    fn concerns() {
        let waits = |concern: bson::RawDocumentBuf| waits_for_others(Some(RawBsonRef::Document(&concern)));
        assert!(
            waits_for_others(None)
                && waits(rawdoc! {})
                && waits(rawdoc! { "w": "majority" })
                && waits(rawdoc! { "w": 2 })
        );
        assert!(waits(rawdoc! { "wtimeout": 5 }) && waits(rawdoc! { "w": { "dc": 1 } }));
        assert!(!waits(rawdoc! { "w": 1 }) && !waits(rawdoc! { "w": 1.0, "j": true }) && !waits(rawdoc! { "w": 0 }));
    }
}
