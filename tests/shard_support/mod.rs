//! Real mongods for the tests of the shard layer.
#![allow(dead_code)]

mod ports;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bson::{RawDocument, RawDocumentBuf, doc, rawdoc};
use mongodb::options::ClientOptions;
use mosaic::error::Result;
use mosaic::op::OpContext;
use mosaic::shard::{ReadPreference, Retryable, Shard, ShardReply};
use mosaic::wire::OutMsg;
pub use ports::port;

/// The mongod to test with; prints why there is none.
pub fn mongod() -> Option<PathBuf> {
    let path = std::env::var_os("MOSAIC_MONGOD").map(PathBuf::from);
    if path.is_none() {
        println!("skipped: MOSAIC_MONGOD does not name a mongod");
    }
    path
}

/// One mongod; stopped when dropped.
pub struct Mongod {
    binary: PathBuf,
    pub port: u16,
    dir: PathBuf,
    set: String,
    args: Vec<String>,
    child: Option<Child>,
}

impl Mongod {
    pub async fn start(&mut self) {
        let child = Command::new(&self.binary)
            .args(["--port", &self.port.to_string(), "--replSet", &self.set, "--bind_ip", "127.0.0.1"])
            .args(["--wiredTigerCacheSizeGB", "0.25", "--setParameter", "diagnosticDataCollectionEnabled=false"])
            .args(["--setParameter", "enableTestCommands=1"])
            .args(&self.args)
            .arg("--dbpath")
            .arg(&self.dir)
            .arg("--logpath")
            .arg(self.dir.join("log"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        let end = Instant::now() + Duration::from_secs(60);
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < end, "mongod on port {} does not start; see {:?}", self.port, self.dir);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGSTOP or SIGCONT: the process is there and does nothing.
    pub fn signal(&self, name: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Mongod {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A replica set of new mongods in a temporary directory.
pub struct Set {
    pub name: String,
    pub members: Vec<Mongod>,
    _dir: tempfile::TempDir,
}

impl Set {
    /// Starts `count` members on `port(offset)` and following; member `i` has the tag `n: "<i>"`. Waits for a primary.
    pub async fn start(binary: PathBuf, name: &str, offset: u16, count: u16, args: &[&str]) -> Set {
        let dir = tempfile::tempdir().unwrap();
        let mut members = Vec::new();
        for i in 0..count {
            let member_dir = dir.path().join(i.to_string());
            std::fs::create_dir(&member_dir).unwrap();
            let mut member = Mongod {
                binary: binary.clone(),
                port: port(offset + i),
                dir: member_dir,
                set: name.to_owned(),
                args: args.iter().map(|a| a.to_string()).collect(),
                child: None,
            };
            member.start().await;
            members.push(member);
        }
        let config: Vec<_> = members
            .iter()
            .enumerate()
            .map(|(i, m)| doc! {"_id": i as i32, "host": m.host(), "priority": if i == 0 { 2 } else { 1 }, "tags": {"n": i.to_string()}})
            .collect();
        let set = Set { name: name.to_owned(), members, _dir: dir };
        let initiate = doc! {"replSetInitiate": {
            "_id": name, "members": config, "settings": {"electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500},
        }};
        set.admin(0, initiate).await.unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let hello = set.admin(0, doc! {"hello": 1}).await.unwrap();
            if hello.get_bool("isWritablePrimary").unwrap_or(false) {
                return set;
            }
            assert!(Instant::now() < end, "no primary");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub fn host(&self) -> String {
        let hosts: Vec<_> = self.members.iter().map(Mongod::host).collect();
        format!("{}/{}", self.name, hosts.join(","))
    }

    /// The member with this address.
    pub fn member(&mut self, address: &str) -> &mut Mongod {
        self.members.iter_mut().find(|m| m.host() == address).unwrap()
    }

    /// Runs an admin command on one member through the driver.
    pub async fn admin(&self, member: usize, command: bson::Document) -> mongodb::error::Result<bson::Document> {
        let mut options = ClientOptions::parse(format!("mongodb://{}", self.members[member].host())).await?;
        options.direct_connection = Some(true);
        options.server_selection_timeout = Some(Duration::from_secs(5));
        let client = mongodb::Client::with_options(options)?;
        client.database("admin").run_command(command).await
    }
}

pub fn op() -> OpContext {
    OpContext::background("test")
}

pub fn msg(command: RawDocumentBuf) -> OutMsg {
    OutMsg::from_doc(command)
}

/// Runs a command on the primary, not retried, and gives the reply whatever it says.
pub async fn run(shard: &Shard, command: RawDocumentBuf) -> Result<ShardReply> {
    shard.run(&op(), &ReadPreference::PRIMARY, Retryable::No, &msg(command)).await
}

/// The same for commands that have to work.
pub async fn ok(shard: &Shard, command: RawDocumentBuf) -> RawDocumentBuf {
    let reply = run(shard, command).await.unwrap().into_result().unwrap();
    RawDocument::from_bytes(&reply.body).unwrap().to_owned()
}

pub async fn count(shard: &Shard, coll: &str) -> i64 {
    let reply = ok(shard, rawdoc! {"count": coll, "$db": "t"}).await;
    mosaic::bsonx::int(&reply, "n").unwrap()
}

/// How many operations with this comment run on the shard's primary.
pub async fn running(shard: &Shard, comment: &str) -> usize {
    let command = rawdoc! {
        "aggregate": 1, "cursor": {}, "$db": "admin",
        "pipeline": [{"$currentOp": {"allUsers": true}}, {"$match": {"command.comment": comment}}],
    };
    let reply = ok(shard, command).await;
    let cursor = mosaic::bsonx::doc(&reply, "cursor").unwrap();
    mosaic::bsonx::array(cursor, "firstBatch").unwrap().into_iter().count()
}

/// Waits until `done` is true.
pub async fn eventually<F: AsyncFnMut() -> bool>(limit: Duration, what: &str, mut done: F) -> Duration {
    let start = Instant::now();
    while !done().await {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    start.elapsed()
}
