//! `serverStatus.transactions`.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bson::{Document, doc};

/// One way of committing.
#[derive(Debug, Default)]
pub struct CommitType {
    pub initiated: AtomicU64,
    pub successful: AtomicU64,
    pub successful_micros: AtomicU64,
}

impl CommitType {
    fn to_doc(&self) -> Document {
        doc! {
            "initiated": self.initiated.load(Ordering::Relaxed) as i64,
            "successful": self.successful.load(Ordering::Relaxed) as i64,
            "successfulDurationMicros": self.successful_micros.load(Ordering::Relaxed) as i64,
        }
    }
}

/// Multi-document transactions through this router (bumped by `txn`).
#[derive(Debug, Default)]
pub struct TransactionStats {
    pub open: AtomicI64,
    pub started: AtomicU64,
    pub committed: AtomicU64,
    pub aborted: AtomicU64,
    pub contacted_participants: AtomicU64,
    pub no_shards: CommitType,
    pub single_shard: CommitType,
    pub single_write_shard: CommitType,
    pub read_only: CommitType,
    pub two_phase: CommitType,
    pub with_token: CommitType,
}

impl TransactionStats {
    pub fn to_doc(&self) -> Document {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed) as i64;
        let open = self.open.load(Ordering::Relaxed);
        doc! {
            "currentOpen": open,
            "currentActive": 0_i64,
            "currentInactive": open,
            "totalStarted": of(&self.started),
            "totalCommitted": of(&self.committed),
            "totalAborted": of(&self.aborted),
            "totalContactedParticipants": of(&self.contacted_participants),
            "commitTypes": {
                "noShards": self.no_shards.to_doc(),
                "singleShard": self.single_shard.to_doc(),
                "singleWriteShard": self.single_write_shard.to_doc(),
                "readOnly": self.read_only.to_doc(),
                "twoPhaseCommit": self.two_phase.to_doc(),
                "recoverWithToken": self.with_token.to_doc(),
            },
        }
    }
}
