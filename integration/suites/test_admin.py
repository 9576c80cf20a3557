"""Everyday commands of an operator: about the router, its operations, sessions and log. Shapes are compared with replies
of a genuine mongos (integration/data) where there are any."""

import json
import threading
import time
import unittest

import pymongo
from bson import Int64, json_util
from cluster import ROOT, ClusterCase, Oracle, eventually

RECORDED = [json_util.loads(line) for line in (ROOT / "integration/data/mongos_replies.jsonl").open()]

# Fields of the recorded replies that the router does not have: parts of mongos that are not there.
ABSENT = {
    "buildInfo": {"openssl", "buildEnvironment", "debug", "storageEngines", "gitVersion", "javascriptEngine", "allocator", "modules"},
    "connPoolStats": set(),
    "getCmdLineOpts": {"parsed.net", "parsed.processManagement", "parsed.systemLog"},
    "hostInfo": {"extra.pageSize", "extra.numPages", "extra.maxOpenFiles", "extra.libcVersion"},
    "serverStatus": {
        "network.numSlowDNSOperations", "network.numSlowSSLOperations", "network.tcpFastOpen", "network.compression",
        "network.serviceExecutors", "security", "extra_info.input_blocks", "extra_info.output_blocks",
        "logicalSessionRecordCache", "shardingStatistics.catalogCache",
    },
}  # fmt: skip
# Documents whose names are hosts or shards: the first entry stands for all.
DYNAMIC = {
    "connPoolStats": {"hosts", "replicaSets", "pools"},
    "getShardMap": {"map", "hosts", "connStrings"},
    "fsync": {"all"},
}
# Names of a 6.0 mongos's commands beside those of a mongod: (almost) everything it has of its own.
OF_MONGOS = """abortReshardCollection addShard addShardToZone balancerCollectionStatus balancerStart balancerStatus balancerStop
cleanupReshardCollection clearJumboFlag commitReshardCollection configureCollectionBalancing enableSharding flushRouterConfig
getShardMap getShardVersion isdbgrid listShards mergeChunks moveChunk moveRange movePrimary multicast netstat
refineCollectionShardKey removeShard removeShardFromZone repairShardedCollectionChunksHistory reshardCollection setAllowMigrations
shardCollection split updateZoneKeyRange analyzeShardKey configureQueryAnalyzer checkMetadataConsistency""".split()


def kind(value):
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float, Int64)):
        return "number"
    return type(value).__name__


class Shapes:
    """Compares what a reply must have with what it has."""

    def __init__(self, name):
        self.absent, self.dynamic, self.wrong = ABSENT.get(name, set()), DYNAMIC.get(name, set()), []

    def compare(self, wanted, found, path=""):
        if kind(wanted) != kind(found):
            self.wrong.append(f"{path}: {kind(found)} instead of {kind(wanted)}")
        elif isinstance(wanted, dict):
            if path in self.dynamic:
                wanted, found = {"*": next(iter(wanted.values()))}, {"*": next(iter(found.values()), None)}
            for name, value in wanted.items():
                inner = f"{path}.{name}" if path else name
                if name.startswith("127.0.0.1:") or inner in self.absent:
                    continue
                if name not in found:
                    self.wrong.append(f"{inner} is missing")
                else:
                    self.compare(value, found[name], inner)
        elif isinstance(wanted, list) and wanted and found:
            self.compare(wanted[0], found[0], f"{path}[]")


