#!/usr/bin/env python3
"""Serves the built page and a pool in memory by the paths of the REST interface, for development and for the tests of the page.

    python3 -m tests.page.mock.server --port 8099                   prints a log-in link
    python3 -m tests.page.mock.server --many 10000 --snapshots 2000 a large pool
    python3 -m tests.page.mock.server --empty                       one with nothing in it

A test tool, never shipped: it checks neither origins nor limits. `POST /mock` changes how it behaves (tests/page/harness.py).
"""

import argparse
import json
import mimetypes
import re
import secrets
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from . import series
from .pool import GIB, Pool, Problem

ASSETS = Path(__file__).resolve().parents[3] / "crates" / "fe-http" / "assets"
RANK = {"read": 0, "operate": 1, "admin": 2}
CSP = ("default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'; "
       "require-trusted-types-for 'script'; trusted-types svelte-trusted-html")
LINE_SECONDS = 1.0


class Query(dict):
    """Parameters: the last one of each name, and all of it by `getlist`."""

    def __init__(self, text):
        self.all = urllib.parse.parse_qs(text, keep_blank_values=True)
        super().__init__({key: values[-1] for key, values in self.all.items()})

    def getlist(self, key):
        return self.all.get(key, [])


class State:
    """The pool and those who are logged in."""

    def __init__(self, pool):
        self.pool, self.sessions, self.keys, self.mode, self.streams = pool, {}, set(), {"delay_ms": 0, "refuse": "", "silent": False, "ahead_s": 0}, 0
        self.csp_reports = []

    def key(self):
        key = secrets.token_urlsafe(16)
        self.keys.add(key)
        return key


ROUTES = []


def route(method, pattern, needs="read"):
    """Registers an answer for a path below /api/v1."""
    def add(function):
        ROUTES.append((method, re.compile(pattern + "$"), needs, function))
        return function
    return add


OBJECT = r"/objects/([^/]+)"


@route("GET", "/pool")
def pool_status(h, pool, query, body):
    return pool.status()


@route("GET", "/version", None)
def version(h, pool, query, body):
    return {"version": "0.9.0"}


@route("GET", "(?:/pool|" + OBJECT + ")/properties")
def properties(h, pool, query, body, number=None):
    h.etag = pool.etag(number)
    return pool.properties(number)


@route("PATCH", "(?:/pool|" + OBJECT + ")/properties", "admin")
def set_properties(h, pool, query, body, number=None):
    done = pool.set(number, body, h.user["name"], h.headers.get("If-Match"))
    h.etag = pool.etag(number)
    return done


@route("PUT", "/pool/capacity", "admin")
def capacity(h, pool, query, body):
    pool.capacity = body["capacity_bytes"]


@route("POST", "/pool/acknowledgement", "operate")
def acknowledge(h, pool, query, body):
    pool.findings = []


@route("GET", "/objects")
def objects(h, pool, query, body):
    return pool.list(query)


@route("GET", OBJECT)
def one(h, pool, query, body, number):
    h.etag = pool.etag(number)
    return {**pool.object(number), "etag": h.etag.strip('"')}


@route("POST", "/(volume|share|folder)s", "admin")
def create(h, pool, query, body, kind):
    h.status = 201
    return {"id": pool.create({"name": body[kind], "kind": kind, **body}, h.user["name"])["id"], "notes": []}


@route("PUT", OBJECT + "/(name|size)", "admin")
def change(h, pool, query, body, number, what):
    pool.objects[number].update({"name": body["name"]} if what == "name" else {"size_bytes": body["size_bytes"]})
    pool.touch(number)


@route("POST", OBJECT + "/promote", "admin")
def promote(h, pool, query, body, number):
    pool.objects[number]["origin"] = None
    pool.touch(number)


@route("DELETE", OBJECT, "admin")
def destroy(h, pool, query, body, number):
    if h.snapshot is None:
        return pool.destroy(number, query, h.user["name"])
    found = pool.snapshot(number, h.snapshot)
    if found["holds"]:
        raise Problem(409, "in-use", f"'{found['volume']}@{h.snapshot}' is held: {', '.join(found['holds'])}")
    pool.snapshots[number].remove(found)
    pool.weigh(number)
    pool.touch(number)
    return None


