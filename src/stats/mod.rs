//! Counters that `serverStatus` and the metrics report. Relaxed atomics: they are read for display only.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Stats {
    pub commands: AtomicU64,
    pub failed: AtomicU64,
    pub micros: AtomicU64,
}

impl Stats {
    /// Counts one finished command.
    pub fn count_command(&self, _name: &str, ok: bool, elapsed: Duration) {
        self.commands.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(elapsed.as_micros() as u64, Ordering::Relaxed);
        if !ok {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}