class Replies(ClusterCase):
    setup = {"shards": 2}

    def admin(self, *args, **kwargs):
        return self.client.admin.command(*args, **kwargs)

    def test_shapes_are_those_of_a_mongos(self):
        self.admin("shardCollection", "gold.h", key={"k": "hashed"})
        self.addCleanup(self.client.drop_database, "gold")
        for row in RECORDED:
            name = next(iter(row["command"]))
            command = {**row["command"], "op": "shard0:123"} if row["command"].get("op") == "sh0:123" else row["command"]
            with self.subTest(command=json_util.dumps(command)):
                try:
                    reply = self.client[row["db"]].command(command)
                except pymongo.errors.OperationFailure as e:
                    reply = e.details
                shapes = Shapes(name)
                shapes.compare(row["reply"], reply)
                self.assertEqual(shapes.wrong, [])
                self.assertEqual(reply["ok"], row["reply"].get("ok", 1.0))

    def test_every_known_command_is_built_or_refused(self):
        with Oracle() as oracle:
            names = set(oracle.client.admin.command("listCommands")["commands"]) | set(OF_MONGOS)
        built = self.admin("listCommands")["commands"]
        silent = []
        for name in sorted(names - set(built)):
            try:
                self.admin({name: 1})
                silent.append(name)
            except pymongo.errors.OperationFailure as e:
                if e.code not in (59, 115):
                    silent.append(f"{name}: {e.code} {e}")
        self.assertEqual(silent, [])
        for name, row in built.items():
            self.assertTrue(row["help"], name)
            self.assertEqual({type(row[k]) for k in ("requiresAuth", "secondaryOk", "adminOnly")}, {bool}, name)

    def test_what_nobody_knows_is_not_found(self):
        error = self.assertFails(59, self.admin, {"nosuch": 1})
        self.assertIn("nosuch", str(error))
        self.assertFails(115, self.admin, {"moveChunk": "a.b", "find": {}, "to": "shard0"})
        self.assertFails(115, self.admin, {"createUser": "x", "pwd": "x", "roles": []})
        self.assertFails("CommandNotSupported", self.admin, "balancerStart")

    def test_about_the_router(self):
        info = self.admin("buildInfo")
        self.assertEqual(info["version"].split(".")[0], "6")
        self.assertEqual(info["versionArray"][:2], [6, 0])
        host = self.admin("hostInfo")
        self.assertGreater(host["system"]["memSizeMB"], 100)
        options = self.admin("getCmdLineOpts")
        self.assertIn("configDB", options["parsed"]["sharding"])
        self.assertRegex(self.admin("whatsmyuri")["you"], r"^127\.0\.0\.1:\d+$")
        pools = self.admin("connPoolStats")
        self.assertEqual(len(pools["replicaSets"]), 2)
        self.assertEqual(self.admin("isMaster")["msg"], "isdbgrid")

    def test_parameters(self):
        everything = self.admin({"getParameter": "*"})
        self.assertIn("cursorTimeoutMillis", everything)
        self.assertIn("logComponentVerbosity", everything)
        detailed = self.admin({"getParameter": {"showDetails": True}, "cursorTimeoutMillis": 1})
        self.assertEqual(detailed["cursorTimeoutMillis"]["settableAtRuntime"], True)
        was = self.admin({"setParameter": 1, "cursorTimeoutMillis": 700000})["was"]
        self.assertEqual(self.admin({"getParameter": 1, "cursorTimeoutMillis": 1})["cursorTimeoutMillis"], 700000)
        self.admin({"setParameter": 1, "cursorTimeoutMillis": was})
        self.assertFails(72, self.admin, {"getParameter": 1, "nope": 1})
        self.assertFails(72, self.admin, {"setParameter": 1, "nope": 1})
        self.assertFails(72, self.admin, {"setParameter": 1})
        self.assertFails(2, self.admin, {"setParameter": 1, "cursorTimeoutMillis": "soon"})
        self.assertFails(20, self.admin, {"setParameter": 1, "localLogicalSessionTimeoutMinutes": 5})
        self.assertFails(13, self.client.test.command, {"getParameter": 1, "logLevel": 1})

    def test_a_field_stands_once_in_a_command(self):
        """As a server has it: 40413, whatever the field."""
        import struct

        import bson
        from rawwire import Raw

        fields = [("find", "c"), ("filter", {}), ("filter", {"a": 1}), ("$db", "t")]
        body = b"".join(bson.encode({k: v})[4:-1] for k, v in fields) + b"\0"
        with Raw(self.cluster.port) as raw:
            reply = raw.run_bytes(struct.pack("<i", len(body) + 4) + body)
        self.assertEqual((reply["ok"], reply["code"]), (0.0, 40413), reply)


