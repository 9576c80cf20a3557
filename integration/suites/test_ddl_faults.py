"""Structure changes that are interrupted: a shard that refuses, stalls or is away, a router that dies at any step."""

import os
import random
import signal
import threading
import unittest

import pymongo
from bare import Bare
from cluster import ClusterCase, eventually
from ddl_checks import intents, problems, structure, wait_quiet


class Faults(ClusterCase):
    """One shard fails while the change is made."""

    setup = {"shards": 3, "flags": ["--setParameter", "enableTestCommands=true"]}

    def setUp(self):
        super().setUp()
        self.client.admin.command("enableSharding", self.db.name, primaryShard="shard0")
        self.coll = self.shard("h", {"k": "hashed"})
        self.coll.insert_many([{"_id": i, "k": i, "v": i % 3} for i in range(60)])
        self.addCleanup(self.heal)

    def fail(self, shard, command, **data):
        admin = self.cluster.member_client(shard).admin
        mode = data.pop("mode", "alwaysOn")
        admin.command("configureFailPoint", "failCommand", mode=mode, data={"failCommands": [command], **data})

    def heal(self):
        for shard in ("shard0", "shard1", "shard2"):
            self.cluster.member_client(shard).admin.command("configureFailPoint", "failCommand", mode="off")
        wait_quiet(self.cluster)

    def assertSound(self):
        wait_quiet(self.cluster)
        self.assertEqual(problems(self.cluster, self.db.name), [])

    def test_index_refused_by_one_shard(self):
        self.fail("shard1", "createIndexes", errorCode=14031)
        self.assertFails(14031, self.coll.create_index, "v")
        self.assertSound()
        self.assertEqual(set(self.coll.index_information()), {"_id_", "k_hashed"})

    def test_index_on_a_shard_whose_connection_breaks_once(self):
        self.fail("shard1", "createIndexes", closeConnection=True, mode={"times": 1})
        self.coll.create_index("v")
        self.assertSound()
        self.assertIn("v_1", self.coll.index_information())

    def test_index_on_a_shard_that_is_away_is_built_later(self):
        self.fail("shard1", "createIndexes", closeConnection=True)
        with self.assertRaises(pymongo.errors.OperationFailure):
            self.coll.create_index("v")
        self.assertEqual([i["op"] for i in intents(self.cluster)], ["createIndexes"])
        self.heal()
        self.assertSound()
        self.assertIn("v_1", self.coll.index_information())

    def test_undo_that_cannot_reach_a_shard_is_done_later(self):
        self.fail("shard1", "createIndexes", errorCode=14031)
        self.fail("shard2", "dropIndexes", closeConnection=True)
        self.assertFails(14031, self.coll.create_index, "v")
        self.heal()
        self.assertSound()
        self.assertEqual(set(self.coll.index_information()), {"_id_", "k_hashed"})

    def test_index_dropped_later_on_a_shard_that_is_away(self):
        self.coll.create_index("v")
        self.fail("shard2", "dropIndexes", closeConnection=True)
        with self.assertRaises(pymongo.errors.OperationFailure):
            self.coll.drop_index("v_1")
        self.heal()
        self.assertSound()
        self.assertEqual(set(self.coll.index_information()), {"_id_", "k_hashed"})

    def test_options_refused_by_one_shard_are_set_back(self):
        self.db.command("collMod", "h", validator={"v": {"$gte": 0}})
        self.fail("shard2", "collMod", errorCode=14031, mode={"times": 1})
        self.assertFails(14031, self.db.command, "collMod", "h", validator={"v": {"$lt": 0}})
        self.assertSound()
        for shard in ("shard0", "shard1", "shard2"):
            options = self.cluster.shard_client(shard)[self.db.name].h.options()
            self.assertEqual(options["validator"], {"v": {"$gte": 0}}, shard)

    def test_drop_finished_later_leaves_a_new_collection_alone(self):
        self.fail("shard2", "drop", closeConnection=True)
        with self.assertRaises(pymongo.errors.OperationFailure):
            self.coll.drop()
        self.assertEqual(list(self.coll.find()), [])
        self.coll.insert_one({"_id": "new"})
        self.heal()
        self.assertSound()
        self.assertEqual(list(self.coll.find()), [{"_id": "new"}])
        for shard in ("shard1", "shard2"):
            self.assertEqual(structure(self.cluster, self.db.name)[shard], {})

    def test_drop_that_the_primary_shard_fails(self):
        self.fail("shard0", "drop", closeConnection=True)
        with self.assertRaises(pymongo.errors.OperationFailure):
            self.coll.drop()
        self.heal()
        self.assertSound()
        self.assertEqual(list(self.coll.find()), [])

    def test_rename_that_a_shard_fails_is_finished_later(self):
        self.fail("shard1", "renameCollection", closeConnection=True)
        with self.assertRaises(pymongo.errors.OperationFailure):
            self.coll.rename("g")
        self.heal()
        self.assertSound()
        self.assertEqual(len(list(self.db.g.find())), 60)
        self.assertEqual(self.db.list_collection_names(), ["g"])

    def test_rename_that_the_primary_shard_refuses_changes_nothing(self):
        self.fail("shard0", "renameCollection", errorCode=14031)
        self.assertFails(14031, self.coll.rename, "g")
        self.assertSound()
        self.assertEqual(len(list(self.coll.find())), 60)

    def test_drop_database_finished_later_blocks_a_new_one_of_the_name(self):
        self.fail("shard1", "dropDatabase", closeConnection=True)
        with self.assertRaises(pymongo.errors.OperationFailure):
            self.db.command("dropDatabase")
        with self.assertRaises(pymongo.errors.OperationFailure) as caught:
            self.db.x.insert_one({"_id": 1})
        self.assertEqual(caught.exception.code, 117, caught.exception)
        self.heal()
        self.db.x.insert_one({"_id": 1})
        self.assertSound()
        self.assertEqual(self.db.list_collection_names(), ["x"])
        self.assertEqual(structure(self.cluster, self.db.name)["shard1"].keys() - {"x"}, set())

    def test_sharding_that_fails_leaves_no_copies(self):
        self.db.plain.create_index("x")
        self.fail("shard1", "createIndexes", errorCode=14031)
        with self.assertRaises(pymongo.errors.OperationFailure):
            self.client.admin.command("shardCollection", f"{self.db.name}.plain", key={"k": "hashed"})
        self.heal()
        self.assertSound()


