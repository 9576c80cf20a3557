"""Writes that meet failures of shards, other writes, and clients that ask for a stable API."""

import threading
import time

import pymongo
from bson import Int64, MaxKey
from cluster import ClusterCase
from pymongo.server_api import ServerApi
from rawwire import Raw, session

LOST = {"closeConnection": True}
STEPPED_DOWN = {"errorCode": 10107}
INTERRUPTED = {"errorCode": 11602}


class FaultCase(ClusterCase):
    """A collection with k < 100 on shard0 and the rest on shard1."""

    setup = {"shards": 2}

    def setUp(self):
        super().setUp()
        self.admin = self.client.admin
        self.coll = self.make("c")

    def make(self, name):
        ns = f"{self.db.name}.{name}"
        self.admin.command("shardCollection", ns, key={"k": 1})
        self.admin.command("split", ns, middle={"k": 100})
        for bounds, to in (([{"k": 100}, {"k": MaxKey()}], "shard1"), (None, "shard0")):
            chunks = self.client.config.chunks.find({"uuid": self.client.config.collections.find_one({"_id": ns})["uuid"]})
            low = next(c for c in chunks if c["max"] == {"k": 100})
            bounds = bounds or [low["min"], low["max"]]
            try:
                self.admin.command("_mosaicPlaceChunk", ns, bounds=bounds, to=to)
            except pymongo.errors.OperationFailure:
                pass  # it is there already
        return self.db[name]

    def shard(self, i):
        return self.cluster.member_client(f"shard{i}")

    def copies(self, name="c"):
        return [d for i in (0, 1) for d in self.shard(i)[self.db.name][name].find()]

    def inject(self, i, commands, mode, **data):
        admin = self.shard(i).admin
        admin.command("configureFailPoint", "failCommand", mode=mode, data={"failCommands": commands, **data})
        self.addCleanup(self.heal)

    def heal(self):
        for i in (0, 1):
            self.shard(i).admin.command("configureFailPoint", "failCommand", mode="off")

    def raw(self, command, db=None):
        with Raw(self.cluster.port) as raw:
            return raw.run(db or self.db.name, command)


class OrderedInserts(FaultCase):
    """All but the last run on each shard are acknowledged by the primary alone, so a change of primary must be noticed."""

    DOCS = [{"_id": i, "k": i % 2 * 500, "pad": "x" * 50} for i in range(4000)]

    def insert(self, name, **more):
        """One ordered batch, in the midst of which shard0's only member steps down and is elected again."""
        self.make(name)
        step = {"replSetStepDown": 1, "force": True, "secondaryCatchUpPeriodSecs": 0}
        down = threading.Timer(0.4, lambda: self.shard(0).admin.command(step))
        down.start()
        try:
            return self.raw({"insert": name, "documents": self.DOCS, "ordered": True, **more})
        finally:
            down.join()

    def test_a_driver_sends_everything_again(self):
        command = {"lsid": session(), "txnNumber": Int64(1)}
        reply = self.insert("again", **command)
        if reply["ok"] != 1:
            self.assertEqual(reply["errorLabels"], ["RetryableWriteError"], reply)
            reply = self.raw({"insert": "again", "documents": self.DOCS, "ordered": True, **command})
        self.assertEqual((reply["n"], reply.get("writeErrors"), reply.get("writeConcernError")), (4000, None, None), reply)
        self.assertEqual(sorted(d["_id"] for d in self.copies("again")), list(range(4000)))

    def test_nobody_sends_it_again(self):
        reply = self.insert("once")
        found = sorted(d["_id"] for d in self.copies("once"))
        # What is there is the beginning of the batch, and the reply says that it may not last.
        self.assertEqual(found, list(range(len(found))))
        self.assertTrue(reply["ok"] == 0 or reply["writeConcernError"]["code"] == 64, reply)
        if reply["ok"]:
            self.assertEqual(reply["n"], len(found))

    def test_an_error_in_the_midst(self):
        self.coll.insert_one({"_id": 700, "k": 0})
        for concern in ({}, {"writeConcern": {"w": "majority"}}, {"writeConcern": {"w": 1}}):
            reply = self.raw({"insert": "c", "documents": self.DOCS, "ordered": True, **concern})
            self.assertEqual((reply["ok"], reply["n"], [e["index"] for e in reply["writeErrors"]]), (1.0, 700, [700]), reply)
            self.assertNotIn("writeConcernError", reply)
            self.assertEqual(self.coll.delete_many({"_id": {"$lt": 700}}).deleted_count, 700)

    def test_a_write_concern_that_cannot_be(self):
        for stop in ([], [{"_id": 1, "k": 500}]):
            reply = self.raw({"insert": "c", "documents": [*self.DOCS[:9], *stop], "ordered": True, "writeConcern": {"w": 2, "wtimeout": 100}})
            self.assertEqual((reply["ok"], reply["n"]), (1.0, 9), reply)
            self.assertIn(reply["writeConcernError"]["code"], (64, 100), reply)
            self.coll.delete_many({})


