// mongosh --nodb add-shards.js, with ROUTER=host:port and SHARDS="name/host:port,… name/…": adds the shards.

const admin = new Mongo(`mongodb://${process.env.ROUTER}/`).getDB("admin");
for (const shard of process.env.SHARDS.trim().split(/\s+/)) {
  const name = shard.split("/")[0];
  admin.runCommand({ addShard: shard, name });
  print(`${name}: added`);
}
print(`shards: ${admin.runCommand({ listShards: 1 }).shards.map((s) => s._id).join(", ")}`);
