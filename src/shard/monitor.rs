//! Watching one member: a `hello` that the server answers when something changes, and another connection for round
//! trips and for looking at once.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bson::{RawDocumentBuf, rawdoc};
use bytes::Bytes;
use tokio::time::sleep;

use crate::bsonx;
use crate::error::{Code, Error};
use crate::wire::OutMsg;

use super::ServerId;
use super::conn::{Connection, Failure};
use super::connect::{Connector, lost, unreachable_error};
use super::hello::{ServerDescription, TopologyVersion};
use super::topology::{Member, Topology};

/// Two looks at a member that is down are at least this far apart.
const MIN_HEARTBEAT: Duration = Duration::from_millis(500);
/// The first looks after a failure come faster: most failures are short.
const FRESH_HEARTBEAT: Duration = Duration::from_millis(50);
const FRESH_LOOKS: u32 = 10;
/// A member that is down is looked at this often while nobody needs it.
const DOWN_HEARTBEAT: Duration = Duration::from_secs(2);

#[derive(Clone, Copy)]
struct Timing {
    /// Time between two looks.
    heartbeat: Duration,
    /// What an answer may take.
    answer: Duration,
}

/// What an answer of a primary may take that another one replaced.
const DOUBTED_ANSWER: Duration = Duration::from_secs(1);

/// Watches `member` until it leaves the set or the shard is closed.
pub async fn watch(topology: Weak<Topology>, member: Arc<Member>) {
    let gone = member.gone().clone();
    tokio::select! {
        () = gone.cancelled() => {}
        () = watch_forever(&topology, &member) => {}
    }
}

async fn watch_forever(topology: &Weak<Topology>, member: &Arc<Member>) {
    let mut failures = 0;
    loop {
        let Some(now) = topology.upgrade() else { return };
        let connector = now.connector.clone();
        let timing =
            Timing { heartbeat: now.settings.pool.heartbeat_interval, answer: now.settings.pool.connect_timeout };
        drop(now);
        let failure = match connector.connect_monitor(&member.address).await {
            Ok((conn, description)) => {
                failures = 0;
                warm(topology, member, &description);
                follow(topology, member, &connector, timing, conn, description).await
            }
            Err(error) => error,
        };
        let Some(now) = topology.upgrade() else { return };
        if failures == 0 {
            tracing::info!(shard = &*now.shard, server = &*member.address, error = %failure, "a shard's member cannot be reached");
        }
        now.mark_unreachable(member, None, &failure, failure.is(Code::NetworkTimeout));
        drop(now);
        failures += 1;
        pause(topology, member, failures).await;
    }
}

/// Makes the pool's first connections before they are needed.
fn warm(topology: &Weak<Topology>, member: &Arc<Member>, description: &ServerDescription) {
    let Some(now) = topology.upgrade() else { return };
    now.learn(description.clone());
    if description.serves() {
        let pool = member.pool.clone();
        tokio::spawn(async move { pool.maintain().await });
    }
}

/// Waits between two attempts to reach a member: shortly after a fresh failure and while operations wait.
async fn pause(topology: &Weak<Topology>, member: &Member, failures: u32) {
    let least = if failures <= FRESH_LOOKS { FRESH_HEARTBEAT } else { MIN_HEARTBEAT };
    sleep(least).await;
    let end = Instant::now() + DOWN_HEARTBEAT.saturating_sub(least);
    while failures > FRESH_LOOKS && topology.upgrade().is_some_and(|t| !t.hurried()) && Instant::now() < end {
        tokio::select! {
            () = member.check.notified() => {}
            () = sleep(end.saturating_duration_since(Instant::now())) => {}
        }
    }
}

