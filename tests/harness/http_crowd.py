"""Clients of HTTP that are silent, slow or hostile: http_crowd.py HOST:PORT COUNT KIND...

They come from ADDRESSES addresses of this machine, and each connects again a second after the server has ended its connection. When each
has been connected, a line says so. After a line on standard input none connects again. When standard input ends they send a little, so that
those which the server does not know any more are told; the kernel of a server that is busy forgets some before the server sees them. When all
are ended, a line of JSON has, by kind, how many connections there were and the statuses that they were answered with. Owns the kinds (KINDS),
and no expectation.
"""

import collections
import contextlib
import json
import os
import random
import select
import socket
import sys
import time

ADDRESSES = 40
TICK_S = 0.25
# Ticks between two bytes of a slow client.
SLOW = 4
FLOOD = b"X-Filler: " + b"x" * 1000 + b"\r\n"
GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nContent-Type: application/json\r\n"
# Larger than the buffers of a connection.
UNREAD = (GET % b"/api/v1/openapi.json" + b"\r\n") * 30

# What a kind sends at first, what after it and whether slowly, and how it reads.
Kind = collections.namedtuple("Kind", ["first", "more", "is_slow", "reads", "ends_writing"], defaults=(None, True, "all", False))
KINDS = {
    "silent": Kind(b""),
    "slow-head": Kind(GET % b"/" + b"X-Slow: ", b"x"),
    "endless-head": Kind(GET % b"/", FLOOD, is_slow=False),
    "slow-body": Kind(POST + b"Content-Length: 8000\r\n\r\n", b" "),
    "slow-chunks": Kind(POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "endless-body": Kind(POST + b"Content-Length: 1000000000000\r\n\r\n", b" " * 16384, is_slow=False),
    "garbage": Kind(random.Random(1).randbytes(4000), random.Random(2).randbytes(4000), is_slow=False),
    "half-closed": Kind(GET % b"/healthz" + b"\r\n", ends_writing=True),
    "half-closed-head": Kind(GET % b"/healthz", ends_writing=True),
    "unread": Kind(UNREAD, reads="none"),
    "slow-reader": Kind(UNREAD, reads="slowly"),
}


class Client:
    """One of them."""

    def __init__(self, crowd, number, name):
        self.crowd, self.name, self.kind = crowd, name, KINDS[name]
        self.own = f"127.0.1.{1 + number % ADDRESSES}"
        self.socket, self.again_at, self.ticks = None, 0, number

    def connect(self):
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_IP, socket.IP_BIND_ADDRESS_NO_PORT, 1)
        if self.kind.reads != "all":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.bind((self.own, 0))
        self.socket.connect_ex(self.crowd.address)
        self.left, self.head, self.is_open = self.kind.first, b"", False
        # Hang-ups are told whatever is asked for.
        self.crowd.epoll.register(self.socket, select.EPOLLRDHUP | select.EPOLLOUT | (select.EPOLLIN if self.kind.reads == "all" else 0))
        self.crowd.by_descriptor[self.socket.fileno()] = self

    def event(self, events):
        if not self.is_open and events & select.EPOLLOUT and not events & (select.EPOLLHUP | select.EPOLLERR):
            self.is_open = True
            self.crowd.opened[self.name] += 1
            self.crowd.epoll.modify(self.socket, select.EPOLLRDHUP | (select.EPOLLIN if self.kind.reads == "all" else 0))
            self.send()
        if events & select.EPOLLIN and self.read(65536) == b"":
            return self.close()
        # One that reads does so to the end.
        if events & (select.EPOLLHUP | select.EPOLLERR) or events & select.EPOLLRDHUP and self.kind.reads != "all":
            self.close()
        return None

    def read(self, size):
        """What there is; none: nothing yet."""
        try:
            found = self.socket.recv(size)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        self.head = (self.head + found)[:12]
        return found

    def send(self):
        """What is left of the first bytes."""
        with contextlib.suppress(OSError):
            while self.left:
                self.left = self.left[self.socket.send(self.left):]
            if self.kind.ends_writing:
                self.socket.shutdown(socket.SHUT_WR)

    def tick(self, now):
        self.ticks += 1
        if not self.socket:
            if now >= self.again_at and not self.crowd.is_ending:
                self.connect()
            return
        if not self.is_open:
            return
        if self.crowd.is_probing:
            self.probe()
        elif self.left:
            self.send()
        elif self.kind.more and (not self.kind.is_slow or self.ticks % SLOW == 0):
            with contextlib.suppress(OSError):
                self.socket.send(self.kind.more)
        if self.kind.reads == "slowly" and self.ticks % SLOW == 0:
            self.read(1)

    def probe(self):
        """The answer to it ends a connection that the server does not know."""
        try:
            self.socket.send(b"\r\n")
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def close(self):
        """The server has ended it."""
        if self.head:
            self.crowd.statuses[self.name, self.head[9:12].decode(errors="replace")] += 1
        # One that never came about is none.
        self.crowd.ended[self.name] += self.is_open
        del self.crowd.by_descriptor[self.socket.fileno()]
        self.socket.close()
        self.socket, self.again_at = None, time.monotonic() + 1


class Crowd:
    """All of them, in one thread."""

    def __init__(self, address, count, names):
        self.address, self.epoll, self.by_descriptor, self.is_ending, self.is_probing = address, select.epoll(), {}, False, False
        self.opened, self.ended, self.statuses = (collections.Counter() for _ in range(3))
        self.clients = [Client(self, number, names[number % len(names)]) for number in range(count)]

    def run(self):
        self.epoll.register(sys.stdin, select.EPOLLIN)
        next_tick, is_told = 0, False
        while not self.is_ending or self.by_descriptor:
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + TICK_S
                for client in self.clients:
                    client.tick(now)
                if not is_told and sum(self.opened.values()) >= len(self.clients):
                    is_told = True
                    print("there", flush=True)
            for descriptor, events in self.epoll.poll(max(0, next_tick - time.monotonic())):
                if descriptor == sys.stdin.fileno():
                    self.is_ending = True
                    if not os.read(descriptor, 100):
                        self.epoll.unregister(sys.stdin)
                        self.is_probing = True
                elif client := self.by_descriptor.get(descriptor):
                    client.event(events)
        statuses = {name: {} for name in self.opened}
        for (name, status), count in self.statuses.items():
            statuses.setdefault(name, {})[status] = count
        print(json.dumps({"opened": self.opened, "ended": self.ended, "statuses": statuses}), flush=True)


if __name__ == "__main__":
    where, count, *names = sys.argv[1:]
    host, port = where.rsplit(":", 1)
    Crowd((host, int(port)), int(count), names).run()
