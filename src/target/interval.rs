//! Sets of encoded values of one shard key field.
//!
//! An interval `[low, high)` is over byte strings. A value's encoding `E` is never the beginning of another value's, and
//! in a compound key it is followed by a type byte below FF, so `E` followed by FF sorts after everything that begins with
//! `E` and before everything that comes later: `[E, E·FF)` is one value, `[E·FF, …)` is "greater than".

use smallvec::SmallVec;

use crate::error::Result;
use crate::key::order;
use crate::key::value::Value;

/// A short byte string.
pub(super) type Bytes = SmallVec<[u8; 24]>;

/// `[low, high)`, not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    pub low: Bytes,
    pub high: Bytes,
    /// One value: `low` is its encoding.
    pub point: bool,
}

impl Interval {
    /// One encoded value.
    pub fn point(encoded: &[u8]) -> Self {
        Interval { low: Bytes::from_slice(encoded), high: after(encoded), point: true }
    }

    /// `[low, high)`, `None` if that is empty.
    pub fn range(low: &[u8], high: &[u8]) -> Option<Self> {
        // A closed range of one value, such as `$gte: 5, $lte: 5`.
        let point = high.split_last().is_some_and(|(last, rest)| *last == 0xFF && rest == low);
        (low < high).then(|| Interval { low: Bytes::from_slice(low), high: Bytes::from_slice(high), point })
    }
}

/// What sorts right after every key that begins with `encoded`.
pub(super) fn after(encoded: &[u8]) -> Bytes {
    let mut bytes = Bytes::from_slice(encoded);
    bytes.push(0xFF);
    bytes
}

/// A sorted set of disjoint intervals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set {
    intervals: Vec<Interval>,
    /// Stands for one equality, even where that takes two points (null and undefined, two hashes of one number).
    single: bool,
    /// No ranges.
    points: bool,
}

impl Set {
    pub fn empty() -> Self {
        Set::sorted(Vec::new(), false)
    }

    fn sorted(intervals: Vec<Interval>, single: bool) -> Self {
        let points = intervals.iter().all(|i| i.point);
        Set { intervals, single: single && points, points }
    }

    /// One value.
    pub fn value(value: Value<'_>) -> Result<Self> {
        let mut bytes = Vec::with_capacity(32);
        order::push(&mut bytes, value)?;
        Ok(Set::sorted(vec![Interval::point(&bytes)], true))
    }

    /// One equality that takes one or several points.
    pub fn equality(points: Vec<Interval>) -> Self {
        Set::sorted(Set::new(points).intervals, true)
    }

    /// `[low, high)`.
    pub fn range(low: &[u8], high: &[u8]) -> Self {
        let intervals: Vec<_> = Interval::range(low, high).into_iter().collect();
        Set::sorted(intervals, true)
    }

    /// Of intervals in any order.
    pub fn new(mut intervals: Vec<Interval>) -> Self {
        intervals.sort_unstable_by(|a, b| a.low.cmp(&b.low));
        let mut merged: Vec<Interval> = Vec::with_capacity(intervals.len());
        for next in intervals {
            match merged.last_mut() {
                Some(last) if next.low < last.high || (next.low == last.high && !next.point && !last.point) => {
                    if next.high > last.high {
                        last.high = next.high;
                        last.point = false;
                    }
                }
                _ => merged.push(next),
            }
        }
        Set::sorted(merged, false)
    }

    pub fn union(self, other: Set) -> Set {
        let mut intervals = self.intervals;
        intervals.extend(other.intervals);
        Set::new(intervals)
    }

    /// Takes time in the smaller set's size (times the logarithm of the larger one's) and the result's.
    pub fn intersect(&self, other: &Set) -> Set {
        let (small, large) = if self.intervals.len() <= other.intervals.len() { (self, other) } else { (other, self) };
        let mut intervals = Vec::new();
        let mut rest = large.intervals.as_slice();
        for a in &small.intervals {
            rest = &rest[rest.partition_point(|b| b.high <= a.low)..];
            for b in rest.iter().take_while(|b| b.low < a.high) {
                if let Some(mut both) = Interval::range((&a.low).max(&b.low), (&a.high).min(&b.high)) {
                    both.point |= a.point || b.point;
                    intervals.push(both);
                }
            }
        }
        let single = self.single || other.single || matches!(intervals.as_slice(), [one] if one.point);
        Set::sorted(intervals, single)
    }

    /// The most intervals that an intersection can have.
    pub fn intersection_size(&self, other: &Set) -> usize {
        let (a, b) = (self.intervals.len(), other.intervals.len());
        // A range holds any number of points.
        if self.is_points() && other.is_points() { a.min(b).max(1) } else { a + b }
    }

    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    pub fn into_intervals(self) -> Vec<Interval> {
        self.intervals
    }

    pub fn is_empty(&self) -> bool {
        self.intervals.is_empty()
    }

    /// One equality.
    pub fn is_single(&self) -> bool {
        self.single
    }

    /// Only values, no ranges.
    pub fn is_points(&self) -> bool {
        self.points
    }

    /// The first and the last byte string of the set.
    pub fn span(&self) -> Option<(&[u8], &[u8])> {
        Some((&self.intervals.first()?.low, &self.intervals.last()?.high))
    }
}
