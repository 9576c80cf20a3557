//! Clients' connections: accept, read messages, dispatch, write replies.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use crate::command::{Outcome, dispatch};
use crate::config::Net;
use crate::error::{Code, Error, Result};
use crate::op::ClientInfo;
use crate::router::Router;
use crate::wire::{self, FrameReader, Malformed, ReplyStyle};

/// What the router keeps for one client connection.
#[derive(Debug)]
pub struct ConnState {
    pub info: Arc<ClientInfo>,
}

/// The bound addresses of a router.
pub struct Listener {
    sockets: Vec<TcpListener>,
}

impl Listener {
    /// # Errors
    /// HostUnreachable-like errors naming the address that cannot be bound.
    pub async fn bind(net: &Net) -> Result<Listener> {
        let mut sockets = Vec::new();
        for ip in &net.bind_ips {
            let socket = TcpListener::bind((ip.as_str(), net.port)).await.map_err(|e| {
                Error::new(Code::SocketException, format!("cannot listen on {ip}:{}: {e}", net.port)).from_router()
            })?;
            sockets.push(socket);
        }
        Ok(Listener { sockets })
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().filter_map(|s| s.local_addr().ok()).collect()
    }

    /// Accepts clients until the router shuts down.
    pub async fn serve(self, router: Arc<Router>) {
        static NEXT: AtomicI64 = AtomicI64::new(1);
        let accepting = self.sockets.into_iter().map(|socket| {
            let router = router.clone();
            async move {
                while let Ok((stream, peer)) = socket.accept().await {
                    let info = Arc::new(ClientInfo {
                        connection_id: NEXT.fetch_add(1, Ordering::Relaxed),
                        address: peer.to_string(),
                        ..ClientInfo::default()
                    });
                    tokio::spawn(client(router.clone(), Arc::new(ConnState { info }), stream));
                }
            }
        });
        tokio::select! {
            () = router.shutdown.cancelled() => {}
            _ = futures_util::future::join_all(accepting) => {}
        }
    }
}

async fn client(router: Arc<Router>, state: Arc<ConnState>, mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut reader = FrameReader::new();
    let mut out = BytesMut::new();
    while let Ok(Some(frame)) = reader.read(&mut stream).await {
        let (id, style, body) = match wire::decode(frame) {
            Ok(message) => {
                let (id, quiet) = (message.request_id, message.unacknowledged());
                let style = ReplyStyle::for_request(&message);
                let Outcome::Reply(reply) = dispatch(&router, &state, message).await else { return };
                if quiet {
                    continue;
                }
                (id, style, reply.body)
            }
            Err(Malformed::Reply { request_id, error, .. }) => {
                (request_id, ReplyStyle::default(), error.to_reply().into_bytes().into())
            }
            Err(Malformed::Close(error)) => {
                tracing::debug!(%error, "closing a client connection");
                return;
            }
        };
        out.clear();
        wire::reply(id, id, &body, style, &mut out);
        if stream.write_all(&out).await.is_err() {
            return;
        }
    }
}
