"""Shares under what no friend does: a second server, storms of renames while the server dies, every byte in names, no room left."""

import errno
import json
import multiprocessing
import os
import random

from harness import EXIT, Pool, test
from harness.context import tree_digest
from harness.pool import BINARY

CONTEXT = multiprocessing.get_context("fork")


@test(seconds_max=300)
def a_second_server_is_kept_off(t):
    """a second server of a pool with shares, and one of a copy of its directory's name: refused, and the first goes on"""
    pool = Pool(t, capacity="256M")
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True)
    share = server.share("home")
    (share / "file").write_text("before")
    link = t.dir / "link"
    os.symlink(pool.path, link)
    elsewhere = t.dir / "elsewhere"
    elsewhere.mkdir()
    for path in (pool.path, link):
        for words in (["serve", path, "--shares", server.shares_dir], ["serve", path, "--shares", elsewhere, "--nbd", f"unix:{t.dir}/second"],
                      ["check", path], ["check", path, "--repair"]):
            said = t.run(BINARY, *words, "--wait", "0", status=EXIT["in-use"])
            t.log(said.stderr)
    t.equal(((share / "file").read_text(), sorted(os.listdir(elsewhere))), ("before", []), "the share, and the other directory")
    (share / "file").write_text("after")
    server.kill()
    server = pool.serve(shares=True)
    t.equal((server.share("home") / "file").read_text(), "after", "the file after kill -9")
    server.stop()
    pool.check()


class Storm:
    """A process that renames its files at random, and notes before and after each step what it does."""

    FILES = 24

    def __init__(self, share, notes, number, seed):
        self.share, self.number, self.path = share, number, notes / f"storm {number}"
        self.chance = random.Random(seed)
        self.process = CONTEXT.Process(target=self._run, daemon=True)
        self.process.start()

    def place(self, file):
        """A name that no other process uses."""
        directory = self.chance.randrange(4)
        return f"directory {directory}/{self.number}-{file}-{self.chance.randrange(1000)}"

    def _run(self):
        where = {}
        notes = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

        def note(*step):
            os.write(notes, json.dumps(step).encode() + b"\n")

        def make(file):
            # Its name may be there by chance.
            place = self.place(file)
            while place in where.values():
                place = self.place(file)
            note("make", file, place, None)
            (self.share / place).write_text(f"{self.number} {file}")
            note("done", file, place, None)
            where[file] = place

        try:
            for file in range(self.FILES):
                make(file)
            while True:
                file, over = self.chance.sample(range(self.FILES), 2)
                if self.chance.randrange(3) == 0:
                    # Over another one of its own, which goes.
                    to = where[over]
                else:
                    to, over = self.place(file), None
                    if to in where.values():
                        continue
                note("move", file, to, over)
                os.rename(self.share / where[file], self.share / to)
                note("done", file, to, over)
                where[file] = to
                if over is not None:
                    make(over)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENOENT):
                note("end", error.errno, str(error), None)

    def end(self):
        """Where its files are by what was acknowledged, and the last step, which may have been done or not."""
        self.process.join()
        where, under_way = {}, None
        for line in self.path.read_text().splitlines():
            kind, file, place, over = json.loads(line)
            if kind == "end":
                raise AssertionError(f"storm {self.number}: {place}")
            under_way = (kind, file, place, over)
            if kind == "done":
                under_way = None
                where[file] = place
                if over is not None:
                    where.pop(over)
        return where, under_way


def storm(t, rounds):
    """Storms over kills of the server; returns how many steps were acknowledged."""
    pool = Pool(t, capacity="1G")
    pool.shale("create", "home", "--share")
    seed = random.randrange(1 << 32)
    t.log(f"seed {seed}")
    chance, steps = random.Random(seed), 0
    for _ in range(rounds):
        server = pool.serve(shares=True)
        share = server.share("home")
        for directory in list(share.iterdir()):
            t.run("rm", "-rf", directory)
        for directory in range(4):
            (share / f"directory {directory}").mkdir()
        storms = [Storm(share, t.dir, number, chance.random()) for number in range(4)]
        least = chance.randrange(200, 3000)
        t.wait_for(lambda: all(one.path.exists() and one.path.stat().st_size > 50 * least for one in storms), "steps")
        if chance.randrange(2):
            pool.shale("snapshot", f"home@s{chance.randrange(1 << 30)}")
        server.kill()
        ends = [one.end() for one in storms]
        steps += sum(one.path.read_text().count("done") for one in storms)
        server = pool.serve(shares=True)
        share = server.share("home")
        found = {f"{directory}/{name}" for directory in os.listdir(share) for name in os.listdir(share / directory)}
        allowed = set()
        for number, (where, under_way) in enumerate(ends):
            kind, moved, to, over = under_way or (None, None, None, None)
            allowed |= set(where.values()) | {to}
            for file, place in where.items():
                if file == over or file == moved and place not in found:
                    # The step was done: what was replaced is gone, and what was moved is there.
                    content = f"{number} {moved}" if place not in found else (share / place).read_text()
                    t.expect(content in (f"{number} {moved}", f"{number} {over}"), f"content of {place}: {content}")
                    continue
                t.expect(place in found, f"file {file} of {number} is not at {place}, where it was moved")
                t.equal((share / place).read_text(), f"{number} {file}", f"content of {place}")
            if kind == "move":
                is_at = [place for place in (where[moved], to) if place in found and (share / place).read_text() == f"{number} {moved}"]
                t.equal(len(is_at), 1, f"places of file {moved} of {number}, which was under way: {is_at}")
                if over is not None:
                    t.expect(to in found, f"neither file is at {to}, where one was to replace the other")
        t.equal(sorted(found - allowed), [], "names that nobody made, or that were moved away")
        server.stop()
        pool.check()
    t.note(f"{steps} steps in {rounds} storms, seed {seed}")


