"""Long random sequences of writes on sharded collections, compared with one plain mongod after every step.

MOSAIC_TEST_SEED repeats a run; MOSAIC_TEST_ROUNDS is the number of steps on each kind of shard key.
"""

import os
import random

from bson import Decimal128, Int64, MinKey
from pairs import PairCase
from pymongo import DeleteOne, InsertOne, ReplaceOne, ReturnDocument, UpdateMany, UpdateOne

SEED = int(os.environ.get("MOSAIC_TEST_SEED", random.randrange(1 << 30)))
ROUNDS = int(os.environ.get("MOSAIC_TEST_ROUNDS", "150"))

KEY_SHAPES = {
    "ranged": ({"k": 1}, [{"k": 0}, {"k": 8}, {"k": 20}, {"k": "m"}]),
    "compound": ({"g": 1, "k": 1}, [{"g": 1, "k": MinKey()}, {"g": 1, "k": 9}, {"g": 2, "k": 0}, {"g": "x", "k": MinKey()}]),
    "hashed": ({"k": "hashed"}, []),
    "compound hashed": ({"g": 1, "k": "hashed"}, [{"g": 1, "k": MinKey()}, {"g": 1, "k": Int64(0)}, {"g": "x", "k": MinKey()}]),
    "nested": ({"p.q": 1}, [{"p.q": 0}, {"p.q": 10}]),
    "hashed id": ({"_id": "hashed"}, []),
    "id": ({"_id": 1}, [{"_id": 100}, {"_id": 200}]),
}


class Generator:
    """Random writes whose result does not depend on the order documents are found in."""

    def __init__(self, rng):
        self.rng, self.next, self.ids = rng, 0, []

    def key_value(self):
        r = self.rng
        return r.choice(
            [r.randrange(-5, 30), r.randrange(-5, 30), float(r.randrange(30)), Int64(r.randrange(30)), r.choice("abmz"),
             None, Decimal128(str(r.randrange(30))), {"n": r.randrange(3)}, r.random() * 30]
        )

    def document(self):
        r, self.next = self.rng, self.next + 1
        doc = {"_id": self.next, "u": self.next, "x": r.randrange(5), "list": [r.randrange(4) for _ in range(3)]}
        if r.random() < 0.9:
            doc["k"] = self.key_value()
        if r.random() < 0.9:
            doc["g"] = r.choice([0, 1, 2, "x", "y"])
        if r.random() < 0.9:
            doc["p"] = {"q": self.key_value(), "other": 1} if r.random() < 0.9 else 5
        self.ids.append(self.next)
        return doc

    def some_id(self):
        return self.rng.choice(self.ids) if self.ids and self.rng.random() < 0.95 else 10**6 + self.rng.randrange(50)

    def one(self, collection):
        """A filter that matches at most one document: by _id, by an unindexed or indexed field, with the shard key or parts."""
        r, u = self.rng, self.some_id()
        doc = collection.find_one({"u": u}) or {"_id": u}
        base = r.choice([{"_id": u}, {"u": u}, {"u": {"$in": [u]}}, {"$and": [{"u": u}]}, {"u": u, "list": {"$gte": 0}}])
        for path in ("k", "g"):
            if r.random() < 0.4:
                base = {**base, path: doc.get(path)}
        if r.random() < 0.3 and isinstance(doc.get("p"), dict):
            base = {**base, "p.q": doc["p"].get("q")}
        return base

    def many(self):
        r = self.rng
        return r.choice(
            [{"x": r.randrange(5)}, {"k": {"$gte": r.randrange(20)}}, {"k": {"$in": [r.randrange(30) for _ in range(4)]}},
             {"g": r.choice([0, 1, "x"])}, {"u": {"$gt": r.randrange(1, 200), "$lt": 250}}, {"k": self.key_value()},
             {"$or": [{"k": r.randrange(20)}, {"x": 9}]}, {"p.q": {"$lt": 5}}, {"list": r.randrange(4)}]
        )

    def plain_change(self):
        r = self.rng
        return r.choice(
            [{"$set": {"v": r.randrange(9)}}, {"$inc": {"n": 1}, "$set": {"w": [1, 2]}}, {"$unset": {"v": 1}},
             {"$push": {"list": r.randrange(4)}}, {"$set": {"p.other": r.randrange(5)}}, {"$set": {"v": 0}},
             [{"$set": {"v": {"$add": ["$x", 1]}}}], [{"$replaceWith": {"$mergeObjects": ["$$ROOT", {"m": 1}]}}],
             {"$mul": {"x": 2}}, {"$rename": {"v": "vv"}}, {"$bit": {"u2": {"or": 3}}}, {"$inc": {"list": 1}}]
        )

    def many_change(self):
        """One that cannot fail on some documents only: how far it comes before that depends on their order."""
        while True:
            change = self.plain_change()
            # An upserted document has no list, and `$inc` makes it a number, which nothing can be pushed to.
            if change not in ({"$inc": {"list": 1}},) and "p.other" not in str(change) and "$push" not in str(change):
                return change

    def key_change(self):
        r = self.rng
        return r.choice(
            [{"$set": {"k": self.key_value()}}, {"$inc": {"k": r.randrange(1, 15)}}, {"$unset": {"k": 1}},
             {"$set": {"g": r.choice([0, 1, 2, "x"])}}, [{"$set": {"k": {"$add": ["$x", 7]}}}], {"$set": {"p.q": r.randrange(20)}},
             {"$set": {"p": {"q": r.randrange(20)}}}, {"$set": {"k": r.randrange(20), "v": 1}}, {"$min": {"k": 3}},
             [{"$replaceWith": {"_id": "$_id", "u": "$u", "k": r.randrange(25), "g": 1, "list": "$list"}}]]
        )

    def change(self):
        return self.key_change() if self.rng.random() < 0.35 else self.plain_change()

    def replacement(self):
        doc = self.document()
        self.ids.pop()
        if self.rng.random() < 0.7:
            doc.pop("_id")
        return doc

    def bulk_entry(self, collection, key, retryable):
        """One of a bulk; a multi-update makes a bulk not retryable, and then no document can move."""
        r = self.rng
        kind = r.randrange(8)
        if (kind == 1) if retryable else (kind == 3):
            kind = 5
        if kind == 0:
            return InsertOne(self.document())
        if kind == 1:
            return UpdateMany(self.many(), self.many_change())
        if kind == 2:
            return DeleteOne(self.one(collection))
        if kind == 3 and "_id" not in key:
            u = self.some_id()
            return ReplaceOne({"u": u}, {**self.replacement(), "u": u})
        return UpdateOne(self.one(collection), self.change() if retryable else self.plain_change())