class Away(unittest.TestCase):
    """A shard is not there when a change begins. The router's patience is short, so that the tests' may be too."""

    @classmethod
    def setUpClass(cls):
        pool = {"connectTimeoutMS": 2000, "serverSelectionTimeoutMS": 3000, "heartbeatIntervalMS": 1000}
        cls.cluster = Bare(shards=3, pool=pool)
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.client = cls.cluster.client(serverSelectionTimeoutMS=20000)

    def setUp(self):
        self.db = self.client[self._testMethodName]
        self.coll = self.db.h
        self.client.admin.command("shardCollection", f"{self.db.name}.h", key={"k": "hashed"})
        self.coll.insert_many([{"_id": i, "k": i} for i in range(60)])

    def assertUnchanged(self):
        eventually(lambda: len(list(self.coll.find())) == 60, what="reading all shards again")
        wait_quiet(self.cluster)
        self.assertEqual(problems(self.cluster, self.db.name), [])
        self.assertEqual(self.db.list_collection_names(), ["h"])

    def test_a_shard_that_stands_still_changes_nothing(self):
        pid = self.cluster.mongods["shard1"].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            with self.assertRaises(pymongo.errors.OperationFailure):
                self.coll.drop()
        finally:
            os.kill(pid, signal.SIGCONT)
        self.assertUnchanged()

    def test_a_shard_that_is_dead_changes_nothing(self):
        self.cluster.kill_mongod("shard2")
        try:
            with self.assertRaises(pymongo.errors.OperationFailure):
                self.coll.drop()
        finally:
            self.cluster.restart_mongod("shard2")
        self.assertUnchanged()


