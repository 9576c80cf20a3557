"""`$merge` and `$out` from and into sharded collections, against the same on one plain mongod."""

import unittest

import bson
import pymongo
from bson import SON, Int64
from cluster import ClusterCase, Oracle

# (whenMatched, whenNotMatched): all of them, the forbidden ones too
MODES = [
    (matched, otherwise)
    for matched in ("replace", "keepExisting", "merge", "fail", [{"$set": {"sum": {"$add": ["$a", "$$new.a"]}, "by": "$$new._id"}}], "odd")
    for otherwise in ("insert", "discard", "fail", "odd")
]

KEYS = {"byid": {"_id": "hashed"}, "byk": {"k": "hashed"}, "pair": {"g": "hashed", "k": 1}, "nested": {"p.q": "hashed"}, "flat": None}


def target(i):
    return {"_id": i, "k": i % 20, "g": i % 3, "p": {"q": i % 7, "r": 1}, "a": i, "old": True}


def source(i):
    # Half of them are in the target; what they are keyed by is the same there.
    return {"_id": i, "k": i % 20, "g": i % 3, "p": {"q": i % 7}, "a": 100 + i, "new": {"x": i}}


class Merge(ClusterCase):
    setup = {"shards": 2}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.oracle = cls.enterClassContext(Oracle())
        for name, key in KEYS.items():
            if key:
                cls.client.admin.command("shardCollection", f"merge.{name}", key=key)
        cls.client.admin.command("shardCollection", "merge.source", key={"k": "hashed"})
        for db in cls.both():
            db.source.insert_many([source(i) for i in range(0, 80)])
            db.plain.insert_many([source(i) for i in range(0, 80)])

    @classmethod
    def both(cls):
        return cls.client.merge, cls.oracle.client.merge

    def run_on(self, db, coll, reads, pipeline, into, prepare, **options):
        db[into].delete_many({})
        if prepare:
            db[into].insert_many([target(i) for i in range(40, 120)])
        try:
            reply = db.command(SON({"aggregate": reads, "pipeline": pipeline, "cursor": {}, **options}))
            outcome = [reply["cursor"]["firstBatch"], reply["cursor"]["id"], reply["cursor"]["ns"]]
        except pymongo.errors.OperationFailure as e:
            # What was written before the error depends on the order.
            return e.code
        # An upsert begins a document with the fields that name it, and these are more in a sharded collection.
        ordered = KEYS.get(into) in (None, KEYS["byid"])
        contents = sorted(bson.encode(d if ordered else dict(sorted(d.items()))) for d in db[coll].find())
        return [outcome, contents]

    def same(self, reads, pipeline, into, prepare=True, coll=None, **options):
        # An ordinary server has one collection where the cluster has a key of its own.
        results = [self.run_on(db, coll or into, reads, pipeline, into, prepare, **options) for db in self.both()]
        if results[0] != results[1] and isinstance(results[0], list) and isinstance(results[1], list):
            pairs = zip(*[[bson.decode(d) for d in r[1]] for r in results])
            odd = [p for p in pairs if p[0] != p[1]][:2] or [len(r[1]) for r in results]
            self.fail(f"{reads} {pipeline}: cluster (first) and one mongod differ: {odd}")
        self.assertEqual(*results, (reads, pipeline))
        return results[0]

    def test_modes(self):
        for into in KEYS:
            for reads in ("source", "plain"):
                for matched, otherwise in MODES:
                    stage = {"$merge": {"into": into, "whenMatched": matched, "whenNotMatched": otherwise}}
                    with self.subTest(into=into, reads=reads, matched=str(matched)[:10], otherwise=otherwise):
                        self.same(reads, [{"$match": {"a": {"$lt": 170}}}, stage], into)

    def test_short_forms_and_groups(self):
        for into in ("byid", "byk"):
            self.same("source", [{"$merge": into}], into)
            self.same("source", [{"$merge": {"into": {"db": "merge", "coll": into}}}], into, prepare=False)
            self.same("source", [{"$group": {"_id": "$g", "k": {"$max": "$k"}, "n": {"$sum": 1}}}, {"$merge": into}], into)
            self.same("source", [{"$sort": {"_id": 1}}, {"$limit": 5}, {"$project": {"k": 1}}, {"$merge": into}], into)

    def test_variables(self):
        pipeline = [{"$set": {"v": "$$add", "w": "$$outer", "y": "$$new.a"}}]
        stage = {"$merge": {"into": "byk", "let": {"add": {"$add": ["$a", 1]}}, "whenMatched": pipeline}}
        self.same("source", [stage], "byk", let={"outer": 5})
        stage = {"$merge": {"into": "byk", "let": {"new": "$a"}, "whenMatched": [{"$set": {"v": "$$new"}}]}}
        self.same("source", [stage], "byk")

    def test_fields_that_name_the_target(self):
        for into in ("byid", "byk", "pair"):
            self.same("source", [{"$project": {"_id": 1, "a": 1, "k": 1, "g": 1}}, {"$merge": {"into": into, "on": "_id"}}], into)
            self.same("source", [{"$merge": {"into": into, "on": "a"}}], into)
            self.same("source", [{"$merge": {"into": into, "on": ["_id", "nope"]}}], into)
        self.same("source", [{"$set": {"_id": [1]}}, {"$merge": "byid"}], "byid")
        self.same("source", [{"$set": {"_id": None}}, {"$limit": 1}, {"$merge": {"into": "flat"}}], "flat")

    def test_documents_without_an_id_get_one(self):
        for db in self.both():
            db.byid.delete_many({})
            db.source.aggregate([{"$project": {"_id": 0, "a": 1}}, {"$merge": "byid"}])
            self.assertEqual(db.byid.count_documents({"_id": {"$type": "objectId"}}), 80)

    def test_unique_indexes(self):
        for db in self.both():
            db.byk.delete_many({})
            db.byk.create_index([("k", 1), ("a", 1)], unique=True)
        try:
            pipeline = [{"$project": {"_id": 0}}, {"$merge": {"into": "byk", "on": ["a", "k"], "whenMatched": "replace"}}]
            for db in self.both():
                db.byk.delete_many({})
                db.source.aggregate(pipeline)
                db.source.aggregate(pipeline)
                self.assertEqual(db.byk.count_documents({}), 80)
            # Two documents for the same place: the second one violates the index.
            self.same("source", [{"$set": {"a": 1, "k": 1}}, {"$merge": "byk"}], "byk", prepare=False)
        finally:
            for db in self.both():
                db.byk.drop_index("k_1_a_1")

    def test_many_and_large_documents(self):
        for db in self.both():
            db.large.drop()
        self.client.admin.command("shardCollection", "merge.large", key={"_id": "hashed"})
        pipeline = [
            {"$set": {"n": {"$range": [0, 200]}, "text": "x" * 3000}}, {"$unwind": "$n"},
            {"$set": {"_id": {"$add": [{"$multiply": ["$_id", 1000]}, "$n"]}}}, {"$merge": "large"},
        ]  # fmt: skip
        for _ in range(2):
            self.same("source", pipeline, "large", prepare=False)

    def test_from_documents_and_other_databases(self):
        for db in self.both():
            db.byid.delete_many({})
            db.command({"aggregate": 1, "pipeline": [{"$documents": [{"_id": 1}, {"_id": 2}]}, {"$merge": "byid"}], "cursor": {}})
            self.assertEqual(sorted(d["_id"] for d in db.byid.find()), [1, 2])
            far = db.client.elsewhere
            far.c.drop()
            db.source.aggregate([{"$merge": {"into": {"db": "elsewhere", "coll": "c"}}}])
            self.assertEqual(far.c.count_documents({}), 80)
            db.source.aggregate([{"$match": {"k": 3}}, {"$out": {"db": "elsewhere", "coll": "c"}}])
            self.assertEqual(far.c.count_documents({}), 4)
            far.c.aggregate([{"$merge": {"into": {"db": "merge", "coll": "byid"}}}])
            self.assertEqual(db.byid.count_documents({}), 6)

    def test_joined_and_merged(self):
        join = {"$lookup": {"from": "byk", "localField": "k", "foreignField": "k", "as": "o"}}
        size = {"$project": {"o": {"$size": "$o"}}}
        for db in self.both():
            db.byk.delete_many({})
            db.byk.insert_many([target(i) for i in range(60)])
        self.same("source", [join, size, {"$merge": "byid"}], "byid", prepare=False)
        self.same("source", [join, size, {"$merge": "flat"}], "flat", prepare=False)
        self.same("source", [join, size, {"$out": "flat"}], "flat", prepare=False)
        self.same("plain", [join, size, {"$out": "flat"}], "flat", prepare=False)

    def test_refused(self):
        for db in self.both():
            db.drop_collection("view")
            db.create_collection("view", viewOn="source", pipeline=[{"$match": {"g": 1}}])
        self.same("view", [{"$merge": "byid"}], "byid", prepare=False)
        with self.assertRaises(pymongo.errors.OperationFailure) as caught:
            self.client.merge.source.aggregate([{"$out": "byid"}])
        self.assertEqual(caught.exception.code, 28769)
        for pipeline in ([{"$merge": "byid"}, {"$match": {}}], [{"$facet": {"a": [{"$merge": "byid"}]}}], [{"$merge": {"into": "byid", "nope": 1}}]):
            self.same("source", pipeline, "byid")

    def test_write_errors_name_the_pipeline(self):
        with self.assertRaises(pymongo.errors.OperationFailure) as caught:
            self.client.merge.source.aggregate([{"$merge": {"into": "byid", "whenMatched": [{"$set": {"x": {"$divide": [1, 0]}}}]}}])
        self.assertTrue(str(caught.exception).startswith("PlanExecutor error during aggregation"), caught.exception)

    def test_cursor_id(self):
        reply = self.client.merge.command({"aggregate": "source", "pipeline": [{"$merge": "byid"}], "cursor": {"batchSize": 1}})
        self.assertEqual(Int64(reply["cursor"]["id"]), 0)


if __name__ == "__main__":
    unittest.main()
