//! From statements with their shards to the commands that are sent, and in which order. Pure.
//!
//! Ordered batches go out as runs: neighbouring statements for one shard make one command, and the next command is
//! sent only when all before it succeeded. Unordered ones go out as one command for each shard, all at once.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::catalog::model::ShardId;
use crate::error::Error;
use crate::wire::MAX_WRITE_BATCH;

/// A shard by its position in a [`Shards`].
pub type ShardNo = u16;

/// The shards of one batch, each once.
#[derive(Clone, Debug, Default)]
pub struct Shards {
    ids: Vec<ShardId>,
    /// Neighbours often go to the same shard.
    last: usize,
}

impl Shards {
    pub fn number(&mut self, id: &ShardId) -> ShardNo {
        if self.ids.get(self.last).is_some_and(|known| known == id) {
            return self.last as ShardNo;
        }
        self.last = match self.ids.iter().position(|known| known == id) {
            Some(at) => at,
            None => {
                self.ids.push(id.clone());
                self.ids.len() - 1
            }
        };
        self.last as ShardNo
    }

    pub fn id(&self, number: ShardNo) -> &ShardId {
        &self.ids[usize::from(number)]
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }
}

/// Where one statement goes.
#[derive(Clone, Debug)]
pub enum Place {
    One(ShardNo),
    /// To all of these, as it is; what they did adds up.
    Many(SmallVec<[ShardNo; 4]>),
    /// It takes more than sending it on.
    Special,
    /// It cannot be done.
    Failed(Box<Error>),
}

/// Some statements for one shard, in one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubBatch {
    pub shard: ShardNo,
    /// Indexes into the client's batch, ascending.
    pub items: Vec<u32>,
}

#[derive(Clone, Debug)]
pub enum Step {
    /// To be sent at once, each to its shard.
    Send(Vec<SubBatch>),
    Special(u32),
    Failed(u32, Box<Error>),
}

/// What one command may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all its statements.
    pub bytes: usize,
    pub statements: usize,
}

impl Limits {
    /// For commands with `overhead` bytes besides the statements.
    pub fn for_message(overhead: usize) -> Self {
        Limits { bytes: crate::wire::MAX_MESSAGE.saturating_sub(overhead).max(1), statements: MAX_WRITE_BATCH }
    }
}

/// Hands out the steps one after the other.
pub struct Planner<'a> {
    places: &'a [Place],
    /// Bytes of a statement by its index.
    size: &'a (dyn Fn(u32) -> usize + Sync),
    limits: Limits,
    kind: Kind,
}

enum Kind {
    /// The next statement to be planned.
    Ordered(usize),
    Unordered(VecDeque<Step>),
}

impl<'a> Planner<'a> {
    pub fn new(places: &'a [Place], size: &'a (dyn Fn(u32) -> usize + Sync), limits: Limits, ordered: bool) -> Self {
        let mut planner = Planner { places, size, limits, kind: Kind::Ordered(0) };
        if !ordered {
            planner.kind = Kind::Unordered(planner.unordered());
        }
        planner
    }

    /// The run that begins at `from`, and where the next one begins.
    fn run(&self, from: usize, shard: ShardNo) -> (SubBatch, usize) {
        let (mut items, mut bytes) = (Vec::new(), 0);
        let mut at = from;
        while let Some(Place::One(other)) = self.places.get(at) {
            bytes += (self.size)(at as u32);
            if *other != shard
                || !items.is_empty() && bytes > self.limits.bytes
                || items.len() >= self.limits.statements
            {
                break;
            }
            items.push(at as u32);
            at += 1;
        }
        (SubBatch { shard, items }, at)
    }

    fn unordered(&self) -> VecDeque<Step> {
        // For each shard its commands; only the last one is still open.
        let mut queues: Vec<Vec<(SubBatch, usize)>> = Vec::new();
        let mut rest = VecDeque::new();
        for (at, place) in self.places.iter().enumerate() {
            let at = at as u32;
            match place {
                Place::One(shard) => self.enqueue(&mut queues, *shard, at),
                Place::Many(shards) => shards.iter().for_each(|shard| self.enqueue(&mut queues, *shard, at)),
                Place::Special => rest.push_back(Step::Special(at)),
                Place::Failed(error) => rest.push_back(Step::Failed(at, error.clone())),
            }
        }
        let rounds = queues.iter().map(Vec::len).max().unwrap_or(0);
        let mut queues: Vec<_> = queues.into_iter().map(Vec::into_iter).collect();
        let sends = (0..rounds)
            .map(|_| Step::Send(queues.iter_mut().filter_map(|queue| queue.next().map(|(batch, _)| batch)).collect()));
        sends.collect::<Vec<_>>().into_iter().chain(rest).collect()
    }

