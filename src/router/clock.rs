//! The cluster's logical time as this router has seen it. Every reply carries `$clusterTime` and
//! `operationTime`, or neither while no shard has told the router a time yet.

use std::sync::atomic::{AtomicU64, Ordering};

use bson::raw::RawBsonRef;
use bson::{RawDocument, RawDocumentBuf, Timestamp, cstr};
use parking_lot::RwLock;

use crate::bsonx;
use crate::command::Reply;
use crate::op::OpContext;
use crate::shard::ShardReply;

/// Packs a timestamp so that packed values order as timestamps do.
pub fn pack(ts: Timestamp) -> u64 {
    (u64::from(ts.time) << 32) | u64::from(ts.increment)
}

pub fn unpack(packed: u64) -> Timestamp {
    Timestamp { time: (packed >> 32) as u32, increment: packed as u32 }
}

/// The `operationTime` of a shard's reply, packed; 0 where it has none.
pub fn operation_time(reply: &RawDocument) -> u64 {
    match bsonx::get(reply, "operationTime") {
        Some(RawBsonRef::Timestamp(time)) => pack(time),
        _ => 0,
    }
}

/// The newest `$clusterTime` seen, kept as the document it came in (with its signature).
#[derive(Debug, Default)]
pub struct ClusterClock {
    newest: AtomicU64,
    document: RwLock<Option<RawDocumentBuf>>,
}

impl ClusterClock {
    /// Learns from a shard's reply; the operation's own `operationTime` becomes the maximum it saw. Gives the reply's
    /// `operationTime`, 0 where it has none.
    pub fn observe(&self, op: &OpContext, reply: &ShardReply) -> u64 {
        if let Some(time) = reply.cluster_time() {
            self.advance(time);
        }
        let operation_time = reply.operation_time();
        op.record.operation_time.fetch_max(operation_time, Ordering::Relaxed);
        operation_time
    }

    fn advance(&self, doc: &RawDocument) {
        let Some(RawBsonRef::Timestamp(ts)) = bsonx::get(doc, "clusterTime") else { return };
        let packed = pack(ts);
        if packed <= self.newest.load(Ordering::Acquire) {
            return;
        }
        let mut slot = self.document.write();
        if self.newest.fetch_max(packed, Ordering::AcqRel) < packed {
            *slot = Some(doc.to_owned());
        }
    }

    /// The newest `$clusterTime` document, if any was seen.
    pub fn document(&self) -> Option<RawDocumentBuf> {
        self.document.read().clone()
    }

    /// The newest cluster time; zero before any was seen.
    pub fn newest(&self) -> Timestamp {
        unpack(self.newest.load(Ordering::Acquire))
    }

    /// Adds the two times to a reply that does not carry them. A reply that came from one shard does and is
    /// passed on untouched.
    pub fn finish(&self, op: Option<&OpContext>, reply: Reply) -> Reply {
        if reply.passed || bsonx::find(&reply.body, "$clusterTime").is_some() {
            return reply;
        }
        let guard = self.document.read();
        let Some(cluster_time) = guard.as_ref() else { return reply };
        let seen = op.map_or(0, |op| op.record.operation_time.load(Ordering::Relaxed));
        let operation_time = if seen == 0 { self.newest() } else { unpack(seen) };
        let mut bytes = Vec::with_capacity(reply.body.len() + cluster_time.as_bytes().len() + 48);
        bytes.extend_from_slice(&reply.body);
        let Ok(mut doc) = RawDocumentBuf::from_bytes(bytes) else { return reply.clone() };
        doc.append(cstr!("$clusterTime"), cluster_time.clone());
        doc.append(cstr!("operationTime"), operation_time);
        Reply { body: bytes::Bytes::from(doc.into_bytes()), ..reply }
    }
}
