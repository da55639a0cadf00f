"""PostgreSQL and MariaDB on a share without their protection from torn pages: the server of the share killed under load, with its mount kept and with
its mount lost, and the power cut. Only in `make e2e`, which sets SHALE_E2E, and where they are installed (tools/setup paper).

A cut of power is a snapshot: the pool lies on ext4 on a volume of another pool, and a snapshot of that volume has the disk's content at one moment,
without the memory of the machine. It has all writes up to that moment, in their order; the simulator (`pages` in the suite `sim`) also drops
any of those that were not synced.

The checks are tested with damage that they must find: `e2e_database_planted`."""

import os
import random
import time

import pytest

from harness import Pool, TestFailed, test
from harness.databases import CLIENTS, DATABASES, ROWS, Clients, seconds, seed_of_run

ROUNDS = int(os.environ.get("SHALE_DATABASE_ROUNDS", "50"))
# Small extents and little memory: batches end at many places, and the cleaner works.
POOL = {"capacity": "256M", "extent": "256K"}
MEMORY = "64M"


def database_of(name):
    """Its class; the test is skipped if it is not installed."""
    if not DATABASES[name].found():
        pytest.skip(f"{name} is not installed (tools/setup paper)")
    return DATABASES[name]


class Trial:
    """A database on the share `db` of a pool, and clients that change it."""

    def __init__(self, t, name):
        self.t, self.kind, self.began, self.chance = t, database_of(name), time.monotonic(), random.Random(seed_of_run(t))
        self.pool = self.server = self.database = self.clients = None

    def create(self, pool):
        """The share, with units as large as the database's pages, or as SHALE_DATABASE_UNIT says: smaller ones may tear pages."""
        self.pool, unit = pool, os.environ.get("SHALE_DATABASE_UNIT", self.kind.page)
        pool.shale("create", "db", "--share", "-o", f"unit={unit}", "-o", "compression=zstd-1", "-o", "rule-set=database")

    def serve(self, **options):
        self.server = self.pool.serve(memory=MEMORY, **options)

    def load(self):
        """Fills the database, and starts the clients."""
        self.database = self.kind(self.t, self.server.share("db"), "db")
        self.database.make()
        self.database.start()
        self.database.fill()
        self.clients = Clients(self.t, self.database, self.chance.randrange(1 << 32))

    def rounds(self):
        """The number of each round, once the clients have made some transactions in it."""
        for number in range(ROUNDS):
            self.clients.more(self.chance.randrange(20, 200))
            yield number

    def verify(self):
        self.database.verify(self.clients.acknowledged, self.clients.asked)

    def end(self, ends):
        self.verify()
        self.server.stop()
        self.pool.check()
        described, counted = self.database.described, self.clients.counted
        self.t.note(f"{ROUNDS} {ends} {described}: {counted} transactions, none missing, no torn page, {seconds(self.began)}")


def killed(t, name):
    """kill -9 of the server under a database, whose files stay open."""
    trial = Trial(t, name)
    trial.create(Pool(t, **POOL))
    trial.serve(shares=True, keeps=True)
    t.expect("over io_uring" not in t.said(), "the share's mount ends with its server, because this machine allows FUSE over io_uring at the moment")
    trial.load()
    for _ in trial.rounds():
        trial.server.kill(leaves_mount=True)
        trial.serve(shares=True, keeps=True)
    trial.clients.more(100)
    trial.clients.stop()
    trial.database.stop()
    # The mount of another server has nothing in the kernel's cache.
    trial.server.stop()
    trial.serve(shares=True)
    trial.database.start()
    trial.end("kills under")


def lost(t, name):
    """kill -9 of the server, with which its mount and the database end; both are started again."""
    trial = Trial(t, name)
    trial.create(Pool(t, **POOL))
    trial.serve(shares=True)
    trial.load()
    for _ in trial.rounds():
        trial.server.kill()
        trial.database.crash()
        trial.clients.end_with_database()
        trial.serve(shares=True)
        trial.database.start()
        trial.verify()
        trial.database.start()
        trial.clients = Clients(t, trial.database, trial.chance.randrange(1 << 32), before=trial.clients)
    trial.clients.more(100)
    trial.clients.stop()
    trial.end("ends of server and")


def cut(t, name):
    """The power is cut under a database: after recovery all its pages are whole, and all acknowledged transactions are there."""
    trial = Trial(t, name)
    below = Pool(t, "below", capacity="3G")
    below.create("disk", "1G", compression="lz4")
    disks = below.serve(mount=True)
    device = t.loop(disks.file("disk"), direct=True)
    t.run("mkfs.ext4", "-q", device)
    directory = t.mount(device, "disk")
    trial.create(Pool(t, f"{directory.name}/pool", **POOL))
    # No memory outlives a loss of power.
    trial.serve(shares="db.shares", standby="off")
    trial.load()
    for number in trial.rounds():
        oldest = dict(trial.clients.acknowledged)
        below.shale("snapshot", f"disk@{number}")
        newest = dict(trial.clients.asked)
        below.shale("clone", f"disk@{number}", "copy")
        recovered(t, trial.kind, disks, oldest, newest)
        below.shale("destroy", "copy")
        below.shale("destroy", f"disk@{number}")
    trial.clients.stop()
    trial.end("cuts of power under")


