#!/usr/bin/python3 -B
"""A link between clients and a store: a TCP proxy with a rate, a latency, and a count of bytes.

    link.py PORT TARGET-PORT [--mbit 1000] [--rtt-ms 5]

Listens on 127.0.0.1:PORT and passes everything on to 127.0.0.1:TARGET-PORT. Each direction has the rate, shared by all connections; what is sent arrives
half of the round trip later. A target that is away closes the connection, as a server that died does. SIGUSR1 writes the bytes so far to stdout, as
"UP DOWN" (to the store, from the store); SIGTERM ends it. The kernel's netem would do the same, and many kernels lack it.
"""

import argparse
import contextlib
import signal
import socket
import sys
import threading
import time
from queue import Queue

PIECE = 128 << 10
# Pieces of one direction of a connection that are under way; a reader waits for room.
UNDER_WAY = 64


class Way:
    """One direction: when the last bit of a piece has left."""

    def __init__(self, bytes_per_s):
        self.bytes_per_s, self.free_at, self.bytes = bytes_per_s, 0.0, 0
        self.lock = threading.Lock()

    def take(self, count):
        """The time at which so many bytes will have left."""
        with self.lock:
            self.bytes += count
            self.free_at = max(self.free_at, time.monotonic()) + count / self.bytes_per_s
            return self.free_at


def wait_until(moment):
    """Sleeps, and no longer than there is to sleep."""
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)


def deliver(queue, target, delay):
    """Writes each piece when it has arrived; the end ends the other side's reading."""
    with contextlib.suppress(OSError):
        while True:
            left_at, piece = queue.get()
            wait_until(left_at + delay)
            if not piece:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(piece)
    # A peer that is gone: what is still read is thrown away, until its reader ends.
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
    while queue.get()[1]:
        pass


def pump(source, target, way, delay):
    """One direction of one connection."""
    queue = Queue(UNDER_WAY)
    writer = threading.Thread(target=deliver, args=(queue, target, delay), daemon=True)
    writer.start()
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE):
            # The reader is held at the rate, so that not more is under way than a real link holds.
            left_at = way.take(len(piece))
            queue.put((left_at, piece))
            wait_until(left_at)
    queue.put((time.monotonic(), b""))
    writer.join()


def connection(client, port, up, down, delay):
    """One client's connection, to its end."""
    # The handshake takes a round trip.
    time.sleep(2 * delay)
    with contextlib.closing(client):
        try:
            store = socket.create_connection(("127.0.0.1", port))
        except OSError:
            # Refused, as it would be without the link.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            return
        with contextlib.closing(store):
            for one in (client, store):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=pump, args=(store, client, down, delay), daemon=True)
            back.start()
            pump(client, store, up, delay)
            back.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("target", type=int)
    parser.add_argument("--mbit", type=float, default=1000)
    parser.add_argument("--rtt-ms", type=float, default=5)
    options = parser.parse_args()
    up, down = (Way(options.mbit * 1e6 / 8) for _ in range(2))
    signal.signal(signal.SIGUSR1, lambda *_: print(up.bytes, down.bytes, flush=True))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    listener = socket.create_server(("127.0.0.1", options.port), backlog=256)
    print("ready", flush=True)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=connection, args=(client, options.target, up, down, options.rtt_ms / 2000), daemon=True).start()


main()
