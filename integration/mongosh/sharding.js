// cluster: shards=2 catalog=embedded
// The sh.* helpers, and convenient ways to look at a sharded collection.

const config = db.getSiblingDB("config");
const data = db.getSiblingDB("data");
const chunks = (ns) => {
  const coll = config.collections.findOne({ _id: ns });
  return config.chunks.find({ uuid: coll.uuid }).sort({ min: 1 }).toArray();
};
const unsupported = (call) => fails(115, call);

test("databases and collections are sharded", () => {
  equal(sh.enableSharding("data").ok, 1);
  equal(sh.shardCollection("data.ranged", { a: 1, b: 1 }).collectionsharded, "data.ranged");
  equal(sh.shardCollection("data.hashed", { k: "hashed" }, false, { numInitialChunks: 6 }).ok, 1);
  equal(sh.shardCollection("data.unique", { u: 1 }, true).ok, 1);
  equal(chunks("data.hashed").length, 6);
  equal(config.collections.findOne({ _id: "data.unique" }).unique, true);
  fails(23, () => sh.shardCollection("data.ranged", { z: 1 }));
});

test("chunks are split", () => {
  equal(sh.splitAt("data.ranged", { a: 10, b: MinKey() }).ok, 1);
  equal(chunks("data.ranged").length, 2);
  data.ranged.insertMany([...Array(100).keys()].map((i) => ({ a: i, b: i })));
  equal(sh.splitFind("data.ranged", { a: 50, b: 50 }).ok, 1);
  equal(chunks("data.ranged").length, 3);
});

test("sh.status() tells the truth", () => {
  const status = sh.status().value;
  equal(status.shards.map((s) => s._id), ["shard0", "shard1"]);
  equal(status.balancer["Currently enabled"], "no");
  equal(status.balancer["Currently running"], "no");
  equal(status.autosplit["Currently enabled"], "no");
  const listed = status.databases.find((d) => d.database._id === "data").collections;
  equal(Object.keys(listed).sort(), ["data.hashed", "data.ranged", "data.unique"]);
  equal(listed["data.ranged"].chunks.length, 3);
  ok(sh.status({ verbose: 1 }).value.shards);
});

test("where the data is", () => {
  data.hashed.insertMany([...Array(300).keys()].map((k) => ({ k })));
  const distribution = sh.getShardedDataDistribution().toArray().find((d) => d.ns === "data.hashed");
  equal(distribution.shards.map((s) => s.shardName).sort(), ["shard0", "shard1"]);
  equal(distribution.shards.reduce((n, s) => n + Number(s.numOwnedDocuments), 0), 300);
  const shown = data.hashed.getShardDistribution().value;
  equal(shown.Totals.docs, 300);
  equal(Object.keys(data.hashed.stats().shards).sort(), ["shard0", "shard1"]);
  const version = data.hashed.getShardVersion();
  equal(version.ok, 1);
});

test("shards are listed and added again", () => {
  const shards = sh.listShards();
  equal(shards.length, 2);
  equal(sh.addShard(shards[0].host).shardAdded, "shard0");
});

test("the balancer is off", () => {
  equal(sh.getBalancerState(), false);
  equal(sh.stopBalancer().ok, 1);
  equal(sh.setBalancerState(false).ok, 1);
  const running = sh.isBalancerRunning();
  equal(running.inBalancerRound, false);
  equal(running.mode, "off");
  unsupported(() => sh.startBalancer());
  unsupported(() => sh.setBalancerState(true));
  sh.enableAutoSplit();
  equal(config.settings.findOne({ _id: "autosplit" }).enabled, true);
  sh.disableAutoSplit();
  equal(config.settings.findOne({ _id: "autosplit" }).enabled, false);
});

test("one collection's balancing is switched in the catalog", () => {
  sh.disableBalancing("data.hashed");
  equal(config.collections.findOne({ _id: "data.hashed" }).noBalance, true);
  sh.enableBalancing("data.hashed");
  equal(config.collections.findOne({ _id: "data.hashed" }).noBalance, false);
});

test("what moves data is refused clearly", () => {
  unsupported(() => sh.moveChunk("data.ranged", { a: 1, b: 1 }, "shard1"));
  unsupported(() => sh.moveRange("data.ranged", "shard1", { a: 10, b: MinKey() }));
  unsupported(() => sh.addShardToZone("shard0", "EU"));
  unsupported(() => sh.removeShardFromZone("shard0", "EU"));
  unsupported(() => sh.updateZoneKeyRange("data.ranged", { a: 1 }, { a: 5 }, "EU"));
  unsupported(() => sh.balancerCollectionStatus("data.ranged"));
  unsupported(() => sh.reshardCollection("data.ranged", { b: 1 }));
  unsupported(() => db.adminCommand({ removeShard: "shard1" }));
  unsupported(() => db.adminCommand({ movePrimary: "data", to: "shard1" }));
});

test("routes are explained", () => {
  const one = data.hashed.find({ k: 5 }).explain();
  equal(one.mosaic.reason, "EqualityOnShardKey");
  equal(one.queryPlanner.winningPlan.stage, "SINGLE_SHARD");
  equal(data.ranged.find({ a: { $gt: 60 } }).explain().mosaic.reason, "RangeOnPrefix");
});
