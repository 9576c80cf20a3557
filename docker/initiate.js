// mongosh --nodb initiate.js, with SETS="name/host:port,host:port name/…": initiates each replica set unless it was,
// and waits for its primary.

for (const set of process.env.SETS.trim().split(/\s+/)) {
  const [name, list] = set.split("/");
  const hosts = list.split(",");
  const admin = new Mongo(`mongodb://${hosts[0]}/?directConnection=true`).getDB("admin");
  try {
    const members = hosts.map((host, id) => ({ _id: id, host, priority: id === 0 ? 2 : 1 }));
    admin.runCommand({ replSetInitiate: { _id: name, members } });
    print(`${name}: initiated`);
  } catch (e) {
    if (e.codeName !== "AlreadyInitialized") throw e;
    print(`${name}: was initiated before`);
  }
  const deadline = Date.now() + 120000;
  while (!admin.runCommand({ hello: 1 }).primary) {
    if (Date.now() > deadline) throw new Error(`${name} has no primary`);
    sleep(200);
  }
  print(`${name}: ${admin.runCommand({ hello: 1 }).primary} is the primary`);
}
