"""Programs on a share whose server is killed and started anew, again and again, without unmounting anything."""

import mmap
import multiprocessing
import os
import random
import sqlite3
import subprocess

from harness import Pool, test

CONTEXT = multiprocessing.get_context("fork")


class Load:
    """A program in a process of its own, which counts what was acknowledged. An error ends it, and is told.

    The process of the test has nothing on the share open: it waits for no server when it starts the next one.
    """

    def __init__(self, directory, seed):
        self.directory = directory
        self.chance = random.Random(seed)
        self.ended = CONTEXT.Event()
        self.counted = CONTEXT.Value("Q", 0)
        self.told, self.tell = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=self._run, daemon=True)
        self.process.start()

    @property
    def done(self):
        return self.counted.value

    def _run(self):
        try:
            self.directory.mkdir()
            self.begin()
            while not self.ended.is_set():
                self.step()
                self.counted.value += 1
            self.verify()
        except Exception as error:  # pylint: disable=broad-except
            self.tell.send(f"{type(self).__name__} after {self.done} steps: {error!r}")
        self.tell.send(None)

    def begin(self):
        """What comes before the first step."""

    def step(self):
        """One piece of work, acknowledged when it returns."""

    def verify(self):
        """Demands that all that was done is there."""

    def error(self):
        """What went wrong until now; None while nothing has."""
        return self.told.recv() if self.told.poll() else None


def demand(found, expected, what):
    """Both are the same."""
    if found != expected:
        raise AssertionError(f"{what}: {found!r}, not {expected!r}"[:2000])


class Git(Load):
    """Commits to a repository, each of which must be there to the end."""

    def git(self, *words):
        command = ["git", "-C", self.directory, "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.fsync=all", "-c", "gc.auto=20", *words]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise OSError(f"git {words[0]}: {ran.stdout} {ran.stderr}")
        return ran.stdout

    def begin(self):
        self.commits = []
        self.git("init", "--quiet")

    def step(self):
        (self.directory / f"file {self.chance.randrange(20)}").write_bytes(self.chance.randbytes(self.chance.randrange(30_000)))
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", f"number {self.done}")
        self.commits.append(self.git("rev-parse", "HEAD").strip())

    def verify(self):
        self.git("fsck", "--full", "--strict")
        demand(self.git("rev-list", "--reverse", "HEAD").split(), self.commits, "commits")


class Sqlite(Load):
    """Rows in a database, one transaction each, with its log ahead."""

    def begin(self):
        self.base = sqlite3.connect(self.directory / "base", check_same_thread=False, timeout=60)
        self.base.execute("PRAGMA journal_mode=WAL")
        self.base.execute("PRAGMA synchronous=FULL")
        self.base.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, content BLOB)")

    def step(self):
        with self.base:
            self.base.execute("INSERT INTO rows VALUES (?, ?)", (self.done, self.chance.randbytes(2000)))

    def verify(self):
        demand(self.base.execute("PRAGMA integrity_check").fetchall(), [("ok",)], "what SQLite says")
        count = self.base.execute("SELECT count(*), max(number) FROM rows").fetchone()
        demand(count, (self.done, self.done - 1), "rows")
        self.base.close()


