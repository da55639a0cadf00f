"""Estimates as jobs of a served pool: one document by socket, REST and command, figures before the end, and what ends them."""

import json
import os
import re
import socket
import time

from harness import EXIT, Pool, data, test
from harness.pool import BINARY
from system.http import Web, make_token

SECONDS_MAX = 120


def asked(pool, **request):
    """The answer of the control socket to one request, as the line has it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS_MAX)
        connection.connect(str(pool.path / "control.sock"))
        connection.sendall(json.dumps({"version": 1, "request": request}).encode() + b"\n")
        with connection.makefile() as lines:
            return json.loads(lines.readline())


def until(t, what, is_so):
    """What a look finds, once it is as wanted."""
    end = time.monotonic() + SECONDS_MAX
    while True:
        found = what()
        if is_so(found):
            return found
        t.expect(time.monotonic() < end, f"it stays {found}")
        time.sleep(0.02)


def newest(t, web, name):
    status, _, document = web.ask("GET", f"/objects/{name}/estimates")
    t.equal(status, 200, f"status of the estimate: {document}")
    return document


def start(t, web, name, **wish):
    status, fields, job = web.ask("POST", f"/objects/{name}/estimates", wish)
    t.equal(status, 202, f"status of the start: {job}")
    t.equal(fields["Location"], f"/api/v1/jobs/{job['id']}", "the job's address")
    t.equal((job["kind"], job["target"], job["background"]), ("estimate", name, True), "the job")
    return job["id"]


def served(t, piece=1 << 20):
    """A served pool with a volume of 24 pieces of data and a share of eight, and a client of its API."""
    data.mixed_file(t.dir / "real", 24 * piece)
    pool = Pool(t, capacity="1G")
    pool.shale("import", "vm", t.dir / "real", "-o", "compression=lz4")
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True, words=["--http", "127.0.0.1:0"])
    home = server.share("home")
    for number in range(8):
        (home / f"{number}.log").write_bytes((t.dir / "real").read_bytes()[number * piece:(number + 1) * piece])
    (home / "below").mkdir()
    (home / "below" / "tiny.c").write_bytes(b"int one;\n")
    os.sync()
    return pool, server, Web(server, make_token(pool, "admin", "admin"))


@test()
def estimates_are_one_document(t):
    """an estimate of a volume, a share, a part of it and a snapshot is the same document by command, REST and socket; the shares' types are those of usage; a pool that no server has gives it too"""
    # All codecs compress all of it several times.
    piece = 256 << 10
    pool, server, web = served(t, piece)
    pool.shale("snapshot", "home@then")
    for name, words in [("vm", []), ("home", []), ("home", ["below"]), ("home@then", []), ("vm", ["-o", "compression=zstd-3", "--codecs", "none"])]:
        by_command = json.loads(pool.shale("estimate", name, *words, "--json").stdout)
        quoted = name.replace("@", "%40")
        by_rest = newest(t, web, quoted)
        t.equal(by_rest, by_command, f"{name} {words} by REST and by the command")
        t.equal(asked(pool, op="estimate", object=name)["reply"]["estimate"], by_command, f"{name} by the socket")
        t.equal((by_command["state"], by_command["error"], by_command["path"]), ("done", None, words[0] if words[:1] == ["below"] else None), "state and path")
        t.expect(any(line["configured"] for line in by_command["settings"]), f"what is configured: {by_command['settings']}")
        if name == "vm" and not words:
            t.expect(by_command["data_bytes"] == by_command["sampled_bytes"] == 24 * piece, f"all of it is read: {by_command}")
            t.equal({line["setting"] for line in by_command["settings"]}, {"lz4", "zstd-1", "zstd-3", "zstd-9", "zstd-19", "auto, performance", "auto, energy", "auto, balanced", "auto, archive"}, "settings")
            for line in by_command["settings"]:
                t.expect(line["write_mb_per_second"] and line["write_bound"] in ("disk", "cpu") and line["read_factor"] and line["rewrite_seconds"], f"speeds: {line}")
            t.equal(next(line["read_factor"] for line in by_command["settings"] if line["configured"]), 1.0, "reads as they are now")
        if name == "home" and not words:
            usage = json.loads(pool.shale("usage", "home", "--json").stdout)
            t.equal({line["type"]: line["files"] for line in by_command["types"]}, {line["name"]: line["files"] for line in usage["types"]}, "types of the files")
            t.equal((by_command["files"], by_command["small_files"], by_command["data_bytes"]), (9, 1, 8 * piece), "files")
        if words[:1] == ["-o"]:
            t.equal(by_command["assumed"], {"compression": "zstd-3"}, "what was assumed")
    t.equal(web.ask("POST", "/objects/vm/estimates", {"choices": ["zst"]})[0], 422, "status for a codec that is none")
    t.equal(web.ask("POST", "/objects/vm/estimates", {"path": "a"})[0], 422, "status for a path in a volume")
    t.equal(web.ask("POST", "/objects/nothing/estimates", {})[0], 404, "status for no object")
    pool.create("empty", "4M")
    t.equal(web.ask("GET", "/objects/empty/estimates")[0], 404, "status before the first estimate")
    reader = Web(server, make_token(pool, "reader", "read"))
    t.equal((reader.ask("POST", "/objects/vm/estimates", {})[0], reader.ask("GET", "/objects/vm/estimates")[0]), (403, 200), "what a reader may")
    server.stop()
    alone = json.loads(pool.shale("estimate", "home", "--codecs", "none", "--json").stdout)
    t.equal((alone["data_bytes"], alone["state"]), (8 * piece, "done"), "without a server")
    pool.shale("estimate", "home", "nothing/here", status=EXIT["not-found"])
    pool.check()


