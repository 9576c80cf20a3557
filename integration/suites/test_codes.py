"""What is wrong with a command is said as a server says it: the same raw commands go to one mongod and to the router, on an
unsharded collection, one sharded on one shard and one on two; ok, code, codeName, labels and the numbers must agree.

A case is one line: a command in which C stands for the collection, S for a new session. OURS is what is meant to be otherwise.
"""

import datetime
import time

import bson
import pymongo
from bson import Decimal128, Int64
from cluster import ClusterCase, Oracle
from pairs import spread
from rawwire import Raw, session


class Blank:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name


C, S = Blank("C"), Blank("S")
BIG = Int64(2**31)
LSID = session()


def fill(value, name):
    if value is C:
        return name
    if value is S:
        return session()
    if isinstance(value, dict):
        return {key: fill(v, name) for key, v in value.items()}
    if isinstance(value, list):
        return [fill(v, name) for v in value]
    return value


def with_each(commands, field, values):
    """Each command with each value of a field."""
    return [{**command, field: value} for command in commands for value in values]


FIND = {"find": C}
COUNT = {"count": C}
DISTINCT = {"distinct": C, "key": "a"}
AGGREGATE = {"aggregate": C, "pipeline": [], "cursor": {}}
INSERT = {"insert": C, "documents": [{"k": 100}]}
UPDATE = {"update": C, "updates": [{"q": {"k": 1}, "u": {"$set": {"x": 1}}}]}
UPDATE_ALL = {"update": C, "updates": [{"q": {}, "u": {"$set": {"x": 1}}, "multi": True}]}
DELETE = {"delete": C, "deletes": [{"q": {"k": 100}, "limit": 1}]}
DELETE_ALL = {"delete": C, "deletes": [{"q": {"nope": 1}, "limit": 0}]}
MODIFY = {"findAndModify": C, "query": {"k": 1}, "update": {"$set": {"x": 1}}}
GET_MORE = {"getMore": Int64(77), "collection": C}
KILL = {"killCursors": C, "cursors": [Int64(77)]}
CREATE_INDEXES = {"createIndexes": C, "indexes": [{"key": {"k": 1}, "name": "k_1"}]}
LIST_INDEXES = {"listIndexes": C}
COLL_MOD = {"collMod": C, "validationLevel": "strict"}
DROP_INDEXES = {"dropIndexes": C, "index": "none"}
DROP = {"drop": C}
CREATE = {"create": C}
PING = {"ping": 1}
EXPLAIN = {"explain": {"find": C}}
READS = [FIND, COUNT, DISTINCT, AGGREGATE]
WRITES = [INSERT, UPDATE, UPDATE_ALL, DELETE, DELETE_ALL, MODIFY]
DDL = [CREATE_INDEXES, LIST_INDEXES, COLL_MOD, DROP_INDEXES]
NUMBERS = [Decimal128("9000"), Decimal128("9000.5"), Decimal128("-1"), Decimal128("NaN"), 5000.0, 9000.5, -1.5, "x", -1, BIG,
           Int64(2**31 - 1), float("nan"), float("inf"), None, True, {}, [], 0, Int64(2**62), -0.0]  # fmt: skip
KINDS = [None, 1, 1.5, "x", True, {}, {"a": 1}, [], [1]]

