//! Clients' connections: accept, read messages, dispatch, write replies; who is connected; when to stop.

mod client;
mod listener;
mod proxy;
mod registry;
mod topology;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::op::ClientInfo;

pub use listener::Listener;
pub use registry::Connections;
pub use topology::{Change, Topology};

/// What the router keeps for one client connection.
#[derive(Debug, Default)]
pub struct ConnState {
    pub info: Arc<ClientInfo>,
    /// A hello was answered: the next one may not bring client metadata.
    pub greeted: AtomicBool,
    /// A request is being served.
    pub busy: AtomicBool,
    /// It came in through a load balancer.
    pub balanced: bool,
    /// The connection streams hello replies.
    pub streams_hello: AtomicBool,
}

impl ConnState {
    pub fn new(info: ClientInfo, balanced: bool) -> Self {
        ConnState { info: Arc::new(info), balanced, ..Self::default() }
    }
}
