"""A sharded collection and its twin on one plain mongod: the same writes must have the same results.

`Pair` runs a call on both and compares what comes back; `check` compares the contents and looks whether every document is
on the shard that owns its shard key.
"""

import bson
import pymongo
from cluster import ClusterCase, Oracle


def canonical(value):
    """Values that compare equal exactly when BSON type and value are the same."""
    return bson.encode({"v": value})


def outcome(call):
    """The result of a write as something that can be compared: counts, images, or the error."""
    try:
        result = call()
    except pymongo.errors.BulkWriteError as e:
        d = e.details
        errors = sorted((w["index"], w["code"]) for w in d["writeErrors"])
        upserted = sorted((u["index"], canonical(u["_id"])) for u in d["upserted"])
        counts = [d[k] for k in ("nInserted", "nMatched", "nModified", "nRemoved", "nUpserted")]
        return ("bulk error", counts, errors, upserted)
    except pymongo.errors.WriteError as e:
        return ("write error", e.code)
    except pymongo.errors.OperationFailure as e:
        return ("failure", e.code)
    if isinstance(result, pymongo.results.UpdateResult):
        return ("update", result.matched_count, result.modified_count, canonical(result.upserted_id))
    if isinstance(result, pymongo.results.DeleteResult):
        return ("delete", result.deleted_count)
    if isinstance(result, pymongo.results.BulkWriteResult):
        upserted = sorted((i, canonical(v)) for i, v in result.upserted_ids.items())
        counts = [result.inserted_count, result.matched_count, result.modified_count, result.deleted_count]
        return ("bulk", counts, upserted)
    if isinstance(result, pymongo.results.InsertOneResult):
        return ("insert", canonical(result.inserted_id))
    if isinstance(result, pymongo.results.InsertManyResult):
        return ("insert", [canonical(i) for i in result.inserted_ids])
    return ("value", canonical(result))


class Pair:
    def __init__(self, case, cluster, sharded, plain, key):
        self.case, self.cluster, self.sharded, self.plain, self.key = case, cluster, sharded, plain, key

    def both(self, what, call):
        """call(collection) must have the same outcome on both."""
        here, there = outcome(lambda: call(self.sharded)), outcome(lambda: call(self.plain))
        self.case.assertEqual(here, there, f"cluster (first) and one mongod differ: {what}")
        return here

    def contents(self, collection):
        return {canonical(d["_id"]): canonical(d) for d in collection.find()}

    def check(self, what=""):
        """The same documents, each once, each on its owner."""
        expected = self.contents(self.plain)
        self.case.assertEqual(self.contents(self.sharded), expected, f"contents differ {what}")
        seen = 0
        for name in (s["name"] for s in self.cluster.layout["shards"]):
            shard = self.cluster.member_client(name)
            for doc in shard[self.sharded.database.name][self.sharded.name].find():
                seen += 1
                self.case.assertEqual(self.owner_has(doc), True, f"{doc} is on {name}, which does not own it {what}")
        self.case.assertEqual(seen, len(expected), f"documents are there twice or missing {what}")

    def owner_has(self, doc):
        """Whether the document is found when only the owner of its shard key is asked."""
        query = {"_id": doc["_id"]}
        for path in self.key:
            value = doc
            for part in path.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            query[path] = {"$eq": value}
        return self.sharded.find_one(query) is not None


def spread(case, cluster, ns, key, bounds, **options):
    """Shards `ns` by `key`, and gives the chunks between `bounds` to the shards in turn."""
    admin = cluster.client().admin
    admin.command("shardCollection", ns, key=key, **options)
    for bound in bounds:
        admin.command("split", ns, middle=bound)
    chunks = sorted_chunks(cluster, ns)
    names = sorted(s["_id"] for s in admin.command("listShards")["shards"])
    for i, chunk in enumerate(chunks):
        to = names[i % len(names)]
        if chunk["shard"] != to:
            admin.command("_mosaicPlaceChunk", ns, bounds=[chunk["min"], chunk["max"]], to=to)
    return [names[i % len(names)] for i in range(len(chunks))]


def sorted_chunks(cluster, ns):
    config = cluster.client().config
    uuid = config.collections.find_one({"_id": ns})["uuid"]
    return list(config.chunks.find({"uuid": uuid}).sort("min", 1))


class PairCase(ClusterCase):
    """A cluster of three shards and one plain mongod."""

    setup = {"shards": 3}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.oracle = Oracle()
        cls.oracle.__enter__()
        cls.addClassCleanup(cls.oracle.__exit__)

    def pair(self, key, bounds=(), name="c", indexes=([("u", 1)],), plain_options=None, **options):
        """A collection sharded by `key` with chunks on all shards, and its twin."""
        spread(self, self.cluster, f"{self.db.name}.{name}", key, bounds, **options)
        plain = self.oracle.client[self.db.name]
        plain.drop_collection(name)
        plain.create_collection(name, **(plain_options or {}))
        for index in indexes:
            plain[name].create_index(index)
            for shard in self.cluster.layout["shards"]:
                self.cluster.member_client(shard["name"])[self.db.name][name].create_index(index)
        return Pair(self, self.cluster, self.db[name], plain[name], list(key))

    def ranged(self, **options):
        return self.pair({"k": 1}, [{"k": 0}, {"k": 10}, {"k": 20}, {"k": "m"}], **options)
