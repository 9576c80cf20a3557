"""Structure changes that are interrupted: a shard that refuses, stalls or is away, a router that dies at any step."""

import os
import random
import signal
import threading
import time
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

    def inject(self, shard, command, **data):
        admin = self.cluster.member_client(shard).admin
        mode = data.pop("mode", "alwaysOn")
        commands = [command] if isinstance(command, str) else command
        admin.command("configureFailPoint", "failCommand", mode=mode, data={"failCommands": commands, **data})

    def heal(self):
        for shard in ("shard0", "shard1", "shard2"):
            self.cluster.member_client(shard).admin.command("configureFailPoint", "failCommand", mode="off")
        wait_quiet(self.cluster)

    def assertSound(self):
        wait_quiet(self.cluster)
        self.assertEqual(problems(self.cluster, self.db.name), [])

    def test_index_refused_by_one_shard(self):
        self.inject("shard1", "createIndexes", errorCode=14031)
        self.assertFails(14031, self.coll.create_index, "v")
        self.assertSound()
        self.assertEqual(set(self.coll.index_information()), {"_id_", "k_hashed"})

    def test_index_on_a_shard_whose_connection_breaks_once(self):
        self.inject("shard1", "createIndexes", closeConnection=True, mode={"times": 1})
        self.coll.create_index("v")
        self.assertSound()
        self.assertIn("v_1", self.coll.index_information())

    def test_index_on_a_shard_that_is_away_is_built_later(self):
        self.inject("shard1", "createIndexes", closeConnection=True)
        with self.assertRaises(pymongo.errors.OperationFailure):
            self.coll.create_index("v")
        self.assertEqual([i["op"] for i in intents(self.cluster)], ["createIndexes"])
        self.heal()
        self.assertSound()
        self.assertIn("v_1", self.coll.index_information())

    def test_undo_that_cannot_reach_a_shard_is_done_later(self):
        self.inject("shard1", "createIndexes", errorCode=14031)
        self.inject("shard2", "dropIndexes", closeConnection=True)
        self.assertFails(14031, self.coll.create_index, "v")
        self.heal()
        self.assertSound()
        self.assertEqual(set(self.coll.index_information()), {"_id_", "k_hashed"})

    def test_index_dropped_later_on_a_shard_that_is_away(self):
        self.coll.create_index("v")
        self.inject("shard2", "dropIndexes", closeConnection=True)
        with self.assertRaises(pymongo.errors.OperationFailure):
            self.coll.drop_index("v_1")
        self.heal()
        self.assertSound()
        self.assertEqual(set(self.coll.index_information()), {"_id_", "k_hashed"})

    def test_options_refused_by_one_shard_are_set_back(self):
        self.db.command("collMod", "h", validator={"v": {"$gte": 0}})
        self.inject("shard2", "collMod", errorCode=14031, mode={"times": 1})
        self.assertFails(14031, self.db.command, "collMod", "h", validator={"v": {"$lt": 0}})
        self.assertSound()
        for shard in ("shard0", "shard1", "shard2"):
            options = self.cluster.shard_client(shard)[self.db.name].h.options()
            self.assertEqual(options["validator"], {"v": {"$gte": 0}}, shard)

    def test_drop_finished_later_leaves_a_new_collection_alone(self):
        self.inject("shard2", "drop", closeConnection=True)
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
        self.inject("shard0", "drop", closeConnection=True)
        with self.assertRaises(pymongo.errors.OperationFailure):
            self.coll.drop()
        # The primary shard's part is still there: nobody sees it, nobody writes to it.
        for work in (
            lambda: list(self.coll.find(max_time_ms=300)),
            lambda: list(self.db.other.aggregate([{"$merge": "h"}], maxTimeMS=300)),
            lambda: self.db.command("explain", {"find": "h"}, maxTimeMS=300),
        ):
            self.assertFails(50, work)
        acknowledged = []
        inserting = threading.Thread(target=lambda: acknowledged.append(self.coll.insert_one({"_id": "new"})))
        inserting.start()
        inserting.join(1)
        self.assertEqual(acknowledged, [])
        self.heal()
        inserting.join(30)
        self.assertEqual(len(acknowledged), 1)
        self.assertSound()
        self.assertEqual(list(self.coll.find()), [{"_id": "new"}])

    def test_a_name_that_stays_closed_is_refused_in_the_end(self):
        self.inject("shard0", "drop", closeConnection=True)
        with self.assertRaises(pymongo.errors.OperationFailure):
            self.coll.drop()
        error = self.assertFails(117, self.coll.insert_one, {"_id": "new"})
        self.assertIn("cannot be used while its drop is not finished", str(error))
        self.heal()
        self.assertSound()
        self.assertEqual(list(self.coll.find()), [])

    def test_out_waits_for_a_drop_of_its_target(self):
        self.db.source.insert_many([{"_id": i} for i in range(3)])
        self.inject("shard0", "drop", blockConnection=True, blockTimeMS=1500, mode={"times": 1})
        dropping = threading.Thread(target=self.coll.drop)
        dropping.start()
        eventually(lambda: intents(self.cluster), what="the drop's intent")
        self.db.source.aggregate([{"$out": "h"}])
        dropping.join(30)
        self.assertSound()
        self.assertEqual(len(list(self.coll.find())), 3)

    def test_rename_does_not_replace_what_came_meanwhile(self):
        self.inject("shard1", "ping", blockConnection=True, blockTimeMS=1000, mode={"times": 1})
        outcome = []

        def rename():
            try:
                outcome.append(self.coll.rename("g"))
            except pymongo.errors.OperationFailure as e:
                outcome.append(e)

        renaming = threading.Thread(target=rename)
        renaming.start()
        eventually(lambda: intents(self.cluster), what="the intent to rename")
        self.db.g.insert_one({"_id": "came", "k": 1})
        renaming.join(30)
        self.assertEqual([getattr(o, "code", o) for o in outcome], [48])
        self.assertEqual(list(self.db.g.find()), [{"_id": "came", "k": 1}])
        self.assertEqual(len(list(self.coll.find())), 60)
        self.assertSound()

    def test_a_majority_that_does_not_have_a_drop_is_waited_for(self):
        late = {"code": 64, "errmsg": "waiting for replication timed out"}
        self.inject("shard1", ["drop", "delete"], writeConcernError=late)
        error = self.assertFails(64, self.db.command, "drop", "h")
        self.assertIn("shard1", str(error))
        self.assertEqual([i["op"] for i in intents(self.cluster)], ["drop"])
        self.heal()
        self.assertSound()
        self.assertEqual(self.db.list_collection_names(), [])

    def test_sharding_waits_for_majorities(self):
        late = {"code": 64, "errmsg": "waiting for replication timed out"}
        for command in ("applyOps", "createIndexes"):
            self.inject("shard1", command, writeConcernError=late)
            ns = f"{self.db.name}.late"
            self.assertFails(64, self.client.admin.command, "shardCollection", ns, key={"k": "hashed"})
            self.heal()
            self.assertSound()
            self.assertIsNone(self.client.config.collections.find_one({"_id": ns}))

    def test_a_drop_goes_on_when_its_clients_time_is_up(self):
        self.inject("shard1", "drop", blockConnection=True, blockTimeMS=3000, mode={"times": 1})
        began = time.monotonic()
        self.assertFails(50, self.db.command, "drop", "h", maxTimeMS=500)
        self.assertLess(time.monotonic() - began, 2.5)
        self.assertSound()
        self.assertEqual(self.db.list_collection_names(), [])

    def test_options_are_set_back_even_if_that_fails_at_first(self):
        self.inject("shard0", "collMod", closeConnection=True, mode={"skip": 1})
        self.inject("shard1", "collMod", errorCode=14031)
        self.assertFails(14031, self.db.command, "collMod", "h", validator={"v": {"$gte": 0}})
        self.assertEqual([i["step"] for i in intents(self.cluster)], ["undoing"])
        self.heal()
        self.assertSound()
        for shard in ("shard0", "shard1", "shard2"):
            self.assertFalse(self.cluster.shard_client(shard)[self.db.name].h.options().get("validator"), shard)

    def test_an_index_that_one_shard_refuses_to_drop_is_dropped_later(self):
        self.coll.create_index("v")
        self.inject("shard1", "dropIndexes", errorCode=14031)
        self.assertFails(14031, self.coll.drop_index, "v_1")
        self.assertEqual([i["op"] for i in intents(self.cluster)], ["dropIndexes"])
        self.heal()
        self.assertSound()
        self.assertEqual(set(self.coll.index_information()), {"_id_", "k_hashed"})

    def test_sharding_that_failed_stays_undone_and_others_do_not_wait_for_ever(self):
        self.db.plain.create_index("old")
        self.inject("shard1", ["createIndexes", "drop"], closeConnection=True)
        ns = f"{self.db.name}.plain"
        with self.assertRaises(pymongo.errors.OperationFailure):
            self.client.admin.command("shardCollection", ns, key={"k": "hashed"})
        self.assertEqual([i["step"] for i in intents(self.cluster)], ["undoing"])
        began = time.monotonic()
        self.assertFails(117, self.db.plain.create_index, "v")
        self.assertLess(time.monotonic() - began, 30)
        self.heal()
        self.assertSound()
        self.assertIsNone(self.client.config.collections.find_one({"_id": ns}))

    def test_the_last_index_of_a_shard_key_is_not_dropped_by_two(self):
        coll = self.shard("r", {"k": 1})
        for round in range(6):
            coll.create_index("k")
            coll.create_index([("k", 1), ("x", 1)])
            codes = []

            def drop(name):
                try:
                    self.cluster.client()[self.db.name].r.drop_index(name)
                except pymongo.errors.OperationFailure as e:
                    codes.append(e.code)

            threads = [threading.Thread(target=drop, args=(name,)) for name in ("k_1", "k_1_x_1")]
            for t in threads:
                t.start()
            for t in threads:
                t.join(30)
            self.assertEqual(codes, [370], f"round {round}")
            self.assertEqual(len(coll.index_information()), 2, f"round {round}")

    def test_rename_that_a_shard_fails_is_finished_later(self):
        self.inject("shard1", "renameCollection", closeConnection=True)
        with self.assertRaises(pymongo.errors.OperationFailure):
            self.coll.rename("g")
        self.heal()
        self.assertSound()
        self.assertEqual(len(list(self.db.g.find())), 60)
        self.assertEqual(self.db.list_collection_names(), ["g"])

    def test_rename_that_the_primary_shard_refuses_changes_nothing(self):
        self.inject("shard0", "renameCollection", errorCode=14031)
        self.assertFails(14031, self.coll.rename, "g")
        self.assertSound()
        self.assertEqual(len(list(self.coll.find())), 60)

    def test_drop_database_finished_later_blocks_a_new_one_of_the_name(self):
        self.inject("shard1", "dropDatabase", closeConnection=True)
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
        self.inject("shard1", "createIndexes", errorCode=14031)
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
    "shardCollection": ["ddl.recorded", "ddl.advanced", "shardCollection.copied", "ddl.committed", "ddl.driven"],
    "refine": ["ddl.recorded", "ddl.advanced", "ddl.driven"],
    # Of an unsharded collection.
    "drop plain": ["ddl.recorded", "ddl.advanced", "ddl.oneShard", "ddl.driven"],
    "rename plain": ["ddl.recorded", "ddl.advanced", "ddl.oneShard", "ddl.driven"],
    "dropIndexes plain": ["ddl.recorded", "ddl.advanced", "ddl.driven"],
    "collMod plain": ["ddl.recorded", "ddl.advanced", "ddl.oneShard", "ddl.driven"],
    "convertToCapped plain": ["ddl.recorded", "ddl.advanced", "ddl.oneShard", "ddl.driven"],
    "cloneCollectionAsCapped plain": ["ddl.recorded", "ddl.advanced", "ddl.driven"],
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
        kind, _, plain = change.partition(" ")
        if plain:
            db.h.insert_many([{"_id": i, "k": i} for i in range(20)])
            db.h.create_index("old")
        elif kind == "refine":
            client.admin.command("shardCollection", "crash.h", key={"k": 1})
            db.h.create_index([("k", 1), ("x", 1)])
        elif kind != "shardCollection":
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
            "refine": lambda: client.admin.command("refineCollectionShardKey", "crash.h", key={"k": 1, "x": 1}),
            "convertToCapped": lambda: db.command("convertToCapped", "h", size=1 << 16),
            "cloneCollectionAsCapped": lambda: db.command("cloneCollectionAsCapped", "h", toCollection="g", size=1 << 16),
        }
        with self.assertRaises(pymongo.errors.PyMongoError):
            changes[kind]()
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
        if kind == "drop":
            self.assertIn((("h" in names), rows("h")), [(True, 20), (False, 0)])
        elif kind == "dropDatabase":
            self.assertIn((names, rows("h"), rows("other")), [({"h", "other"}, 20, 1), (set(), 0, 0)])
        elif kind == "rename":
            self.assertIn((names, rows("h"), rows("g")), [({"h", "other"}, 20, 0), ({"g", "other"}, 0, 20)])
        elif kind in ("createIndexes", "dropIndexes"):
            indexes = set(db.h.index_information())
            expected = {"_id_", "old_1"} if plain else {"_id_", "k_hashed", "old_1"}
            self.assertIn(indexes, [expected, expected | {"new_1"}, expected - {"old_1"}])
            self.assertEqual(rows("h"), 20)
        elif kind == "collMod":
            holders = ("shard0",) if plain else ("shard0", "shard1")
            validators = {str(cluster.shard_client(s).crash.h.options().get("validator")) for s in holders}
            self.assertEqual(len(validators), 1, validators)
        elif kind == "shardCollection":
            self.assertIn("h", names)
            client.admin.command("shardCollection", "crash.h", key={"k": "hashed"})
            self.assertEqual(problems(cluster, "crash"), [])
        elif kind == "refine":
            client.admin.command("refineCollectionShardKey", "crash.h", key={"k": 1, "x": 1})
            self.assertEqual(client.config.collections.find_one({"_id": "crash.h"})["key"], {"k": 1, "x": 1})
        elif kind in ("convertToCapped", "cloneCollectionAsCapped"):
            self.assertEqual(rows("h"), 20)


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

    def inject(self, times, command, **data):
        data = {"failCommands": [command], "appName": "mosaic", **data}
        self.catalog.command("configureFailPoint", "failCommand", mode={"times": times}, data=data)

    def assertSound(self):
        wait_quiet(self.cluster)
        self.assertEqual(problems(self.cluster, self.db.name), [])
        self.assertNotIn("taking up an unfinished change", self.cluster.log())

    def test_a_router_that_is_slow_to_see_its_own_intent(self):
        self.inject(1, "find", namespace="mosaic.mosaic.changes", blockConnection=True, blockTimeMS=6000)
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
            self.inject(3, "commitTransaction", closeConnection=True)
            change()
            self.inject(2, "commitTransaction", writeConcernError={"code": 91, "errmsg": "shutting down"})
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
            # So that the second router cannot finish it before this has looked.
            primary = cluster.shard_client(first.config.databases.find_one({"_id": "crash"})["primary"]).admin
            no_drops = {"failCommands": ["drop"], "closeConnection": True}
            primary.command("configureFailPoint", "failCommand", mode="alwaysOn", data=no_drops)
            with self.assertRaises(pymongo.errors.PyMongoError):
                first.crash.a.drop()
            cluster.wait_router_gone(0)
            # Meanwhile the name is locked, and says who holds it.
            (note,) = second.config["mosaic.ddl"].find()
            self.assertEqual((note["_id"], note["op"], note["step"]), ("crash.a", "drop", "dropping"))
            primary.command("configureFailPoint", "failCommand", mode="off")
            # Other collections are free.
            second.crash.b.drop()
            eventually(lambda: not list(second.config["mosaic.ddl"].find()), 90, what="the take-over")
            self.assertEqual(list(second.crash.a.find()), [])
            for shard in ("shard0", "shard1"):
                self.assertEqual(cluster.shard_client(shard).crash.list_collection_names(), [])

    def test_what_was_acknowledged_after_a_crash_stays(self):
        """One router dies while it changes an unsharded collection; whoever uses the names through another one before
        the intent is found loses nothing."""
        with Bare(shards=2, catalog="replicaset", routers=2) as cluster:
            for change in ("drop", "rename"):
                for place in ("ddl.recorded", "ddl.advanced", "ddl.oneShard", "ddl.driven"):
                    with self.subTest(change=change, place=place):
                        self.used_after_a_crash(cluster, change, place)

    def used_after_a_crash(self, cluster, change, place):
        first, second = cluster.client(0), cluster.client(1)
        db = second[f"{change}_{place}".replace(".", "_")]
        for name in ("a", "b"):
            db[name].insert_one({"_id": f"old {name}"})
        first.admin.command("configureFailPoint", "mosaicCrash", mode="alwaysOn", data={"at": place})
        try:
            with self.assertRaises(pymongo.errors.PyMongoError):
                first[db.name].a.drop() if change == "drop" else first[db.name].a.rename("b", dropTarget=True)
            for name in ("a", "b"):
                db[name].insert_one({"_id": "new"})
            cluster.wait_router_gone(0)
            eventually(lambda: not list(second.config["mosaic.ddl"].find()), 90, what="the take-over")
            for name in ("a", "b"):
                self.assertIn({"_id": "new"}, list(db[name].find()), name)
        finally:
            cluster.start_router(0)
            cluster.close_clients()

    def test_strays_are_collected_by_whoever_finds_the_intent(self):
        with Bare(shards=2, catalog="replicaset", routers=2) as cluster:
            first, second = cluster.client(0), cluster.client(1)
            first.admin.command("enableSharding", "stray", primaryShard="shard0")
            first.admin.command("configureFailPoint", "mosaicCrash", mode="alwaysOn", data={"at": "ddl.committed"})
            with self.assertRaises(pymongo.errors.PyMongoError):
                first.admin.command("shardCollection", "stray.h", key={"k": "hashed"})
            cluster.wait_router_gone(0)
            # As a router would have written them that did not know of the sharding.
            docs = [{"_id": i, "k": i} for i in range(2500)]
            cluster.shard_client("shard0").stray.h.insert_many(docs)
            # This one was moved already, but for the deleting.
            moved = next(i for i in range(100) if not second.stray.h.find_one({"k": i}))
            cluster.shard_client("shard1").stray.h.insert_one({"_id": moved, "k": moved})
            eventually(lambda: not list(second.config["mosaic.ddl"].find()), 90, what="the take-over")
            self.assertEqual([i for i in range(0, 2500, 50) if not second.stray.h.find_one({"k": i})], [])
            parts = [cluster.shard_client(s).stray.h.count_documents({}) for s in ("shard0", "shard1")]
            self.assertEqual(sum(parts), 2500, parts)

    def test_the_catalogs_own_set_is_no_shard(self):
        with Bare(shards=1, catalog="replicaset") as cluster:
            client = cluster.client()
            with self.assertRaises(pymongo.errors.OperationFailure) as caught:
                client.admin.command("addShard", f"cfg/127.0.0.1:{cluster.set_ports['cfg']}")
            self.assertEqual(caught.exception.code, 96, caught.exception)
            self.assertEqual([d["_id"] for d in client.config.databases.find()], [])

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
