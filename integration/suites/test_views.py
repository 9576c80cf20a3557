"""Views over sharded collections, read through the router, against the same views on one plain mongod."""

import unittest

import bson
import pymongo
from bson import SON, Int64
from cluster import ClusterCase, Oracle
from test_reads import documents

VIEWS = [
    ("hot", "base", [{"$match": {"v": {"$lt": 5}}}], None),
    ("slim", "base", [{"$project": {"k": 1, "v": 1, "d": 1, "name": 1}}], None),
    ("hotter", "hot", [{"$match": {"u": {"$gte": 10}}}, {"$addFields": {"w": {"$add": ["$v", 1]}}}], None),
    ("counted", "base", [{"$group": {"_id": "$v", "n": {"$sum": 1}, "names": {"$addToSet": "$name"}}}, {"$project": {"n": 1}}], None),
    ("ordered", "base", [{"$sort": {"u": -1, "_id": 1}}, {"$limit": 200}], None),
    ("unwound", "base", [{"$unwind": "$d.y"}], None),
    ("folded", "base", [], {"locale": "en", "strength": 2}),
    ("one", "base", [{"$match": {"k": 17}}], None),
]


class Views(ClusterCase):
    setup = {"shards": 2}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.oracle = cls.enterClassContext(Oracle())
        cls.client.admin.command("shardCollection", "views.base", key={"k": "hashed"})
        for db in cls.both():
            db.base.insert_many(documents(count=400))
            db.plain.insert_many([{"_id": i, "k": i} for i in range(20)])
            for name, on, pipeline, collation in VIEWS:
                db.create_collection(name, viewOn=on, pipeline=pipeline, **({"collation": collation} if collation else {}))
            db.create_collection("harmless", viewOn="plain", pipeline=[{"$match": {"k": {"$gt": 3}}}])
            join = {"$lookup": {"from": "base", "localField": "k", "foreignField": "k", "as": "x"}}
            db.create_collection("joined", viewOn="plain", pipeline=[join])

    @classmethod
    def both(cls):
        return cls.client.views, cls.oracle.client.views

    def outcome(self, db, command):
        """All documents, values or the number that the command gives; its error as text."""
        try:
            reply = db.command(SON(command))
            if "cursor" not in reply:
                return [reply.get("n", reply.get("values"))]
            docs, cursor = list(reply["cursor"]["firstBatch"]), reply["cursor"]
            self.assertEqual(cursor["ns"], f"views.{next(iter(command.values()))}")
            while cursor["id"]:
                more = {"getMore": Int64(cursor["id"]), "collection": cursor["ns"].split(".", 1)[1], "batchSize": 30}
                cursor = db.command(SON(more))["cursor"]
                docs += cursor["nextBatch"]
            return docs
        except pymongo.errors.OperationFailure as e:
            return f"{e.code} {e.details.get('codeName')}"

    def same(self, command, ordered=False):
        with self.subTest(command=command):
            mine, theirs = (self.outcome(db, command) for db in self.both())
            if not isinstance(mine, str) and not isinstance(theirs, str):
                mine, theirs = ([bson.encode({"": v}) for v in found] for found in (mine, theirs))
                if not ordered:
                    mine, theirs = sorted(mine), sorted(theirs)
            self.assertEqual(mine, theirs)

    def test_finds(self):
        for view, *_ in VIEWS:
            self.same({"find": view})
            self.same({"find": view, "filter": {"v": 3}, "batchSize": 7})
            self.same({"find": view, "filter": {"k": 17}})
            self.same({"find": view, "sort": {"_id": 1}, "skip": 5, "limit": 20, "batchSize": 3}, ordered=True)
            self.same({"find": view, "sort": {"name": 1, "_id": -1}, "projection": {"name": 1}}, ordered=True)
            self.same({"find": view, "sort": {"_id": 1}, "limit": 1, "singleBatch": True}, ordered=True)
            self.same({"find": view, "filter": {"$expr": {"$eq": ["$v", "$$x"]}}, "let": {"x": 2}})
            self.same({"find": view, "filter": {"name": "ann"}})
            self.same({"find": view, "batchSize": 0})
            self.same({"find": view, "sort": {"$natural": 1}})
        self.same({"find": "folded", "filter": {"name": "ANN"}, "collation": {"locale": "en", "strength": 2}})

    def test_what_views_do_not_take(self):
        for more in (
            {"min": {"k": 1}, "hint": {"k": 1}}, {"max": {"k": 1}, "hint": {"k": 1}}, {"returnKey": True}, {"showRecordId": True},
            {"tailable": True}, {"noCursorTimeout": True}, {"allowPartialResults": True}, {"singleBatch": True},
            {"collation": {"locale": "fr"}}, {"collation": {"locale": "simple"}}, {"filter": {"$nope": 1}}, {"filter": {"p": {"$near": [0, 0]}}}, {"projection": {"a": 1, "b": 0}}, {"hint": "nope"}, {"limit": -1}, {"skip": "x"},
        ):  # fmt: skip
            self.same({"find": "hot", **more})
        self.same({"count": "hot", "collation": {"locale": "fr"}})
        self.same({"count": "hot", "limit": "x"})
        self.same({"distinct": "hot", "key": 5})
        self.same({"distinct": "hot", "key": "v", "query": 5})

    def test_counts_and_distincts(self):
        for view, *_ in VIEWS:
            self.same({"count": view})
            self.same({"count": view, "query": {"v": {"$gt": 2}}, "skip": 3, "limit": 11})
            self.same({"count": view, "query": {"v": 99}})
            self.same({"count": view, "limit": -4})
            for key in ("v", "d.y", "d.x", "name", "nope", "_id", "d"):
                with self.subTest(view=view, key=key):
                    mine, theirs = (db.command("distinct", view, key=key, query={"u": {"$lt": 30}})["values"] for db in self.both())
                    if view == "folded" and key == "name":
                        # Which of the equal ones is given is nowhere said.
                        mine, theirs = ([v.lower() for v in found] for found in (mine, theirs))
                    self.assertEqual(*(sorted(bson.encode({"": v}) for v in found) for found in (mine, theirs)))

    def test_aggregations(self):
        for view, *_ in VIEWS:
            for pipeline in (
                [], [{"$match": {"v": 3}}], [{"$group": {"_id": {"$toLower": "$name"}, "n": {"$sum": 1}}}], [{"$count": "n"}], [{"$sort": {"_id": 1}}, {"$limit": 3}],
                [{"$match": {"k": 17}}, {"$project": {"v": 1}}], [{"$facet": {"a": [{"$count": "n"}], "b": [{"$match": {"v": 1}}, {"$count": "n"}]}}],
                [{"$collStats": {"count": {}}}], [{"$geoNear": {"near": [0, 0], "distanceField": "x"}}], [{"$nope": 1}],
            ):  # fmt: skip
                self.same({"aggregate": view, "pipeline": pipeline, "cursor": {"batchSize": 40}})
        self.same({"aggregate": "hot", "pipeline": [], "cursor": {}, "collation": {"locale": "fr"}})

    def test_explains(self):
        for command in ({"find": "hot"}, {"count": "hot"}, {"distinct": "hot", "key": "v"}, {"aggregate": "hot", "pipeline": [], "cursor": {}}):
            for verbosity in ("queryPlanner", "executionStats"):
                explained = self.client.views.command("explain", SON(command), verbosity=verbosity)
                self.assertEqual(sorted(explained["shards"]), ["shard0", "shard1"])
                self.assertEqual(explained["mosaic"]["reason"], "NoShardKey")
        one = self.client.views.command("explain", {"find": "hot", "filter": {"k": 5}})
        self.assertEqual(one["mosaic"]["reason"], "EqualityOnShardKey")

    def test_writes_are_refused(self):
        for db in self.both():
            for write in (
                lambda db=db: db.hot.insert_one({}), lambda db=db: db.hot.update_one({}, {"$set": {"a": 1}}), lambda db=db: db.hot.delete_many({}),
                lambda db=db: db.hot.find_one_and_delete({}), lambda db=db: db.hot.create_index("a"), lambda db=db: db.hot.aggregate([{"$match": {"k": 1}}, {"$out": "hotter"}]),
            ):  # fmt: skip
                with self.assertRaises((pymongo.errors.OperationFailure, pymongo.errors.BulkWriteError)) as caught:
                    write()
                self.assertEqual(caught.exception.code, 166, caught.exception)

    def test_views_are_followed_when_they_change(self):
        db = self.client.views
        db.create_collection("moving", viewOn="base", pipeline=[{"$match": {"v": 1}}])
        first = db.moving.count_documents({})
        db.command("collMod", "moving", viewOn="hot", pipeline=[{"$match": {"v": 2}}])
        self.assertEqual(db.moving.count_documents({}), db.base.count_documents({"v": 2}))
        self.assertEqual(first, db.base.count_documents({"v": 1}))
        db.moving.drop()
        self.assertEqual(db.moving.count_documents({}), 0)

    def test_views_that_join_what_is_sharded(self):
        sizes = [[{"$project": {"k": 1, "x": {"$size": "$x"}}}], [{"$unwind": "$x"}, {"$group": {"_id": "$x.v", "n": {"$sum": 1}}}]]
        for pipeline in sizes:
            self.same({"aggregate": "joined", "pipeline": pipeline, "cursor": {}})
        self.same({"count": "joined", "query": {"x.v": 3}})
        self.same({"find": "harmless"})
        self.same({"count": "harmless"})
        values = [sorted(db.harmless.distinct("k")) for db in self.both()]
        self.assertEqual(*values)


if __name__ == "__main__":
    unittest.main()
