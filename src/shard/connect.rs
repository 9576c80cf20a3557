//! Making connections to members: TCP, `hello`, and SCRAM-SHA-256 as `__system` where there is a keyFile.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use bson::spec::BinarySubtype;
use bson::{RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use bytes::Bytes;
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::bsonx;
use crate::error::{Code, Error, Result, Retry};
use crate::wire::OutMsg;

use super::ServerId;
use super::conn::{Connection, Failure};
use super::hello::{ServerDescription, ServerKind};
use super::scram::{self, SaltedPassword, ScramClient, ServerFirst};

/// A silent peer is asked whether it still lives after this long, then every `KEEPALIVE_INTERVAL`.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Salted passwords kept; each member has a salt of its own.
const MAX_SALTED: usize = 1_000;

/// The key's place in the keyFile, the salt, the iterations.
type SaltId = (usize, Vec<u8>, u32);

/// Makes connections; one for all shards of a router.
#[derive(Debug)]
pub struct Connector {
    /// The keys of the keyFile, tried in order; empty without authentication.
    keys: Vec<String>,
    timeout: Duration,
    salted: Mutex<HashMap<SaltId, SaltedPassword>>,
}

impl Connector {
    pub fn new(keys: Vec<String>, timeout: Duration) -> Self {
        Connector { keys, timeout, salted: Mutex::default() }
    }

    /// A connection that has said `hello` and, if there is a keyFile, has authenticated.
    pub async fn connect(&self, server: &ServerId) -> Result<Connection> {
        self.within(server, async {
            let (mut conn, _) = self.open(server).await?;
            self.authenticate(&mut conn).await?;
            Ok(conn)
        })
        .await
    }

    /// A connection for watching the member, which needs no authentication, and its first `hello` reply.
    pub async fn connect_monitor(&self, server: &ServerId) -> Result<(Connection, ServerDescription)> {
        self.within(server, self.open(server)).await
    }

    async fn within<T>(&self, server: &ServerId, work: impl Future<Output = Result<T>>) -> Result<T> {
        match tokio::time::timeout(self.timeout, work).await {
            Ok(done) => done,
            Err(_) => Err(unreachable_error(
                Code::NetworkTimeout,
                format!("Connecting to {server} took longer than {} ms", self.timeout.as_millis()),
            )),
        }
    }

    async fn open(&self, server: &ServerId) -> Result<(Connection, ServerDescription)> {
        let stream = dial(server).await?;
        let mut conn = Connection::new(stream, server.clone());
        let start = Instant::now();
        let reply = conn.call(&OutMsg::from_doc(first_hello())).await.map_err(|e| lost(server, &e))?;
        let reply = bsonx::view(&reply);
        conn.remote_id = bsonx::int(reply, "connectionId").unwrap_or(0);
        let mut description = ServerDescription::parse(server.clone(), reply);
        description.rtt = Some(start.elapsed());
        match description.error.take() {
            Some(error) => Err(error),
            None if description.kind == ServerKind::Mongos => {
                Err(Error::new(Code::IllegalOperation, format!("{server} is a router, not a member of a shard")))
            }
            None => Ok((conn, description)),
        }
    }

    async fn authenticate(&self, conn: &mut Connection) -> Result<()> {
        let mut outcome = Ok(());
        for (index, key) in self.keys.iter().enumerate() {
            outcome = self.authenticate_with(conn, index, key).await;
            if !outcome.as_ref().is_err_and(|e| e.is(Code::AuthenticationFailed)) {
                return outcome;
            }
        }
        outcome.map_err(|e| {
            e.context(format!(
                "{} does not accept the router's keyFile; is it the one of that replica set?",
                conn.server
            ))
        })
    }

    async fn authenticate_with(&self, conn: &mut Connection, index: usize, key: &str) -> Result<()> {
        let mut scram = ScramClient::new("__system", scram::nonce());
        let start = rawdoc! {
            "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": binary(&scram.first()),
            "options": {"skipEmptyExchange": true}, "$db": "local",
        };
        let reply = step(conn, start).await?;
        let server = scram.read_first(payload(bsonx::view(&reply))?)?;
        let salted = self.salted(index, key, &server);
        let conversation = bsonx::int(bsonx::view(&reply), "conversationId").unwrap_or(1) as i32;
        let proof = scram.finish(&server, &salted);
        let next = rawdoc! {
            "saslContinue": 1, "conversationId": conversation, "payload": binary(&proof), "$db": "local",
        };
        let mut reply = step(conn, next).await?;
        scram.verify(payload(bsonx::view(&reply))?)?;
        // Servers before 4.4 want one more, empty message.
        while bsonx::truthy(bsonx::view(&reply), "done") != Some(true) {
            let last = rawdoc! {
                "saslContinue": 1, "conversationId": conversation, "payload": binary(""), "$db": "local",
            };
            reply = step(conn, last).await?;
        }
        Ok(())
    }

    fn salted(&self, index: usize, key: &str, server: &ServerFirst) -> SaltedPassword {
        let id = (index, server.salt.clone(), server.iterations);
        if let Some(known) = self.salted.lock().get(&id) {
            return *known;
        }
        let salted = scram::salt_password(key, &server.salt, server.iterations);
        let mut cache = self.salted.lock();
        if cache.len() >= MAX_SALTED {
            cache.clear();
        }
        cache.insert(id, salted);
        salted
    }
}

async fn dial(server: &ServerId) -> Result<TcpStream> {
    let addresses: Vec<_> = match tokio::net::lookup_host(server.as_ref()).await {
        Ok(found) => found.collect(),
        Err(e) => {
            return Err(unreachable_error(Code::HostNotFound, format!("The name of {server} cannot be resolved: {e}")));
        }
    };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                tune(&stream);
                return Ok(stream);
            }
            Err(e) => last = e,
        }
    }
    Err(unreachable_error(Code::HostUnreachable, format!("Error connecting to {server} :: caused by :: {last}")))
}

