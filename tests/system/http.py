"""HTTP: the API, its guards, the metrics and the process that speaks it, with the real server and raw clients."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from urllib.parse import quote

from harness import Pool, test
from harness.pool import BINARY, ROOT

PASSWORD = "correct horse battery"
JSON = {"Content-Type": "application/json"}


class Web:
    """A client of a served pool's API; `token` and `cookie` go with each request that does not name its own."""

    def __init__(self, server, token=None):
        match = re.search(r"^http (https?)://([^/]+)/$", server.output, re.M)
        self.scheme, self.host = match.groups()
        self.token, self.cookie = token, None

    def connection(self):
        host, port = self.host.rsplit(":", 1)
        if self.scheme == "https":
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            return http.client.HTTPSConnection(host, int(port), timeout=60, context=context)
        return http.client.HTTPConnection(host, int(port), timeout=60)

    def ask(self, method, path, body=None, headers=None, api=True):
        """(status, fields, document or text)"""
        fields = dict(headers or {})
        if self.token and "Authorization" not in fields:
            fields["Authorization"] = f"Bearer {self.token}"
        if self.cookie and "Cookie" not in fields:
            fields["Cookie"] = self.cookie
        if body is not None:
            fields.setdefault("Content-Type", "application/json")
            if not isinstance(body, (bytes, str)):
                body = json.dumps(body)
        connection = self.connection()
        connection.request(method, ("/api/v1" if api else "") + path, body, fields)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        kind = answer.headers.get("Content-Type", "")
        return answer.status, answer.headers, json.loads(text) if "json" in kind else text

    def log_in(self, t, **credentials):
        """Keeps the cookie."""
        status, fields, document = self.ask("POST", "/session", credentials, self.origin())
        t.equal(status, 200, f"status of the log-in, {document}")
        self.cookie = fields["Set-Cookie"].split(";")[0]
        return document

    def origin(self):
        return {"Origin": f"{self.scheme}://{self.host}"}


class Served:
    """A pool with a volume and users, served over HTTP."""

    def __init__(self, t, *words, **named):
        self.pool = Pool(t, capacity="1G")
        self.pool.create("vm", "64M", compression="zstd-3")
        self.pool.shale("passwd", "anna", stdin=PASSWORD + "\n")
        self.server = self.pool.serve(words=["--http", "127.0.0.1:0", *words], **named)
        self.admin = Web(self.server, make_token(self.pool, "admin", "admin"))


def make_token(pool, name, role):
    """The text of a new token."""
    made = pool.t.run(BINARY, "token", "create", pool.path, "--name", name, "--role", role, "--json", quiet=True)
    return json.loads(made.stdout)["token"]


def paths(web, t):
    """(method, path) of each operation of the description, with something in each field."""
    status, _, document = web.ask("GET", "/openapi.json")
    t.equal(status, 200, "status of the description")
    for path, item in document["paths"].items():
        for method in item:
            yield method.upper(), re.sub(r"\{[^}]+\}", "1", path), item[method]


@test()
def http_needs_credentials(t):
    """without credentials, and as another user of this machine: 401 on each path of the API; with wrong ones too; the page, health and metrics are open"""
    served = Served(t)
    nobody = Web(served.server)
    count = 0
    for method, path, _ in paths(nobody, t):
        body = {} if method not in ("GET", "DELETE") else None
        for proof in ({}, {"Authorization": "Bearer shale_" + "0" * 64}, {"Cookie": "shale-0=x"}):
            status, fields, document = nobody.ask(method, path, body, {**nobody.origin(), **proof})
            t.equal((status, document["kind"]), (401, "unauthorized"), f"{method} {path} with {proof}")
            t.equal(fields["WWW-Authenticate"], "Bearer", "the way to log in")
        count += 1
    t.expect(count > 40, f"only {count} operations")
    curl = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}"]
    t.equal(t.run(*curl, f"http://{nobody.host}/api/v1/pool").stdout, "401", "status for nobody's curl")
    for path, expected in (("/healthz", 200), ("/", 200), ("/metrics", 200), ("/../etc/passwd", 404), ("/%2e%2e/x", 404), ("/x", 404)):
        t.equal(nobody.ask("GET", path, api=False)[0], expected, path)
    _, fields, _ = nobody.ask("GET", "/", api=False)
    for name, part in (("Content-Security-Policy", "frame-ancestors 'none'"), ("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer")):
        t.expect(part in fields.get(name, ""), f"{name} of the page: {fields.get(name)}")
    t.expect("Access-Control-Allow-Origin" not in fields, "there is no CORS")
    said = served.pool.shale("history", "--json", quiet=True).stdout
    t.expect(any(line["outcome"] == "refused" for line in json.loads(said)), "wrong credentials are in the audit log")