@test(seconds_max=900)
def renames_over_kills(t):
    """4 processes rename and replace files while the server dies, 4 times, nothing synced: each name is where it was moved, and nothing is twice"""
    storm(t, 4)


@test(seconds_max=7200, soak=True)
def soak_renames_over_kills(t):
    """the same 60 times"""
    storm(t, 60)


@test(seconds_max=600)
def names_of_every_byte(t):
    """names of every byte and length, in bytes that are no text, over kill -9, check, snapshots, export and import"""
    pool = Pool(t, capacity="512M")
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True)
    share = os.fsencode(server.share("home"))
    names = [bytes([byte]) for byte in range(1, 256) if byte not in b"/."]
    names += [bytes([byte]) * 255 for byte in range(1, 256) if byte != ord("/")]
    names += [b"\xff\xfe\n\t'\"\\$(x)", b"-rf", b"...", b"a\rb", "\u202egnp.exe".encode(), b"con:", b" ", b"%00%2f"]
    for name in names:
        with open(os.path.join(share, name), "wb") as file:
            file.write(name)
    for name in (b"x" * 256, b"y" * 4000):
        try:
            os.mkdir(os.path.join(share, name))
            t.fail(f"a name of {len(name)} bytes is made")
        except OSError as error:
            t.equal(error.errno, errno.ENAMETOOLONG, "the error of a name that is too long")
    server.kill()
    server = pool.serve(shares=True)
    share = os.fsencode(server.share("home"))
    t.equal(sorted(os.listdir(share)), sorted(set(names)), "names after kill -9")
    for name in names:
        with open(os.path.join(share, name), "rb") as file:
            t.equal(file.read(), name, f"content of {name!r}")
    pool.shale("snapshot", "home@one")
    server.stop()
    pool.check()
    pool.shale("export", "home@one", t.dir / "back")
    t.equal(sorted(os.listdir(os.fsencode(t.dir / "back"))), sorted(set(names)), "names exported")
    pool.shale("import", "again", t.dir / "back", "--share")
    server = pool.serve(shares=True)
    t.equal(tree_digest(server.share("again")), tree_digest(server.share("home")), "the tree that was imported")
    server.stop()


@test(seconds_max=900)
def a_share_at_its_quota_over_a_kill(t):
    """a share with a quota: writes end with no room, names and removals go on, kill -9 loses nothing, and another share has room"""
    pool = Pool(t, capacity="1G")
    pool.shale("create", "home", "--share", "-o", "quota=64M")
    pool.shale("create", "other", "--share")
    server = pool.serve(shares=True)
    share, other = server.share("home"), server.share("other")
    written = {}
    try:
        for number in range(1000):
            content = os.urandom(1 << 20)
            with open(share / f"file {number}", "wb", buffering=0) as file:
                t.equal(file.write(content), len(content), "bytes of a write")
            written[f"file {number}"] = content
        t.fail("a quota of 64 MiB takes 1000 MiB")
    except OSError as error:
        t.expect(error.errno in (errno.ENOSPC, errno.EDQUOT), f"the error at the quota: {error}")
    t.expect(40 < len(written) <= 64, f"{len(written)} MiB fit in 64 MiB")
    (other / "file").write_bytes(os.urandom(1 << 20))
    moved = list(written)[0]
    os.rename(share / moved, share / "moved")
    written["moved"] = written.pop(moved)
    gone = list(written)[0]
    os.unlink(share / gone)
    written.pop(gone)
    server.kill()
    server = pool.serve(shares=True)
    share = server.share("home")
    for name, content in written.items():
        t.expect((share / name).read_bytes() == content, f"{name} is not as it was written")
    t.expect(not (share / gone).exists() and not (share / moved).exists(), "a name that was removed or moved is there")
    for name in list(written)[:20]:
        os.unlink(share / name)
        written.pop(name)
    t.run("sync", share)
    (share / "again").write_bytes(os.urandom(10 << 20))
    server.stop()
    pool.check()
