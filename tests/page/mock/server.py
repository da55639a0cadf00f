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
        self.pool, self.sessions, self.keys, self.mode, self.streams = pool, {}, set(), {"delay_ms": 0, "refuse": "", "silent": False}, 0
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


OBJECT = r"/objects/(\d+)"


@route("GET", "/pool")
def pool_status(h, pool, query, body):
    return pool.status()


@route("GET", "/health")
def health(h, pool, query, body):
    return pool.health()


@route("GET", "/version", None)
def version(h, pool, query, body):
    return {"version": "0.9.0", "boot": pool.boot, "commit": "7ac187dd", "rustc": "1.95.0"}


@route("GET", "(?:/pool|" + OBJECT + ")/properties")
def properties(h, pool, query, body, number=None):
    number = int(number) if number else None
    if number:
        pool.object(number)
    h.etag = pool.etag(number)
    return pool.properties(number)


@route("PATCH", "(?:/pool|" + OBJECT + ")/properties", "admin")
def set_properties(h, pool, query, body, number=None):
    number = int(number) if number else None
    done = pool.set(number, body, h.user["name"], h.headers.get("If-Match"))
    h.etag = pool.etag(number)
    return done


@route("PUT", "/pool/capacity", "admin")
def capacity(h, pool, query, body):
    pool.capacity = body["capacity_bytes"]
    return pool.status()


@route("POST", "/pool/acknowledgement", "operate")
def acknowledge(h, pool, query, body):
    pool.findings = []
    return None


@route("GET", "/objects")
def objects(h, pool, query, body):
    return pool.list(query)


@route("POST", "/objects", "admin")
def create(h, pool, query, body):
    h.status = 201
    return pool.create(body, h.user["name"])


@route("GET", OBJECT)
def one(h, pool, query, body, number):
    h.etag = pool.etag(int(number))
    return pool.object(int(number))


@route("PATCH", OBJECT, "admin")
def change(h, pool, query, body, number):
    pool.object(int(number))
    pool.objects[int(number)].update({k: v for k, v in body.items() if k in ("name", "size_bytes")})
    pool.touch(int(number))
    return pool.object(int(number))


@route("DELETE", OBJECT, "admin")
def destroy(h, pool, query, body, number):
    return pool.destroy(int(number), query, h.user["name"])


@route("GET", OBJECT + "/snapshots")
def snapshots(h, pool, query, body, number):
    pool.object(int(number))
    found = sorted(pool.snapshots[int(number)], key=lambda s: -s["created_unix_s"])
    begin, limit = int(query.get("cursor", 0)), int(query.get("limit", 200))
    return {"snapshots": found[begin:begin + limit], "next": str(begin + limit) if begin + limit < len(found) else None, "total": len(found)}


@route("POST", OBJECT + "/snapshots", "operate")
def take(h, pool, query, body, number):
    h.status = 201
    return pool.take(int(number), body["name"], h.user["name"])


@route("DELETE", OBJECT + "/snapshots/([^/]+)", "admin")
def destroy_snapshot(h, pool, query, body, number, name):
    found = pool.snapshot(int(number), name)
    if found["holds"]:
        raise Problem(409, "in-use", f"'{found['volume']}@{name}' is held: {', '.join(found['holds'])}")
    pool.snapshots[int(number)].remove(found)
    pool.weigh(int(number))
    pool.touch(int(number))


@route("PUT", OBJECT + "/snapshots/([^/]+)/holds/([^/]+)", "operate")
def hold(h, pool, query, body, number, name, tag):
    pool.snapshot(int(number), name)["holds"].append(tag)


@route("DELETE", OBJECT + "/snapshots/([^/]+)/holds/([^/]+)", "operate")
def release(h, pool, query, body, number, name, tag):
    pool.snapshot(int(number), name)["holds"].remove(tag)