# The places where a router can die during each change.
PLACES = {
    "drop": ["ddl.recorded", "ddl.advanced", "ddl.committed", "ddl.oneShard", "ddl.driven"],
    "dropDatabase": ["ddl.recorded", "ddl.advanced", "ddl.committed", "ddl.oneShard", "ddl.driven"],
    "rename": ["ddl.recorded", "ddl.advanced", "ddl.committed", "ddl.oneShard", "ddl.driven"],
    "createIndexes": ["ddl.recorded", "ddl.advanced", "ddl.oneShard", "ddl.driven"],
    "dropIndexes": ["ddl.recorded", "ddl.advanced", "ddl.oneShard", "ddl.driven"],
    "collMod": ["ddl.recorded", "ddl.advanced", "ddl.oneShard", "ddl.driven"],
    "shardCollection": ["ddl.recorded", "shardCollection.copied", "ddl.driven"],
}


class Crashes(unittest.TestCase):
    """The router dies at each step of each change; started again, the change is complete or nothing of it is left."""

    def test_embedded_catalog(self):
        self.every_step("embedded")

    def test_catalog_on_a_replica_set(self):
        self.every_step("replicaset")

    def every_step(self, catalog):
        with Bare(shards=2, catalog=catalog) as cluster:
            for change, places in PLACES.items():
                for place in places:
                    with self.subTest(change=change, place=place):
                        self.once(cluster, change, place)

    def once(self, cluster, change, place):
        client = cluster.client()
        db = client["crash"]
        client.drop_database("crash")
        client.admin.command("enableSharding", "crash", primaryShard="shard0")
        if change != "shardCollection":
            client.admin.command("shardCollection", "crash.h", key={"k": "hashed"})
            db.h.insert_many([{"_id": i, "k": i} for i in range(20)])
            db.h.create_index("old")
        else:
            db.h.create_index("old")
        db.other.insert_one({"_id": 1})
        client.admin.command("configureFailPoint", "mosaicCrash", mode="alwaysOn", data={"at": place})
        changes = {
            "drop": lambda: db.h.drop(),
            "dropDatabase": lambda: db.command("dropDatabase"),
            "rename": lambda: db.h.rename("g"),
            "createIndexes": lambda: db.h.create_index("new"),
            "dropIndexes": lambda: db.h.drop_index("old_1"),
            "collMod": lambda: db.command("collMod", "h", validator={"a": {"$exists": False}}),
            "shardCollection": lambda: client.admin.command("shardCollection", "crash.h", key={"k": "hashed"}),
        }
        with self.assertRaises(pymongo.errors.PyMongoError):
            changes[change]()
        cluster.wait_router_gone()
        # The clients' goodbyes find a router.
        cluster.start_router()
        cluster.close_clients()
        client = cluster.client()
        db = client["crash"]
        wait_quiet(cluster)
        self.assertEqual(problems(cluster, "crash"), [])
        names = set(db.list_collection_names())
        rows = lambda name: len(list(db[name].find()))
        if change == "drop":
            self.assertIn((("h" in names), rows("h")), [(True, 20), (False, 0)])
        elif change == "dropDatabase":
            self.assertIn((names, rows("h"), rows("other")), [({"h", "other"}, 20, 1), (set(), 0, 0)])
        elif change == "rename":
            self.assertIn((names, rows("h"), rows("g")), [({"h", "other"}, 20, 0), ({"g", "other"}, 0, 20)])
        elif change in ("createIndexes", "dropIndexes"):
            indexes = set(db.h.index_information())
            expected = {"_id_", "k_hashed", "old_1"}
            self.assertIn(indexes, [expected, expected | {"new_1"}, expected - {"old_1"}])
            self.assertEqual(rows("h"), 20)
        elif change == "collMod":
            validators = {str(cluster.shard_client(s).crash.h.options().get("validator")) for s in ("shard0", "shard1")}
            self.assertEqual(len(validators), 1, validators)
        elif change == "shardCollection":
            self.assertIn("h", names)
            client.admin.command("shardCollection", "crash.h", key={"k": "hashed"})
            self.assertEqual(problems(cluster, "crash"), [])