class Failovers(FaultCase):
    """A failure before the commit is not the client's business; one after it is told so that its driver asks again."""

    def test_before_the_commit(self):
        n = 0
        for fault in (LOST, STEPPED_DOWN, INTERRUPTED):
            for commands, change in (
                (["update"], {"$set": {"k": 500}}),
                (["insert"], {"$set": {"k": 500}}),
                (["findAndModify"], {"$set": {"k": 500}}),
                (["prepareTransaction"], {"$set": {"k": 500}}),
                (["update"], {"$inc": {"k": 1}}),
            ):
                n += 1
                with self.subTest(fault=fault, commands=commands, change=change):
                    self.coll.insert_one({"_id": n, "k": 1, "u": n})
                    self.inject(1 if commands == ["insert"] else 0, commands, {"times": 1}, **fault)
                    reply = self.raw(
                        {"update": "c", "updates": [{"q": {"u": n}, "u": change}], "lsid": session(), "txnNumber": Int64(1)}
                    )
                    self.assertEqual((reply["ok"], reply.get("n"), reply.get("nModified")), (1.0, 1, 1), reply)
                    self.heal()
        docs = self.copies()
        self.assertEqual(len(docs), n)
        self.assertEqual({d["k"] for d in docs}, {2, 500})
        self.assertEqual(list(self.client.config["mosaic.txns"].find()), [])

    def test_an_upsert_without_the_shard_key(self):
        for n, fault in enumerate((LOST, STEPPED_DOWN, INTERRUPTED)):
            for commands in (["update"], ["commitTransaction"]):
                for retryable in (True, False):
                    with self.subTest(fault=fault, commands=commands, retryable=retryable):
                        name = f"{n} {commands} {retryable}"
                        self.inject(0, commands, {"times": 1}, **fault)
                        more = {"lsid": session(), "txnNumber": Int64(1)} if retryable else {}
                        statement = {"q": {"name": name}, "u": {"$set": {"k": 7}}, "upsert": True}
                        reply = self.raw({"update": "c", "updates": [statement], **more})
                        self.assertEqual((reply["ok"], reply.get("n"), len(reply.get("upserted", []))), (1.0, 1, 1), reply)
                        self.heal()
                        self.assertEqual(self.coll.count_documents({"name": name}), 1)

    def test_a_lost_commit_is_the_drivers_to_ask_for(self):
        statement = {"q": {"name": "x"}, "u": {"$set": {"k": 7}}, "upsert": True}
        command = {"update": "c", "updates": [statement], "lsid": session(), "txnNumber": Int64(1)}
        self.inject(0, ["commitTransaction"], "alwaysOn", **LOST)
        reply = self.raw(command)
        self.assertEqual((reply["ok"], reply.get("errorLabels")), (0.0, ["RetryableWriteError"]), reply)
        # Without a transaction number nobody could tell the second from the first.
        reply = self.raw({"update": "c", "updates": [{**statement, "q": {"name": "y"}}]})
        self.assertNotIn("errorLabels", reply)
        self.heal()
        reply = self.raw(command)
        self.assertEqual((reply["ok"], reply["n"]), (1.0, 1), reply)
        self.assertEqual(self.coll.count_documents({"name": "x"}), 1)

    def test_patience_ends_with_the_time_limit(self):
        self.coll.insert_one({"_id": 1, "k": 1})
        self.inject(0, ["update"], "alwaysOn", **LOST)
        began = time.monotonic()
        update = {"q": {"k": 1}, "u": {"$set": {"k": 500}}}
        reply = self.raw({"update": "c", "updates": [update], "lsid": session(), "txnNumber": Int64(1), "maxTimeMS": 1500})
        self.assertEqual((reply["ok"], reply.get("code")), (0.0, 50), reply)
        self.assertLess(time.monotonic() - began, 10)
        self.heal()
        self.assertEqual(self.copies(), [{"_id": 1, "k": 1}])


