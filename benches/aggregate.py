#!/usr/bin/env python3
"""Aggregations that gather much: a cluster of two shards through the router against one mongod that holds everything.

    MOSAIC_BIN=target/release/mosaic python3 benches/aggregate.py [--documents 1000000]

Needs pymongo and a mongod (MOSAIC_MONGOD). Prints seconds for each, and of the cluster the processor seconds of the router and of
the shards, and the router's peak of memory.
"""

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration/lib"))
from cluster import Cluster, Oracle  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
ROUNDS = 3


def cpu(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def forget_peak(pid):
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def children(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(p) for p in (task / "children").read_text().split()]
    return found


def queries(n):
    group = lambda field: [{"$group": {"_id": f"${field}", "n": {"$sum": 1}, "a": {"$avg": "$v"}, "m": {"$max": "$k"}}}]  # noqa: E731
    join = {"$lookup": {"from": "other", "localField": "v", "foreignField": "x", "as": "o"}}
    return {
        "group, 10 groups": ("c", group("g10")),
        "group, 10,000 groups": ("c", group("g10k")),
        "group, 500,000 groups": ("c", group("g500k")),
        "sorted scan, 200,000 docs": ("c", [{"$match": {"k": {"$lt": 200_000}}}, {"$sort": {"v": 1}}]),
        "lookup of 10,000 docs": ("c", [{"$match": {"k": {"$lt": 10_000}}}, join, {"$project": {"n": {"$size": "$o"}}}]),
        "facet over 100,000 docs": ("c", [{"$match": {"k": {"$lt": 100_000}}}, {"$facet": {"a": [{"$count": "n"}]}}]),
    }


def large():
    some, pad = {"$match": {"k": {"$lt": 200_000}}}, {"$set": {"pad": "x" * 10_000}}
    return {
        "sorted result of 2 GB": [some, {"$sort": {"v": 1}}, pad],
        "grouped result of 2 GB": [some, pad, {"$group": {"_id": "$k", "pad": {"$max": "$pad"}}}],
        "2 GB gathered": [some, {"$sort": {"v": 1}}, pad, {"$setWindowFields": {"sortBy": {"v": 1}, "output": {"r": {"$documentNumber": {}}}}}],
    }


def fill(db, n):
    text = "x" * 150
    for at in range(0, n, 10_000):
        db.c.insert_many(
            [{"_id": i, "k": i, "v": (i * 7919) % n, "g10": i % 10, "g10k": i % 10_000, "g500k": i % 500_000, "text": text} for i in range(at, min(at + 10_000, n))],
            ordered=False,
        )
    for at in range(0, 100_000, 10_000):
        db.other.insert_many([{"_id": i, "x": i, "text": text} for i in range(at, at + 10_000)], ordered=False)
    for coll, field in (("c", "k"), ("c", "v"), ("other", "x")):
        db[coll].create_index(field)


def measure(db, coll, pipeline):
    began = time.monotonic()
    count = sum(1 for _ in db[coll].aggregate(pipeline, allowDiskUse=True, batchSize=20_000))
    return time.monotonic() - began, count


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--documents", type=int, default=1_000_000)
    args.add_argument("--large", action="store_true", help="instead: results of 2 GB, on the cluster only")
    args = args.parse_args()
    n = args.documents
    with Oracle() as oracle, Cluster() as cluster:
        router, shards = cluster.process.pid, children(cluster.process.pid)
        client = cluster.client()
        client.admin.command("shardCollection", "bench.c", key={"_id": "hashed"})
        client.admin.command("shardCollection", "bench.other", key={"_id": "hashed"})
        if args.large:
            fill(client.bench, n)
            for name, pipeline in large().items():
                forget_peak(router)
                seconds, count = measure(client.bench, "c", pipeline)
                print(f"{name:28} {seconds:7.2f} s, {count} documents, router peak {peak(router)} MiB", flush=True)
            return
        for db in (client.bench, oracle.client.bench):
            fill(db, n)
        print(f"{n} documents; seconds (best of {ROUNDS}), of the cluster also CPU seconds and the router's peak")
        for name, (coll, pipeline) in queries(n).items():
            one, many = [], []
            for _ in range(ROUNDS):
                one.append(measure(oracle.client.bench, coll, pipeline))
                forget_peak(router)
                before = cpu(router), sum(map(cpu, shards))
                many.append((*measure(client.bench, coll, pipeline), cpu(router) - before[0], sum(map(cpu, shards)) - before[1], peak(router)))
            assert one[0][1] == many[0][1], (name, one, many)
            best = min(many)
            print(f"{name:28} one {min(one)[0]:7.2f}  cluster {best[0]:7.2f}  router {best[2]:6.2f}  shards {best[3]:6.2f}  peak {best[4]} MiB", flush=True)


if __name__ == "__main__":
    main()
