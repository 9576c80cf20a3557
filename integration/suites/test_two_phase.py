"""Documents that move between shards, with routers that crash at every step of the commit."""

import datetime
import time
import unittest

import pymongo
from bson import Binary, Int64, ObjectId
from cluster import Oracle, Serve, eventually
from rawwire import Raw, session

# Where the router ends; whether the move has to have happened when it is started again.
PLACES = [("txn.recorded", False), ("txn.prepared", False), ("txn.decided", True), ("txn.oneCommitted", True), ("txn.done", True)]


class TwoShards(unittest.TestCase):
    """Two shards, and routers that are processes of their own."""

    shard_flags = ()
    configdb = False

    @classmethod
    def setUpClass(cls):
        cls.shards = [Oracle(flags=cls.shard_flags, name=f"s{i}") for i in range(2)]
        members = list(cls.shards)
        catalog = None
        if cls.configdb:
            members.append(Oracle(name="cfg"))
            catalog = ["--configdb", f"cfg/127.0.0.1:{members[-1].port}"]
        cls.routers = [Serve(catalog) for _ in range(2 if cls.configdb else 1)]
        for one in [*members, *cls.routers]:
            one.__enter__()
            cls.addClassCleanup(one.__exit__)
        for shard in cls.shards:
            cls.routers[0].client.admin.command("addShard", f"{shard.name}/127.0.0.1:{shard.port}")
        for router in cls.routers:
            eventually(lambda: len(router.client.admin.command("listShards")["shards"]) == 2)

    def setUp(self):
        self.router = self.routers[0]
        self.name = "t_" + self._testMethodName[:50]
        admin = self.router.client.admin
        admin.command("shardCollection", f"{self.name}.c", key={"k": 1})
        admin.command("split", f"{self.name}.c", middle={"k": 100})
        chunks = list(self.router.client.config.chunks.find({"min": {"k": 100}}))
        self.other = next(s for s in ("s0", "s1") if s != chunks[-1]["shard"])
        admin.command("_mosaicPlaceChunk", f"{self.name}.c", bounds=[chunks[-1]["min"], chunks[-1]["max"]], to=self.other)

    @property
    def coll(self):
        return self.router.client[self.name].c

    def copies(self):
        """The documents on all shards."""
        return [d for shard in self.shards for d in shard.client[self.name].c.find()]

    def unfinished(self):
        return list(self.router.client.config["mosaic.txns"].find())

    def crash_at(self, place):
        self.router.client.admin.command("configureFailPoint", "mosaicCrash", mode="alwaysOn", data={"at": place})

    def assertWritable(self, shard, _id):
        """No prepared transaction holds the document."""
        shard.client[self.name].c.with_options(write_concern=pymongo.WriteConcern(w=1)).update_one({"_id": _id}, {"$set": {"w": 1}})


class Crashes(TwoShards):
    def test_every_place(self):
        for i, (place, moved) in enumerate(PLACES):
            with self.subTest(place=place):
                self.coll.insert_one({"_id": i, "k": i, "u": i, "n": 0})
                self.crash_at(place)
                statement = {
                    "update": "c",
                    "updates": [{"q": {"u": i} if i % 2 else {"k": i}, "u": {"$inc": {"k": 100, "n": 1}}}],
                    "lsid": session(),
                    "txnNumber": Int64(1),
                }
                with Raw(self.router.port) as raw:
                    with self.assertRaises((EOFError, OSError)):
                        raw.run(self.name, statement)
                self.router.wait_crashed()
                self.router.start()
                eventually(lambda: self.unfinished() == [], what="recovery")
                found = [d for d in self.copies() if d["_id"] == i]
                self.assertEqual(found, [{"_id": i, "k": i + 100 * moved, "u": i, "n": int(moved)}])
                for shard in self.shards:
                    self.assertWritable(shard, i)
                # The client's retry does what is still to be done, and no more.
                with Raw(self.router.port) as raw:
                    reply = raw.run(self.name, statement)
                self.assertEqual((reply["n"], reply["nModified"], "retriedStmtIds" in reply), (1, 1, moved))
                found = [d for d in self.copies() if d["_id"] == i]
                self.assertEqual([(d["k"], d["n"]) for d in found], [(i + 100, 1)])

    def test_what_a_crash_leaves_is_invisible_or_whole(self):
        """While a prepared transaction waits for its router, readers see the document once, where it was."""
        self.coll.insert_one({"_id": 1, "k": 1})
        self.crash_at("txn.prepared")
        statement = {"update": "c", "updates": [{"q": {"k": 1}, "u": {"$set": {"k": 150}}}], "lsid": session(), "txnNumber": Int64(1)}
        with Raw(self.router.port) as raw, self.assertRaises((EOFError, OSError)):
            raw.run(self.name, statement)
        self.router.wait_crashed()
        self.assertEqual(self.copies(), [{"_id": 1, "k": 1}])
        self.router.start()
        eventually(lambda: self.unfinished() == [], what="recovery")
        self.assertEqual(self.coll.update_one({"_id": 1}, {"$set": {"k": 160}}).modified_count, 1)
        self.assertEqual(self.copies(), [{"_id": 1, "k": 160}])


