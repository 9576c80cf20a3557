//! The cursors that clients hold open on this router.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dashmap::DashMap;
use parking_lot::Mutex;

use super::lifespan::Lifespans;
use super::{Cursor, Killer};
use crate::error::{Code, Error, Result};
use crate::op::{Cancelled, OpRecord};
use crate::session::SessionId;
use crate::shard::ShardRegistry;

/// The facts of a cursor that stay the same.
#[derive(Clone, Debug)]
pub struct NewCursor {
    /// `db.collection`, or `db.$cmd.aggregate`; getMore must name the same.
    pub ns: Arc<str>,
    /// The session it was opened in; getMore must come in the same one.
    pub session: Option<SessionId>,
    /// The connection it ends with: that of a client behind a load balancer, which cannot come back to this router.
    pub connection: Option<i64>,
    /// Not closed for being idle.
    pub no_timeout: bool,
    /// getMore waits for data, and `maxTimeMS` says how long.
    pub await_data: bool,
    /// The catalog version it reads by.
    pub snapshot_version: u64,
    /// The command that opened it, as `$currentOp` shows it.
    pub command: Bytes,
    /// What is left of the command's `maxTimeMS` for the getMores to come.
    pub time_left: Option<Duration>,
}

#[derive(Debug)]
struct Entry {
    facts: NewCursor,
    created: Instant,
    single_target: bool,
    /// A getMore came for it.
    used: AtomicBool,
    totals: Arc<Totals>,
    state: Mutex<State>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.totals.lifespans.record(self.created.elapsed());
    }
}

/// Counted since the start.
#[derive(Debug, Default)]
struct Totals {
    opened: AtomicU64,
    timed_out: AtomicU64,
    more_than_one_batch: AtomicU64,
    lifespans: Lifespans,
}

#[derive(Debug)]
enum State {
    Idle { cursor: Cursor, last_used: Instant, time_left: Option<Duration> },
    InUse(Arc<OpRecord>),
    Killed,
}

/// Numbers for `serverStatus.metrics.cursor`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CursorStats {
    pub open: u64,
    /// In use by a getMore right now.
    pub pinned: u64,
    pub no_timeout: u64,
    /// Over one shard, and over several.
    pub single_target: u64,
    pub multi_target: u64,
    /// Closed for being idle, since the start.
    pub timed_out: u64,
    /// Opened since the start.
    pub total_opened: u64,
    /// Of those, the ones a getMore came for.
    pub more_than_one_batch: u64,
    /// How long the closed ones lived: name of the span, and number.
    pub lifespans: Vec<(&'static str, u64)>,
}

/// One idle cursor, for `$currentOp` with `idleCursors`.
#[derive(Clone, Debug)]
pub struct CursorView {
    pub id: i64,
    pub facts: NewCursor,
    pub created: Instant,
    pub last_used: Instant,
}

/// All cursors clients hold open on this router.
#[derive(Debug)]
pub struct CursorRegistry {
    cursors: DashMap<i64, Arc<Entry>>,
    killer: Arc<Killer>,
    totals: Arc<Totals>,
}

impl CursorRegistry {
    pub fn new(shards: Arc<ShardRegistry>) -> Arc<Self> {
        Arc::new(CursorRegistry { cursors: DashMap::new(), killer: Killer::new(shards), totals: Arc::default() })
    }

    /// For making [`super::RemoteCursor`]s.
    pub fn killer(&self) -> &Arc<Killer> {
        &self.killer
    }

    /// Keeps a cursor for the client and gives its id: random, positive, unused.
    pub fn open(&self, facts: NewCursor, cursor: Cursor) -> i64 {
        let now = Instant::now();
        let single_target = !matches!(cursor, Cursor::Merged(_));
        let time_left = facts.time_left;
        let state = Mutex::new(State::Idle { cursor, last_used: now, time_left });
        let (used, totals) = (AtomicBool::new(false), self.totals.clone());
        let entry = Arc::new(Entry { facts, created: now, single_target, used, totals, state });
        self.totals.opened.fetch_add(1, Ordering::Relaxed);
        loop {
            let id = (rand::random::<u64>() >> 1) as i64;
            if id == 0 {
                continue;
            }
            if let dashmap::Entry::Vacant(slot) = self.cursors.entry(id) {
                slot.insert(entry);
                return id;
            }
        }
    }