class Counters(ClusterCase):
    setup = {"shards": 2}

    def status(self):
        return self.client.admin.command("serverStatus")

    def test_operations_are_counted(self):
        coll = self.shard("c", {"k": "hashed"})
        before = self.status()
        coll.insert_many([{"k": i} for i in range(100)])
        coll.insert_one({"k": 1000})
        self.db.plain.insert_one({})
        coll.update_one({"k": 1}, {"$set": {"a": 1}})
        coll.update_many({}, {"$set": {"a": 2}})
        coll.delete_one({"k": 1})
        list(coll.find(batch_size=30))
        coll.find_one({"k": 5})
        self.db.plain.find_one()
        list(coll.aggregate([{"$match": {"k": 3}}]))
        after = self.status()

        def grown(*path):
            old, new = before, after
            for name in path:
                old, new = old.get(name, {}), new[name]
            return new - (old or 0)

        ops = {name: grown("opcounters", name) for name in ("insert", "query", "update", "delete", "getmore")}
        self.assertEqual(ops, {"insert": 102, "query": 3, "update": 2, "delete": 1, "getmore": 3})
        self.assertGreaterEqual(grown("opcounters", "command"), 1)
        hosts = lambda op: {k: grown("shardingStatistics", "numHostsTargeted", op, k) for k in after["shardingStatistics"]["numHostsTargeted"][op]}
        self.assertEqual(hosts("insert"), {"allShards": 1, "manyShards": 0, "oneShard": 1, "unsharded": 1})
        self.assertEqual(hosts("update"), {"allShards": 1, "manyShards": 0, "oneShard": 1, "unsharded": 0})
        self.assertEqual(hosts("delete"), {"allShards": 0, "manyShards": 0, "oneShard": 1, "unsharded": 0})
        self.assertEqual(hosts("find"), {"allShards": 1, "manyShards": 0, "oneShard": 1, "unsharded": 1})
        self.assertEqual(hosts("aggregate")["oneShard"], 1)
        self.assertEqual(grown("metrics", "commands", "insert", "total"), 3)
        self.assertEqual(grown("metrics", "cursor", "totalOpened"), 1)
        self.assertEqual(grown("metrics", "cursor", "moreThanOneBatch"), 1)
        self.assertEqual(grown("metrics", "cursor", "lifespan", "lessThan1Second"), 1)
        for name in ("bytesIn", "bytesOut", "physicalBytesIn", "physicalBytesOut", "numRequests"):
            self.assertGreater(grown("network", name), 0, name)
        self.assertGreater(after["uptimeMillis"], before["uptimeMillis"])
        self.assertGreater(after["mem"]["resident"], 0)

    def test_failures_are_counted(self):
        """Also those that a shard reports in a reply that is passed on as it is."""
        self.db.c.insert_one({})
        before = self.status()
        self.assertFails(2, self.db.command, "find", "c", filter={"$bad": 1})
        self.assertFails(59, self.db.command, "nosuch")
        failing = {"insert": "c", "documents": [{}], "writeConcern": {"w": "nosuchmode"}, "bypassDocumentValidation": "x"}
        with self.assertRaises(pymongo.errors.OperationFailure):
            self.db.command(failing)
        after = self.status()
        failed = lambda status, name: status["metrics"]["commands"][name]["failed"]
        self.assertEqual(failed(after, "find") - failed(before, "find"), 1)
        self.assertEqual(failed(after, "insert") - failed(before, "insert"), 1)
        unknown = lambda status: status["metrics"]["commands"]["<UNKNOWN>"]
        self.assertEqual(unknown(after) - unknown(before), 1)
        self.assertEqual(after["asserts"]["user"] - before["asserts"]["user"], 3)

    def test_open_cursors_and_connections(self):
        self.db.c.insert_many([{} for _ in range(10)])
        before = self.status()
        cursor = self.db.c.find(batch_size=2)
        next(cursor)
        now = self.status()["metrics"]["cursor"]["open"]
        self.assertEqual(now["total"] - before["metrics"]["cursor"]["open"]["total"], 1)
        self.assertEqual(now["singleTarget"] - before["metrics"]["cursor"]["open"]["singleTarget"], 1)
        cursor.close()
        eventually(lambda: self.status()["metrics"]["cursor"]["open"]["total"] == before["metrics"]["cursor"]["open"]["total"])
        with pymongo.MongoClient("127.0.0.1", self.cluster.port) as other:
            other.admin.command("ping")
            self.assertGreater(self.status()["connections"]["totalCreated"], before["connections"]["totalCreated"])
            self.assertGreater(self.status()["connections"]["current"], before["connections"]["current"])

    def test_sections_can_be_left_out(self):
        status = self.client.admin.command({"serverStatus": 1, "metrics": 0, "opcounters": 0})
        self.assertNotIn("metrics", status)
        self.assertNotIn("opcounters", status)
        self.assertIn("connections", status)


