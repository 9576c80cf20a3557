// cluster: shards=2 catalog=embedded

test("it is a router of a sharded cluster", () => {
  equal(db.hello().msg, "isdbgrid");
  equal(db.adminCommand({ listShards: 1 }).shards.map((s) => s._id), ["shard0", "shard1"]);
});

test("sh.status() shows shards, databases and chunks", () => {
  sh.shardCollection("shop.orders", { customer: 1, order: 1 });
  const status = sh.status().value;
  equal(status.shards.length, 2);
  const shop = status.databases.find((d) => d.database._id === "shop");
  ok(shop, "the database shop is listed");
  ok(shop.collections["shop.orders"], "the collection is listed");
});

test("documents go in and come out", () => {
  const orders = db.getSiblingDB("shop").orders;
  orders.insertMany([...Array(100).keys()].map((i) => ({ _id: i, customer: i % 10, order: i })));
  equal(orders.countDocuments(), 100);
  equal(orders.find({ customer: 3 }).sort({ order: -1 }).limit(2).toArray().map((d) => d.order), [93, 83]);
});
