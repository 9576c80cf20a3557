//! Listening sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use super::client::{self, Dispatcher};
use super::proxy::{self, Parsed};
use super::{ConnState, Connections};
use crate::config::Net;
use crate::error::{Code, Error, Result};
use crate::op::ClientInfo;
use crate::router::Router;

/// Connections that the kernel completes before they are accepted.
const BACKLOG: i32 = 1024;
/// A peer that is silent for this long is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(120);
/// How long a load balancer may take to say whom it speaks for.
const HEADER_PATIENCE: Duration = Duration::from_secs(5);
/// Rest after an accept failed, as it does when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The bound addresses of a router.
pub struct Listener {
    sockets: Vec<TcpListener>,
    /// Sockets for load balancers: each connection begins with a header of the PROXY protocol.
    balanced: Vec<TcpListener>,
}

impl Listener {
    /// Binds every address of `net`. With port 0 the first address chooses one, the others take the same.
    /// With `balancer_port`, the same addresses are served on that port for load balancers.
    ///
    /// # Errors
    /// SocketException naming the address that cannot be resolved or bound.
    pub async fn bind(net: &Net, balancer_port: Option<u16>) -> Result<Listener> {
        let sockets = bind_all(&net.bind_ips, net.port, net.ipv6).await?;
        let balanced = match balancer_port {
            Some(port) => bind_all(&net.bind_ips, port, net.ipv6).await?,
            None => Vec::new(),
        };
        Ok(Listener { sockets, balanced })
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().filter_map(|s| s.local_addr().ok()).collect()
    }

    /// Accepts clients until the router shuts down.
    pub async fn serve(self, router: Arc<Router>) {
        let direct = self.sockets.iter().map(|socket| accept(socket, &router, false));
        let balanced = self.balanced.iter().map(|socket| accept(socket, &router, true));
        tokio::select! {
            () = router.shutdown.cancelled() => {}
            _ = futures_util::future::join_all(direct.chain(balanced)) => {}
        }
    }
}

async fn bind_all(ips: &[String], mut port: u16, ipv6: bool) -> Result<Vec<TcpListener>> {
    let mut sockets: Vec<TcpListener> = Vec::new();
    for ip in ips {
        let failed = |e: io::Error| {
            Error::new(Code::SocketException, format!("cannot listen on {ip}:{port}: {e}")).from_router()
        };
        let found = tokio::net::lookup_host((ip.as_str(), port)).await.map_err(failed)?;
        let mut addresses: Vec<SocketAddr> = found.collect();
        // A name that stands for both kinds of address is served on both with net.ipv6, else on IPv4, as by mongos.
        if !ipv6 && ip.parse::<IpAddr>().is_err() && addresses.iter().any(SocketAddr::is_ipv4) {
            addresses.retain(SocketAddr::is_ipv4);
        }
        let mut chosen = port;
        for mut address in addresses {
            address.set_port(chosen);
            let bound = |s: &TcpListener| s.local_addr().is_ok_and(|a| a == address);
            if chosen != 0 && sockets.iter().any(bound) {
                continue;
            }
            let socket = listen(address).map_err(failed)?;
            chosen = socket.local_addr().map_err(failed)?.port();
            sockets.push(socket);
        }
        port = chosen;
    }
    Ok(sockets)
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

async fn accept(socket: &TcpListener, router: &Arc<Router>, balanced: bool) {
    loop {
        match socket.accept().await {
            Ok((stream, peer)) if balanced => {
                if has_room(router, peer) {
                    tokio::spawn(admit_balanced(router.clone(), stream, peer));
                }
            }
            Ok((stream, peer)) => admit(router, stream, peer, false),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Reads whom a load balancer speaks for, then serves the connection.
async fn admit_balanced(router: Arc<Router>, mut stream: TcpStream, peer: SocketAddr) {
    let waiting = router.connections.begin_header();
    let header = tokio::time::timeout(HEADER_PATIENCE, read_header(&mut stream)).await;
    drop(waiting);
    match header {
        Ok(Ok(source)) => admit(&router, stream, source.unwrap_or(peer), true),
        Ok(Err(error)) => tracing::warn!(remote = %peer, %error, "a load balancer's connection is refused"),
        Err(_) => tracing::warn!(remote = %peer, "a load balancer's connection sent no PROXY header in time"),
    }
}

/// Reads a header of the PROXY protocol and not one byte more.
async fn read_header(stream: &mut TcpStream) -> io::Result<Option<SocketAddr>> {
    let mut bytes = Vec::new();
    loop {
        match proxy::parse(&bytes) {
            Parsed::Header { source, .. } => return Ok(source),
            Parsed::Invalid => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not begin with a PROXY header"));
            }
            Parsed::More(missing) => {
                let read = bytes.len();
                bytes.resize(read + missing, 0);
                stream.read_exact(&mut bytes[read..]).await?;
            }
        }
    }
}

/// Whether one more connection may be taken; counts it as rejected if not.
fn has_room(router: &Router, peer: SocketAddr) -> bool {
    let connections = &router.connections;
    if connections.len() + connections.awaiting_header() < router.config.net.max_incoming_connections {
        return true;
    }
    router.stats.connections.rejected.fetch_add(1, Ordering::Relaxed);
    tracing::warn!(
        id = 22942,
        ctx = "listener",
        remote = %peer,
        "Connection refused because there are too many open connections; raise net.maxIncomingConnections"
    );
    false
}

/// Starts serving a connection, unless there are too many.
fn admit(router: &Arc<Router>, stream: TcpStream, peer: SocketAddr, balanced: bool) {
    let connections: &Arc<Connections> = &router.connections;
    let quiet = router.parameters.read().bool("quiet") || router.config.log.quiet;
    if !has_room(router, peer) {
        return;
    }
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(&stream)
        .set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(Duration::from_secs(10)));
    let id = connections.next_id();
    let info = ClientInfo { connection_id: id, address: peer.to_string(), ..ClientInfo::default() };
    let state = Arc::new(ConnState::new(info, balanced));
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
        if self.state.balanced {
            // As mongos does: the next connection of that client may lead to another router.
            let id = self.state.info.connection_id;
            self.router.cursors.kill_where(|cursor| cursor.connection == Some(id));
        }
        if !self.quiet {
            let count = self.router.connections.len().saturating_sub(1);
            let info = &self.state.info;
            tracing::info!(id = 22944, conn = info.connection_id, remote = %info.address, connectionCount = count, "Connection ended");
        }
    }
}