    fn enqueue(&self, queues: &mut Vec<Vec<(SubBatch, usize)>>, shard: ShardNo, at: u32) {
        if queues.len() <= usize::from(shard) {
            queues.resize_with(usize::from(shard) + 1, Vec::new);
        }
        let queue = &mut queues[usize::from(shard)];
        let size = (self.size)(at);
        match queue.last_mut() {
            Some((batch, bytes))
                if *bytes + size <= self.limits.bytes && batch.items.len() < self.limits.statements =>
            {
                batch.items.push(at);
                *bytes += size;
            }
            _ => queue.push((SubBatch { shard, items: vec![at] }, size)),
        }
    }
}

impl Iterator for Planner<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let at = match &mut self.kind {
            Kind::Unordered(steps) => return steps.pop_front(),
            Kind::Ordered(at) => *at,
        };
        let index = at as u32;
        let (step, next) = match self.places.get(at)? {
            Place::One(shard) => {
                let (batch, next) = self.run(at, *shard);
                (Step::Send(vec![batch]), next)
            }
            Place::Many(shards) => {
                let batch = |shard: &ShardNo| SubBatch { shard: *shard, items: vec![index] };
                (Step::Send(shards.iter().map(batch).collect()), at + 1)
            }
            Place::Special => (Step::Special(index), at + 1),
            Place::Failed(error) => (Step::Failed(index, error.clone()), at + 1),
        };
        self.kind = Kind::Ordered(next);
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use proptest::prelude::*;

    use super::*;
    use crate::error::Code;

    fn place(n: u8) -> Place {
        match n {
            0..=5 => Place::One(ShardNo::from(n % 3)),
            6 => Place::Many(SmallVec::from_slice(&[0, 2])),
            7 => Place::Special,
            _ => Place::Failed(Box::new(Error::new(Code::BadValue, "no"))),
        }
    }

    /// What each shard is sent, in order; statements that are special or fail stand under 100.
    fn by_shard(steps: &[Step]) -> Vec<(ShardNo, u32)> {
        let mut sent = Vec::new();
        for step in steps {
            match step {
                Step::Send(batches) => {
                    sent.extend(batches.iter().flat_map(|b| b.items.iter().map(move |i| (b.shard, *i))));
                }
                Step::Special(i) | Step::Failed(i, _) => sent.push((100, *i)),
            }
        }
        sent
    }

    fn wanted(places: &[Place]) -> Vec<(ShardNo, u32)> {
        let mut all = Vec::new();
        for (i, place) in places.iter().enumerate() {
            match place {
                Place::One(s) => all.push((*s, i as u32)),
                Place::Many(shards) => all.extend(shards.iter().map(|s| (*s, i as u32))),
                _ => all.push((100, i as u32)),
            }
        }
        all
    }

    proptest! {
        #[test]
        fn every_statement_is_sent_where_it_belongs_and_in_order(
            kinds in prop::collection::vec(0u8..9, 0..60),
            sizes in prop::collection::vec(1usize..50, 60),
            bytes in 1usize..200,
            statements in 1usize..20,
            ordered: bool,
        ) {
            let places: Vec<_> = kinds.into_iter().map(place).collect();
            let size = |i: u32| sizes[i as usize];
            let steps: Vec<_> = Planner::new(&places, &size, Limits { bytes, statements }, ordered).collect();
            let mut sent = by_shard(&steps);
            let mut expected = wanted(&places);
            if ordered {
                prop_assert_eq!(&sent, &expected);
            }
            // On each shard the client's order stands in any case.
            for shard in [0, 1, 2] {
                let order: Vec<_> = sent.iter().filter(|(s, _)| *s == shard).collect();
                prop_assert!(order.is_sorted());
            }
            sent.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(sent, expected);
            for step in &steps {
                if let Step::Send(batches) = step {
                    prop_assert!(!batches.is_empty());
                    for (i, batch) in batches.iter().enumerate() {
                        let total: usize = batch.items.iter().map(|i| size(*i)).sum();
                        prop_assert!(total <= bytes || batch.items.len() == 1);
                        prop_assert!(batch.items.len() <= statements);
                        prop_assert!(batches[..i].iter().all(|other| other.shard != batch.shard));
                    }
                }
            }
        }
    }

    #[test]
    fn ordered_runs_end_where_the_shard_changes() {
        let places: Vec<_> = [0, 0, 1, 0, 7, 0, 6].into_iter().map(place).collect();
        let steps: Vec<_> = Planner::new(&places, &|_| 1, Limits { bytes: 100, statements: 100 }, true).collect();
        let shape: Vec<_> = steps
            .iter()
            .map(|s| match s {
                Step::Send(b) => b.iter().map(|b| b.items.len()).collect::<Vec<_>>(),
                _ => vec![],
            })
            .collect();
        assert_eq!(shape, [vec![2], vec![1], vec![1], vec![], vec![1], vec![1, 1]]);
    }

    #[test]
    fn unordered_is_one_command_for_each_shard() {
        let places: Vec<_> = (0..1000).map(|i| Place::One(i % 2)).collect();
        let steps: Vec<_> = Planner::new(&places, &|_| 1, Limits { bytes: 1 << 20, statements: 5000 }, false).collect();
        assert!(matches!(&steps[..], [Step::Send(b)] if b.len() == 2 && b.iter().all(|b| b.items.len() == 500)));
    }
}