/// Socket options that only make things better: their failure is no reason not to use the connection.
fn tune(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(3);
    let kept = SockRef::from(stream).set_tcp_keepalive(&keepalive);
    if let Err(error) = stream.set_nodelay(true).and(kept) {
        tracing::debug!(%error, "socket options of a shard connection could not be set");
    }
}

fn first_hello() -> RawDocumentBuf {
    rawdoc! {
        "hello": 1,
        "helloOk": true,
        "client": {
            "driver": {"name": "mosaic", "version": env!("CARGO_PKG_VERSION")},
            "os": {"type": std::env::consts::OS, "architecture": std::env::consts::ARCH},
        },
        "$db": "admin",
    }
}

async fn step(conn: &mut Connection, command: RawDocumentBuf) -> Result<Bytes> {
    let reply = conn.call(&OutMsg::from_doc(command)).await.map_err(|e| lost(&conn.server, &e))?;
    match bsonx::truthy(bsonx::view(&reply), "ok") {
        Some(true) => Ok(reply),
        _ => Err(Error::from_reply(&conn.server, bsonx::view(&reply)).from_router()),
    }
}

fn binary(text: &str) -> RawBsonRef<'_> {
    RawBsonRef::Binary(RawBinaryRef { subtype: BinarySubtype::Generic, bytes: text.as_bytes() })
}

fn payload(reply: &RawDocument) -> Result<&str> {
    let text = match bsonx::get(reply, "payload") {
        Some(RawBsonRef::Binary(b)) => std::str::from_utf8(b.bytes).ok(),
        Some(RawBsonRef::String(s)) => Some(s),
        _ => None,
    };
    text.ok_or_else(|| {
        Error::new(Code::AuthenticationFailed, "The server's SCRAM message cannot be read").from_router()
    })
}

/// The member cannot be reached: nothing of a request was sent.
pub fn unreachable_error(code: Code, message: String) -> Error {
    Error::new(code, message).from_router().retry(Retry::Safe)
}

/// The connection broke; whether the request was carried out is not known.
pub fn lost(server: &ServerId, failure: &Failure) -> Error {
    let code = match failure {
        Failure::Io(e) if e.kind() == io::ErrorKind::TimedOut => Code::NetworkTimeout,
        Failure::Interrupted => Code::NetworkTimeout,
        Failure::Protocol(_) => Code::ProtocolError,
        Failure::Io(_) => Code::HostUnreachable,
    };
    Error::new(code, format!("The connection to {server} was lost: {failure}")).from_router().retry(Retry::Unknown)
}
