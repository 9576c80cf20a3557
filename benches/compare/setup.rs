//! Starts what is measured: a cluster by `mosaic dev`, a router of its own by `mosaic serve`, haproxy before one mongod.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bson::rawdoc;
use mosaic::bsonx;

use crate::client::Client;
use crate::load::{self, COLLECTION, DOCUMENTS, RANGES};

const MOSAIC: &str = env!("CARGO_BIN_EXE_mosaic");

/// A way to the data.
#[derive(Clone, Debug)]
pub struct Target {
    pub name: &'static str,
    pub port: u16,
    pub db: &'static str,
    /// The process in the middle.
    pub pid: Option<u32>,
}

/// Everything that runs; it is stopped when this is dropped.
pub struct Setup {
    pub targets: Vec<Target>,
    children: Vec<Child>,
    dir: PathBuf,
}

impl Drop for Setup {
    fn drop(&mut self) {
        // The cluster was started first and must be asked, so that it can stop its members.
        for child in self.children.iter_mut().rev() {
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Setup {
    pub async fn start(port: u16) -> io::Result<Self> {
        let dir = std::env::temp_dir().join(format!("mosaic-compare-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let mut setup = Setup { targets: Vec::new(), children: Vec::new(), dir };
        let home = setup.dir.join("cluster");
        setup.start_cluster(&home, port)?;
        let layout: serde_json::Value = serde_json::from_slice(&fs::read(home.join("cluster.json"))?)?;
        let port_of = |set: &serde_json::Value| u16::try_from(set["ports"][0].as_u64().unwrap_or(0)).unwrap_or(0);
        let shard = port_of(&layout["shards"][0]);
        setup.targets.push(Target { name: "direct", port: shard, db: "direct", pid: None });
        setup.start_haproxy(port + 11, shard)?;
        let config_db =
            format!("{}/127.0.0.1:{}", layout["config"]["name"].as_str().unwrap_or(""), port_of(&layout["config"]));
        setup.start_router(port + 10, &config_db)?;
        prepare(port, shard, port + 10).await?;
        Ok(setup)
    }

    pub fn router(&self) -> Option<&Target> {
        self.targets.iter().find(|t| t.name == "mosaic")
    }

    fn start_cluster(&mut self, home: &Path, port: u16) -> io::Result<()> {
        let mut dev = Command::new(MOSAIC);
        dev.args(["dev", "--catalog", "replicaset", "--port", &port.to_string(), "--dir"]).arg(home);
        let mut child = dev.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take();
        self.children.push(child);
        let mut line = String::new();
        BufReader::new(out.ok_or_else(|| io::Error::other("no output"))?).read_line(&mut line)?;
        match line.starts_with("ready ") {
            true => Ok(()),
            false => Err(io::Error::other("the cluster did not start")),
        }
    }

    fn start_haproxy(&mut self, port: u16, to: u16) -> io::Result<()> {
        let config = self.dir.join("haproxy.cfg");
        fs::write(
            &config,
            format!(
                "global\n  maxconn 4000\ndefaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  \
                 timeout server 1h\nlisten mongod\n  bind 127.0.0.1:{port}\n  server m 127.0.0.1:{to}\n"
            ),
        )?;
        match Command::new("haproxy").arg("-db").arg("-f").arg(&config).stdin(Stdio::null()).spawn() {
            Ok(child) => {
                self.targets.push(Target { name: "haproxy", port, db: "direct", pid: Some(child.id()) });
                self.children.push(child);
                wait_for(port)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                eprintln!("haproxy is not installed (apt install haproxy): its columns are left out");
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    fn start_router(&mut self, port: u16, config_db: &str) -> io::Result<()> {
        let mut serve = Command::new(MOSAIC);
        serve.args(["serve", "--port", &port.to_string(), "--configdb", config_db]);
        let log = self.dir.join("router.log");
        let child = serve.arg("--logpath").arg(log).stdin(Stdio::null()).spawn()?;
        self.targets.push(Target { name: "mosaic", port, db: "bench", pid: Some(child.id()) });
        self.children.push(child);
        wait_for(port)
    }
}

fn wait_for(port: u16) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("nothing listens on port {port}")));
        }
        #[allow(clippy::disallowed_methods)] // nothing else runs yet
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The same documents in collections spread over both shards and, in another database straight on the first shard's
/// mongod, in whole ones.
async fn prepare(any_router: u16, shard: u16, router: u16) -> io::Result<()> {
    let mut admin = Client::connect(any_router).await?;
    admin.run("admin", rawdoc! {"enableSharding": "bench", "primaryShard": "shard0"}.into()).await?;
    // Hashed initial chunks are spread at once; a ranged one would stay on the primary shard until moved.
    for (collection, key) in [(COLLECTION, rawdoc! {"_id": "hashed"}), (RANGES, rawdoc! {"c": "hashed", "_id": 1})] {
        let ns = format!("bench.{collection}");
        admin.run("admin", rawdoc! {"shardCollection": ns.as_str(), "key": key}.into()).await?;
    }
    load::fill(router, "bench").await?;
    load::fill(shard, "direct").await?;
    load::learn_first_shard(shard, "bench").await?;
    for (name, port) in [("through the router", router), ("on the first shard", shard)] {
        let mut client = Client::connect(port).await?;
        let reply = client.run("bench", rawdoc! {"count": COLLECTION}.into()).await?;
        let count = bsonx::int(reply, "n").unwrap_or(-1);
        eprintln!("{count} of {DOCUMENTS} documents {name}");
    }
    Ok(())
}