class BesideOthers(FaultCase):
    def test_a_multi_update_that_may_touch_the_key_waits_for_others(self):
        self.coll.insert_many([{"_id": i, "k": i, "n": 0} for i in range(200)])
        stop = threading.Event()

        def single():
            with pymongo.MongoClient("127.0.0.1", self.cluster.port) as client:
                while not stop.is_set():
                    for i in range(0, 200, 7):
                        client[self.db.name].c.update_one({"k": i}, {"$inc": {"n": 1}})

        threads = [threading.Thread(target=single) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for r in range(10):
                result = self.coll.update_many({}, [{"$replaceWith": {"$mergeObjects": [{"z": r}, "$$ROOT"]}}])
                self.assertEqual(result.matched_count, 200)
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def test_what_was_done_is_counted_beside_an_error(self):
        self.coll.insert_many([{"_id": 1, "k": 5}, {"_id": 2, "k": 5}, {"_id": 3, "k": 500}])
        change = {"q": {}, "u": {"$set": {"k": 5, "hit": 1}}, "multi": True}
        reply = self.raw({"update": "c", "updates": [change]})
        self.assertEqual((reply["n"], reply["nModified"]), (2, 2), reply)
        self.assertEqual([(e["index"], e["code"]) for e in reply["writeErrors"]], [(0, 72)])
        self.assertEqual(self.coll.count_documents({"hit": 1}), 2)
        # An error of one shard beside what the other did.
        self.shard(1)[self.db.name].command("collMod", "c", validator={"bad": {"$exists": False}})
        for upsert in (False, True):
            change = {"q": {"_id": {"$gt": 0}}, "u": {"$inc": {"bad": 1}}, "multi": True, "upsert": upsert}
            reply = self.raw({"update": "c", "updates": [change]})
            self.assertEqual((reply["n"], reply["nModified"]), (2, 2), reply)
            self.assertEqual([(e["index"], e["code"]) for e in reply["writeErrors"]], [(0, 121)])

    def test_the_operation_time_is_not_before_the_write(self):
        oplogs = [self.shard(i).local["oplog.rs"] for i in (0, 1)]

        def written(_id):
            ns = f"{self.db.name}.c"
            either = [{"ns": ns, "o._id": _id}, {"ns": ns, "o2._id": _id}]
            either += [{"o.applyOps": {"$elemMatch": {"ns": ns, f"{o}._id": _id}}} for o in ("o", "o2")]
            return max(o["ts"] for oplog in oplogs for o in oplog.find({"$or": either}))

        def times(command):
            with Raw(self.cluster.port) as raw:
                raw.send(self.db.name, command)
                reply = raw.receive()
            self.assertEqual(reply["ok"], 1.0, reply)
            return reply["operationTime"]

        for i, k in enumerate((7, 700)):
            for new in (False, True):
                _id = f"{i} {new}"
                modify = {"findAndModify": "c", "query": {"_id": _id}, "update": {"$set": {"k": k}}, "upsert": True, "new": new}
                self.assertGreaterEqual(times(modify), written(_id))
        self.coll.insert_one({"_id": "kept", "k": 1})
        modify = {"findAndModify": "c", "query": {"k": 1}, "update": {"$inc": {"k": 1}}}
        self.assertGreaterEqual(times({**modify, "lsid": session(), "txnNumber": Int64(1)}), written("kept"))


class StableApi(FaultCase):
    """Clients that ask for API version 1."""

    def writes(self, client):
        coll = client[self.db.name].c
        self.coll.insert_many([{"_id": i, "k": i, "n": 0} for i in range(10)])
        yield "plain", coll.update_one({"k": 5}, {"$set": {"n": 1}}).modified_count
        yield "without the key", coll.update_one({"n": 0}, {"$set": {"n": 5}}).modified_count
        yield "upsert that stays", coll.update_one({"name": "a"}, {"$set": {"k": 7}}, upsert=True).upserted_id is not None
        yield "upsert elsewhere", coll.update_one({"_id": 50}, {"$set": {"k": 700}}, upsert=True).upserted_id == 50
        yield "move", coll.update_one({"k": 5}, {"$set": {"k": 500}}).modified_count
        yield "move by id", coll.update_one({"_id": 2}, {"$inc": {"k": 500}}).modified_count
        yield "move a replaced one", coll.replace_one({"_id": 3}, {"k": 600}).modified_count
        yield "may move", coll.update_one({"_id": 4}, {"$inc": {"k": 1}}).modified_count
        yield "find and move", coll.find_one_and_update({"_id": 6}, {"$inc": {"k": 500}})["k"] == 6
        yield "find and upsert", coll.find_one_and_update({"_id": 60}, {"$set": {"k": 8}}, upsert=True) is None
        yield "many", coll.update_many({"k": {"$lt": 4}}, [{"$set": {"k": {"$add": ["$k", 0]}, "m": 1}}]).modified_count > 0
        yield "many, upserted", coll.update_many({"_id": 70}, {"$set": {"k": 9}}, upsert=True).upserted_id == 70
        yield "delete", coll.delete_one({"name": "a"}).deleted_count
        yield "find and delete", coll.find_one_and_delete({"_id": 50})["k"] == 700

    def test_all_kinds_of_writes(self):
        for strict in (None, True):
            for retry in (True, False):
                api = ServerApi("1", strict=strict, deprecation_errors=strict)
                with pymongo.MongoClient("127.0.0.1", self.cluster.port, server_api=api, retryWrites=retry) as client:
                    writes = self.writes(client)
                    while True:
                        try:
                            what, done = next(writes)
                        except StopIteration:
                            break
                        except pymongo.errors.WriteError as e:
                            # A move needs a retryable write.
                            self.assertEqual((retry, e.code), (False, 20), e)
                            break
                        self.assertTrue(done, (what, strict, retry))
                self.coll.delete_many({})
        self.assertEqual(list(self.client.config["mosaic.txns"].find()), [])
        for i in (0, 1):
            pipeline = [{"$currentOp": {"allUsers": True, "idleSessions": True}}, {"$match": {"transaction": {"$exists": True}}}]
            self.assertEqual(list(self.shard(i).admin.aggregate(pipeline)), [])


class Sessions(FaultCase):
    def test_the_routers_own_sessions_are_used_again(self):
        def open_sessions():
            return sum(len(list(self.shard(i).admin.aggregate([{"$listLocalSessions": {"allUsers": True}}]))) for i in (0, 1))

        def write(n):
            statement = {"q": {"name": n}, "u": {"$set": {"k": 7}}, "upsert": True}
            self.assertEqual(self.raw({"update": "c", "updates": [statement]})["n"], 1)

        write("first")
        before = open_sessions()
        for n in range(50):
            write(n)
        self.assertLess(open_sessions() - before, 10)


class Nulls(FaultCase):
    def test_null_is_as_good_as_nothing(self):
        oracle = self.shard(0)[f"plain_{self.db.name}"]
        self.addCleanup(self.shard(0).drop_database, oracle.name)
        commands = []
        for q in ({"k": 3}, {"zz": 1}):
            for name in ("multi", "upsert", "collation", "hint", "q", "u"):
                commands.append({"update": "c", "updates": [{"q": q, "u": {"$set": {"a": 1}}, name: None}]})
            for name in ("collation", "hint", "q", "limit"):
                commands.append({"delete": "c", "deletes": [{"q": q, "limit": 1, name: None}]})
            for name in ("query", "sort", "fields", "new", "upsert", "remove", "collation", "hint", "let"):
                commands.append({"findAndModify": "c", "query": q, "update": {"$set": {"a": 1}}, name: None})
        for name in ("ordered", "stmtId", "bypassDocumentValidation"):
            commands.append({"insert": "c", "documents": [{"k": 1}, {"k": 700}], name: None})
            commands.append({"update": "c", "updates": [{"q": {"zz": 1}, "u": {"$set": {"a": 1}}}], name: None})
        with Raw(self.cluster.member_ports("shard0")[0]) as plain:
            for command in commands:
                with self.subTest(command=command):
                    expected = plain.run(oracle.name, command)
                    found = self.raw(command)
                    self.assertEqual((found["ok"], found.get("code")), (expected["ok"], expected.get("code")), found)
                    errors = [[e["code"] for e in reply.get("writeErrors", [])] for reply in (found, expected)]
                    self.assertEqual(errors[0], errors[1], found)
