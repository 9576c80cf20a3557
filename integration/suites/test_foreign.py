"""Pipelines that read other collections, sharded or elsewhere, against the same on one plain mongod; and results that are more
than one message holds. Nothing temporary is left behind."""

import random
import unittest

import bson
import pymongo
from bson import SON, Decimal128, Int64, Regex
from cluster import Cluster, ClusterCase, Oracle, eventually

COLLECTIONS = {
    # name: shard key, or None for an unsharded one
    "left": {"k": "hashed"},
    "right": {"x": "hashed"},
    "byid": {"_id": "hashed"},
    "flat": None,
    "small": None,
}


def value(rng):
    return rng.choice([
        rng.randrange(12), rng.randrange(12), float(rng.randrange(12)), Int64(rng.randrange(12)), Decimal128(str(rng.randrange(12))),
        rng.choice("abcAB"), None, [rng.randrange(5), rng.choice("ab")], {"n": rng.randrange(3)}, [], [[1, 2]], Regex("^a"),
    ])  # fmt: skip


def scalar(rng):
    return rng.choice([rng.randrange(40), float(rng.randrange(40)), rng.choice("abcAB"), None])


def documents(name, count):
    rng, docs = random.Random(name), []
    for i in range(count):
        doc = {"_id": i, "u": i, "k": scalar(rng), "x": scalar(rng), "v": rng.randrange(10), "parent": rng.randrange(count)}
        if rng.random() < 0.9:
            doc["a"] = value(rng)
        if rng.random() < 0.9:
            doc["d"] = rng.choice([{"e": value(rng)}, [{"e": value(rng)}, {"e": value(rng)}, 5], {"e": {"f": i}}, 7])
        docs.append(doc)
    return docs


def lookup(source, local, field, **more):
    return {"$lookup": {"from": source, "localField": local, "foreignField": field, "as": "o", **more}}


SORTED = [{"$set": {"o": {"$sortArray": {"input": "$o", "sortBy": {"u": 1}}}}}]