/// Follows a member that answers until it fails; gives the failure.
async fn follow(
    topology: &Weak<Topology>,
    member: &Member,
    connector: &Connector,
    timing: Timing,
    mut stream: Connection,
    first: ServerDescription,
) -> Error {
    let mut version = first.topology_version;
    let mut pinger = Pinger { connector, member, conn: None, limit: timing.answer };
    let mut next_ping = Instant::now() + timing.heartbeat;
    loop {
        let mut awaited = std::pin::pin!(await_change(&mut stream, version, timing));
        // The awaited reply stays awaited while the other connection is used.
        let news = loop {
            tokio::select! {
                news = &mut awaited => break news,
                () = member.check.notified() => {}
                () = tokio::time::sleep_until(next_ping.into()) => {}
            }
            match pinger.ping().await {
                Ok(news) => {
                    let Some(now) = topology.upgrade() else { return gone(member) };
                    now.learn(news);
                }
                Err(error) => return error,
            }
            next_ping = Instant::now() + timing.heartbeat;
            // However often operations ask, the server is not asked more often than this.
            sleep(FRESH_HEARTBEAT).await;
        };
        let news = match news {
            Ok(reply) => ServerDescription::parse(member.address.clone(), bsonx::view(&reply)),
            Err(error) => return error,
        };
        if let Some(error) = news.error {
            return error;
        }
        version = news.topology_version;
        let Some(now) = topology.upgrade() else { return gone(member) };
        now.learn(news);
    }
}

fn gone(member: &Member) -> Error {
    unreachable_error(Code::HostUnreachable, format!("{} is no longer watched", member.address))
}

/// A `hello` that is answered when the server's state differs from `version`, or after the heartbeat interval.
/// A server that does not know `topologyVersion` (before 4.4) is asked once per interval instead.
async fn await_change(
    stream: &mut Connection,
    version: Option<TopologyVersion>,
    timing: Timing,
) -> Result<Bytes, Error> {
    let Timing { heartbeat, answer } = timing;
    let mut command = hello();
    match version {
        Some(version) => {
            command.append(
                bson::cstr!("topologyVersion"),
                rawdoc! {"processId": version.process_id, "counter": version.counter},
            );
            command.append(bson::cstr!("maxAwaitTimeMS"), heartbeat.as_millis() as i64);
        }
        None => sleep(heartbeat).await,
    }
    let limit = if version.is_some() { heartbeat + answer } else { answer };
    call(stream, command, limit).await
}

async fn call(conn: &mut Connection, command: RawDocumentBuf, limit: Duration) -> Result<Bytes, Error> {
    let server = conn.server.clone();
    answer_within(limit, &server, async {
        conn.call(&OutMsg::from_doc(command)).await.map_err(|e: Failure| lost(&server, &e))
    })
    .await
}

async fn answer_within<T>(
    limit: Duration,
    server: &ServerId,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(unreachable_error(
            Code::NetworkTimeout,
            format!("{server} did not answer hello within {} ms", limit.as_millis()),
        )),
    }
}

fn hello() -> RawDocumentBuf {
    rawdoc! {"hello": 1, "$db": "admin"}
}

/// Measures round trips, and looks at once where somebody asks.
struct Pinger<'a> {
    connector: &'a Connector,
    member: &'a Member,
    conn: Option<Connection>,
    limit: Duration,
}

impl Pinger<'_> {
    async fn ping(&mut self) -> Result<ServerDescription, Error> {
        let (member, limit) = (self.member, self.limit);
        let mut asking = std::pin::pin!(answer_within(limit, &member.address, self.ask()));
        let mut again = false;
        loop {
            if member.doubted.swap(false, Ordering::Relaxed) {
                return answer_within(limit.min(DOUBTED_ANSWER), &member.address, asking).await;
            }
            // The doubt may come while the answer is waited for: an election takes longer than most pauses.
            tokio::select! {
                answer = &mut asking => {
                    if again {
                        member.check.notify_one();
                    }
                    return answer;
                }
                () = member.check.notified() => again = true,
            }
        }
    }

    async fn ask(&mut self) -> Result<ServerDescription, Error> {
        let server = &self.member.address;
        let Some(conn) = &mut self.conn else {
            let (conn, description) = self.connector.connect_monitor(server).await?;
            self.conn = Some(conn);
            return Ok(description);
        };
        let start = Instant::now();
        let reply = call(conn, hello(), self.limit).await?;
        let mut description = ServerDescription::parse(server.clone(), bsonx::view(&reply));
        description.rtt = Some(start.elapsed());
        match description.error.take() {
            Some(error) => Err(error),
            None => Ok(description),
        }
    }
}
