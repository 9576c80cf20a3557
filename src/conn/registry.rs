//! The connections that are open.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use tokio::task::AbortHandle;

use super::ConnState;

#[derive(Debug)]
struct Entry {
    state: Arc<ConnState>,
    task: OnceLock<AbortHandle>,
}

/// All open client connections, by number.
#[derive(Debug, Default)]
pub struct Connections {
    open: DashMap<i64, Arc<Entry>>,
    last: AtomicI64,
    awaiting_header: AtomicUsize,
}

/// A connection that has yet to say whom it is for.
#[derive(Debug)]
pub(super) struct AwaitingHeader(Arc<Connections>);

impl Drop for AwaitingHeader {
    fn drop(&mut self) {
        self.0.awaiting_header.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Takes its connection off the list when dropped.
#[derive(Debug)]
pub(super) struct Registered {
    list: Arc<Connections>,
    id: i64,
    entry: Arc<Entry>,
}

impl Connections {
    /// A number for a new connection; the first is 1.
    pub(super) fn next_id(&self) -> i64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn add(self: &Arc<Self>, state: Arc<ConnState>) -> Registered {
        let id = state.info.connection_id;
        let entry = Arc::new(Entry { state, task: OnceLock::new() });
        self.open.insert(id, entry.clone());
        Registered { list: self.clone(), id, entry }
    }

    /// Counts a connection that waits for its PROXY header, until the result is dropped.
    pub(super) fn begin_header(self: &Arc<Self>) -> AwaitingHeader {
        self.awaiting_header.fetch_add(1, Ordering::Relaxed);
        AwaitingHeader(self.clone())
    }

    /// How many connections wait for their PROXY header.
    pub(super) fn awaiting_header(&self) -> usize {
        self.awaiting_header.load(Ordering::Relaxed)
    }

    pub fn len(&self) -> usize {
        self.open.len()
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The open connections, in no order.
    pub fn list(&self) -> Vec<Arc<ConnState>> {
        self.open.iter().map(|entry| entry.state.clone()).collect()
    }

    /// Waits until no connection is open, at most for `time`; whether that came about.
    pub async fn wait_until_empty(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        while !self.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            tokio::time::sleep(left.min(Duration::from_millis(20))).await;
        }
        true
    }

    /// Closes every connection: idle ones now, others when their request is served, but after `patience` all.
    pub async fn close_all(&self, patience: Duration) {
        let end = Instant::now() + patience;
        loop {
            let late = Instant::now() >= end;
            self.abort(|state| late || !state.busy.load(Ordering::Relaxed));
            if self.wait_until_empty(Duration::from_millis(20)).await || late {
                return;
            }
        }
    }

    fn abort(&self, which: impl Fn(&ConnState) -> bool) {
        for entry in &self.open {
            if let Some(task) = entry.task.get().filter(|_| which(&entry.state)) {
                task.abort();
            }
        }
    }
}

impl Registered {
    /// The means to end the connection from outside.
    pub(super) fn handle(&self) -> impl FnOnce(AbortHandle) + use<> {
        let entry = self.entry.clone();
        move |task| {
            let _ = entry.task.set(task);
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.list.open.remove(&self.id);
    }
}