@route("POST", OBJECT + "/snapshots/([^/]+)/rollback", "admin")
def rollback(h, pool, query, body, number, name):
    found = pool.snapshot(int(number), name)
    newer = [s for s in pool.snapshots[int(number)] if s["created_unix_s"] > found["created_unix_s"]]
    o = pool.object(int(number))
    if query.get("preview"):
        return {"objects": [], "snapshots": len(newer), "snapshot_names": [s["name"] for s in newer][:20], "clients": o["client_names"], "stored_bytes": 0}
    if newer and not query.get("recursive"):
        raise Problem(409, "conflict", f"{len(newer)} newer snapshots would be lost; say recursive=true")
    if o["client_names"] and not query.get("force"):
        raise Problem(409, "in-use", f"'{o['name']}' is open: {o['client_names'][0]}", blockers=o["client_names"])
    pool.snapshots[int(number)] = [s for s in pool.snapshots[int(number)] if s not in newer]
    pool.touch(int(number))
    pool.log(h.user["name"], "rollback", f"{o['name']}@{name}", "", "done")


@route("POST", OBJECT + "/snapshots/([^/]+)/clone", "admin")
def clone(h, pool, query, body, number, name):
    h.status = 201
    pool.snapshot(int(number), name)
    return pool.create({"name": body["name"], "from": f"{pool.object(int(number))['name']}@{name}"}, h.user["name"])


@route("GET", OBJECT + "/diff")
def diff(h, pool, query, body, number):
    pool.snapshot(int(number), query["from"])
    return {"changes": [{"offset": n * 917504, "length": 131072, "now": "data" if n % 5 else "hole"} for n in range(40)], "next": None, "from_bytes": GIB, "to_bytes": GIB}


@route("GET", OBJECT + "/usage", "operate")
def usage(h, pool, query, body, number):
    return pool.usage(query.get("path", ""))


@route("GET", OBJECT + "/explain-map")
def explain_map(h, pool, query, body, number):
    return pool.explain_map(int(number), int(query.get("cells", 1024)))


@route("GET", OBJECT + "/explain")
def explain(h, pool, query, body, number):
    return pool.explain(int(number), int(query.get("offset", 0)))


@route("GET", OBJECT + "/estimates")
def estimate(h, pool, query, body, number):
    return pool.estimate(int(number))


@route("POST", OBJECT + "/estimates", "operate")
def start_estimate(h, pool, query, body, number):
    h.status, more = 202, (pool.estimates.get(int(number)) or {}).get("choices", [])
    pool.estimates[int(number)] = {"at": time.time(), "pace": 1.2, "choices": [*more, *body.get("choices", [])]}
    return pool.shown(pool.start_job("estimate", pool.object(int(number))["name"], seconds=3, total=96 << 20))


@route("GET", OBJECT + "/files/(.*)", "operate")
def files(h, pool, query, body, number, path):
    found = pool.files(int(number), path, query.get("at"))
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
    return pool.shown(pool.start_job("restore", f"{pool.object(int(number))['name']}/{path}", seconds=2, total=40 << 20))


@route("GET", "/exports")
def exports(h, pool, query, body):
    return pool.exports("check" in query)


@route("GET", "/jobs")
def jobs(h, pool, query, body):
    pool.tick()
    return {"jobs": [pool.shown(j) for j in pool.jobs][::-1]}


@route("POST", "/jobs", "operate")
def start_job(h, pool, query, body):
    h.status = 202
    number = body.get("object")
    o = pool.object(number) if number else None
    return pool.shown(pool.start_job(body["kind"], o["name"] if o else None, total=o["stored_bytes"] if o else 300 * GIB))


@route("GET", "/jobs/([^/]+)")
def job(h, pool, query, body, name):
    pool.tick()
    return pool.shown(pool.job(name))


