"""Clusters for the suites: `mosaic dev` clusters, and a plain mongod to compare with.

Where the programs are comes from the environment, which integration/run sets: MOSAIC_BIN (the binary), MOSAIC_MONGOD,
MOSAIC_MONGOSH. MOSAIC_TEST_PORT makes ports start there instead of at random.
"""

import ctypes
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import pymongo

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = os.environ.get("MOSAIC_BIN", str(ROOT / "target/debug/mosaic"))
MONGOD = os.environ.get("MOSAIC_MONGOD", "mongod")
MONGOSH = os.environ.get("MOSAIC_MONGOSH", "mongosh")
START_PATIENCE = 240
SPAN = 90  # ports a cluster may use above its base


_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1


def start_process(command, **options):
    """subprocess.Popen of a process that does not outlive this one, however this one ends."""
    # The kernel watches the thread that starts the process: only the main one lives as long as the process.
    if _prctl and threading.current_thread() is threading.main_thread():
        parent = os.getpid()

        def die_with_parent():
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        options["preexec_fn"] = die_with_parent
    return subprocess.Popen(command, **options)


def is_free(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False


_taken = set()


def free_base():
    """The first of SPAN free ports."""
    fixed = os.environ.get("MOSAIC_TEST_PORT")
    for attempt in range(200):
        base = int(fixed) + attempt * 5 if fixed else random.randrange(20000, 31000, 100)
        wanted = range(base, base + (12 if fixed else SPAN))
        if base not in _taken and all(is_free(p) for p in wanted):
            _taken.add(base)
            return base
    raise RuntimeError("no free ports")


def eventually(check, patience=30, every=0.1, what="the condition"):
    """Waits until check() is true and returns its value; exceptions count as false until time is over."""
    deadline, last = time.monotonic() + patience, None
    while True:
        try:
            value = check()
            if value:
                return value
        except (pymongo.errors.PyMongoError, AssertionError, OSError) as e:
            last = e
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {patience} s (last error: {last})")
        time.sleep(every)


def alive(pid):
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_gone(pid, patience=30):
    eventually(lambda: not alive(pid), patience, 0.02, f"the end of process {pid}")


class Output:
    """Collects a stream's lines as they come."""

    def __init__(self, stream):
        self.lines, self.ended = [], threading.Event()
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream):
        for line in stream:
            self.lines.append(line.rstrip("\n"))
        self.ended.set()


