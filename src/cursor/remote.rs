//! Cursors open on shards' servers.

use std::collections::HashSet;
use std::sync::Arc;

use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};

use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use super::TempCollection;
use crate::catalog::model::{Namespace, ShardId};
use crate::op::OpContext;
use crate::shard::{ServerId, ShardRegistry};
use crate::wire::OutMsg;

/// How long the background task that kills a cursor tries to.
const KILL_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// Kills cursors on shards, and drops temporary collections there, in the background.
pub struct Killer {
    shards: Arc<ShardRegistry>,
    /// What is under way.
    tasks: TaskTracker,
    /// The temporary collections that somebody needs.
    kept: Mutex<HashSet<String>>,
}

impl Killer {
    pub fn new(shards: Arc<ShardRegistry>) -> Arc<Self> {
        Arc::new(Killer { shards, tasks: TaskTracker::new(), kept: Mutex::default() })
    }

    /// Asks a server to kill a cursor; does not wait. A failure leaves the cursor to the server's own timeout.
    fn kill(&self, shard: &ShardId, server: &ServerId, ns: &Namespace, id: i64) {
        let mut ids = RawArrayBuf::new();
        ids.push(id);
        let mut body = rawdoc! { "killCursors": ns.coll(), "cursors": ids };
        body.append(cstr!("$db"), ns.db());
        self.ask(shard, server, "killCursors", body);
    }

    fn ask(&self, shard: &ShardId, server: &ServerId, command: &'static str, body: RawDocumentBuf) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let Ok(target) = self.shards.get(shard) else { return };
        let server = server.clone();
        let asked = async move {
            let op = OpContext::background(command).with_limit(KILL_LIMIT);
            if let Err(error) = target.run_on(&op, &server, &OutMsg::from_doc(body)).await {
                tracing::debug!(%server, command, %error, "could not clean up on a shard; it will be done later");
            }
        };
        self.tasks.spawn_on(asked, &runtime);
    }

    /// Somebody needs the temporary collection of this name.
    pub(super) fn keep(&self, name: &str) {
        self.kept.lock().insert(name.to_owned());
    }

    /// Whether [`Killer::keep`] was called and nobody has dropped it since.
    pub fn is_kept(&self, name: &str) -> bool {
        self.kept.lock().contains(name)
    }

    /// Drops a temporary collection; does not wait. After a failure the sweep does it.
    pub(super) fn drop_collection(&self, shard: &ShardId, server: &ServerId, name: String) {
        self.kept.lock().remove(&name);
        self.ask(shard, server, "drop", rawdoc! { "drop": name, "$db": TempCollection::DB });
    }

    /// Waits until all that was asked for is done.
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
    /// What it reads and nobody else needs.
    beneath: Vec<TempCollection>,
}

impl RemoteCursor {
    pub fn new(shard: ShardId, server: ServerId, ns: Namespace, id: i64, killer: Arc<Killer>) -> Self {
        RemoteCursor { shard, server, ns, id, killer, beneath: Vec::new() }
    }

    /// Makes these collections live as long as the cursor.
    pub fn over(mut self, beneath: Vec<TempCollection>) -> Self {
        self.beneath = beneath;
        self
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
