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
enum Grant {
    Connection(Pooled),
    /// The right to make a connection.
    Permit(Permit),
}

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

/// The right to make one connection, given back when dropped unused.
struct Permit {
    pool: Option<Arc<Pool>>,
    generation: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(pool) = self.pool.take() else { return };
        let mut inner = pool.inner.lock();
        inner.connecting -= 1;
        inner.total -= 1;
        pool.grant(&mut inner);
    }
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
            Taken::Permit(permit) => self.connect(permit).await,
            Taken::Wait(place) => match self.wait(op, place).await? {
                Grant::Connection(pooled) => Ok(pooled),
                Grant::Permit(permit) => self.connect(permit).await,
            },
        }
    }

    fn give(self: &Arc<Self>, conn: Connection) -> Pooled {
        self.in_use.fetch_add(1, Ordering::Relaxed);
        Pooled { conn: Some(conn), pool: self.clone() }
    }

    /// An idle connection that is still open, else the right to make one, else a place in the queue.
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
            if let Some(permit) = self.permit(&mut inner) {
                return Taken::Permit(permit);
            }
        }
        let (sender, place) = oneshot::channel();
        // In a closed pool nothing will ever be given: the sender is dropped and the wait ends at once.
        if !inner.closed {
            inner.waiters.push_back(sender);
        }
        Taken::Wait(place)
    }

    fn permit(self: &Arc<Self>, inner: &mut Inner) -> Option<Permit> {
        if inner.closed
            || inner.total >= self.settings.max_size
            || inner.connecting >= self.settings.max_connecting.max(1)
        {
            return None;
        }
        inner.total += 1;
        inner.connecting += 1;
        Some(Permit { pool: Some(self.clone()), generation: inner.generation })
    }

    async fn wait(&self, op: &OpContext, place: oneshot::Receiver<Grant>) -> Result<Grant, NoConnection> {
        let limit = self.settings.refresh_timeout;
        let patience = op.remaining().map_or(limit, |r| r.min(limit));
        tokio::select! {
            granted = place => granted.map_err(|_| self.cleared_error()),
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

    async fn connect(self: &Arc<Self>, mut permit: Permit) -> Result<Pooled, NoConnection> {
        let mut conn = match self.connector.connect(&self.server).await {
            Ok(conn) => conn,
            Err(error) if error.is(Code::AuthenticationFailed) => return Err(NoConnection::Refused(error)),
            Err(error) => return Err(NoConnection::Unreachable { error, generation: permit.generation }),
        };
        let mut inner = self.inner.lock();
        if inner.generation != permit.generation || inner.closed {
            drop(inner);
            return Err(self.cleared_error());
        }
        permit.pool = None;
        inner.connecting -= 1;
        self.created.fetch_add(1, Ordering::Relaxed);
        inner.next_number += 1;
        conn.number = inner.next_number;
        conn.generation = inner.generation;
        inner.live.insert(conn.number, conn.interrupt.clone());
        self.grant(&mut inner);
        drop(inner);
        Ok(self.give(conn))
    }

    /// Gives waiters the right to connect, as far as there is any. Call with the lock held after something got free.
    fn grant(self: &Arc<Self>, inner: &mut Inner) {
        while !inner.waiters.is_empty() {
            let Some(mut permit) = self.permit(inner) else { return };
            loop {
                let Some(waiter) = inner.waiters.pop_front() else {
                    // Dropping the permit would take the lock again.
                    permit.pool = None;
                    inner.total -= 1;
                    inner.connecting -= 1;
                    return;
                };
                match waiter.send(Grant::Permit(permit)) {
                    Ok(()) => break,
                    Err(Grant::Permit(back)) => permit = back,
                    Err(Grant::Connection(_)) => return,
                }
            }
        }
    }

    /// Takes a connection back: to the first waiter, else to the idle ones.
    pub fn put(self: &Arc<Self>, mut conn: Connection) {
        let mut inner = self.inner.lock();
        if inner.closed || conn.generation != inner.generation {
            drop(inner);
            return self.discard(conn);
        }
        while let Some(waiter) = inner.waiters.pop_front() {
            self.in_use.fetch_add(1, Ordering::Relaxed);
            match waiter.send(Grant::Connection(Pooled { conn: Some(conn), pool: self.clone() })) {
                Ok(()) => return,
                Err(Grant::Connection(mut pooled)) => {
                    self.in_use.fetch_sub(1, Ordering::Relaxed);
                    // Emptied, so that dropping it does not take the lock again.
                    match pooled.conn.take() {
                        Some(back) => conn = back,
                        None => return,
                    }
                }
                Err(Grant::Permit(_)) => return,
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
        self.grant(&mut inner);
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
            let permit = {
                let mut inner = self.inner.lock();
                if inner.total >= self.settings.min_size { None } else { self.permit(&mut inner) }
            };
            let Some(permit) = permit else { return };
            // A failure is the monitor's to notice.
            if self.connect(permit).await.is_err() {
                return;
            }
        }
    }
}

enum Taken {
    Idle(Connection),
    Permit(Permit),
    Wait(oneshot::Receiver<Grant>),
}

impl Inner {
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