@route("PATCH", "/jobs/([^/]+)", "operate")
def change_job(h, pool, query, body, name):
    found = pool.job(name)
    found["state"] = body["state"]
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
    return {"datasets": [{"dataset": d[0], "title": d[1], "unit": d[2], "kind": d[3], "breakdowns": d[4]} for d in series.DATASETS],
            "tiers": [{"step_s": 1, "from_unix_s": int(time.time()) - 7200}, {"step_s": 10, "from_unix_s": int(time.time()) - 7 * 86400}, {"step_s": 300, "from_unix_s": int(time.time()) - 300 * 86400}]}


@route("GET", "/analytics/series")
def analytics(h, pool, query, body):
    return series.series(pool, query)


@route("GET", "/analytics/heatmap")
def heatmap(h, pool, query, body):
    return series.heatmap(query)


@route("GET", "/analytics/marks")
def marks(h, pool, query, body):
    return {"marks": [m for m in pool.marks if float(query["from"]) <= m["unix_s"] <= float(query["to"])]}


@route("GET", "/worksheets")
def worksheets(h, pool, query, body):
    return {"worksheets": [{"name": name} for name in sorted(pool.worksheets)]}


@route("GET", "/worksheets/(.+)")
def worksheet(h, pool, query, body, name):
    if name not in pool.worksheets:
        raise Problem(404, "not-found", f"there is no worksheet '{name}'")
    return pool.worksheets[name]


@route("PUT", "/worksheets/(.+)", "operate")
def save_worksheet(h, pool, query, body, name):
    pool.worksheets[name] = body


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
    pool.users.append({"name": body["name"], "role": body["role"], "last_seen_unix_s": None})


@route("DELETE", "/users/(.+)", "admin")
def drop_user(h, pool, query, body, name):
    pool.users = [u for u in pool.users if u["name"] != name]


@route("GET", "/tokens", "admin")
def tokens(h, pool, query, body):
    return {"tokens": pool.tokens}


@route("POST", "/tokens", "admin")
def add_token(h, pool, query, body):
    h.status = 201
    pool.tokens.append({"name": body["name"], "role": body["role"], "folder": body.get("folder"), "expires_unix_s": body.get("expires_unix_s"), "last_used_unix_s": None})
    return {**pool.tokens[-1], "token": "shale_" + secrets.token_urlsafe(32)}


@route("DELETE", "/tokens/(.+)", "admin")
def drop_token(h, pool, query, body, name):
    pool.tokens = [t for t in pool.tokens if t["name"] != name]


@route("GET", "/audit", "admin")
def audit(h, pool, query, body):
    return {"entries": pool.audit[::-1][:500], "next": None}


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
                self.status, self.bytes = 200, None
                with pool.lock:
                    document = function(self, pool, query, body, *(urllib.parse.unquote(g) for g in found.groups() if g is not None))
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
        generation, states = pool.generation, {}
        pool.changed.clear(), pool.removed.clear()
        health_told = None
        try:
            while not state.mode["silent"] and self.user in state.sessions.values():
                with pool.lock:
                    now = time.time()
                    frames = [("figures", series.figures(pool, now))]
                    moved = pool.tick()
                    if moved:
                        frames.append(("jobs", {"jobs": moved}))
                    told = {j["id"]: j["state"] for j in pool.jobs}
                    if told != states and not moved:
                        frames.append(("jobs", {"jobs": [pool.shown(j) for j in pool.jobs if states.get(j["id"]) != j["state"]]}))
                    states = told
                    if pool.generation != generation:
                        generation = pool.generation
                        frames.append(("objects", {"changed": sorted(pool.changed), "removed": sorted(pool.removed)}))
                        pool.changed.clear(), pool.removed.clear()
                    if health_told != pool.health():
                        health_told = pool.health()
                        frames.append(("health", health_told))
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
            if key in ("delay_ms", "refuse", "silent"):
                state.mode[key] = value
            elif key == "role":
                for session in state.sessions.values():
                    session["role"] = value
            elif key == "findings":
                state.pool.findings = value
            elif key == "boot":
                state.pool.boot = value
            elif key == "estimate_pace":
                state.pool.estimates = {n: {**e, "pace": value} for n, e in state.pool.estimates.items()}
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