class SlowCatalog(unittest.TestCase):
    """The catalog's replica set answers late, or its answers are lost: nobody else may take the change for abandoned."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Bare(shards=2, catalog="replicaset")
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.client, cls.catalog = cls.cluster.client(serverSelectionTimeoutMS=20000), cls.cluster.shard_client("cfg").admin

    def setUp(self):
        self.db = self.client[self._testMethodName]
        self.client.admin.command("shardCollection", f"{self.db.name}.h", key={"k": "hashed"})
        self.db.h.insert_many([{"_id": i, "k": i} for i in range(20)])
        self.addCleanup(self.catalog.command, "configureFailPoint", "failCommand", mode="off")

    def fail(self, times, command, **data):
        data = {"failCommands": [command], "appName": "mosaic", **data}
        self.catalog.command("configureFailPoint", "failCommand", mode={"times": times}, data=data)

    def assertSound(self):
        wait_quiet(self.cluster)
        self.assertEqual(problems(self.cluster, self.db.name), [])
        self.assertNotIn("taking up an unfinished change", self.cluster.log())

    def test_a_router_that_is_slow_to_see_its_own_intent(self):
        self.fail(1, "find", namespace="mosaic.mosaic.changes", blockConnection=True, blockTimeMS=6000)
        self.db.h.create_index("x")
        self.assertIn("x_1", self.db.h.index_information())
        self.assertSound()

    def test_commits_whose_outcome_is_lost(self):
        changes = [
            lambda: self.db.h.create_index("x"),
            lambda: self.db.h.drop_index("x_1"),
            lambda: self.db.command("collMod", "h", validator={"k": {"$gte": 0}}),
            lambda: self.db.h.rename("g"),
            lambda: self.db.g.drop(),
        ]
        for change in changes:
            self.fail(3, "commitTransaction", closeConnection=True)
            change()
            self.fail(2, "commitTransaction", writeConcernError={"code": 91, "errmsg": "shutting down"})
            self.assertSound()
        self.assertEqual(self.db.list_collection_names(), [])


class Survivors(unittest.TestCase):
    """A router dies; another one finishes what it began."""

    def test_another_router_takes_over(self):
        soon = {"mosaicIntentTimeoutSecs": 10}
        with Bare(shards=2, catalog="replicaset", routers=2, parameters=soon) as cluster:
            first, second = cluster.client(0), cluster.client(1)
            for name in ("a", "b"):
                first.admin.command("shardCollection", f"crash.{name}", key={"k": "hashed"})
                first.crash[name].insert_many([{"_id": i, "k": i} for i in range(20)])
            first.admin.command("configureFailPoint", "mosaicCrash", mode="alwaysOn", data={"at": "ddl.committed"})
            with self.assertRaises(pymongo.errors.PyMongoError):
                first.crash.a.drop()
            cluster.wait_router_gone(0)
            # Meanwhile the name is locked, and says who holds it.
            (note,) = second.config["mosaic.ddl"].find()
            self.assertEqual((note["_id"], note["op"], note["step"]), ("crash.a", "drop", "dropping"))
            # Other collections are free.
            second.crash.b.drop()
            eventually(lambda: not list(second.config["mosaic.ddl"].find()), 90, what="the take-over")
            self.assertEqual(list(second.crash.a.find()), [])
            for shard in ("shard0", "shard1"):
                self.assertEqual(cluster.shard_client(shard).crash.list_collection_names(), [])

    def test_two_routers_change_the_same_names(self):
        with Bare(shards=2, catalog="replicaset", routers=2) as cluster:
            clients = [cluster.client(i) for i in range(2)]
            acceptable = {23, 26, 27, 48, 72, 85, 86, 117, 276, 61, 370}
            errors = []

            def work(client, seed):
                rng = random.Random(seed)
                db = client.both
                for _ in range(25):
                    name = rng.choice("ab")
                    try:
                        match rng.randrange(5):
                            case 0:
                                db[name].drop()
                            case 1:
                                client.admin.command("shardCollection", f"both.{name}", key={"k": "hashed"})
                            case 2:
                                db[name].create_index(rng.choice("xyz"))
                            case 3:
                                db.command("dropIndexes", name, index=rng.choice("xyz") + "_1")
                            case 4:
                                db[name].rename(rng.choice("ab"), dropTarget=True)
                    except pymongo.errors.OperationFailure as e:
                        if e.code not in acceptable | {20}:
                            errors.append(e)

            threads = [threading.Thread(target=work, args=(clients[i % 2], i)) for i in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join(300)
                self.assertFalse(t.is_alive(), "a thread hangs")
            self.assertEqual(errors, [])
            wait_quiet(cluster)
            self.assertEqual(problems(cluster, "both"), [])
