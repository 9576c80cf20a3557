//! How long cursors lived, in mongos's seven spans.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The spans' ends in seconds, and their names in `serverStatus`.
const SPANS: [(u64, &str); 7] = [
    (1, "lessThan1Second"),
    (5, "lessThan5Seconds"),
    (15, "lessThan15Seconds"),
    (30, "lessThan30Seconds"),
    (60, "lessThan1Minute"),
    (600, "lessThan10Minutes"),
    (u64::MAX, "greaterThanOrEqual10Minutes"),
];

/// Closed cursors by the span they lived for.
#[derive(Debug, Default)]
pub struct Lifespans([AtomicU64; SPANS.len()]);

impl Lifespans {
    pub fn record(&self, lived: Duration) {
        let span = SPANS.iter().position(|(end, _)| lived.as_secs() < *end).unwrap_or(SPANS.len() - 1);
        self.0[span].fetch_add(1, Ordering::Relaxed);
    }

    /// Name and number of each span.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        SPANS.iter().zip(&self.0).map(|((_, name), n)| (*name, n.load(Ordering::Relaxed))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        let lifespans = Lifespans::default();
        for seconds in [0, 1, 4, 5, 59, 60, 600, u64::MAX] {
            lifespans.record(Duration::from_secs(seconds));
        }
        let counts: Vec<u64> = lifespans.counts().into_iter().map(|(_, n)| n).collect();
        assert_eq!(counts, [1, 2, 1, 0, 1, 1, 2]);
    }
}
