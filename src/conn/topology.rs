//! What awaitable hellos wait for: the router's own state, which changes only once, when it is about to stop.

use std::time::{Duration, Instant};

use bson::oid::ObjectId;
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, Default)]
struct State {
    counter: i64,
    /// While set, clients are told to go elsewhere; when it has passed, connections are closed.
    quiet_until: Option<Instant>,
}

/// How a wait for a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing changed before the deadline.
    None,
    /// The counter is another one now.
    Changed,
}

/// The router's `topologyVersion`.
#[derive(Debug)]
pub struct Topology {
    process_id: ObjectId,
    state: watch::Sender<State>,
}

impl Topology {
    pub fn new(process_id: ObjectId) -> Self {
        Topology { process_id, state: watch::Sender::new(State::default()) }
    }

    pub fn process_id(&self) -> ObjectId {
        self.process_id
    }

    pub fn counter(&self) -> i64 {
        self.state.borrow().counter
    }

    /// From now on hellos say that the router will stop in `time`; those that wait are woken.
    pub fn quiesce(&self, time: Duration) {
        self.state.send_modify(|state| {
            state.counter += 1;
            state.quiet_until = Some(Instant::now() + time);
        });
    }

    /// How long until the router stops, once [`Topology::quiesce`] was called.
    pub fn stopping_in(&self) -> Option<Duration> {
        self.state.borrow().quiet_until.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// Waits until the counter is not `counter` any more, at most for `time`. May be dropped at any time.
    pub async fn change_from(&self, counter: i64, time: Duration) -> Change {
        let mut state = self.state.subscribe();
        match tokio::time::timeout(time, state.wait_for(|s| s.counter != counter)).await {
            Ok(_) => Change::Changed,
            Err(_) => Change::None,
        }
    }
}