@test()
def http_roles(t):
    """each role may what it may: a token that reads cannot change, one that operates takes snapshots, a revoked one is refused at once"""
    served = Served(t)
    roles = {role: Web(served.server, make_token(served.pool, f"t-{role}", role)) for role in ("read", "operate")}
    roles["admin"] = served.admin
    order = ["read", "operate", "admin"]
    for method, path, operation in paths(served.admin, t):
        needs = operation["x-role"]
        for role, web in roles.items():
            if order.index(role) >= order.index(needs):
                continue
            fields = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            body = sample(fields) if method not in ("GET", "DELETE") else None
            query = "&".join(f"{p['name']}={query_sample(p)}" for p in operation["parameters"] if p["in"] == "query" and p["required"])
            status, _, document = web.ask(method, path + ("?" + query if query else ""), body)
            # What is refused for its form is refused before anything is done, too.
            t.expect(status in (400, 403), f"{method} {path} as {role}: {status} {document}")
    patch = {"Content-Type": "application/merge-patch+json"}
    status, _, document = roles["read"].ask("PATCH", "/pool/properties", {"compression": "lz4"}, patch)
    t.equal((status, document["kind"]), (403, "denied"), "a PATCH as read")
    t.equal(roles["read"].ask("GET", "/pool")[0], 200, "a GET as read")
    served.pool.t.run(BINARY, "token", "revoke", served.pool.path, "t-read")
    t.equal(roles["read"].ask("GET", "/pool")[0], 401, "a GET with a revoked token")
    t.equal(roles["admin"].ask("PATCH", "/pool/properties", {"compression": "lz4"}, patch)[0], 200, "a PATCH as admin")
    lines = json.loads(served.pool.shale("history", "--json", quiet=True).stdout)
    t.expect(any(line["who"] == "token admin" and "lz4" in line["about"] and line["outcome"] == "done" for line in lines), f"the change: {lines[-3:]}")
    t.expect(any(line["who"] == "token t-read" and line["outcome"] == "refused" for line in lines), "the refusal")


