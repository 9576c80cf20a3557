//! Latencies by class, with a histogram whose bounds are powers of two.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::counters::{Counter, OpKind};

/// Buckets: up to 2 µs, up to 4 µs, … the last one takes everything longer (about 38 hours).
const BUCKETS: usize = 38;

/// Counts of durations by powers of two of microseconds.
#[derive(Debug)]
pub struct Histogram([AtomicU64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Histogram(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Histogram {
    fn record(&self, micros: u64) {
        let bucket = (64 - micros.max(1).leading_zeros() as usize - 1).min(BUCKETS - 1);
        self.0[bucket].fetch_add(1, Ordering::Relaxed);
    }

    /// The buckets that hold anything: lower bound in microseconds (0 for the first) and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().enumerate().filter_map(|(i, count)| {
            let count = count.load(Ordering::Relaxed);
            (count > 0).then(|| (if i == 0 { 0 } else { 1 << i }, count))
        })
    }
}

/// One class of operations.
#[derive(Debug, Default)]
pub struct Latency {
    pub micros: Counter,
    pub operations: Counter,
    pub histogram: Histogram,
}

impl Latency {
    fn record(&self, elapsed: Duration) {
        let micros = elapsed.as_micros() as u64;
        self.micros.add(micros);
        self.operations.add(1);
        self.histogram.record(micros);
    }
}

/// `serverStatus.opLatencies`.
#[derive(Debug, Default)]
pub struct Latencies {
    pub reads: Latency,
    pub writes: Latency,
    pub commands: Latency,
}

impl Latencies {
    pub fn record(&self, kind: OpKind, elapsed: Duration) {
        match kind {
            OpKind::Query | OpKind::GetMore => self.reads.record(elapsed),
            OpKind::Insert | OpKind::Update | OpKind::Delete => self.writes.record(elapsed),
            OpKind::Command => self.commands.record(elapsed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two() {
        let h = Histogram::default();
        for micros in [0, 1, 2, 3, 4, 1023, 1024, u64::MAX] {
            h.record(micros);
        }
        let buckets: Vec<_> = h.buckets().collect();
        assert_eq!(buckets, [(0, 2), (2, 2), (4, 1), (512, 1), (1024, 1), (1 << 37, 1)]);
    }

    #[test]
    fn classes() {
        let l = Latencies::default();
        l.record(OpKind::Query, Duration::from_micros(10));
        l.record(OpKind::Insert, Duration::from_micros(20));
        l.record(OpKind::Command, Duration::from_micros(30));
        assert_eq!((l.reads.micros.get(), l.writes.micros.get(), l.commands.micros.get()), (10, 20, 30));
    }
}