TABLES = {
    "max_time": with_each([PING, *READS, INSERT, UPDATE, DELETE, MODIFY, LIST_INDEXES], "maxTimeMS", NUMBERS),
    "names": [
        {**command, next(iter(command)): value}
        for command in [*READS, *WRITES, KILL, *DDL, DROP, CREATE]
        for value in [1, 1.0, 2, None, True, {}, {"a": 1}, [], bson.ObjectId(b"0" * 12), ""]
    ]
    + [{**GET_MORE, "collection": v} for v in [1, None, {}, ""]] + [{**GET_MORE, "getMore": v} for v in [1, 1.5, None, "x", {}, Int64(0), Int64(-5)]],
    "write_concern": with_each([*WRITES, CREATE_INDEXES, {**AGGREGATE, "pipeline": [{"$out": "elsewhere"}]}], "writeConcern",
        [None, {}, {"a": 1}, "x", 1, [], {"w": "nope"}, {"w": -1}, {"w": 1.5}, {"w": 0}, {"w": 0.5}, {"w": 51}, {"w": True}, {"w": None}, {"w": {}},
         {"j": 1}, {"j": "x"}, {"wtimeout": "x"}, {"w": 1, "wtimeout": 2**40}, {"w": {"a": 1}}, {"w": {"a": "x"}}, {"provenance": "x"}, {"w": 1, "wtimeout": -1}, {"w": 1, "wtimeout": 1.5}, {"w": ""}, {"w": "majority", "j": True},
         {"w": 1, "fsync": True}, {"w": 1, "fsync": True, "j": True}, {"w": Decimal128("1")}]),
    "read_write_concern": with_each([*READS, PING, LIST_INDEXES], "writeConcern", [None, {}, {"w": 1}, "x"]),
    "read_concern": with_each([*READS, *WRITES, LIST_INDEXES, PING, EXPLAIN], "readConcern",
        [None, {}, {"level": 1}, {"level": "x"}, {"level": ""}, {"level": None}, "x", 1, [], {"a": 1}, {"level": "local"},
         {"level": "linearizable"}, {"level": "snapshot"}, {"afterClusterTime": 1}, {"atClusterTime": bson.Timestamp(1, 1)},
         {"level": "snapshot", "atClusterTime": 5}, {"level": "majority", "afterClusterTime": bson.Timestamp(0, 0)},
         {"provenance": "x"}, {"provenance": "clientSupplied"}]),
    "aggregate": with_each([{"aggregate": C, "pipeline": []}], "cursor", [*KINDS, {"batchSize": None}, {"batchSize": "x"}, {"batchSize": -1},
            {"batchSize": 1.5}, {"batchSize": Decimal128("2")}, {"batchSize": 0}])
        + [{"aggregate": C, "pipeline": []}, {"aggregate": C}, {"aggregate": C, "cursor": {}}, {"aggregate": 1, "pipeline": [], "cursor": {}}]
        + with_each([{"aggregate": C, "cursor": {}}], "pipeline", [None, 1, "x", {}, {"0": {"$match": {}}}, [1], [{}], [None], [{"a": 1}], [{"$match": {}, "$limit": 1}]])
        + [{**AGGREGATE, f: v} for f in ["allowDiskUse", "bypassDocumentValidation", "hint", "collation", "let", "explain", "comment", "isMapReduceCommand"]
           for v in [None, 1, "x", {}, {"a": 1}, []]]
        + with_each([AGGREGATE], "needsMerge", [None, False, 0, "x", {}]) + with_each([AGGREGATE], "fromMongos", [None, False, 0, "x", {}])
        + with_each([AGGREGATE], "exchange", [None, 1, {}]),
    "find": [{**FIND, f: v} for f in ["filter", "sort", "projection", "hint", "skip", "limit", "batchSize", "singleBatch", "tailable", "awaitData",
            "allowPartialResults", "noCursorTimeout", "returnKey", "showRecordId", "min", "max", "let", "collation", "comment", "oplogReplay",
            "allowDiskUse", "ntoreturn"] for v in KINDS]
        + with_each([FIND], "limit", NUMBERS) + with_each([FIND], "skip", NUMBERS) + with_each([FIND], "batchSize", NUMBERS),
    "count": [{**COUNT, f: v} for f in ["query", "hint", "collation", "fields", "comment"] for v in KINDS]
        + with_each([COUNT], "limit", NUMBERS) + with_each([COUNT], "skip", NUMBERS),
    "distinct": [{**DISTINCT, f: v} for f in ["query", "key", "collation", "comment", "hint"] for v in KINDS] + [{"distinct": C}, {"distinct": C, "key": ""}, {"distinct": C, "key": "a\0b"}],
    "write_arguments": [{**c, f: v} for c in WRITES[:5] for f in ["ordered", "bypassDocumentValidation", "let", "stmtId", "stmtIds", list(c)[1]] for v in KINDS
            if not (f in ("stmtId", "stmtIds") and v in (1, 1.5, True, []))]
        + [{"insert": C}, {"update": C}, {"delete": C}]
        + [{"insert": C, "documents": [v]} for v in [None, 1, "x", []]]
        + [{"update": C, "updates": [v]} for v in [None, {}, {"q": 1, "u": {}}, {"q": {}}, {"q": {}, "u": 1}, {"q": {}, "u": None}, {"q": {}, "u": {}, "nope": 1}]]
        + [{"update": C, "updates": [{"q": {"k": 1}, "u": {"$set": {"x": 2}}, f: v}]} for f in ["multi", "upsert", "hint", "collation", "c", "arrayFilters"] for v in KINDS]
        + [{"delete": C, "deletes": [v]} for v in [None, {}, {"q": 1, "limit": 1}, {"q": {}}, {"q": {"k": 99}, "limit": 2}, {"q": {"k": 99}, "limit": "x"}, {"q": {"k": 99}, "limit": 1, "nope": 1}]]
        + [{"delete": C, "deletes": [{"q": {"k": 99}, "limit": 1, f: v}]} for f in ["hint", "collation"] for v in KINDS],
    "find_and_modify": [{**MODIFY, f: v} for f in ["query", "sort", "remove", "update", "new", "fields", "upsert", "collation", "hint", "arrayFilters", "let",
            "bypassDocumentValidation"] for v in KINDS if not (f in ("update",) and v in ({}, {"a": 1}))] + [{"findAndModify": C}, {"findAndModify": C, "query": {}}],
    "transactions": [
        {**c, "lsid": S, **f} if lsid else {**c, **f}
        for c in [FIND, INSERT, PING, COUNT]
        for lsid in (True, False)
        for f in [{"autocommit": v} for v in [None, False, 0, True, "x"]]
            + [{"startTransaction": v} for v in [None, False, True, 0, "x"]]
            + [{"txnNumber": v} for v in [1, 1.5, None, "x", True, Int64(-1), Int64(1), {}]]
            + [{"txnNumber": Int64(1), "autocommit": v} for v in [None, 0, True, "x"]]
            + [{"txnNumber": Int64(1), "startTransaction": v} for v in [True, False]]
            + [{"txnNumber": Int64(1), "startTransaction": v, "autocommit": False} for v in [False, 1, None, "x"]]
            + [{"txnNumber": Int64(1), "startTransaction": True, "autocommit": True}]
    ],
    "lsid": with_each([FIND, INSERT, PING, AGGREGATE], "lsid", [None, 1, "x", {}, [], {"id": 1}, {"id": None}, {"id": "x"}, {"id": bson.Binary(b"1" * 16, 3)},
        {"id": bson.Binary(b"1" * 15, 4)}, {"id": bson.Binary(b"1" * 16)}, {**LSID, "nope": 1}, {**LSID, "uid": bson.Binary(b"1" * 32)}, {**LSID, "uid": 1},
        {**LSID, "txnNumber": Int64(1)}, {**LSID, "txnUUID": bson.Binary(b"1" * 16, 4)}, {**LSID, "id2": 1}]),
    "read_preference": with_each([*READS, PING, INSERT], "$readPreference", [None, 1, "primary", {}, [], {"mode": 1}, {"mode": "x"}, {"mode": None}, {"mode": "Primary"},
        {"mode": "nearest", "tags": 1}, {"mode": "nearest", "tags": [1]}, {"mode": "nearest", "tags": [{"a": 1}]}, {"mode": "primary", "tags": [{"a": "b"}]},
        {"mode": "nearest", "maxStalenessSeconds": 1}, {"mode": "nearest", "maxStalenessSeconds": -5}, {"mode": "nearest", "maxStalenessSeconds": "x"},
        {"mode": "nearest", "maxStalenessSeconds": 1.5}, {"mode": "nearest", "maxStalenessSeconds": 2**40}, {"mode": "primary", "maxStalenessSeconds": 100},
        {"mode": "nearest", "hedge": 1}, {"mode": "nearest", "hedge": {"a": 1}}, {"mode": "primary", "hedge": {"enabled": True}}, {"mode": "nearest", "nope": 1}]),
    "cursors": [{**GET_MORE, "batchSize": v} for v in NUMBERS] + [{**GET_MORE, "maxTimeMS": v} for v in [1, "x", -1]] + [GET_MORE, KILL, {"killCursors": C}]
        + [{"killCursors": C, "cursors": v} for v in [None, 1, [], [Int64(5), None], [1], [1.5], ["x"], [None], {}, [Int64(5), 5]]] + [{**KILL, "nope": 1}, {**GET_MORE, "nope": 1}, {"getMore": Int64(5)}],
    "unknown_fields": [{**c, "nope": 1} for c in [*READS, *WRITES, GET_MORE, KILL, *DDL, CREATE, PING, DROP | {"drop": "absent"}]]
        + [{**c, "runtimeConstants": v} for c in [*READS, *WRITES] for v in [None, 1, {}, {"localNow": datetime.datetime(2020, 1, 1), "clusterTime": bson.Timestamp(1, 1)}]]
        + [{**c, "legacyRuntimeConstants": v} for c in [*READS, *WRITES] for v in [None, 1, {}, {"localNow": datetime.datetime(2020, 1, 1), "clusterTime": bson.Timestamp(1, 1)}]]
        + [{**c, "$nope": 1} for c in [*READS, *WRITES, PING]],
    "fields_of_other_commands": [{**c, "nope": 1} for c in [{"buildInfo": 1}, {"whatsmyuri": 1}, {"connectionStatus": 1}, {"endSessions": []}, {"refreshSessions": []},
        {"dropDatabase": 1}, {"listCollections": 1}, {"dbStats": 1}, {"startSession": 1}]] + [{**c, "writeConcern": {"w": 1}} for c in [{"buildInfo": 1}, {"listCollections": 1}, GET_MORE, LIST_INDEXES]],
    "null_statements": [{"insert": C, "documents": [None, {"k": 50}]}, {"update": C, "updates": [None, {"q": {"k": 1}, "u": {"$set": {"x": 5}}}]},
        {"delete": C, "deletes": [None, {"q": {"k": 50}, "limit": 0}, None]}, {"update": C, "updates": [None, {"q": {}, "u": {"$set": {"x": 6}}, "multi": True}]}],
    "command_names": [{n: 1} for n in ["nope", "Ping", "PING", "pinG", "FIND", "Find", "", "$find", "find ", "aggregate\u00e4", "findandmodify", "collstats", "ISMASTER"]]
        + [{"FindAndModify": C}, {"Count": C}, {"Insert": C, "documents": [{"k": 1}]}],
    "cluster_time": with_each([PING, FIND], "$clusterTime", [None, 1, {}, "x", {"clusterTime": 1}, {"clusterTime": bson.Timestamp(1, 1)}, {"clusterTime": None},
        {"clusterTime": bson.Timestamp(1, 1), "signature": 1}, {"clusterTime": bson.Timestamp(1, 1), "signature": {}},
        {"clusterTime": bson.Timestamp(1, 1), "signature": {"hash": bson.Binary(b"\0" * 20), "keyId": Int64(0)}},
        {"clusterTime": bson.Timestamp(1, 1), "signature": {"hash": bson.Binary(b"\0" * 20), "keyId": Int64(5)}},
        {"clusterTime": bson.Timestamp(1, 1), "signature": {"hash": bson.Binary(b"\0" * 19), "keyId": Int64(0)}},
        {"clusterTime": bson.Timestamp(1, 1), "signature": {"hash": bson.Binary(b"\1" * 20), "keyId": Int64(0)}},
        {"clusterTime": bson.Timestamp(2**31 + 2**30, 1), "signature": {"hash": bson.Binary(b"\0" * 20), "keyId": Int64(0)}}]),
    "api": [{**FIND, **f} for f in [{"apiVersion": "1"}, {"apiVersion": "2"}, {"apiVersion": 1}, {"apiStrict": True}, {"apiVersion": "1", "apiStrict": 1}, {"apiVersion": None},
        {"apiVersion": "1", "apiStrict": True}, {"apiVersion": "1", "apiStrict": True, "nope": 1}, {"apiDeprecationErrors": True}]] + [{**DISTINCT, "apiVersion": "1", "apiStrict": True}],
}  # fmt: skip