    /// Takes the cursor out for one getMore of `op`.
    ///
    /// # Errors
    /// CursorNotFound (43); Unauthorized (13) for another namespace; 50736–50738 for another session;
    /// CursorInUse (12051).
    pub fn check_out(
        self: &Arc<Self>,
        id: i64,
        ns: &str,
        session: Option<SessionId>,
        op: &Arc<OpRecord>,
    ) -> Result<Checkout> {
        let entry = self.cursors.get(&id).map(|e| e.value().clone()).ok_or_else(|| not_found(id, ns))?;
        check_namespace(&entry.facts, ns)?;
        check_session(&entry.facts, id, session)?;
        let mut state = entry.state.lock();
        match std::mem::replace(&mut *state, State::InUse(op.clone())) {
            State::Idle { cursor, time_left, .. } => {
                drop(state);
                if !entry.used.swap(true, Ordering::Relaxed) {
                    self.totals.more_than_one_batch.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Checkout { registry: self.clone(), id, entry, cursor: Some(cursor), time_left })
            }
            other => {
                let in_use = matches!(other, State::InUse(_));
                *state = other;
                Err(match in_use {
                    true => Error::new(Code::CursorInUse, format!("cursor id {id} is already in use")),
                    false => not_found(id, ns),
                })
            }
        }
    }

    /// Closes a cursor, interrupting the getMore that uses it. False if there is none of that id.
    pub fn kill(&self, id: i64) -> bool {
        let Some((_, entry)) = self.cursors.remove(&id) else { return false };
        let state = std::mem::replace(&mut *entry.state.lock(), State::Killed);
        if let State::InUse(op) = &state {
            op.kill(Cancelled::Interrupted);
        }
        true
    }

    /// Closes every cursor opened in a session (`endSessions`, `killSessions`, expiry); gives their number.
    pub fn kill_session(&self, session: SessionId) -> usize {
        self.kill_where(|facts| facts.session == Some(session))
    }

    /// Closes every cursor whose facts fulfil `which`; gives their number.
    pub fn kill_where(&self, which: impl Fn(&NewCursor) -> bool) -> usize {
        let ids: Vec<i64> = self.cursors.iter().filter(|e| which(&e.facts)).map(|e| *e.key()).collect();
        ids.into_iter().filter(|id| self.kill(*id)).count()
    }

    /// Closes the cursors that nobody used for `timeout`. Cursors of a session live as long as it does, as on a server.
    pub fn reap(&self, timeout: Duration) -> usize {
        let now = Instant::now();
        let idle = |entry: &Entry| {
            !entry.facts.no_timeout
                && entry.facts.session.is_none()
                && matches!(&*entry.state.lock(), State::Idle { last_used, .. } if now.duration_since(*last_used) >= timeout)
        };
        let ids: Vec<i64> = self.cursors.iter().filter(|e| idle(e)).map(|e| *e.key()).collect();
        // One that was taken out meanwhile is not idle any more.
        let reaped = ids.into_iter().filter(|id| self.cursors.remove_if(id, |_, e| idle(e)).is_some()).count();
        self.totals.timed_out.fetch_add(reaped as u64, Ordering::Relaxed);
        reaped
    }

    /// Reaps until the router stops. `timeout` is asked each time: it may be changed while the router runs.
    pub async fn run_reaper(
        self: Arc<Self>,
        timeout: impl Fn() -> Duration + Send + 'static,
        stop: tokio_util::sync::CancellationToken,
    ) {
        loop {
            let limit = timeout();
            let pause = (limit / 4).clamp(Duration::from_millis(50), Duration::from_secs(1));
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            let reaped = self.reap(timeout());
            if reaped > 0 {
                tracing::info!(reaped, "closed idle cursors");
            }
        }
    }

    pub fn stats(&self) -> CursorStats {
        let mut stats = CursorStats {
            timed_out: self.totals.timed_out.load(Ordering::Relaxed),
            total_opened: self.totals.opened.load(Ordering::Relaxed),
            more_than_one_batch: self.totals.more_than_one_batch.load(Ordering::Relaxed),
            lifespans: self.totals.lifespans.counts(),
            ..CursorStats::default()
        };
        for entry in &self.cursors {
            stats.open += 1;
            stats.no_timeout += u64::from(entry.facts.no_timeout);
            stats.pinned += u64::from(matches!(&*entry.state.lock(), State::InUse(_)));
            *(if entry.single_target { &mut stats.single_target } else { &mut stats.multi_target }) += 1;
        }
        stats
    }