@route("GET", OBJECT + "/snapshots")
def snapshots(h, pool, query, body, number):
    return pool.snapshots[number]


@route("POST", OBJECT + "/snapshots", "operate")
def take(h, pool, query, body, number):
    pool.take(number, body["name"], h.user["name"])


@route("POST", "/folders/([^/]+)/snapshots", "operate")
def take_below(h, pool, query, body, folder):
    inside = [c["id"] for c in pool.children(pool.objects[pool.resolve(folder)[0]]["name"]) if not c["folder"]]
    return [f"{pool.take(n, body['name'], h.user['name'])['volume']}@{body['name']}" for n in inside]


@route("PUT", OBJECT + "/holds/([^/]+)", "operate")
def hold(h, pool, query, body, number, tag):
    pool.snapshot(number, h.snapshot)["holds"].append(tag)


@route("DELETE", OBJECT + "/holds/([^/]+)", "operate")
def release(h, pool, query, body, number, tag):
    pool.snapshot(number, h.snapshot)["holds"].remove(tag)


@route("POST", "/rollback", "admin")
def rollback(h, pool, query, body):
    for title in body["snapshots"]:
        number, name = pool.resolve(title)
        found, o = pool.snapshot(number, name), pool.object(number)
        newer = [s for s in pool.snapshots[number] if s["created_unix_s"] > found["created_unix_s"]]
        if newer and not body.get("recursive"):
            raise Problem(409, "conflict", f"{len(newer)} newer snapshots would be lost; say recursive=true")
        if o["client_names"] and not body.get("force"):
            raise Problem(409, "in-use", f"'{o['name']}' is open: {o['client_names'][0]}", blockers=o["client_names"])
        pool.snapshots[number] = [s for s in pool.snapshots[number] if s not in newer]
        pool.touch(number)
        pool.log(h.user["name"], "rollback", f"roll back to {title}", "done")


@route("POST", OBJECT + "/clones", "admin")
def clone(h, pool, query, body, number):
    pool.snapshot(number, h.snapshot)
    h.status = 201
    return {"id": pool.create({"name": body["volume"], "from": f"{pool.object(number)['name']}@{h.snapshot}"}, h.user["name"])["id"], "notes": []}


@route("GET", OBJECT + "/diff")
def diff(h, pool, query, body, number):
    pool.snapshot(*pool.resolve(query["from"]))
    return {"changes": [{"offset": n * 917504, "length": 131072, "now": "data" if n % 5 else "hole"} for n in range(40)], "next": None, "from_bytes": GIB, "to_bytes": GIB}


@route("GET", OBJECT + "/usage", "operate")
def usage(h, pool, query, body, number):
    return pool.usage(query.get("path", ""))


@route("GET", OBJECT + "/explain-map")
def explain_map(h, pool, query, body, number):
    return pool.explain_map(number, int(query.get("cells", 1024)))


@route("GET", OBJECT + "/explain/(\\d+)")
def explain(h, pool, query, body, number, offset):
    return pool.explain(number, int(offset))


@route("GET", OBJECT + "/estimates")
def estimate(h, pool, query, body, number):
    return pool.estimate(number)


@route("POST", OBJECT + "/estimates", "operate")
def start_estimate(h, pool, query, body, number):
    h.status = 202
    job = pool.start_job("estimate", pool.object(number)["name"], seconds=3, total=96 << 20)
    pool.estimates[number] = {"at": time.time(), "pace": pool.estimate_pace, "job": job["id"], "choices": body.get("choices") or ["lz4", "zstd-1", "zstd-3", "zstd-9", "zstd-19"]}
    return pool.shown(job)


@route("GET", OBJECT + "/files/(.*)", "operate")
def files(h, pool, query, body, number, path):
    found = pool.files(number, path, query.get("at"))
    if found is not None:
        return found
    if h.role() < RANK["admin"]:
        raise Problem(403, "forbidden", "the content of files needs the role admin")
    h.bytes = pool.content(path, query.get("at"))
    return None


