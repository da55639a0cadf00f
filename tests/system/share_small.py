"""Small files of a share, whose content lies in the records of their inodes until they are longer."""

import ctypes
import json
import mmap
import os
import random

from harness import Pool, test
from harness.context import tree_digest

# The longest content that a record holds.
RECORD = 512
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class File:
    """A file, and the content that it must have."""

    def __init__(self, t, path):
        self.t, self.path, self.content = t, path, bytearray()
        path.write_bytes(b"")

    def put(self, offset, data):
        """Has the content be as it is when so much is written there."""
        if not data:
            return
        if len(self.content) < offset + len(data):
            self.content.extend(bytes(offset + len(data) - len(self.content)))
        self.content[offset:offset + len(data)] = data

    def step(self, rng, others):
        """Does one thing to the file, mostly near the bound."""
        size = len(self.content)
        offset = rng.choice([0, size, rng.randrange(RECORD + 20), rng.randrange(3 * RECORD)])
        length = rng.choice([1, rng.randrange(1, RECORD), rng.randrange(1, 6000)])
        what = rng.choice(["write", "write", "append", "cut", "cut", "empty", "map", "punch", "zero", "copy", "sync", "replace"])
        bytes_ = rng.randbytes(length)
        if what == "replace":
            with open(self.path, "wb") as file:
                file.write(bytes_)
            self.content = bytearray(bytes_)
            return
        fd = os.open(self.path, os.O_RDWR | (os.O_APPEND if what == "append" else 0))
        try:
            if what == "write":
                os.pwrite(fd, bytes_, offset)
                self.put(offset, bytes_)
            elif what == "append":
                os.write(fd, bytes_)
                self.put(size, bytes_)
            elif what in ("cut", "empty"):
                to = offset if what == "cut" else 0
                os.ftruncate(fd, to)
                self.content = self.content[:to] + bytes(max(0, to - size))
            elif what == "map" and size:
                offset = min(offset, size - 1)
                bytes_ = bytes_[:size - offset]
                with mmap.mmap(fd, size) as mapped:
                    self.t.expect(mapped[:] == bytes(self.content), f"{self.path}: what a mapping shows")
                    mapped[offset:offset + len(bytes_)] = bytes_
                    mapped.flush()
                self.put(offset, bytes_)
            elif what in ("punch", "zero"):
                mode = PUNCH_HOLE | KEEP_SIZE if what == "punch" else ZERO_RANGE
                if LIBC.fallocate(fd, mode, offset, length) != 0:
                    raise OSError(ctypes.get_errno(), "fallocate")
                end = offset + length if what == "zero" else min(size, offset + length)
                if offset < end:
                    self.put(offset, bytes(end - offset))
            elif what == "copy":
                other = rng.choice(others)
                if other is not self:
                    source = os.open(other.path, os.O_RDONLY)
                    copied = os.copy_file_range(source, fd, length, 0, offset)
                    os.close(source)
                    self.put(offset, other.content[:copied])
            elif what == "sync":
                os.fsync(fd)
        finally:
            os.close(fd)


def expect_all(t, files, when):
    """Each file has its content."""
    for file in files:
        found = file.path.read_bytes()
        t.expect(found == bytes(file.content), f"{file.path.name} {when}: {len(file.content)} bytes expected, {len(found)} found, or others")


@test(seconds_max=300)
def small_files_go_in_and_out_of_records(t):
    """files around the length that an inode's record holds, written, cut, mapped, punched and copied, over kill -9, in snapshots, clones, streams and salvage"""
    rng = random.Random(4)
    pool = Pool(t, capacity="512M")
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True)
    share = server.share("home")
    files = [File(t, share / f"file {number}") for number in range(40)]
    for turn in range(4):
        for _ in range(250):
            file = rng.choice(files)
            file.step(rng, files)
        expect_all(t, files, f"in turn {turn}")
        if turn == 1:
            os.link(files[0].path, share / "second name")
            pool.shale("snapshot", "home@one")
            one = tree_digest(share)
            t.equal(tree_digest(share / ".shale/snapshots/one"), one, "the snapshot")
        # Nothing is synced.
        server.kill()
        server = pool.serve(shares=True)
        expect_all(t, files, f"after kill -9 in turn {turn}")
    t.equal(tree_digest(share / ".shale/snapshots/one"), one, "the snapshot, at the end")
    last = tree_digest(share)
    pool.shale("clone", "home@one", "again")
    t.equal(tree_digest(server.share("again")), one, "a clone")
    pool.shale("recompress", "home")
    t.equal(tree_digest(share), last, "the share after a recompression")
    server.stop()
    pool.check()
    pool.shale("snapshot", "home@two")
    other = Pool(t, name="other", capacity="512M")
    for words in (["home@one"], ["home@two", "--from", "one"]):
        stream = t.dir / f"stream{len(words)}"
        pool.shale("send", *words, "-o", stream)
        other.shale("receive", "copy", "-i", stream)
    other.check()
    other.shale("export", "copy", t.dir / "back")
    t.equal(tree_digest(t.dir / "back"), last, "what was sent")
    pool.shale("salvage", "--into", t.dir / "new", "--capacity", "512M")
    new = Pool.at(t, t.dir / "new")
    new.check()
    new.shale("export", "home", t.dir / "salvaged")
    t.equal(tree_digest(t.dir / "salvaged"), last, "what was salvaged")


@test(seconds_max=60)
def ratio_of_a_small_share(t):
    """the ratio of a share counts its names and inodes, as the help of list says; that of its files is what usage tells"""
    pool = Pool(t, capacity="128M")
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True)
    share = server.share("home")

    def listed():
        return json.loads(pool.shale("list", "--sync", "--json").stdout)[0]

    empty = listed()
    t.expect(80 << 10 <= empty["allocated_bytes"] <= 160 << 10, f"the data of an empty share: {empty}")
    t.expect(empty["stored_bytes"] <= 5120, f"what an empty share takes: {empty}")
    for number in range(8):
        (share / f"file{number}").write_bytes(os.urandom(16 << 10))
    t.expect(1.5 < listed()["ratio"] < 2.5, f"the ratio of a share with 128 KiB that cannot be compressed: {listed()}")
    files = json.loads(pool.shale("usage", "home", "--json").stdout)["total"]
    t.expect(0.98 < files["ratio"] < 1.02, f"the ratio of its files: {files}")
    server.stop()