EXTREMES = (0, 1, 2, 1 << 31, 1 << 40, 1 << 53, 1 << 56, 10**18, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
KNOWN = {"dataset": "ops", "sub": "ops", "by": "object"}


def is_integer(schema):
    return "integer" in schema.get("type", "")


def extremes(names):
    """Values for these integers: all alike, each pair in and out of order, and each alone beside small ones."""
    yield from (dict.fromkeys(names, value) for value in EXTREMES)
    if len(names) > 1:
        for first in names:
            for value in EXTREMES:
                yield {name: value if name == first else 1 for name in names}
                yield {name: 1 << 62 if name == first else value for name in names}


@test()
def http_extreme_values(t):
    """numbers at the ends of their range in every parameter of every operation are answered, never by the end of the server; so is what is nested deeply"""
    served = Served(t)
    web, count = served.admin, 0
    for method, path, operation in paths(web, t):
        query = [p for p in operation["parameters"] if p["in"] == "query"]
        fields = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        properties = fields.get("properties", {})
        integers = [p["name"] for p in query if is_integer(p["schema"])] + [name for name, schema in properties.items() if is_integer(schema)]
        texts = {p["name"]: KNOWN.get(p["name"], "x") for p in query if p["required"] and not is_integer(p["schema"])}
        for values in extremes(integers):
            words = {**texts, **{name: value for name, value in values.items() if name not in properties}}
            body = {**sample(fields), **{name: value for name, value in values.items() if name in properties}} if properties else None
            status, _, document = web.ask(method, path + ("?" + "&".join(f"{name}={value}" for name, value in words.items()) if words else ""), body)
            t.expect(200 <= status < 500 or status in (503, 507), f"{method} {path} with {values}: {status} {document}")
            count += 1
    t.expect(count > 100, f"only {count} requests")
    nested = {"op": "hello"}
    for _ in range(120):
        nested = {"op": "preview", "request": nested}
    for _ in range(20):
        status, _, document = web.ask("POST", "/preview", {"request": nested})
        t.expect(400 <= status < 500, f"a preview of previews: {status} {document}")
    t.equal(web.ask("GET", "/healthz", api=False)[0], 200, "health afterwards")
    t.equal(served.server.process.poll(), None, "status of the server")
    served.server.stop()


def query_sample(parameter):
    kinds = parameter["schema"].get("type", "string")
    return "1" if "integer" in kinds else "x"


def sample(schema):
    """An object with something in each field that must be there."""
    found = {}
    for name in schema.get("required", []):
        kinds = schema["properties"][name].get("type", "object")
        found[name] = 4096 if "integer" in kinds else ["x"] if "array" in kinds else {} if "object" in kinds else "x"
    return found


@test()
def http_guards(t):
    """a foreign Host is 421, a change from a foreign page or from none 403, a body that is no JSON 415, one too long 413, the sixth wrong log-in 429"""
    served = Served(t)
    web = Web(served.server)
    port = web.host.rsplit(":", 1)[1]
    for host, expected in (("evil.example", 421), (f"127.0.0.1.evil.example:{port}", 421), ("10.0.0.1", 421), (f"localhost:{port}", 200)):
        t.equal(web.ask("GET", "/healthz", headers={"Host": host}, api=False)[0], expected, f"status for Host {host}")
    web.log_in(t, user="anna", password=PASSWORD)
    t.equal(web.ask("GET", "/session")[2]["role"], "admin", "role of the session")
    change = {"name": "x"}
    for headers in ({}, {"Origin": "http://evil.example"}, {"Origin": "null"}, {**web.origin(), "Sec-Fetch-Site": "cross-site"}):
        t.equal(web.ask("POST", "/pool/checkpoint", {}, headers)[0], 403, f"status of a change with {headers}")
    t.equal(web.ask("POST", "/pool/checkpoint", {}, web.origin())[0], 204, "status of a change from the page")
    form = {**web.origin(), "Content-Type": "application/x-www-form-urlencoded"}
    t.equal(web.ask("POST", "/pool/checkpoint", "a=b", form)[0], 415, "status of a form")
    t.equal(web.ask("POST", "/pool/checkpoint", " " * (1 << 20) + "{}", web.origin())[0], 413, "status of a body that is too long")
    t.equal(web.ask("POST", "/pool/checkpoint", change, web.origin())[0], 400, "status of an unknown field")
    t.equal(web.ask("GET", "/pool?sync=true")[0], 400, "status of an unknown parameter")
    t.equal(web.ask("DELETE", "/session", headers=web.origin())[0], 204, "status of the log-out")
    t.equal(web.ask("GET", "/session")[0], 401, "status after the log-out")
    wrong = {"user": "anna", "password": "wrong"}
    statuses = [web.ask("POST", "/session", wrong, web.origin()) for _ in range(6)]
    t.equal([status for status, _, _ in statuses], [401] * 5 + [429], "statuses of wrong log-ins")
    t.expect(int(statuses[-1][1]["Retry-After"]) > 0, "when to try again")
    t.equal(web.ask("POST", "/session", {"user": "anna", "password": PASSWORD}, web.origin())[0], 429, "status of the right password then")
    audit = b"".join(file.read_bytes() for file in sorted((served.pool.path / "audit").iterdir()))
    t.expect(PASSWORD.encode() not in audit and b"log_in" in audit, "the audit log has log-ins, and no password")


@test()
def http_log_in_link(t):
    """the link that the server prints logs in once; a changed password ends the sessions of its user"""
    served = Served(t)
    key = re.search(r"#key=(\w+)", served.server.output).group(1)
    web = Web(served.server)
    t.equal(web.log_in(t, key=key)["role"], "admin", "role by the link")
    t.equal(Web(served.server).ask("POST", "/session", {"key": key}, web.origin())[0], 401, "status of the second use")
    anna = Web(served.server)
    anna.log_in(t, user="anna", password=PASSWORD)
    served.pool.shale("passwd", "anna", stdin="another " + PASSWORD + "\n")
    t.equal(anna.ask("GET", "/session")[0], 401, "status after the password was changed")
    mode = (served.pool.path / "access.json").stat().st_mode & 0o777
    t.equal(oct(mode), "0o600", "mode of access.json")


def samples(text):
    """The values of /metrics by name and labels."""
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


@test()
def http_metrics(t):
    """/metrics is text that promtool takes, counts what clients do exactly, and needs a token with --metrics token"""
    served = Served(t)
    uri = served.server.uri("vm")
    fresh = samples(Web(served.server).ask("GET", "/metrics", api=False)[2])
    t.expect(len(fresh) >= 150, f"only {len(fresh)} samples of a fresh pool")
    for name in (
        'operations_total{door="nbd",object="",operation="read"}',
        'operation_duration_seconds_count{door="nbd",operation="read"}',
        'errors_total{door="nbd",kind="io"}',
        'written_bytes_total{codec="zstd-3"}',
        'cpu_seconds_total{codec="zstd-3",direction="decompress"}',
        'joules_total{codec="zstd-3",direction="compress"}',
        'jobs{kind="scrub",state="failed"}',
        'last_success_timestamp_seconds{kind="clean"}',
    ):
        t.equal(fresh[f"shale_{name}"], "0", f"{name} before the first event")
    t.run("nbdsh", "-u", uri, "-c", "h.pwrite(b'x' * 65536, 0)", "-c", "h.flush()", "-c", "[h.pread(4096, 0) for _ in range(3)]")
    web = Web(served.server)
    status, fields, text = web.ask("GET", "/metrics", api=False)
    t.equal((status, fields["Content-Type"]), (200, "text/plain; version=0.0.4; charset=utf-8"), "status and type")
    values = samples(text)
    t.equal(values['shale_operations_total{door="nbd",object="vm",operation="read"}'], "3", "reads")
    t.equal(values['shale_operation_bytes_total{door="nbd",object="vm",operation="write"}'], "65536", "bytes written")
    t.equal(values['shale_operation_duration_seconds_count{door="nbd",operation="read"}'], "3", "reads in the histogram")
    t.expect('shale_object_info{object="vm",kind="volume",folder="",compression="zstd-3"' in text, "properties as labels")
    if shutil.which("promtool"):
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
        t.log(checked.stdout + checked.stderr)
        t.expect(checked.returncode == 0, f"promtool: {checked.stderr}")
    else:
        t.note("promtool is not installed: the text was not checked by it")
    served.server.stop()
    closed = served.pool.serve(words=["--http", "127.0.0.1:0", "--metrics", "token"])
    t.equal(Web(closed).ask("GET", "/metrics", api=False)[0], 401, "status without a token")
    # A server that has just started must decompress what it reads.
    t.run("nbdsh", "-u", closed.uri("vm"), "-c", "assert h.pread(65536, 0) == b'x' * 65536")
    status, _, text = Web(closed, served.admin.token).ask("GET", "/metrics", api=False)
    t.equal(status, 200, "status with one")
    values = {name: float(value) for name, value in samples(text).items()}

    def total(family, label=""):
        return sum(value for name, value in values.items() if name.startswith(f"shale_{family}{{") and label in name)

    t.expect(total("read_bytes_total") >= 65536, "data decompressed for the read")
    t.expect(0 < total("stored_read_bytes_total") < 65536, "the same as stored")
    seconds, joules = (total(family, 'direction="decompress"') for family in ("cpu_seconds_total", "joules_total"))
    t.expect(seconds > 0 and joules > 0, f"decompressing took {seconds} s and {joules} J")
    t.equal(values['shale_errors_total{door="nbd",kind="io"}'], 0, "errors")


@test()
def http_process_dies(t):
    """kill -9 of the process that speaks HTTP, ten times under load: the volume's clients notice nothing, and it answers again"""
    served = Served(t)
    web = Web(served.server)
    pattern = os.urandom(1 << 20)

    def door():
        found = t.run("pgrep", "-P", served.server.process.pid, "-f", "serve-http", status=None, quiet=True).stdout.split()
        return int(found[0]) if found else None

    status = Path(f"/proc/{door()}/status").read_text()
    t.expect("\nUid:\t65534\t65534\t65534\t65534\n" in status, "it is nobody")
    t.expect("\nNoNewPrivs:\t1\n" in status and "\nCapEff:\t0000000000000000\n" in status, "it has no rights")
    stop = threading.Event()
    failures = []

    def write():
        import nbd

        handle = nbd.NBD()
        handle.connect_uri(served.server.uri("vm"))
        while not stop.is_set():
            handle.pwrite(pattern, 0)
            if handle.pread(len(pattern), 0) != pattern:
                failures.append("a byte differs")
        handle.shutdown()

    def healthy():
        try:
            return web.ask("GET", "/healthz", api=False)[0] == 200
        except OSError:
            return False

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            killed = door()
            os.kill(killed, signal.SIGKILL)
            t.wait_for(lambda killed=killed: door() not in (None, killed), "the next process")
            t.wait_for(healthy, "an answer")
    finally:
        stop.set()
        writer.join()
    t.equal(failures, [], "failures of the volume's client")
    t.equal(served.admin.ask("GET", "/pool")[0], 200, "the same token works")
    served.server.stop()


@test()
def http_same_as_commands(t):
    """documents by HTTP are those of commands with --json; a stale If-Match is 412; jobs are started with 202 and found again"""
    served = Served(t)
    web = served.admin
    volumes = json.loads(served.pool.shale("list", "--json", quiet=True).stdout)
    listed = web.ask("GET", "/objects")[2]
    listed = listed["objects"] if isinstance(listed, dict) else listed

    def names(lines):
        return [(line["name"], line["id"], line["size_bytes"], line["properties"]) for line in lines]

    t.equal(names(listed), names(volumes), "objects")
    [vm] = volumes
    status, fields, document = web.ask("GET", f"/objects/{vm['id']}")
    t.equal((status, document["name"]), (200, "vm"), "the volume by its number")
    etag = fields["ETag"]
    patch = {"Content-Type": "application/merge-patch+json", "If-Match": etag}
    path = f"/objects/{vm['id']}/properties"
    status, _, document = web.ask("PATCH", path, {"compression": "lz4"}, patch)
    t.equal(status, 200, f"status of a PATCH with the version that was read: {document}")
    status, _, document = web.ask("PATCH", path, {"compression": "gzip-9"}, patch)
    t.equal((status, document["status"]), (412, 412), f"the same again: {document}")
    t.equal(json.loads(served.pool.shale("get", "vm", "compression", "--json", quiet=True).stdout)[0]["value"], "lz4", "the value")
    status, fields, job = web.ask("POST", "/jobs", {"wish": {"kind": "scrub"}})
    t.equal(status, 202, f"status of a job: {job}")
    t.equal(fields["Location"], f"/api/v1/jobs/{job['id']}", "where it is")
    t.wait_for(lambda: web.ask("GET", f"/jobs/{job['id']}")[2]["ended_unix_s"] is not None, "the end of the job")
    for path, kind, status in (("/objects/nothing", "not-found", 404), (f"/objects/{quote('a/b', safe='')}", "not-found", 404)):
        found, fields, document = web.ask("GET", path)
        t.equal((found, document["kind"], document["type"]), (status, kind, f"urn:shale:error:{kind}"), path)
        t.equal(fields["Content-Type"], "application/problem+json", "type of an error")


@test()
def http_events(t):
    """the event stream has figures each second, a reset after a change, and ends when its token is revoked"""
    served = Served(t)
    text = make_token(served.pool, "page", "read")
    web = Web(served.server, text)
    connection = web.connection()
    connection.request("GET", "/api/v1/events?topics=figures,objects", headers={"Authorization": f"Bearer {text}"})
    answer = connection.getresponse()
    t.equal((answer.status, answer.headers["Content-Type"]), (200, "text/event-stream"), "status and type")

    def event():
        name, data = None, None
        for line in iter(answer.readline, b""):
            line = line.decode().rstrip("\n")
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = json.loads(line[6:])
            elif not line and name:
                return name, data
        return None, None

    name, data = event()
    t.equal(name, "figures", "the first event")
    t.expect(data["pool"]["cpus"] >= 1 and data["boot"], f"figures: {data}")
    served.pool.shale("create", "other", "--size", "1M")
    seen = []
    while "reset" not in seen:
        name, _ = event()
        t.expect(name is not None, f"the stream ended after {seen}")
        seen.append(name)
    served.pool.t.run(BINARY, "token", "revoke", served.pool.path, "page")
    while name is not None:
        name, _ = event()
    connection.close()
    t.equal(web.ask("GET", "/events")[0], 401, "status of a new stream")


@test()
def http_tls(t):
    """other machines reach it by TLS only, and only when somebody can log in; the own certificate has the printed fingerprint; unix sockets believe root alone"""
    pool = Pool(t, capacity="1G")
    said = pool.shale("serve", "--http", "0.0.0.0:0", status=2)
    t.expect("there is no user yet" in said.stderr and "shale passwd" in said.stderr, said.stderr)
    pool.shale("passwd", "anna", stdin=PASSWORD + "\n")
    said = pool.shale("serve", "--http", "0.0.0.0:0", "--http-tls", "off", status=2)
    t.expect("unencrypted" in said.stderr, said.stderr)
    path = t.dir / "http.sock"
    server = pool.serve(words=["--http", "127.0.0.1:0", "--http-tls", "on", "--http", f"unix:{path}"])
    printed = re.search(r"certificate SHA-256 ([0-9A-F:]+)", server.output).group(1)
    web = Web(server)
    host, port = web.host.rsplit(":", 1)
    found = t.run("bash", "-c", f"openssl s_client -connect {host}:{port} </dev/null 2>/dev/null | openssl x509 -noout -fingerprint -sha256").stdout
    t.expect(printed in found, f"fingerprint: {found} and {printed}")
    web.log_in(t, user="anna", password=PASSWORD)
    t.expect(web.cookie.startswith("__Host-shale-"), f"cookie: {web.cookie}")
    plain = socket.create_connection((host, int(port)), timeout=60)
    plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    t.expect(not plain.recv(100).startswith(b"HTTP"), "HTTP without TLS is not answered")
    plain.close()
    t.equal(oct(path.stat().st_mode & 0o777), "0o600", "mode of the unix socket")
    curl = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket", path, "http://any/api/v1/users"]
    t.equal(t.run(*curl).stdout, "200", "status for root on the unix socket")
    os.chmod(path, 0o666)
    os.chmod(t.dir, 0o755)
    other = t.run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *curl, status=None)
    t.expect(other.stdout in ("401", "000"), f"status for nobody on the unix socket: {other.stdout}")


