"""A client that sends exactly what it is told: no session, no retry, no pool of its own."""

import socket
import struct
import uuid

import bson


def session():
    """A new `lsid`."""
    return {"id": bson.Binary(uuid.uuid4().bytes, 4)}


class Raw:
    def __init__(self, port, timeout=120):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, db, command, sequence=None, flags=0):
        """`sequence` is (name, documents); documents may be encoded already."""
        self.number += 1
        parts = [struct.pack("<I", flags), b"\0", bson.encode({**command, "$db": db})]
        if sequence:
            name, docs = sequence
            docs = b"".join(d if isinstance(d, bytes) else bson.encode(d) for d in docs)
            parts += [b"\1", struct.pack("<i", 5 + len(name) + len(docs)), name.encode(), b"\0", docs]
        body = b"".join(parts)
        self.socket.sendall(struct.pack("<iiii", 16 + len(body), self.number, 0, 2013) + body)

    def run_bytes(self, document):
        """The reply to a command that is BSON already, as it is."""
        self.number += 1
        body = struct.pack("<I", 0) + b"\0" + document
        self.socket.sendall(struct.pack("<iiii", 16 + len(body), self.number, 0, 2013) + body)
        return self.receive()

    def _read(self, count):
        data = bytearray()
        while len(data) < count:
            piece = self.socket.recv(min(1 << 20, count - len(data)))
            if not piece:
                raise EOFError("the connection was closed")
            data += piece
        return bytes(data)

    def receive(self):
        length = struct.unpack("<i", self._read(16)[:4])[0]
        return bson.decode(self._read(length - 16)[5:])

    def run(self, db, command, sequence=None):
        """The reply, whatever it says, without times."""
        self.send(db, command, sequence)
        reply = self.receive()
        for name in ("$clusterTime", "operationTime", "opTime", "electionId"):
            reply.pop(name, None)
        return reply
