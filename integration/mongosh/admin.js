// cluster: shards=2 catalog=embedded
// The db.* and rs.* helpers of an operator.

const admin = db.getSiblingDB("admin");
const shop = db.getSiblingDB("shop");

function lacks(call) {
  // Refused, and clearly: no such command, or not supported.
  let error = null;
  try {
    call();
  } catch (e) {
    error = e;
  }
  ok(error, "it was not refused");
  ok([59, 115].includes(error.code), `refused with ${error.code}: ${error.message}`);
  return error;
}

sh.shardCollection("shop.orders", { customer: "hashed" });
shop.orders.insertMany([...Array(200).keys()].map((i) => ({ _id: i, customer: i, total: i % 7 })));
shop.plain.insertMany([{ _id: 1 }, { _id: 2 }]);

test("about the server", () => {
  ok(/^6\./.test(db.version()));
  equal(db.serverBuildInfo().versionArray[0], 6);
  ok(db.hostInfo().system.numCores >= 1);
  ok(db.serverCmdLineOpts().parsed.sharding.configDB);
  const status = db.serverStatus();
  equal(status.process, "mongos");
  ok(status.connections.current >= 1);
  ok(db.serverStatus({ metrics: 0 }).metrics === undefined);
  equal(db.hello().msg, "isdbgrid");
  equal(db.isMaster().msg, "isdbgrid");
  const commands = db.listCommands();
  ok((commands.value || commands).find, "listCommands has find");
  ok(db.commandHelp("find").length > 0);
});

test("connections and replies of commands", () => {
  equal(db.runCommand({ ping: 1 }).ok, 1);
  equal(db.adminCommand({ connectionStatus: 1 }).authInfo.authenticatedUsers, []);
  equal(db.adminCommand({ getParameter: 1, logLevel: 1 }).logLevel, 0);
  ok(db.getMongo());
  fails(59, () => db.runCommand({ nosuch: 1 }));
  ok(db.rotateCertificates === undefined || lacks(() => db.rotateCertificates()));
});

test("show", () => {
  ok(db.adminCommand({ listDatabases: 1 }).databases.some((d) => d.name === "shop"));
  ok(db.getMongo().getDBNames().includes("shop"));
  equal(shop.getCollectionNames().sort(), ["orders", "plain"]);
  equal(shop.getCollectionInfos().map((c) => c.type), ["collection", "collection"]);
  ok(JSON.stringify(show("dbs")).includes("shop"));
  ok(JSON.stringify(show("logs")).includes("global"));
  ok(show("log"));
  show("collections");
  show("startupWarnings");
});

test("statistics of databases and collections", () => {
  equal(shop.stats().objects, 202);
  equal(shop.orders.stats().count, 200);
  equal(shop.orders.stats().sharded, true);
  equal(shop.plain.stats().sharded, false);
  equal(shop.orders.dataSize(), shop.orders.stats().size);
  ok(shop.orders.storageSize() > 0);
  ok(shop.orders.totalIndexSize() > 0);
  ok(shop.orders.totalSize() > 0);
  equal(shop.orders.isCapped(), false);
  equal(shop.orders.countDocuments(), 200);
  equal(shop.orders.estimatedDocumentCount(), 200);
  ok(shop.orders.latencyStats().length === 2);
  equal(shop.orders.validate().valid, true);
  shop.orders.getShardDistribution();
});

test("indexes", () => {
  equal(shop.orders.createIndex({ total: 1 }), "total_1");
  equal(shop.orders.getIndexes().map((i) => i.name).sort(), ["_id_", "customer_hashed", "total_1"]);
  equal(shop.orders.getIndexKeys().length, 3);
  shop.orders.hideIndex("total_1");
  equal(shop.orders.getIndexes().find((i) => i.name === "total_1").hidden, true);
  shop.orders.unhideIndex("total_1");
  equal(shop.orders.dropIndex("total_1").ok, 1);
  equal(shop.orders.createIndexes([{ a: 1 }, { b: 1 }]), ["a_1", "b_1"]);
  shop.orders.dropIndexes(["a_1", "b_1"]);
});

test("operations", () => {
  ok(Array.isArray(db.currentOp().inprog));
  ok(Array.isArray(admin.aggregate([{ $currentOp: { localOps: true } }]).toArray()));
  equal(db.killOp("shard0:1").ok, 1);
  equal(db.killOp(123456).ok, 1);
  equal(db.fsyncLock().ok, 1);
  equal(db.fsyncUnlock().ok, 1);
});

test("log levels and slow operations", () => {
  equal(db.getLogComponents().command.verbosity, -1);
  equal(db.setLogLevel(1, "storage.journal").ok, 1);
  equal(db.getLogComponents().storage.journal.verbosity, 1);
  equal(db.setLogLevel(-1, "storage.journal").ok, 1);
  equal(db.setLogLevel(0).ok, 1);
  equal(db.getProfilingStatus().slowms, 100);
  equal(db.setProfilingLevel(0, { slowms: 250 }).slowms, 100);
  equal(db.setProfilingLevel(0, 100).slowms, 250);
  fails(2, () => db.setProfilingLevel(2));
});

test("databases and collections are made and dropped", () => {
  const made = db.getSiblingDB("made");
  equal(made.createCollection("a", { validator: { n: { $exists: true } } }).ok, 1);
  fails(121, () => made.a.insertOne({}));
  equal(made.createView("v", "a", [{ $match: { n: 1 } }]).ok, 1);
  made.a.insertMany([{ n: 1 }, { n: 2 }]);
  equal(made.v.countDocuments(), 1);
  equal(made.a.renameCollection("b").ok, 1);
  equal(made.runCommand({ collMod: "b", validationLevel: "off" }).ok, 1);
  equal(made.b.drop(), true);
  equal(made.dropDatabase().ok, 1);
});

test("rs.* are answered as by a mongos", () => {
  for (const call of [() => rs.status(), () => rs.conf(), () => rs.initiate({}), () => rs.stepDown(), () => rs.freeze(1)]) {
    let refused = false;
    try {
      call();
    } catch (e) {
      refused = true;
    }
    ok(refused, `${call} was not refused`);
  }
});

test("what is not built says so", () => {
  lacks(() => admin.createUser({ user: "x", pwd: "x", roles: [] }));
  lacks(() => admin.getUsers());
  lacks(() => admin.getRoles());
  lacks(() => db.adminCommand({ top: 1 }));
});

test("db.printShardingStatus()", () => {
  const status = db.printShardingStatus();
  ok(status === undefined || status.value.shards.length === 2);
});