@test()
def http_many_clients(t):
    """300 clients that say nothing, or a byte at a time, do not keep another one out of the unix socket, nor off the API of another address"""
    served = Served(t, "--http", f"unix:{t.dir}/http.sock")
    host, port = Web(served.server).host.rsplit(":", 1)
    silent = []
    for number in range(300):
        client = socket.socket()
        client.settimeout(60)
        # From many addresses: one alone has 32 connections.
        client.bind((f"127.0.0.{2 + number // 20}", 0))
        client.connect((host, int(port)))
        silent.append(client)
    path = t.dir / "http.sock"

    def answers():
        asked = t.run("curl", "-s", "-m", "60", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket", path, "http://any/healthz", status=None, quiet=True)
        return asked.stdout == "200"

    t.wait_for(answers, "an answer beside 300 silent clients")
    ended = 0
    for client in silent:
        try:
            ended += client.recv(1) == b""
        except ConnectionError:
            ended += 1
        client.close()
    t.equal(ended, 300, "silent clients that were cut off")
    t.equal(served.admin.ask("GET", "/pool")[0], 200, "an answer afterwards")


def blocks(name):
    """The shell commands of a document."""
    return re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / name).read_text(), re.M | re.S)


@test()
def http_documented(t):
    """every command of docs/API.md works as it stands, and each metric that an alert or a panel names is there"""
    served = Served(t)
    (t.dir / "shale").symlink_to(BINARY)
    environment = {**os.environ, "PATH": f"{t.dir}:{os.environ['PATH']}"}
    commands = blocks("API.md")
    t.expect(len(commands) >= 8, f"only {len(commands)} commands")
    for command in commands:
        line = command.replace("/srv/pool", str(served.pool.path)).replace("127.0.0.1:8080", served.admin.host)
        line = line.replace("curl -s ", "curl -s --fail-with-body ")
        done = subprocess.run(["bash", "-e", "-c", line], cwd=t.dir, env=environment, capture_output=True, text=True, timeout=60, check=False)
        t.log(f"$ {line}{done.stdout[:2000]}{done.stderr}")
        t.expect(done.returncode == 0, f"'{command}' ended with {done.returncode}: {done.stdout[:300]}{done.stderr[:300]}")
        if "/api/" in command and done.stdout:
            json.loads(done.stdout)
    rules, panels = ROOT / "deploy" / "prometheus" / "alerts.yaml", ROOT / "deploy" / "grafana" / "shale.json"
    t.run("nbdsh", "-u", served.server.uri("vm"), "-c", "h.pwrite(b'x' * 65536, 0)", "-c", "h.flush()")
    text = served.admin.ask("GET", "/metrics", api=False)[2]
    for name in set(re.findall(r"\bshale_\w+", rules.read_text() + panels.read_text())):
        family = name.removesuffix("_bucket")
        t.expect(re.search(rf"^# TYPE {family} ", text, re.M), f"no metric {name}, which an alert or a panel names")
    if shutil.which("promtool"):
        t.run("promtool", "check", "rules", rules)
    else:
        t.note("promtool is not installed: the rules were not checked by it")


