// cluster: shards=2 catalog=embedded
// Every helper of collections and cursors, on a sharded and on an unsharded collection.

const shop = db.getSiblingDB("shop");
sh.shardCollection("shop.spread", { k: "hashed" });

function fresh(name) {
  shop[name].deleteMany({});
  shop[name].insertMany([...Array(60).keys()].map((i) => ({ _id: i, k: i, v: i % 6, tags: ["t" + (i % 3)] })));
  return shop[name];
}

for (const name of ["spread", "whole"]) {
  test(`${name}: inserts`, () => {
    const c = shop[name];
    c.deleteMany({});
    ok(c.insertOne({ k: 1 }).insertedId);
    equal(Object.keys(c.insertMany([{ k: 2 }, { k: 3 }]).insertedIds).length, 2);
    equal(c.insertOne({ _id: 7, k: 7 }).insertedId, 7);
    fails(11000, () => c.insertOne({ _id: 7, k: 7 }));
    equal(c.countDocuments(), 4);
  });

  test(`${name}: updates, replacements, upserts`, () => {
    const c = fresh(name);
    equal(c.updateOne({ k: 1 }, { $set: { x: 1 } }).modifiedCount, 1);
    equal(c.updateMany({ v: 1 }, { $inc: { x: 1 } }).matchedCount, 10);
    equal(c.updateOne({ v: 2 }, { $set: { only: 1 } }).modifiedCount, 1);
    equal(c.countDocuments({ only: 1 }), 1);
    equal(c.replaceOne({ _id: 3, k: 3 }, { k: 3, replaced: true }).modifiedCount, 1);
    const upserted = c.updateOne({ _id: 100, k: 100 }, { $set: { new: true } }, { upsert: true });
    equal([upserted.insertedId, upserted.upsertedCount], [100, 1]);
    equal(c.updateOne({ k: 4 }, [{ $set: { twice: { $multiply: ["$k", 2] } } }]).modifiedCount, 1);
    equal(c.findOne({ k: 4 }).twice, 8);
    equal(c.updateOne({ _id: 5 }, { $set: { k: 5000 } }).modifiedCount, 1);
    equal(c.findOne({ k: 5000 })._id, 5);
    equal(c.updateOne({ k: 6 }, { $set: { "tags.$[t]": "z" } }, { arrayFilters: [{ t: "t0" }] }).modifiedCount, 1);
  });

  test(`${name}: deletes`, () => {
    const c = fresh(name);
    equal(c.deleteOne({ k: 1 }).deletedCount, 1);
    equal(c.deleteOne({ v: 2 }).deletedCount, 1);
    equal(c.deleteMany({ v: 3 }).deletedCount, 10);
    equal(c.countDocuments(), 48);
  });

  test(`${name}: find and modify`, () => {
    const c = fresh(name);
    equal(c.findOneAndUpdate({ k: 1 }, { $set: { x: 1 } }).x, undefined);
    equal(c.findOneAndUpdate({ k: 1 }, { $set: { x: 2 } }, { returnDocument: "after" }).x, 2);
    equal(c.findOneAndReplace({ k: 2 }, { k: 2, y: 1 }, { returnNewDocument: true }).y, 1);
    equal(c.findOneAndDelete({ k: 3 })._id, 3);
    equal(c.findOneAndUpdate({ v: 4 }, { $set: { x: 3 } }, { sort: { _id: -1 }, returnDocument: "after" })._id, 58);
    equal(c.findAndModify({ query: { k: 4 }, update: { $set: { z: 1 } }, new: true }).z, 1);
    equal(c.findAndModify({ query: { k: 4 }, remove: true })._id, 4);
  });

  test(`${name}: bulk writes`, () => {
    const c = fresh(name);
    const done = c.bulkWrite([
      { insertOne: { document: { _id: 200, k: 200 } } },
      { updateOne: { filter: { k: 1 }, update: { $set: { b: 1 } } } },
      { updateMany: { filter: { v: 2 }, update: { $set: { b: 2 } } } },
      { replaceOne: { filter: { _id: 3, k: 3 }, replacement: { k: 3, b: 3 } } },
      { deleteOne: { filter: { k: 4 } } },
      { deleteMany: { filter: { v: 5 } } },
      { updateOne: { filter: { k: 300 }, update: { $set: { b: 4 } }, upsert: true } },
    ]);
    equal(
      [done.insertedCount, done.matchedCount, done.modifiedCount, done.deletedCount, done.upsertedCount],
      [1, 12, 12, 11, 1],
    );
    const ordered = c.initializeOrderedBulkOp();
    ordered.insert({ _id: 400, k: 400 });
    ordered.find({ k: 400 }).updateOne({ $set: { o: 1 } });
    ordered.find({ k: 400 }).remove();
    equal(ordered.execute().deletedCount, 1);
    const unordered = c.initializeUnorderedBulkOp();
    unordered.insert({ _id: 500, k: 500 });
    unordered.insert({ _id: 500, k: 500 });
    unordered.insert({ _id: 501, k: 501 });
    let error = null;
    try {
      unordered.execute();
    } catch (e) {
      error = e;
    }
    equal(error.code, 11000);
    equal(c.countDocuments({ k: { $in: [500, 501] } }), 2);
  });

  test(`${name}: cursors`, () => {
    const c = fresh(name);
    const ids = (cursor) => cursor.toArray().map((d) => d._id);
    equal(ids(c.find({ v: 1 }).sort({ _id: -1 }).skip(1).limit(3)), [49, 43, 37]);
    equal(ids(c.find().batchSize(7)).length, 60);
    equal(c.find({ v: 1 }, { _id: 0, k: 1 }).sort({ k: 1 }).limit(1).toArray(), [{ k: 1 }]);
    equal(c.find({ v: 1 }).count(), 10);
    equal(c.find({ v: 1 }).limit(3).size(), 3);
    equal(c.find().sort({ _id: 1 }).limit(3).map((d) => d._id).toArray(), [0, 1, 2]);
    let seen = 0;
    c.find().batchSize(11).forEach(() => (seen += 1));
    equal(seen, 60);
    const cursor = c.find().sort({ _id: 1 }).batchSize(2);
    ok(cursor.hasNext());
    equal(cursor.next()._id, 0);
    ok(cursor.objsLeftInBatch() >= 0);
    cursor.close();
    equal(c.find().hint({ _id: 1 }).comment("hinted").maxTimeMS(20000).itcount(), 60);
    equal(ids(c.find().min({ _id: 55 }).hint({ _id: 1 }).sort({ _id: 1 })), [55, 56, 57, 58, 59]);
    equal(ids(c.find({ "tags.0": "T1" }).collation({ locale: "en", strength: 2 })).length, 20);
    equal(c.findOne({ k: 9 })._id, 9);
    equal(c.findOne({ k: -9 }), null);
    equal(ids(c.find().readPref("primaryPreferred").readConcern("majority").noCursorTimeout().sort({ v: 1 }).allowDiskUse()).length, 60);
    equal(c.find().returnKey().hint({ _id: 1 }).limit(1).toArray().length, 1);
  });

  test(`${name}: counting, distinct values, aggregation`, () => {
    const c = fresh(name);
    equal([c.countDocuments({ v: 1 }), c.estimatedDocumentCount(), c.count({ v: 2 })], [10, 60, 10]);
    equal(c.distinct("v").sort(), [0, 1, 2, 3, 4, 5]);
    equal(c.distinct("v", { k: { $lt: 3 } }).sort(), [0, 1, 2]);
    const groups = c.aggregate([{ $group: { _id: "$v", n: { $sum: 1 }, top: { $max: "$k" } } }, { $sort: { _id: 1 } }]).toArray();
    equal(groups[5], { _id: 5, n: 10, top: 59 });
    equal(c.aggregate([{ $match: { v: 1 } }, { $count: "n" }]).toArray(), [{ n: 10 }]);
    equal(shop.aggregate([{ $documents: [{ a: 1 }] }]).toArray(), [{ a: 1 }]);
  });

  test(`${name}: explain`, () => {
    const c = fresh(name);
    ok(c.find({ v: 1 }).explain().queryPlanner);
    ok(c.explain("executionStats").find({ v: 1 }).finish().executionStats);
    ok(c.explain().count({ v: 1 }).queryPlanner);
    ok(c.explain().distinct("v").queryPlanner);
    ok(c.explain().update({ k: 1 }, { $set: { e: 1 } }).queryPlanner);
    ok(c.explain().remove({ k: 1 }).queryPlanner);
    ok(c.explain().findAndModify({ query: { k: 1 }, update: { $set: { e: 1 } } }).queryPlanner);
    ok(c.explain().aggregate([{ $match: { v: 1 } }]));
    equal(c.countDocuments({ e: 1 }), 0);
  });
}

test("the collection's own helpers", () => {
  const c = fresh("whole");
  equal(c.getName(), "whole");
  equal(c.getFullName(), "shop.whole");
  equal(c.exists().name, "whole");
  ok(c.getPlanCache().list);
  c.getPlanCache().clear();
  equal(c.convertToCapped(100000).ok, 1);
  equal(c.isCapped(), true);
  equal(c.drop(), true);
});

test("sessions and retryable writes", () => {
  const session = db.getMongo().startSession({ causalConsistency: true });
  const c = session.getDatabase("shop").spread;
  c.insertOne({ _id: "s", k: "s" });
  equal(c.findOne({ k: "s" })._id, "s");
  session.endSession();
});

test("change streams on a sharded collection are refused", () => {
  let error = null;
  try {
    shop.spread.watch().tryNext();
  } catch (e) {
    error = e;
  }
  ok(error, "watch was not refused");
  ok(error.code > 0 && error.message.length > 10, `${error.code} ${error.message}`);
});