class Fsx(Load):
    """Reads, writes, cuts, holes and maps of a file, compared with the same in memory."""

    SIZE_MAX = 300_000

    def begin(self):
        self.expected = bytearray()
        self.file = os.open(self.directory / "file", os.O_RDWR | os.O_CREAT)

    def write(self, offset, data):
        """In memory."""
        end = offset + len(data)
        self.expected.extend(bytes(max(0, end - len(self.expected))))
        self.expected[offset:end] = data

    def step(self):
        offset, length = self.chance.randrange(self.SIZE_MAX), 1 + self.chance.randrange(40_000)
        kind = self.chance.randrange(8)
        if kind < 3:
            data = self.chance.randbytes(length)
            if os.pwrite(self.file, data, offset) != length:
                raise OSError("a short write")
            self.write(offset, data)
        elif kind == 3:
            os.ftruncate(self.file, offset)
            self.expected = self.expected[:offset] + bytes(max(0, offset - len(self.expected)))
        elif kind == 4 and offset < len(self.expected):
            with mmap.mmap(self.file, len(self.expected)) as mapped:
                data = self.chance.randbytes(min(length, len(self.expected) - offset))
                mapped[offset:offset + len(data)] = data
                mapped.flush()
            self.write(offset, data)
        elif kind == 5:
            os.fsync(self.file)
        found = os.pread(self.file, length, offset)
        if found != self.expected[offset:offset + length]:
            raise OSError(f"{len(found)} bytes at {offset} of {len(self.expected)} are not what was written")

    def verify(self):
        os.fsync(self.file)
        demand((self.directory / "file").read_bytes() == bytes(self.expected), True, "the file is as written")
        os.close(self.file)


class Names(Load):
    """Names that are made, moved and removed once each: what is carried out twice fails the second time. Nothing is synced."""

    def step(self):
        one, two = self.directory / f"{self.done}", self.directory / f"{self.done} moved"
        os.close(os.open(one, os.O_CREAT | os.O_EXCL))
        os.link(one, self.directory / f"{self.done} too")
        os.rename(one, two)
        os.mkdir(one)
        os.symlink("target", one / "link")
        if self.done % 3 == 0:
            os.unlink(one / "link")
            os.rmdir(one)
            os.unlink(two)

    def verify(self):
        demand(set(os.listdir(self.directory)), names_after(self.done), "names")


def names_after(steps):
    """What so many steps of `Names` leave."""
    expected = {f"{number} too" for number in range(steps)}
    for number in range(steps):
        if number % 3 != 0:
            expected |= {f"{number}", f"{number} moved"}
    return expected


def killed(t, rounds):
    """The loads on one share, while the server dies `rounds` times."""
    pool = Pool(t, capacity="2G")
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True, keeps=True)
    share = server.share("home")
    seed = random.randrange(1 << 32)
    t.log(f"seed {seed}")
    chance = random.Random(seed)
    loads = [kind(share / kind.__name__, chance.random()) for kind in (Git, Sqlite, Fsx, Names)]

    def fail_if_one_failed():
        for load in loads:
            error = load.error()
            t.expect(error is None and load.process.is_alive(), f"{error or type(load).__name__}")

    def have_gone_on():
        fail_if_one_failed()
        return all(load.done >= least for load, least in zip(loads, until))

    for _ in range(rounds):
        until = [load.done + chance.randrange(1, most) for load, most in zip(loads, (3, 20, 200, 100))]
        t.wait_for(have_gone_on, "all programs to go on", seconds_max=600)
        server.kill(leaves_mount=True)
        server = pool.serve(shares=True, keeps=True)
    for load in loads:
        load.ended.set()
    for load in loads:
        t.equal(load.told.recv(), None, f"what became of {type(load).__name__}")
        load.process.join()
    t.note(f"{rounds} kills, " + ", ".join(f"{type(load).__name__} {load.done}" for load in loads))
    server.stop()
    pool.check()
    # And from the pool alone.
    server = pool.serve(shares=True)
    share = server.share("home")
    t.run("git", "-C", share / "Git", "fsck", "--full")
    t.equal(set(os.listdir(share / "Names")), names_after(loads[3].done), "names at last")
    server.stop()
    pool.check()


@test(seconds_max=1200)
def shares_go_on_under_programs(t):
    """3 kills under git, SQLite, reads and writes as fsx does, and names that are made once: nothing is lost, nothing is done twice"""
    killed(t, 3)


@test(seconds_max=7200, soak=True)
def soak_shares_go_on_under_programs(t):
    """50 kills under git, SQLite, reads and writes as fsx does, and names that are made once: nothing is lost, nothing is done twice"""
    killed(t, 50)
