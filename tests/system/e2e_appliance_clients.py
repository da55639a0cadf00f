"""HTTP beside a thousand silent, slow and hostile clients: another client's requests and a volume's I/O go on, and the server ends every one
of them. tests/harness/http_crowd.py is these clients. Only in `make e2e`, which sets SHALE_E2E."""

import http.client
import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

from harness import data, test
from harness.http_crowd import KINDS
from harness.pool import ROOT

from .http import Served, door_of

CLIENTS = 1000
# Requests of the client that behaves, beside each crowd.
REQUESTS = 60
# 256 connections with their buffers, and four large bodies of 16 MiB with their values.
GROWTH_BYTES_MAX = 128 << 20
# A connection in one of these states is the server's no longer: established ones, and those that it has not closed yet, are.
HELD = {"01": "established", "08": "close-wait"}


def of_status(process, key):
    """A figure of a process in bytes."""
    line = next(line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def held_by_server(port):
    """Connections on the server's side of its port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(words[1].endswith(f":{port:04X}") and words[3] in HELD for words in lines)


class Crowd:
    """The clients, in a process of their own."""

    def __init__(self, t, host, *kinds):
        self.t = t
        words = ["nice", "-n", "19", sys.executable, "-B", ROOT / "tests/harness/http_crowd.py", host, str(CLIENTS), *kinds]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        t.defer(self.process.kill)
        t.equal(self.process.stdout.readline(), "there\n", "the first line of the crowd")

    def until_ended(self, port):
        """What became of its connections, when the server has ended all of them."""
        self.process.stdin.write("no more\n")
        self.process.stdin.flush()
        self.t.wait_for(lambda: held_by_server(port) == 0, "the end of all connections")
        said = self.process.communicate(timeout=300)[0]
        self.t.log(said)
        found = json.loads(said)
        self.t.equal(found["ended"], found["opened"], "connections that the server has ended")
        return found


class Volume:
    """A client of a volume, which compares what it reads."""

    def __init__(self, server):
        self.server, self.stop, self.operations, self.failure = server, threading.Event(), 0, None
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        import nbd

        generator, known = random.Random(3), {}
        handle = nbd.NBD()
        try:
            handle.connect_uri(self.server.uri("vm"))
            while not self.stop.is_set():
                place, piece = generator.randrange(256) << 16, generator.randrange(64) << 14
                known[place] = data.base(data.TURNS)[piece:piece + (1 << 16)]
                handle.pwrite(known[place], place)
                place, expected = generator.choice(list(known.items()))
                if handle.pread(1 << 16, place) != expected:
                    raise RuntimeError(f"the bytes at {place} differ")
                self.operations += 2
            handle.shutdown()
        except Exception as error:
            self.failure = repr(error)

    def end(self):
        """Ends it; may be called again."""
        self.stop.set()
        self.thread.join()


class Client:
    """The one that behaves: a connection that stays, and new ones. Nothing is asked twice."""

    def __init__(self, t, web):
        self.t, self.web, self.fields = t, web, {"Authorization": f"Bearer {web.token}"}
        self.connection = web.connection()

    def ask(self, number):
        """One request."""
        if number % 3 == 0:
            self.connection.request("GET", "/api/v1/pool", headers=self.fields)
            answer = self.connection.getresponse()
            self.t.equal((answer.status, json.loads(answer.read())["capacity_bytes"]), (200, 1 << 30), "an answer on the connection that stays")
        elif number % 3 == 1:
            status, _, text = self.web.ask("GET", "/metrics", api=False)
            self.t.expect(status == 200 and "shale_capacity_bytes" in text, f"metrics: {status}")
        else:
            change, patch = {"compression": ("lz4", "zstd-3")[number % 2]}, {"Content-Type": "application/merge-patch+json"}
            status, _, document = self.web.ask("PATCH", "/objects/vm/properties", change, patch)
            self.t.equal(status, 200, f"status of a change: {document}")


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=1800)
    def e2e_appliance_clients(t):
        """a thousand clients that say nothing, or little, or without end, or read nothing, of each kind and all together: no request of another one fails, and all are ended"""
        served = Served(t)
        web, host = served.admin, served.admin.host
        port, [process] = int(host.rsplit(":", 1)[1]), door_of(t, served.server)
        client, volume = Client(t, web), Volume(served.server)
        t.defer(volume.end)
        for number in range(REQUESTS):
            client.ask(number)
        before, descriptors = of_status(process, "VmRSS"), len(os.listdir(f"/proc/{process}/fd"))
        server_before = served.server.rss_bytes()
        total = 0
        for kinds in [*([kind] for kind in KINDS), list(KINDS)]:
            crowd, done = Crowd(t, host, *kinds), volume.operations
            for number in range(REQUESTS):
                try:
                    client.ask(number)
                except (OSError, http.client.HTTPException) as error:
                    t.fail(f"request {number} beside {CLIENTS} clients of {kinds}: {error!r}")
            t.wait_for(lambda done=done: volume.failure or volume.operations >= done + 20, "I/O of the volume meanwhile")
            t.equal(volume.failure, None, "a failure of the volume's client")
            # It would be ended as well.
            client.connection.close()
            found = crowd.until_ended(port)
            total += sum(found["opened"].values())
            statuses = {status for counts in found["statuses"].values() for status in counts}
            t.expect(not any(status.startswith("5") for status in statuses - {"503"}), f"statuses: {found['statuses']}")
        volume.end()
        t.wait_for(lambda: len(os.listdir(f"/proc/{process}/fd")) <= descriptors, f"{descriptors} descriptors")
        t.equal(door_of(t, served.server), [process], "the process that speaks HTTP")
        grown, grown_server = of_status(process, "VmHWM") - before, served.server.rss_bytes() - server_before
        t.note(f"{CLIENTS} clients of {len(KINDS)} kinds, {total} connections; the process that speaks HTTP had at most {grown >> 20} MiB more, the server has {grown_server >> 20} MiB more; "
               f"{volume.operations} operations on the volume meanwhile")
        t.expect(grown < GROWTH_BYTES_MAX, f"memory of the process that speaks HTTP grew by {grown >> 20} MiB")
        served.server.stop()