ADMIN = [
    *({"configureFailPoint": "failCommand", "mode": mode, "data": {"failCommands": ["x"], "errorCode": 5}}
      for mode in [{"times": -1}, {"times": 0}, {"times": 1}, {"times": "x"}, {"times": 1.5}, {"times": Int64(2**40)}, {"times": None}, {"skip": -1}, {"skip": "x"},
                   {"skip": 0}, {"skip": 1.7}, {"activationProbability": 2}, {"activationProbability": -0.5}, {"activationProbability": "x"},
                   {"activationProbability": 1}, {}, {"nope": 1}, {"times": 1, "skip": 1}, 5, "nope", "alwaysOn", None, [], True, "off"]),
    *({"configureFailPoint": name, "mode": "off"} for name in ["nope", 1, "", None]),
    {"configureFailPoint": "failCommand"}, {"configureFailPoint": "failCommand", "mode": "off", "data": 1},
    {"configureFailPoint": "failCommand", "mode": "off", "data": None},
    *({**c, "nope": 1} for c in [{"listDatabases": 1}, {"getLog": "global"}, {"hostInfo": 1}, {"setDefaultRWConcern": 1}, {"getDefaultRWConcern": 1},
                                 {"renameCollection": "a.b", "to": "a.c"}, {"serverStatus": 1}]),
    {"listDatabases": 1, "writeConcern": {"w": 1}},
]  # fmt: skip

