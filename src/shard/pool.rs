//! The connections to one member: bounded, first come first served, the most recently used one first.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::error::{Code, Error, Retry};
use crate::op::OpContext;

use super::ServerId;
use super::conn::{Connection, Interrupt};
use super::connect::Connector;
use super::stop::Stopper;

/// The numbers a pool keeps to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSettings {
    /// Connections kept open even when nobody needs them.
    pub min_size: usize,
    pub max_size: usize,
    /// Connections being established at one time.
    pub max_connecting: usize,
    /// An unused connection is closed after this long.
    pub idle_timeout: Duration,
    /// The server is asked on an unused connection this often whether it is still there.
    pub refresh_requirement: Duration,
    /// How long an operation waits for a connection (407 afterwards), and a refreshed connection for its answer.
    pub refresh_timeout: Duration,
}

/// What a pool holds at one moment, for `connPoolStats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    pub in_use: usize,
    pub available: usize,
    /// Connections made since the pool exists.
    pub created: u64,
    /// Connections being established or asked whether they are still good.
    pub refreshing: usize,
    pub waiting: usize,
    /// How often the pool was cleared.
    pub cleared: u64,
}

pub struct Pool {
    pub server: ServerId,
    pub settings: PoolSettings,
    pub connector: Arc<Connector>,
    inner: Mutex<Inner>,
    /// Connections given out: what choosing between members compares.
    in_use: AtomicUsize,
    created: AtomicU64,
    pub stopper: Stopper,
}

#[derive(Default)]
struct Inner {
    /// The most recently used one is last.
    idle: Vec<Connection>,
    /// Connections that exist or are being made.
    total: usize,
    connecting: usize,
    refreshing: usize,
    waiters: VecDeque<oneshot::Sender<Grant>>,
    /// Connections of an earlier generation are closed when they come back.
    generation: u64,
    live: HashMap<u64, Arc<Interrupt>>,
    next_number: u64,
    closed: bool,
    cleared: u64,
}

/// What a waiter is given.
type Grant = Result<Pooled, NoConnection>;

/// A connection of a pool; goes back to it when dropped. One whose reply is still awaited goes to the [`Stopper`].
pub struct Pooled {
    conn: Option<Connection>,
    pool: Arc<Pool>,
}

impl Pooled {
    /// The connection; `None` only while being dropped.
    pub fn get(&mut self) -> Option<&mut Connection> {
        self.conn.as_mut()
    }

    pub fn generation(&self) -> u64 {
        self.conn.as_ref().map_or(0, |c| c.generation)
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let Some(conn) = self.conn.take() else { return };
        self.pool.in_use.fetch_sub(1, Ordering::Relaxed);
        if conn.is_clean() {
            self.pool.put(conn);
        } else if conn.is_awaiting() {
            self.pool.stopper.stop(&self.pool, conn);
        } else {
            self.pool.discard(conn);
        }
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub enum NoConnection {
    /// The server cannot be reached; seen in this generation of the pool.
    Unreachable { error: Error, generation: u64 },
    /// The pool was cleared meanwhile.
    Cleared(Error),
    /// Another try would end the same way: the operation's end, a full pool (407), a wrong key.
    Refused(Error),
}

impl Pool {
    pub fn new(server: ServerId, settings: PoolSettings, connector: Arc<Connector>) -> Arc<Self> {
        Arc::new(Pool {
            server,
            settings,
            connector,
            inner: Mutex::default(),
            in_use: AtomicUsize::new(0),
            created: AtomicU64::new(0),
            stopper: Stopper::default(),
        })
    }

    /// A connection nobody else uses. Where there is none, nothing was sent.
    pub async fn check_out(self: &Arc<Self>, op: &OpContext) -> Result<Pooled, NoConnection> {
        match self.take() {
            Taken::Idle(conn) => Ok(self.give(conn)),
            Taken::Wait(place) => Box::pin(self.wait(op, place)).await,
        }
    }

    fn give(self: &Arc<Self>, conn: Connection) -> Pooled {
        self.in_use.fetch_add(1, Ordering::Relaxed);
        Pooled { conn: Some(conn), pool: self.clone() }
    }

    /// An idle connection that is still open, else a place in the queue.
    fn take(self: &Arc<Self>) -> Taken {
        let mut dead: SmallVec<[Connection; 4]> = SmallVec::new();
        let mut inner = self.inner.lock();
        if inner.waiters.is_empty() {
            while let Some(conn) = inner.idle.pop() {
                if !conn.is_dead() {
                    return Taken::Idle(conn);
                }
                inner.forget(&conn);
                // Closed after the lock is released.
                dead.push(conn);
            }
        }
        let (sender, place) = oneshot::channel();
        // In a closed pool nothing will ever be given: the sender is dropped and the wait ends at once.
        if !inner.closed {
            inner.waiters.push_back(sender);
            self.connect_more(&mut inner);
        }
        Taken::Wait(place)
    }

    /// Begins to make a connection for each waiter, as far as the bounds allow. Connections are made in tasks of their
    /// own: who asked may be served by one that comes back earlier, and one that nobody waits for any more is kept.
    fn connect_more(self: &Arc<Self>, inner: &mut Inner) {
        while inner.connecting < inner.waiters.len() && self.reserve(inner) {
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn(self.clone().establish(inner.generation))),
                Err(_) => return inner.release(),
            }
        }
    }