def recovered(t, kind, disks, oldest, newest):
    """Starts everything on a copy of the disk, as a machine after a cut of power does, and verifies the database."""
    device = t.loop(disks.file("copy"), direct=True)
    directory = t.mount(device, "copy")
    # A name of its own, from which the test derives those of the sockets.
    pool = Pool.at(t, (directory / "pool").rename(directory / "copied"))
    server = pool.serve(shares="copy.shares", standby="off", memory=MEMORY)
    database = kind(t, server.share("db"), "copied")
    database.forget_processes()
    database.start()
    database.verify(oldest, newest)
    server.stop()
    pool.check()
    t.umount(directory)
    t.detach(device)


def planted(t, name):
    """Damage that the other tests must find, in a database on a plain directory."""
    kind = database_of(name)
    directory = t.dir / "plain"
    directory.mkdir()
    database = kind(t, directory, "db")
    database.make()
    database.start()
    database.fill()
    file = database.table_file()
    versions = dict.fromkeys(range(CLIENTS * ROWS), 0)
    database.verify(versions, versions)
    before = file.read_bytes()

    database.start()
    database.sql(f"update records set version = 1, content = {database.content_by(database.key.replace('version', '1'))};")
    versions = dict.fromkeys(versions, 1)
    database.verify(versions, versions)
    after = file.read_bytes()

    def refused(check, *arguments):
        with pytest.raises(TestFailed) as found:
            check(*arguments)
        t.log(f"found: {found.value}")

    # A page of which only one half was written.
    page = int(kind.page.removesuffix("K")) << 10
    torn = torn_page(before, after, page)
    t.expect(torn is not None, "no page differs in both halves")
    place, content = torn
    overwrite(file, place, content)
    refused(database.checksums)
    database.start()
    refused(database.verify, versions, versions)
    database.crash()
    overwrite(file, place, after[place:place + page])

    # A transaction that is missing, and one that nobody asked for.
    for oldest, newest in [(versions | {7: 2}, versions | {7: 2}), (versions | {7: 0}, versions | {7: 0})]:
        database.start()
        refused(database.verify, oldest, newest)
        database.crash()
    # A row with the content of another version, in pages whose checksums are right.
    database.start()
    database.sql(f"update records set content = {database.content_of(7, 0)} where id = 7;")
    refused(database.verify, versions, versions)
    database.sql(f"update records set content = {database.content_of(7, 1)} where id = 7;")
    database.verify(versions, versions)


def torn_page(before, after, page):
    """The offset of a page both of whose halves differ, and its content with the first half of the newer one. From the middle of the file on: the
    first pages are not rows."""
    half = page // 2
    for place in range(len(before) // page // 2 * page, len(before), page):
        middle, end = place + half, place + page
        if before[place:middle] != after[place:middle] and before[middle:end] != after[middle:end]:
            return place, after[place:middle] + before[middle:end]
    return None


def overwrite(file, place, content):
    """Replaces bytes of a file."""
    with open(file, "r+b") as target:
        target.seek(place)
        target.write(content)


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=7200)
    def e2e_database_killed_postgresql(t):
        """PostgreSQL goes on over kill -9 of the server of its share: no torn page, no acknowledged transaction missing"""
        killed(t, "postgresql")

    @test(seconds_max=7200)
    def e2e_database_killed_mariadb(t):
        """the same for MariaDB with innodb_doublewrite=0"""
        killed(t, "mariadb")

    @test(seconds_max=7200)
    def e2e_database_lost_postgresql(t):
        """PostgreSQL ends with the server of its share and recovers with the next: no torn page, no acknowledged transaction missing"""
        lost(t, "postgresql")

    @test(seconds_max=7200)
    def e2e_database_lost_mariadb(t):
        """the same for MariaDB with innodb_doublewrite=0"""
        lost(t, "mariadb")

    @test(seconds_max=7200)
    def e2e_database_cut_postgresql(t):
        """PostgreSQL on a share recovers from cuts of power: no torn page, no acknowledged transaction missing"""
        cut(t, "postgresql")

    @test(seconds_max=7200)
    def e2e_database_cut_mariadb(t):
        """the same for MariaDB with innodb_doublewrite=0"""
        cut(t, "mariadb")

    @test(seconds_max=1800)
    def e2e_database_planted_postgresql(t):
        """the checks of these tests find a torn page, a missing transaction and wrong content in PostgreSQL"""
        planted(t, "postgresql")

    @test(seconds_max=1800)
    def e2e_database_planted_mariadb(t):
        """the same for MariaDB"""
        planted(t, "mariadb")