PIPELINES = [
    *[[lookup(source, local, field), *SORTED] for source in ("right", "byid", "flat", "left")
      for local, field in (("k", "x"), ("a", "a"), ("d.e", "a"), ("a", "d.e"), ("_id", "_id"), ("nope", "a"), ("d.0.e", "a"), ("v", "v"))],
    [lookup("missing", "k", "x")],
    [lookup("right", "k", "x", pipeline=[{"$match": {"v": {"$lt": 5}}}, {"$project": {"u": 1}}]), *SORTED],
    [lookup("right", "k", "x", let={"v": "$v"}, pipeline=[{"$match": {"$expr": {"$gt": ["$v", "$$v"]}}}]), *SORTED],
    [lookup("right", "k", "x"), {"$unwind": "$o"}, {"$match": {"o.v": {"$lt": 4}}}, {"$group": {"_id": "$o.v", "n": {"$sum": 1}}}],
    [lookup("right", "k", "x"), {"$unwind": {"path": "$o", "preserveNullAndEmptyArrays": True}}, {"$sort": {"u": 1, "o.u": 1}}],
    [{"$match": {"v": 3}}, {"$sort": {"u": -1}}, {"$limit": 20}, lookup("byid", "u", "u")],
    [lookup("right", "k", "x"), lookup("byid", "v", "v", **{"as": "p"}), {"$project": {"o": {"$size": "$o"}, "p": {"$size": "$p"}}}],
    [{"$lookup": {"from": "right", "let": {"k": "$k"}, "as": "o",
                  "pipeline": [{"$match": {"$expr": {"$eq": ["$x", "$$k"]}}}, {"$sort": {"u": 1}}, {"$limit": 3}]}}],
    [{"$lookup": {"from": "right", "as": "o", "pipeline": [{"$group": {"_id": "$v", "n": {"$sum": 1}, "u": {"$max": "$u"}}}]}}, *SORTED],
    [{"$lookup": {"from": "right", "let": {"k": "$v"}, "as": "o", "pipeline": [
        {"$match": {"v": 1}}, {"$project": {"v": 1, "w": {"$add": ["$v", 1]}, "u": 1}}, {"$match": {"$expr": {"$lt": ["$w", "$$k"]}}}]}}, *SORTED],
    [{"$lookup": {"from": "left", "let": {"k": "$v"}, "as": "o", "pipeline": [
        {"$lookup": {"from": "right", "let": {"u": "$u"}, "as": "i", "pipeline": [
            {"$match": {"$expr": {"$and": [{"$eq": ["$u", "$$u"]}, {"$gt": ["$v", "$$k"]}]}}}, {"$project": {"u": 1}}]}},
        {"$match": {"v": 2}}, {"$project": {"u": 1, "i": 1}}]}}, *SORTED],
    [{"$lookup": {"as": "o", "pipeline": [{"$documents": [{"u": 1}, {"u": 2}]}, lookup("right", "u", "u", **{"as": "r"})]}}],
    [{"$graphLookup": {"from": "byid", "startWith": "$parent", "connectFromField": "parent", "connectToField": "_id", "as": "o",
                       "maxDepth": 3, "depthField": "depth"}}, *SORTED],
    [{"$graphLookup": {"from": "right", "startWith": "$parent", "connectFromField": "parent", "connectToField": "u", "as": "o",
                       "restrictSearchWithMatch": {"v": {"$gt": 2}}}}, *SORTED],
    [{"$project": {"u": 1}}, {"$unionWith": "right"}],
    [{"$unionWith": {"coll": "right", "pipeline": [{"$match": {"v": 2}}, {"$project": {"_id": 0, "u": 1}}]}}, {"$group": {"_id": "$v", "n": {"$sum": 1}}}],
    [{"$unionWith": {"coll": "flat", "pipeline": [{"$unionWith": {"coll": "right", "pipeline": [{"$count": "n"}]}}]}}],
    [{"$facet": {"a": [lookup("right", "k", "x"), {"$unwind": "$o"}, {"$count": "n"}], "b": [{"$unionWith": "byid"}, {"$count": "n"}]}}],
    [{"$group": {"_id": "$v", "n": {"$sum": 1}}}, lookup("right", "_id", "v"), {"$project": {"n": 1, "o": {"$size": "$o"}}}],
    [lookup("seen", "v", "v"), *SORTED],
    [lookup("shaped", "v", "w"), {"$project": {"o": {"$size": "$o"}}}],
    [{"$unionWith": "shaped"}],
    [{"$lookup": {"from": "right", "localField": "k", "as": "o"}}],
    [{"$lookup": {"from": "right", "localField": "k", "foreignField": "$x", "as": "o"}}],
    [{"$lookup": {"from": "right", "localField": "k", "foreignField": "x"}}],
    [{"$lookup": {"from": "right", "as": "o", "pipeline": [{"$out": "x"}]}}],
    [{"$lookup": {"from": "right", "as": "o", "pipeline": [{"$nope": 1}]}}],
    [{"$unionWith": {"coll": "right", "pipeline": [{"$merge": "x"}]}}],
    [{"$graphLookup": {"from": "right", "startWith": "$u", "connectFromField": "u", "as": "o"}}],
    [{"$unionWith": {"coll": "right", "nope": 1}}],
]  # fmt: skip

OPTIONS = [{}, {"collation": {"locale": "en", "strength": 2}}, {"let": {"k": 4}, "allowDiskUse": True, "comment": "why"}]


