//! One client operation while it runs: its deadline, its cancellation, and what `currentOp` shows of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use tokio_util::sync::CancellationToken;

use crate::error::{Code, Error, Result};

/// Why an operation was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// The client's connection is gone.
    ClientDisconnect,
    /// `killOp` or `killSessions`.
    Interrupted,
    /// The router stops.
    Shutdown,
}

/// What the router knows of the client behind a connection.
#[derive(Debug, Default)]
pub struct ClientInfo {
    /// The router's number for the connection.
    pub connection_id: i64,
    /// `host:port` of the peer.
    pub address: String,
    /// The `client` document of the handshake, once it was sent.
    pub metadata: std::sync::OnceLock<bson::RawDocumentBuf>,
}

/// What one running operation looks like to `currentOp`.
#[derive(Debug)]
pub struct OpRecord {
    pub id: u32,
    pub client: Arc<ClientInfo>,
    pub started: Instant,
    pub command: &'static str,
    /// The request's body, kept by reference count only.
    pub body: bytes::Bytes,
    pub cancel: CancellationToken,
    why: parking_lot::Mutex<Option<Cancelled>>,
    /// The largest `operationTime` among the shards' replies, packed (see `router::clock`).
    pub operation_time: AtomicU64,
    /// The cluster time that its reads on shards wait for, packed; 0 for none.
    pub awaited: AtomicU64,
    pub waits: ShardWaits,
}

/// For how long an operation has waited for shards: the time while at least one command of it was under way.
/// Its commands run in one task, so relaxed counting is exact.
#[derive(Debug, Default)]
pub struct ShardWaits {
    under_way: AtomicU32,
    sent: AtomicU32,
    /// Since the operation's start, in nanoseconds.
    since: AtomicU64,
    total: AtomicU64,
}

impl ShardWaits {
    /// Commands sent to shards so far.
    pub fn sent(&self) -> u32 {
        self.sent.load(Ordering::Relaxed)
    }

    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.total.load(Ordering::Relaxed))
    }
}

/// A wait for a shard; over when dropped.
#[derive(Debug)]
pub struct Waiting<'a>(&'a OpRecord);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waits = &self.0.waits;
        if waits.under_way.fetch_sub(1, Ordering::Relaxed) == 1 {
            let now = self.0.started.elapsed().as_nanos() as u64;
            waits.total.fetch_add(now.saturating_sub(waits.since.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }
}

impl OpRecord {
    /// A command goes out to a shard.
    pub fn waiting(&self) -> Waiting<'_> {
        self.waits.sent.fetch_add(1, Ordering::Relaxed);
        if self.waits.under_way.fetch_add(1, Ordering::Relaxed) == 0 {
            self.waits.since.store(self.started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        Waiting(self)
    }

    /// Stops the operation; the first reason given stands.
    pub fn kill(&self, why: Cancelled) {
        self.why.lock().get_or_insert(why);
        self.cancel.cancel();
    }
}

/// The context handed down with every operation. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OpContext {
    pub record: Arc<OpRecord>,
    /// When `maxTimeMS` runs out.
    pub deadline: Option<Instant>,
}

impl OpContext {
    /// A context for the router's own background work: never cancelled from outside.
    pub fn background(command: &'static str) -> Self {
        OpContext {
            record: Arc::new(OpRecord {
                id: 0,
                client: Arc::new(ClientInfo::default()),
                started: Instant::now(),
                command,
                body: bytes::Bytes::new(),
                cancel: CancellationToken::new(),
                why: parking_lot::Mutex::new(None),
                operation_time: AtomicU64::new(0),
                awaited: AtomicU64::new(0),
                waits: ShardWaits::default(),
            }),
            deadline: None,
        }
    }

    pub fn id(&self) -> u32 {
        self.record.id
    }

    pub fn cancel(&self) -> &CancellationToken {
        &self.record.cancel
    }

    /// The same operation with a deadline `limit` from now, unless an earlier one stands.
    pub fn with_limit(mut self, limit: Duration) -> Self {
        let end = Instant::now() + limit;
        self.deadline = Some(self.deadline.map_or(end, |d| d.min(end)));
        self
    }

    /// Time left before the deadline; `None` without one.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|d| d.saturating_duration_since(Instant::now()))
    }

    /// The error to stop with, if the operation was cancelled or its time is up.
    pub fn check(&self) -> Result<()> {
        if self.record.cancel.is_cancelled() {
            return Err(self.cancelled_error());
        }
        match self.deadline {
            Some(d) if d <= Instant::now() => Err(Self::timeout_error()),
            _ => Ok(()),
        }
    }

    /// Ends when the operation's time is up: never without a deadline.
    pub async fn time_up(&self) {
        match self.deadline {
            Some(end) => tokio::time::sleep_until(end.into()).await,
            None => std::future::pending().await,
        }
    }

    /// Work that does not look after itself, ended by the operation's cancellation or deadline.
    ///
    /// # Errors
    /// What stopped the operation.
    pub async fn bounded<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            () = self.cancel().cancelled() => Err(self.cancelled_error()),
            () = self.time_up() => Err(Self::timeout_error()),
            done = work => Ok(done),
        }
    }

    pub fn cancelled_error(&self) -> Error {
        match *self.record.why.lock() {
            Some(Cancelled::ClientDisconnect) => {
                Error::new(Code::ClientDisconnect, "The client closed its connection").from_router()
            }
            Some(Cancelled::Shutdown) => Error::new(Code::InterruptedAtShutdown, "The router shuts down").from_router(),
            _ => Error::new(Code::Interrupted, "operation was interrupted").from_router(),
        }
    }

    pub fn timeout_error() -> Error {
        Error::new(Code::MaxTimeMSExpired, "operation exceeded time limit").from_router()
    }
}