def door_of(t, server):
    """The process that speaks HTTP."""
    return t.run("pgrep", "-P", server.process.pid, "-f", "serve-http", quiet=True).stdout.split()


@test()
def http_large_bodies(t):
    """a hundred bodies of a MiB at once, without credentials and with a token: 401, or an answer, and the same process goes on"""
    served = Served(t)
    before = door_of(t, served.server)
    changes = json.dumps({"changes": {f"{number:x}": "" for number in range(90000)}}).encode()
    statuses = []

    def send(token):
        web = Web(served.server, token)
        try:
            statuses.append(web.ask("PATCH", "/objects/vm/properties", changes)[0])
        except OSError:
            # The answer may come before the body has been read.
            statuses.append(401)

    for token in ("shale_" + "0" * 64, served.admin.token):
        threads = [threading.Thread(target=send, args=(token,)) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    t.equal(len(statuses), 64, "answers")
    t.expect(all(status in (400, 401, 413, 429, 503) for status in statuses), f"statuses: {statuses}")
    t.equal(door_of(t, served.server), before, "the process that speaks HTTP")
    t.equal(served.admin.ask("GET", "/pool")[0], 200, "a request afterwards")


@test()
def http_explains_a_large_volume(t):
    """explain of an empty volume of a PiB, by many clients that go away, holds neither the server's answers nor its stop"""
    served = Served(t)
    served.pool.create("thin", str(1 << 50), compression="lz4")
    status, _, document = served.admin.ask("GET", "/objects/thin/explain?count=1000000")
    t.equal((status, document["regions"]), (200, []), f"regions of the empty volume: {document}")
    gone = []
    for _ in range(8):
        client = served.admin.connection()
        client.request("GET", "/api/v1/objects/thin/explain?count=1000000", headers={"Authorization": f"Bearer {served.admin.token}"})
        gone.append(client)
    for client in gone:
        client.close()
    t.equal(served.admin.ask("GET", "/pool")[0], 200, "a request meanwhile")
    served.pool.shale("explain", "thin")
    served.server.stop()
