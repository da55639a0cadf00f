"""schemathesis on the description of the REST API: requests made from it, destructive ones included, to a pool of their own. Every answer has
a status, a type and a document that the description has. Only in `make e2e`, which sets SHALE_E2E and installs it."""

import collections
import json
import os
import re

import pytest

from harness import Pool, data, test
from harness.pool import ROOT

from .http import Web, make_token

PROGRAM = ROOT / "target/e2e/venv/bin/schemathesis"
DESCRIPTION = ROOT / "crates/fe-http/openapi.json"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
# The same requests each time. Another seed finds other faults: SHALE_SEED=7, SHALE_API_EXAMPLES=200.
SEED = os.environ.get("SHALE_SEED", "1")
EXAMPLES = os.environ.get("SHALE_API_EXAMPLES", "25")
SECONDS_MAX = 1500
# A pool refuses what it has no room for (507), and what this version does not have (501): answers, no failures of the server.
CONFIGURATION = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501", "507"]

# Each combination of the requests that it may be about is ten thousand.
[[operations]]
include-operation-id = "preview"
phases.coverage.enabled = false
"""
# It would take the credentials away in the middle; a run of its own has it.
ENDS_CREDENTIALS = "revoke_token"
VOLUMES, SHARES = 24, 12


class Described:
    """A served pool, and the description with the names of its objects among the examples of an object."""

    def __init__(self, t):
        self.t = t
        self.pool = Pool(t, capacity="4G")
        self.names = []
        for number in range(VOLUMES):
            self.pool.create(f"v{number:02}", "16M")
            self.names.append(f"v{number:02}")
        self.pool.shale("create", "folder", "--folder")
        self.pool.create("folder/inner", "16M")
        for number in range(SHARES):
            self.pool.shale("create", f"s{number}", "--share")
            self.names.append(f"s{number}")
        self.server = self.pool.serve(shares=True, words=["--http", "127.0.0.1:0"])
        piece = data.base(data.TURNS)[:1 << 20]
        for number in range(SHARES):
            directory = self.server.share(f"s{number}") / "d"
            directory.mkdir()
            for path in (directory / "f.txt", directory.parent / "f.txt"):
                path.write_bytes(piece)
        for number in range(0, VOLUMES, 4):
            t.run("nbdsh", "-u", self.server.uri(f"v{number:02}"), "-c", "h.pwrite(open('/usr/bin/env', 'rb').read()[:40960], 0)", "-c", "h.flush()", quiet=True)
        snapshots = [f"{name}@one" for name in self.names]
        self.pool.shale("snapshot", *snapshots)
        for name in self.names[::3]:
            if name.startswith("v"):
                self.pool.shale("bookmark", f"{name}@one", "#one")
            self.pool.shale("hold", f"{name}@one", "kept")
        self.names += [*snapshots, "folder", "folder/inner"]
        self.web = Web(self.server, make_token(self.pool, "of-the-run", "admin"))

    def description(self):
        """The committed file, which is the one that is served; with names that there are."""
        document = json.loads(DESCRIPTION.read_text())
        self.t.equal(self.web.ask("GET", "/openapi.json")[2], document, "the description that is served")
        document["components"]["schemas"]["Which"]["anyOf"].append({"enum": self.names})
        shares = [name for name in self.names if name.startswith("s")]
        for place, item in document["paths"].items():
            of_shares = re.search(r"/(files|usage|explain-file)", place)
            known = {"object": shares if of_shares else self.names, "folder": ["folder"], "snapshot": [name for name in self.names if "@" in name], "path": ["d", "f.txt"], "at": ["one"]}
            for parameter in (parameter for operation in item.values() for parameter in operation["parameters"]):
                if parameter["name"] in known:
                    values = {"enum": known[parameter["name"]]}
                    parameter["schema"] = values if of_shares else {"anyOf": [parameter["schema"], values]}
        path = self.t.dir / "openapi.json"
        path.write_text(json.dumps(document))
        return path


def run(t, described, name, *words):
    """Runs it; {operation: statuses of its answers}."""
    configuration, report = t.dir / f"{name}.toml", t.dir / f"{name}.har"
    configuration.write_text(CONFIGURATION)
    done = t.run(
        PROGRAM, "--config-file", configuration, "run", described.description(), "--url", f"http://{described.web.host}/api/v1",
        "--header", f"Authorization: Bearer {described.web.token}", "--checks", CHECKS, "--phases", "examples,coverage,fuzzing,stateful", "--max-examples", EXAMPLES,
        "--seed", SEED, "--generation-database", "none", "--continue-on-failure", "--request-timeout", "60", "--workers", "1",
        "--warnings", "off", "--no-color", "--report-har-path", report, *words, status=None, seconds_max=SECONDS_MAX, quiet=True, cwd=t.dir)
    t.log(done.stdout + done.stderr)
    t.equal(done.returncode, 0, f"status of schemathesis, which said: {done.stdout[-300:]}")
    return [(entry["request"]["method"], entry["request"]["url"].split("/api/v1")[1].split("?")[0], entry["response"]["status"]) for entry in json.loads(report.read_text())["log"]["entries"]]


def operation_of(document, method, path):
    """The identifier of the operation at a path; none: it is not described."""
    found = []
    for pattern, item in document["paths"].items():
        if method.lower() in item and re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(pattern)), path):
            found.append((pattern.count("{"), item[method.lower()]["operationId"]))
    return min(found)[1] if found else None


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=2400)
    def e2e_appliance_api(t):
        """schemathesis by the committed openapi.json: every answer, also to destructive requests and nonsense, is as described, and none is a failure of the server"""
        if not PROGRAM.exists():
            pytest.skip("schemathesis is not installed (tools/setup e2e installs it)")
        described = Described(t)
        document = json.loads(DESCRIPTION.read_text())
        answers = [*run(t, described, "all", "--exclude-operation-id", ENDS_CREDENTIALS), *run(t, described, "last", "--include-operation-id", ENDS_CREDENTIALS)]
        t.equal(described.server.process.poll(), None, "status of the server")
        by_operation = collections.defaultdict(collections.Counter)
        for method, path, status in answers:
            by_operation[operation_of(document, method, path)][status] += 1
        for operation, statuses in sorted(by_operation.items(), key=str):
            t.log(f"{operation}: {dict(statuses)}")
        ids = {operation["operationId"] for item in document["paths"].values() for operation in item.values()}
        t.equal(ids - by_operation.keys(), set(), "operations that were not tried")
        done = {operation for operation in ids if any(200 <= status < 300 for status in by_operation[operation])}
        t.expect(len(done) >= 40, f"only {len(done)} operations were ever carried out: not {sorted(ids - done)}")
        refused = sum(statuses[401] for statuses in by_operation.values())
        t.expect(refused <= len(answers) // 10, f"{refused} of {len(answers)} answers are 401: the credentials ended")
        t.note(f"schemathesis, seed {SEED}: {len(answers)} requests to {len(ids)} operations, of which {len(done)} were carried out")
        described.server.stop()