/// All operations that run now, by id.
#[derive(Debug, Default)]
pub struct OpRegistry {
    running: DashMap<u32, Arc<OpRecord>, foldhash::fast::RandomState>,
    next: AtomicU32,
}

impl OpRegistry {
    /// Registers an operation; it is listed until the returned guard is dropped.
    pub fn start(
        self: &Arc<Self>,
        client: Arc<ClientInfo>,
        command: &'static str,
        body: bytes::Bytes,
        deadline: Option<Instant>,
    ) -> (OpContext, OpGuard) {
        let id = self.next.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let record = Arc::new(OpRecord {
            id,
            client,
            started: Instant::now(),
            command,
            body,
            cancel: CancellationToken::new(),
            why: parking_lot::Mutex::new(None),
            operation_time: AtomicU64::new(0),
            awaited: AtomicU64::new(0),
            waits: ShardWaits::default(),
        });
        self.running.insert(id, record.clone());
        let guard = OpGuard { registry: self.clone(), id };
        (OpContext { record, deadline }, guard)
    }

    /// Stops operation `id`; false if no such operation runs.
    pub fn kill(&self, id: u32) -> bool {
        let found = self.running.get(&id).map(|r| r.clone());
        if let Some(record) = &found {
            record.kill(Cancelled::Interrupted);
        }
        found.is_some()
    }

    /// How many operations run now.
    pub fn len(&self) -> usize {
        self.running.len()
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// The operations that run now, in no order.
    pub fn list(&self) -> Vec<Arc<OpRecord>> {
        self.running.iter().map(|r| r.value().clone()).collect()
    }
}

/// Takes the operation off the list when dropped.
#[derive(Debug)]
pub struct OpGuard {
    registry: Arc<OpRegistry>,
    id: u32,
}

impl Drop for OpGuard {
    fn drop(&mut self) {
        self.registry.running.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_that_overlap_count_once() {
        let op = OpContext::background("test");
        let pause = Duration::from_millis(20);
        let (first, second) = (op.record.waiting(), op.record.waiting());
        tokio::time::sleep(pause).await;
        drop(first);
        assert_eq!(op.record.waits.total(), Duration::ZERO);
        drop(second);
        let total = op.record.waits.total();
        assert!(total >= pause && total < op.record.started.elapsed() + pause, "{total:?}");
        assert_eq!(op.record.waits.sent(), 2);
    }
}
