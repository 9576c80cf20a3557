//! Cursors open on shards' servers.

use std::sync::Arc;

use bson::{RawArrayBuf, cstr, rawdoc};

use tokio_util::task::TaskTracker;

use crate::catalog::model::{Namespace, ShardId};
use crate::op::OpContext;
use crate::shard::{ServerId, ShardRegistry};
use crate::wire::OutMsg;

/// How long the background task that kills a cursor tries to.
const KILL_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// Kills cursors on shards in the background.
pub struct Killer {
    shards: Arc<ShardRegistry>,
    /// Kills under way.
    tasks: TaskTracker,
}

impl Killer {
    pub fn new(shards: Arc<ShardRegistry>) -> Arc<Self> {
        Arc::new(Killer { shards, tasks: TaskTracker::new() })
    }

    /// Asks a server to kill a cursor; does not wait. A failure leaves the cursor to the server's own timeout.
    fn kill(&self, shard: &ShardId, server: &ServerId, ns: &Namespace, id: i64) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let Ok(target) = self.shards.get(shard) else { return };
        let server = server.clone();
        let mut ids = RawArrayBuf::new();
        ids.push(id);
        let mut body = rawdoc! { "killCursors": ns.coll(), "cursors": ids };
        body.append(cstr!("$db"), ns.db());
        let kill = async move {
            let op = OpContext::background("killCursors").with_limit(KILL_LIMIT);
            if let Err(error) = target.run_on(&op, &server, &OutMsg::from_doc(body)).await {
                tracing::debug!(%server, id, %error, "could not kill a cursor on a shard; it will time out there");
            }
        };
        self.tasks.spawn_on(kill, &runtime);
    }

    /// Waits until every kill that was asked for is done.
    pub async fn settle(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl std::fmt::Debug for Killer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Killer")
    }
}

/// A cursor open on one server of a shard. Dropped, it is killed there, unless [`RemoteCursor::exhausted`] was called.
#[derive(Debug)]
pub struct RemoteCursor {
    pub shard: ShardId,
    pub server: ServerId,
    /// As the server named it in its reply.
    pub ns: Namespace,
    /// 0 once nothing is open.
    id: i64,
    killer: Arc<Killer>,
}

impl RemoteCursor {
    pub fn new(shard: ShardId, server: ServerId, ns: Namespace, id: i64, killer: Arc<Killer>) -> Self {
        RemoteCursor { shard, server, ns, id, killer }
    }

    /// The server's number for it.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// The server has closed it already.
    pub fn exhausted(mut self) {
        self.id = 0;
    }
}

impl Drop for RemoteCursor {
    fn drop(&mut self) {
        if self.id != 0 {
            self.killer.kill(&self.shard, &self.server, &self.ns, self.id);
        }
    }
}