    /// Counts a connection to be made, if the bounds allow one more.
    fn reserve(&self, inner: &mut Inner) -> bool {
        let settings = &self.settings;
        if inner.closed || inner.total >= settings.max_size || inner.connecting >= settings.max_connecting.max(1) {
            return false;
        }
        inner.total += 1;
        inner.connecting += 1;
        true
    }

    /// Makes a connection that was counted, and gives it (or the failure) to the first waiter.
    async fn establish(self: Arc<Self>, generation: u64) {
        let made = self.connector.connect(&self.server).await;
        let mut inner = self.inner.lock();
        let stale = inner.generation != generation || inner.closed;
        match made {
            Ok(mut conn) if !stale => {
                inner.connecting -= 1;
                self.created.fetch_add(1, Ordering::Relaxed);
                inner.next_number += 1;
                conn.number = inner.next_number;
                conn.generation = generation;
                inner.live.insert(conn.number, conn.interrupt.clone());
                self.hand_over(&mut inner, conn);
            }
            Ok(conn) => {
                inner.release();
                self.connect_more(&mut inner);
                drop(inner);
                drop(conn);
                return;
            }
            Err(error) => {
                inner.release();
                let failure = match error.is(Code::AuthenticationFailed) {
                    true => NoConnection::Refused(error),
                    false => NoConnection::Unreachable { error, generation },
                };
                inner.fail_first(failure);
            }
        }
        self.connect_more(&mut inner);
    }

    async fn wait(&self, op: &OpContext, place: oneshot::Receiver<Grant>) -> Grant {
        let limit = self.settings.refresh_timeout;
        let patience = op.remaining().map_or(limit, |r| r.min(limit));
        tokio::select! {
            granted = place => granted.unwrap_or_else(|_| Err(self.cleared_error())),
            () = op.cancel().cancelled() => Err(NoConnection::Refused(op.cancelled_error())),
            () = tokio::time::sleep(patience) => {
                op.check().map_err(NoConnection::Refused)?;
                Err(NoConnection::Refused(Error::new(
                    Code::PooledConnectionAcquisitionExceededTimeLimit,
                    format!(
                        "Couldn't get a connection to {} within the time limit of {}ms: all {} are in use",
                        self.server, limit.as_millis(), self.settings.max_size,
                    ),
                )
                .from_router()
                .retry(Retry::Safe)))
            }
        }
    }

    fn cleared_error(&self) -> NoConnection {
        let text = format!("The connections to {} were dropped: it does not answer", self.server);
        NoConnection::Cleared(Error::new(Code::HostUnreachable, text).from_router().retry(Retry::Safe))
    }

    /// Takes a connection back: to the first waiter, else to the idle ones.
    pub fn put(self: &Arc<Self>, conn: Connection) {
        let mut inner = self.inner.lock();
        if inner.closed || conn.generation != inner.generation {
            drop(inner);
            return self.discard(conn);
        }
        self.hand_over(&mut inner, conn);
    }

    fn hand_over(self: &Arc<Self>, inner: &mut Inner, mut conn: Connection) {
        while let Some(waiter) = inner.waiters.pop_front() {
            match waiter.send(Ok(self.give(conn))) {
                Err(Ok(mut pooled)) => {
                    // The waiter has gone. Emptied, so that dropping it does not take the lock again.
                    let Some(back) = pooled.conn.take() else { return };
                    self.in_use.fetch_sub(1, Ordering::Relaxed);
                    conn = back;
                }
                _ => return,
            }
        }
        let now = Instant::now();
        (conn.idle_since, conn.checked) = (now, now);
        inner.idle.push(conn);
    }

    /// Closes a connection.
    pub fn discard(self: &Arc<Self>, conn: Connection) {
        let mut inner = self.inner.lock();
        inner.forget(&conn);
        self.connect_more(&mut inner);
        drop(inner);
        drop(conn);
    }

