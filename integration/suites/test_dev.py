"""`mosaic dev` and `mosaic serve` as programs: starting, stopping, crashing, starting again, refusing."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import pymongo
from cluster import BIN, Cluster, alive, eventually, free_base, start_process, wait_gone


def run(*args, **options):
    return subprocess.run([BIN, *map(str, args)], capture_output=True, text=True, timeout=120, **options)


class Life(unittest.TestCase):
    def test_ready_is_one_line_and_a_signal_ends_everything(self):
        for sig in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(sig=sig.name):
                cluster = Cluster()
                self.addCleanup(cluster.remove)
                cluster.start()
                pids = cluster.all_member_pids()
                self.assertEqual(len(pids), 2)
                shards = cluster.client().admin.command("listShards")["shards"]
                self.assertEqual([s["_id"] for s in shards], ["shard0", "shard1"])
                self.assertEqual(cluster.stop(sig), 0)
                cluster.out.ended.wait(5)
                self.assertEqual(cluster.out.lines, [f"ready {cluster.uri}"])
                self.assertEqual([p for p in pids if alive(p)], [])

    def test_started_again_it_finds_its_data(self):
        for catalog in ("embedded", "replicaset"):
            with self.subTest(catalog=catalog), tempfile.TemporaryDirectory() as dir:
                base = free_base()
                with Cluster(dir=dir, port=base, catalog=catalog, shards=3) as cluster:
                    client = cluster.client()
                    client.admin.command("shardCollection", "app.items", key={"_id": "hashed"})
                    client.app.items.insert_many({"_id": i} for i in range(300))
                    layout = cluster.layout
                with Cluster(dir=dir, port=base) as cluster:
                    self.assertEqual(cluster.layout, layout)
                    items = cluster.client().app.items
                    self.assertEqual(items.count_documents({}), 300)
                    self.assertEqual(items.find_one({"_id": 7}), {"_id": 7})
                    counts = [cluster.member_client(s["name"]).app.items.count_documents({}) for s in layout["shards"]]
                    self.assertTrue(all(counts), counts)

    def test_a_crash_leaves_no_mongod_and_loses_nothing(self):
        with tempfile.TemporaryDirectory() as dir:
            base = free_base()
            cluster = Cluster(dir=dir, port=base, members=3)
            self.addCleanup(cluster.remove)
            cluster.start()
            pids = cluster.all_member_pids()
            self.assertEqual(len(pids), 6)
            items = cluster.client(w="majority").app.items
            items.insert_many({"_id": i} for i in range(100))
            cluster.kill()
            for pid in pids:
                wait_gone(pid, 5)
            with Cluster(dir=dir, port=base) as again:
                self.assertEqual(again.client().app.items.count_documents({}), 100)

    def test_a_crash_while_starting_leaves_no_mongod(self):
        cluster = Cluster(members=3)
        self.addCleanup(cluster.remove)
        cluster.launch()
        pids = eventually(lambda: len(p := cluster.all_member_pids()) == 6 and p, 60, 0.01)
        cluster.kill()
        for pid in pids:
            wait_gone(pid, 20)

    def test_without_dir_nothing_is_left(self):
        base = free_base()
        with tempfile.TemporaryDirectory() as temp:
            command = [BIN, "dev", "--port", str(base), "--shards", "1"]
            env = {**os.environ, "TMPDIR": temp}
            process = start_process(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
            with process:
                self.assertEqual(process.stdout.readline(), f"ready mongodb://127.0.0.1:{base}\n")
                self.assertEqual(len(list(Path(temp).iterdir())), 1)
                process.terminate()
                self.assertEqual(process.wait(60), 0)
            self.assertEqual(list(Path(temp).iterdir()), [])

    def test_a_member_that_dies_is_reported_and_the_rest_goes_on(self):
        with Cluster(members=3) as cluster:
            victim = cluster.wait_primary("shard0")
            cluster.kill_member("shard0", victim)
            eventually(lambda: any(f"shard0 member {victim}" in line and "ended" in line for line in cluster.err.lines))
            cluster.wait_primary("shard0", other_than=victim)
            client = cluster.client()
            eventually(lambda: client.admin.command("listShards")["ok"])
            cluster.restart_member("shard0", victim)


class Killed(unittest.TestCase):
    def test_a_suite_that_is_killed_leaves_nothing(self):
        script = "import sys, time; from cluster import start_process\nprint(start_process(['sleep', '600']).pid, flush=True); time.sleep(600)"
        lib = Path(__file__).resolve().parent.parent / "lib"
        env = {**os.environ, "PYTHONPATH": str(lib)}
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=env) as suite:
            child = int(suite.stdout.readline())
            self.assertTrue(alive(child))
            suite.kill()
            wait_gone(child, 5)


class Refusals(unittest.TestCase):
    def refused(self, text, *args, **options):
        done = run("dev", *args, **options)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertIn(text, done.stderr)
        return done

    def test_a_taken_port(self):
        base = free_base()
        with socket.socket() as s:
            s.bind(("127.0.0.1", base + 1))
            s.listen()
            done = self.refused(f"port {base + 1} is taken", "--port", base, "--routers", 2, "--catalog", "replicaset")
            self.assertNotIn("starting", done.stderr)

    def test_a_taken_port_of_a_member(self):
        with tempfile.TemporaryDirectory() as dir:
            with Cluster(dir=dir, shards=1) as cluster:
                port, member = cluster.port, cluster.member_ports("shard0")[0]
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                s.bind(("127.0.0.1", member))
                s.listen()
                self.refused(f"port {member}, which member 0 of shard0 has", "--port", port, "--dir", dir)

    def test_several_routers_on_one_file(self):
        self.refused("add --catalog replicaset", "--routers", 2, "--port", free_base())

    def test_a_directory_in_use(self):
        with Cluster(shards=1) as cluster:
            done = self.refused("is in use by another mosaic dev", "--dir", cluster.dir, "--port", free_base())
            self.assertIn(str(cluster.process.pid), done.stderr)

    def test_a_directory_of_something_else(self):
        with tempfile.TemporaryDirectory() as dir:
            (Path(dir) / "thesis.txt").write_text("x")
            self.refused("not of mosaic dev", "--dir", dir, "--port", free_base())
            self.assertEqual([p.name for p in Path(dir).iterdir()], ["thesis.txt"])

    def test_a_mongod_that_is_none(self):
        self.refused("there is no /nonexistent", "--mongod", "/nonexistent", "--port", free_base())
        self.refused("is not that of a mongod", "--mongod", "/bin/true", "--port", free_base())

    def test_no_mongod_and_no_way_to_fetch_one(self):
        with tempfile.TemporaryDirectory() as empty:
            env = {"PATH": empty, "HOME": empty}
            self.refused("no python3 to fetch one with", "--port", free_base(), env=env)

    def test_a_mongod_that_does_not_start(self):
        done = self.refused("did not start", "--mongod-arg=--noSuchOption", "--port", free_base(), "--shards", 1)
        self.assertIn("shard0 member 0", done.stderr)
        self.assertIn("noSuchOption", done.stderr.partition("mongod.out")[2])

    def test_an_unknown_parameter(self):
        done = self.refused("cursorTimeoutMilis", "--setParameter", "cursorTimeoutMilis=1", "--port", free_base())
        self.assertNotIn("starting", done.stderr)
        served = run("serve", "--catalogPath", "x", "--setParameter", "cursorTimeoutMilis=1")
        self.assertEqual(done.stderr, served.stderr)

    def test_a_lost_or_emptied_catalog(self):
        with tempfile.TemporaryDirectory() as dir:
            with Cluster(dir=dir, shards=1) as cluster:
                port = cluster.port
            catalog = Path(dir) / "catalog.redb"
            copy = catalog.read_bytes()
            for content, says in ((None, "is gone"), (b"", "it is empty"), (b"x" * 9000, "is not a catalog")):
                with self.subTest(says=says):
                    catalog.unlink(missing_ok=True)
                    if content is not None:
                        catalog.write_bytes(content)
                    done = self.refused(says, "--port", port, "--dir", dir)
                    self.assertIn(str(catalog), done.stderr)
            catalog.write_bytes(copy)
            with Cluster(dir=dir, port=port) as cluster:
                self.assertEqual(len(cluster.client().admin.command("listShards")["shards"]), 1)

    def test_a_member_that_dies_while_starting(self):
        cluster = Cluster(shards=2)
        self.addCleanup(cluster.remove)
        cluster.launch()
        pids = eventually(lambda: len(p := cluster.all_member_pids()) == 2 and p, 60, 0.01)
        os.kill(pids[-1], signal.SIGKILL)
        began = time.monotonic()
        self.assertEqual(cluster.process.wait(30), 1)
        self.assertLess(time.monotonic() - began, 10)
        cluster.err.ended.wait(5)
        text = "\n".join(cluster.err.lines)
        self.assertRegex(text, r"shard\d member 0 .* did not start: it ended \(signal: 9")
        self.assertEqual([p for p in pids if alive(p)], [])


class Serve(unittest.TestCase):
    def test_bad_configurations_are_refused(self):
        with tempfile.TemporaryDirectory() as dir:
            file = Path(dir) / "m.yaml"
            file.write_text("net:\n  port: 1\n  prot: 2\n")
            done = run("serve", "--config", file)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"{file}:3:3: unknown option net.prot; did you mean net.port?", done.stderr)

    def test_what_is_missing_on_the_machine_is_refused(self):
        with tempfile.TemporaryDirectory() as dir:
            catalog = ["--catalogPath", f"{dir}/catalog"]
            directory = f"there is no directory {dir}/no"
            pool = [f"--setParameter=ShardingTaskExecutorPool{n}" for n in ("MinSize=5", "MaxSize=4")]
            for says, only_check, flags in (
                (directory, False, ["--catalogPath", f"{dir}/no/file"]),
                (directory, False, [*catalog, "--pidfilepath", f"{dir}/no/file"]),
                (directory, False, [*catalog, "--logpath", f"{dir}/no/file"]),
                ("PoolMinSize is larger than", False, [*catalog, *pool]),
                ("1.2.3.4.5", False, [*catalog, "--bind_ip", "1.2.3.4.5"]),
                ("no.such.invalid", True, [*catalog, "--bind_ip", "no.such.invalid"]),
            ):
                for check in (["--check"],) if only_check else (["--check"], []):
                    with self.subTest(flags=flags, check=check):
                        done = run("serve", "--port", free_base(), *flags, *check)
                        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
                        self.assertIn(says, done.stderr)
            self.assertEqual(os.listdir(dir), [])

    def test_a_router_of_its_own_joins_the_cluster(self):
        with Cluster(catalog="replicaset") as cluster, tempfile.TemporaryDirectory() as dir:
            port, config_set = cluster.port + 1, cluster.layout["config"]
            hosts = ",".join(f"127.0.0.1:{p}" for p in config_set["ports"])
            pid_file, log = Path(dir) / "pid", Path(dir) / "log"
            (Path(dir) / "m.yaml").write_text(
                f"net: {{port: 5}}\nsharding: {{configDB: {config_set['name']}/{hosts}}}\n"
                f"processManagement: {{pidFilePath: {pid_file}}}\nsystemLog: {{destination: file, path: {log}}}\n"
            )
            process = start_process([BIN, "serve", "--config", f"{dir}/m.yaml", "--port", str(port)])
            try:
                client = pymongo.MongoClient("127.0.0.1", port)
                eventually(lambda: len(client.admin.command("listShards")["shards"]) == 2)
                cluster.client().app.items.insert_one({"_id": 1})
                eventually(lambda: client.app.items.find_one() == {"_id": 1}, 5)
                self.assertEqual(int(pid_file.read_text()), process.pid)
                options = client.admin.command("getCmdLineOpts")
                self.assertEqual(options["parsed"]["net"]["port"], port)
                self.assertEqual(options["parsed"]["sharding"]["configDB"], f"{config_set['name']}/{hosts}")
                process.send_signal(signal.SIGUSR1)
                eventually(lambda: len(list(Path(dir).glob("log*"))) == 2, what="a rotated log")
                client.close()
                process.terminate()
                self.assertEqual(process.wait(30), 0)
                self.assertFalse(pid_file.exists())
            finally:
                process.kill()
                process.wait()

    def test_one_file_has_one_router(self):
        with Cluster(shards=1) as cluster:
            done = run("serve", "--catalogPath", cluster.dir / "catalog.redb", "--port", cluster.port + 1)
            self.assertEqual(done.returncode, 1)
            self.assertIn("catalog.redb", done.stderr)

    def test_a_config_replica_set_that_is_not_there(self):
        began = time.monotonic()
        done = run("serve", "--configdb", "none/127.0.0.1:1", "--port", free_base())
        self.assertEqual(done.returncode, 1)
        self.assertIn("127.0.0.1:1", done.stderr)
        self.assertLess(time.monotonic() - began, 90)