class Foreign(ClusterCase):
    setup = {"shards": 3, "catalog": "replicaset", "routers": 2}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.oracle = cls.enterClassContext(Oracle())
        for name, key in COLLECTIONS.items():
            if key:
                cls.client.admin.command("shardCollection", f"foreign.{name}", key=key)
            for db in cls.both():
                db[name].insert_many(documents(name, 40 if name == "small" else 120))
        for db in cls.both():
            db.create_collection("seen", viewOn="right", pipeline=[{"$match": {"v": {"$lt": 5}}}])
            db.create_collection("shaped", viewOn="byid", pipeline=[{"$project": {"_id": 0, "w": "$v", "t": "$u"}}])

    @classmethod
    def both(cls):
        return cls.client.foreign, cls.oracle.client.foreign

    def tearDown(self):
        self.nothing_left()

    def temporary(self):
        found = []
        for name in (s["name"] for s in self.cluster.layout["shards"]):
            local = self.cluster.member_client(name).local
            found += [c for c in local.list_collection_names() if c.startswith("mosaic.tmp.")]
        return found

    def nothing_left(self):
        eventually(lambda: not self.temporary(), 10, what="the end of temporary collections")

    def outcome(self, db, command, batch=None):
        try:
            cursor = db.command(SON(command))["cursor"]
            docs = list(cursor["firstBatch"])
            while cursor["id"]:
                more = {"getMore": Int64(cursor["id"]), "collection": cursor["ns"].split(".", 1)[1]}
                cursor = db.command(SON(more, **({"batchSize": batch} if batch else {})))["cursor"]
                docs += cursor["nextBatch"]
            return sorted(bson.encode(d) for d in docs)
        except pymongo.errors.OperationFailure as e:
            return e.code

    def same(self, command):
        here, there = (self.outcome(db, command, 7) for db in self.both())
        if here != there and not isinstance(here, int) and not isinstance(there, int):
            here, there = ([bson.decode(d) for d in docs] for docs in (here, there))
            odd = [(h, t) for h, t in zip(here, there) if h != t][:1] or (len(here), len(there))
            self.fail(f"cluster (first) and one mongod differ: {command}\n{odd}")
        self.assertEqual(here, there, command)

    def test_pipelines(self):
        for n, pipeline in enumerate(PIPELINES):
            for source in ("left", "flat", "byid"):
                options = OPTIONS[n % len(OPTIONS)] if "collation" not in OPTIONS[n % len(OPTIONS)] or "seen" not in str(pipeline) else {}
                with self.subTest(pipeline=pipeline, source=source):
                    self.same({"aggregate": source, "pipeline": pipeline, "cursor": {"batchSize": 5}, **options})

    def test_explain_says_where_it_merges_and_what_it_brings(self):
        db = self.client.foreign
        explain = db.command("explain", {"aggregate": "left", "pipeline": [lookup("right", "k", "x"), {"$unionWith": "flat"}], "cursor": {}})
        home = self.client.config.databases.find_one({"_id": "foreign"})["primary"]
        self.assertEqual(explain["mosaic"]["merge"], {"shard": home, "brings": ["foreign.right", "foreign.flat"]})
        explain = db.command("explain", {"aggregate": "left", "pipeline": [lookup("flat", "k", "x")], "cursor": {}})
        self.assertEqual(explain["mosaic"]["merge"], {"shard": home, "brings": []})
        explain = db.command("explain", {"aggregate": "flat", "pipeline": [lookup("right", "k", "x")], "cursor": {}})
        self.assertEqual(explain["mosaic"]["merge"]["brings"], ["foreign.right"])
        out = {"aggregate": "left", "pipeline": [{"$out": {"db": "made_by_explain", "coll": "x"}}], "cursor": {}}
        db.command("explain", out, verbosity="queryPlanner")
        self.assertIsNone(self.client.config.databases.find_one({"_id": "made_by_explain"}))

    def test_documents_of_the_request(self):
        self.same({"aggregate": 1, "pipeline": [{"$documents": [{"k": 1}, {"k": "a"}]}, lookup("right", "k", "x"), *SORTED], "cursor": {}})

    def test_one_shard_reads_another_collection(self):
        self.same({"aggregate": "left", "pipeline": [{"$match": {"k": 7}}, lookup("right", "k", "x"), *SORTED], "cursor": {}})

    def test_collections_with_a_collation(self):
        for db in self.both():
            db.drop_collection("folded")
            db.create_collection("folded", collation={"locale": "en", "strength": 1})
            db.folded.insert_many(documents("folded", 60))
        self.same({"aggregate": "folded", "pipeline": [lookup("right", "k", "x"), *SORTED], "cursor": {}})
        self.same({"aggregate": "folded", "pipeline": [lookup("right", "k", "x"), *SORTED], "cursor": {}, "collation": {"locale": "simple"}})

    def test_an_open_cursor_keeps_what_it_reads(self):
        cursor = self.client.foreign.left.aggregate([lookup("right", "v", "v"), {"$unwind": "$o"}], batchSize=2)
        next(cursor)
        self.assertTrue(self.temporary())
        # Another router does not take it for somebody's remains.
        other = self.cluster.client(1)
        list(other.foreign.left.aggregate([lookup("right", "v", "v")]))
        self.assertTrue(self.temporary())
        self.assertGreater(len(list(cursor)), 100)
        self.nothing_left()
        abandoned = self.client.foreign.left.aggregate([lookup("right", "v", "v"), {"$unwind": "$o"}], batchSize=2)
        next(abandoned)
        abandoned.close()

    def test_more_than_a_message(self):
        """Gathered documents and partial results beyond 16 MiB."""
        rng = random.Random(5)
        for db in self.both():
            db.drop_collection("big")
        self.client.admin.command("shardCollection", "foreign.big", key={"k": "hashed"})
        rng = random.Random(1)
        docs = [{"_id": i, "k": i, "g": rng.randrange(10**6), "text": str(i) * 200 + "x" * 9000} for i in range(4000)]
        for db in self.both():
            for at in range(0, len(docs), 500):
                db.big.insert_many(docs[at : at + 500])
        count = {"$group": {"_id": None, "n": {"$sum": 1}, "s": {"$sum": "$g"}}}
        for pipeline in (
            [{"$facet": {"a": [{"$count": "n"}], "b": [{"$sort": {"g": 1, "_id": 1}}, {"$limit": 3}]}}],
            [{"$group": {"_id": "$text", "n": {"$sum": "$g"}}}, {"$sort": {"n": 1, "_id": 1}}, {"$limit": 50}],
            [{"$group": {"_id": "$g", "all": {"$push": "$text"}}}, {"$project": {"n": {"$size": "$all"}}}],
            [{"$sort": {"g": -1, "_id": 1}}, {"$group": {"_id": {"$mod": ["$k", 7]}, "first": {"$first": "$_id"}, "all": {"$push": "$k"}}}],
            [{"$sort": {"g": 1, "_id": 1}}, {"$bucketAuto": {"groupBy": "$g", "buckets": 4}}],
            [{"$setWindowFields": {"sortBy": {"_id": 1}, "output": {"run": {"$sum": "$g", "window": {"documents": ["unbounded", "current"]}}}}}, count],
            [{"$sort": {"_id": 1}}, {"$skip": 10}, {"$limit": 3500}, {"$unwind": "$k"}, {"$group": {"_id": {"$gt": ["$k", 100]}, "first": {"$first": "$k"}}}],
            [lookup("left", "k", "u"), {"$match": {"o.0": {"$exists": True}}}, {"$project": {"text": 0}}, *SORTED],
        ):  # fmt: skip
            with self.subTest(pipeline=str(pipeline)[:80]):
                self.same({"aggregate": "big", "pipeline": pipeline, "cursor": {}, "allowDiskUse": True})
        # Documents that are passed on whole keep their order, and whatever a server would fill in.
        ordered = [{"$sort": {"g": 1, "_id": 1}}, {"$unionWith": {"coll": "small"}}]
        here, there = ([d["_id"] for d in db.big.aggregate(ordered)] for db in self.both())
        self.assertEqual(here, there)
        stamp = [{"$set": {"ts": bson.Timestamp(0, 0)}}, {"$facet": {"a": [{"$match": {"ts": bson.Timestamp(0, 0)}}, {"$count": "n"}]}}]
        self.same({"aggregate": "big", "pipeline": stamp, "cursor": {}})


class LeftBehind(unittest.TestCase):
    def test_what_a_killed_router_used_is_dropped_at_the_next_start(self):
        with Cluster() as cluster:
            db = cluster.client().left
            cluster.client().admin.command("shardCollection", "left.c", key={"k": "hashed"})
            db.c.insert_many([{"k": i} for i in range(300)])
            cursor = db.c.aggregate([{"$unionWith": "c"}], batchSize=2)
            next(cursor)

            def temporary():
                locals = [cluster.member_client(s["name"]).local for s in cluster.layout["shards"]]
                return [name for local in locals for name in local.list_collection_names() if name.startswith("mosaic.tmp.")]

            self.assertTrue(temporary())
            cluster.kill()
            cluster.launch().start()
            eventually(lambda: not temporary(), 20, what="the end of temporary collections")


if __name__ == "__main__":
    unittest.main()