WHOLE = [
    {}, {"ping": 1}, {"ping": 1, "$db": 1}, {"ping": 1, "$db": ""}, {"ping": 1, "$db": None}, {"$db": "t"}, {"$db": "t", "ping": 1}, {"ping": 1, "$db": "a.b"},
    {"ping": 1, "$db": "a b"}, {"ping": 1, "$db": "x" * 64}, {"find": "c", "$db": ""}, {"find": "c"}, {"find": "c", "$db": 5}, {"nope": 1, "$db": 1}, {"nope": 1},
    {"": 1, "$db": "t"}, {"ping": 1, "$db": "t", "$db2": 1}, {"find": "c", "$db": "a/b"}, {"ping": 1, "$db": "$external"}, {"find": "c", "$db": "$external"},
]  # fmt: skip

RUNTIME = {"find": 51202, "aggregate": 51143, "update": 51195, "delete": 51195, "findAndModify": 51196}


def ours(command, coll):
    """What the router must answer where that is not what a mongod answers: (code, code of the write concern error)."""
    name = next(iter(command), None)
    tags = (command.get("$readPreference") or {}) if isinstance(command.get("$readPreference"), dict) else {}
    concern = command.get("writeConcern")
    if command.get("runtimeConstants") is not None and name in RUNTIME:
        return RUNTIME[name], None  # as a mongos
    if command.get("exchange") is not None:
        return 51028, None  # as a mongos
    if "isMapReduceCommand" in command:
        return 40415, None  # a mongos is only told such things by servers
    if tags.get("tags") in ([1], [{"a": 1}]):
        return 14, None  # no member can ever match
    if command.get("autocommit") is False and name != "ping" and "txnNumber" in command and "lsid" in command:
        if command.get("startTransaction", True) is None:
            return 263, None  # there are no transactions yet
    if isinstance(concern, dict) and concern.get("w", 1) in ("nope", "", None, {"a": 1}):
        if name == "createIndexes":
            return None, None  # changes of structure always wait for a majority
        if coll == "s" and command in (fill({**c, "writeConcern": concern}, coll) for c in (UPDATE_ALL, DELETE_ALL)):
            return None, 64  # several shards' errors are one
    return None


