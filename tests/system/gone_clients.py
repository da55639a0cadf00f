"""Clients whose connection breaks while writes are under way: nothing of theirs lands behind what the next client of the volume writes."""

import socket
import struct

from harness import Pool, test
from harness.pool import BINARY

# Far more than anything here takes.
PATIENCE_S = 300
WRITE, FLUSH = 1, 3


class Connection:
    """An NBD connection in transmission, without any library between: it can be broken at any point."""

    def __init__(self, server, volume, tcp=False):
        if tcp:
            host, port = server.tcp().rsplit(":", 1)
            self.socket = socket.create_connection((host, int(port)), PATIENCE_S)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(PATIENCE_S)
            self.socket.connect(str(server.socket))
        self.receive(18)
        name = volume.encode()
        go = struct.pack(">I", len(name)) + name + b"\0\0"
        self.socket.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 7, len(go)) + go)
        while True:
            _, _, kind, length = struct.unpack(">QIII", self.receive(20))
            self.receive(length)
            if kind == 1:
                return

    def receive(self, count):
        """Exactly so many bytes."""
        got = b""
        while len(got) < count:
            piece = self.socket.recv(count - len(got))
            if not piece:
                raise EOFError("the server closed the connection")
            got += piece
        return got

    def request(self, command, offset=0, data=b""):
        """Sends a request and waits for nothing."""
        self.socket.sendall(struct.pack(">IHHQQI", 0x25609513, 0, command, 7, offset, len(data)) + data)

    def done(self, command, offset=0, data=b""):
        """Sends a request and waits for its success."""
        self.request(command, offset, data)
        if struct.unpack(">IIQ", self.receive(16))[1]:
            raise RuntimeError("the server refused a request")


# Enough to be under way for a while, and none: then only what was not even read is left behind.
AMOUNTS = [0, 32 << 20]


def leave_writes(server, amount, tcp=False):
    """A client that breaks off with writes under way, the last of them to the first block."""
    gone = Connection(server, "v", tcp)
    if amount:
        gone.request(WRITE, 8 << 20, bytes(range(256)) * (amount >> 8))
    gone.request(WRITE, 0, b"OLD!" * 1024)
    gone.socket.close()


def first_block(server):
    """What is in the first block at the end: when the server has stopped, nothing is under way any more."""
    server.stop()
    again = server.pool.serve(mount=server.mount_dir is not None)
    found = server.t.out("nbdsh", "-u", again.uri("v"), "-c", "print(h.pread(4, 0).decode())").strip()
    again.stop()
    return found


@test()
def nbd_a_gone_client_is_not_heard_after_the_next(t):
    """what a broken connection left never lands on what the next NBD client wrote and flushed, over unix sockets and TCP"""
    pool = Pool(t, capacity="1G")
    pool.create("v", "64M")
    for tcp in (False, True):
        server = pool.serve(nbd=["127.0.0.1:0"])
        for amount in AMOUNTS:
            for _ in range(10):
                leave_writes(server, amount, tcp)
                following = Connection(server, "v", tcp)
                following.done(WRITE, 0, b"NEW!" * 1024)
                following.done(FLUSH)
                following.socket.close()
        t.equal(first_block(server), "NEW!", "the first block")
    pool.check()


@test()
def nbd_a_gone_client_is_not_heard_after_another_door(t):
    """what a broken NBD connection left never lands on what a file in the mount, an import or a rollback brought"""
    pool = Pool(t, capacity="1G")
    pool.create("v", "64M")
    image = t.dir / "image"
    image.write_bytes(b"IMG!" * (64 << 18))
    for amount in AMOUNTS:
        server = pool.serve(mount=True)
        leave_writes(server, amount)
        with open(server.file("v"), "r+b") as file:
            file.write(b"FUSE" * 1024)
        t.equal(first_block(server), "FUSE", "the first block behind a file in the mount")

        server = pool.serve()
        leave_writes(server, amount)
        t.run(BINARY, "import", pool.path, "v", image, "--overwrite")
        t.equal(first_block(server), "IMG!", "the first block behind an import")

        server = pool.serve()
        pool.shale("snapshot", f"v@s{amount}")
        leave_writes(server, amount)
        pool.shale("rollback", f"v@s{amount}", "--force")
        t.equal(first_block(server), "IMG!", "the first block behind a rollback")
    pool.check()


@test()
def nbd_many_connections_of_one_client_go_on(t):
    """connections that are open at the same time do not wait for each other, also when one of them breaks"""
    pool = Pool(t, capacity="1G")
    pool.create("v", "64M")
    server = pool.serve()
    connections = [Connection(server, "v") for _ in range(4)]
    for number, connection in enumerate(connections):
        connection.request(WRITE, number << 20, bytes([number + 1]) * (1 << 20))
    connections.pop().socket.close()
    connections.append(Connection(server, "v"))
    for connection in connections[:3]:
        t.equal(struct.unpack(">IIQ", connection.receive(16))[1], 0, "the answer to a write")
    for connection in connections:
        connection.done(FLUSH)
        connection.socket.close()
    for number in range(3):
        found = t.out("nbdsh", "-u", server.uri("v"), "-c", f"print(set(h.pread(1 << 20, {number} << 20)))").strip()
        t.equal(found, f"{{{number + 1}}}", f"what connection {number} wrote")
    server.stop()
