"""File systems in a pool that is full: files are deleted, the file system goes on, space comes back, and nothing that was acknowledged is lost."""

import errno
import json
import os
import random
import threading
from pathlib import Path

from harness import Pool, data, test
from harness.context import digest, tree_digest

CAPACITY = "640M"
FILE_BYTES = 4 << 20


def mkfs(t, device, fstype):
    """A file system that gives all of its blocks back first."""
    force = {"ext4": ["-q", "-F"], "xfs": ["-q", "-f"], "btrfs": ["-q", "-f"]}[fstype]
    t.run(f"mkfs.{fstype}", *force, device)


def fsck(t, device, fstype):
    """Must find nothing wrong and change nothing."""
    command = {"ext4": ["e2fsck", "-f", "-n"], "xfs": ["xfs_repair", "-n"], "btrfs": ["btrfs", "check", "--readonly"]}[fstype]
    t.run(*command, device)


class Filler:
    """Writes files that no codec makes smaller, one after the other, each made durable. Knows which were acknowledged."""

    def __init__(self, directory):
        self.directory = directory
        self.written = {}
        self.generator = random.Random(7)
        self.number = 0

    def one(self, size=FILE_BYTES):
        """Writes a file; an OSError tells that it was not acknowledged."""
        path = self.directory / f"file-{self.number:04}"
        self.number += 1
        with open(path, "wb") as file:
            file.write(self.generator.randbytes(size))
            file.flush()
            os.fsync(file.fileno())
        self.written[path] = digest(path)

    def until_full(self, most=2000):
        """Writes until the file system has no more; the error."""
        for _ in range(most):
            try:
                self.one()
            except OSError as error:
                return error
        raise AssertionError("the pool was never full")

    def delete(self, step):
        """Every `step`-th file goes."""
        for path in list(self.written)[::step]:
            path.unlink()
            del self.written[path]


def expect_all(t, filler, tree, expected):
    """Everything that was acknowledged is there."""
    t.drop_page_cache()
    for path, known in filler.written.items():
        t.expect(digest(path) == known, f"{path} is not what was acknowledged")
    t.expect(tree_digest(tree) == expected, "the tree differs from what was copied in")


def status(pool):
    """The figures, as they are."""
    return json.loads(pool.shale("status", "--json").stdout)


def set_up(t, fstype, **properties):
    """A pool that is smaller than its volume, with a file system that holds a tree. (pool, server, device, directory, filler, digests)"""
    pool = Pool(t, capacity=CAPACITY)
    pool.create("vol", "1G", compression="off", **properties)
    server = pool.serve(mount=True)
    device = t.loop(server.file("vol"), direct=True)
    mkfs(t, device, fstype)
    directory = t.mount(device, "fs")
    data.source_tree(directory / "tree", 20 << 20)
    t.run("sync", "--file-system", directory)
    return pool, server, device, directory, Filler(directory), tree_digest(directory / "tree")


def options_of(directory):
    """How the directory is mounted: `ro`, or XFS's `shutdown`, say that the file system has given up."""
    line = next(line for line in Path("/proc/mounts").read_text().splitlines() if f" {directory} " in line)
    return line.split()[3].split(",")


def is_writable(directory):
    """Whether files can be made: a file system that has shut down does not always say so in its options."""
    try:
        with open(directory / "probe", "wb") as file:
            os.fsync(file.fileno())
        (directory / "probe").unlink()
    except OSError:
        return False
    return not {"ro", "shutdown"} & set(options_of(directory))


def outlives_a_full_pool(t, fstype):
    """Writers are told that there is no room, and the file system goes on: files are deleted, and their space comes back."""
    pool, server, device, directory, filler, expected = set_up(t, fstype)
    error = filler.until_full()

    def full_status():
        """What the file system writes for itself may win some room again, until the next write is refused."""
        found = status(pool)
        if (found["full_level"], found["health"]) == (95, "full"):
            return found
        filler.until_full()
        return None

    found = t.wait_for(full_status, "a status that says full")
    t.expect(found["refused_writes"] > 0, f"no write was refused: {found}")
    t.wait_for(lambda: "is FULL, and new data is refused" in t.said(), "a warning of the server")
    t.expect("are kept for cleaning" in t.said(), "what is reserved is not told with the error")

    # Little writes and the file system's log still find room: it goes on, without any help from outside.
    t.expect(is_writable(directory), f"{fstype} has given up: {options_of(directory)}")
    before = len(filler.written)
    filler.delete(2)
    # The first one may tell once more that data found no room before.
    t.run("sync", "--file-system", directory, status=None)
    t.run("sync", "--file-system", directory)
    t.run("fstrim", directory)
    t.wait_for(lambda: status(pool)["available_bytes"] > 8 * FILE_BYTES, "room after fstrim")
    for _ in range(4):
        filler.one()
    t.expect(is_writable(directory), f"{fstype} cannot be written: {options_of(directory)}")
    expect_all(t, filler, directory / "tree", expected)
    found = status(pool)
    t.expect(found["health"] in ("ok", "nearly-full"), f"health is {found['health']} when there is room again")
    t.note(f"{before} files, then {errno.errorcode[error.errno]}; half of them were deleted")

    t.umount(directory)
    fsck(t, device, fstype)
    pool.shale("scrub")
    t.detach(device)
    server.stop()
    pool.check()