class TheLog(ClusterCase):
    setup = {"shards": 2}

    def lines(self, message):
        lines = (json.loads(line) for line in self.client.admin.command("getLog", "global")["log"])
        return [line for line in lines if line["msg"] == message]

    def slow(self, comment):
        return [line for line in self.lines("Slow query") if line["attr"]["command"].get("comment") == comment]

    def test_slow_operations_have_a_line(self):
        coll = self.shard("c", {"k": "hashed"})
        coll.insert_many([{"k": i} for i in range(20)])
        list(coll.find({"$where": "sleep(20); return true"}, comment="slow find"))
        list(coll.find({"k": 3}, comment="quick find"))
        self.assertEqual(self.slow("quick find"), [])
        (line,) = self.slow("slow find")
        self.assertEqual((line["s"], line["c"], line["id"]), ("I", "COMMAND", 51803))
        self.assertRegex(line["ctx"], r"^conn\d+$")
        attr = line["attr"]
        self.assertEqual(attr["ns"], f"{self.db.name}.c")
        self.assertEqual((attr["type"], attr["nShards"], attr["nreturned"], attr["cursorExhausted"]), ("command", 2, 20, True))
        self.assertEqual((attr["protocol"], attr["routeReason"]), ("op_msg", "NotSelective"))
        self.assertGreaterEqual(attr["durationMillis"], 100)
        self.assertGreaterEqual(attr["durationMillis"], attr["remoteOpWaitMillis"])
        self.assertGreater(attr["remoteOpWaitMillis"], 50)
        self.assertRegex(attr["remote"], r"^127\.0\.0\.1:\d+$")

    def test_the_threshold_can_be_changed(self):
        self.assertEqual(self.db.command("profile", -1)["slowms"], 100)
        self.assertEqual(self.db.command({"profile": 0, "slowms": 0})["slowms"], 100)
        self.addCleanup(self.db.command, {"profile": 0, "slowms": 100, "sampleRate": 1.0})
        self.db.c.insert_many([{"_id": i, "long": "x" * 5000} for i in range(100)], comment="many")
        (line,) = self.slow("many")
        shown = line["attr"]["command"]["documents"]
        self.assertLess(len(shown), 12)
        self.assertIn("(5000 bytes)", shown[0]["long"])
        self.assertEqual((line["attr"]["ninserted"], line["attr"]["routeReason"]), (100, "Unsharded"))
        self.assertFails(2, self.db.command, "find", "c", filter={"$bad": 1}, comment="bad")
        (line,) = self.slow("bad")
        self.assertEqual((line["attr"]["ok"], line["attr"]["errCode"], line["attr"]["errName"]), (0, 2, "BadValue"))
        list(self.db.c.find(batch_size=30, comment="batches"))
        first, second = self.slow("batches")[0]["attr"], [x["attr"] for x in self.lines("Slow query") if "getMore" in x["attr"]["command"]][0]
        self.assertEqual(first["cursorid"], second["cursorid"])
        self.assertEqual(second["originatingCommand"]["comment"], "batches")
        self.db.command({"profile": 0, "sampleRate": 0.0})
        self.db.c.find_one({}, comment="not sampled")
        self.assertEqual(self.slow("not sampled"), [])
        for bad, code in (({"profile": 2}, 2), ({"profile": 0, "slowms": "x"}, 14), ({"profile": 0, "sampleRate": 2.0}, 2), ({"profile": "x"}, 14)):
            self.assertFails(code, self.db.command, bad)
        self.assertFails(115, self.db.command, {"profile": 0, "filter": {"millis": {"$gt": 5}}})

    def test_verbosity_by_component(self):
        admin = self.client.admin
        levels = lambda: admin.command({"getParameter": 1, "logComponentVerbosity": 1})["logComponentVerbosity"]
        self.assertEqual((levels()["verbosity"], levels()["command"]), (0, {"verbosity": -1}))
        self.db.c.find_one({}, comment="before")
        was = admin.command({"setParameter": 1, "logComponentVerbosity": {"command": {"verbosity": 1}, "storage": {"journal": 2}}})["was"]
        self.addCleanup(admin.command, {"setParameter": 1, "logComponentVerbosity": {"verbosity": 0, "command": -1}})
        self.assertEqual(was["command"], {"verbosity": -1})
        self.assertEqual((levels()["command"], levels()["storage"]["journal"]), ({"verbosity": 1}, {"verbosity": 2}))
        self.db.c.find_one({}, comment="after")
        self.assertEqual((len(self.slow("before")), len(self.slow("after"))), (0, 1))
        admin.command({"setParameter": 1, "logComponentVerbosity": {"verbosity": 1}})
        self.assertEqual(admin.command({"getParameter": 1, "logLevel": 1})["logLevel"], 1)
        admin.command({"setParameter": 1, "logLevel": 0})
        self.assertEqual(levels()["verbosity"], 0)
        set = lambda value: lambda: admin.command({"setParameter": 1, "logComponentVerbosity": value})
        self.assertFails(2, set({"nope": {"verbosity": 1}}))
        self.assertFails(2, set({"command": {"verbosity": "x"}}))
        self.assertFails(14, set(3))

    def test_get_log(self):
        admin = self.client.admin
        self.assertEqual(admin.command("getLog", "*")["names"], ["global", "startupWarnings"])
        for name in ("global", "startupWarnings"):
            log = admin.command("getLog", name)
            self.assertGreaterEqual(log["totalLinesWritten"], len(log["log"]))
        for line in admin.command("getLog", "global")["log"]:
            line = json.loads(line)
            self.assertLessEqual({"t", "s", "c", "id", "ctx", "msg"}, set(line))
        self.assertFails(14, admin.command, "getLog", 1)
        self.assertFails(96, admin.command, "getLog", "nope")


