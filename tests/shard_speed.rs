//! What `Shard::run` costs beside a bare socket: operations per second and this process's CPU per operation.
//!
//! `MOSAIC_MONGOD=… cargo test --release --test shard_speed -- --ignored --nocapture`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod shard_support;

use std::time::{Duration, Instant};

use bson::rawdoc;
use bytes::BytesMut;
use mosaic::shard::{ReadPreference, Retryable, ShardRegistry, ShardSettings};
use mosaic::wire::OutMsg;
use shard_support::{Set, mongod, ok, op};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LENGTH: Duration = Duration::from_secs(4);

/// User and system time of this process in seconds (10 ms steps).
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

async fn measure<F, Fut>(name: &str, tasks: usize, work: F)
where
    F: Fn(Instant) -> Fut,
    Fut: Future<Output = u64> + Send + 'static,
{
    let (start, before) = (Instant::now(), cpu());
    let tasks: Vec<_> = (0..tasks).map(|_| tokio::spawn(work(start + LENGTH))).collect();
    let count = tasks.len();
    let mut done = 0;
    for task in tasks {
        done += task.await.unwrap();
    }
    let (took, used) = (start.elapsed().as_secs_f64(), cpu() - before);
    println!(
        "{name:10} {count:3} tasks: {:8.0} ops/s, {:6.2} µs CPU per op",
        done as f64 / took,
        used * 1e6 / done as f64
    );
}

async fn bare(port: u16, msg: OutMsg, end: Instant) -> u64 {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut request = BytesMut::new();
    msg.encode(1, &mut request);
    let mut buffer = vec![0; 64 * 1024];
    let mut done = 0;
    while Instant::now() < end {
        stream.write_all(&request).await.unwrap();
        let mut have = 0;
        while have < 4 || have < i32::from_le_bytes(buffer[..4].try_into().unwrap()) as usize {
            have += stream.read(&mut buffer[have..]).await.unwrap();
        }
        done += 1;
    }
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn run_beside_a_bare_socket() {
    let Some(binary) = mongod() else { return };
    let set = Set::start(binary, "speed", 50, 1, &[]).await;
    let registry = ShardRegistry::new(ShardSettings::default());
    registry.sync_hosts([("sh0", set.host().as_str())]).unwrap();
    let shard = registry.get("sh0").unwrap();
    ok(&shard, rawdoc! {"insert": "c", "documents": [{"_id": 1, "text": "x".repeat(100)}], "$db": "t"}).await;
    let port = set.members[0].port;
    let find = OutMsg::from_doc(rawdoc! {"find": "c", "filter": {"_id": 1}, "limit": 1, "$db": "t"});
    let ping = OutMsg::from_doc(rawdoc! {"ping": 1, "$db": "admin"});
    for (what, msg) in [("ping", ping), ("find", find)] {
        for tasks in [1, 16] {
            for _ in 0..2 {
                measure(&format!("{what} bare"), tasks, |end| bare(port, msg.clone(), end)).await;
                measure(&format!("{what} run"), tasks, |end| {
                    let (shard, msg) = (shard.clone(), msg.clone());
                    async move {
                        let op = op();
                        let mut done = 0;
                        while Instant::now() < end {
                            assert!(
                                shard.run(&op, &ReadPreference::PRIMARY, Retryable::Read, &msg).await.unwrap().ok()
                            );
                            done += 1;
                        }
                        done
                    }
                })
                .await;
            }
        }
    }
    println!("{:?}", shard.stats().servers[0].pool);
}
