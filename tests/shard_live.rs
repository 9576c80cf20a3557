//! The shard layer against real mongods. Skipped where `MOSAIC_MONGOD` does not name one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod shard_support;

use std::sync::Arc;
use std::time::Duration;

use bson::rawdoc;
use mosaic::bsonx;
use mosaic::config::Pool;
use mosaic::shard::{ReadPreference, Retryable, Shard, ShardRegistry, ShardSettings};
use mosaic::wire::Flags;
use shard_support::{Set, count, eventually, mongod, msg, ok, op, run};

/// One set of mongods at a time: the tests measure times.
static ONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn registry(pool: Pool) -> Arc<ShardRegistry> {
    ShardRegistry::new(ShardSettings { pool, ..ShardSettings::default() })
}

fn connect(registry: &ShardRegistry, set: &Set) -> Arc<Shard> {
    registry.sync_hosts([("sh0", set.host().as_str())]).unwrap();
    registry.get("sh0").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_replies_and_sizes() {
    let Some(binary) = mongod() else { return };
    let _one = ONE.lock().await;
    let set = Set::start(binary, "live", 0, 1, &[]).await;
    let registry = registry(Pool::default());
    let shard = connect(&registry, &set);

    ok(&shard, rawdoc! {"ping": 1, "$db": "admin"}).await;
    assert_eq!(shard.host(), set.host());
    assert_eq!(shard.primary().unwrap().as_ref(), set.members[0].host());

    // An error reply arrives as a reply.
    let reply = run(&shard, rawdoc! {"nonsense": 1, "$db": "admin"}).await.unwrap();
    assert!(!reply.ok());
    assert_eq!(reply.into_result().unwrap_err().code(), 59);

    // Large messages in both directions: 40 documents of 400 kB out, 16 MB back.
    let big = "x".repeat(400_000);
    let mut docs = Vec::new();
    for i in 0..40 {
        docs.extend_from_slice(rawdoc! {"_id": i, "x": big.as_str()}.as_bytes());
    }
    let mut insert = msg(rawdoc! {"insert": "big", "$db": "t"});
    insert.sequences.push(mosaic::wire::OutSequence { id: "documents".into(), docs: smallvec::smallvec![docs.into()] });
    let reply = shard.run(&op(), &ReadPreference::PRIMARY, Retryable::No, &insert).await.unwrap();
    assert_eq!(bsonx::int(reply.doc(), "n"), Some(40));
    let reply = ok(&shard, rawdoc! {"find": "big", "batchSize": 100, "$db": "t"}).await;
    assert!(reply.as_bytes().len() > 15_000_000);
    let cursor = bsonx::doc(&reply, "cursor").unwrap();
    assert_eq!(bsonx::array(cursor, "firstBatch").unwrap().into_iter().count(), 40);
    // One with a size just around the read buffer's.
    for size in [65_000, 65_400, 65_450, 65_480, 65_500, 65_536, 70_000, 131_072] {
        let text = "y".repeat(size);
        let reply =
            ok(&shard, rawdoc! {"aggregate": 1, "pipeline": [{"$documents": [{"t": text}]}], "cursor": {}, "$db": "t"})
                .await;
        assert!(reply.as_bytes().len() > size);
    }

    // Unacknowledged.
    let mut write = msg(rawdoc! {"insert": "quiet", "documents": [{"_id": 1}], "writeConcern": {"w": 0}, "$db": "t"});
    write.flags = Flags::MORE_TO_COME;
    shard.send_only(&op(), &write).await.unwrap();
    eventually(Duration::from_secs(5), "the write arrives", async || count(&shard, "quiet").await == 1).await;
    assert!(shard.send_only(&op(), &msg(rawdoc! {"ping": 1, "$db": "admin"})).await.is_err());
}
