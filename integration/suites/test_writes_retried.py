"""Writes that are sent twice, and writes by many clients at once."""

import random
import threading

from bson import Int64
from pairs import PairCase
from rawwire import Raw, session


class Retries(PairCase):
    """The same statement sent twice, as drivers do that lost the answer to the first."""

    def setUp(self):
        super().setUp()
        self.pair = self.ranged()
        self.docs = [{"_id": i, "k": i, "u": i, "state": "new"} for i in range(30)]
        self.pair.sharded.insert_many(self.docs)
        self.raw = Raw(self.cluster.port)
        self.addCleanup(self.raw.socket.close)
        self.lsid, self.number = session(), 0

    def twice(self, command, sequence=None):
        """Both replies; the numbers that tell of a retry are taken out of the second."""
        self.number += 1
        command = {**command, "lsid": self.lsid, "txnNumber": Int64(self.number)}
        first = self.raw.run(self.db.name, command, sequence)
        second = self.raw.run(self.db.name, command, sequence)
        retried = second.pop("retriedStmtIds", None) or second.pop("retriedStmtId", None)
        self.assertIsNotNone(retried, (first, second))
        return first, second

    def counts(self, **query):
        return len(list(self.pair.sharded.find(query)))

    def same(self, command):
        first, second = self.twice(command)
        self.assertEqual(first, second)
        return first

    def update(self, q, u, **more):
        return {"update": "c", "updates": [{"q": q, "u": u, **more}]}

    def test_one_of_many(self):
        for i in range(1, 12):
            self.same(self.update({"state": "new"}, {"$set": {"state": "taken"}}))
            self.assertEqual(self.counts(state="taken"), i)
        for i in range(1, 5):
            self.same({"delete": "c", "deletes": [{"q": {"state": "new"}, "limit": 1}]})
            self.assertEqual(self.counts(), 30 - i)

    def test_find_one_and_modify(self):
        for new in (False, True):
            for sort in ({}, {"u": -1}):
                command = {"findAndModify": "c", "query": {"state": "new"}, "sort": sort, "update": {"$set": {"state": "x"}}, "new": new}
                reply = self.same(command)
                self.assertEqual(reply["value"]["state"], "x" if new else "new")
        self.assertEqual(self.counts(state="x"), 4)
        removed = self.same({"findAndModify": "c", "query": {"state": "new"}, "sort": {"u": 1}, "remove": True})
        self.assertEqual(removed["value"]["u"], 0 if removed["value"]["u"] == 0 else 1)
        self.assertEqual(self.counts(), 29)

    def test_a_moved_document(self):
        for i, q in enumerate([{"k": 1}, {"u": 2}, {"_id": 3}, {"u": {"$in": [4]}, "k": {"$lt": 9}}]):
            self.same(self.update(q, {"$inc": {"k": 100, "times": 1}}))
            self.assertEqual(self.counts(times=1), i + 1)
        self.same(self.update({"u": 5}, {"u": 5, "k": 25, "times": 1}))
        self.same(self.update({"k": 6}, [{"$set": {"k": {"$add": ["$k", 20]}, "times": 1}}]))
        self.assertEqual((self.counts(times=1), self.counts()), (6, 30))
        # Within a shard: nothing moves, but it must not be done twice either.
        self.same(self.update({"u": 11}, {"$inc": {"k": 1, "times": 1}}))
        self.same(self.update({"k": 13}, {"$inc": {"k": 1, "times": 1}}))
        self.assertEqual((self.counts(times=1), self.counts(times=2), self.counts()), (8, 0, 30))
        for doc in self.pair.sharded.find():
            self.assertTrue(self.pair.owner_has(doc), doc)

    def test_a_moved_document_that_is_returned(self):
        for new in (False, True):
            for q in ({"k": 1 + new}, {"u": 3 + new}):
                command = {"findAndModify": "c", "query": q, "update": {"$inc": {"k": 50, "n": 1}}, "new": new}
                reply = self.same(command)
                self.assertEqual(reply["value"].get("n"), 1 if new else None)
        self.assertEqual((self.counts(n=1), self.counts()), (4, 30))

    def test_upserts(self):
        reply = self.same(self.update({"name": "a"}, {"$set": {"k": 15}, "$inc": {"n": 1}}, upsert=True))
        self.assertEqual(len(reply["upserted"]), 1)
        self.same(self.update({"name": "b"}, {"name": "b", "k": 25}, upsert=True))
        self.same(self.update({"k": 40, "name": "c"}, {"$setOnInsert": {"k": 3}}, upsert=True))
        self.same(self.update({"_id": "d"}, {"$set": {"name": "d"}}, upsert=True))
        for new in (False, True):
            name = f"fam{new}"
            command = {"findAndModify": "c", "query": {"name": name}, "update": {"$set": {"k": 17}}, "upsert": True, "new": new}
            reply = self.same(command)
            self.assertEqual(bool(reply["value"]), new)
        self.assertEqual((self.counts(name={"$exists": True}), self.counts()), (6, 36))
        for doc in self.pair.sharded.find():
            self.assertTrue(self.pair.owner_has(doc), doc)

    def test_batches(self):
        docs = [{"_id": 100 + i, "k": i % 30} for i in range(40)]
        first, second = self.twice({"insert": "c", "documents": docs, "ordered": False})
        self.assertEqual((first["n"], second["n"], self.counts()), (40, 40, 70))
        updates = [{"q": {"_id": 100 + i}, "u": {"$inc": {"n": 1}}} for i in range(20)]
        updates += [{"q": {"k": i}, "u": {"$inc": {"n": 1}}} for i in range(30)]
        updates += [{"q": {"u": i}, "u": {"$inc": {"n": 1}}} for i in range(5)]
        updates += [{"q": {"u": i}, "u": {"$inc": {"n": 1, "k": 100}}} for i in range(20, 25)]
        for ordered in (True, False):
            before = sum(d.get("n", 0) for d in self.pair.sharded.find())
            batch = updates if ordered else updates[:55]
            first, second = self.twice({"update": "c", "updates": batch, "ordered": ordered})
            self.assertEqual((first["n"], second["n"]), (len(batch), len(batch)), (first, second))
            self.assertEqual(sum(d.get("n", 0) for d in self.pair.sharded.find()) - before, len(batch))
        own = {"insert": "c", "documents": [{"_id": "x", "k": 1}, {"_id": "y", "k": 15}], "stmtIds": [7, 9]}
        self.number += 1
        own = {**own, "lsid": self.lsid, "txnNumber": Int64(self.number)}
        self.assertEqual(self.raw.run(self.db.name, own), {"n": 2, "ok": 1.0})
        self.assertEqual(self.raw.run(self.db.name, own), {"n": 2, "ok": 1.0, "retriedStmtIds": [7, 9]})

    def inject(self, shard, mode, **data):
        admin = self.cluster.member_client(shard).admin
        admin.command("configureFailPoint", "failCommand", mode=mode, data=data)
        self.addCleanup(admin.command, "configureFailPoint", "failCommand", mode="off")

    def test_a_shard_that_stops_tells_the_driver_to_try_again(self):
        error = {"code": 91, "codeName": "ShutdownInProgress", "errmsg": "the server is in quiesce mode and will shut down"}
        batches = {
            "insert": {"insert": "c", "documents": [{"_id": 100 + i, "k": i} for i in range(30)]},
            "update": {"update": "c", "updates": [{"q": {"k": i}, "u": {"$inc": {"n": 1}}} for i in range(30)]},
            "delete": {"delete": "c", "deletes": [{"q": {"_id": 100 + i, "k": i}, "limit": 1} for i in range(30)]},
        }
        for name, batch in batches.items():
            for ordered in (False, True):
                self.number += 1
                command = {**batch, "ordered": ordered, "lsid": self.lsid, "txnNumber": Int64(self.number)}
                # More often than the router tries by itself.
                self.inject("shard1", {"times": 9}, failCommands=[name], writeConcernError=error)
                first = self.raw.run(self.db.name, command)
                self.assertEqual(first.get("errorLabels"), ["RetryableWriteError"], (name, ordered, first))
                self.assertIn("shard1", first["writeConcernError"]["errmsg"])
                self.inject("shard1", "off")
                second = self.raw.run(self.db.name, command)
                self.assertNotIn("writeConcernError", second)
                self.assertNotIn("errorLabels", second)
                # Deleted and inserted again, so that each order begins with the same.
                self.assertEqual((first["ok"], second["ok"], second["n"]), (1.0, 1.0, 30), (name, ordered, second))
                if name == "insert" and not ordered:
                    self.pair.sharded.delete_many({"_id": {"$gte": 100}})
                if name == "delete" and not ordered:
                    self.pair.sharded.insert_many(batches["insert"]["documents"])
        self.assertEqual(self.counts(), 30)
        self.assertEqual({d["n"] for d in self.pair.sharded.find()}, {2})

    def test_what_matches_nothing_costs_nothing_more(self):
        def sent():
            shards = [self.cluster.member_client(s["name"]) for s in self.cluster.layout["shards"]]
            commands = [s.admin.command("serverStatus")["metrics"]["commands"] for s in shards]
            return sum(c[name]["total"] for c in commands for name in ("update", "delete", "findAndModify", "find"))

        for command, least in (
            (self.update({"k": 1, "u": "no"}, {"$set": {"v": 1}}), 1),
            ({"delete": "c", "deletes": [{"q": {"k": 1, "u": "no"}, "limit": 1}]}, 1),
            ({"findAndModify": "c", "query": {"k": 1, "u": "no"}, "update": {"$set": {"v": 1}}}, 1),
            (self.update({"_id": "no"}, {"$set": {"v": 1}}), 3),
            ({"delete": "c", "deletes": [{"q": {"_id": "no"}, "limit": 1}]}, 3),
        ):
            before = sent()
            reply = self.raw.run(self.db.name, command)
            self.assertEqual(reply["ok"], 1.0)
            self.assertEqual(reply.get("n", 0), 0)
            self.assertEqual(sent() - before, least, (command, reply))

    def test_multi_is_refused(self):
        self.number += 1
        for command in (
            self.update({"state": "new"}, {"$set": {"v": 1}}, multi=True),
            self.update({"state": "new"}, {"$inc": {"k": 1}}, multi=True),
            {"delete": "c", "deletes": [{"q": {}, "limit": 0}]},
        ):
            reply = self.raw.run(self.db.name, {**command, "lsid": self.lsid, "txnNumber": Int64(self.number)})
            self.assertEqual(reply["writeErrors"][0]["code"], 72, reply)
        self.assertEqual(self.counts(v=1), 0)


