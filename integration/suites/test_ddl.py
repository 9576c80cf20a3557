"""Structure: create, drop, rename, indexes, options, listing and statistics, on sharded and unsharded collections."""

import random
import threading

import pymongo
from bson import Binary, MaxKey
from cluster import ClusterCase, Oracle, both_catalogs, eventually
from ddl_checks import problems, structure, wait_quiet


def plain(reply):
    return {k: v for k, v in reply.items() if k not in ("$clusterTime", "operationTime")}


@both_catalogs
class Structure(ClusterCase):
    setup = {"shards": 3, "flags": ["--setParameter", "enableTestCommands=true"]}

    def names(self):
        return sorted(self.db.list_collection_names())

    def assertSound(self):
        wait_quiet(self.cluster)
        self.assertEqual(problems(self.cluster, self.db.name), [])

    def hashed(self, name="h", docs=60):
        coll = self.shard(name, {"k": "hashed"})
        if docs:
            coll.insert_many([{"_id": i, "k": i, "v": i % 5} for i in range(docs)])
        return coll

    # -- collections

    def test_create_makes_the_database(self):
        self.db.create_collection("c")
        self.assertEqual(self.names(), ["c"])
        self.assertIn(self.db.name, self.client.list_database_names())
        self.assertFails(48, self.db.command, "create", "c")
        database = self.client.config.databases.find_one({"_id": self.db.name})
        self.assertIn(database["primary"], ["shard0", "shard1", "shard2"])

    def test_create_with_every_kind_of_option(self):
        self.db.create_collection("capped", capped=True, size=8192, max=3)
        self.db.create_collection("series", timeseries={"timeField": "t", "metaField": "m"})
        self.db.create_collection("clustered", clusteredIndex={"key": {"_id": 1}, "unique": True})
        self.db.create_collection("valid", validator={"a": {"$type": "int"}}, validationLevel="strict")
        self.db.create_collection("french", collation={"locale": "fr"})
        self.db.create_collection("view", viewOn="valid", pipeline=[{"$match": {"a": {"$gt": 1}}}])
        listed = {c["name"]: c for c in self.db.list_collections()}
        self.assertEqual(listed["capped"]["options"]["max"], 3)
        self.assertEqual(listed["series"]["type"], "timeseries")
        self.assertIn("clusteredIndex", listed["clustered"]["options"])
        self.assertEqual(listed["french"]["options"]["collation"]["locale"], "fr")
        self.assertEqual(listed["view"]["type"], "view")
        self.db.valid.insert_one({"a": 5})
        self.assertFails(121, self.db.valid.insert_one, {"a": "x"})
        self.db.series.insert_one({"t": __import__("datetime").datetime(2026, 1, 1), "m": 1, "x": 5})
        for name in listed:
            if not name.startswith("system."):
                self.db.drop_collection(name)
        self.assertEqual([n for n in self.names() if n != "system.views"], [])

    def test_writes_to_a_view_are_refused(self):
        self.db.base.insert_one({"a": 1})
        self.db.create_collection("v", viewOn="base", pipeline=[])
        self.assertFails(166, self.db.v.insert_one, {"a": 2})
        self.assertFails(166, self.db.v.create_index, "a")
        self.assertFails(166, self.db.command, "collStats", "v")

    def test_database_names_differing_in_case_are_refused(self):
        self.db.c.insert_one({})
        other = self.client[self.db.name.upper()]
        self.assertFails(13297, other.create_collection, "c")

    def test_drop(self):
        self.assertEqual(self.db.command("drop", "nothing")["ok"], 1)
        self.db.c.insert_one({"a": 1})
        self.assertEqual(self.db.command("drop", "c")["ok"], 1)
        self.assertEqual(self.names(), [])
        self.hashed()
        self.assertEqual(self.db.command("drop", "h")["ok"], 1)
        self.assertEqual(self.names(), [])
        for collections in structure(self.cluster, self.db.name).values():
            self.assertEqual(collections, {})
        ns = f"{self.db.name}.h"
        self.assertIsNone(self.client.config.collections.find_one({"_id": ns}))
        what = [e["what"] for e in self.client.config.changelog.find({"ns": ns})]
        self.assertIn("dropCollection.start", what)
        self.assertIn("dropCollection", what)
        self.assertSound()

    def test_made_anew_after_drop_it_is_empty(self):
        for round in range(3):
            coll = self.hashed()
            self.assertEqual(len(list(coll.find())), 60, f"round {round}")
            coll.drop()
            self.assertEqual(list(coll.find()), [])
        self.db.h.insert_one({"_id": 1, "plain": True})
        self.assertEqual(list(self.db.h.find()), [{"_id": 1, "plain": True}])
        self.assertSound()

    def test_drop_by_uuid(self):
        coll = self.hashed()
        uuid = self.client.config.collections.find_one({"_id": coll.full_name})["uuid"]
        wrong = Binary(b"0" * 16, 4)
        self.assertFails(361, self.db.command, "drop", "h", collectionUUID=wrong)
        self.assertEqual(len(list(coll.find())), 60)
        self.assertEqual(self.db.command("drop", "h", collectionUUID=uuid)["ok"], 1)

    def test_drop_database(self):
        self.hashed()
        self.db.plain.insert_many([{"_id": i} for i in range(5)])
        self.assertEqual(plain(self.db.command("dropDatabase")), {"ok": 1.0})
        self.assertNotIn(self.db.name, self.client.list_database_names())
        self.assertIsNone(self.client.config.databases.find_one({"_id": self.db.name}))
        for collections in structure(self.cluster, self.db.name).values():
            self.assertEqual(collections, {})
        self.assertEqual(plain(self.db.command("dropDatabase")), {"ok": 1.0})
        self.db.plain.insert_one({"_id": 9})
        self.assertEqual(list(self.db.plain.find()), [{"_id": 9}])
        self.assertSound()

    def test_own_databases_are_protected(self):
        for name in ("admin", "config", "local"):
            self.assertFails(20, self.client[name].command, "dropDatabase")
        self.assertFails(20, self.client.config.command, "create", "x")
        self.assertFails(20, self.client.config.command, "drop", "shards")

    # -- renaming

    def test_rename_unsharded(self):
        self.db.a.insert_one({"_id": 1})
        self.db.b.insert_one({"_id": 2})
        self.assertFails(48, self.db.a.rename, "b")
        self.db.a.rename("b", dropTarget=True)
        self.assertEqual(list(self.db.b.find()), [{"_id": 1}])
        self.assertEqual(self.names(), ["b"])
        self.assertFails(26, self.db.nope.rename, "x")
        self.assertFails(20, self.db.b.rename, "b")

    def test_rename_to_another_database(self):
        self.db.a.insert_one({"_id": 1})
        other = self.client[self.db.name + "_2"]
        self.addCleanup(self.client.drop_database, other.name)
        self.client.admin.command("renameCollection", f"{self.db.name}.a", to=f"{other.name}.b")
        self.assertEqual(list(other.b.find()), [{"_id": 1}])
        primaries = {d["_id"]: d["primary"] for d in self.client.config.databases.find()}
        self.assertEqual(primaries[self.db.name], primaries[other.name])
        self.hashed()
        self.assertFails(
            "CommandFailed", self.client.admin.command, "renameCollection", f"{self.db.name}.h", to=f"{other.name}.h"
        )

    def test_rename_between_shards_is_refused(self):
        self.client.admin.command("enableSharding", self.db.name, primaryShard="shard0")
        other = self.client[self.db.name + "_2"]
        self.addCleanup(self.client.drop_database, other.name)
        self.client.admin.command("enableSharding", other.name, primaryShard="shard1")
        self.db.a.insert_one({})
        self.assertFails(20, self.client.admin.command, "renameCollection", f"{self.db.name}.a", to=f"{other.name}.b")

    def test_rename_sharded(self):
        coll = self.hashed()
        before = self.client.config.collections.find_one({"_id": coll.full_name})
        coll.rename("renamed")
        self.assertEqual(self.names(), ["renamed"])
        self.assertEqual(list(coll.find()), [])
        self.assertEqual(len(list(self.db.renamed.find())), 60)
        after = self.client.config.collections.find_one({"_id": f"{self.db.name}.renamed"})
        self.assertEqual(before["uuid"], after["uuid"])
        self.assertEqual(before["key"], after["key"])
        self.db.renamed.insert_one({"k": 1000})
        self.assertSound()

    def test_rename_over_another_collection(self):
        # What stands under the new name: nothing sharded, or something with parts on every shard.
        for source, target in [("sharded", "plain"), ("plain", "sharded"), ("sharded", "sharded")]:
            with self.subTest(source=source, target=target):
                self.hashed("a") if source == "sharded" else self.db.a.insert_many([{"_id": i} for i in range(60)])
                self.hashed("b", 10) if target == "sharded" else self.db.b.insert_many([{"_id": i} for i in range(10)])
                self.assertFails(48, self.db.a.rename, "b")
                self.db.a.rename("b", dropTarget=True)
                self.assertEqual(self.names(), ["b"])
                self.assertEqual(len(list(self.db.b.find())), 60)
                self.assertSound()
                self.db.b.drop()

    # -- indexes

    def test_create_indexes(self):
        coll = self.hashed()
        reply = self.db.command("createIndexes", "h", indexes=[{"key": {"v": 1}, "name": "v_1"}])
        self.assertEqual(set(plain(reply)), {"raw", "ok"})
        self.assertEqual(len(reply["raw"]), 3)
        for name, one in reply["raw"].items():
            self.assertRegex(name, r"^shard\d/127\.0\.0\.1:\d+$")
            self.assertEqual((one["numIndexesBefore"], one["numIndexesAfter"]), (2, 3))
        again = self.db.command("createIndexes", "h", indexes=[{"key": {"v": 1}, "name": "v_1"}])
        for one in again["raw"].values():
            self.assertEqual(one["note"], "all indexes already exist")
        self.assertEqual(set(coll.index_information()), {"_id_", "k_hashed", "v_1"})
        self.assertFails(86, self.db.command, "createIndexes", "h", indexes=[{"key": {"w": 1}, "name": "v_1"}])
        self.assertSound()

    def test_create_indexes_makes_the_collection(self):
        reply = self.db.command("createIndexes", "c", indexes=[{"key": {"a": 1}, "name": "a_1"}])
        (one,) = reply["raw"].values()
        self.assertTrue(one["createdCollectionAutomatically"])

    def test_unique_indexes_of_sharded_collections(self):
        self.shard("r", {"u": 1, "t": 1})
        bad = [{"key": {"z": 1}, "name": "z_1", "unique": True}]
        error = self.assertFails(67, self.db.command, "createIndexes", "r", indexes=bad)
        text = "cannot create unique index over { z: 1 } with shard key pattern { u: 1, t: 1 }"
        self.assertIn(text, error.details["errmsg"])
        self.db.r.create_index([("u", 1), ("t", 1), ("z", 1)], unique=True)
        self.assertFails(67, self.db.r.create_index, "u", unique=True)
        self.hashed()
        self.assertFails(67, self.db.h.create_index, "v", unique=True)

    def test_an_index_refused_by_one_shard_is_on_none(self):
        # The duplicates lie on one shard only.
        coll = self.shard("r", {"u": 1})
        self.client.admin.command("split", coll.full_name, middle={"u": 100})
        self.client.admin.command("_mosaicPlaceChunk", coll.full_name, bounds=[{"u": 100}, {"u": MaxKey()}], to=self.other_shard())
        coll.insert_many([{"u": 200, "z": 7}, {"u": 200, "z": 7}, {"u": 1, "z": 1}])
        good = {"key": {"y": 1}, "name": "y_1"}
        bad = {"key": {"u": 1, "z": 1}, "name": "uz", "unique": True}
        error = self.assertFails(11000, self.db.command, "createIndexes", "r", indexes=[good, bad])
        self.assertIn("raw", error.details)
        self.assertSound()
        self.assertEqual(set(coll.index_information()), {"_id_", "u_1"})
        for collections in structure(self.cluster, self.db.name).values():
            if "r" in collections:
                self.assertEqual(collections["r"][1], {"_id_", "u_1"})

    def other_shard(self):
        primary = self.client.config.databases.find_one({"_id": self.db.name})["primary"]
        return next(s for s in ("shard0", "shard1", "shard2") if s != primary)

    def test_drop_indexes(self):
        coll = self.hashed()
        for field in "abc":
            coll.create_index(field)
        reply = self.db.command("dropIndexes", "h", index="a_1")
        self.assertEqual({r["nIndexesWas"] for r in reply["raw"].values()}, {5})
        self.db.command("deleteIndexes", "h", index={"b": 1})
        self.assertEqual(set(coll.index_information()), {"_id_", "k_hashed", "c_1"})
        self.assertFails(27, self.db.command, "dropIndexes", "h", index="zz")
        self.assertFails(27, self.db.command, "dropIndexes", "h", index=["c_1", "zz"])
        self.assertFails(72, self.db.command, "dropIndexes", "h", index="_id_")
        self.assertFails(370, self.db.command, "dropIndexes", "h", index="k_hashed")
        self.db.command("dropIndexes", "h", index="*")
        self.assertEqual(set(coll.index_information()), {"_id_", "k_hashed"})
        self.db.plain.create_index("a")
        self.db.plain.drop_indexes()
        self.assertEqual(set(self.db.plain.index_information()), {"_id_"})
        self.assertSound()

    def test_the_shard_keys_index_may_go_when_another_supports_it(self):
        coll = self.shard("r", {"u": 1})
        coll.create_index([("u", 1), ("x", 1)])
        coll.drop_index("u_1")
        self.assertFails(370, coll.drop_index, "u_1_x_1")
        self.assertFails(370, self.db.command, "collMod", "r", index={"name": "u_1_x_1", "hidden": True})

    # -- options

    def test_coll_mod(self):
        coll = self.hashed()
        reply = self.db.command("collMod", "h", validator={"v": {"$gte": 0}}, validationLevel="moderate")
        self.assertEqual(len(reply["raw"]), 3)
        self.assertFails(121, coll.insert_one, {"k": 1, "v": -1})
        coll.create_index("t", expireAfterSeconds=100)
        reply = self.db.command("collMod", "h", index={"name": "t_1", "expireAfterSeconds": 200})
        for one in reply["raw"].values():
            self.assertEqual((one["expireAfterSeconds_old"], one["expireAfterSeconds_new"]), (100, 200))
        self.assertFails(40415, self.db.command, "collMod", "h", nosuch=1)
        self.assertFails(26, self.db.command, "collMod", "nope", validator={})
        self.db.create_collection("v", viewOn="h", pipeline=[])
        self.db.command("collMod", "v", viewOn="other", pipeline=[{"$match": {}}])
        options = {c["name"]: c["options"] for c in self.db.list_collections()}
        self.assertEqual(options["h"]["validationLevel"], "moderate")
        self.assertEqual(options["v"]["viewOn"], "other")

    def test_an_index_made_unique_must_be_so_on_every_shard(self):
        coll = self.shard("r", {"u": 1})
        self.client.admin.command("split", coll.full_name, middle={"u": 100})
        self.client.admin.command("_mosaicPlaceChunk", coll.full_name, bounds=[{"u": 100}, {"u": MaxKey()}], to=self.other_shard())
        coll.insert_many([{"u": 200, "z": 7}, {"u": 200, "z": 7}, {"u": 1, "z": 1}])
        coll.create_index([("u", 1), ("z", 1)])
        self.db.command("collMod", "r", index={"name": "u_1_z_1", "prepareUnique": True})
        with self.assertRaises(pymongo.errors.OperationFailure):
            self.db.command("collMod", "r", index={"name": "u_1_z_1", "unique": True})
        self.assertSound()
        for shard, collections in structure(self.cluster, self.db.name).items():
            if "r" in collections:
                spec = self.cluster.shard_client(shard)[self.db.name].r.index_information()["u_1_z_1"]
                self.assertFalse(spec.get("unique", False), shard)

    def test_capped(self):
        self.db.c.insert_many([{"_id": i} for i in range(5)])
        self.db.command("convertToCapped", "c", size=8192)
        self.assertTrue(self.db.c.options()["capped"])
        self.db.command("cloneCollectionAsCapped", "c", toCollection="d", size=8192)
        self.assertEqual(len(list(self.db.d.find())), 5)
        self.hashed()
        self.assertFails(20, self.db.command, "convertToCapped", "h", size=8192)
        self.assertFails(72, self.client.admin.command, "shardCollection", f"{self.db.name}.c", key={"a": 1})

    # -- listing and statistics

    def test_listing(self):
        self.assertEqual(list(self.db.list_collections()), [])
        self.assertFails(26, self.db.command, "listIndexes", "nope")
        self.hashed()
        for i in range(5):
            self.db[f"c{i}"].insert_one({})
        self.assertEqual(self.names(), ["c0", "c1", "c2", "c3", "c4", "h"])
        small = self.db.command("listCollections", cursor={"batchSize": 2})
        self.assertEqual(len(small["cursor"]["firstBatch"]), 2)
        got = small["cursor"]["firstBatch"]
        while small["cursor"]["id"]:
            small = self.db.command("getMore", small["cursor"]["id"], collection="$cmd.listCollections", batchSize=2)
            got += small["cursor"]["nextBatch"]
        self.assertEqual(sorted(c["name"] for c in got), self.names())
        self.assertEqual(len(list(self.db.list_collections(filter={"name": {"$regex": "^c"}}))), 5)
        self.assertIn("chunks", self.client.config.list_collection_names())
        self.assertEqual(self.client.config.list_collection_names(filter={"name": "shards"}), ["shards"])

    def test_list_databases(self):
        self.hashed()
        reply = self.client.admin.command("listDatabases")
        by_name = {d["name"]: d for d in reply["databases"]}
        own = by_name[self.db.name]
        self.assertEqual(set(own), {"name", "sizeOnDisk", "empty", "shards"})
        self.assertEqual(set(own["shards"]), {"shard0", "shard1", "shard2"})
        self.assertEqual(own["sizeOnDisk"], sum(own["shards"].values()))
        self.assertEqual(reply["totalSize"], sum(d["sizeOnDisk"] for d in reply["databases"]))
        self.assertNotIn("local", by_name)
        self.assertIn("config", by_name)
        names = self.client.admin.command("listDatabases", nameOnly=True, filter={"name": {"$regex": "^t_test_list_d"}})
        self.assertEqual(names["databases"], [{"name": self.db.name}])
        self.assertNotIn("totalSize", names)
        large = self.client.admin.command("listDatabases", filter={"sizeOnDisk": {"$gt": 1 << 50}})
        self.assertEqual(large["databases"], [])

    def test_coll_stats(self):
        self.hashed()
        stats = self.db.command("collStats", "h")
        self.assertTrue(stats["sharded"])
        self.assertNotIn("primary", stats)
        self.assertEqual(stats["count"], 60)
        self.assertEqual(stats["count"], sum(s["count"] for s in stats["shards"].values()))
        self.assertEqual(stats["size"], sum(s["size"] for s in stats["shards"].values()))
        uuid = self.client.config.collections.find_one({"_id": f"{self.db.name}.h"})["uuid"]
        self.assertEqual(stats["nchunks"], self.client.config.chunks.count_documents({"uuid": uuid}))
        self.assertEqual(set(stats["indexSizes"]), {"_id_", "k_hashed"})
        recorded = "sharded capped wiredTiger indexDetails ns count size storageSize totalIndexSize totalSize indexSizes"
        for field in f"{recorded} avgObjSize maxSize nindexes scaleFactor nchunks shards ok".split():
            self.assertIn(field, stats)
        scaled = self.db.command("collStats", "h", scale=1024)
        self.assertEqual(scaled["storageSize"], stats["storageSize"] // 1024)
        self.assertEqual(scaled["scaleFactor"], 1024)
        self.db.plain.insert_one({})
        stats = self.db.command("collStats", "plain")
        self.assertFalse(stats["sharded"])
        self.assertIn("primary", stats)
        self.assertEqual(self.db.command("collStats", "nope")["count"], 0)
        self.assertFails(2, self.db.command, "collStats", "h", scale=0)

    def test_db_stats(self):
        self.hashed()
        stats = self.db.command("dbStats")
        self.assertEqual(len(stats["raw"]), 3)
        self.assertEqual(stats["objects"], 60)
        self.assertEqual(stats["dataSize"], sum(s["dataSize"] for s in stats["raw"].values()))
        for field in "raw db collections views objects avgObjSize dataSize storageSize totalSize indexes indexSize".split():
            self.assertIn(field, stats)

    def test_validate_and_data_size(self):
        coll = self.hashed()
        reply = self.db.command("validate", "h")
        self.assertTrue(reply["valid"])
        self.assertEqual(sum(r["nrecords"] for r in reply["raw"].values()), 60)
        self.assertFails(26, self.db.command, "validate", "nope")
        reply = self.db.command("dataSize", coll.full_name)
        self.assertEqual(reply["numObjects"], 60)
        self.assertFails(2, self.db.command, "dataSize", coll.full_name, keyPattern={"v": 1})
        self.assertEqual(self.db.command("planCacheClear", "h")["ok"], 1)
        self.assertEqual(self.db.command("planCacheListFilters", "h")["filters"], [])

    def test_what_a_router_refuses(self):
        self.assertFails(115, self.db.command, "compact", "c")
        self.assertFails(2, self.db.command, "profile", 2)
        self.assertEqual(self.db.command("profile", -1)["was"], 0)
        self.assertFails(115, self.db.command, "reIndex", "c")
        self.assertFails(13, self.db.command, "renameCollection", "a.b", to="a.c")

    # -- at the same time

    def test_changes_at_the_same_time(self):
        """Threads drop, shard, rename and index the same names while others write: what is left is sound."""
        errors, stop = [], threading.Event()
        # 12587 is a mongod's own answer to collMod and renameCollection while an index is being built.
        acceptable = {10, 20, 23, 26, 27, 48, 72, 85, 86, 117, 11000, 61, 361, 276, 6, 211, 370, 12587}

        def guard(work, seed):
            rng = random.Random(seed)
            client = self.cluster.client()
            while not stop.is_set():
                try:
                    work(client[self.db.name], rng)
                except (pymongo.errors.OperationFailure, pymongo.errors.BulkWriteError) as e:
                    if e.code not in acceptable and not isinstance(e, pymongo.errors.BulkWriteError):
                        errors.append(e)
                        return
                except Exception as e:
                    errors.append(e)
                    return

        def change(db, rng):
            name = rng.choice("ab")
            match rng.randrange(6):
                case 0:
                    db[name].drop()
                case 1:
                    db.client.admin.command("shardCollection", f"{db.name}.{name}", key={"k": "hashed"})
                case 2:
                    db[name].create_index(rng.choice("xyz"))
                case 3:
                    db.command("dropIndexes", name, index=rng.choice("xyz") + "_1")
                case 4:
                    db[name].rename(rng.choice("ab"), dropTarget=True)
                case 5:
                    db.command("collMod", name, validationLevel="moderate")

        def write(db, rng):
            db[rng.choice("ab")].insert_one({"k": rng.randrange(10**6)})

        threads = [threading.Thread(target=guard, args=(change, s)) for s in range(3)]
        threads += [threading.Thread(target=guard, args=(write, s)) for s in range(10, 13)]
        for t in threads:
            t.start()
        stop.wait(8)
        stop.set()
        for t in threads:
            t.join(120)
            self.assertFalse(t.is_alive(), "a thread hangs")
        self.assertEqual(errors, [])
        self.assertSound()

    def test_no_write_is_lost_around_a_drop(self):
        """Every acknowledged insert after the last drop is there."""
        for round in range(4):
            coll = self.hashed(docs=0)
            acknowledged, dropped = [], threading.Event()

            def insert(thread):
                own = self.cluster.client()[self.db.name].h
                left, i = 20, 0
                while left:
                    after = dropped.is_set()
                    own.insert_one({"_id": f"{round}-{thread}-{i}", "k": i})
                    if after:
                        acknowledged.append(f"{round}-{thread}-{i}")
                        left -= 1
                    i += 1

            threads = [threading.Thread(target=insert, args=(t,)) for t in range(3)]
            for t in threads:
                t.start()
            coll.drop()
            dropped.set()
            for t in threads:
                t.join()
            self.assertEqual(len(acknowledged), 60)
            there = {d["_id"] for d in coll.find()}
            self.assertEqual([a for a in acknowledged if a not in there], [])
            self.assertSound()
            coll.drop()


class LikeAServer(ClusterCase):
    """Codes as one mongod answers them, on unsharded collections."""

    setup = {"shards": 2}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        oracle = Oracle()
        oracle.__enter__()
        cls.addClassCleanup(oracle.__exit__)
        cls.oracle = oracle.client

    # Differences that mongos itself has: a missing collection may be dropped, index replies stand under `raw`.
    COMMANDS = [
        {"create": "a"},
        {"create": "a"},
        {"create": ""},
        {"create": "x$y"},
        {"create": "v", "viewOn": "a", "pipeline": []},
        {"create": "w", "viewOn": "a", "pipeline": [{"$nope": 1}]},
        {"create": "c", "capped": True},
        {"create": "o", "nosuch": 1},
        {"create": "z", "collation": {"locale": "nowhere"}},
        {"createIndexes": "a", "indexes": []},
        {"createIndexes": "a", "indexes": [{"key": {"x": 1}}]},
        {"createIndexes": "a", "indexes": [{"key": {"x": 1}, "name": "x"}]},
        {"createIndexes": "a", "indexes": [{"key": {"y": 1}, "name": "x"}]},
        {"createIndexes": "a", "indexes": [{"key": {"x": 1}, "name": "x2"}]},
        {"createIndexes": "a", "indexes": [{"key": {"x": "nope"}, "name": "n"}]},
        {"createIndexes": "v", "indexes": [{"key": {"x": 1}, "name": "x"}]},
        {"dropIndexes": "a", "index": "nope"},
        {"dropIndexes": "a", "index": "_id_"},
        {"dropIndexes": "a", "index": {"q": 1}},
        {"dropIndexes": "a", "index": 5},
        {"dropIndexes": "a"},
        {"dropIndexes": "a", "index": ["x"]},
        {"dropIndexes": "none", "index": "*"},
        {"collMod": "a", "validationLevel": "nonsense"},
        {"collMod": "a", "validationLevel": "moderate"},
        {"collMod": "none", "validationLevel": "moderate"},
        {"collMod": "a", "index": {"name": "nope", "hidden": True}},
        {"listIndexes": "none"},
        {"listIndexes": "v"},
        {"validate": "none"},
        {"validate": "v"},
        {"convertToCapped": "none", "size": 4096},
        {"convertToCapped": "a"},
        {"cloneCollectionAsCapped": "none", "toCollection": "t", "size": 4096},
        {"collStats": "v"},
        {"dataSize": "none"},
        {"drop": "v"},
        {"drop": ""},
        {"drop": 5},
        {"create": 5},
        {"listCollections": 1, "filter": {"$bad": 1}},
    ]

    def test_codes(self):
        for command in self.COMMANDS:
            with self.subTest(command=command):
                found, expected = [self.outcome(client, dict(command)) for client in (self.client, self.oracle)]
                self.assertEqual(found, expected)

    def outcome(self, client, command):
        db = client["t_codes"]
        if "dataSize" in command:
            command["dataSize"] = f"{db.name}.{command['dataSize']}"
        reply = db.command(command, check=False)
        # A few old replies have no code at all; drivers take that for 8 (UnknownError).
        return (reply["ok"], reply.get("code", 8), reply.get("codeName", "UnknownError"))
