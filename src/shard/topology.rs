//! The live picture of one replica set: what the monitors learn and operations notice, and who waits for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use rand::RngExt;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::error::{Code, Error, Result, Retry};
use crate::op::OpContext;

use super::connect::Connector;
use super::hello::{ServerDescription, ServerKind, TopologyVersion};
use super::pool::Pool;
use super::registry::ShardSettings;
use super::sdam::{HostString, SetDescription};
use super::{ReadPreference, ServerId, ShardId, monitor, select};

/// How often unused connections are looked after.
const MAINTENANCE: Duration = Duration::from_secs(10);

/// One member: its pool and its monitor's bell.
pub struct Member {
    pub address: ServerId,
    pub pool: Arc<Pool>,
    /// Asks the monitor to look again at once.
    pub check: Notify,
    /// Another primary took over without this one saying so: it may be out of reach, and gets little time to answer.
    pub doubted: AtomicBool,
    /// Commands sent.
    pub sent: AtomicU64,
    gone: CancellationToken,
}

impl Member {
    /// Ends when the member is no longer part of the set.
    pub fn gone(&self) -> &CancellationToken {
        &self.gone
    }
}

/// What operations choose from: one immutable picture.
pub struct State {
    pub set: SetDescription,
    pub members: HashMap<ServerId, Arc<Member>>,
    primary: Option<Arc<Member>>,
}

pub struct Topology {
    pub shard: ShardId,
    pub settings: Arc<ShardSettings>,
    pub connector: Arc<Connector>,
    state: ArcSwap<State>,
    /// Held while a new picture is made.
    update: Mutex<()>,
    /// Counts changes of roles and membership.
    changed: watch::Sender<u64>,
    /// Counts changes of the connection string over all shards.
    hosts_changed: watch::Sender<u64>,
    /// Operations that wait for a member: monitors hurry while there are any.
    waiting: AtomicUsize,
    closed: CancellationToken,
}

impl Topology {
    /// Starts watching the members named in `host`.
    pub fn start(
        shard: ShardId,
        host: &HostString,
        settings: Arc<ShardSettings>,
        connector: Arc<Connector>,
        hosts_changed: watch::Sender<u64>,
    ) -> Arc<Self> {
        let state = State { set: SetDescription::new(host), members: HashMap::new(), primary: None };
        let topology = Arc::new(Topology {
            shard,
            settings,
            connector,
            state: ArcSwap::from_pointee(state),
            update: Mutex::new(()),
            changed: watch::Sender::new(0),
            hosts_changed,
            waiting: AtomicUsize::new(0),
            closed: CancellationToken::new(),
        });
        topology.replace(SetDescription::new(host));
        tokio::spawn(maintain(Arc::downgrade(&topology), topology.closed.clone()));
        topology
    }

    /// Stops watching and closes all connections.
    pub fn close(&self) {
        self.closed.cancel();
        let _held = self.update.lock();
        for member in self.state.load().members.values() {
            member.gone.cancel();
            member.pool.close();
        }
        self.changed.send_modify(|n| *n += 1);
    }

    pub fn state(&self) -> Guard<Arc<State>> {
        self.state.load()
    }

    pub fn member(&self, server: &str) -> Option<Arc<Member>> {
        self.state.load().members.get(server).cloned()
    }