@route("POST", OBJECT + "/files/(.*)/restore", "admin")
def restore(h, pool, query, body, number, path):
    h.status = 202
    if not body.get("replace") and not body.get("to") and path in ("README.md",):
        raise Problem(409, "exists", f"'{path}' is newer than the snapshot's; restore it to another place, or say replace=true")
    pool.restored.append(path)
    return pool.shown(pool.start_job("restore", f"{pool.object(number)['name']}/{path}", seconds=2, total=40 << 20))


@route("GET", "/exports")
def exports(h, pool, query, body):
    return pool.exports("check" in query)


@route("GET", "/jobs")
def jobs(h, pool, query, body):
    pool.tick()
    return [pool.shown(j) for j in pool.jobs]


@route("POST", "/jobs", "operate")
def start_job(h, pool, query, body):
    h.status = 202
    wish = body["wish"]
    o = pool.object(pool.resolve(wish["volume"])[0]) if "volume" in wish else None
    return pool.shown(pool.start_job(wish["kind"], o["name"] if o else None, total=o["stored_bytes"] if o else 300 * GIB))


@route("GET", "/jobs/([^/]+)")
def job(h, pool, query, body, name):
    pool.tick()
    return pool.shown(pool.job(name))


@route("POST", "/jobs/([^/]+)/(pause|resume)", "operate")
def change_job(h, pool, query, body, name, what):
    found = pool.job(name)
    found["state"] = "paused" if what == "pause" else "running"
    found["changes"] += 1
    return pool.shown(found)


@route("DELETE", "/jobs/([^/]+)", "operate")
def cancel_job(h, pool, query, body, name):
    found = pool.job(name)
    if found["state"] in ("running", "paused"):
        found["state"] = "cancelling"
    return pool.shown(found)


@route("GET", "/analytics/datasets")
def datasets(h, pool, query, body):
    now = int(time.time())
    return {"version": 1, "datasets": [{"dataset": d[0], "text": d[1], "unit": d[2], "shape": d[3], "breakdowns": d[4]} for d in series.DATASETS],
            "store": {"budget_bytes": 128 << 20, "stored_bytes": 9 << 20, "oldest_unix_s": [now - 7200, now - 7 * 86400, now - 300 * 86400]}}


@route("GET", "/analytics/series")
def analytics(h, pool, query, body):
    return series.series(pool, query)


@route("GET", "/analytics/heatmap")
def heatmap(h, pool, query, body):
    return series.heatmap(pool, query)


@route("GET", "/analytics/marks")
def marks(h, pool, query, body):
    return [{"unix_s": m["unix_s"], "text": m["text"]} for m in pool.marks if int(query["from_unix_s"]) <= m["unix_s"] <= int(query["to_unix_s"])]


@route("GET", "/worksheets")
def worksheets(h, pool, query, body):
    return [{"name": name, "body": text} for name, text in sorted(pool.worksheets.items())]


@route("PUT", "/worksheets/(.+)", "operate")
def save_worksheet(h, pool, query, body, name):
    pool.worksheets[name] = body["body"]


@route("DELETE", "/worksheets/(.+)", "operate")
def drop_worksheet(h, pool, query, body, name):
    pool.worksheets.pop(name, None)


@route("GET", "/users", "admin")
def users(h, pool, query, body):
    return {"users": pool.users}


@route("POST", "/users", "admin")
def add_user(h, pool, query, body):
    if len(body.get("password", "")) < 8:
        raise Problem(422, "invalid", "a password has at least 8 characters")
    h.status = 201
    pool.users.append({"name": body["name"], "role": body["role"], "password_set_unix_s": int(time.time())})


@route("DELETE", "/users/(.+)", "admin")
def drop_user(h, pool, query, body, name):
    pool.users = [u for u in pool.users if u["name"] != name]


@route("GET", "/tokens", "admin")
def tokens(h, pool, query, body):
    return {"tokens": pool.tokens}


