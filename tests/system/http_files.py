"""HTTP: files of shares and of their snapshots are listed, read by ranges and restored; the map of an object by codec."""

import io
import json
import os
import re
import stat
import tarfile
import time
from urllib.parse import quote

from harness import Pool, test
from harness.pool import BINARY, EXIT

from system.http import Web, make_token

HOSTILE = ['"; x="', "<img src=x onerror=alert(1)>", "line\nbreak\r\nSet-Cookie: a=b", "..x", " ", "a\\x41b", "100%2F", "ü€😀", "-rf", "x" * 255]


class Shared:
    """A pool with a mounted share, served over HTTP."""

    def __init__(self, pool, server):
        self.pool, self.server = pool, server
        self.admin = Web(server, make_token(pool, "admin", "admin"))
        self.id = self.object("home")["id"]

    @classmethod
    def new(cls, t, **named):
        pool = Pool(t, capacity="1G")
        pool.shale("create", "home", "--share")
        pool.create("vm", "64M")
        return cls(pool, pool.serve(shares=True, words=["--http", "127.0.0.1:0"], **named))

    def object(self, name):
        return next(one for one in self.admin.ask("GET", "/objects?limit=1000")[2]["objects"] if one["name"] == name)

    def path(self, *names):
        return f"/objects/{self.id}/files/" + "/".join(quote(name, safe="") for name in names)

    def read(self, path, query="", method="GET", **fields):
        """(status, fields, bytes) of a file"""
        connection = self.admin.connection()
        connection.request(method, "/api/v1" + path + query, headers={"Authorization": f"Bearer {self.admin.token}", **fields})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, answer.headers, body

    def begin(self, t, path, **body):
        """The job of a restore."""
        status, fields, job = self.admin.ask("POST", path + "/restore", body)
        t.equal(status, 202, f"status of a restore of {path}, {job}")
        t.equal(fields["Location"], f"/api/v1/jobs/{job['id']}", "where the job is")
        return job["id"]

    def end(self, t, job, expected="done"):
        """A job as it has ended."""
        def ended():
            return self.admin.ask("GET", f"/jobs/{job}")[2]["state"] in ("done", "failed", "cancelled")
        t.wait_for(ended, "the restore ends")
        job = self.admin.ask("GET", f"/jobs/{job}")[2]
        t.equal(job["state"], expected, f"how the restore ended, {job}")
        return job

    def restore(self, t, path, expected="done", **body):
        """Restores, and returns the job as it has ended."""
        return self.end(t, self.begin(t, path, **body), expected)

    def paused(self, t, path, **body):
        """A restore that stands still in the middle of its files."""
        job = self.begin(t, path, **body)
        t.wait_for(lambda: self.admin.ask("GET", f"/jobs/{job}")[2]["bytes_done"] > 0, "the restore has begun")
        t.equal(self.admin.ask("POST", f"/jobs/{job}/pause")[0], 200, "status of the pause")
        t.wait_for(lambda: self.admin.ask("GET", f"/jobs/{job}")[2]["state"] == "paused", "the restore stands still")
        return job


def names(document):
    return sorted(entry["name"] for entry in document["entries"])


