//! Listening sockets.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};

use super::client::{self, Dispatcher};
use super::{ConnState, Connections};
use crate::config::Net;
use crate::error::{Code, Error, Result};
use crate::op::ClientInfo;
use crate::router::Router;

/// Connections that the kernel completes before they are accepted.
const BACKLOG: i32 = 1024;
/// A peer that is silent for this long is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(120);
/// Rest after an accept failed, as it does when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The bound addresses of a router.
pub struct Listener {
    sockets: Vec<TcpListener>,
}

impl Listener {
    /// Binds every address of `net`. With port 0 the first address chooses one, the others take the same.
    ///
    /// # Errors
    /// SocketException naming the address that cannot be resolved or bound.
    pub async fn bind(net: &Net) -> Result<Listener> {
        raise_open_files();
        let mut sockets: Vec<TcpListener> = Vec::new();
        let mut port = net.port;
        for ip in &net.bind_ips {
            let failed = |e: io::Error| {
                Error::new(Code::SocketException, format!("cannot listen on {ip}:{}: {e}", net.port)).from_router()
            };
            let found = tokio::net::lookup_host((ip.as_str(), port)).await.map_err(failed)?;
            let mut addresses: Vec<SocketAddr> = found.collect();
            // A name that stands for both kinds of address is served on IPv4, as mongos does unless told otherwise.
            if ip.parse::<std::net::IpAddr>().is_err() && addresses.iter().any(SocketAddr::is_ipv4) {
                addresses.retain(SocketAddr::is_ipv4);
            }
            for mut address in addresses {
                address.set_port(port);
                let bound = |s: &TcpListener| s.local_addr().is_ok_and(|a| a == address);
                if port != 0 && sockets.iter().any(bound) {
                    continue;
                }
                let socket = listen(address).map_err(failed)?;
                port = socket.local_addr().map_err(failed)?.port();
                sockets.push(socket);
            }
        }
        Ok(Listener { sockets })
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().filter_map(|s| s.local_addr().ok()).collect()
    }

    /// Accepts clients until the router shuts down.
    pub async fn serve(self, router: Arc<Router>) {
        let accepting = self.sockets.iter().map(|socket| accept(socket, &router));
        tokio::select! {
            () = router.shutdown.cancelled() => {}
            _ = futures_util::future::join_all(accepting) => {}
        }
    }
}

/// Lets the process open as many files as the system allows it: each connection is one.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, limit = ?limit.current, "cannot raise the limit of open files; clients may be turned away");
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

async fn accept(socket: &TcpListener, router: &Arc<Router>) {
    loop {
        match socket.accept().await {
            Ok((stream, peer)) => admit(router, stream, peer),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Starts serving a connection, unless there are too many.
fn admit(router: &Arc<Router>, stream: TcpStream, peer: SocketAddr) {
    let connections: &Arc<Connections> = &router.connections;
    let quiet = router.parameters.read().bool("quiet") || router.config.log.quiet;
    if connections.len() >= router.config.net.max_incoming_connections {
        router.stats.connections.rejected.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            id = 22942,
            ctx = "listener",
            remote = %peer,
            "Connection refused because there are too many open connections; raise net.maxIncomingConnections"
        );
        return;
    }
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(&stream)
        .set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(Duration::from_secs(10)));
    let id = connections.next_id();
    let info = ClientInfo { connection_id: id, address: peer.to_string(), ..ClientInfo::default() };
    let state = Arc::new(ConnState::new(info));
    let registered = connections.add(state.clone());
    let set_task = registered.handle();
    router.stats.connections.opened();
    if !quiet {
        tracing::info!(id = 22943, ctx = "listener", remote = %peer, connectionId = id, connectionCount = connections.len(), "Connection accepted");
    }
    let router = router.clone();
    let task = tokio::spawn(async move {
        let _open = Open { router: router.clone(), state: state.clone(), quiet, _registered: registered };
        client::serve(&Dispatcher { router, state: state.clone() }, &state, stream).await;
    });
    set_task(task.abort_handle());
}

/// Accounts for a connection's end, however it comes about.
struct Open {
    router: Arc<Router>,
    state: Arc<ConnState>,
    quiet: bool,
    _registered: super::registry::Registered,
}

impl Drop for Open {
    fn drop(&mut self) {
        let stats = &self.router.stats.connections;
        stats.closed();
        if self.state.streams_hello.load(Ordering::Relaxed) {
            stats.exhaust_hello.fetch_sub(1, Ordering::Relaxed);
        }
        if !self.quiet {
            let count = self.router.connections.len().saturating_sub(1);
            let info = &self.state.info;
            tracing::info!(id = 22944, conn = info.connection_id, remote = %info.address, connectionCount = count, "Connection ended");
        }
    }
}