@test()
def full_pool_ext4(t):
    """ext4 in a full pool: files are deleted and trimmed, it goes on, nothing acknowledged is lost, e2fsck and scrub find nothing"""
    outlives_a_full_pool(t, "ext4")


@test()
def full_pool_xfs(t):
    """xfs in a full pool: files are deleted and trimmed, it goes on, nothing acknowledged is lost, xfs_repair and scrub find nothing"""
    outlives_a_full_pool(t, "xfs")


@test()
def full_pool_btrfs(t):
    """btrfs in a full pool: files are deleted and trimmed, it goes on, nothing acknowledged is lost, btrfs check and scrub find nothing"""
    outlives_a_full_pool(t, "btrfs")


def waits_in_a_full_pool(t, fstype):
    """Writers are held, and see no error at all: the pool grows while they wait."""
    pool, server, device, directory, filler, expected = set_up(t, fstype, when_full="wait:3600")
    failures = []

    def fill():
        try:
            while sum(path.stat().st_size for path in filler.written) < 640 << 20:
                filler.one()
        except OSError as error:
            failures.append(error)

    writer = threading.Thread(target=fill)
    writer.start()
    t.wait_for(lambda: status(pool)["refused_writes"] > 0, "a write that finds no room", seconds_max=300)
    t.expect(writer.is_alive(), f"the writer has ended: {failures}")
    # Neither reads nor discards wait.
    t.equal(tree_digest(directory / "tree"), expected, "the tree while writers wait")
    pool.shale("grow", "1G")
    writer.join(300)
    t.expect(not writer.is_alive() and not failures, f"the writer: {failures or 'still waits'}")
    expect_all(t, filler, directory / "tree", expected)
    t.expect(is_writable(directory), f"{fstype} cannot be written: {options_of(directory)}")
    t.umount(directory)
    fsck(t, device, fstype)
    t.detach(device)
    server.stop()
    pool.check()


@test()
def full_pool_holds_ext4(t):
    """when-full=wait: ext4's writes are held in a full pool, and come through without an error when it grows"""
    waits_in_a_full_pool(t, "ext4")


@test()
def full_pool_holds_nbd(t):
    """when-full=wait:SECONDS over NBD: a write is held, fails with ENOSPC when its time is over, and comes through when something is discarded"""
    pool = Pool(t, capacity="64M", extent="256K")
    pool.create("vol", "256M", compression="off", when_full="wait:1")
    server = pool.serve()
    script = """
import errno, os
block = 1 << 20
written = []
try:
    for number in range(256):
        h.pwrite(os.urandom(block), number * block)
        written.append(number)
except nbd.Error as error:
    assert error.errnum == errno.ENOSPC, error
assert 32 < len(written) < 64, written
h.flush()
h.shutdown()
"""
    t.run("nbdsh", "-u", server.uri("vol"), "-c", script)
    refused = status(pool)["refused_writes"]
    t.expect(refused > 1, f"it was tried again: {refused}")
    pool.shale("set", "vol", "when-full=wait:3600")
    script = """
import os
pending = h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(os.urandom(1 << 20))), 200 << 20)
for _ in range(20):
    h.poll(50)
assert not h.aio_command_completed(pending)
h.aio_trim(16 << 20, 0)
while not h.aio_command_completed(pending):
    h.poll(-1)
assert any(h.pread(4096, 200 << 20))
h.shutdown()
"""
    t.run("nbdsh", "-u", server.uri("vol"), "-c", script)
    server.stop()
    pool.check()
