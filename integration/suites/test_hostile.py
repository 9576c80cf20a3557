"""What strangers send must not reach the servers behind the router, nor hold up others: cases that once did harm."""

import os

import bson
import pymongo
from bson import Int64
from cluster import ClusterCase


class Hostile(ClusterCase):
    setup = {"shards": 2}

    def test_fields_of_servers_among_themselves(self):
        """A find with `term` once made a primary step down; a large one ended its process at every start."""
        self.db.u.insert_one({"_id": 1})
        for fields in [{"term": Int64(1)}, {"term": Int64(2**40)}, {"shardVersion": [1, 2]}, {"databaseVersion": {}},
                       {"$configTime": bson.Timestamp(1, 1)}, {"mayBypassWriteBlocking": True}, {"readConcern": {"afterOpTime": {}}}]:  # fmt: skip
            self.assertFails(40415, self.db.command, {"find": "u", **fields})
            self.assertFails(40415, self.db.command, {"explain": {"find": "u", **fields}})
            self.assertFails(40415, self.db.command, {"aggregate": "u", "pipeline": [], "cursor": {}, **fields})
        self.assertFails(40415, self.db.command, {"getMore": Int64(5), "collection": "u", "term": Int64(7)})
        self.assertFails(40415, self.db.command, {"getMore": Int64(5), "collection": "u", "lastKnownCommittedOpTime": {}})
        for shard in self.cluster.layout["shards"]:
            self.assertTrue(self.cluster.shard_client(shard["name"]).admin.command("hello")["isWritablePrimary"])
        self.assertEqual(self.db.u.count_documents({}), 1)

    def test_stages_of_servers_among_themselves(self):
        """A `$group` with `$doingMerge` once ended a shard's process."""
        self.db.u.insert_many([{"_id": 1}, {"_id": 2, "a": 1}])
        self.shard("s", {"_id": "hashed"}).insert_many([{"_id": i, "a": i} for i in range(9)])
        merge = {"$group": {"_id": 1, "$doingMerge": True, "a": {"$sum": "$x"}}}
        apply = {"$_internalApplyOplogUpdate": {"oplogUpdate": {"$v": 2, "diff": {"u": {"a": 5}}}}}
        for stage in [merge, apply, {"$mergeCursors": {"remotes": []}}]:
            for pipeline in [[stage], [{"$facet": {"a": [stage]}}], [{"$unionWith": {"coll": "u", "pipeline": [stage]}}]]:
                for coll in ["u", "s"]:
                    self.assertFails(5491300, self.db[coll].aggregate, pipeline)
                    explain = {"explain": {"aggregate": coll, "pipeline": pipeline, "cursor": {}}, "verbosity": "executionStats"}
                    self.assertFails(5491300, self.db.command, explain)
            self.assertFails(5491300, self.db.command, {"create": "v", "viewOn": "u", "pipeline": [stage]})
        for coll in ["u", "s"]:
            for call in [self.db[coll].update_one, self.db[coll].find_one_and_update]:
                self.assertFails(5491300, call, {"_id": 2}, [apply])
            self.assertFails(5491300, self.db[coll].bulk_write, [pymongo.UpdateOne({"_id": 2}, [apply])])
        self.assertEqual(self.db.s.find_one({"_id": 2}), {"_id": 2, "a": 2})
        self.assertEqual(list(self.db.s.aggregate([{"$group": {"_id": 1, "n": {"$sum": 1}}}])), [{"_id": 1, "n": 9}])
        for shard in self.cluster.layout["shards"]:
            self.assertTrue(self.cluster.shard_client(shard["name"]).admin.command("hello")["isWritablePrimary"])

    def test_large_compressed_messages(self):
        """zlib requests above 256 KiB once closed the connection."""
        client = self.enterContext(pymongo.MongoClient(self.cluster.uri, compressors="zlib"))
        for size in [200_000, 261_937, 270_000, 1_000_000, 9_000_000]:
            data = os.urandom(size)
            client[self.db.name].z.insert_one({"_id": size, "x": data})
            self.assertEqual(client[self.db.name].z.find_one({"_id": size})["x"], data)

    def test_many_fields(self):
        """Each name was once compared with all before it."""
        command = {"ping": 1, **{f"f{n:06}": 1 for n in range(300_000)}}
        self.assertFails(40415, self.client.admin.command, command)

    def test_every_shard_has_the_index_of_the_key(self):
        """A hashed `_id` was taken for the index that every collection has."""
        for number, key in enumerate([{"_id": "hashed"}, {"_id": 1}, {"k": "hashed"}, {"_id": "hashed", "x": 1}, {"k": 1, "_id": 1}]):
            name = f"i{number}"
            self.shard(name, key)
            indexes = []
            for shard in self.cluster.layout["shards"]:
                coll = self.cluster.shard_client(shard["name"])[self.db.name][name]
                indexes.append({index: info["key"] for index, info in coll.index_information().items()})
            owners = [found for found in indexes if found]
            self.assertTrue(all(found == owners[0] for found in owners), (key, indexes))
            self.assertIn(list(key.items()), owners[0].values(), key)