    /// Whether somebody waits for a member to become suitable.
    pub fn hurried(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Takes in what was learned of a member.
    pub fn learn(self: &Arc<Self>, news: ServerDescription) {
        let _held = self.update.lock();
        let next = self.state.load().set.apply(news);
        self.replace(next);
    }

    /// Makes `set` the current picture: members come and go, waiters look again. Call with `update` held.
    fn replace(self: &Arc<Self>, set: SetDescription) {
        let old = self.state.load_full();
        let mut members = HashMap::with_capacity(set.servers.len());
        let mut new = Vec::new();
        for address in set.servers.keys() {
            let member = old.members.get(address).cloned().unwrap_or_else(|| {
                let member = self.new_member(address);
                new.push(member.clone());
                member
            });
            members.insert(address.clone(), member);
        }
        let primary = set.primary().and_then(|s| members.get(&s.address).cloned());
        let roles_changed = !same_roles(&old.set, &set);
        let hosts_changed = old.set.host_string() != set.host_string();
        self.state.store(Arc::new(State { set, members, primary }));
        let state = self.state.load();
        for (address, member) in &old.members {
            if !state.members.contains_key(address) {
                member.gone.cancel();
                member.pool.close();
            }
        }
        for member in new {
            if self.closed.is_cancelled() {
                member.pool.close();
            } else {
                tokio::spawn(monitor::watch(Arc::downgrade(self), member));
            }
        }
        // A primary that another one replaced may be out of reach: requests on it should not hang for long.
        let was_primary = |a: &ServerId| old.set.servers.get(a).is_some_and(|s| s.kind == ServerKind::Primary);
        for server in state.set.servers.values().filter(|s| s.kind == ServerKind::Unknown && was_primary(&s.address)) {
            if let Some(member) = state.members.get(&server.address) {
                let replaced = state.primary.is_some();
                member.doubted.store(replaced, Ordering::Relaxed);
                member.check.notify_one();
            }
        }
        let name = |p: &Option<Arc<Member>>| p.as_ref().map(|m| m.address.clone());
        if name(&old.primary) != name(&state.primary) {
            let primary = name(&state.primary);
            tracing::info!(
                shard = &*self.shard,
                primary = primary.as_deref().unwrap_or("none"),
                "the shard's primary changed"
            );
        }
        // A waiter may wait for a member that lags to catch up: any news of it may be what it waits for.
        if roles_changed || hosts_changed || self.waiting.load(Ordering::Relaxed) > 0 {
            self.changed.send_modify(|n| *n += 1);
        }
        if hosts_changed {
            self.hosts_changed.send_modify(|n| *n += 1);
        }
    }

    fn new_member(&self, address: &ServerId) -> Arc<Member> {
        Arc::new(Member {
            address: address.clone(),
            pool: Pool::new(address.clone(), self.settings.pool_settings(), self.connector.clone()),
            check: Notify::new(),
            doubted: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            gone: self.closed.child_token(),
        })
    }

    /// Adds addresses to look at while no member is known to serve: another router may have seen the set move.
    pub fn add_seeds(self: &Arc<Self>, host: &HostString) {
        let _held = self.update.lock();
        let mut set = self.state.load().set.clone();
        if set.servers.values().any(|s| s.serves()) || host.hosts.iter().all(|h| set.servers.contains_key(h)) {
            return;
        }
        for address in &host.hosts {
            let unknown = || Arc::new(ServerDescription::unknown(address.clone(), None));
            set.servers.entry(address.clone()).or_insert_with(unknown);
        }
        self.replace(set);
    }

    /// A member cannot be reached: it is unknown until its monitor reaches it again, and its connections are dropped.
    /// With `generation`, nothing happens if that was noticed already.
    pub fn mark_unreachable(self: &Arc<Self>, member: &Member, generation: Option<u64>, error: &Error, silent: bool) {
        if generation.is_some_and(|g| g != member.pool.generation()) {
            return;
        }
        self.learn(ServerDescription::unknown(member.address.clone(), Some(error.clone())));
        member.pool.clear(generation, silent);
        member.check.notify_one();
    }

    /// A member said that it is not (or no longer) what it was taken for. Nothing happens if newer news of it are known.
    pub fn mark_changed(
        self: &Arc<Self>,
        member: &Member,
        generation: u64,
        version: Option<TopologyVersion>,
        error: &Error,
        stopping: bool,
    ) {
        if generation != member.pool.generation() {
            return;
        }
        if let (Some(v), Some(known)) =
            (&version, self.state.load().set.servers.get(&member.address).and_then(|s| s.topology_version))
            && v.process_id == known.process_id
            && v.counter <= known.counter
        {
            return;
        }
        let mut news = ServerDescription::unknown(member.address.clone(), Some(error.clone()));
        news.topology_version = version;
        self.learn(news);
        if stopping {
            member.pool.clear(Some(generation), false);
        }
        member.check.notify_one();
    }

    /// The member that may serve `pref` and has the least to do, waiting for one if need be.
    ///
    /// # Errors
    /// FailedToSatisfyReadPreference (133) after the selection timeout; what `op` ends with before.
    pub async fn select(&self, op: &OpContext, pref: &ReadPreference) -> Result<Arc<Member>> {
        if let Some(member) = self.choose(pref) {
            return Ok(member);
        }
        let _waiting = Waiting::new(&self.waiting);
        Box::pin(self.wait_for(op, pref)).await
    }

    async fn wait_for(&self, op: &OpContext, pref: &ReadPreference) -> Result<Arc<Member>> {
        let mut changes = self.changed.subscribe();
        let limit = self.settings.pool.server_selection_timeout;
        let end = Instant::now() + op.remaining().map_or(limit, |r| r.min(limit));
        loop {
            op.check()?;
            if let Some(member) = self.choose(pref) {
                return Ok(member);
            }
            if self.closed.is_cancelled() {
                return Err(Error::new(Code::ShardNotFound, format!("Shard {} was removed", self.shard)).from_router());
            }
            self.state.load().members.values().for_each(|m| m.check.notify_one());
            tokio::select! {
                _ = changes.changed() => {}
                () = op.cancel().cancelled() => {}
                () = tokio::time::sleep_until(end.into()) => {
                    op.check()?;
                    return Err(self.unsatisfied(pref));
                }
            }
        }
    }

    fn unsatisfied(&self, pref: &ReadPreference) -> Error {
        let state = self.state.load();
        let name = state.set.set_name.as_deref().unwrap_or(&self.shard);
        let reasons: Vec<String> = state
            .set
            .servers
            .values()
            .map(|s| match &s.error {
                Some(error) => format!("{}: {}", s.address, error.message()),
                None => format!("{}: {:?}", s.address, s.kind),
            })
            .collect();
        Error::new(
            Code::FailedToSatisfyReadPreference,
            format!("Could not find host matching read preference {pref} for set {name}"),
        )
        .from_router()
        .because(reasons.join("; "))
        .retry(Retry::Safe)
    }

    /// The primary, or the less busy of two suitable members taken at random.
    fn choose(&self, pref: &ReadPreference) -> Option<Arc<Member>> {
        let state = self.state.load();
        if pref.is_primary() && state.set.set_name.is_some() {
            return state.primary.clone();
        }
        let pool = &self.settings.pool;
        let found = select::suitable(&state.set, pref, self.settings.local_threshold, pool.heartbeat_interval);
        let member = |i: usize| found.get(i).and_then(|s| state.members.get(&s.address));
        match found.len() {
            0 | 1 => member(0).cloned(),
            n => {
                let first = rand::rng().random_range(0..n);
                let second = (first + rand::rng().random_range(1..n)) % n;
                let (a, b) = (member(first)?, member(second)?);
                Some(if a.pool.load() <= b.pool.load() { a.clone() } else { b.clone() })
            }
        }
    }
}

fn same_roles(a: &SetDescription, b: &SetDescription) -> bool {
    a.servers.len() == b.servers.len()
        && a.servers.iter().all(|(k, s)| b.servers.get(k).is_some_and(|other| s.same_role(other)))
}

/// Counts down again when dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Looks after the pools of members that serve.
async fn maintain(topology: std::sync::Weak<Topology>, closed: CancellationToken) {
    loop {
        tokio::select! {
            () = closed.cancelled() => return,
            () = tokio::time::sleep(MAINTENANCE) => {}
        }
        let Some(topology) = topology.upgrade() else { return };
        let state = topology.state.load_full();
        drop(topology);
        let serving = state.set.servers.values().filter(|s| s.kind != ServerKind::Unknown && s.serves());
        for member in serving.filter_map(|s| state.members.get(&s.address)) {
            member.pool.maintain().await;
        }
    }
}