class Differential(PairCase):
    """Long random sequences."""

    def sequence(self, shape):
        key, bounds = KEY_SHAPES[shape]
        rng = random.Random(SEED + sorted(KEY_SHAPES).index(shape))
        pair, gen = self.pair(key, bounds), Generator(rng)
        docs = [gen.document() for _ in range(60)]
        pair.both("the first documents", lambda c: c.insert_many(docs))
        for step in range(ROUNDS):
            self.step(pair, gen, f"seed {SEED} {shape} step {step}")
            if step % 50 == 49:
                pair.check(f"seed {SEED} {shape} step {step}")
        pair.check(f"seed {SEED} {shape}")
        counts = [self.cluster.member_client(s["name"])[self.db.name].c.estimated_document_count() for s in self.cluster.layout["shards"]]
        self.assertGreater(sum(n > 0 for n in counts), 1, f"the documents should be on several shards: {counts}")

    def step(self, pair, gen, label):
        rng, key = gen.rng, pair.key
        change_id = "_id" in key
        kind = rng.randrange(13)
        if kind == 0:
            doc = gen.document()
            pair.both(f"{label}: insert {doc}", lambda c: c.insert_one(dict(doc)))
        elif kind == 1:
            docs = [gen.document() for _ in range(rng.randrange(1, 15))]
            if rng.random() < 0.5:
                docs.insert(rng.randrange(len(docs)), dict(docs[-1]))  # the same document twice: a duplicate
            ordered = rng.random() < 0.5
            pair.both(f"{label}: insert_many ordered={ordered} {docs}", lambda c: c.insert_many([dict(d) for d in docs], ordered=ordered))
        elif kind in (2, 3, 4):
            query, change = gen.one(pair.plain), gen.change()
            pair.both(f"{label}: update_one {query} {change}", lambda c: c.update_one(query, change))
        elif kind == 5:
            query, change = gen.many(), gen.many_change()
            pair.both(f"{label}: update_many {query} {change}", lambda c: c.update_many(query, change))
        elif kind == 6:
            u = gen.some_id()
            query = {"u": u} if change_id or rng.random() < 0.5 else {"_id": u}
            doc = {**gen.replacement(), "u": u}
            doc.pop("_id", None)
            pair.both(f"{label}: replace_one {query} {doc}", lambda c: c.replace_one(query, doc))
        elif kind == 7:
            query = gen.one(pair.plain)
            pair.both(f"{label}: delete_one {query}", lambda c: c.delete_one(query))
        elif kind == 8 and rng.random() < 0.3:
            query = {**gen.many(), "u": {"$gt": rng.randrange(200)}}
            pair.both(f"{label}: delete_many {query}", lambda c: c.delete_many(query))
        elif kind == 9:
            self.find_and_modify(pair, gen, label)
        elif kind == 10:
            self.upsert(pair, gen, label)
        else:
            self.bulk(pair, gen, label)

    def find_and_modify(self, pair, gen, label):
        rng = gen.rng
        query, change = (gen.one(pair.plain), None) if rng.random() < 0.4 else (gen.many(), [("u", rng.choice([1, -1]))])
        options = {"sort": change} if change else {}
        if rng.random() < 0.4:
            options["projection"] = {"u": 1, "k": 1, "v": 1}
        if rng.random() < 0.25:
            return pair.both(f"{label}: find_one_and_delete {query} {options}", lambda c: c.find_one_and_delete(query, **options))
        update, after = gen.change(), rng.choice([ReturnDocument.BEFORE, ReturnDocument.AFTER])
        pair.both(
            f"{label}: find_one_and_update {query} {update} {options} after={after}",
            lambda c: c.find_one_and_update(query, update, return_document=after, **options),
        )

    def upsert(self, pair, gen, label):
        rng, new = gen.rng, gen.next + 1
        gen.next += 1
        query = {"_id": new} if rng.random() < 0.5 else {"_id": new, "k": gen.key_value(), "g": 1}
        if rng.random() < 0.3:
            query["p.q"] = rng.randrange(20)
        if rng.random() < 0.3:
            query = {**gen.one(pair.plain)}
            # What is inserted takes `u` from the query, and no two documents may have the same.
            u = query.get("u", query.get("$and", [{}])[0].get("u"))
            u = u["$in"][0] if isinstance(u, dict) else u
            query.setdefault("_id", new if u is None else u)
        change = rng.choice([gen.plain_change(), {"$set": {"v": 1}, "$setOnInsert": {"u": new}}, {"$setOnInsert": {"k": 3, "u": new}}])
        if rng.random() < 0.3:
            doc = {**gen.replacement(), "u": new}
            doc.pop("_id", None)
            call = lambda c: c.replace_one(query, doc, upsert=True)  # noqa: E731
            change = doc
        elif rng.random() < 0.3:
            call = lambda c: c.find_one_and_update(query, change, upsert=True, return_document=ReturnDocument.AFTER)  # noqa: E731
        else:
            call = lambda c: c.update_one(query, change, upsert=True)  # noqa: E731
        pair.both(f"{label}: upsert {query} {change}", call)
        gen.ids.append(new)

    def bulk(self, pair, gen, label):
        rng = gen.rng
        retryable = rng.random() < 0.6
        entries = [gen.bulk_entry(pair.plain, pair.key, retryable) for _ in range(rng.randrange(1, 12))]
        pair.both(f"{label}: ordered bulk {entries}", lambda c: c.bulk_write(entries, ordered=True))

    def test_ranged(self):
        self.sequence("ranged")

    def test_compound(self):
        self.sequence("compound")

    def test_hashed(self):
        self.sequence("hashed")

    def test_compound_hashed(self):
        self.sequence("compound hashed")

    def test_nested(self):
        self.sequence("nested")

    def test_hashed_id(self):
        self.sequence("hashed id")

    def test_id(self):
        self.sequence("id")


