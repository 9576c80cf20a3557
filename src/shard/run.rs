//! Sending a command to a shard.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::op::OpContext;
use crate::wire::OutMsg;

use super::{ReadPreference, Retryable, ServerId, ShardId, ShardReply};

/// One shard: a replica set, its watched members and their connection pools.
pub struct Shard {
    id: ShardId,
}

impl Shard {
    pub fn id(&self) -> &ShardId {
        &self.id
    }

    /// The connection string as `config.shards` holds it: `setName/host1:port1,host2:port2`.
    pub fn host(&self) -> String {
        String::new()
    }

    /// Sends a command to a member that `pref` allows and reads its reply.
    ///
    /// `Ok` is any reply that arrived, `ok: 0` ones too; `Err` means no member could be selected or reached, the
    /// reply was lost, the deadline passed or the operation was cancelled.
    pub async fn run(
        &self,
        op: &OpContext,
        pref: &ReadPreference,
        retry: Retryable,
        msg: &OutMsg,
    ) -> Result<ShardReply> {
        let _ = (op, pref, retry, msg);
        Err(Error::internal("not there yet"))
    }

    /// Sends a command to the member `server` (getMore, killCursors).
    pub async fn run_on(&self, op: &OpContext, server: &ServerId, msg: &OutMsg) -> Result<ShardReply> {
        let _ = (op, server, msg);
        Err(Error::internal("not there yet"))
    }

    /// Sends an unacknowledged write to the primary; `msg` has to carry the `moreToCome` flag. There is no reply.
    pub async fn send_only(&self, op: &OpContext, msg: &OutMsg) -> Result<()> {
        let _ = (op, msg);
        Err(Error::internal("not there yet"))
    }
}

/// Kept until the registry makes real ones.
pub(super) fn stub(id: &str) -> Arc<Shard> {
    Arc::new(Shard { id: id.into() })
}
