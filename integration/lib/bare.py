"""Replica sets and routers as processes of their own: a router can die and start again while its shards live on."""

import json
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import pymongo
from cluster import BIN, MONGOD, Output, eventually, is_free, start_process

QUIET = subprocess.DEVNULL


class Bare:
    """Shards shard0, shard1, … and a router, with an embedded catalog or one on a replica set."""

    def __init__(self, shards=2, catalog="embedded", routers=1, port=None, pool=None, parameters=None):
        """`pool` and `parameters`: what the routers' configuration says under `mosaic.shards` and `setParameter`."""
        from cluster import free_base

        self.dir = Path(tempfile.mkdtemp(prefix="mosaic-bare-"))
        self.base = port or free_base()
        self.catalog, self.pool, self.parameters = catalog, pool or {}, parameters or {}
        self.names = [f"shard{i}" for i in range(shards)] + (["cfg"] if catalog == "replicaset" else [])
        self.set_ports = {name: self.base + routers + i for i, name in enumerate(self.names)}
        self.mongods, self.routers, self._clients = {}, [None] * routers, []

    def __enter__(self):
        try:
            for name, port in self.set_ports.items():
                self._start_mongod(name, port)
            for name, port in self.set_ports.items():
                self._initiate(name, port)
            for i in range(len(self.routers)):
                self.start_router(i)
            for name, port in self.set_ports.items():
                if name != "cfg":
                    self.client().admin.command("addShard", f"{name}/127.0.0.1:{port}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.close_clients()
        processes = [p for p in [*self.routers, *self.mongods.values()] if p and p.poll() is None]
        for p in processes:
            p.kill()
        for p in processes:
            p.wait(30)
        shutil.rmtree(self.dir, ignore_errors=True)

    def _start_mongod(self, name, port):
        path = self.dir / name
        path.mkdir(exist_ok=True)
        command = [MONGOD, "--port", str(port), "--bind_ip", "127.0.0.1", "--dbpath", str(path), "--replSet", name]
        command += ["--nounixsocket", "--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "64", "--logpath", f"{path}/log"]
        command += ["--setParameter", "enableTestCommands=1", "--setParameter", "diagnosticDataCollectionEnabled=false"]
        self.mongods[name] = start_process(command, stdin=QUIET, stdout=QUIET, stderr=QUIET)

    def _initiate(self, name, port):
        with pymongo.MongoClient("127.0.0.1", port, directConnection=True) as c:
            c.admin.command("replSetInitiate", {"_id": name, "members": [{"_id": 0, "host": f"127.0.0.1:{port}"}]})
            eventually(lambda: c.admin.command("hello")["isWritablePrimary"], every=0.02, what=f"the election of {name}")

    def kill_mongod(self, name):
        self.mongods[name].kill()
        self.mongods[name].wait(30)

    def restart_mongod(self, name):
        self._start_mongod(name, self.set_ports[name])
        with pymongo.MongoClient("127.0.0.1", self.set_ports[name], directConnection=True) as c:
            eventually(lambda: c.admin.command("hello")["isWritablePrimary"], every=0.02, what=f"the return of {name}")

    # -- routers

    def start_router(self, index=0):
        port, config = self.base + index, self.dir / f"router{index}.yaml"
        own = {"shards": self.pool} if self.pool else {}
        if self.catalog == "embedded":
            where = {"mosaic": {"catalogPath": str(self.dir / "catalog.redb"), **own}}
        else:
            where = {"sharding": {"configDB": f"cfg/127.0.0.1:{self.set_ports['cfg']}"}, **({"mosaic": own} if own else {})}
        config.write_text(
            json.dumps(
                {
                    "net": {"port": port, "bindIp": "127.0.0.1"},
                    "systemLog": {"destination": "file", "path": str(self.dir / f"router{index}.log"), "logAppend": True},
                    "setParameter": {"enableTestCommands": True, **self.parameters},
                    **where,
                }
            )
        )
        eventually(lambda: is_free(port), every=0.02, what=f"port {port}")
        self.routers[index] = start_process(
            [BIN, "serve", "--config", str(config)], stdin=QUIET, stdout=QUIET, stderr=subprocess.PIPE, text=True
        )
        errors = Output(self.routers[index].stderr)

        def up():
            if self.routers[index].poll() is not None:
                raise RuntimeError("the router ended:\n" + "\n".join(errors.lines))
            # A driver that was refused once looks again after half a second only.
            socket.create_connection(("127.0.0.1", port)).close()
            with pymongo.MongoClient("127.0.0.1", port, serverSelectionTimeoutMS=500) as c:
                return c.admin.command("ping")["ok"]

        eventually(up, 60, 0.02, "the start of the router")

    def wait_router_gone(self, index=0):
        self.routers[index].wait(30)

    def kill_router(self, index=0):
        self.routers[index].kill()
        self.routers[index].wait(30)

    # -- as Cluster has them

    def client(self, router=0, **options):
        # Closing a client of a router that is gone waits that long.
        options.setdefault("serverSelectionTimeoutMS", 1000)
        client = pymongo.MongoClient("127.0.0.1", self.base + router, **options)
        self._clients.append(client)
        return client

    def close_clients(self):
        """All at once: one whose router is gone takes as long as choosing a server."""
        closing = [threading.Thread(target=client.close) for client in self._clients]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        self._clients = []

    def shard_client(self, name, **options):
        client = pymongo.MongoClient("127.0.0.1", self.set_ports[name], directConnection=True, **options)
        self._clients.append(client)
        return client

    def log(self, index=0):
        path = self.dir / f"router{index}.log"
        return path.read_text() if path.exists() else ""
