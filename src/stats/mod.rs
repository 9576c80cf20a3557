//! Counters that `serverStatus` and the metrics report, and the log. Relaxed atomics: they are read for display only.
//!
//! What every operation bumps lies on cache lines of its own, so that cores do not fight over neighbours.

mod counters;
mod latency;
pub mod log;
mod slow;
mod targeted;
mod transactions;

use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

pub use counters::{Counter, OpKind, OperationCounters};
pub use latency::{Histogram, Latencies, Latency};
pub use slow::SlowOps;
pub use targeted::{Hosts, TargetCounters, Targeted};
pub use transactions::{CommitType, TransactionStats};

/// Client connections (bumped by `conn`).
#[derive(Debug, Default)]
pub struct ConnectionStats {
    pub current: AtomicI64,
    pub total_created: AtomicU64,
    /// Turned away by `net.maxIncomingConnections`.
    pub rejected: AtomicU64,
    /// Connections that stream hello replies.
    pub exhaust_hello: AtomicI64,
    /// Connections that wait in an awaitable hello.
    pub awaiting_topology: AtomicI64,
}

impl ConnectionStats {
    pub fn opened(&self) {
        self.current.fetch_add(1, Ordering::Relaxed);
        self.total_created.fetch_add(1, Ordering::Relaxed);
    }

    pub fn closed(&self) {
        self.current.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes and messages exchanged with clients. "Physical" is what was on the wire, compressed or not.
#[derive(Debug, Default)]
pub struct NetworkStats {
    pub bytes_in: Counter,
    pub bytes_out: Counter,
    pub physical_in: Counter,
    pub physical_out: Counter,
    pub requests: Counter,
}

impl NetworkStats {
    /// One message from a client: bytes on the wire, and after decompression.
    pub fn received(&self, physical: usize, logical: usize) {
        self.physical_in.add(physical as u64);
        self.bytes_in.add(logical as u64);
        self.requests.add(1);
    }

    /// One reply to a client: bytes on the wire, and before compression.
    pub fn sent(&self, physical: usize, logical: usize) {
        self.physical_out.add(physical as u64);
        self.bytes_out.add(logical as u64);
    }
}

/// Runs and failures of one command.
#[derive(Debug, Default)]
pub struct CommandCount {
    pub total: AtomicU64,
    pub failed: AtomicU64,
}

/// Everything one router counts.
#[derive(Debug)]
pub struct Stats {
    pub connections: ConnectionStats,
    pub network: NetworkStats,
    pub operations: OperationCounters,
    pub latencies: Latencies,
    pub targeted: Targeted,
    pub transactions: TransactionStats,
    pub slow: SlowOps,
    /// Replies with `ok: 0`, what `serverStatus.asserts.user` shows.
    pub failed: Counter,
    commands: HashMap<&'static str, CommandCount, foldhash::fast::RandomState>,
    unknown: CommandCount,
}

impl Default for Stats {
    fn default() -> Self {
        static NAMES: LazyLock<Vec<&'static str>> =
            LazyLock::new(|| crate::command::all().map(|spec| spec.name).collect());
        Stats {
            connections: ConnectionStats::default(),
            network: NetworkStats::default(),
            operations: OperationCounters::default(),
            latencies: Latencies::default(),
            targeted: Targeted::default(),
            transactions: TransactionStats::default(),
            slow: SlowOps::default(),
            failed: Counter::default(),
            commands: NAMES.iter().map(|name| (*name, CommandCount::default())).collect(),
            unknown: CommandCount::default(),
        }
    }
}

impl Stats {
    /// Counts one finished command. `statements` is the number of documents, updates or deletes of a write command
    /// (1 for every other command).
    pub fn count_command(&self, name: &str, statements: u64, ok: bool, elapsed: Duration) {
        let kind = OpKind::of(name);
        self.operations.add(kind, statements);
        self.latencies.record(kind, elapsed);
        let count = self.commands.get(name).unwrap_or(&self.unknown);
        count.total.fetch_add(1, Ordering::Relaxed);
        if !ok {
            count.failed.fetch_add(1, Ordering::Relaxed);
            self.failed.add(1);
        }
    }

    /// Per command: name, runs, failures; sorted by name, `<UNKNOWN>` left out.
    pub fn command_counts(&self) -> Vec<(&'static str, u64, u64)> {
        let mut rows: Vec<_> = self
            .commands
            .iter()
            .map(|(name, c)| (*name, c.total.load(Ordering::Relaxed), c.failed.load(Ordering::Relaxed)))
            .collect();
        rows.sort_unstable();
        rows
    }

    /// How many commands came that the router does not have.
    pub fn unknown_commands(&self) -> u64 {
        self.unknown.total.load(Ordering::Relaxed)
    }
}
