"""What must hold of a cluster's structure at any quiet moment."""

from cluster import eventually


def intents(cluster):
    return list(cluster.client().config["mosaic.ddl"].find())


def wait_quiet(cluster, patience=60):
    """Until no change of structure is recorded as unfinished."""
    eventually(lambda: not intents(cluster), patience, what="the end of all changes of structure")


def shards(cluster):
    return [s["_id"] for s in cluster.client().admin.command("listShards")["shards"]]


def structure(cluster, db):
    """{shard: {collection: (uuid, {index names})}} as the shards themselves have it."""
    found = {}
    for shard in shards(cluster):
        own = cluster.shard_client(shard)[db]
        found[shard] = {}
        for entry in own.list_collections():
            if entry["type"] == "collection":
                found[shard][entry["name"]] = (
                    bytes(entry["info"]["uuid"]),
                    frozenset(own[entry["name"]].index_information()),
                )
    return found


def problems(cluster, db):
    """Everything that is wrong with a database; [] is right."""
    client, wrong = cluster.client(), []
    config = client.config
    primary = (config.databases.find_one({"_id": db}) or {}).get("primary")
    sharded = {c["_id"].split(".", 1)[1]: c for c in config.collections.find() if c["_id"].split(".", 1)[0] == db}
    known = {bytes(c["uuid"]) for c in config.collections.find()}
    for uuid in {bytes(c["uuid"]) for c in config.chunks.find({}, {"uuid": 1})} - known:
        wrong.append(f"chunks of {uuid.hex()} without a collection")
    found = structure(cluster, db)
    for name, coll in sharded.items():
        owners = {c["shard"] for c in config.chunks.find({"uuid": coll["uuid"]})}
        if not owners:
            wrong.append(f"{name} has no chunks")
        seen = {}
        for shard in owners | {primary}:
            entry = found.get(shard, {}).get(name)
            if entry is None:
                wrong.append(f"{name} is missing on {shard}")
            else:
                seen[shard] = entry
                if entry[0] != bytes(coll["uuid"]):
                    wrong.append(f"{name} has another uuid on {shard}")
        if len({indexes for _, indexes in seen.values()}) > 1:
            wrong.append(f"indexes of {name} differ: { {s: sorted(i) for s, (_, i) in seen.items()} }")
    for shard, collections in found.items():
        for name in collections:
            if shard != primary and name not in sharded:
                wrong.append(f"{name} is left on {shard}")
    return wrong