@route("POST", "/tokens", "admin")
def add_token(h, pool, query, body):
    h.status = 201
    pool.tokens.append({"name": body["name"], "role": body["role"], "created_unix_s": int(time.time()), "expires_unix_s": body.get("expires_unix_s"), "last_used_unix_s": None})
    return {**pool.tokens[-1], "token": "shale_" + secrets.token_urlsafe(32)}


@route("DELETE", "/tokens/(.+)", "admin")
def drop_token(h, pool, query, body, name):
    pool.tokens = [t for t in pool.tokens if t["name"] != name]


@route("GET", "/audit", "admin")
def audit(h, pool, query, body):
    return {"entries": pool.audit[-int(query.get("limit", 100)):]}


class Handler(BaseHTTPRequestHandler):
    """A request."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "mock", ""

    def log_message(self, *words):
        pass

    def role(self):
        return RANK[self.user["role"]]

    def answer(self, status, content, kind="application/json", **headers):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", headers.pop("cache", "no-store"))
        if getattr(self, "etag", None):
            self.send_header("ETag", self.etag)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_GET(self):
        self.etag, state = None, self.server.state
        path, _, text = self.path.partition("?")
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length) if length else b""
        if path == "/mock":
            return self.control(json.loads(raw or b"{}"))
        if path == "/csp":
            state.csp_reports.append(raw.decode())
            return self.answer(204, b"")
        if state.mode["silent"]:
            self.close_connection = True
            return None
        if not path.startswith("/api/v1/"):
            return self.page(path)
        if state.mode["delay_ms"]:
            time.sleep(state.mode["delay_ms"] / 1000)
        try:
            return self.api(path[len("/api/v1"):], Query(text), raw)
        except Problem as problem:
            headers = {"Retry_After": "30"} if problem.status == 429 else {}
            return self.answer(problem.status, json.dumps(problem.document).encode(), "application/problem+json", **headers)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_GET

    def api(self, path, query, raw):
        state = self.server.state
        pool, body = state.pool, json.loads(raw) if raw else {}
        cookie = re.search(r"session=([\w-]+)", self.headers.get("Cookie") or "")
        self.user = state.sessions.get(cookie[1] if cookie else None)
        if path == "/session":
            return self.session(cookie, body)
        if self.user is None:
            raise Problem(401, "unauthorized", "log in first")
        if path == "/events":
            return self.events(query)
        if state.mode["refuse"] and re.search(state.mode["refuse"], path):
            raise Problem(500, "io", "the pool's map store cannot be read: input/output error")
        for method, pattern, needs, function in ROUTES:
            found = pattern.match(path)
            if found and method == self.command:
                if needs and self.role() < RANK[needs]:
                    raise Problem(403, "forbidden", f"this needs the role {needs}; you have {self.user['role']}")
                self.status, self.bytes, self.snapshot = 200, None, None
                given = [urllib.parse.unquote(g) for g in found.groups() if g is not None]
                with pool.lock:
                    if "/objects/" in pattern.pattern and path.startswith("/objects/"):
                        given[0], self.snapshot = pool.resolve(given[0])
                    document = function(self, pool, query, body, *given)
                if self.bytes is not None:
                    return self.answer(200, self.bytes, "application/octet-stream", Content_Disposition="attachment", Content_Security_Policy="sandbox")
                return self.answer(self.status if document is not None else 204, b"" if document is None else json.dumps(document).encode())
        raise Problem(404, "not-found", f"there is no {self.command} {path}")

    def session(self, cookie, body):
        state = self.server.state
        if self.command == "DELETE":
            state.sessions.pop(cookie[1] if cookie else None, None)
            return self.answer(204, b"")
        if self.command == "GET" and self.user is None:
            raise Problem(401, "unauthorized", "log in first")
        if self.command == "POST":
            if body.get("key") in state.keys:
                state.keys.discard(body["key"])
                user = {"name": "anna", "role": "admin"}
            else:
                user = next((u for u in state.pool.users if u["name"] == body.get("user") and body.get("password") == "correct horse"), None)
            if user is None:
                state.mode["failed"] = state.mode.get("failed", 0) + 1
                if state.mode["failed"] > 5:
                    raise Problem(429, "busy", "too many attempts; try again in 30 seconds")
                raise Problem(401, "unauthorized", "that log-in link was used, or is too old" if "key" in body else "user or password is wrong")
            token = secrets.token_urlsafe(24)
            self.user = state.sessions[token] = dict(user)
            document = json.dumps({"user": user["name"], "role": user["role"], "boot": state.pool.boot}).encode()
            return self.answer(200, document, Set_Cookie=f"session={token}; Path=/; HttpOnly; SameSite=Strict")
        return self.answer(200, json.dumps({"user": self.user["name"], "role": self.user["role"], "boot": state.pool.boot}).encode())

    def events(self, query):
        state = self.server.state
        pool = state.pool
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        state.streams += 1
        generation, states, wanted = pool.generation, {}, set(filter(None, query.get("objects", "").split(",")))
        health_sent = None
        try:
            while not state.mode["silent"] and self.user in state.sessions.values():
                with pool.lock:
                    now = time.time() + state.mode["ahead_s"]
                    frames = [("figures", series.figures(pool, now, wanted))]
                    moved = pool.tick()
                    if moved:
                        frames.append(("jobs", {"jobs": moved}))
                    sent = {j["id"]: j["state"] for j in pool.jobs}
                    if sent != states and not moved:
                        frames.append(("jobs", {"jobs": [pool.shown(j) for j in pool.jobs if states.get(j["id"]) != j["state"]]}))
                    states = sent
                    if pool.generation != generation:
                        generation = pool.generation
                        frames.append(("reset", {"generation": generation}))
                    if health_sent != pool.health():
                        health_sent = pool.health()
                        frames.append(("health", health_sent))
                for name, document in frames:
                    self.wfile.write(f"id: {pool.boot}-{int(now)}\nevent: {name}\ndata: {json.dumps(document)}\n\n".encode())
                self.wfile.flush()
                time.sleep(LINE_SECONDS)
        except OSError:
            pass
        finally:
            state.streams -= 1

    def page(self, path):
        index = json.loads((ASSETS / "assets.json").read_text()) if (ASSETS / "assets.json").exists() else []
        found = next((a for a in index if a["path"] == path), None)
        if found is None:
            return self.answer(404, b"not found\n", "text/plain")
        packed = found.get("brotli") and "br" in (self.headers.get("Accept-Encoding") or "")
        content = (ASSETS / (found["brotli"] if packed else found["file"])).read_bytes()
        self.etag = f'"{found["etag"]}"'
        headers = {"Content_Encoding": "br"} if packed else {}
        return self.answer(200, content, found["type"] or mimetypes.guess_type(path)[0], cache="public, max-age=31536000, immutable" if found["immutable"] else "no-cache",
                           Content_Security_Policy=CSP + "; report-uri /csp", Referrer_Policy="no-referrer", **headers)

    def control(self, wish):
        """Changes how the mock behaves: what the harness asks for."""
        state = self.server.state
        for key, value in wish.items():
            if key in ("delay_ms", "refuse", "silent", "ahead_s"):
                state.mode[key] = value
            elif key == "role":
                for session in state.sessions.values():
                    session["role"] = value
            elif key == "findings":
                state.pool.findings = value
            elif key == "boot":
                state.pool.boot = value
            elif key == "estimate_pace":
                state.pool.estimate_pace = value
        answer = {"key": state.key(), "streams": state.streams, "csp": state.csp_reports, "restored": state.pool.restored}
        return self.answer(200, json.dumps(answer).encode())


class Server(ThreadingHTTPServer):
    """The mock, with its state."""

    daemon_threads, request_queue_size = True, 64

    def __init__(self, port=0, **pool):
        self.state = State(Pool(**pool))
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        pass

    def start(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--many", type=int, default=0)
    parser.add_argument("--snapshots", type=int, default=24)
    parser.add_argument("--empty", action="store_true")
    asked = parser.parse_args()
    server = Server(asked.port, many=asked.many, snapshots=asked.snapshots, empty=asked.empty)
    print(f"{server.address}/#key={server.state.key()}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