class Operations(ClusterCase):
    setup = {"shards": 2}

    def background(self, call):
        outcome = []

        def run():
            try:
                outcome.append(call())
            except pymongo.errors.PyMongoError as e:
                outcome.append(e)

        thread = threading.Thread(target=run)
        thread.start()
        return thread, outcome

    def test_an_operation_of_a_shard_is_shown_and_killed(self):
        coll = self.shard("c", {"k": "hashed"})
        coll.insert_many([{"k": i} for i in range(10)])
        thread, outcome = self.background(lambda: list(coll.find({"$where": "while (true) sleep(50)"}, comment="endless")))
        find = lambda: [op for op in self.client.admin.command("currentOp", **{"command.comment": "endless"})["inprog"]]
        ops = eventually(lambda: len(find()) == 2 and find(), what="both shards' operations")
        self.assertEqual({op["opid"].split(":")[0] for op in ops}, {"shard0", "shard1"})
        self.assertEqual({op["shard"] for op in ops}, {"shard0", "shard1"})
        for op in ops:
            reply = self.client.admin.command("killOp", op=op["opid"])
            self.assertEqual((reply["shard"], reply["shardid"]), (op["shard"], int(op["opid"].split(":")[1])))
        thread.join(30)
        self.assertIsInstance(outcome[0], pymongo.errors.OperationFailure)
        self.assertEqual(outcome[0].code, 11601)
        self.assertFails(28625, self.client.admin.command, "killOp", op="nonsense")
        self.assertFails(70, self.client.admin.command, "killOp", op="nope:1")

    def test_an_operation_of_the_router_is_shown_and_killed(self):
        self.db.c.insert_one({})
        thread, outcome = self.background(lambda: list(self.db.c.find({"$where": "while (true) sleep(50)"}, comment="endless too")))
        stages = [{"$currentOp": {"localOps": True}}, {"$match": {"command.comment": "endless too"}}]
        (op,) = eventually(lambda: list(self.client.admin.aggregate(stages)), what="the router's operation")
        self.assertIsInstance(op["opid"], int)
        self.assertEqual(op["ns"], f"{self.db.name}.c")
        self.client.admin.command("killOp", op=op["opid"])
        thread.join(30)
        self.assertEqual(outcome[0].code, 11601)

    def test_explain_tells_the_reason_of_the_route(self):
        coll = self.shard("c", {"k": "hashed"})
        coll.insert_many([{"k": i, "v": i % 3} for i in range(50)])
        commands = [
            ({"find": "c", "filter": {"k": 5}}, "EqualityOnShardKey", "SINGLE_SHARD"),
            ({"find": "c", "filter": {"v": 1}}, "NoShardKey", "SHARD_MERGE"),
            ({"count": "c", "query": {"v": 1}}, "NoShardKey", "SHARD_MERGE"),
            ({"distinct": "c", "key": "v", "query": {"k": {"$gt": 4}}}, "HashedRange", "SHARD_MERGE"),
            ({"update": "c", "updates": [{"q": {"k": 5}, "u": {"$set": {"z": 1}}}]}, "EqualityOnShardKey", "SHARD_WRITE"),
            ({"delete": "c", "deletes": [{"q": {"v": 1}, "limit": 0}]}, "NoShardKey", "SHARD_WRITE"),
            ({"findAndModify": "c", "query": {"k": 5}, "update": {"$set": {"z": 1}}}, "EqualityOnShardKey", "SHARD_WRITE"),
        ]
        for command, reason, stage in commands:
            for verbosity in ("queryPlanner", "executionStats", "allPlansExecution"):
                with self.subTest(command=command, verbosity=verbosity):
                    plan = self.db.command("explain", command, verbosity=verbosity)
                    self.assertEqual(plan["mosaic"]["reason"], reason)
                    self.assertEqual(plan["queryPlanner"]["winningPlan"]["stage"], stage)
                    self.assertEqual("executionStats" in plan, verbosity != "queryPlanner")
                    self.assertEqual(len(plan["queryPlanner"]["winningPlan"]["shards"]), len(plan["mosaic"]["shards"]))
        self.assertEqual(coll.count_documents({}), 50)
        self.assertEqual(coll.count_documents({"z": 1}), 0)

    def test_sessions(self):
        admin = self.client.admin
        started = admin.command("startSession")
        self.assertEqual(started["timeoutMinutes"], 30)
        id = {"id": started["id"]["id"]}
        admin.command({"refreshSessions": [id]})
        self.db.c.insert_many([{} for _ in range(10)])

        for kill in ("killSessions", "endSessions", "killAllSessions"):
            with self.subTest(kill=kill), self.client.start_session() as session:
                cursor = self.db.c.find(batch_size=2, session=session)
                next(cursor)
                next(cursor)
                admin.command({kill: [] if kill == "killAllSessions" else [session.session_id]})
                self.assertFails(43, next, cursor)

    def test_fsync_and_its_lock(self):
        admin = self.client.admin
        self.db.c.insert_one({"_id": 1})
        self.assertEqual(set(admin.command("fsync")["all"]), {"shard0", "shard1"})
        locked = admin.command("fsync", lock=True)
        try:
            self.assertEqual({r["lockCount"] for r in locked["all"].values()}, {1})
            thread, outcome = self.background(lambda: self.db.c.insert_one({"_id": 2}))
            thread.join(0.5)
            self.assertTrue(thread.is_alive(), outcome)
        finally:
            unlocked = admin.command("fsyncUnlock")
        self.assertEqual((unlocked["lockCount"], {r["lockCount"] for r in unlocked["all"].values()}), (0, {0}))
        thread.join(30)
        self.assertEqual(self.db.c.count_documents({}), 2)
        self.assertFails(20, admin.command, "fsyncUnlock")
        self.assertFails(13, self.db.command, "fsync")

    def test_the_balancer_is_off_and_says_so(self):
        admin = self.client.admin
        status = admin.command("balancerStatus")
        self.assertEqual((status["mode"], status["inBalancerRound"]), ("off", False))
        stored = lambda: self.client.config.settings.find_one({"_id": "balancer"})
        eventually(lambda: stored() == {"_id": "balancer", "mode": "off", "stopped": True})
        self.client.config.settings.update_one({"_id": "balancer"}, {"$set": {"activeWindow": {"start": "1:00", "stop": "2:00"}}})
        admin.command("balancerStop")
        self.assertEqual(stored()["activeWindow"], {"start": "1:00", "stop": "2:00"})
        self.assertFails(115, admin.command, "balancerStart")


