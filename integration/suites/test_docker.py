"""The scripts of docker/compose.yaml, on mongods of this machine instead of containers."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import pymongo
from cluster import BIN, MONGOD, MONGOSH, ROOT, eventually, free_base

QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


class Compose(unittest.TestCase):
    def start(self, *command):
        process = subprocess.Popen(command, **QUIET)
        self.addCleanup(process.wait, 60)
        self.addCleanup(process.terminate)

    def script(self, name, **env):
        command = [MONGOSH, "--quiet", "--norc", "--nodb", str(ROOT / "docker" / name)]
        env = {**os.environ, "HOME": self.dir, **env}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_the_steps_make_a_cluster_and_may_be_repeated(self):
        self.dir = tempfile.mkdtemp(prefix="mosaic-docker-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        base = free_base()
        sets = {"configRepl": [base + 1], "shard0": [base + 2, base + 3], "shard1": [base + 4]}
        for name, ports in sets.items():
            for port in ports:
                data = Path(self.dir) / str(port)
                data.mkdir()
                log = ["--logpath", f"{data}/log", "--nounixsocket", "--setParameter", "enableTestCommands=1"]
                small = ["--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "64"]
                self.start(MONGOD, "--replSet", name, "--port", str(port), "--dbpath", str(data), *log, *small)
                client = pymongo.MongoClient("127.0.0.1", port, directConnection=True)
                self.addCleanup(client.close)
                eventually(lambda c=client: c.admin.command("ping")["ok"], 60)

        def text(name):
            return f"{name}/" + ",".join(f"127.0.0.1:{p}" for p in sets[name])

        all_sets = " ".join(map(text, sets))
        self.assertIn("shard0: initiated", self.script("initiate.js", SETS=all_sets))
        self.assertIn("shard0: was initiated before", self.script("initiate.js", SETS=all_sets))
        self.start(BIN, "serve", "--port", str(base), "--configdb", text("configRepl"))
        client = pymongo.MongoClient("127.0.0.1", base)
        self.addCleanup(client.close)
        eventually(lambda: client.admin.command("ping")["ok"], 60)
        shards = f"{text('shard0')}\n  {text('shard1')}\n"
        for _ in range(2):
            out = self.script("add-shards.js", ROUTER=f"127.0.0.1:{base}", SHARDS=shards)
            self.assertIn("shards: shard0, shard1", out)
