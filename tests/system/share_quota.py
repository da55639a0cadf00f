"""Shares at their quota: what says so, writes that wait for room, and a difference that a mounted share cannot receive."""

import errno
import json
import os
import threading

from harness import EXIT, Pool, test

MIB = 1 << 20


def at_quota(pool):
    """The names of what is at its quota."""
    return [line["name"] for line in json.loads(pool.shale("status", "--json", quiet=True).stdout)["at_quota"]]


def fill(path, size):
    """Writes data that no codec makes smaller; the name of the error, or none."""
    try:
        with open(path, "wb") as file:
            for _ in range(size // MIB):
                file.write(os.urandom(MIB))
                file.flush()
    except OSError as error:
        return errno.errorcode[error.errno]
    return None


class Writer:
    """A program that writes, until it is done or refused."""

    def __init__(self, path, size):
        self.said = []
        self.thread = threading.Thread(target=lambda: self.said.append(fill(path, size)))
        self.thread.start()

    def end(self, t, what):
        """The name of its error, or none."""
        self.thread.join(300)
        t.expect(not self.thread.is_alive(), f"{what}: it still waits")
        return self.said[0]


@test()
def share_at_its_quota(t):
    """the log, status and import name a share that is at its quota, until files are removed"""
    pool = Pool(t, capacity="256M")
    pool.shale("create", "docs", "--share", "-o", "quota=4M")
    server = pool.serve(shares=True)
    docs = server.share("docs")
    t.equal(at_quota(pool), [], "at their quota before anything is written")
    t.equal(fill(docs / "big", 8 * MIB), "ENOSPC", "the error at the quota")
    t.equal(at_quota(pool), ["docs"], "at their quota")
    said = pool.shale("status").stdout
    t.expect("share 'docs' uses " in said and "of its quota of 4 MiB" in said, f"status: {said}")
    t.wait_for(lambda: "share 'docs' uses " in t.said(), "a line in the log")
    source = t.dir / "source"
    source.mkdir()
    (source / "more").write_bytes(os.urandom(8 * MIB))
    said = pool.shale("import", "docs", source, status=EXIT["full"]).stderr
    t.expect("share 'docs' uses " in said and "of its quota of 4 MiB" in said, f"import: {said}")
    for path in docs.iterdir():
        path.unlink()
    os.sync()
    t.wait_for(lambda: not at_quota(pool), "room after files were removed")
    server.stop()
    pool.check()


@test()
def share_writes_wait(t):
    """when-full=wait: writes to a share at its quota are held, others go on, and come through when the quota is raised, or fail when their time is over, or the server stops"""
    pool = Pool(t, capacity="256M")
    pool.shale("create", "docs", "--share", "-o", "quota=4M", "-o", "when-full=wait:3600")
    server = pool.serve(shares=True)
    docs = server.share("docs")
    (docs / "small").write_bytes(b"small")
    writer = Writer(docs / "big", 8 * MIB)
    t.wait_for(lambda: at_quota(pool) == ["docs"], "a share at its quota")
    t.expect(writer.thread.is_alive(), f"the writer has ended: {writer.said}")
    # Requests behind it do not wait.
    t.equal((docs / "small").read_bytes(), b"small", "a file that is read meanwhile")
    (docs / "small").rename(docs / "renamed")
    t.equal(sorted(path.name for path in docs.iterdir()), ["big", "renamed"], "the names meanwhile")
    pool.shale("set", "docs", "quota=32M")
    t.equal(writer.end(t, "when there is room"), None, "the error of the writer")
    t.equal((docs / "big").stat().st_size, 8 * MIB, "what it wrote")

    pool.shale("set", "docs", "quota=9M", "when-full=wait:1")
    t.equal(fill(docs / "late", 8 * MIB), "ENOSPC", "the error when the time is over")
    pool.shale("set", "docs", "when-full=wait:3600")
    writer = Writer(docs / "refused", 8 * MIB)
    t.wait_for(lambda: at_quota(pool) == ["docs"], "a share at its quota again")
    pool.shale("set", "docs", "readonly=on")
    t.equal(writer.end(t, "once the share is readonly"), "EROFS", "the error in a share that became readonly")
    pool.shale("set", "docs", "readonly=off", "quota=8M")
    writer = Writer(docs / "cut", 8 * MIB)
    t.wait_for(lambda: at_quota(pool) == ["docs"], "a share at its quota for the third time")
    server.stop()
    t.expect(writer.end(t, "once the server has stopped") is not None, "a write succeeded without room")
    pool.check()


@test()
def share_mounted_and_received(t):
    """a difference for a share that the server mounts is refused with the advice that works"""
    source, copy = Pool(t, capacity="256M"), Pool(t, name="copy", capacity="256M")
    tree, whole, difference = t.dir / "tree", t.dir / "whole", t.dir / "difference"
    tree.mkdir()
    (tree / "first").write_bytes(b"first")
    source.shale("import", "s", tree, "--share")
    source.shale("snapshot", "s@1")
    (tree / "second").write_bytes(b"second")
    source.shale("import", "s", tree, "--overwrite")
    source.shale("snapshot", "s@2")
    source.shale("send", "s@1", "-o", whole)
    source.shale("send", "s@2", "--from", "1", "-o", difference)
    copy.shale("receive", "s", "-i", whole)
    said = copy.shale("receive", "s", "-i", whole, status=EXIT["exists"]).stderr
    t.expect("by another receive" not in said and "s" in said, f"what is told of a stream that has come: {said}")
    server = copy.serve(shares=True)
    mounted = server.share("s")
    t.equal((mounted / "first").read_bytes(), b"first", "the copy")
    said = copy.shale("receive", "s", "-i", difference, status=EXIT["in-use"]).stderr
    for words in ("is mounted at", "stop the server", f"'shale rollback {copy.path} s@SNAPSHOT'"):
        t.expect(words in said, f"the advice lacks {words}: {said}")
    server.stop()
    copy.shale("rollback", "s@1")
    copy.shale("receive", "s", "-i", difference)
    server = copy.serve(shares=True)
    t.equal((server.share("s") / "second").read_bytes(), b"second", "what was received")
    server.stop()
    copy.check()
