//! Which operations are slow enough for a line in the log.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// The threshold, and which share of the slow operations is logged. `profile` changes both while the router runs.
#[derive(Debug)]
pub struct SlowOps {
    /// Milliseconds; negative = no operation is slow.
    threshold: AtomicI64,
    /// The bits of a number from 0 to 1.
    sample_rate: AtomicU64,
}

impl Default for SlowOps {
    fn default() -> Self {
        SlowOps { threshold: AtomicI64::new(100), sample_rate: AtomicU64::new(1f64.to_bits()) }
    }
}

impl SlowOps {
    /// In milliseconds; negative = none.
    pub fn threshold(&self) -> i64 {
        self.threshold.load(Ordering::Relaxed)
    }

    pub fn set_threshold(&self, millis: i64) {
        self.threshold.store(millis, Ordering::Relaxed);
    }

    pub fn sample_rate(&self) -> f64 {
        f64::from_bits(self.sample_rate.load(Ordering::Relaxed))
    }

    /// `rate` from 0 to 1.
    pub fn set_sample_rate(&self, rate: f64) {
        self.sample_rate.store(rate.to_bits(), Ordering::Relaxed);
    }

    /// Whether an operation that took so long is to be logged.
    pub fn logs(&self, elapsed: Duration) -> bool {
        let threshold = self.threshold();
        threshold >= 0 && elapsed.as_millis() as i64 >= threshold && self.sampled()
    }

    fn sampled(&self) -> bool {
        let rate = self.sample_rate();
        rate >= 1.0 || rand::random::<f64>() < rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds() {
        let slow = SlowOps::default();
        let ms = Duration::from_millis;
        assert!(slow.logs(ms(100)) && !slow.logs(ms(99)));
        slow.set_threshold(-1);
        assert!(!slow.logs(ms(1_000_000)));
        slow.set_threshold(0);
        assert!(slow.logs(Duration::ZERO));
        slow.set_sample_rate(0.0);
        assert!(!slow.logs(ms(5)));
    }
}