def summary(reply):
    """What must agree."""
    told = {key: reply.get(key) for key in ("ok", "code", "codeName", "errorLabels")}
    told["errors"] = [(e["index"], e["code"]) for e in reply.get("writeErrors", [])]
    told["concern"] = reply.get("writeConcernError", {}).get("code")
    told["result"] = [reply.get(key) for key in ("n", "nModified", "cursorsKilled", "cursorsNotFound")]
    if "values" in reply:
        told["result"].append(sorted(reply["values"]))
    if isinstance(reply.get("cursor"), dict):
        told["result"] += [len(reply["cursor"].get("firstBatch", [])), bool(reply["cursor"].get("id"))]
    return told


class Codes(ClusterCase):
    setup = {"shards": 2}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.oracle = cls.enterClassContext(Oracle())
        cls.client.admin.command("enableSharding", "t")
        cls.client.admin.command("shardCollection", "t.o", key={"k": 1})
        spread(None, cls.cluster, "t.s", {"k": 1}, [{"k": 0}])
        cls.here = cls.enterClassContext(Raw(cls.cluster.port))
        cls.there = cls.enterClassContext(Raw(cls.oracle.port))
        for name in "os":
            cls.oracle.client.t[name].create_index("k")

    def setUp(self):
        self.db = self.client["t"]
        for client in (self.client, self.oracle.client):
            for name in "uos":
                client.t[name].delete_many({})
                client.t[name].insert_many([{"_id": i, "k": i - 10, "a": i % 3} for i in range(20)])

    def compare(self, db, command, coll=None):
        wanted, got = self.there.run(db, command), self.here.run(db, command)
        exception = ours(command, coll)
        with self.subTest(command=command):
            if exception:
                code, concern = exception
                self.assertEqual((got.get("code"), got.get("writeConcernError", {}).get("code")), (code, concern), got)
            else:
                self.assertEqual(summary(got), summary(wanted), (got.get("errmsg"), wanted.get("errmsg")))

    def compare_all(self, cases):
        for case in cases:
            for coll in "uos" if "C" in {str(v) for v in case.values()} else "u":
                self.compare("t", fill(case, coll), coll)

    def test_admin_commands(self):
        for command in ADMIN:
            self.compare("admin", command)

    def test_whole_messages(self):
        for command in WHOLE:
            with self.subTest(command=command):
                wanted, got = (raw.run_bytes(bson.encode(command)) for raw in (self.there, self.here))
                self.assertEqual(summary(got), summary(wanted))

    def test_texts(self):
        """Where the router itself judges, in a server's words."""
        for case in [
            {**PING, "maxTimeMS": "x"}, {**PING, "maxTimeMS": BIG}, {**AGGREGATE, "maxTimeMS": -1}, {**AGGREGATE, "maxTimeMS": "x"}, {"count": 1}, {**AGGREGATE, "aggregate": {}},
            {**GET_MORE, "collection": None}, {**KILL, "nope": 1}, {**KILL, "cursors": None}, {**AGGREGATE, "needsMerge": None}, {**AGGREGATE, "fromMongos": 1},
            *with_each([PING], "lsid", [1, {}, {"id": 1}, {**LSID, "nope": 1}, {**LSID, "uid": 1}]), {**PING, "txnNumber": 1}, {**FIND, "txnNumber": Int64(1)},
            {**FIND, "lsid": S, "txnNumber": Int64(1)}, {**FIND, "autocommit": False}, {**FIND, "startTransaction": True}, {**PING, "writeConcern": {}},
            *with_each([CREATE_INDEXES], "writeConcern", [None, {"a": 1}, {"w": -1}, {"w": True}, {"w": {}}, {"j": "x"}]),
            *with_each([PING], "readConcern", [1, {"level": 1}, {"level": "x"}, {"level": "majority"}, {"a": 1}]),
            *with_each([PING], "$readPreference", [1, {}, {"mode": "nearest", "maxStalenessSeconds": 5}, {"mode": "nearest", "hedge": {"a": 1}}]),
            *with_each([PING], "$clusterTime", [1, {}, {"clusterTime": 1}, {"clusterTime": bson.Timestamp(1, 1)}]), {"aggregate": C, "cursor": {}},
        ]:  # fmt: skip
            command = fill(case, "s")
            with self.subTest(command=command):
                self.assertEqual(*(raw.run("t", command).get("errmsg") for raw in (self.here, self.there)))

    def test_cluster_times_from_the_future(self):
        """One that servers take changes nothing for anybody; a later one is refused and reaches no shard."""

        def sent(seconds):
            signature = {"hash": bson.Binary(b"\0" * 20), "keyId": Int64(0)}
            return {"$clusterTime": {"clusterTime": bson.Timestamp(int(time.time()) + seconds, 1), "signature": signature}}

        year = 365 * 24 * 60 * 60
        commands = [{"ping": 1}, {"find": "u"}, {"find": "s"}, {"aggregate": "s", "pipeline": [{"$group": {"_id": None}}], "cursor": {}},
                    {"insert": "s", "documents": [{"k": 1}]}, {"create": "x"}, {"createIndexes": "s", "indexes": [{"key": {"a": 1}, "name": "a"}]}]  # fmt: skip
        for command in commands:
            self.assertEqual(self.here.run("t", {**command, **sent(year + 60)}).get("code"), 205, command)
        for ahead in (1000, year // 2, year - 60):
            for number, command in enumerate(commands[:5]):
                self.assertEqual(self.here.run("t", {**command, **sent(ahead + number)})["ok"], 1, command)
            self.other_clients_work()

    def other_clients_work(self):
        started = time.monotonic()
        with pymongo.MongoClient(self.cluster.uri) as client, client.start_session(causal_consistency=True) as causal:
            for name in "uos":
                coll = client.t[name]
                coll.insert_one({"_id": "new", "k": 5}, session=causal)
                coll.update_many({}, {"$set": {"z": 1}}, session=causal)
                self.assertEqual(coll.count_documents({"z": 1}, session=causal), coll.count_documents({}))
                self.assertIsNotNone(coll.find_one({"k": 5}, session=causal))
                coll.delete_one({"_id": "new"}, session=causal)
            with client.start_session(snapshot=True) as snapshot:
                self.assertGreater(len(list(client.t.s.find({}, session=snapshot))), 0)
                self.assertGreater(len(client.t.s.distinct("k", session=snapshot)), 0)
            client.t.command("create", "made")
            client.t.drop_collection("made")
        self.assertLess(time.monotonic() - started, 30)


def of_table(name):
    return lambda self: self.compare_all(TABLES[name])


for name in TABLES:
    setattr(Codes, f"test_{name}", of_table(name))