    /// Closes idle connections, fails waiters, and lets those in use be closed when they come back; with `interrupt`
    /// those that wait for a reply fail at once. Does nothing if the pool was cleared since `generation`.
    pub fn clear(&self, generation: Option<u64>, interrupt: bool) {
        let mut inner = self.inner.lock();
        if generation.is_some_and(|g| g != inner.generation) {
            return;
        }
        inner.generation += 1;
        inner.cleared += 1;
        let idle = std::mem::take(&mut inner.idle);
        for conn in &idle {
            inner.forget(conn);
        }
        let waiters = std::mem::take(&mut inner.waiters);
        let awaited: Vec<_> = if interrupt { inner.live.values().cloned().collect() } else { Vec::new() };
        drop(inner);
        drop((idle, waiters));
        awaited.iter().for_each(|conn| conn.fire());
    }

    /// The same for good: no connection is made any more.
    pub fn close(&self) {
        self.inner.lock().closed = true;
        self.clear(None, false);
    }

    pub fn generation(&self) -> u64 {
        self.inner.lock().generation
    }

    /// Connections given out now.
    pub fn load(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }

    pub fn stats(&self) -> PoolStats {
        let inner = self.inner.lock();
        PoolStats {
            in_use: self.load(),
            available: inner.idle.len(),
            created: self.created.load(Ordering::Relaxed),
            refreshing: inner.connecting + inner.refreshing,
            waiting: inner.waiters.len(),
            cleared: inner.cleared,
        }
    }

    /// Closes what was idle for too long, asks on what was idle for long whether the server is still there, and makes
    /// connections up to the minimum. Called now and then for members that serve.
    pub async fn maintain(self: &Arc<Self>) {
        let settings = &self.settings;
        let now = Instant::now();
        let mut expired = Vec::new();
        let mut unchecked = Vec::new();
        {
            let mut inner = self.inner.lock();
            for conn in std::mem::take(&mut inner.idle) {
                let spare = inner.total > settings.min_size;
                if conn.is_dead() || spare && now.duration_since(conn.idle_since) >= settings.idle_timeout {
                    inner.forget(&conn);
                    expired.push(conn);
                } else if now.duration_since(conn.checked) >= settings.refresh_requirement {
                    inner.refreshing += 1;
                    unchecked.push(conn);
                } else {
                    inner.idle.push(conn);
                }
            }
        }
        drop(expired);
        for conn in unchecked {
            self.refresh(conn).await;
        }
        self.fill().await;
    }

    /// One that answers goes back to the end that is used last.
    async fn refresh(self: &Arc<Self>, mut conn: Connection) {
        let ping = crate::wire::OutMsg::from_doc(bson::rawdoc! {"ping": 1, "$db": "admin"});
        let answered = tokio::time::timeout(self.settings.refresh_timeout, conn.call(&ping)).await;
        let mut inner = self.inner.lock();
        inner.refreshing -= 1;
        let good = matches!(answered, Ok(Ok(_))) && conn.generation == inner.generation && !inner.closed;
        if good && inner.waiters.is_empty() {
            conn.checked = Instant::now();
            inner.idle.insert(0, conn);
            return;
        }
        drop(inner);
        if good { self.put(conn) } else { self.discard(conn) }
    }

    /// Makes connections up to the minimum.
    async fn fill(self: &Arc<Self>) {
        loop {
            let generation = {
                let mut inner = self.inner.lock();
                if inner.total >= self.settings.min_size || !self.reserve(&mut inner) {
                    return;
                }
                inner.generation
            };
            let before = self.created.load(Ordering::Relaxed);
            self.clone().establish(generation).await;
            // A failure is the monitor's to notice.
            if self.created.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }
}

enum Taken {
    Idle(Connection),
    Wait(oneshot::Receiver<Grant>),
}

impl Inner {
    /// A connection that was to be made is not counted any more.
    fn release(&mut self) {
        self.total -= 1;
        self.connecting -= 1;
    }

    /// Tells the first waiter that is still there why there is no connection.
    fn fail_first(&mut self, failure: NoConnection) {
        let mut failure = Err(failure);
        while let Some(waiter) = self.waiters.pop_front() {
            match waiter.send(failure) {
                Ok(()) => return,
                Err(back) => failure = back,
            }
        }
    }

    /// The connection is not counted any more.
    fn forget(&mut self, conn: &Connection) {
        if self.live.remove(&conn.number).is_some() {
            self.total -= 1;
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
