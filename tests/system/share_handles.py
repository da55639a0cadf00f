"""Handles of files in shares, as NFS servers keep them; shares that are made while the program is killed; and who sees the snapshots of a share."""

import ctypes
import errno
import json
import os
import random
import signal
import subprocess
import tarfile
import time

from harness import EXIT, Pool, test
from harness.pool import BINARY

LIBC = ctypes.CDLL(None, use_errno=True)
# A user that no test makes.
USER = 61001
# Creations that are killed, at some time of those that they take.
CREATIONS = 60


class Handle(ctypes.Structure):
    """`struct file_handle`."""

    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("content", ctypes.c_ubyte * 128)]


def handle_of(path):
    """The handle of a file, as bytes."""
    handle, mount = Handle(bytes=128), ctypes.c_int()
    if LIBC.name_to_handle_at(-100, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return handle.type, bytes(handle.content[:handle.bytes])


def content_by(root, handle):
    """The content of the file that a handle leads to, or the error."""
    kind, content = handle
    asked = Handle(bytes=len(content), type=kind)
    ctypes.memmove(asked.content, content, len(content))
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        file = LIBC.open_by_handle_at(directory, ctypes.byref(asked), os.O_RDONLY)
        if file < 0:
            return errno.errorcode[ctypes.get_errno()]
        with os.fdopen(file) as opened:
            return opened.read()
    finally:
        os.close(directory)


class Files:
    """Files of a share, each made once, with the handles that clients keep."""

    def __init__(self, t, server, share):
        self.t, self.share, self.handles, self.numbers = t, share, {}, {}
        self.root = server.share(share)

    def make(self, server, name):
        """A file with its name for content."""
        self.root = server.share(self.share)
        (self.root / name).write_text(name)
        handle, number = handle_of(self.root / name), os.stat(self.root / name).st_ino
        self.t.expect(handle not in self.handles, f"{name} has the handle of {self.handles.get(handle)}: {handle}")
        self.t.expect(number not in self.numbers, f"{name} has the number {number} of {self.numbers.get(number)}")
        self.handles[handle], self.numbers[number] = name, name

    def verify(self, server, there):
        """Each handle leads to its file, or to none."""
        self.root = server.share(self.share)
        for handle, name in self.handles.items():
            self.t.equal(content_by(self.root, handle), name if name in there else "ESTALE", f"the file of the handle of {name}")


@test(seconds_max=600)
def handles_lead_to_one_file(t):
    """handles over rollbacks, restarts, kills, clones and a share of the same name: each leads to its own file, or is stale"""
    pool = Pool(t)
    pool.shale("create", "s", "--share")
    server = pool.serve(shares=True)
    files = Files(t, server, "s")
    files.make(server, "kept")
    pool.shale("snapshot", "s@one")
    for name in ["b", "c", "d"]:
        files.make(server, name)
        files.verify(server, {"kept", name})
        pool.shale("rollback", "s@one")
        files.verify(server, {"kept"})
    server.stop()
    server = pool.serve(shares=True)
    files.make(server, "e")
    pool.shale("rollback", "s@one")
    files.make(server, "f")
    server.kill()
    server = pool.serve(shares=True)
    files.make(server, "g")
    files.verify(server, {"kept", "f", "g"})

    # A clone has the numbers of its origin, and may get its device.
    pool.shale("clone", "s@one", "c")
    server.stop()
    server = pool.serve(shares=True)
    clone = Files(t, server, "c")
    clone.make(server, "in the clone")
    for handle, name in files.handles.items():
        t.equal(content_by(clone.root, handle), "ESTALE", f"the handle of {name} in a clone")
    pool.shale("promote", "c")
    files.verify(server, {"kept", "f", "g"})
    clone.verify(server, {"in the clone"})

    # Another share of that name, at the same place.
    pool.shale("destroy", "-r", "s")
    pool.shale("create", "s", "--share")
    again = t.wait_for(lambda: os.path.ismount(server.shares_dir / "s") and Files(t, server, "s"), "the new share")
    for number in range(20):
        again.make(server, f"stranger {number}")
    for handle, name in files.handles.items():
        t.equal(content_by(again.root, handle), "ESTALE", f"the handle of {name} in another share")
    server.stop()
    pool.check()


@test(seconds_max=600)
def snapshots_have_handles_of_their_own(t):
    """the handle of a file in a snapshot leads to that snapshot, and to nothing when it has gone or is switched off"""
    pool = Pool(t)
    pool.shale("create", "s", "--share")
    server = pool.serve(shares=True)
    root = server.share("s")
    (root / "file").write_text("old")
    pool.shale("snapshot", "s@one")
    (root / "file").write_text("new")
    pool.shale("snapshot", "s@two")
    snapshots = root / ".shale" / "snapshots"
    handles = {name: handle_of(snapshots / name / "file") for name in ["one", "two"]}
    t.expect(len({*handles.values(), handle_of(root / "file")}) == 3, f"three handles: {handles}")
    t.equal({name: content_by(root, handle) for name, handle in handles.items()}, {"one": "old", "two": "new"}, "by handles")
    pool.shale("destroy", "s@one")
    server.stop()
    server = pool.serve(shares=True)
    t.equal([content_by(root, handles[name]) for name in ["one", "two"]], ["ESTALE", "new"], "when one has gone")
    pool.shale("set", "s", "snapdir=off")
    t.equal(content_by(root, handles["two"]), "ESTALE", "when they are switched off")
    server.stop()
    pool.check()


def is_whole(t, pool, name):
    """Whether a share is there; it must be served then."""
    listed = {line["name"] for line in json.loads(pool.shale("list", "--json").stdout)}
    if name not in listed:
        return False
    pool.shale("export", name, t.dir / f"whole-{name}")
    return True


@test(seconds_max=900)
def shares_are_made_whole_or_not_at_all(t):
    """create --share, import, clone and receive killed at any time of theirs, the command and the server: each share is whole, and check is clean"""
    seed = random.randrange(1 << 32)
    t.log(f"seed {seed}")
    chance = random.Random(seed)
    pool = Pool(t, capacity="1G")
    pool.shale("create", "origin", "--share")
    with tarfile.open(t.dir / "tree.tar", "w") as archive:
        archive.add(__file__, "file")
    pool.shale("import", "origin", t.dir / "tree.tar")
    pool.shale("snapshot", "origin@one")
    stream = t.dir / "stream"
    with open(stream, "wb") as file:
        subprocess.run([BINARY, "send", pool.path, "origin@one"], stdout=file, check=True)
    ways = [
        lambda name: (["create", pool.path, name, "--share"], None),
        lambda name: (["import", pool.path, name, t.dir / "tree.tar", "--share"], None),
        lambda name: (["clone", pool.path, "origin@one", name], None),
        lambda name: (["receive", pool.path, name], stream),
    ]
    made = killed = 0
    # How long each way takes here, served and not: the kills are spread over that.
    durations = {}
    for number in range(-2 * len(ways), CREATIONS):
        name = f"n{number + 2 * len(ways)}"
        way, is_served = number % len(ways), (number // len(ways)) % 2 == 0
        words, source = ways[way](name)
        server = pool.serve(shares=True) if is_served else None
        patience = chance.uniform(0, durations[way, is_served]) if number >= 0 else None
        began = time.monotonic()
        with open(source or os.devnull, "rb") as file:
            command = subprocess.Popen([BINARY, *words], stdin=file, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                command.wait(patience)
            except subprocess.TimeoutExpired:
                killed += 1
                if is_served and chance.random() < 0.5:
                    server.kill()
                command.send_signal(signal.SIGKILL)
            command.wait()
        if number < 0:
            durations[way, is_served] = time.monotonic() - began
        if is_served and server.process.poll() is None:
            server.kill()
        made += is_whole(t, pool, name)
    t.note(f"{killed} of {CREATIONS} creations were killed, {made} shares were made")
    t.expect(killed >= CREATIONS // 4, f"kills that met a creation: {killed} of {CREATIONS}")
    t.expect(made >= 2 * len(ways), f"shares that were made: {made}, of which {2 * len(ways)} without a kill")
    pool.check()
    server = pool.serve(shares=True)
    t.equal(json.loads(pool.shale("status", "--json").stdout)["health"] in ("ok", "incomplete"), True, "health")
    for line in json.loads(pool.shale("list", "--json").stdout):
        t.expect(os.listdir(server.share(line["name"])) in ([], ["file"]), f"{line['name']} has a name or none")
    server.stop()


def as_user(*words):
    """Output and exit status of a command of an unprivileged user."""
    ran = subprocess.run(["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups", *map(str, words)],
                         capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout


@test(seconds_max=600)
def snapshots_are_seen_as_the_property_says(t):
    """snapdir root, hidden, visible and off: who enters .shale/snapshots, and whether the root lists it"""
    os.chmod(t.dir, 0o755)
    pool = Pool(t)
    pool.shale("create", "s", "--share")
    server = pool.serve(shares=True)
    root = server.share("s")
    (root / "was-open").write_text("secret")
    pool.shale("snapshot", "s@one")
    os.chmod(root / "was-open", 0o600)
    old = root / ".shale" / "snapshots" / "one" / "was-open"
    default = next(line for line in json.loads(pool.shale("get", "s", "--json").stdout) if line["key"] == "snapdir")
    t.equal(default["value"], "root", "the default")
    # By root, by a user, and in a listing.
    for value, by_root, by_user, listed in [
        ("root", True, False, False),
        ("hidden", True, True, False),
        ("visible", True, True, True),
        ("off", False, False, False),
        ("root", True, False, False),
    ]:
        pool.shale("set", "s", f"snapdir={value}")

        def found():
            is_read = old.exists() and old.read_text() == "secret"
            status, said = as_user("cat", old)
            names = set(os.listdir(root)) - {"was-open"}
            return is_read, status == 0 and said == "secret", names == {".shale"}

        expected = (by_root, by_user, listed)
        # The kernel looks again after a second.
        t.wait_for(lambda want=expected, look=found: look() == want, f"snapdir={value} to hold: root, a user, a listing")
    said = pool.shale("set", "s", "snapdir=yes", status=EXIT["usage"]).stderr
    t.expect("hidden (not listed)" in said, f"the values that are allowed: {said}")
    pool.shale("set", "s", "snapdir=visible")
    t.wait_for(lambda: ".shale" in os.listdir(root), "the listing")
    t.equal(t.out("ls", "-A", root / ".shale").split(), ["snapshots"], "names in .shale")
    t.equal(sorted(os.listdir(root)), [".shale", "was-open"], "the root")
    try:
        os.rmdir(root / ".shale")
        t.fail(".shale was removed")
    except OSError as error:
        t.expect(error.errno in (errno.EPERM, errno.EROFS), f"an attempt to remove .shale: {error}")
    server.stop()
    pool.check()