class Pipelines(PairCase):
    """Random update pipelines: what the router takes for leaving the shard key alone must leave it alone."""

    PATHS = ("_id", "k", "x", "p", "p.q", "p.other", "new", "_id.y", "kk")

    def value(self, rng):
        return rng.choice([1, 0, True, False, 1.0, 0.0, Int64(1), Int64(0), 1, 0, 1, 0, "$x", "$k", {"$literal": 5}, "$$REMOVE"])

    def project(self, rng):
        names = rng.sample(self.PATHS, rng.randrange(1, 4))
        if rng.random() < 0.7:
            flag = rng.choice([0, 1, True, False])
            spec = {name: rng.choice([bool(flag), int(flag), float(flag)]) for name in names}
            if rng.random() < 0.5:
                spec["_id"] = rng.choice([0, 1, True, False])
        else:
            spec = {name: self.value(rng) for name in names}
        if rng.random() < 0.2:
            spec["p"] = rng.choice([{"q": 0}, {"q": 1}, {"other": 0}, {"other": 1}, {"q": "$x"}])
            spec.pop("p.q", None)
            spec.pop("p.other", None)
        items = list(spec.items())
        rng.shuffle(items)
        return {"$project": dict(items)}

    def document(self, rng):
        parts = [{"v": 1}, {"k": 25}, {"p": {"q": 3}}, {"p": {"other": 2}}, {"v": "$k"}, "$p", {"$literal": {"k": 15}}, {}]
        return rng.choice(
            ["$$ROOT", {"_id": "$_id", "k": "$k"}, {"_id": "$_id", "x": "$x"}, {"k": "$$CURRENT.k", "p": "$p"}]
            + [{"$mergeObjects": [rng.choice(["$$ROOT", "$$CURRENT", "$$ROOT", {"z": 1}]), *rng.sample(parts, rng.randrange(3))]}] * 4
            + [{"$mergeObjects": "$$ROOT"}]
        )

    def stage(self, rng):
        kind = rng.randrange(6)
        if kind < 2:
            return self.project(rng)
        if kind == 2:
            paths = rng.sample(self.PATHS[1:], rng.randrange(1, 4))
            return {"$unset": paths[0] if rng.random() < 0.5 else paths}
        if kind == 3:
            return {"$replaceWith": self.document(rng)}
        if kind == 4:
            return {"$replaceRoot": {"newRoot": self.document(rng)}}
        names = rng.sample(self.PATHS[1:], rng.randrange(1, 3))
        return {rng.choice(["$set", "$addFields"]): {name: self.value(rng) for name in names}}

    def run_on(self, key, bounds):
        rng = random.Random(SEED)
        pair = self.pair(key, bounds)
        for n in range(ROUNDS * 2):
            doc = {"_id": n, "u": n, "k": rng.randrange(-5, 30), "x": rng.randrange(30), "p": {"q": rng.randrange(20), "other": 1}}
            pair.both("insert", lambda c: c.insert_one(dict(doc)))
            pipeline = [self.stage(rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
            query = rng.choice([{"_id": n}, {"u": n}, {"_id": n, "k": doc["k"]}, {"u": n, "p.q": doc["p"]["q"]}])
            pair.both(f"seed {SEED} {doc} {query} {pipeline}", lambda c: c.update_one(query, pipeline))
            expected = pair.plain.find_one({"_id": n})
            self.assertEqual(pair.sharded.find_one({"_id": n}), expected, f"seed {SEED} {doc} {query} {pipeline}")
            self.assertTrue(pair.owner_has(expected), f"seed {SEED} {doc} {query} {pipeline}: {expected} is on the wrong shard")
        pair.check(f"seed {SEED}")

    def test_ranged(self):
        self.run_on({"k": 1}, [{"k": 0}, {"k": 8}, {"k": 20}])

    def test_nested(self):
        self.run_on({"p.q": 1}, [{"p.q": 0}, {"p.q": 10}])

    def test_compound(self):
        self.run_on({"x": 1, "k": 1}, [{"x": 0, "k": MinKey()}, {"x": 9, "k": 9}, {"x": 20, "k": 0}])
