"""Several routers on the replica-set store see each other's changes within a second; what exists they know at once.

(A catalog in a file is for one router; test_dev shows that more are refused.)

Everything is done through the first router and looked at through the second one. The delays are measured and the longest
is printed.
"""

import os
import signal
import threading
import time
import unittest

import pymongo
from bare import Bare
from cluster import ClusterCase, eventually

SECOND = 1.0


class TwoRouters(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.delays = []
        cls.cluster = Bare(shards=2, catalog="replicaset", routers=2)
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.first, cls.second = cls.cluster.client(0, serverSelectionTimeoutMS=20000), cls.cluster.client(1, serverSelectionTimeoutMS=20000)
        # A moment after the first router was given its shards.
        cls.second.early.c.create_index("x")

    @classmethod
    def tearDownClass(cls):
        cls.delays.sort()
        delay, what = cls.delays[-1]
        middle = cls.delays[len(cls.delays) // 2][0]
        print(
            f"several routers on the replica-set store see each other's changes within a second: {len(cls.delays)} changes, "
            f"middle {middle * 1000:.0f} ms, longest {delay * 1000:.0f} ms ({what})"
        )

    def setUp(self):
        self.name = self._testMethodName
        self.addCleanup(self.first.drop_database, self.name)
        self.db, self.other = self.first[self.name], self.second[self.name]

    def seen(self, what, change, check, at_once=False):
        """Makes the change through the first router; the second one must see it within a second, or at the first look."""
        result = change()
        began = time.monotonic()
        looks = 0
        while True:
            looks += 1
            found = check()
            delay = time.monotonic() - began
            if found:
                break
            self.assertFalse(at_once, f"{what} was not seen at once")
            self.assertLess(delay, SECOND, f"{what} was not seen within a second")
            time.sleep(0.002)
        # The look itself takes time; what was there at the first one has no delay.
        self.delays.append((0.0 if looks == 1 else delay, what))
        return result

    def at_once(self, what, change, check):
        return self.seen(what, change, check, at_once=True)

    def route(self, filter=None):
        """What the second router says about a find on `c`."""
        return self.other.command("explain", {"find": "c", "filter": filter or {}}, verbosity="queryPlanner")["mosaic"]

    def shard_has(self, shard, name="c", db=None):
        return self.cluster.shard_client(shard)[db or self.name][name].estimated_document_count() > 0

    def test_a_database_that_comes_into_being(self):
        for i in range(20):
            db = f"{self.name}{i}"
            self.addCleanup(self.first.drop_database, db)
            self.assertEqual(self.second[db].c.count_documents({}), 0)
            self.assertEqual(self.second[db].list_collection_names(), [])
            self.at_once(
                "insert into a new database",
                lambda: self.first[db].c.insert_one({"_id": 1}),
                lambda: list(self.second[db].c.find()) == [{"_id": 1}],
            )
            self.assertEqual(self.second[db].list_collection_names(), ["c"])
            self.assertIn(db, self.second.list_database_names())

    def test_every_kind_of_read_of_a_new_database(self):
        reads = {
            "find": lambda db: list(db.c.find()),
            "count": lambda db: db.c.estimated_document_count(),
            "distinct": lambda db: db.c.distinct("_id"),
            "aggregate": lambda db: list(db.c.aggregate([{"$match": {}}])),
            "listCollections": lambda db: db.list_collection_names(),
            "listIndexes": lambda db: [i for i in db.c.list_indexes() if i["name"] == "x_1"],
            "collStats": lambda db: db.command("collStats", "c")["count"],
            "dbStats": lambda db: db.command("dbStats")["objects"],
            "delete": lambda db: db.c.delete_one({"_id": 1}).deleted_count,
            "update": lambda db: db.c.update_one({"_id": 1}, {"$set": {"a": 1}}).matched_count,
            "findAndModify": lambda db: db.c.find_one_and_update({"_id": 1}, {"$set": {"a": 1}}),
            "validate": lambda db: db.command("validate", "c")["valid"],
            "drop": lambda db: db.command("drop", "c").get("ns"),
            "dropIndexes": lambda db: db.command("dropIndexes", "c", index="x_1")["ok"],
            "collMod": lambda db: db.command("collMod", "c", validationLevel="moderate")["ok"],
            "dropDatabase": lambda db: db.command("dropDatabase")["ok"] and not self.cluster.shard_client("shard0")[db.name].list_collection_names(),
            "rename": lambda db: self.second.admin.command("renameCollection", f"{db.name}.c", to=f"{db.name}.d")["ok"],
        }
        for name, read in reads.items():
            db = f"{self.name}_{name}"
            with self.subTest(read=name):
                self.addCleanup(self.first.drop_database, db)

                def make(db=db):
                    self.first[db].c.insert_one({"_id": 1})
                    self.cluster.shard_client(self.first.config.databases.find_one({"_id": db})["primary"])[db].c.create_index("x")

                self.at_once(f"a new database by {name}", make, lambda read=read, db=db: read(self.second[db]))

    def test_enable_sharding(self):
        for i, shard in enumerate(["shard0", "shard1", "shard0", "shard1"]):
            db = f"{self.name}{i}"
            self.addCleanup(self.first.drop_database, db)
            self.at_once(
                "enableSharding",
                lambda: self.first.admin.command("enableSharding", db, primaryShard=shard),
                lambda: self.second[db].c.insert_one({"_id": 1}) and self.shard_has(shard, db=db),
            )

    def test_drop_database_and_make_it_elsewhere(self):
        for shard in ["shard0", "shard1", "shard0"]:
            self.first.admin.command("enableSharding", self.name, primaryShard=shard)
            self.other.c.insert_one({"_id": 1})
            self.assertTrue(self.shard_has(shard))
            self.at_once("dropDatabase", lambda: self.first.drop_database(self.name), lambda: not list(self.other.c.find()))
            self.assertEqual(self.other.list_collection_names(), [])
            self.assertNotIn(self.name, self.second.list_database_names())

    def test_shard_split_refine_and_drop(self):
        for i in range(3):
            self.db.c.insert_one({"_id": "old", "k": 1})
            self.assertEqual(self.other.c.count_documents({}), 1)
            self.db.c.drop()
            self.at_once(
                "shardCollection",
                lambda: self.first.admin.command("shardCollection", f"{self.name}.c", key={"k": "hashed"}),
                lambda: self.route()["shards"] == ["shard0", "shard1"],
            )
            self.other.c.insert_many([{"_id": n, "k": n} for n in range(100)])
            self.assertEqual(self.db.c.count_documents({}), 100)
            self.at_once("drop", lambda: self.db.c.drop(), lambda: self.route()["reason"] not in ("NoShardKey",))
            self.assertEqual(self.other.list_collection_names(), [])
            self.other.c.insert_one({"_id": 1})
            self.assertEqual(list(self.db.c.find()), [{"_id": 1}])
            self.db.c.drop()

        self.at_once(
            "shardCollection by a range",
            lambda: self.first.admin.command("shardCollection", f"{self.name}.c", key={"a": 1}),
            lambda: self.route({"a": 5})["reason"] == "EqualityOnShardKey",
        )
        for n in range(10):
            self.seen(
                "split",
                lambda: self.first.admin.command("split", f"{self.name}.c", middle={"a": n}),
                lambda: self.route()["totalChunks"] == n + 2,
            )
        chunk = self.first.config.chunks.find_one({"min.a": 9})
        to = "shard1" if chunk["shard"] == "shard0" else "shard0"
        self.seen(
            "a chunk that changes its shard",
            lambda: self.first.admin.command("_mosaicPlaceChunk", f"{self.name}.c", bounds=[chunk["min"], chunk["max"]], to=to),
            lambda: self.route({"a": 10})["shards"] == [to],
        )
        self.seen(
            "mergeChunks",
            lambda: self.first.admin.command("mergeChunks", f"{self.name}.c", bounds=[{"a": 0}, {"a": 5}]),
            lambda: self.route()["totalChunks"] == 7,
        )
        self.db.c.create_index([("a", 1), ("b", 1)])
        self.at_once(
            "refineCollectionShardKey",
            lambda: self.first.admin.command("refineCollectionShardKey", f"{self.name}.c", key={"a": 1, "b": 1}),
            lambda: self.route({"a": 5})["reason"] != "EqualityOnShardKey",
        )

    def test_collections_indexes_and_options(self):
        for key in (None, {"k": "hashed"}):
            with self.subTest(key=key):
                self.at_once("create", lambda: self.db.create_collection("c"), lambda: self.other.list_collection_names() == ["c"])
                if key:
                    self.first.admin.command("shardCollection", f"{self.name}.c", key=key)
                self.at_once("createIndexes", lambda: self.db.c.create_index("x"), lambda: "x_1" in self.other.c.index_information())
                self.at_once("dropIndexes", lambda: self.db.c.drop_index("x_1"), lambda: "x_1" not in self.other.c.index_information())

                def refused():
                    try:
                        self.other.c.insert_many([{"k": n} for n in range(5)])
                    except pymongo.errors.BulkWriteError as e:
                        return e.details["writeErrors"][0]["code"] == 121

                self.at_once("collMod", lambda: self.db.command("collMod", "c", validator={"k": {"$type": "string"}}), refused)
                self.db.c.insert_many([{"k": str(n)} for n in range(20)])
                self.at_once("renameCollection", lambda: self.db.c.rename("d"), lambda: self.other.d.count_documents({}) == 20)
                self.assertEqual(list(self.other.c.find()), [])
                self.assertEqual(self.other.list_collection_names(), ["d"])
                self.other.d.insert_one({"k": "more"})
                self.assertEqual(self.db.d.count_documents({}), 21)
                self.at_once("drop", lambda: self.db.d.drop(), lambda: not list(self.other.d.find()))

    def test_views(self):
        self.db.plain.insert_many([{"a": n} for n in range(4)])
        view = {"viewOn": "plain", "pipeline": [{"$match": {"a": {"$gt": 1}}}]}
        self.at_once("a new view", lambda: self.db.create_collection("v", **view), lambda: len(list(self.other.v.find())) == 2)
        self.at_once(
            "a changed view",
            lambda: self.db.command("collMod", "v", viewOn="plain", pipeline=[{"$match": {"a": 0}}]),
            lambda: len(list(self.other.v.find())) == 1,
        )
        self.at_once("a dropped view", lambda: self.db.v.drop(), lambda: not list(self.other.v.find()))
        self.first.admin.command("shardCollection", f"{self.name}.s", key={"k": "hashed"})
        self.db.s.insert_many([{"k": n} for n in range(20)])
        self.assertEqual(list(self.other.w.find()), [])

        # Never a part of it for longer than a second.
        view = {"viewOn": "s", "pipeline": []}
        self.seen("a new view over a sharded collection", lambda: self.db.create_collection("w", **view), lambda: len(list(self.other.w.find())) == 20)
        self.seen("its end", lambda: self.db.w.drop(), lambda: not list(self.other.w.find()))

    def test_settings(self):
        settings = self.first.config.settings
        self.addCleanup(settings.delete_one, {"_id": "chunksize"})

        def size():
            return self.second.admin.command("serverStatus")["sharding"]["maxChunkSizeInBytes"]

        for mb in (5, 6, 7):
            self.seen(
                "a setting",
                lambda: settings.update_one({"_id": "chunksize"}, {"$set": {"value": mb}}, upsert=True),
                lambda: size() == mb << 20,
            )

    def test_z_shards_and_their_defaults(self):
        """Last: what it adds stays."""
        concern = {"w": 1, "wtimeout": 0}
        self.at_once(
            "setDefaultRWConcern",
            lambda: self.first.admin.command("setDefaultRWConcern", defaultWriteConcern=concern, defaultReadConcern={"level": "majority"}),
            lambda: self.second.admin.command("getDefaultRWConcern")["defaultWriteConcern"]["w"] == 1,
        )
        port = self.cluster.base + 9
        self.cluster._start_mongod("extra", port)
        self.cluster._initiate("extra", port)
        self.at_once(
            "addShard",
            lambda: self.first.admin.command("addShard", f"extra/127.0.0.1:{port}"),
            lambda: "extra" in [s["_id"] for s in self.second.admin.command("listShards")["shards"]],
        )
        with pymongo.MongoClient("127.0.0.1", port, directConnection=True) as own:
            defaults = own.admin.command("getDefaultRWConcern")
            self.assertEqual((defaults["defaultWriteConcern"]["w"], defaults["defaultWriteConcernSource"]), (1, "global"))
            self.assertEqual(defaults["defaultReadConcern"], {"level": "majority"})
            self.second.admin.command("enableSharding", self.name, primaryShard="extra")
            self.other.c.insert_one({"_id": 1})
            self.assertEqual(own[self.name].c.count_documents({}), 1)
        self.cluster._start_mongod("own", port + 1)
        self.cluster._initiate("own", port + 1)
        with pymongo.MongoClient("127.0.0.1", port + 1, directConnection=True) as own:
            own.admin.command("setDefaultRWConcern", defaultWriteConcern={"w": "majority", "wtimeout": 0})
        with self.assertRaises(pymongo.errors.OperationFailure) as caught:
            self.first.admin.command("addShard", f"own/127.0.0.1:{port + 1}")
        self.assertIn("default write concern", str(caught.exception))

    def test_asking_for_what_is_not_there_spares_the_catalog(self):
        catalog = self.cluster.shard_client("cfg").admin
        count = lambda: catalog.command("serverStatus")["opcounters"]["query"]
        before, end, reads = count(), time.monotonic() + 1, [0] * 8

        def read(i):
            while time.monotonic() < end:
                self.second[f"{self.name}_not"].c.find_one()
                reads[i] += 1

        threads = [threading.Thread(target=read, args=(i,)) for i in range(len(reads))]
        [t.start() for t in threads]
        [t.join() for t in threads]
        asked = count() - before
        # Every 5 ms at most, and what the routers do anyway.
        self.assertLess(asked, 300, f"{sum(reads)} reads")

    def test_without_the_catalog_nothing_unknown_is_denied(self):
        self.db.c.insert_one({"_id": 1})
        self.assertEqual(self.other.c.count_documents({}), 1)
        pid = self.cluster.mongods["cfg"].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            self.assertEqual(list(self.other.c.find()), [{"_id": 1}])
            self.other.c.insert_one({"_id": 2})
            with self.assertRaises(pymongo.errors.ExecutionTimeout):
                self.second[f"{self.name}_not"].c.find_one(max_time_ms=300)
        finally:
            os.kill(pid, signal.SIGCONT)
        eventually(lambda: self.second[f"{self.name}_not"].c.find_one() is None and [1], what="the catalog's return")
        self.seen("after the catalog's return", lambda: self.first[f"{self.name}2"].c.insert_one({}), lambda: self.second[f"{self.name}2"].c.find_one())
        self.first.drop_database(f"{self.name}2")


class TwoRoutersOfOneProcess(ClusterCase):
    """`mosaic dev --routers 2`: neither takes the other's changes for those of a process that is gone."""

    setup = {"shards": 2, "routers": 2, "catalog": "replicaset"}

    def test_changes_of_one_are_left_alone_by_the_other(self):
        clients = [self.cluster.client(i) for i in range(2)]
        began = time.monotonic()
        number = 0
        # For some rounds of both routers' looks at unfinished changes.
        while time.monotonic() - began < 10:
            client, name = clients[number % 2], f"c{number}"
            client[self.db.name][name].insert_many([{"k": i} for i in range(20)])
            client[self.db.name][name].create_index("k")
            client.admin.command("shardCollection", f"{self.db.name}.{name}", key={"k": 1})
            client[self.db.name][name].create_index("other")
            client[self.db.name][name].rename(f"r{number}")
            if number % 3 == 0:
                client[self.db.name][f"r{number}"].drop()
            number += 1
        self.assertGreater(number, 3)


if __name__ == "__main__":
    unittest.main()