@test()
def http_files_are_listed_and_read(t):
    """a directory is listed page by page, now and in a snapshot; a file is read whole, by ranges, and under a version, with headers that keep browsers from showing it"""
    shared = Shared.new(t)
    home, content = shared.server.share("home"), os.urandom(3 << 20) + b"<script>alert(1)</script>"
    (home / "docs").mkdir()
    (home / "docs" / "page.html").write_bytes(content)
    (home / "docs" / "empty").write_bytes(b"")
    os.symlink("/etc/passwd", home / "docs" / "link")
    os.mkfifo(home / "docs" / "fifo")
    shared.pool.shale("snapshot", "home@monday")
    (home / "docs" / "page.html").write_bytes(b"new")
    (home / "docs" / "later").write_bytes(b"x")
    status, _, now = shared.admin.ask("GET", shared.path("docs"))
    t.equal((status, now["entry"]["kind"], now["path"]), (200, "directory", "docs"), "the directory")
    t.equal(names(now), ["empty", "fifo", "later", "link", "page.html"], "names now")
    _, _, then = shared.admin.ask("GET", shared.path("docs") + "?at=monday")
    t.equal(names(then), ["empty", "fifo", "link", "page.html"], "names in the snapshot")
    entries = {entry["name"]: entry for entry in then["entries"]}
    t.equal({name: entry["kind"] for name, entry in entries.items()}, {"empty": "file", "fifo": "other", "link": "symlink", "page.html": "file"}, "kinds")
    t.equal((entries["page.html"]["size_bytes"], entries["link"]["target"]), (len(content), "/etc/passwd"), "size and target")
    t.expect(entries["page.html"]["stored_bytes"] >= 3 << 20, f"stored bytes of noise: {entries['page.html']}")
    # Page by page.
    found, query = [], "?limit=2"
    while query:
        _, _, page = shared.admin.ask("GET", shared.path("docs") + query)
        t.expect(0 < len(page["entries"]) <= 2, f"entries of a page: {page}")
        found += names(page)
        query = f"?limit=2&cursor={page['next']}" if page["next"] else None
    t.equal(sorted(found), names(now), "all pages together")
    t.equal(shared.admin.ask("GET", shared.path("docs") + "?cursor=x")[0], 422, "status for a cursor that is none")
    # Bytes.
    file = shared.path("docs", "page.html")
    status, fields, body = shared.read(file, "?at=monday")
    t.equal((status, body == content), (200, True), "the file in the snapshot")
    for name, part in (("Content-Type", "application/octet-stream"), ("Content-Disposition", "attachment"), ("X-Content-Type-Options", "nosniff"),
                       ("Content-Security-Policy", "sandbox"), ("Accept-Ranges", "bytes"), ("Content-Length", str(len(content)))):
        t.expect(part in fields.get(name, ""), f"{name}: {fields.get(name)}")
    etag, size = fields["ETag"], len(content)
    for wanted, expected in (("bytes=0-0", content[:1]), ("bytes=1048570-1048580", content[1048570:1048581]), ("bytes=-25", b"<script>alert(1)</script>"), (f"bytes={size - 3}-", content[-3:])):
        status, fields, body = shared.read(file, "?at=monday", Range=wanted)
        t.equal((status, body == expected), (206, True), wanted)
        t.equal(fields["Content-Range"].split("/")[1], str(size), f"size in the answer to {wanted}")
    # HEAD is told the same, but for ranges, which only GET has.
    for wanted in ({}, {"Range": "bytes=0-0"}):
        status, fields, body = shared.read(file, "?at=monday", method="HEAD", **wanted)
        t.equal((status, fields["Content-Length"], body), (200, str(size), b""), f"HEAD with {wanted}")
    status, fields, body = shared.read(file, "?at=monday", Range=f"bytes={size}-")
    t.equal((status, fields["Content-Range"], body), (416, f"bytes */{size}", b""), "a range behind the end")
    t.equal(shared.read(file, "?at=monday", Range="bytes=0-1", **{"If-Range": etag})[0], 206, "a range of the same version")
    t.equal(shared.read(file, Range="bytes=0-1", **{"If-Range": etag})[::2], (200, b"new"), "a range of another version")
    t.equal(shared.read(shared.path("docs", "empty"))[::2], (200, b""), "an empty file")
    # Links and others are told, and never followed or read.
    for name, kind in (("link", "symlink"), ("fifo", "other")):
        status, _, document = shared.admin.ask("GET", shared.path("docs", name))
        t.equal((status, document["entry"]["kind"]), (200, kind), name)
    (home / "away").symlink_to("docs")
    t.equal(shared.admin.ask("GET", shared.path("away", "page.html"))[0], 404, "a path through a link")
    shared.server.stop()


