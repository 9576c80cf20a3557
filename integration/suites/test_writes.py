"""insert, update, delete and findAndModify on sharded collections: errors, options, limits."""

import bson
import pymongo
from bson import Int64, ObjectId, Timestamp
from cluster import eventually
from pairs import Pair, PairCase, spread
from pymongo import DeleteMany, InsertOne
from rawwire import Raw, session


class Behaviour(PairCase):
    """What one mongod cannot be compared for: routing, shards' errors joined, limits."""

    def raw(self):
        raw = Raw(self.cluster.port)
        self.addCleanup(raw.socket.close)
        return raw

    def on_shards(self, name="c"):
        """How many documents each shard has."""
        names = [s["name"] for s in self.cluster.layout["shards"]]
        return [self.cluster.member_client(n)[self.db.name][name].count_documents({}) for n in names]

    def write_error(self, command):
        """The only write error of a command."""
        reply = self.raw().run(self.db.name, command)
        self.assertEqual((reply["ok"], len(reply.get("writeErrors", []))), (1.0, 1), reply)
        return reply["writeErrors"][0]

    def test_recorded_errors(self):
        self.ranged()
        error = self.write_error({"insert": "c", "documents": [{"k": 1}, {"k": [1]}, {"k": 2}]})
        expected = {"index": 1, "code": 61, "errmsg": "Shard key cannot contain array values or array descendants."}
        self.assertEqual(error, expected)
        self.assertEqual(self.db.c.find_one({"k": 1})["k"], 1)
        self.assertIsNone(self.db.c.find_one({"k": 2}))
        move = {"update": "c", "updates": [{"q": {"k": 1}, "u": {"$set": {"k": 15}}}]}
        error = self.write_error(move)
        text = "Must run update to shard key field in a multi-statement transaction or with retryWrites: true."
        self.assertEqual((error["code"], error["errmsg"]), (20, text))
        error = self.write_error({"update": "c", "updates": [{"q": {}, "u": {"a": 1}, "multi": True}]})
        self.assertEqual(error["code"], 72)
        for mixed in ({"$set": {"a": 1}, "b": 1}, {"b": 1, "$set": {"a": 1}}):
            self.assertEqual(self.write_error({"update": "c", "updates": [{"q": {"k": 1}, "u": mixed}]})["code"], 12)
        error = self.write_error({"update": "c", "updates": [{"q": {"k": 1}, "u": {"k": [5]}}]})
        self.assertEqual(error["code"], 61)
        error = self.write_error({"update": "c", "updates": [{"q": {"k": 1}, "u": {"$set": {"k": [5]}}}]})
        self.assertEqual(error["code"], 61)
        self.assertEqual(self.db.c.find_one({})["k"], 1)

    def test_commands_that_are_malformed(self):
        self.ranged()
        raw = self.raw()
        for command, code in [
            ({"insert": "c", "documents": []}, 16),
            ({"insert": "c"}, 40414),
            ({"insert": "c", "documents": 5}, 14),
            ({"insert": "c", "documents": [{"k": 1}, {"k": 11}], "ordered": "x"}, 14),
            ({"insert": "c", "documents": [{"k": 1}, {"k": 11}], "bogus": 1}, 40415),
            ({"update": "c", "updates": [{"q": {}}]}, 40414),
            ({"update": "c", "updates": [{"q": {}, "u": 5}]}, 9),
            ({"update": "c", "updates": [{"q": {"z": 1}, "u": {"$set": {"a": 1}}, "bogus": 1}]}, 40415),
            ({"delete": "c", "deletes": [{"q": {}}]}, 40414),
            ({"delete": "c", "deletes": [{"q": {}, "limit": 3}]}, 9),
            ({"findAndModify": "c", "query": {"z": 1}}, 9),
            ({"findAndModify": "c", "query": {"z": 1}, "remove": True, "update": {}}, 9),
            ({"update": "c", "updates": [{"q": {"k": 1}, "u": {"a": 1}}], "autocommit": False, "txnNumber": Int64(1),
              "lsid": session(), "startTransaction": True}, 263),
        ]:  # fmt: skip
            reply = raw.run(self.db.name, command)
            self.assertEqual((reply["ok"], reply.get("code")), (0.0, code), (command, reply))
        for command, code in [
            ({"update": "c", "updates": [{"q": {"z": 1}, "u": {"$bad": 1}}]}, 9),
            ({"update": "c", "updates": [{"q": {"$bad": 1}, "u": {"$set": {"a": 1}}}]}, 2),
            ({"delete": "c", "deletes": [{"q": {"$bad": 1}, "limit": 1}]}, 2),
            ({"delete": "c", "deletes": [{"q": {"$bad": 1}, "limit": 0}]}, 2),
        ]:
            self.assertEqual(self.write_error(command)["code"], code, command)

    def test_ids_and_times_the_router_fills_in(self):
        pair = self.pair({"_id": "hashed"})
        pair.sharded.insert_many([{"n": i} for i in range(50)])
        self.raw().run(self.db.name, {"insert": "c", "documents": [{"n": i} for i in range(50, 60)]})
        docs = list(pair.sharded.find())
        self.assertEqual(len(docs), 60)
        for doc in docs:
            self.assertIsInstance(doc["_id"], ObjectId)
            self.assertEqual(list(doc), ["_id", "n"])
            self.assertTrue(pair.owner_has(doc))
        timed = self.pair({"t": 1}, [{"t": Timestamp(100, 1)}], name="timed")
        self.raw().run(self.db.name, {"insert": "timed", "documents": [{"t": Timestamp(0, 0)} for _ in range(3)]})
        docs = list(timed.sharded.find())
        self.assertEqual(len({d["t"].time for d in docs if d["t"].time > 10**9}), 1, docs)
        for doc in docs:
            self.assertTrue(timed.owner_has(doc), doc)

    def test_unordered_goes_on_after_errors(self):
        pair = self.ranged()
        pair.sharded.insert_many([{"_id": i, "k": i} for i in (1, 11, 21)])
        docs = [{"_id": i, "k": i} for i in (0, 1, 10, 11, 20, 21, 30)] + [{"_id": 99, "k": [1]}]
        reply = self.raw().run(self.db.name, {"insert": "c", "documents": docs, "ordered": False})
        self.assertEqual(reply["n"], 4)
        self.assertEqual([(e["index"], e["code"]) for e in reply["writeErrors"]], [(1, 11000), (3, 11000), (5, 11000), (7, 61)])
        self.assertEqual(reply["writeErrors"][1]["keyValue"], {"_id": 11})
        updates = [{"q": {"k": k}, "u": {"$inc": {"n": 1}} if k != 11 else {"$bad": 1}} for k in (1, 11, 21, 30)]
        updates.append({"q": {"n": 1}, "u": {"$set": {"m": 1}}, "multi": True})
        reply = self.raw().run(self.db.name, {"update": "c", "updates": updates, "ordered": False})
        self.assertEqual((reply["n"], [(e["index"], e["code"]) for e in reply["writeErrors"]]), (6, [(1, 9)]))

    def test_ordered_stops_at_the_first_error(self):
        pair = self.ranged()
        pair.sharded.insert_one({"_id": 11, "k": 11})
        docs = [{"_id": i, "k": i} for i in (0, 1, 10, 11, 20, 2)]
        reply = self.raw().run(self.db.name, {"insert": "c", "documents": docs})
        self.assertEqual((reply["n"], [(e["index"], e["code"]) for e in reply["writeErrors"]]), (3, [(3, 11000)]))
        self.assertEqual(sorted(d["_id"] for d in pair.sharded.find()), [0, 1, 10, 11])
        deletes = [{"q": {"k": 0}, "limit": 1}, {"q": {"$bad": 1}, "limit": 0}, {"q": {"k": 1}, "limit": 1}]
        reply = self.raw().run(self.db.name, {"delete": "c", "deletes": deletes})
        self.assertEqual((reply["n"], reply["writeErrors"][0]["index"]), (1, 1))

    def test_large_batches(self):
        pair = self.pair({"k": "hashed"}, indexes=())
        count, raw = 100_000, self.raw()
        docs = [bson.encode({"_id": i, "k": i}) for i in range(count)]
        reply = raw.run(self.db.name, {"insert": "c", "ordered": False}, ("documents", docs))
        self.assertEqual(reply, {"n": count, "ok": 1.0})
        self.assertEqual(sum(self.on_shards()), count)
        self.assertGreater(min(self.on_shards()), count // 10)
        updates = [bson.encode({"q": {"k": i}, "u": {"$set": {"v": 1}}}) for i in range(count)]
        reply = raw.run(self.db.name, {"update": "c", "ordered": False}, ("updates", updates))
        self.assertEqual(reply, {"n": count, "nModified": count, "ok": 1.0})
        # Every document again: 100,000 errors still fit a reply.
        reply = raw.run(self.db.name, {"insert": "c", "ordered": False}, ("documents", docs))
        self.assertEqual((reply["n"], [e["index"] for e in reply["writeErrors"]]), (0, list(range(count))))
        deletes = [bson.encode({"q": {"k": i}, "limit": 1}) for i in range(count)]
        reply = raw.run(self.db.name, {"delete": "c", "ordered": False}, ("deletes", deletes))
        self.assertEqual(reply, {"n": count, "ok": 1.0})
        reply = raw.run(self.db.name, {"delete": "c"}, ("deletes", deletes + deletes[:1]))
        self.assertEqual((reply["ok"], reply["code"]), (0.0, 16))
        self.assertEqual(pair.sharded.find_one(), None)

    def test_ordered_100k_in_key_order(self):
        self.pair({"k": 1}, [{"k": 30_000}, {"k": 60_000}], indexes=())
        docs = [bson.encode({"_id": i, "k": i}) for i in range(100_000)]
        reply = self.raw().run(self.db.name, {"insert": "c"}, ("documents", docs))
        self.assertEqual(reply, {"n": 100_000, "ok": 1.0})
        self.assertEqual(sorted(self.on_shards()), [30_000, 30_000, 40_000])

    def test_48_megabytes(self):
        self.pair({"k": 1}, [{"k": 2}, {"k": 4}], indexes=())
        pad = b"x" * 3_990_000
        docs = [bson.encode({"_id": i, "k": i % 6, "pad": pad}) for i in range(12)]
        for ordered in (True, False):
            reply = self.raw().run(self.db.name, {"insert": "c", "ordered": ordered}, ("documents", docs))
            self.assertEqual(reply, {"n": 12, "ok": 1.0})
            self.db.c.delete_many({})
        # All for one shard, with statement numbers: the command made from it must stay within the limit too.
        docs = [bson.encode({"_id": i, "k": 0 if i < 11 else 5, "pad": pad}) for i in range(12)]
        command = {"insert": "c", "ordered": False, "lsid": session(), "txnNumber": Int64(1)}
        self.assertEqual(self.raw().run(self.db.name, command, ("documents", docs)), {"n": 12, "ok": 1.0})

    def test_a_document_that_is_too_big(self):
        self.ranged()
        big = bson.encode({"_id": 1, "k": 1, "pad": b"x" * (16 * 1024 * 1024)})
        small = [bson.encode({"_id": 2, "k": 15}), bson.encode({"_id": 3, "k": 1})]
        reply = self.raw().run(self.db.name, {"insert": "c", "ordered": False}, ("documents", [small[0], big, small[1]]))
        self.assertEqual((reply["n"], [(e["index"], e["code"]) for e in reply["writeErrors"]]), (2, [(1, 2)]), reply)

    def test_unacknowledged(self):
        pair = self.ranged()
        loose = pair.sharded.with_options(write_concern=pymongo.WriteConcern(w=0))
        loose.insert_many([{"_id": i, "k": i} for i in range(0, 30, 3)])
        loose.update_many({"k": {"$gte": 0}}, {"$set": {"v": 1}})
        loose.update_one({"_id": 3}, {"$set": {"w": 1}})
        loose.update_one({"v": 1, "_id": {"$in": [6]}}, {"$set": {"w": 2}})
        loose.delete_one({"k": 9})
        loose.insert_one({"_id": 100, "k": 100})
        eventually(lambda: pair.sharded.find_one({"_id": 100}))
        docs = {d["_id"]: d for d in pair.sharded.find()}
        self.assertEqual((len(docs), docs[3].get("w"), docs[6].get("w"), 9 in docs), (10, 1, 2, False))
        unsharded = self.db.plain.with_options(write_concern=pymongo.WriteConcern(w=0))
        unsharded.insert_one({"_id": 1})
        eventually(lambda: self.db.plain.find_one({"_id": 1}))

    def test_write_concern_errors_name_the_shards(self):
        self.ranged()
        concern = {"w": 2, "wtimeout": 50}
        reply = self.raw().run(self.db.name, {"insert": "c", "documents": [{"k": 1}, {"k": 11}, {"k": 21}], "writeConcern": concern})
        self.assertEqual(reply["n"], 3)
        text = reply["writeConcernError"]["errmsg"]
        self.assertEqual(reply["writeConcernError"]["code"], 64)
        for i in range(3):
            self.assertIn(f" at shard{i}", text)
        reply = self.raw().run(self.db.name, {"update": "c", "updates": [{"q": {"k": 1}, "u": {"$set": {"v": 1}}}], "writeConcern": concern})
        self.assertEqual(reply["writeConcernError"]["code"], 100)

    def test_options_reach_the_shards(self):
        pair = self.ranged()
        for c in (pair.sharded, pair.plain):
            c.insert_many([{"_id": i, "k": i, "u": i, "name": "Bob", "grades": [1, 5, 9]} for i in range(0, 30)])
        both = pair.both
        both("arrayFilters", lambda c: c.update_many({"k": {"$gte": 3}}, {"$set": {"grades.$[g]": 0}}, array_filters=[{"g": {"$gt": 4}}]))
        both("arrayFilters, one", lambda c: c.update_one({"u": 1}, {"$set": {"grades.$[g]": 7}}, array_filters=[{"g": 5}]))
        both("positional", lambda c: c.update_one({"u": 2, "grades": 9}, {"$set": {"grades.$": 77}}))
        both("collation", lambda c: c.update_many({"name": "bob", "k": {"$lt": 9}}, {"$set": {"v": 1}}, collation={"locale": "en", "strength": 2}))
        both("collation, one", lambda c: c.update_one({"name": "bob", "u": 4}, {"$set": {"v": 2}}, collation={"locale": "en", "strength": 2}))
        both("let", lambda c: c.update_many({"$expr": {"$lt": ["$k", "$$limit"]}}, [{"$set": {"w": "$$limit"}}], let={"limit": 12}))
        both("let, one", lambda c: c.update_one({"u": 5}, [{"$set": {"w": "$$limit"}}], let={"limit": 13}))
        both("let, delete", lambda c: c.delete_many({"$expr": {"$gt": ["$k", "$$limit"]}}, let={"limit": 25}))
        both("hint", lambda c: c.update_one({"u": 6}, {"$set": {"v": 3}}, hint=[("u", 1)]))
        both("a hint that is none", lambda c: c.update_one({"u": 6}, {"$set": {"v": 3}}, hint="nope"))
        both("hint, delete", lambda c: c.delete_one({"u": 7}, hint="u_1"))
        both("hint, find and modify", lambda c: c.find_one_and_update({"u": 8}, {"$set": {"v": 4}}, hint="u_1"))
        both("comment", lambda c: c.update_many({}, {"$set": {"z": 1}}, comment="why"))
        pair.check()
        constants = {"update": "c", "updates": [{"q": {"u": 9}, "u": [{"$set": {"v": "$$c"}}], "c": {"c": 42}}]}
        self.raw().run(self.db.name, constants)
        self.assertEqual(pair.sharded.find_one({"k": 9})["v"], 42)

    def test_validators(self):
        rule = {"validator": {"v": {"$ne": 13}}}
        self.db.create_collection("c", **rule)
        self.client.admin.command("shardCollection", f"{self.db.name}.c", key={"k": 1})
        self.db.c.insert_one({"_id": 1, "k": 1})
        error = self.assertFails(121, self.db.c.update_one, {"_id": 1}, {"$set": {"v": 13, "k": 5}})
        self.assertIn("errInfo", error.details)
        self.assertFails(121, self.db.c.update_one, {"q": 1}, {"$set": {"v": 13}}, upsert=True)
        self.db.c.update_one({"q": 1}, {"$set": {"v": 13}}, upsert=True, bypass_document_validation=True)
        self.assertEqual(self.db.c.find_one({"q": 1})["v"], 13)

    def test_a_collection_with_a_collation(self):
        ci = {"locale": "en", "strength": 2}
        self.db.create_collection("c", collation=ci)
        spread(self, self.cluster, f"{self.db.name}.c", {"k": 1}, [{"k": "b"}, {"k": "m"}], collation={"locale": "simple"})
        plain = self.oracle.client[self.db.name]
        plain.drop_collection("c")
        plain.create_collection("c", collation=ci)
        pair = Pair(self, self.cluster, self.db.c, plain.c, ["k"])
        docs = [{"_id": i, "k": k} for i, k in enumerate(["a", "A", "b", "B", "x", "X", "m"])]
        pair.both("insert", lambda c: c.insert_many(docs))
        pair.both("under the collection's collation", lambda c: c.update_many({"k": "a"}, {"$set": {"v": 1}}))
        pair.both("under another", lambda c: c.update_many({"k": "X"}, {"$set": {"w": 1}}, collation={"locale": "simple"}))
        pair.both("one", lambda c: c.update_one({"k": "M"}, {"$set": {"w": 5}}))
        pair.both("delete", lambda c: c.delete_many({"k": "X"}))
        self.assertEqual(pair.contents(pair.sharded), pair.contents(pair.plain))

    def test_multi_updates_do_not_change_shard_keys(self):
        pair = self.ranged()
        pair.sharded.insert_many([{"_id": i, "k": i, "same": i} for i in range(0, 30, 2)])
        text = "Multi-update operations are not allowed when updating the shard key field."
        for change in ({"$set": {"k": 4}}, {"$inc": {"k": 1}}, [{"$set": {"k": 4}}], [{"$replaceWith": {"_id": "$_id", "k": 3}}]):
            error = self.assertFails(72, pair.sharded.update_many, {"_id": {"$gte": 0}}, change)
            self.assertEqual(error.details["errmsg"], text)
        result = pair.sharded.update_many({"_id": {"$lt": 10}}, [{"$set": {"k": "$same", "v": 1}}])
        self.assertEqual((result.matched_count, result.modified_count), (5, 5))
        result = pair.sharded.update_many({"k": 4}, {"$set": {"k": 4, "w": 1}})
        self.assertEqual((result.matched_count, result.modified_count), (1, 1))
        self.assertEqual(pair.sharded.update_many({"_id": -1}, {"$set": {"k": 4}}).matched_count, 0)
        self.assertEqual({d["k"] for d in pair.sharded.find()}, set(range(0, 30, 2)))

    def test_many_upserts_without_the_shard_key(self):
        pair = self.ranged()
        for i in range(12):
            result = pair.sharded.update_many({"name": i}, {"$set": {"k": i * 3}, "$inc": {"n": 1}}, upsert=True)
            self.assertIsNotNone(result.upserted_id)
        result = pair.sharded.update_many({"name": {"$gte": 0}}, {"$inc": {"n": 1}}, upsert=True)
        self.assertEqual((result.matched_count, result.upserted_id), (12, None))
        for doc in pair.sharded.find():
            self.assertTrue(pair.owner_has(doc), doc)

    def test_unsharded_collections(self):
        plain = self.client["new_database_for_writes"].c
        self.addCleanup(self.client.drop_database, "new_database_for_writes")
        self.assertEqual(plain.insert_one({"_id": 1}).inserted_id, 1)
        self.assertEqual(plain.update_one({"_id": 2}, {"$set": {"a": 1}}, upsert=True).upserted_id, 2)
        self.assertEqual(plain.find_one_and_delete({}, sort=[("_id", -1)]), {"_id": 2, "a": 1})
        self.assertEqual(plain.bulk_write([InsertOne({"_id": 5}), DeleteMany({})]).deleted_count, 2)
        self.assertFails(11000, lambda: (plain.insert_one({"_id": 1}), plain.insert_one({"_id": 1})))

    def test_a_duplicate_id_on_the_recipient(self):
        pair = self.ranged()
        pair.sharded.insert_many([{"_id": "same", "k": 1}, {"_id": "same", "k": 15}])
        error = self.assertFails(11000, pair.sharded.update_one, {"k": 1}, {"$set": {"k": 12}})
        self.assertIn("same", str(error))
        self.assertEqual(sorted(d["k"] for d in pair.sharded.find()), [1, 15])
        self.assertFails(11000, pair.sharded.find_one_and_replace, {"k": 1}, {"k": 12})
        self.assertEqual(sorted(d["k"] for d in pair.sharded.find()), [1, 15])
        self.assertEqual(list(self.client.config["mosaic.txns"].find()), [])