    /// The command that opened cursor `id`.
    pub fn command_of(&self, id: i64) -> Option<Bytes> {
        self.cursors.get(&id).map(|entry| entry.facts.command.clone())
    }

    /// The cursors that no getMore uses now.
    pub fn idle(&self) -> Vec<CursorView> {
        let view = |id: i64, entry: &Entry| match &*entry.state.lock() {
            State::Idle { last_used, .. } => {
                Some(CursorView { id, facts: entry.facts.clone(), created: entry.created, last_used: *last_used })
            }
            _ => None,
        };
        self.cursors.iter().filter_map(|e| view(*e.key(), &e)).collect()
    }

    /// The oldest catalog version an open cursor reads by: what moved after it must not be cleaned up yet.
    pub fn oldest_snapshot(&self) -> Option<u64> {
        self.cursors.iter().map(|e| e.facts.snapshot_version).min()
    }

    /// The sessions that have cursors here.
    pub fn sessions(&self) -> Vec<SessionId> {
        let mut all: Vec<SessionId> = self.cursors.iter().filter_map(|e| e.facts.session).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// A cursor taken out for one getMore. Dropped without [`Checkout::put_back`], the cursor is closed.
#[derive(Debug)]
pub struct Checkout {
    registry: Arc<CursorRegistry>,
    id: i64,
    entry: Arc<Entry>,
    cursor: Option<Cursor>,
    /// What the cursor's `maxTimeMS` leaves for this getMore and those after it.
    pub time_left: Option<Duration>,
}

impl Checkout {
    pub fn id(&self) -> i64 {
        self.id
    }

    pub fn facts(&self) -> &NewCursor {
        &self.entry.facts
    }

    /// The cursor; it must be given to [`Checkout::put_back`] to live on.
    pub fn take(&mut self) -> Option<Cursor> {
        self.cursor.take()
    }

    /// Keeps the cursor for the next getMore.
    pub fn put_back(self, cursor: Cursor, time_left: Option<Duration>) {
        let mut state = self.entry.state.lock();
        // One killed meanwhile stays closed: the cursor is dropped.
        if matches!(&*state, State::InUse(_)) {
            *state = State::Idle { cursor, last_used: Instant::now(), time_left };
        }
    }

    /// Whether `killCursors` or the like closed the cursor while it was out.
    pub fn was_killed(&self) -> bool {
        matches!(&*self.entry.state.lock(), State::Killed)
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        let in_use = matches!(&*self.entry.state.lock(), State::InUse(_));
        if in_use {
            self.registry.cursors.remove_if(&self.id, |_, e| Arc::ptr_eq(e, &self.entry));
        }
    }
}

fn not_found(id: i64, ns: &str) -> Error {
    Error::new(Code::CursorNotFound, format!("Cursor not found (namespace: '{ns}', id: {id})."))
}

fn check_namespace(facts: &NewCursor, ns: &str) -> Result<()> {
    if *facts.ns == *ns {
        return Ok(());
    }
    Err(Error::new(
        Code::Unauthorized,
        format!("Requested getMore on namespace '{ns}', but cursor belongs to a different namespace {}", facts.ns),
    ))
}

/// A cursor stays in its session: with another, with none, or with one where there was none, getMore is refused.
fn check_session(facts: &NewCursor, id: i64, session: Option<SessionId>) -> Result<()> {
    let (code, how) = match (facts.session, session) {
        (theirs, ours) if theirs == ours => return Ok(()),
        (None, Some(ours)) => (50736, format!("which was not created in a session, in session {ours:?}")),
        (Some(theirs), None) => (50737, format!("which was created in session {theirs:?}, without an lsid")),
        (Some(theirs), Some(ours)) => (50738, format!("which was created in session {theirs:?}, in session {ours:?}")),
        (None, None) => return Ok(()),
    };
    Err(Error::with_code(code, format!("Cannot run getMore on cursor {id}, {how}")))
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