class AnotherRouterRecovers(TwoShards):
    configdb = True

    def test_the_living_router_finishes(self):
        living = self.routers[1]
        for i, (place, moved) in enumerate(PLACES[1:3]):
            with self.subTest(place=place):
                self.coll.insert_one({"_id": i, "k": i})
                self.crash_at(place)
                statement = {"update": "c", "updates": [{"q": {"k": i}, "u": {"$inc": {"k": 100}}}], "lsid": session(), "txnNumber": Int64(1)}
                with Raw(self.router.port) as raw, self.assertRaises((EOFError, OSError)):
                    raw.run(self.name, statement)
                self.router.wait_crashed()
                # The retry at another router waits for the outcome and then does what is left.
                with Raw(living.port) as raw:
                    reply = raw.run(self.name, statement)
                self.assertEqual(reply["n"], 1, reply)
                eventually(lambda: list(living.client.config["mosaic.txns"].find()) == [], what="the record's end")
                self.assertEqual([d for d in self.copies() if d["_id"] == i], [{"_id": i, "k": i + 100}])
                self.router.start()


class RecordsOfOthers(TwoShards):
    """What a router does with the records it finds, written here as another coordinator would."""

    configdb = True

    def setUp(self):
        super().setUp()
        self.txns = self.routers[0].client.config.get_collection("mosaic.txns")
        catalog = self.catalog()
        self.stored = catalog.mosaic["mosaic.txns"]
        self.addCleanup(catalog.close)

    def catalog(self):
        port = int(self.routers[0].catalog[1].rsplit(":", 1)[1])
        return pymongo.MongoClient("127.0.0.1", port, directConnection=True)

    def transaction(self, shard, command, prepare=True):
        """An open transaction on the shard; gives its participant and the time it was prepared at."""
        lsid = session()
        rest = {"lsid": lsid, "txnNumber": Int64(1), "autocommit": False}
        at = None
        with Raw(shard.port) as raw:
            reply = raw.run(self.name, {**command, **rest, "startTransaction": True})
            self.assertEqual(reply["ok"], 1.0, reply)
            if prepare:
                reply = raw.run("admin", {"prepareTransaction": 1, **rest, "writeConcern": {"w": "majority"}})
                at = reply["prepareTimestamp"]
        return {"shard": shard.name, "lsid": lsid, "txnNumber": Int64(1)}, at

    def document(self, participant, state="preparing", **more):
        long_ago = datetime.datetime(2020, 1, 1)  # by a clock that is wrong
        doc = {"_id": session()["id"], "state": state, "participants": [participant], "owner": ObjectId(), "changed": long_ago}
        return {**doc, **more}

    def record(self, participant, state="preparing", **more):
        doc = self.document(participant, state, **more)
        self.stored.insert_one(doc)
        return doc["_id"]

    def beat(self, _id, seconds):
        for n in range(seconds):
            if not self.stored.update_one({"_id": _id, "state": "preparing"}, {"$inc": {"beat": 1}}).matched_count:
                return False
            time.sleep(1)
        return True

    def test_a_coordinator_that_lives_is_left_alone_whatever_its_clock_says(self):
        shard = self.shards[0]
        shard.client[self.name].create_collection("plain")
        participant, at = self.transaction(shard, {"insert": "plain", "documents": [{"_id": "kept"}]})
        _id = self.record(participant)
        self.assertTrue(self.beat(_id, 24), "the transaction was aborted while its coordinator was at work")
        # It decides to commit and goes away: somebody else finishes it.
        decided = {"$set": {"state": "committed", "commitTimestamp": at}}
        self.assertEqual(self.stored.update_one({"_id": _id, "state": "preparing"}, decided).modified_count, 1)
        eventually(lambda: self.stored.find_one({"_id": _id}) is None, what="recovery")
        self.assertEqual(list(shard.client[self.name].plain.find()), [{"_id": "kept"}])

    def test_a_decision_to_commit_stands_against_a_late_recovery(self):
        """The routers meet another record first that keeps them busy, and decide on this one with what they read before."""
        first, second = self.shards
        first.client[self.name].create_collection("plain")
        participant, at = self.transaction(first, {"insert": "plain", "documents": [{"_id": "kept"}]})
        block = {"failCommands": ["abortTransaction"], "blockConnection": True, "blockTimeMS": 4000}
        second.client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=block)
        self.addCleanup(second.client.admin.command, "configureFailPoint", "failCommand", mode="off")
        other, _id = (Binary(bytes(15) + bytes([n]), 4) for n in (1, 2))
        busy = {"shard": second.name, "lsid": session(), "txnNumber": Int64(1)}
        self.stored.insert_many([self.document(busy, _id=other), self.document(participant, _id=_id)])
        # The coordinator decides when the routers have read that it has not.
        eventually(lambda: self.stored.find_one({"_id": other, "state": "preparing"}) is None, patience=60, every=0.005)
        now = datetime.datetime.now(datetime.timezone.utc)
        decided = {"$set": {"state": "committed", "commitTimestamp": at, "changed": now}}
        if self.stored.update_one({"_id": _id, "state": "preparing"}, decided).modified_count:
            expected = [{"_id": "kept"}]
        else:
            expected = []
        eventually(lambda: self.stored.find_one({"_id": _id}) is None, patience=60, what="recovery")
        self.assertEqual(list(first.client[self.name].plain.find()), expected)

    def test_one_that_is_gone_is_finished_once_it_has_not_shown_itself_for_a_while(self):
        shard = self.shards[0]
        shard.client[self.name].create_collection("plain")
        participant, _ = self.transaction(shard, {"insert": "plain", "documents": [{"_id": "gone"}]})
        _id = self.record(participant)
        eventually(lambda: self.stored.find_one({"_id": _id}) is None, patience=60, what="recovery")
        self.assertEqual(list(shard.client[self.name].plain.find()), [])

    def test_a_shard_that_wrongly_denies_the_transaction_is_asked_again(self):
        shard = self.shards[0]
        shard.client[self.name].create_collection("plain")
        participant, at = self.transaction(shard, {"insert": "plain", "documents": [{"_id": "kept"}]})
        data = {"failCommands": ["commitTransaction"], "errorCode": 251}
        shard.client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=data)
        self.addCleanup(shard.client.admin.command, "configureFailPoint", "failCommand", mode="off")
        _id = self.record(participant, "committed", commitTimestamp=at)
        time.sleep(22)
        self.assertIsNotNone(self.stored.find_one({"_id": _id}))
        shard.client.admin.command("configureFailPoint", "failCommand", mode="off")
        eventually(lambda: self.stored.find_one({"_id": _id}) is None, patience=60, what="recovery")
        self.assertEqual(list(shard.client[self.name].plain.find()), [{"_id": "kept"}])


class ShardsWithoutPrepare(TwoShards):
    shard_flags = ("--setParameter", "enableTestCommands=0")

    def test_a_move_is_refused_and_nothing_changes(self):
        self.coll.insert_one({"_id": 1, "k": 1})
        with self.assertRaises(pymongo.errors.WriteError) as caught:
            self.coll.update_one({"k": 1}, {"$set": {"k": 150}})
        self.assertEqual(caught.exception.code, 115)
        self.assertIn("enableTestCommands", str(caught.exception))
        self.assertEqual(self.copies(), [{"_id": 1, "k": 1}])
        self.assertEqual(self.unfinished(), [])
        self.assertEqual(self.coll.update_one({"k": 1}, {"$set": {"k": 50}}).modified_count, 1)
        for shard in self.shards:
            self.assertWritable(shard, 1)
