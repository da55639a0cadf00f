"""REST and metrics of a pool with ten thousand volumes and two thousand snapshots, while others come and go. Only in `make e2e`, which sets
SHALE_E2E. SHALE_VOLUMES says how many."""

import itertools
import json
import os
import threading
from urllib.parse import urlencode

from harness import Pool, test

from .http import Web, make_token, samples

VOLUMES = int(os.environ.get("SHALE_VOLUMES", "10000"))
SNAPSHOTS = VOLUMES // 5
# /metrics names this many objects; the rest is a sum.
NAMED_MAX = 1000
# Objects of a page, as the page in the browser asks for them, and few enough for many pages.
LIMITS = (1000, 200)
METRICS_BYTES_MAX = 3_000_000


class Rest:
    """A client that keeps its connection."""

    def __init__(self, t, web):
        self.t, self.fields, self.connection = t, {"Authorization": f"Bearer {web.token}", "Content-Type": "application/json"}, web.connection()

    def ask(self, method, path, body=None, status=200, **query):
        """The document."""
        words = urlencode({key: value for key, value in query.items() if value is not None})
        self.connection.request(method, f"/api/v1{path}?{words}", body and json.dumps(body), self.fields)
        answer = self.connection.getresponse()
        text = answer.read()
        self.t.expect(answer.status == status, f"{method} {path} {query}: {answer.status} {text[:300]}")
        return json.loads(text) if text else None

    def pages(self, limit, **query):
        """All objects of a list, page by page."""
        found, cursor = [], None
        while True:
            page = self.ask("GET", "/objects", limit=limit, cursor=cursor, **query)
            self.t.expect(len(page["objects"]) <= limit and (page["objects"] or not page["next"]), f"a page of {len(page['objects'])} objects, at most {limit}")
            found += page["objects"]
            cursor = page["next"]
            if not cursor:
                return found, page["total"]


class Comings:
    """A client that creates and destroys volumes between the others, until it is told to end."""

    def __init__(self, rest):
        self.rest, self.stop, self.rounds, self.failure = rest, threading.Event(), 0, None
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        try:
            while not self.stop.is_set():
                # Before, between and behind those that stay.
                names = [f"many/{place}-{self.rounds}" for place in ("a", "v0", "v00777", "v05000x", "v09999", "z")]
                made = [self.rest.ask("POST", "/volumes", {"volume": name, "size_bytes": 1 << 20}, status=201)["id"] for name in names]
                for number in made:
                    self.rest.ask("DELETE", f"/objects/{number}", status=204)
                self.rounds += 1
        except Exception as error:
            self.failure = repr(error)

    def end(self):
        """May be called again."""
        self.stop.set()
        self.thread.join()


def names_of(objects):
    return [one["name"] for one in objects]


def is_list(t, found, expected, what):
    """Fails unless two long lists are equal, with the first places at which they differ."""
    wrong = [(place, *pair) for place, pair in enumerate(itertools.zip_longest(expected, found)) if pair[0] != pair[1]]
    t.expect(not wrong, f"{what}: {len(found)} names, {len(expected)} expected; place, expected and found: {wrong[:3]}")


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=3600)
    def e2e_appliance_many(t):
        """10,000 volumes and 2,000 snapshots: lists, filters, orders and metrics are whole; no name is missing or doubled while volumes come and go"""
        pool = Pool(t, capacity="8G")
        server = pool.serve(words=["--http", "127.0.0.1:0"])
        web = Web(server, make_token(pool, "admin", "admin"))
        rest = Rest(t, web)
        for folder in ("many", "many/inner"):
            rest.ask("POST", "/folders", {"folder": folder}, status=201)
        stay = [f"many/{'inner/' if number % 10 == 7 else ''}v{number:05}" for number in range(VOLUMES)]
        for name in stay:
            rest.ask("POST", "/volumes", {"volume": name, "size_bytes": 16 << 20}, status=201)
        rest.ask("POST", "/volumes", {"volume": "vol", "size_bytes": 64 << 20}, status=201)
        t.run("nbdsh", "-u", server.uri("vol"), "-c", "h.pwrite(b'x' * 65536, 0)", "-c", "h.flush()")
        kept = [f"s{number:05}" for number in range(SNAPSHOTS)]
        for name in kept:
            rest.ask("POST", "/objects/vol/snapshots", {"name": name}, status=204)

        everything = sorted([*stay, "vol", "many", "many/inner"])
        for limit in LIMITS:
            found, total = rest.pages(limit)
            is_list(t, names_of(found), everything, f"the list in pages of {limit}")
            t.equal(total, len(everything), "total of the list")
        is_list(t, names_of(rest.pages(1000, descending="true")[0]), everything[::-1], "the list from its end")
        found, total = rest.pages(200, matching="v001", kind="volume")
        expected = [name for name in everything if "v001" in name]
        is_list(t, names_of(found), expected, "the list with a filter")
        t.equal(total, len(expected), "total of the list with a filter")
        direct = [name for name in everything if name.startswith("many/") and name.count("/") == 1]
        is_list(t, names_of(rest.pages(1000, parent="many", recursive="false")[0]), direct, "the list of a folder")
        t.equal(names_of(rest.ask("GET", "/objects", name=stay[4321 % VOLUMES])["objects"]), [stay[4321 % VOLUMES]], "one object by its name")
        is_list(t, names_of(rest.ask("GET", "/objects/vol/snapshots")), kept, "the snapshots")
        listed = json.loads(pool.shale("list", "--json", quiet=True).stdout)
        is_list(t, names_of(listed), everything, "the list of the command")

        text = web.ask("GET", "/metrics", api=False)[2]
        checked = t.run("promtool", "check", "metrics", stdin=text, status=None)
        t.equal((checked.returncode, checked.stdout, checked.stderr), (0, "", ""), "promtool on the metrics")
        values = samples(text)
        named = [name for name in values if name.startswith("shale_size_bytes{")]
        t.equal((len(named), values["shale_objects_unnamed"]), (NAMED_MAX + 1, str(VOLUMES + 1 - NAMED_MAX)), "objects in the metrics with a name and without")
        t.equal(sum(float(values[name]) for name in named), (VOLUMES * 16 + 64) << 20, "sizes of all in the metrics")
        t.expect(len(text) <= METRICS_BYTES_MAX, f"the metrics are {len(text)} bytes")

        comings = Comings(Rest(t, web))
        t.defer(comings.end)
        walks = 0
        for order in ("name", "id", "stored", "allocated", "ratio"):
            for descending in ("false", "true"):
                for limit in LIMITS:
                    began = comings.rounds
                    found, _ = rest.pages(limit, sort=order, descending=descending)
                    t.wait_for(lambda began=began: comings.failure or comings.rounds > began, "volumes that come and go")
                    t.equal(comings.failure, None, "a failure of the client that makes and destroys volumes")
                    numbers, names = [one["id"] for one in found], names_of(found)
                    t.equal(len(set(numbers)), len(numbers), f"objects listed once by {order}")
                    t.equal(len(set(names)), len(names), f"names listed once by {order}")
                    t.equal(sorted(set(everything) - set(names))[:3], [], f"names that are missing by {order}")
                    walks += 1
        comings.end()
        is_list(t, names_of(rest.pages(1000)[0]), everything, "the list afterwards")
        t.note(f"{VOLUMES:,} volumes, {SNAPSHOTS:,} snapshots; /metrics has {len(text):,} bytes; {walks} walks through the list while {comings.rounds * 6:,} volumes came and went")
        server.stop()