class FailCommand(ClusterCase):
    setup = {"shards": 2}

    def fail(self, mode, **data):
        self.addCleanup(self.client.admin.command, "configureFailPoint", "failCommand", mode="off")
        return self.client.admin.command("configureFailPoint", "failCommand", mode=mode, data=data)

    def test_error_codes_and_how_often(self):
        self.fail({"times": 2}, failCommands=["ping"], errorCode=89)
        for _ in range(2):
            error = self.assertFails(89, self.db.command, "ping")
        # As on a mongod, only retryable writes get the label.
        self.assertFalse(error.has_error_label("RetryableWriteError"))
        self.db.command("ping")
        self.fail({"skip": 1}, failCommands=["ping"], errorCode=8)
        self.db.command("ping")
        self.assertFails(8, self.db.command, "ping")
        self.fail("off")
        self.db.command("ping")

    def test_labels(self):
        self.fail("alwaysOn", failCommands=["ping"], errorCode=8, errorLabels=["Mine"])
        self.assertEqual(self.assertFails(8, self.db.command, "ping").details["errorLabels"], ["Mine"])

    def test_a_retryable_write_is_tried_again(self):
        self.fail({"times": 1}, failCommands=["insert"], errorCode=89)
        self.db.c.insert_one({"_id": 1})
        self.fail({"times": 1}, failCommands=["insert"], closeConnection=True)
        self.db.c.insert_one({"_id": 2})
        self.assertEqual(self.db.c.count_documents({}), 2)

    def test_write_concern_errors(self):
        self.fail({"times": 1}, failCommands=["insert"], writeConcernError={"code": 64, "errmsg": "slow"})
        with self.assertRaises(pymongo.errors.WriteConcernError):
            self.db.c.insert_one({"_id": 1})
        self.assertEqual(self.db.c.count_documents({}), 1)

    def test_blocking(self):
        self.fail({"times": 1}, failCommands=["ping"], blockConnection=True, blockTimeMS=300)
        began = time.monotonic()
        self.db.command("ping")
        self.assertGreater(time.monotonic() - began, 0.29)

    def test_only_one_application(self):
        self.fail("alwaysOn", failCommands=["ping"], errorCode=8, appName="victim")
        self.db.command("ping")
        with pymongo.MongoClient("127.0.0.1", self.cluster.port, appname="victim") as victim:
            self.assertFails(8, victim.admin.command, "ping")


if __name__ == "__main__":
    unittest.main()
