//! Operation counters.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The kinds `serverStatus.opcounters` distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    Insert,
    Query,
    Update,
    Delete,
    GetMore,
    Command,
}

impl OpKind {
    pub const ALL: [OpKind; 6] =
        [OpKind::Insert, OpKind::Query, OpKind::Update, OpKind::Delete, OpKind::GetMore, OpKind::Command];

    /// The kind under which a command is counted.
    pub fn of(command: &str) -> OpKind {
        match command {
            "insert" => OpKind::Insert,
            "find" => OpKind::Query,
            "update" => OpKind::Update,
            "delete" => OpKind::Delete,
            "getMore" => OpKind::GetMore,
            _ => OpKind::Command,
        }
    }

    /// The name in `opcounters`.
    pub fn as_str(self) -> &'static str {
        match self {
            OpKind::Insert => "insert",
            OpKind::Query => "query",
            OpKind::Update => "update",
            OpKind::Delete => "delete",
            OpKind::GetMore => "getmore",
            OpKind::Command => "command",
        }
    }

    /// The name in `currentOp`'s `op`.
    pub fn op_name(self) -> &'static str {
        match self {
            OpKind::Delete => "remove",
            other => other.as_str(),
        }
    }
}

#[derive(Debug, Default)]
pub struct OperationCounters([Counter; 6]);

impl OperationCounters {
    pub fn add(&self, kind: OpKind, n: u64) {
        self.0[kind as usize].add(n);
    }

    pub fn get(&self, kind: OpKind) -> u64 {
        self.0[kind as usize].get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_index_their_own_counter() {
        let counters = OperationCounters::default();
        for (n, kind) in OpKind::ALL.into_iter().enumerate() {
            counters.add(kind, n as u64 + 1);
        }
        for (n, kind) in OpKind::ALL.into_iter().enumerate() {
            assert_eq!(counters.get(kind), n as u64 + 1, "{kind:?}");
        }
        assert_eq!(OpKind::of("find"), OpKind::Query);
        assert_eq!(OpKind::of("aggregate"), OpKind::Command);
    }
}