class Cluster:
    """A cluster run by `mosaic dev`."""

    def __init__(self, shards=2, members=1, routers=1, catalog="embedded", dir=None, port=None, flags=(), env=None):
        self.temp = None
        if dir is None:
            self.temp = dir = tempfile.mkdtemp(prefix="mosaic-test-")
        self.dir, self.port, self.routers = Path(dir), port or free_base(), routers
        self.command = [BIN, "dev", "--port", str(self.port), "--dir", str(self.dir), "--routers", str(routers)]
        if not (self.dir / "cluster.json").exists():
            self.command += ["--shards", str(shards), "--members", str(members), "--catalog", catalog]
        self.command += list(flags)
        self.env = {**os.environ, **(env or {})}
        self.process = None
        self.restarted = {}
        self._clients = []

    # -- life

    def launch(self):
        """Starts the process without waiting."""
        self.process = start_process(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.env
        )
        self.out, self.err = Output(self.process.stdout), Output(self.process.stderr)
        return self

    def start(self):
        if self.process is None:
            self.launch()
        deadline = time.monotonic() + START_PATIENCE
        while not self.out.lines:
            if self.process.poll() is not None:
                self.err.ended.wait(5)
                raise RuntimeError("mosaic dev ended:\n" + "\n".join(self.err.lines))
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError("mosaic dev was not ready in time:\n" + "\n".join(self.err.lines))
            time.sleep(0.02)
        assert self.out.lines == [f"ready mongodb://127.0.0.1:{self.port}"], self.out.lines
        return self

    def stop(self, sig=signal.SIGTERM, patience=60):
        """Ends it in order; returns the exit code."""
        self.close_clients()
        code = None
        if self.process:
            if self.process.poll() is None:
                self.process.send_signal(sig)
            code = self.process.wait(patience)
        for member in self.restarted.values():
            if member.poll() is None:
                member.terminate()
                member.wait(30)
        self.restarted = {}
        return code

    def kill(self):
        """SIGKILL, as a crash."""
        self.close_clients()
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def close_clients(self):
        for client in self._clients:
            client.close()
        self._clients = []

    def remove(self):
        """Ends it and removes its directory."""
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            if self.temp:
                shutil.rmtree(self.temp, ignore_errors=True)

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.kill()
            self.remove()
            raise

    def __exit__(self, *_):
        self.remove()

    # -- clients

    @property
    def ports(self):
        return [self.port + i for i in range(self.routers)]

    @property
    def uri(self):
        return f"mongodb://127.0.0.1:{self.port}"

    def client(self, router=0, **options):
        """A pymongo client of one router; closed with the cluster."""
        client = pymongo.MongoClient("127.0.0.1", self.port + router, **options)
        self._clients.append(client)
        return client

    # -- members

    @property
    def layout(self):
        return json.loads((self.dir / "cluster.json").read_text())

    def set_layout(self, name):
        """name: shard0, shard1, …, or config."""
        layout = self.layout
        sets = layout["shards"] + ([layout["config"]] if layout["config"] else [])
        return layout["config"] if name == "config" else next(s for s in sets if s["name"] == name)

    def member_ports(self, name):
        return self.set_layout(name)["ports"]

    def member_client(self, name, index=0, **options):
        """A pymongo client of exactly one mongod."""
        client = pymongo.MongoClient("127.0.0.1", self.member_ports(name)[index], directConnection=True, **options)
        self._clients.append(client)
        return client

    def shard_client(self, name, **options):
        """A pymongo client of a replica set."""
        layout = self.set_layout(name)
        hosts = [f"127.0.0.1:{p}" for p in layout["ports"]]
        client = pymongo.MongoClient(hosts, replicaSet=layout["name"], **options)
        self._clients.append(client)
        return client

    def _member_dir(self, name, index):
        return self.dir / f"{self.set_layout(name)['name']}-{index}"

    def member_pid(self, name, index=0):
        return int((self._member_dir(name, index) / "mongod.pid").read_text())

    def all_member_pids(self):
        # A mongod makes the file first and writes its number a moment later.
        return [int(text) for p in self.dir.glob("*/mongod.pid") if (text := p.read_text().strip())]

    def primary(self, name):
        """Index of the member that is primary now; None without one."""
        for i, port in enumerate(self.member_ports(name)):
            with pymongo.MongoClient("127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=500) as c:
                try:
                    if c.admin.command("hello").get("isWritablePrimary"):
                        return i
                except pymongo.errors.PyMongoError:
                    pass
        return None

    def wait_primary(self, name, other_than=None, patience=60):
        def check():
            found = self.primary(name)
            return found is not None and found != other_than and [found]

        return eventually(check, patience, 0.2, f"a primary of {name}")[0]

    def signal_member(self, name, index, sig):
        """SIGKILL = a crash, SIGTERM = an orderly end, SIGSTOP/SIGCONT = a stall."""
        pid = self.member_pid(name, index)
        self._commands = getattr(self, "_commands", {})
        cmdline = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        self._commands[(name, index)] = [a.decode() for a in cmdline]
        os.kill(pid, sig)
        if sig in (signal.SIGKILL, signal.SIGTERM):
            wait_gone(pid)

    def kill_member(self, name, index):
        self.signal_member(name, index, signal.SIGKILL)

    def restart_member(self, name, index):
        """Starts a member again that was killed or stopped."""
        command = self._commands[(name, index)]
        quiet = subprocess.DEVNULL
        self.restarted[(name, index)] = start_process(command, stdin=quiet, stdout=quiet, stderr=quiet)

        def up():
            with pymongo.MongoClient(
                "127.0.0.1", self.member_ports(name)[index], directConnection=True, serverSelectionTimeoutMS=500
            ) as c:
                return c.admin.command("hello").get("setName")

        eventually(up, 60, what=f"the start of member {index} of {name}")

    def step_down(self, name, seconds=30):
        """Makes the primary step down; returns the index it had."""
        index = self.wait_primary(name)
        with pymongo.MongoClient("127.0.0.1", self.member_ports(name)[index], directConnection=True) as c:
            c.admin.command("replSetStepDown", seconds, force=True)
        return index


class Oracle:
    """One plain mongod (a replica set of one) to compare answers with."""

    def __init__(self, flags=(), name="oracle"):
        self.dir, self.name = tempfile.mkdtemp(prefix="mosaic-oracle-"), name
        self.port = free_base()
        self.command = [MONGOD, "--port", str(self.port), "--bind_ip", "127.0.0.1", "--dbpath", self.dir, "--replSet", name]
        self.command += ["--nounixsocket", "--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "64", "--logpath", f"{self.dir}/log"]
        if not any("enableTestCommands" in flag for flag in flags):
            flags = ["--setParameter", "enableTestCommands=1", "--setParameter", "diagnosticDataCollectionEnabled=false", *flags]
        self.command += flags

    def __enter__(self):
        quiet = subprocess.DEVNULL
        self.process = start_process(self.command, stdin=quiet, stdout=quiet, stderr=quiet)
        try:
            self.client = pymongo.MongoClient("127.0.0.1", self.port, directConnection=True)
            host = f"127.0.0.1:{self.port}"
            self.client.admin.command("replSetInitiate", {"_id": self.name, "members": [{"_id": 0, "host": host}]})
            eventually(lambda: self.client.admin.command("hello")["isWritablePrimary"], what="the oracle's election")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.client.close()
        self.process.kill()  # its data is not needed any more, and an orderly end takes 15 seconds
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


class ClusterCase(unittest.TestCase):
    """A suite on one cluster, started once; `setup` names what Cluster() is given. self.db is fresh for each test."""

    setup = {}
    cluster: Cluster

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(**cls.setup)
        try:
            cls.cluster.start()
        except BaseException:
            cls.cluster.kill()
            cls.cluster.remove()
            raise
        cls.addClassCleanup(cls.cluster.remove)
        cls.client = cls.cluster.client()

    def setUp(self):
        name = re.sub(r"[^A-Za-z0-9_]", "_", self._testMethodName)[:50]
        self.db = self.client[f"t_{name}"]
        self.addCleanup(self._drop)

    def _drop(self):
        try:
            self.client.drop_database(self.db.name)
        except (pymongo.errors.PyMongoError, AttributeError):
            pass  # what a failed test left behind must not hide its failure

    def shard(self, name, key, **options):
        """Shards self.db[name] and returns it."""
        self.client.admin.command("shardCollection", f"{self.db.name}.{name}", key=key, **options)
        return self.db[name]

    def assertFails(self, code, call, *args, **kwargs):
        """The call raises an OperationFailure with that code (a number or a name); returns it."""
        with self.assertRaises(pymongo.errors.OperationFailure) as caught:
            call(*args, **kwargs)
        error = caught.exception
        found = error.code if isinstance(code, int) else (error.details or {}).get("codeName")
        self.assertEqual(found, code, error)
        return error


def both_catalogs(case):
    """Class decorator: runs the suite on a cluster with each kind of catalog."""
    import sys

    module = sys.modules[case.__module__]
    for catalog in ("embedded", "replicaset"):
        name = f"{case.__name__}_{catalog}"
        body = {"setup": {**case.setup, "catalog": catalog}, "__module__": case.__module__}
        setattr(module, name, type(name, (case,), body))
    case.__test__ = False  # the runner leaves the undecorated one out
    return case


def mongosh(uri, *files, script=None, timeout=300):
    """Runs mongosh; returns the finished process with stdout and stderr."""
    command = [MONGOSH, uri, "--quiet", "--norc"]
    if script is not None:
        command += ["--eval", script]
    command += [str(f) for f in files]
    env = {**os.environ, "HOME": os.environ.get("MOSAIC_TEST_HOME", tempfile.gettempdir())}
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, env=env)


class Serve:
    """One `mosaic serve` of its own, which may crash and be started again. `catalog` are the flags that say where the
    catalog is, by default a file of its own."""

    def __init__(self, catalog=None):
        self.dir, self.port = tempfile.mkdtemp(prefix="mosaic-serve-"), free_base()
        self.catalog = catalog or ["--catalogPath", f"{self.dir}/catalog.redb"]
        self.process = None

    def start(self):
        command = [BIN, "serve", "--port", str(self.port), "--bind_ip", "127.0.0.1", *self.catalog]
        command += ["--setParameter", "enableTestCommands=1"]
        with open(f"{self.dir}/log", "ab") as log:
            self.process = start_process(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.client = pymongo.MongoClient("127.0.0.1", self.port, serverSelectionTimeoutMS=20000)
        eventually(lambda: self.client.admin.command("ping"), what="the router's start")
        return self

    def wait_crashed(self):
        code = self.process.wait(30)
        self.client.close()
        return code

    def stop(self):
        if self.process and self.process.poll() is None:
            self.client.close()
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()
        shutil.rmtree(self.dir, ignore_errors=True)