class Together(PairCase):
    """Many clients at once."""

    def run_all(self, work, threads=6):
        failures = []

        def guarded(i):
            try:
                work(i)
            except Exception as e:  # noqa: BLE001 - reported by the assertion below
                failures.append(e)

        running = [threading.Thread(target=guarded, args=(i,)) for i in range(threads)]
        for t in running:
            t.start()
        for t in running:
            t.join()
        self.assertEqual(failures, [])

    def test_a_queue_hands_out_every_job_once(self):
        pair, jobs = self.ranged(), 120
        pair.sharded.insert_many([{"_id": i, "k": i % 30, "u": i, "state": "new"} for i in range(jobs)])
        taken, lock = [], threading.Lock()

        def work(i):
            options = {"sort": [("u", 1)]} if i % 2 else {}
            while True:
                job = pair.sharded.find_one_and_update({"state": "new"}, {"$set": {"state": "taken"}, "$inc": {"n": 1}}, **options)
                if job is None:
                    return
                with lock:
                    taken.append(job["_id"])

        self.run_all(work)
        self.assertEqual(sorted(taken), list(range(jobs)))
        self.assertEqual({d["n"] for d in pair.sharded.find()}, {1})

    def test_documents_that_are_moved_by_many(self):
        pair = self.ranged()
        pair.sharded.insert_many([{"_id": i, "k": i, "u": i, "n": 0} for i in range(6)])
        done, lock = [0], threading.Lock()

        def work(i):
            rng = random.Random(i)
            for _ in range(25):
                query = {"_id": rng.randrange(6)} if rng.random() < 0.5 else {"u": rng.randrange(6)}
                result = pair.sharded.update_one(query, {"$inc": {"n": 1}, "$set": {"k": rng.randrange(40)}})
                with lock:
                    done[0] += result.modified_count

        self.run_all(work)
        docs = list(pair.sharded.find())
        self.assertEqual(sorted(d["_id"] for d in docs), list(range(6)))
        self.assertEqual(sum(d["n"] for d in docs), done[0])
        for doc in docs:
            self.assertTrue(pair.owner_has(doc), doc)
        self.assertEqual(list(self.client.config["mosaic.txns"].find()), [])

    def test_upserts_of_one_name_insert_once(self):
        pair = self.ranged()

        def work(i):
            for n in range(20):
                pair.sharded.update_one({"_id": n}, {"$inc": {"n": 1}, "$setOnInsert": {"k": n}}, upsert=True)

        self.run_all(work, 4)
        self.assertEqual([(d["_id"], d["n"]) for d in pair.sharded.find(sort=[("_id", 1)])], [(n, 4) for n in range(20)])
