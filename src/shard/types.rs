//! The small types every user of the shard layer sees.

use std::sync::{Arc, LazyLock};

use bson::{RawDocument, RawDocumentBuf};
use bytes::Bytes;

use crate::bsonx;
use crate::error::{Error, Result};

use super::outcome::Facts;

pub use crate::catalog::model::ShardId;

/// One member of a shard's replica set, as `host:port` (lower case, as the set itself names it).
pub type ServerId = Arc<str>;

/// Whether a command may be sent a second time after a network error or a change of primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retryable {
    /// Never after a byte was sent.
    No,
    /// A read: sending it twice does no harm.
    Read,
    /// A write with `lsid` and `txnNumber`: the shard recognises the second one.
    Write,
}

/// A reply that arrived from a shard, whatever it says.
#[derive(Clone, Debug)]
pub struct ShardReply {
    pub shard: ShardId,
    /// The member that answered: cursors live there.
    pub server: ServerId,
    /// The whole reply document.
    pub body: Bytes,
    facts: Facts,
}

impl ShardReply {
    pub fn new(shard: ShardId, server: ServerId, body: Bytes) -> Self {
        let facts = Facts::read(&body);
        ShardReply { shard, server, body, facts }
    }

    /// With what was read from this very body.
    pub(super) fn with_facts(shard: ShardId, server: ServerId, body: Bytes, facts: Facts) -> Self {
        ShardReply { shard, server, body, facts }
    }

    /// `operationTime`, packed; 0 where there is none.
    pub fn operation_time(&self) -> u64 {
        self.facts.operation_time
    }

    /// The cluster's time as the shard tells it.
    pub fn cluster_time(&self) -> Option<&RawDocument> {
        self.facts.cluster_time(&self.body)
    }

    /// The reply as a document; an empty one if the shard sent no valid frame.
    pub fn doc(&self) -> &RawDocument {
        RawDocument::from_bytes(&self.body).unwrap_or_else(|_| empty_document())
    }

    /// Whether the command as a whole succeeded (`ok: 1`); write errors are inside such a reply.
    pub fn ok(&self) -> bool {
        self.facts.ok
    }

    /// The reply, or the error of an `ok: 0` reply.
    pub fn into_result(self) -> Result<ShardReply> {
        if self.ok() { Ok(self) } else { Err(self.error()) }
    }

    /// The documents of a cursor's batch, the first one or a further one.
    pub fn batch(&self) -> impl Iterator<Item = &RawDocument> {
        let cursor = bsonx::doc(self.doc(), "cursor");
        let batch = cursor.and_then(|c| bsonx::array(c, "firstBatch").or_else(|| bsonx::array(c, "nextBatch")));
        batch.into_iter().flat_map(|b| b.into_iter().map_while(std::result::Result::ok)).filter_map(|v| v.as_document())
    }

    /// The `ok: 0` reply as an error whose source is this shard.
    pub fn error(&self) -> Error {
        Error::from_reply(&self.shard, self.doc())
    }
}

fn empty_document() -> &'static RawDocument {
    static EMPTY: LazyLock<RawDocumentBuf> = LazyLock::new(RawDocumentBuf::new);
    &EMPTY
}
