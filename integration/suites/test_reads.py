"""Reads through the router against one plain mongod: find, getMore, killCursors, count, distinct, aggregate, explain."""

import datetime
import itertools
import random
import threading
import time
import unittest

import bson
import pymongo
from bson import SON, Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from cluster import ClusterCase, Oracle, eventually
from pairs import spread
from pymongo import ASCENDING, DESCENDING

MIXED = [
    None, MinKey(), MaxKey(), True, False, 0, -1, 3, 3.0, 2.5, Int64(3), Int64(2**40), float("inf"), float("-inf"),
    float("nan"), Decimal128("3"), Decimal128("2.25"), "", "a", "b", "B", "é", "z", {}, {"a": 1}, {"a": 2}, {"b": 1},
    [], [1], [5, 1], ["x", 2], [[1, 2]], [{"a": 1}], Binary(b"ab"), Binary(b"abc"), Binary(b"ab", 5),
    ObjectId("000000000000000000000001"), ObjectId("0000000000000000000000ff"),
    datetime.datetime(2020, 1, 1), datetime.datetime(1960, 1, 1), Timestamp(1, 2), Timestamp(5, 0), Regex("a"), Regex("b", "i"),
]  # fmt: skip


def documents(seed=7, count=600):
    rnd = random.Random(seed)
    docs = []
    for i in range(count):
        doc = {"_id": i, "k": i, "u": i % 40, "t": i // 40, "v": i % 7, "name": rnd.choice(["ann", "Ann", "Bob", "bob", "Zoë", "zoe", "élan", "Elan"])}
        if rnd.random() < 0.9:
            doc["m"] = rnd.choice(MIXED)
        if rnd.random() < 0.8:
            doc["d"] = {"x": rnd.randrange(20), "y": [rnd.randrange(5) for _ in range(rnd.randrange(3))]}
        doc["p"] = [rnd.uniform(-50, 50), rnd.uniform(-50, 50)]
        doc["text"] = " ".join(rnd.choice(["red", "green", "blue", "fish"]) for _ in range(4))
        docs.append(doc)
    return docs


def canonical(value):
    """A value that compares as BSON does, types included."""
    return bson.encode({"": value})


class Reads(ClusterCase):
    """`same` runs a command on the router and on the oracle and compares the results."""

    setup = {"shards": 3}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.oracle = cls.enterClassContext(Oracle())
        docs = documents()
        admin, base = cls.client.admin, cls.client.reads
        admin.command("shardCollection", "reads.hashed", key={"k": "hashed"})
        cls.shard_ranged("reads.ranged", {"u": 1, "t": 1}, [{"u": 10, "t": 0}, {"u": 20, "t": 7}, {"u": 30, "t": 0}])
        cls.names = ["hashed", "ranged", "plain"]
        for name in cls.names:
            for db in (base, cls.oracle.client.reads):
                db[name].insert_many(docs)
                db[name].create_index([("p", "2d")])
                db[name].create_index([("text", "text")])
                db[name].create_index([("v", 1), ("_id", 1)])
        base.create_collection("french", collation={"locale": "fr", "strength": 1})
        cls.oracle.client.reads.create_collection("french", collation={"locale": "fr", "strength": 1})
        admin.command("shardCollection", "reads.french", key={"k": "hashed"}, collation={"locale": "simple"})
        base.french.insert_many(docs)
        cls.oracle.client.reads.french.insert_many(docs)

    @classmethod
    def shard_ranged(cls, ns, key, middles):
        """Shards and puts the chunks on the shards in turn."""
        admin = cls.client.admin
        admin.command("shardCollection", ns, key=key)
        for middle in middles:
            admin.command("split", ns, middle=middle)
        low, high = ({k: b() for k in key} for b in (MinKey, MaxKey))
        bounds = [low, *middles, high]
        for i, pair in enumerate(itertools.pairwise(bounds)):
            admin.command("_mosaicPlaceChunk", ns, bounds=list(pair), to=f"shard{i % 3}")

    def drain(self, client, command, db="reads", batch=None):
        reply = client[db].command(SON(command))
        cursor = reply["cursor"]
        docs = list(cursor["firstBatch"])
        while cursor["id"]:
            more = SON([("getMore", Int64(cursor["id"])), ("collection", cursor["ns"].split(".", 1)[1])])
            if batch:
                more["batchSize"] = batch
            cursor = client[db].command(more)["cursor"]
            if batch:
                self.assertLessEqual(len(cursor["nextBatch"]), batch)
            docs += cursor["nextBatch"]
        return docs

    def same(self, command, ordered=True, names=None, batch=None):
        """The cursor command gives the same documents on both; ordered or not."""
        first = next(iter(command))
        for name in names or self.names:
            with self.subTest(collection=name, command=command):
                command = SON([(first, name), *list(command.items())[1:]])
                mine, theirs = (self.outcome(c, SON(command), batch) for c in (self.client, self.oracle.client))
                if isinstance(mine, str) or isinstance(theirs, str):
                    self.assertEqual(mine, theirs)
                    continue
                if not ordered:
                    mine, theirs = (sorted(map(canonical, docs)) for docs in (mine, theirs))
                self.assertEqual([canonical(d) for d in mine], [canonical(d) for d in theirs])

    def outcome(self, client, command, batch):
        try:
            return self.drain(client, command, batch=batch)
        except pymongo.errors.OperationFailure as e:
            return f"{e.code} {e.details.get('codeName')}"

    # -- find

    def test_sorts(self):
        for sort in (
            {"_id": 1}, {"_id": -1}, {"m": 1, "_id": 1}, {"m": -1, "_id": -1}, {"v": 1, "m": -1, "_id": 1},
            {"d.x": 1, "d.y": -1, "_id": 1}, {"d": -1, "_id": 1}, {"name": 1, "_id": 1}, {"nope": 1, "_id": -1},
        ):  # fmt: skip
            self.same({"find": 1, "sort": sort})
            self.same({"find": 1, "sort": sort, "filter": {"u": {"$gte": 15}}, "batchSize": 17}, batch=13)

    def test_sorts_under_collations(self):
        for collation in (
            {"locale": "fr", "strength": 1}, {"locale": "en", "strength": 2}, {"locale": "sv"}, {"locale": "simple"},
            {"locale": "en", "numericOrdering": True}, {"locale": "de", "caseFirst": "upper"},
        ):  # fmt: skip
            for sort in ({"name": 1, "_id": 1}, {"name": -1, "v": 1, "_id": -1}, {"m": 1, "_id": 1}):
                self.same({"find": 1, "sort": sort, "collation": collation})
            self.same({"find": 1, "filter": {"name": "ANN"}, "sort": {"_id": 1}, "collation": collation})
        self.same({"find": 1, "sort": {"name": 1, "_id": 1}}, names=["french"])
        self.same({"find": 1, "filter": {"name": "elan"}, "sort": {"_id": 1}}, names=["french"])

    def test_skip_limit_batch_size(self):
        for skip, limit, size, single in itertools.product((0, 1, 50, 590, 700), (0, 1, 30, 1000), (None, 0, 1, 7, 200), (False, True)):
            command = {"find": 1, "sort": {"v": 1, "_id": 1}, "skip": skip, "limit": limit}
            if size is not None:
                command["batchSize"] = size
            if single:
                command["singleBatch"] = True
            self.same(command, names=["hashed", "ranged"], batch=size or 40)

    def test_first_batches(self):
        """How many documents come at once, and whether more is to come."""
        for command in (
            {}, {"batchSize": 0}, {"batchSize": 5}, {"limit": 5}, {"limit": 5, "batchSize": 5}, {"limit": 6, "batchSize": 5},
            {"limit": 3, "singleBatch": True}, {"batchSize": 3, "singleBatch": True}, {"filter": {"_id": -1}},
            {"filter": {"v": 3}}, {"limit": 200}, {"batchSize": 1000}, {"batchSize": 2.5}, {"batchSize": Int64(3)},
        ):  # fmt: skip
            for name in self.names:
                with self.subTest(command=command, collection=name):
                    mine, theirs = (
                        c.reads.command(SON([("find", name), *command.items()]))["cursor"] for c in (self.client, self.oracle.client)
                    )
                    self.assertEqual(len(mine["firstBatch"]), len(theirs["firstBatch"]))
                    self.assertEqual(mine["id"] == 0, theirs["id"] == 0)
                    self.assertEqual(mine["ns"], theirs["ns"])

    def test_unsorted(self):
        for command in ({}, {"filter": {"v": {"$in": [1, 2]}}}, {"sort": {"$natural": 1}}, {"sort": {}}, {"batchSize": 9}):
            self.same({"find": 1, **command}, ordered=False, batch=11)
        for skip, limit in ((0, 10), (5, 10), (595, 20)):
            for name in self.names:
                got = self.drain(self.client, SON([("find", name), ("skip", skip), ("limit", limit)]))
                self.assertEqual(len({d["_id"] for d in got}), min(limit, 600 - skip))

    def test_filters(self):
        rnd = random.Random(3)
        operators = [
            lambda: {"k": rnd.randrange(600)}, lambda: {"k": {"$in": [rnd.randrange(700) for _ in range(3)]}},
            lambda: {"u": rnd.randrange(40)}, lambda: {"u": {"$gt": rnd.randrange(40)}},
            lambda: {"u": rnd.randrange(40), "t": {"$lte": rnd.randrange(15)}}, lambda: {"m": rnd.choice(MIXED[:20])},
            lambda: {"$or": [{"u": rnd.randrange(40)}, {"k": rnd.randrange(600)}]}, lambda: {"m": {"$type": "string"}},
            lambda: {"$and": [{"v": rnd.randrange(7)}, {"u": {"$ne": rnd.randrange(40)}}]},
            lambda: {"name": {"$regex": "^b", "$options": "i"}}, lambda: {"d.y": {"$size": 2}},
            lambda: {"$expr": {"$eq": ["$u", rnd.randrange(40)]}}, lambda: {"$nor": [{"u": {"$lt": rnd.randrange(40)}}]},
        ]  # fmt: skip
        for _ in range(150):
            parts = [rnd.choice(operators)() for _ in range(rnd.randrange(1, 3))]
            filter = parts[0] if len(parts) == 1 else {"$and": parts}
            self.same({"find": 1, "filter": filter, "sort": {"_id": 1}}, names=["hashed", "ranged"])

    def test_projections(self):
        for projection in (
            {}, {"v": 1}, {"_id": 0}, {"v": 0, "m": 0}, {"_id": 0, "v": 1}, {"d.x": 1}, {"s": {"$add": ["$u", "$t"]}},
            {"d.y": {"$slice": 1}}, {"sk": {"$meta": "sortKey"}}, {"$sortKey": {"$meta": "sortKey"}}, {"x": "$name", "_id": 0},
        ):  # fmt: skip
            self.same({"find": 1, "sort": {"v": -1, "_id": 1}, "projection": projection, "limit": 50})
        self.same({"find": 1, "sort": {"_id": 1}, "filter": {"d.y": 2}, "projection": {"d.y.$": 1}})
        self.same({"find": 1, "sort": {"v": 1, "_id": 1}, "returnKey": True, "limit": 20})
        got = self.client.reads.hashed.find({}, {"_id": 1}, show_record_id=True).sort("_id").limit(3)
        self.assertEqual([list(d) for d in got], [["_id", "$recordId"]] * 3)
        error = self.assertFails(2, self.client.reads.command, "find", "hashed", sort={"v": 1}, projection={"$sortKey": 1})
        self.assertIn("$sortKey", str(error))

    def test_sort_keys_that_are_not_utf8(self):
        """Collation keys are bytes; a projected one may not even decode. The order must be right all the same."""
        self.same({"find": 1, "sort": {"name": 1, "_id": 1}, "collation": {"locale": "fr"}, "projection": {"name": 1}})

    def test_text_and_distance(self):
        meta = {"$meta": "textScore"}
        self.same({"find": 1, "filter": {"$text": {"$search": "red"}}, "sort": {"s": meta, "_id": 1}, "projection": {"s": meta}})
        self.same({"find": 1, "filter": {"$text": {"$search": "red -fish"}}, "sort": {"_id": 1}, "limit": 9})
        near = {"p": {"$near": [3, 4]}}
        self.same({"find": 1, "filter": near, "limit": 40})
        self.same({"find": 1, "filter": near, "skip": 5, "batchSize": 6}, batch=7)
        self.same({"find": 1, "filter": {"$and": [near, {"v": {"$lt": 3}}]}, "projection": {"_id": 1}})
        self.same({"find": 1, "filter": near, "sort": {"_id": -1}, "limit": 10})

    def test_options_pass_through(self):
        self.same({"find": 1, "hint": {"v": 1, "_id": 1}, "min": {"v": 2, "_id": 0}, "max": {"v": 4, "_id": 0}, "sort": {"v": 1, "_id": 1}})
        self.same({"find": 1, "filter": {"$expr": {"$eq": ["$v", "$$x"]}}, "let": {"x": 3}, "sort": {"_id": 1}})
        for extra in ({"comment": "x"}, {"maxTimeMS": 30000}, {"readConcern": {"level": "majority"}}, {"noCursorTimeout": True}):
            self.same({"find": 1, "sort": {"_id": 1}, "limit": 5, **extra})
        now = [d["n"] for d in self.client.reads.hashed.find({}, {"n": "$$NOW"})]
        self.assertEqual(len(set(now)), 1)

    def test_errors_are_a_servers(self):
        for bad in (
            {"limit": -1}, {"skip": "x"}, {"batchSize": True}, {"sort": 5}, {"filter": {"$bad": 1}}, {"filter": 5},
            {"projection": {"$foo": 1}}, {"sort": {"a": 2}}, {"nope": 1}, {"hint": "nope"}, {"awaitData": True},
            {"tailable": True}, {"ntoreturn": 2}, {"collation": {"locale": "xx"}}, {"readConcern": {"level": "foo"}},
            {"sort": {"$natural": 1, "a": 1}}, {"singleBatch": "x"}, {"min": {"v": 1}}, {"maxTimeMS": -1},
        ):  # fmt: skip
            self.same({"find": 1, **bad})
        for bad in ({"query": 5}, {"limit": "x"}, {"limit": 1.5}, {"skip": -1}, {"hint": "nope"}, {"query": {"$bad": 1}}, {"nope": 1}):
            self.same_reply({"count": 1, **bad})
        for bad in ({"key": 5}, {"query": {"$bad": 1}, "key": "v"}, {"key": ""}, {}, {"key": "v", "nope": 1}):
            self.same_reply({"distinct": 1, **bad})
        for bad in (
            [{"$nope": 1}], [{"$limit": 0}], [{"$limit": "x"}], [{"$skip": -1}], [{"$sort": 5}], [{"$group": {"a": 1}}],
            [{"$match": 5}], [{"a": 1, "b": 1}], [5], [{"$count": "a.b"}], [{"$project": {}}], [{"$sortByCount": 5}],
            [{"$match": {}}, {"$collStats": {}}], [{"$group": {"_id": 1, "n": {"$bad": 1}}}], [{"$unwind": 5}],
        ):  # fmt: skip
            self.same({"aggregate": 1, "pipeline": bad, "cursor": {}})
        for bad in ({"pipeline": []}, {"pipeline": 5, "cursor": {}}, {"pipeline": [], "cursor": {"batchSize": -1}}, {"pipeline": [], "cursor": 5}):
            self.same({"aggregate": 1, **bad})

    def test_nothing_there(self):
        for client in (self.client, self.oracle.client):
            db = client.nowhere
            self.assertEqual(list(db.c.find()), [])
            self.assertEqual(list(db.c.aggregate([{"$match": {}}])), [])
            self.assertEqual(db.command("count", "c")["n"], 0)
            self.assertEqual(db.c.distinct("x"), [])
            self.assertEqual(list(client.reads.nope.find()), [])
            self.assertEqual(client.reads.nope.distinct("x"), [])

    def test_resume_tokens_are_refused(self):
        self.assertFails(2, self.client.reads.command, SON([("find", "plain"), ("$_requestResumeToken", True), ("hint", {"$natural": 1})]))

    def test_large_results(self):
        """Batches end before 16 MiB; documents near the limit pass."""
        coll = self.shard("big", {"k": "hashed"})
        pad = "x" * 1_000_000
        coll.insert_many([{"_id": i, "k": i, "pad": pad} for i in range(45)])
        coll.insert_one({"_id": 100, "k": 100, "pad": "y" * (16 * 1024 * 1024 - 200)})
        for command in ({"sort": {"_id": 1}}, {}, {"sort": {"_id": -1}, "skip": 3}):
            docs = self.drain(self.client, SON([("find", "big"), *command.items()]), db=self.db.name)
            self.assertEqual(len(docs), 46 - command.get("skip", 0))
        reply = self.db.command("find", "big", sort={"_id": 1}, batchSize=1000)
        self.assertEqual(len(reply["cursor"]["firstBatch"]), 16)

    # -- cursors

    def get_more(self, id, coll="hashed", db="reads", **more):
        return self.client[db].command(SON([("getMore", Int64(id)), ("collection", coll), *more.items()]))["cursor"]

    def open(self, coll="hashed", **options):
        """A cursor outside of any session."""
        raw = self.raw()
        return raw, raw({"find": coll, "batchSize": 2, "sort": {"_id": 1}, **options})["cursor"]["id"]

    def raw(self):
        """Commands on a connection of their own, without what a driver adds."""
        import socket
        import struct

        sock = socket.create_connection(("127.0.0.1", self.cluster.port))
        self.addCleanup(sock.close)

        def read(n):
            data = b""
            while len(data) < n:
                part = sock.recv(n - len(data))
                if not part:
                    raise ConnectionError
                data += part
            return data

        def command(doc, db="reads", flags=0, wait=True):
            if doc:
                body = bson.encode({**doc, "$db": db})
                sock.sendall(struct.pack("<iiiiI", 21 + len(body), 1, 0, 2013, flags) + b"\0" + body)
            if not wait:
                return sock
            length = struct.unpack("<i", read(4))[0]
            reply = read(length - 4)
            command.flags = struct.unpack("<I", reply[12:16])[0]
            return bson.decode(reply[17:])

        return command

    def test_getmore_errors(self):
        raw, id = self.open()
        code = lambda doc: raw(doc).get("code")
        self.assertEqual(code({"getMore": id, "collection": "ranged"}), 13)
        self.assertEqual(code({"getMore": id, "collection": "hashed", "maxTimeMS": 50}), 2)
        self.assertEqual(code({"getMore": id, "collection": "hashed", "batchSize": -1}), 51024)
        self.assertEqual(code({"getMore": 5, "collection": "hashed"}), 14)
        self.assertEqual(code({"getMore": id}), 40414)
        self.assertEqual(code({"getMore": id, "collection": "hashed", "nope": 1}), 40415)
        self.assertEqual(code({"getMore": Int64(12345), "collection": "hashed"}), 43)
        reply = raw({"getMore": id, "collection": "hashed", "batchSize": 3})
        self.assertEqual([d["_id"] for d in reply["cursor"]["nextBatch"]], [2, 3, 4])
        rest = raw({"getMore": id, "collection": "hashed", "batchSize": 0})["cursor"]
        self.assertEqual((len(rest["nextBatch"]), rest["id"]), (595, 0))
        self.assertEqual(code({"getMore": id, "collection": "hashed"}), 43)

    def test_cursors_belong_to_sessions(self):
        import uuid

        one, two = ({"id": Binary(uuid.uuid4().bytes, 4)} for _ in range(2))
        for coll in self.names:
            raw, plain = self.open(coll)
            bound = raw({"find": coll, "batchSize": 2, "lsid": one})["cursor"]["id"]
            code = lambda id, **more: raw({"getMore": id, "collection": coll, "batchSize": 1, **more}).get("code")
            self.assertEqual(code(plain, lsid=one), 50736)
            self.assertEqual(code(bound), 50737)
            self.assertEqual(code(bound, lsid=two), 50738)
            self.assertIsNone(code(bound, lsid=one))
            self.assertIsNone(code(plain))

    def test_kill_cursors(self):
        before = self.shard_cursors()
        for coll in self.names:
            raw, id = self.open(coll)
            reply = raw({"killCursors": coll, "cursors": [id, Int64(7)]})
            self.assertEqual((reply["cursorsKilled"], reply["cursorsNotFound"]), ([id], [7]))
            self.assertEqual((reply["cursorsAlive"], reply["cursorsUnknown"]), ([], []))
            self.assertEqual(raw({"getMore": id, "collection": coll})["code"], 43)
            self.assertEqual(raw({"killCursors": coll, "cursors": [1]})["code"], 14)
            self.assertEqual(raw({"killCursors": coll})["code"], 40414)
        eventually(lambda: self.shard_cursors() <= before, what="the end of the shards' cursors")

    def shard_cursors(self):
        total = 0
        for shard in self.cluster.layout["shards"]:
            status = self.cluster.member_client(shard["name"]).admin.command("serverStatus")
            total += status["metrics"]["cursor"]["open"]["total"]
        return total

    def test_nothing_stays_open_on_shards(self):
        before = self.shard_cursors()
        coll = self.client.reads.hashed
        # A limit that is reached, a single batch, an error at one shard only, a cursor closed early.
        list(coll.find().sort("_id").limit(3).batch_size(2))
        self.client.reads.command("find", "hashed", batchSize=2, singleBatch=True)
        for _ in range(3):
            with self.assertRaises(pymongo.errors.OperationFailure):
                list(coll.find({"$expr": {"$divide": [1, {"$subtract": ["$_id", 300]}]}}, batch_size=2))
        cursor = coll.find(batch_size=2)
        next(cursor)
        cursor.close()
        with self.assertRaises(pymongo.errors.OperationFailure):
            self.client.reads.command("find", "hashed", limit=-1)
        list(coll.aggregate([{"$sort": {"_id": 1}}, {"$limit": 3}]))
        eventually(lambda: self.shard_cursors() <= before, what="the end of the shards' cursors")

    def test_a_client_that_leaves(self):
        """Its running find ends, on the shards too."""
        before, raw = self.shard_cursors(), self.raw()
        sleep = {"$where": "sleep(50); return true"}
        sock = raw({"find": "hashed", "filter": sleep, "sort": {"_id": 1}}, wait=False)
        running = lambda: sum(
            len(self.cluster.member_client(s["name"]).admin.command({"currentOp": 1, "ns": "reads.hashed"})["inprog"])
            for s in self.cluster.layout["shards"]
        )
        eventually(lambda: running() > 0, what="the find's start")
        sock.close()
        eventually(lambda: running() == 0 and self.shard_cursors() <= before, what="its end")

    def test_in_use_and_killed(self):
        raw, id = self.open(filter={"$where": "if (this._id > 5) sleep(20); return true"})
        other = self.raw()
        raw({"getMore": id, "collection": "hashed"}, wait=False)
        time.sleep(0.3)
        self.assertEqual(other({"getMore": id, "collection": "hashed"})["code"], 12051)
        self.assertEqual(other({"killCursors": "hashed", "cursors": [id]})["cursorsKilled"], [id])
        self.assertEqual(raw(None)["code"], 237)
        self.assertEqual(other({"getMore": id, "collection": "hashed"})["code"], 43)

    def test_idle_cursors_time_out(self):
        admin = self.client.admin
        admin.command("setParameter", 1, cursorTimeoutMillis=400)
        self.addCleanup(admin.command, "setParameter", 1, cursorTimeoutMillis=600000)
        raw, idle = self.open()
        _, kept = self.open(noCursorTimeout=True)
        _, passed = self.open("plain")
        session = self.client.reads.hashed.find(batch_size=2)
        next(session)
        time.sleep(2.5)
        self.assertEqual(raw({"getMore": idle, "collection": "hashed"})["code"], 43)
        self.assertEqual(raw({"getMore": passed, "collection": "plain"})["code"], 43)
        self.assertEqual(raw({"getMore": kept, "collection": "hashed"})["ok"], 1)
        self.assertEqual(len(list(session)), 599)

    def test_time_limits_cover_the_whole_cursor(self):
        slow = {"$where": "sleep(2); return true"}
        for coll in ("hashed", "plain"):
            raw, id = self.open(coll, filter=slow, maxTimeMS=900)
            replies = []
            while True:
                reply = raw({"getMore": id, "collection": coll, "batchSize": 20})
                replies.append(reply)
                if not reply["ok"] or not reply["cursor"]["id"]:
                    break
            self.assertEqual(replies[-1].get("code"), 50, (coll, replies[-1]))
            # Time between the commands does not count.
            raw, id = self.open(coll, maxTimeMS=900)
            time.sleep(1)
            self.assertEqual(raw({"getMore": id, "collection": coll})["ok"], 1)

    def test_max_time(self):
        for coll in self.names:
            started = time.monotonic()
            self.assertFails(50, self.client.reads.command, "find", coll, filter={"$where": "sleep(100); return true"}, maxTimeMS=200)
            self.assertLess(time.monotonic() - started, 3)

    def test_tailable_cursors(self):
        self.db.create_collection("capped", capped=True, size=100000)
        self.db.capped.insert_many([{"_id": i} for i in range(3)])
        raw = self.raw()
        id = raw({"find": "capped", "tailable": True, "awaitData": True}, db=self.db.name)["cursor"]["id"]
        started = time.monotonic()
        reply = raw({"getMore": id, "collection": "capped", "maxTimeMS": 300}, db=self.db.name)
        self.assertEqual((reply["cursor"]["nextBatch"], reply["cursor"]["id"]), ([], id))
        self.assertGreater(time.monotonic() - started, 0.25)
        threading.Timer(0.3, lambda: self.db.capped.insert_one({"_id": 9})).start()
        reply = raw({"getMore": id, "collection": "capped", "maxTimeMS": 5000}, db=self.db.name)
        self.assertEqual(reply["cursor"]["nextBatch"], [{"_id": 9}])

    def test_exhaust_streams(self):
        raw, id = self.open()
        first = raw({"getMore": id, "collection": "hashed", "batchSize": 200}, flags=1 << 16)
        replies = [first]
        while raw.flags & 2:
            replies.append(raw(None))
        self.assertEqual(sum(len(r["cursor"]["nextBatch"]) for r in replies), 598)
        self.assertEqual(replies[-1]["cursor"]["id"], 0)

    def test_snapshot_reads_have_one_time(self):
        coll = self.shard("snap", {"k": "hashed"})
        coll.insert_many([{"_id": i, "k": i, "n": 0} for i in range(60)])
        reply = self.db.command("find", "snap", readConcern={"level": "snapshot"}, batchSize=2, sort={"_id": 1})
        time_of = reply["cursor"]["atClusterTime"]
        coll.update_many({}, {"$set": {"n": 1}})
        docs, cursor = list(reply["cursor"]["firstBatch"]), reply["cursor"]
        while cursor["id"]:
            cursor = self.get_more(cursor["id"], "snap", self.db.name, batchSize=7)
            self.assertEqual(cursor["atClusterTime"], time_of)
            docs += cursor["nextBatch"]
        self.assertEqual([d["n"] for d in docs], [0] * 60)
        again = self.db.command("find", "snap", readConcern={"level": "snapshot", "atClusterTime": time_of})
        self.assertEqual({d["n"] for d in again["cursor"]["firstBatch"]}, {0})
        self.assertIn("atClusterTime", self.db.command("distinct", "snap", key="n", readConcern={"level": "snapshot"}))

    # -- count and distinct

    def same_reply(self, command, names=None, drop=("shards", "$clusterTime", "operationTime", "lsid")):
        first = next(iter(command))
        for name in names or self.names:
            with self.subTest(collection=name, command=command):
                replies = []
                for client in (self.client, self.oracle.client):
                    try:
                        reply = client.reads.command(SON([(first, name), *list(command.items())[1:]]))
                        replies.append({k: v for k, v in reply.items() if k not in drop})
                    except pymongo.errors.OperationFailure as e:
                        replies.append(f"{e.code} {e.details.get('codeName')}")
                self.assertEqual(*replies)

    def test_count(self):
        for query in ({}, {"v": 3}, {"k": 5}, {"u": {"$gt": 30}}, {"m": None}, {"nope": 1}, {"k": {"$in": [1, 2]}}):
            for skip, limit in ((0, 0), (3, 0), (0, 5), (3, 5), (0, -5), (1000, 5), (2, 1000), (80, 20)):
                self.same_reply({"count": 1, "query": query, "skip": skip, "limit": limit})
        self.same_reply({"count": 1, "query": {"name": "ann"}, "collation": {"locale": "en", "strength": 1}})
        self.same_reply({"count": 1, "query": {"name": "elan"}}, names=["french"])
        self.same_reply({"count": 1, "hint": {"v": 1, "_id": 1}, "query": {"v": {"$gt": 3}}})
        reply = self.client.reads.command("count", "hashed")
        self.assertEqual(sorted(reply["shards"]), ["shard0", "shard1", "shard2"])
        self.assertEqual(sum(reply["shards"].values()), reply["n"])
        self.assertEqual(list(self.client.reads.command("count", "hashed", query={"k": 5})["shards"].values()), [1])
        self.assertEqual(self.client.reads.hashed.estimated_document_count(), 600)

    def test_distinct(self):
        for key in ("v", "m", "d", "d.x", "d.y", "d.y.0", "name", "nope"):
            for query in ({}, {"v": {"$lt": 4}}, {"k": 5}):
                with self.subTest(key=key, query=query):
                    for name in self.names:
                        mine, theirs = (
                            c.reads.command("distinct", name, key=key, query=query)["values"] for c in (self.client, self.oracle.client)
                        )
                        # Equal numbers of different types are one value; which of them is given is left open.
                        self.assertEqual(len(mine), len(theirs), (name, mine, theirs))
                        for a, b in zip(mine, theirs):
                            numbers = {int, float, Int64, Decimal128}
                            if type(a) in numbers and type(b) in numbers:
                                self.assertEqual(str(float(str(a))), str(float(str(b))))
                            else:
                                self.assertEqual(canonical(a), canonical(b))

    def test_distinct_under_collations(self):
        for collation in ({"locale": "fr", "strength": 1}, {"locale": "en", "strength": 2}, {"locale": "sv"}):
            for name in self.names:
                mine, theirs = (
                    c.reads.command("distinct", name, key="name", collation=collation)["values"] for c in (self.client, self.oracle.client)
                )
                fold = self.oracle.client.reads.plain
                self.assertEqual(len(mine), len(theirs))
                for a, b in zip(mine, theirs):
                    self.assertGreater(fold.count_documents({"name": a}, collation=collation), 0)
                    same = fold.count_documents({"name": a}, collation=collation) == fold.count_documents({"name": b}, collation=collation)
                    self.assertTrue(same, (a, b))
        self.assertEqual(len(self.client.reads.french.distinct("name")), len(self.oracle.client.reads.french.distinct("name")))

    def test_distinct_has_a_limit(self):
        coll = self.shard("wide", {"k": "hashed"})
        coll.insert_many([{"k": i, "s": f"{i}" + "x" * 1_000_000} for i in range(18)])
        self.assertFails(17217, coll.distinct, "s")
        self.assertFails(17217, coll.distinct, "s", collation={"locale": "fr"})

    # -- aggregate

    def test_streams_and_sorted_merges(self):
        for pipeline in (
            [], [{"$match": {"v": 3}}], [{"$match": {"k": 5}}, {"$group": {"_id": "$v"}}], [{"$unwind": "$d.y"}],
            [{"$project": {"v": 1}}], [{"$addFields": {"z": {"$add": ["$u", 1]}}}, {"$unset": "m"}],
            [{"$replaceRoot": {"newRoot": {"a": "$_id"}}}], [{"$redact": "$$KEEP"}],
        ):  # fmt: skip
            self.same({"aggregate": 1, "pipeline": pipeline, "cursor": {"batchSize": 17}}, ordered=False, batch=19)
        for pipeline in (
            [{"$sort": {"m": 1, "_id": 1}}], [{"$sort": {"m": -1, "_id": 1}}, {"$project": {"m": 1}}],
            [{"$sort": {"v": 1, "_id": -1}}, {"$skip": 5}, {"$limit": 20}, {"$skip": 3}], [{"$sort": {"_id": 1}}, {"$unwind": "$d.y"}],
            [{"$match": {"u": {"$gt": 9}}}, {"$sort": {"_id": 1}}, {"$limit": 9}, {"$replaceWith": {"z": "$_id"}}],
            [{"$sort": {"_id": 1}}, {"$match": {"v": 2}}, {"$limit": 4}], [{"$sort": {"_id": 1}}, {"$limit": 30}, {"$match": {"v": 2}}],
            [{"$sort": {"_id": 1}}, {"$limit": 3}, {"$skip": 5}], [{"$sort": {"v": 1}}, {"$sort": {"_id": -1}}, {"$limit": 5}],
            [{"$sort": {"_id": 1}}, {"$skip": 590}], [{"$sort": {"name": 1, "_id": 1}}, {"$limit": 50}],
        ):  # fmt: skip
            self.same({"aggregate": 1, "pipeline": pipeline, "cursor": {}})
            self.same({"aggregate": 1, "pipeline": pipeline, "cursor": {"batchSize": 3}}, batch=7)
            self.same({"aggregate": 1, "pipeline": pipeline, "cursor": {}, "collation": {"locale": "fr", "strength": 1}})

    def test_groups(self):
        accumulators = {
            "n": {"$sum": 1}, "s": {"$sum": "$u"}, "a": {"$avg": "$u"}, "mi": {"$min": "$name"}, "ma": {"$max": "$d.x"},
            "set": {"$addToSet": "$v"}, "sp": {"$stdDevPop": "$t"}, "ss": {"$stdDevSamp": "$t"}, "c": {"$count": {}},
            "mn": {"$minN": {"n": 3, "input": "$_id"}}, "mx": {"$maxN": {"n": 3, "input": "$_id"}},
            "t": {"$top": {"sortBy": {"_id": 1}, "output": "$name"}}, "bn": {"$bottomN": {"n": 2, "sortBy": {"_id": 1}, "output": "$_id"}},
        }  # fmt: skip
        rounded = {"$addFields": {"sp": {"$round": ["$sp", 9]}, "ss": {"$round": ["$ss", 9]}, "set": {"$sortArray": {"input": "$set", "sortBy": 1}}}}
        for id in (None, "$v", "$name", {"v": "$v", "even": {"$mod": ["$_id", 2]}}, "$nope", "$d.x"):
            pipeline = [{"$group": {"_id": id, **accumulators}}, rounded, {"$sort": {"_id": 1}}]
            self.same({"aggregate": 1, "pipeline": pipeline, "cursor": {}})
            self.same({"aggregate": 1, "pipeline": [{"$match": {"u": {"$lt": 25}}}, *pipeline], "cursor": {"batchSize": 2}}, batch=3)
        ordered = {"$group": {"_id": "$v", "f": {"$first": "$_id"}, "l": {"$last": "$_id"}, "p": {"$push": "$name"}, "fn": {"$firstN": {"n": 2, "input": "$_id"}}}}
        self.same({"aggregate": 1, "pipeline": [{"$sort": {"m": 1, "_id": 1}}, ordered, {"$sort": {"_id": 1}}], "cursor": {}})
        by_name = [{"$group": {"_id": "$name", "n": {"$sum": 1}}}, {"$sort": {"n": -1}}, {"$group": {"_id": "$n", "k": {"$sum": 1}}}, {"$sort": {"_id": 1}}]
        self.same({"aggregate": 1, "pipeline": by_name, "cursor": {}, "collation": {"locale": "fr", "strength": 1}})
        self.same({"aggregate": 1, "pipeline": by_name, "cursor": {}}, names=["french"])

    def test_counting(self):
        for query, options in (({}, {}), ({"v": 3}, {}), ({"v": 3}, {"skip": 5}), ({}, {"limit": 7}), ({}, {"skip": 590, "limit": 30}), ({"nope": 1}, {}), ({"k": 5}, {})):
            for name in self.names:
                got = [c.reads[name].count_documents(query, **options) for c in (self.client, self.oracle.client)]
                self.assertEqual(*got, (name, query, options))
        for pipeline in ([{"$count": "n"}], [{"$match": {"nope": 1}}, {"$count": "n"}], [{"$group": {"_id": "x", "total": {"$sum": 1}}}], [{"$count": "n"}, {"$addFields": {"m": "$n"}}], [{"$sortByCount": "$v"}, {"$sort": {"count": -1, "_id": 1}}]):
            self.same({"aggregate": 1, "pipeline": pipeline, "cursor": {}})

    def test_what_is_gathered(self):
        for pipeline in (
            [{"$facet": {"a": [{"$sort": {"_id": 1}}, {"$limit": 3}], "b": [{"$group": {"_id": None, "n": {"$sum": "$u"}}}]}}],
            [{"$bucket": {"groupBy": "$u", "boundaries": [0, 10, 25, 40]}}], [{"$bucketAuto": {"groupBy": "$_id", "buckets": 4}}],
            [{"$setWindowFields": {"partitionBy": "$v", "sortBy": {"_id": 1}, "output": {"run": {"$sum": "$u", "window": {"documents": ["unbounded", "current"]}}}}}, {"$sort": {"_id": 1}}, {"$project": {"run": 1}}],
            [{"$lookup": {"from": "plain", "localField": "_id", "foreignField": "k", "as": "j"}}, {"$sort": {"_id": 1}}, {"$project": {"j._id": 1}}],
            [{"$match": {"v": 1}}, {"$unionWith": {"coll": "plain", "pipeline": [{"$match": {"v": 2}}]}}, {"$sort": {"_id": 1}}, {"$project": {"v": 1, "name": 1}}],
            [{"$match": {"k": 5}}, {"$lookup": {"from": "plain", "localField": "v", "foreignField": "v", "as": "j"}}, {"$project": {"n": {"$size": "$j"}}}],
            [{"$match": {"_id": -1}}, {"$facet": {"a": [{"$count": "n"}]}}],
            [{"$group": {"_id": "$v", "n": {"$sum": 1}}}, {"$lookup": {"from": "plain", "localField": "_id", "foreignField": "_id", "as": "j"}}, {"$sort": {"_id": 1}}, {"$project": {"n": 1, "j._id": 1}}],
        ):  # fmt: skip
            self.same({"aggregate": 1, "pipeline": pipeline, "cursor": {}})
        near = [{"$geoNear": {"near": [1, 2], "distanceField": "dist"}}, {"$limit": 30}, {"$project": {"dist": 1}}]
        self.same({"aggregate": 1, "pipeline": near, "cursor": {}}, names=["hashed", "ranged"])
        text = [{"$match": {"$text": {"$search": "red"}}}, {"$sort": {"s": {"$meta": "textScore"}, "_id": 1}}, {"$project": {"s": {"$meta": "textScore"}}}]
        self.same({"aggregate": 1, "pipeline": text, "cursor": {}})

    def test_samples(self):
        seen = set()
        for _ in range(30):
            docs = list(self.client.reads.hashed.aggregate([{"$sample": {"size": 20}}]))
            self.assertEqual(len({d["_id"] for d in docs}), 20)
            self.assertFalse([k for d in docs for k in d if k.startswith("$")])
            seen |= {d["_id"] for d in docs}
        self.assertGreater(len(seen), 250)

    def test_what_is_not_there_yet_is_refused(self):
        reads = self.client.reads
        self.assertFails(28769, reads.plain.aggregate, [{"$out": "hashed"}])
        score = [{"$match": {"$text": {"$search": "a"}}}, {"$unionWith": "plain"}, {"$set": {"score": {"$meta": "textScore"}}}]
        self.assertFails(115, reads.hashed.aggregate, score)
        self.assertFails(51089, reads.command, "aggregate", "hashed", pipeline=[], cursor={}, fromMongos=True)
        self.assertFails(9, reads.command, "aggregate", "hashed", pipeline=[], cursor={}, needsMerge=True)
        self.assertFails(115, reads.hashed.watch)
        self.assertFails(73, reads.aggregate, [{"$shardedDataDistribution": {}}])

    def test_more_than_one_message_is_gathered(self):
        coll = self.shard("wide", {"k": "hashed"})
        coll.insert_many([{"k": i, "s": "x" * 1_000_000} for i in range(20)])
        self.assertEqual(list(coll.aggregate([{"$facet": {"a": [{"$count": "n"}]}}])), [{"a": [{"n": 20}]}])
        self.assertEqual(list(coll.aggregate([{"$group": {"_id": None, "n": {"$sum": 1}}}, {"$project": {"_id": 0}}])), [{"n": 20}])

    def test_statistics_stages_name_their_shards(self):
        stats = list(self.client.reads.hashed.aggregate([{"$collStats": {"count": {}, "storageStats": {}}}]))
        self.assertEqual(sorted(d["shard"] for d in stats), ["shard0", "shard1", "shard2"])
        self.assertEqual(sum(d["count"] for d in stats), 600)
        total = list(self.client.reads.hashed.aggregate([{"$collStats": {"count": {}}}, {"$group": {"_id": 1, "n": {"$sum": "$count"}}}]))
        self.assertEqual(total, [{"_id": 1, "n": 600}])
        indexes = list(self.client.reads.ranged.aggregate([{"$indexStats": {}}, {"$match": {"name": "_id_"}}]))
        self.assertEqual(sorted(d["shard"] for d in indexes), ["shard0", "shard1", "shard2"])

    def test_documents_and_out(self):
        self.assertEqual(list(self.client.reads.aggregate([{"$documents": [{"a": 1}]}])), [{"a": 1}])
        self.client.reads.hashed.aggregate([{"$match": {"v": 1}}, {"$project": {"v": 1}}, {"$out": "copied"}])
        self.assertEqual(self.client.reads.copied.count_documents({}), 86)
        self.client.reads.plain.aggregate([{"$match": {"v": 2}}, {"$merge": "copied"}])
        self.assertEqual(self.client.reads.copied.count_documents({}), 172)
        self.client.reads.copied.drop()

    # -- explain

    def explain(self, verbosity="executionStats", coll="hashed", **command):
        return self.client.reads.command("explain", SON(command), verbosity=verbosity)

    def test_explain_stages(self):
        for command, stage, shards in (
            ({"find": "hashed", "filter": {"k": 5}}, "SINGLE_SHARD", 1), ({"find": "hashed", "filter": {"v": 5}}, "SHARD_MERGE", 3),
            ({"find": "hashed", "sort": {"v": 1}, "skip": 5, "limit": 10}, "SHARD_MERGE_SORT", 3),
            ({"find": "hashed", "sort": {"$natural": 1}}, "SHARD_MERGE", 3), ({"find": "plain"}, "SINGLE_SHARD", 1),
            ({"count": "hashed", "query": {"v": 3}}, "SHARD_MERGE", 3), ({"distinct": "hashed", "key": "v"}, "SHARD_MERGE", 3),
            ({"update": "hashed", "updates": [{"q": {"k": 5}, "u": {"$set": {"z": 1}}}]}, "SHARD_WRITE", 1),
            ({"delete": "hashed", "deletes": [{"q": {"v": 5}, "limit": 0}]}, "SHARD_WRITE", 3),
            ({"findAndModify": "hashed", "query": {"k": 5}, "update": {"$set": {"z": 1}}}, "SHARD_WRITE", 1),
        ):  # fmt: skip
            for verbosity in ("queryPlanner", "executionStats", "allPlansExecution"):
                with self.subTest(command=command, verbosity=verbosity):
                    reply = self.explain(verbosity, **command)
                    plan = reply["queryPlanner"]["winningPlan"]
                    self.assertEqual((plan["stage"], len(plan["shards"])), (stage, shards))
                    self.assertLessEqual({"shardName", "connectionString", "serverInfo", "namespace", "winningPlan", "rejectedPlans"}, set(plan["shards"][0]))
                    self.assertEqual("executionStats" in reply, verbosity != "queryPlanner")
                    if "executionStats" in reply:
                        stats = reply["executionStats"]
                        stages = stats["executionStages"]
                        self.assertEqual((stages["stage"], len(stages["shards"])), (stage, shards))
                        for field in ("nReturned", "totalKeysExamined", "totalDocsExamined"):
                            self.assertEqual(stats[field], sum(s[field] for s in stages["shards"]))
                            self.assertEqual(stats[field], stages[field])
                        self.assertIn("totalChildMillis", stages)
                        self.assertEqual("allPlansExecution" in stats, verbosity == "allPlansExecution")
                    self.assertEqual(reply["command"]["$db"], "reads")
                    self.assertLessEqual({"serverInfo", "serverParameters", "mosaic"}, set(reply))
                    self.assertEqual(len(reply["mosaic"]["shards"]), shards)

    def test_explain_says_why(self):
        for filter, reason in (({"k": 5}, "EqualityOnShardKey"), ({"v": 1}, "NoShardKey"), ({"k": {"$gt": 5}}, "HashedRange")):
            self.assertEqual(self.explain(find="hashed", filter=filter)["mosaic"]["reason"], reason)
        self.assertEqual(self.explain(find="plain")["mosaic"]["reason"], "Unsharded")
        self.assertEqual(self.client.reads.hashed.count_documents({"z": 1}), 0)

    def test_explain_aggregate(self):
        group = [{"$group": {"_id": "$v", "n": {"$sum": 1}}}, {"$sort": {"n": -1}}]
        reply = self.explain("queryPlanner", aggregate="hashed", pipeline=group, cursor={})
        self.assertEqual(list(reply["splitPipeline"]), ["shardsPart", "mergerPart"])
        self.assertEqual(sorted(reply["shards"]), ["shard0", "shard1", "shard2"])
        self.assertTrue(all("host" in s for s in reply["shards"].values()))
        single = self.explain("executionStats", aggregate="hashed", pipeline=[{"$match": {"k": 5}}, *group], cursor={})
        self.assertIsNone(single["splitPipeline"])
        self.assertEqual(len(single["shards"]), 1)
        as_option = self.client.reads.command("aggregate", "hashed", pipeline=group, explain=True)
        self.assertIn("splitPipeline", as_option)
        self.assertIn("mosaic", self.explain("queryPlanner", aggregate="plain", pipeline=group, cursor={}))

    def test_explain_errors(self):
        for command in (
            {"explain": {"find": "plain"}, "verbosity": "foo"}, {"explain": {"ping": 1}}, {"explain": {"foo": 1}}, {"explain": 5},
            {"explain": {}}, {"explain": {"find": "plain", "filter": {"$bad": 1}}}, {"explain": {"insert": "plain", "documents": [{}]}},
            {"explain": {"find": "plain", "$db": "other"}}, {"explain": {"find": "plain"}, "foo": 1},
            {"explain": {"aggregate": "plain", "pipeline": []}},
        ):  # fmt: skip
            with self.subTest(command=command):
                codes = []
                for client in (self.client, self.oracle.client):
                    with self.assertRaises(pymongo.errors.OperationFailure) as caught:
                        client.reads.command(SON(command))
                    codes.append((caught.exception.code, caught.exception.details.get("codeName")))
                self.assertEqual(*codes)

    # -- statistics

    def test_hosts_targeted(self):
        counters = lambda: self.client.admin.command("serverStatus")["shardingStatistics"]["numHostsTargeted"]
        before = counters()
        reads = self.client.reads
        reads.hashed.find_one({"k": 5})
        reads.hashed.find_one({"v": 5})
        reads.plain.find_one()
        reads.hashed.count_documents({})
        after = counters()
        rise = lambda kind: {k: after[kind][k] - before[kind][k] for k in after[kind]}
        self.assertEqual(rise("find"), {"allShards": 1, "manyShards": 0, "oneShard": 1, "unsharded": 1})
        self.assertEqual(rise("aggregate"), {"allShards": 1, "manyShards": 0, "oneShard": 0, "unsharded": 0})


class Corners(ClusterCase):
    """Aggregations that must not write or lose anything, and reads that wait for a cluster time."""

    setup = {"shards": 2}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        spread(cls, cls.cluster, "corners.s", {"a": 1}, [{"a": 50}])
        cls.corners = cls.client.corners
        cls.corners.s.insert_many([{"a": a} for a in range(100)])

    def refused(self, db, code, *stages):
        with self.assertRaises(pymongo.errors.OperationFailure) as caught:
            db.command("aggregate", "shards" if db.name == "config" else "s", pipeline=list(stages), cursor={})
        self.assertEqual(caught.exception.code, code)

    def test_pipelines_do_not_write_internal_databases(self):
        before = list(self.client.config.chunks.find())
        self.refused(self.client.config, 31321, {"$match": {}}, {"$out": "chunks"})
        self.refused(self.client.config, 31320, {"$merge": "chunks"})
        self.refused(self.corners, 31321, {"$out": {"db": "config", "coll": "chunks"}})
        self.refused(self.corners, 31320, {"$merge": {"into": {"db": "admin", "coll": "x"}}})
        elsewhere = {"from": {"db": "local", "coll": "oplog.rs"}, "as": "x", "pipeline": []}
        self.refused(self.client.config, 115, {"$lookup": elsewhere})
        self.assertEqual(list(self.client.config.chunks.find()), before)

    def test_a_pipeline_is_not_judged_by_running_its_writes(self):
        self.corners.x.insert_one({"_id": "kept"})
        self.refused(self.corners, 5107201, {"$limit": Decimal128("2.5")}, {"$out": "x"})
        self.assertEqual(list(self.corners.x.find()), [{"_id": "kept"}])
        self.assertEqual(len(list(self.corners.s.aggregate([{"$limit": Decimal128("2")}]))), 2)

    def test_results_come_after_an_empty_first_batch(self):
        for pipeline, wanted in [
            ([{"$count": "n"}], [{"n": 100}]),
            ([{"$match": {"a": {"$gte": 1000}}}, {"$count": "n"}], []),
            ([{"$group": {"_id": None, "n": {"$sum": "$a"}}}], [{"_id": None, "n": 4950}]),
            ([{"$sort": {"a": 1}}, {"$limit": 2}, {"$project": {"_id": 0, "a": 1}}], [{"a": 0}, {"a": 1}]),
        ]:
            reply = self.corners.command("aggregate", "s", pipeline=pipeline, cursor={"batchSize": 0})
            self.assertEqual(reply["cursor"]["firstBatch"], [])
            self.assertNotEqual(reply["cursor"]["id"], 0)
            self.assertEqual(list(self.corners.s.aggregate(pipeline, batchSize=0)), wanted)

    def test_now_is_the_same_where_results_are_merged(self):
        stages = [{"$group": {"_id": "$$NOW"}}, {"$project": {"same": {"$eq": ["$_id", "$$NOW"]}}}]
        self.assertEqual([d["same"] for d in self.corners.s.aggregate(stages)], [True])

    def test_reads_do_not_wait_for_a_quiet_shard(self):
        for _ in range(3):
            with self.client.start_session(causal_consistency=True) as session:
                self.corners.s.update_one({"a": 1}, {"$inc": {"z": 1}}, session=session)
                began = time.monotonic()
                self.assertEqual(len(list(self.corners.s.find({}, session=session))), 100)
                self.assertEqual(self.corners.s.find_one({"a": 70}, session=session)["a"], 70)
                self.assertLess(time.monotonic() - began, 3)
            with self.client.start_session(snapshot=True) as session:
                began = time.monotonic()
                self.assertEqual(len(list(self.corners.s.find({}, session=session))), 100)
                self.assertLess(time.monotonic() - began, 3)

    def test_a_snapshot_shows_the_clients_own_write(self):
        written = self.corners.command("update", "s", updates=[{"q": {"a": 2}, "u": {"$set": {"seen": True}}}])
        concern = {"level": "snapshot", "afterClusterTime": written["operationTime"]}
        found = self.corners.command("find", "s", filter={"seen": True}, readConcern=concern)
        self.assertEqual([d["a"] for d in found["cursor"]["firstBatch"]], [2])


class Outages(ClusterCase):
    """What reads do while a shard is down."""

    setup = {"shards": 3}

    def test_partial_results(self):
        coll = self.shard("h", {"k": "hashed"})
        coll.insert_many([{"_id": i, "k": i} for i in range(300)])
        on = {s["name"]: {d["_id"] for d in self.cluster.member_client(s["name"])[self.db.name].h.find()} for s in self.cluster.layout["shards"]}
        cursor = coll.find(batch_size=5)
        self.cluster.kill_member("shard1", 0)
        try:
            left = on["shard0"] | on["shard2"]
            reply = self.db.command("find", "h", allowPartialResults=True, batchSize=1000, maxTimeMS=20000)
            self.assertTrue(reply["cursor"]["partialResultsReturned"])
            self.assertEqual({d["_id"] for d in reply["cursor"]["firstBatch"]}, left)
            gone = next(iter(on["shard1"]))
            alone = self.db.command("find", "h", filter={"k": gone}, allowPartialResults=True, maxTimeMS=20000)
            self.assertEqual((alone["cursor"]["firstBatch"], alone["cursor"]["partialResultsReturned"]), ([], True))
            there = next(iter(left))
            self.assertEqual(coll.find_one({"k": there}), {"_id": there, "k": there})
            with self.assertRaises(pymongo.errors.PyMongoError):
                self.db.command("find", "h", maxTimeMS=2000)
            with self.assertRaises(pymongo.errors.PyMongoError):
                list(cursor)
        finally:
            self.cluster.restart_member("shard1", 0)
        eventually(lambda: len(list(coll.find())) == 300, 60, what="all shards are back")


if __name__ == "__main__":
    unittest.main()