@test()
def estimates_have_figures_before_their_end(t):
    """the document of an estimate under way has wide margins first and narrow ones at the end; a second wish joins the job or replaces it; what was estimated before stays in view until then"""
    pool, server, web = served(t)
    job = start(t, web, "vm", choices=["off", "lz4", "zstd-3"])
    seen = []

    def look():
        seen.append(newest(t, web, "vm"))
        return seen[-1]
    done = until(t, look, lambda found: found["state"] == "done")
    t.equal(done["job"], job, "the job of the document")
    with_figures = [found for found in seen if found["sampled_bytes"]]
    margins = [max(line["margin_percent"] or 0 for line in found["settings"] if line["setting"] == "lz4") for found in with_figures]
    t.expect(margins == sorted(margins, reverse=True) and margins[-1] < 1, f"margins: {margins}")
    off = next(line for line in done["settings"] if line["setting"] == "off")
    t.equal((off["saving_percent"], off["cpu_seconds"], off["stored_bytes"]), (0.0, 0.0, done["data_bytes"]), "off")

    # All codecs take long enough for others to come.
    slow = start(t, web, "vm", choices=["all"])
    t.expect(newest(t, web, "vm")["settings"], "the figures of before are shown until there are new ones")
    t.equal(start(t, web, "vm", choices=["all"]), slow, "the same wish joins the job")
    refused, _, document = web.ask("POST", "/objects/home/estimates", {})
    t.equal((refused, document["kind"]), (409, "in-use"), "one at a time")
    # A busy machine takes its time to end the first one: until then the wish is refused.
    until(t, lambda: web.ask("POST", "/objects/vm/estimates", {"choices": ["lz4"]})[0], lambda status: status == 202)
    quick = start(t, web, "vm", choices=["lz4"])
    t.expect(quick != slow, "another wish replaces the job")
    t.equal(web.ask("GET", f"/jobs/{slow}")[2]["state"], "cancelled", "the replaced job")
    until(t, lambda: newest(t, web, "vm"), lambda found: found["job"] == quick and found["state"] == "done")
    server.stop()
    pool.check()


@test()
def estimates_end_when_they_are_to(t):
    """an estimate is paused, goes on, and is cancelled; it does not keep an object from being destroyed; the server does not wait for one"""
    pool, server, web = served(t)
    slow = start(t, web, "vm", choices=["all"])
    web.ask("POST", f"/jobs/{slow}/pause", {})
    until(t, lambda: newest(t, web, "vm"), lambda found: found["state"] == "paused")
    web.ask("POST", f"/jobs/{slow}/resume", {})
    until(t, lambda: newest(t, web, "vm"), lambda found: found["state"] == "running")
    web.ask("DELETE", f"/jobs/{slow}")
    found = until(t, lambda: newest(t, web, "vm"), lambda found: found["state"] == "cancelled")
    t.equal(found["error"]["kind"], "interrupted", "why it ended")
    for name, how in (("vm", "destroy"), ("home", "destroy")):
        slow = start(t, web, name, choices=["all"])
        # A busy machine takes its time to end it.
        until(t, lambda: t.run(BINARY, how, pool.path, name, status=None).returncode, lambda code: code in (EXIT["ok"], EXIT["not-found"]))
        ended = until(t, lambda: web.ask("GET", f"/jobs/{slow}")[2], lambda job: job["state"] in ("failed", "cancelled"))
        t.expect(re.search("not-found|io|interrupted", ended["error"]["kind"]), f"why it ended: {ended}")
    pool.shale("import", "vm", t.dir / "real")
    slow = start(t, web, "vm", choices=["all"])
    began = time.monotonic()
    server.stop()
    t.note(f"the server was stopped during an estimate in {time.monotonic() - began:.1f} s")
    pool.check()