@test()
def http_files_with_hostile_names_and_paths(t):
    """names with quotes, line ends, bytes that are not UTF-8 are listed, read and restored; paths that lead out, and callers without the role, are refused"""
    shared = Shared.new(t)
    home = shared.server.share("home")
    for name in HOSTILE:
        (home / name).write_bytes(name.encode())
    raw = os.fsencode(home) + b"/bad\xff\xfename"
    with open(raw, "wb") as file:
        file.write(b"raw")
    shared.pool.shale("snapshot", "home@s")
    _, _, listed = shared.admin.ask("GET", shared.path())
    t.equal(names(listed), sorted([*HOSTILE, "bad\\xff\\xfename"]), "names")
    for name in HOSTILE:
        status, fields, body = shared.read(shared.path(name))
        t.equal((status, body), (200, name.encode()), f"content of {name!r}")
        t.expect("Set-Cookie" not in fields and len(fields["Content-Disposition"].splitlines()) == 1, f"fields of {name!r}: {fields}")
    t.equal(shared.read(shared.path("bad\\xff\\xfename"))[::2], (200, b"raw"), "content under a name that is not UTF-8")
    os.unlink(raw)
    (home / HOSTILE[2]).unlink()
    shared.restore(t, shared.path("bad\\xff\\xfename"), at="s")
    shared.restore(t, shared.path(HOSTILE[2]), at="s")
    with open(raw, "rb") as file:
        t.equal(file.read(), b"raw", "what came back under its bytes")
    t.equal((home / HOSTILE[2]).read_bytes(), HOSTILE[2].encode(), "what came back")
    secret = home.parent / "secret"
    secret.write_text("secret")
    for path in ("/../secret", "/..", "/%2e%2e/secret", "/a/../../secret", "/%00", "/a%2Fb", "/%ff", "//" + str(secret), "/.shale/snapshots/s", "/" + "a/" * 9000):
        status, _, document = shared.admin.ask("GET", f"/objects/{shared.id}/files{path}")
        t.expect(status in (400, 404, 422, 414, 431), f"{path[:40]}: {status} {str(document)[:200]}")
    secret.unlink()
    # The process that restores, when the share was unmounted meanwhile.
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind in ((".shale-restore-1", tarfile.DIRTYPE), (".shale-restore-1/content", tarfile.REGTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type = kind
            tar.addfile(entry)
    (t.dir / "plain").mkdir()
    done = t.run(BINARY, "restore-files", "--", t.dir / "plain", ".shale-restore-1", "f", stdin=archive.getvalue(), text=False)
    t.expect(b"no share is mounted" in done.stdout and not os.listdir(t.dir / "plain"), f"outcome: {done.stdout}")
    # Escaped bytes are decoded behind the check for "..": the share is changed through its mount, as root.
    t.equal(shared.admin.ask("GET", shared.path("\\x2e\\x2e"))[0], 404, "an escaped way up")
    for to in ("\\x2e\\x2e/evil", "\\x2e\\x2e\\x2fevil", "a\\x00b", "\\x2e", ".shale-restore-1"):
        status, _, document = shared.admin.ask("POST", shared.path("..x") + "/restore", {"at": "s", "to": to})
        t.equal((status, document["kind"]), (422, "invalid"), f"a restore to {to}")
    vm = shared.object("vm")["id"]
    t.equal(shared.admin.ask("GET", f"/objects/{vm}/files/")[0], 422, "files of a volume")
    t.equal(shared.admin.ask("GET", shared.path() + "?at=none")[0], 404, "a snapshot that is not there")
    t.equal(shared.admin.ask("GET", shared.path() + "?at=s%40s")[0], 404, "no name of a snapshot")
    # Roles: names need operate, contents and restores admin.
    for role, expected in (("read", (403, 403, 403)), ("operate", (200, 403, 403))):
        web = Web(shared.server, make_token(shared.pool, f"t-{role}", role))
        found = web.ask("GET", shared.path())[0], web.ask("GET", shared.path("ü€😀"))[0], web.ask("POST", shared.path("..x") + "/restore", {"at": "s"})[0]
        t.equal(found, expected, f"status of a list, of a file, of a restore as {role}")
    lines = json.loads(shared.pool.shale("history", "--json", quiet=True).stdout)
    refused = {line["operation"] for line in lines if line["outcome"] == "refused"}
    # The first refusal of a caller: others in the same seconds are not all recorded.
    t.expect(refused, f"refusals in the log: {lines}")
    shared.server.stop()


@test()
def http_names_of_files_are_for_those_who_may_list_them(t):
    """a token that reads sees no name of a file in jobs, their events, estimates, the state of the pool and the marks of the history; one that operates does"""
    shared = Shared.new(t)
    home = shared.server.share("home")
    (home / "plans").mkdir()
    (home / "plans" / "secret").write_bytes(os.urandom(64 << 20))
    shared.pool.shale("snapshot", "home@s")
    t.equal(shared.admin.ask("POST", f"/objects/{shared.id}/estimates", {"path": "plans"})[0], 202, "status of the estimate")
    job = shared.paused(t, shared.path("plans", "secret"), at="s", to="secret copy")
    reader, operator = (Web(shared.server, make_token(shared.pool, f"t-{role}", role)) for role in ("read", "operate"))
    span = f"from_unix_s=0&to_unix_s={int(time.time()) + 3600}"
    t.wait_for(lambda: "restore '...'" in json.dumps(reader.ask("GET", f"/analytics/marks?{span}")[2]), "the restore is marked")
    for path in ("/jobs", f"/jobs/{job}", "/pool", f"/objects/{shared.id}/estimates", f"/analytics/marks?{span}"):
        status, _, document = reader.ask("GET", path)
        t.equal(status, 200, f"status of {path} as read")
        words = json.dumps(document)
        t.expect("secret" not in words and "plans" not in words, f"names of files in {path}: {words}")
    connection = reader.connection()
    connection.request("GET", "/api/v1/events?topics=jobs", headers={"Authorization": f"Bearer {reader.token}"})
    answer, line = connection.getresponse(), b""
    while not line.startswith(b"data:"):
        line = answer.readline()
    connection.close()
    t.expect(b"home/..." in line and b"secret" not in line, f"names of files in the event: {line}")
    t.expect("secret copy" in json.dumps(operator.ask("GET", "/jobs")[2]), "the job has no name of a file for the role operate")
    for web, expected in ((reader, 403), (operator, 200)):
        status = web.ask("GET", f"/objects/{shared.id}/recompression?path=none")[0]
        t.equal(status, expected, "status of a question about a file")
    shared.admin.ask("DELETE", f"/jobs/{job}")
    shared.end(t, job, "cancelled")
    shared.server.stop()
    shared.pool.check()


@test()
def http_files_are_restored(t):
    """a file and a tree come back from a snapshot, to their place or another, with owners, modes, times, links and attributes; nothing is overwritten unasked, nothing newer removed"""
    shared = Shared.new(t)
    home = shared.server.share("home")
    (home / "d" / "e").mkdir(parents=True)
    (home / "d" / "e" / "big").write_bytes(os.urandom(5 << 20))
    (home / "d" / "f").write_text("old")
    os.chmod(home / "d" / "f", 0o640)
    os.chown(home / "d" / "f", 1234, 5678)
    os.utime(home / "d" / "f", (1_000_000, 2_000_000))
    os.setxattr(home / "d" / "f", b"user.color", b"red")
    os.link(home / "d" / "f", home / "d" / "hard")
    os.symlink("../outside", home / "d" / "soft")
    (home / "d" / "e" / "sparse").touch()
    os.truncate(home / "d" / "e" / "sparse", 1 << 30)
    os.chmod(home / "d", 0o2755)
    big = (home / "d" / "e" / "big").read_bytes()
    shared.pool.shale("snapshot", "home@s")
    # A newer file is kept, replaced when that is asked for, and a client sees it at once.
    (home / "d" / "f").write_text("newer")
    status, _, document = shared.admin.ask("POST", shared.path("d", "f") + "/restore", {"at": "s"})
    t.equal((status, document["kind"]), (409, "exists"), f"a restore over a newer file, {document}")
    t.expect("newer" in document["detail"] and "replace" in document["detail"], f"words: {document}")
    t.equal((home / "d" / "f").read_text(), "newer", "the newer file")
    with open(home / "d" / "f") as reader:
        shared.restore(t, shared.path("d", "f"), at="s", replace=True)
        t.equal(reader.read(), "newer", "a client that has the replaced file open")
    found = os.stat(home / "d" / "f")
    t.equal((stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, int(found.st_mtime)), (0o640, 1234, 5678, 2_000_000), "attributes")
    t.equal(((home / "d" / "f").read_text(), os.getxattr(home / "d" / "f", b"user.color")), ("old", b"red"), "content and attribute")
    # To another place; its directory must be there.
    shared.restore(t, shared.path("d", "f"), at="s", to="copy of f")
    t.equal((home / "copy of f").read_text(), "old", "the copy")
    t.equal(shared.admin.ask("POST", shared.path("d", "f") + "/restore", {"at": "s", "to": "none/f"})[0], 404, "status without a directory")
    for bad in ("../x", "a/../../x", ".."):
        t.equal(shared.admin.ask("POST", shared.path("d", "f") + "/restore", {"at": "s", "to": bad})[0], 422, f"status for {bad}")
    # A whole tree that is gone, looked at before, comes with all that belongs to it.
    t.run("rm", "-r", home / "d")
    t.expect(not (home / "d").exists() and "d" not in os.listdir(home), "the tree is gone, and the kernel knows it")
    job = shared.restore(t, shared.path("d"), at="s")
    t.equal(job["result"]["restored"]["restored"], 1, f"the tree comes as a whole: {job}")
    t.equal(sorted(os.listdir(home / "d")), ["e", "f", "hard", "soft"], "names")
    t.equal((os.stat(home / "d" / "f").st_ino, os.stat(home / "d").st_mode & 0o7777, os.readlink(home / "d" / "soft")), (os.stat(home / "d" / "hard").st_ino, 0o2755, "../outside"), "links and mode")
    t.expect((home / "d" / "e" / "big").read_bytes() == big, "the content came back")
    t.equal((os.stat(home / "d" / "e" / "sparse").st_size, os.stat(home / "d" / "e" / "sparse").st_blocks), (1 << 30, 0), "the hole stays one")
    # A file whose directories are gone, too.
    t.run("rm", "-r", home / "d")
    shared.restore(t, shared.path("d", "e", "big"), at="s")
    t.equal((sorted(os.listdir(home / "d")), os.listdir(home / "d" / "e"), os.stat(home / "d").st_mode & 0o7777), (["e"], ["big"], 0o2755), "only the file, in its directories")
    # Into a directory that is there: what is missing comes, what is newer stays.
    (home / "d" / "f").write_text("newer")
    (home / "d" / "own").write_text("own")
    job = shared.restore(t, shared.path("d"), at="s")
    t.equal((job["result"]["restored"]["kept"], (home / "d" / "f").read_text(), (home / "d" / "own").read_text()), (2, "newer", "own"), f"what was kept: {job}")
    job = shared.restore(t, shared.path("d"), at="s", replace=True)
    t.equal(((home / "d" / "f").read_text(), (home / "d" / "own").read_text()), ("old", "own"), "replaced, and nothing removed")
    # A link in the way is not followed.
    outside = home.parent / "outside"
    outside.mkdir()
    t.run("rm", "-r", home / "d" / "e")
    os.symlink(outside, home / "d" / "e")
    t.equal(shared.admin.ask("POST", shared.path("d", "e", "big") + "/restore", {"at": "s"})[0], 422, "status through a link")
    t.equal(shared.admin.ask("POST", shared.path("d", "e") + "/restore", {"at": "s", "replace": True})[0], 409, "status over a link")
    t.equal(os.listdir(outside), [], "nothing was written outside")
    t.equal([name for name in os.listdir(home) if name.startswith(".shale-restore")], [], "nothing is left behind")
    shared.pool.shale("set", "home", "readonly=on")
    t.equal(shared.admin.ask("POST", shared.path("d") + "/restore", {"at": "s", "to": "x"})[0], 409, "status for a share that is read-only")
    shared.pool.shale("set", "home", "readonly=off")
    outside.rmdir()
    shared.server.stop()
    shared.pool.check()


@test()
def http_files_are_restored_without_a_mount(t):
    """a share that is not mounted is browsed and restored into as well"""
    pool = Pool(t, capacity="1G")
    pool.shale("create", "home", "--share")
    source = t.dir / "tree"
    (source / "d" / "e").mkdir(parents=True)
    (source / "d" / "e" / "f").write_bytes(b"old" * 100_000)
    pool.shale("import", "home", source)
    pool.shale("snapshot", "home@s")
    (source / "d" / "e" / "f").write_bytes(b"new")
    pool.shale("import", "home", source, "--overwrite")
    server = pool.serve(words=["--http", "127.0.0.1:0"])
    shared = Shared(pool, server)
    t.equal(shared.read(shared.path("d", "e", "f"))[::2], (200, b"new"), "now")
    t.equal(shared.admin.ask("POST", shared.path("d", "e", "f") + "/restore", {"at": "s"})[0], 409, "status over a newer file")
    shared.restore(t, shared.path("d"), at="s", to="back")
    t.equal(shared.read(shared.path("back", "e", "f"))[2] == b"old" * 100_000, True, "the copy")
    shared.restore(t, shared.path("d", "e", "f"), at="s", replace=True)
    t.equal(shared.read(shared.path("d", "e", "f"))[2] == b"old" * 100_000, True, "the file")
    t.equal(names(shared.admin.ask("GET", shared.path())[2]), ["back", "d"], "nothing is left behind")
    server.stop()
    pool.check()


@test(seconds_max=600)
def http_restore_survives_a_kill(t):
    """the server is killed in a restore: the share has nothing of it, and the next restore is whole"""
    shared = Shared.new(t)
    home = shared.server.share("home")
    (home / "d").mkdir()
    content = os.urandom(16 << 20)
    for number in range(8):
        (home / "d" / str(number)).write_bytes(content)
    shared.pool.shale("snapshot", "home@s")
    t.run("rm", "-r", home / "d")
    status, _, job = shared.admin.ask("POST", shared.path("d") + "/restore", {"at": "s"})
    t.equal(status, 202, "status of the restore")
    t.wait_for(lambda: shared.admin.ask("GET", f"/jobs/{job['id']}")[2]["bytes_done"] > 0, "the restore has begun")
    shared.server.kill()
    server = shared.pool.serve(shares=True, words=["--http", "127.0.0.1:0"])
    shared.server, shared.admin.host = server, Web(server).host
    t.equal(shared.admin.ask("GET", f"/jobs/{job['id']}")[0], 404, "a job of the server before")
    home = server.share("home")
    t.expect(sorted(os.listdir(home)) in ([], ["d"]) or all(name.startswith(".shale-restore") for name in os.listdir(home)), f"names after the kill: {os.listdir(home)}")
    if not (home / "d").exists():
        again = shared.restore(t, shared.path("d"), at="s")
        t.expect(again["id"] > job["id"], f"the number of a job is used again: {again['id']}")
    t.equal(os.listdir(home), ["d"], "nothing is left behind")
    t.equal(sorted(os.listdir(home / "d")), [str(number) for number in range(8)], "names")
    t.expect(all((home / "d" / str(number)).read_bytes() == content for number in range(8)), "the content is whole")
    server.stop()
    shared.pool.check()


@test()
def http_restore_leaves_nothing_at_a_stop(t):
    """a server that stops in a restore first lets it remove its staging directory: the share is as it was"""
    shared = Shared.new(t)
    home = shared.server.share("home")
    (home / "d").mkdir()
    for number in range(4):
        (home / "d" / str(number)).write_bytes(os.urandom(16 << 20))
    shared.pool.shale("snapshot", "home@s")
    t.run("rm", "-r", home / "d")
    shared.paused(t, shared.path("d"), at="s")
    t.expect(any(name.startswith(".shale-restore") for name in os.listdir(home)), "the restore has staged nothing")
    shared.server.stop()
    server = shared.pool.serve(shares=True)
    t.equal(os.listdir(server.share("home")), [], "what the restore has left behind")
    server.stop()
    shared.pool.check()


@test()
def http_restore_is_durable_when_it_is_done(t):
    """the files of a restore that is done survive the death of a server that keeps no acknowledged names"""
    shared = Shared.new(t, standby="off")
    home = shared.server.share("home")
    (home / "d").mkdir()
    (home / "d" / "f").write_bytes(b"content")
    (home / "g").write_bytes(b"content")
    shared.pool.shale("snapshot", "home@s")
    t.run("rm", "-r", home / "d", home / "g")
    shared.restore(t, shared.path(), at="s")
    shared.server.kill()
    home = shared.pool.serve(shares=True, standby="off").share("home")
    t.equal([(home / name).read_bytes() for name in ("d/f", "g")], [b"content"] * 2, "what came back")


@test()
def http_restore_keeps_its_snapshot(t):
    """no command and no schedule destroys a snapshot while files of it are restored"""
    shared = Shared.new(t)
    home = shared.server.share("home")
    (home / "d").mkdir()
    for number in range(4):
        (home / "d" / str(number)).write_bytes(os.urandom(16 << 20))
    shared.pool.shale("snapshot", "home@s")
    job = shared.paused(t, shared.path("d"), at="s", to="back")
    refused = shared.pool.shale("destroy", "home@s", status=EXIT["in-use"]).stderr
    t.expect("a restore to share 'home'" in refused, f"who has the snapshot: {refused}")
    shared.admin.ask("POST", f"/jobs/{job}/resume")
    shared.end(t, job)
    t.equal(len(os.listdir(home / "back")), 4, "files that came")
    shared.pool.shale("destroy", "home@s")
    shared.server.stop()
    shared.pool.check()


@test(seconds_max=300)
def http_restore_has_an_unmounted_share_alone(t):
    """a share without a mount is not rolled back, renamed, destroyed or received into while a restore changes its tree"""
    pool = Pool(t, capacity="1G")
    pool.shale("create", "home", "--share")
    source = t.dir / "tree"
    source.mkdir()
    for number in range(4):
        (source / str(number)).write_bytes(os.urandom(16 << 20))
    pool.shale("import", "home", source)
    pool.shale("snapshot", "home@s")
    server = pool.serve(words=["--http", "127.0.0.1:0"])
    shared = Shared(pool, server)
    job = shared.paused(t, shared.path(), at="s", to="back")
    for command in (["rollback", "home@s"], ["rename", "home", "other"], ["destroy", "home", "-r"]):
        refused = pool.shale(*command, status=EXIT["in-use"]).stderr
        t.expect("the tree of the share is in use" in refused, f"why not: {refused}")
    shared.admin.ask("POST", f"/jobs/{job}/resume")
    shared.end(t, job)
    t.equal(names(shared.admin.ask("GET", shared.path("back"))[2]), ["0", "1", "2", "3"], "files that came")
    pool.shale("rollback", "home@s")
    t.equal(names(shared.admin.ask("GET", shared.path())[2]), ["0", "1", "2", "3"], "files after the rollback")
    server.stop()
    pool.check()


@test()
def http_restore_leaves_the_shares_in_a_share(t):
    """where the snapshot has a directory that is another share now, that one is left as it is, and all else comes"""
    shared = Shared.new(t)
    home = shared.server.share("home")
    (home / "m").mkdir()
    for name in ("a", "m/old", "z"):
        (home / name).write_bytes(b"old")
    shared.pool.shale("snapshot", "home@s")
    t.run("rm", "-r", *(home / name for name in ("a", "m", "z")))
    shared.pool.shale("create", "home/m", "--share")
    (shared.server.share("home/m") / "own").write_bytes(b"own")
    restored = shared.restore(t, shared.path(), at="s")["result"]["restored"]
    t.equal((restored["restored"], restored["kept"], restored["kept_first"]), (2, 1, "m/old"), "what came, and what did not")
    t.equal((sorted(os.listdir(home)), os.listdir(home / "m")), (["a", "m", "z"], ["own"]), "names")
    shared.server.stop()
    shared.pool.check()


@test()
def http_explain_map(t):
    """a volume and a share have a map by codec, which flushes no client's data and follows a change of compression"""
    shared = Shared.new(t)
    shared.pool.shale("set", "home", "compression=zstd-3")
    home, vm = shared.server.share("home"), shared.object("vm")["id"]
    t.expect(not any(shared.admin.ask("GET", f"/objects/{vm}/explain-map")[2]["cells"]), "an empty volume has no data")
    lines = b"".join(b"static int value_%d = %d;\n" % (n, n * 7919) for n in range(200_000))
    (home / "text.c").write_bytes(lines)
    shared.pool.shale("status", "--sync")
    _, _, found = shared.admin.ask("GET", f"/objects/{shared.id}/explain-map?cells=64")
    # The names of the share are stored by codecs of their own.
    raw = {}
    for cell in filter(None, found["cells"]):
        raw[cell["codec"]] = raw.get(cell["codec"], 0) + cell["raw_bytes"]
    cells = [cell for cell in found["cells"] if cell and cell["codec"] == "zstd-3"]
    t.expect(0 < len(cells) <= 64 and raw["zstd-3"] > sum(raw.values()) * 0.8, f"cells: {found}")
    t.expect(found["looked_at_percent"] > 50, f"percentage: {found['looked_at_percent']}")
    t.expect(all(cell["stored_bytes"] < cell["raw_bytes"] for cell in cells), "text is compressed")
    status, _, detail = shared.admin.ask("GET", f"/objects/{shared.id}/explain/{cells[0]['offset']}")
    t.equal((status, detail["compression"]), (200, "zstd-3"), f"why, {detail}")
    before = shared.admin.ask("GET", "/pool")[2]["log_bytes"]
    (home / "later.c").write_bytes(lines[:1 << 16])
    for _ in range(5):
        shared.admin.ask("GET", f"/objects/{shared.id}/explain-map")
    after = shared.admin.ask("GET", "/pool")[2]["log_bytes"]
    t.equal(after, before, "bytes of the log: a map drains nothing")
    for cells in (0, 1, 4096, 1 << 31):
        status, _, found = shared.admin.ask("GET", f"/objects/{shared.id}/explain-map?cells={cells}")
        t.expect(status == 200 and 0 < len(found["cells"]) <= max(cells, 1) and len(found["cells"]) <= 4096, f"{cells} cells: {status} {str(found)[:200]}")
    t.equal(shared.admin.ask("GET", f"/objects/{shared.id}/explain-map?cells=x")[0], 400, "status for no number")
    t.equal(shared.admin.ask("GET", "/objects/999999/explain-map")[0], 404, "status for no object")
    shared.server.stop()


@test(seconds_max=300)
def http_events_resume(t):
    """a client that comes again with the last event's number gets the figures after it, and a reset only where the server does not know them"""
    shared = Shared.new(t)
    web = shared.admin

    def stream(last=None, count=3):
        """[(name, id, data)] of the first events"""
        connection = web.connection()
        fields = {"Authorization": f"Bearer {web.token}", **({"Last-Event-ID": last} if last is not None else {})}
        connection.request("GET", "/api/v1/events?topics=figures,objects", headers=fields)
        answer, found, event = connection.getresponse(), [], {}
        while len(found) < count:
            line = answer.readline().decode().rstrip("\n")
            if line:
                key, _, value = line.partition(": ")
                event[key] = value
            elif event.get("event"):
                found.append((event["event"], event.get("id"), json.loads(event["data"])))
                event = {}
            else:
                event = {}
        connection.close()
        return found

    first = stream(count=4)
    t.equal([name for name, _, _ in first], ["figures"] * 4, "the first events")
    again = stream(first[1][1], count=3)
    t.equal([name for name, _, _ in again[:3]], ["figures"] * 3, f"after the second event: {again}")
    t.equal([number for _, number, _ in again[:2]], [number for _, number, _ in first[2:]], "the seconds that were missed")
    shared.pool.shale("create", "other", "--size", "1M")
    t.expect("reset" in [name for name, _, _ in stream(again[-1][1], count=2)], "a change meanwhile is told")
    for unknown in ("", "x", "other-17", re.sub(r"-\d+$", "-1", first[0][1]), first[0][1] + "0"):
        t.equal(stream(unknown, count=1)[0][0], "reset", f"after {unknown!r}")
    shared.server.stop()


@test(seconds_max=300)
def http_schedules_leave_marks(t):
    """a snapshot that its schedule takes is a mark of the history, and a change that pages are told of"""
    shared = Shared.new(t)
    began = int(time.time())
    shared.pool.shale("set", "vm", "snapshots=hourly", "keep=2h")

    def marked():
        marks = shared.admin.ask("GET", f"/analytics/marks?from_unix_s={began - 5}&to_unix_s={int(time.time()) + 5}")[2]
        return [mark["text"] for mark in marks if "snapshot vm@" in mark["text"]]
    t.wait_for(marked, "a mark of the schedule")
    t.expect("taken" in marked()[0] and "schedule" in marked()[0], f"marks: {marked()}")
    shared.server.stop()
