"""PostgreSQL and MariaDB on a share without full-page writes and doublewrite buffer: the server killed under load, and the power cut. Only in `make e2e`,
which sets SHALE_E2E, and where they are installed (tools/setup paper).

The power is cut by a snapshot: the pool lies on ext4 on a volume of another pool, and a snapshot of that volume has what the disk had at one moment,
without what was only in memory. Its writes are those before the moment, in their order; the simulator (`pages` in the suite `sim`) drops any of them
that were not synced."""

import os
import random
import time

import pytest

from harness import Pool, test
from harness.databases import DATABASES, Clients, seconds, seed_of_run

ROUNDS = int(os.environ.get("SHALE_DATABASE_ROUNDS", "50"))
# Small extents and little memory: batches end at many places, and the cleaner works.
POOL = {"capacity": "256M", "extent": "256K"}
MEMORY = "64M"


def database_of(name):
    """Its class; the test is skipped if it is not installed."""
    if not DATABASES[name].found():
        pytest.skip(f"{name} is not installed (tools/setup paper)")
    return DATABASES[name]


def made(t, server, kind):
    """A filled database on the share `db`, running."""
    database = kind(t, server.share("db"), "db")
    database.make()
    database.start()
    database.fill()
    return database


def killed(t, name):
    """kill -9 of the server under a database, whose files stay open."""
    kind, began = database_of(name), time.monotonic()
    chance = random.Random(seed_of_run(t))
    pool = Pool(t, **POOL)
    pool.shale("create", "db", "--share", "-o", f"unit={kind.page}", "-o", "compression=zstd-1")
    server = pool.serve(shares=True, keeps=True, memory=MEMORY)
    database = made(t, server, kind)
    clients = Clients(t, database, chance.randrange(1 << 32))
    for _ in range(ROUNDS):
        clients.more(chance.randrange(20, 200))
        server.kill(leaves_mount=True)
        server = pool.serve(shares=True, keeps=True, memory=MEMORY)
    clients.more(100)
    clients.stop()
    database.verify(clients.acknowledged, clients.asked)
    server.stop()
    pool.check()
    t.note(f"{ROUNDS} kills under {name}: {clients.counted} transactions, none missing, no torn page, {seconds(began)}")


def cut(t, name):
    """The power is cut under a database: after recovery all its pages are whole, and all acknowledged transactions are there."""
    kind, began = database_of(name), time.monotonic()
    chance = random.Random(seed_of_run(t))
    below = Pool(t, "below", capacity="3G")
    below.create("disk", "1G", compression="lz4")
    disks = below.serve(mount=True)
    device = t.loop(disks.file("disk"), direct=True)
    t.run("mkfs.ext4", "-q", device)
    directory = t.mount(device, "disk")
    t.run("chmod", "755", directory)
    pool = Pool(t, f"{directory.name}/pool", **POOL)
    pool.shale("create", "db", "--share", "-o", f"unit={kind.page}", "-o", "compression=zstd-1")
    # No memory outlives a loss of power.
    server = pool.serve(shares="db.shares", standby="off", memory=MEMORY)
    database = made(t, server, kind)
    clients = Clients(t, database, chance.randrange(1 << 32))
    for number in range(ROUNDS):
        clients.more(chance.randrange(20, 200))
        oldest = dict(clients.acknowledged)
        below.shale("snapshot", f"disk@{number}")
        newest = dict(clients.asked)
        below.shale("clone", f"disk@{number}", "copy")
        recovered(t, kind, disks, oldest, newest)
        below.shale("destroy", "copy")
        below.shale("destroy", f"disk@{number}")
    clients.stop()
    database.verify(clients.acknowledged, clients.asked)
    server.stop()
    pool.check()
    t.note(f"{ROUNDS} cuts of power under {name}: {clients.counted} transactions, none missing, no torn page, {seconds(began)}")


def recovered(t, kind, disks, oldest, newest):
    """What a machine finds that was started with this disk."""
    device = t.loop(disks.file("copy"), direct=True)
    directory = t.mount(device, "copy")
    # Its own name, after which the test calls its sockets.
    pool = Pool.at(t, (directory / "pool").rename(directory / "copied"))
    server = pool.serve(shares="copy.shares", standby="off", memory=MEMORY)
    database = kind(t, server.share("db"), "copied")
    database.start()
    database.verify(oldest, newest)
    server.stop()
    pool.check()
    t.umount(directory)
    t.detach(device)


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=7200)
    def e2e_database_killed_postgresql(t):
        """PostgreSQL with full_page_writes=off goes on over kill -9 of the server of its share: no torn page, no acknowledged transaction missing"""
        killed(t, "postgresql")

    @test(seconds_max=7200)
    def e2e_database_killed_mariadb(t):
        """the same for MariaDB with innodb_doublewrite=0"""
        killed(t, "mariadb")

    @test(seconds_max=7200)
    def e2e_database_cut_postgresql(t):
        """PostgreSQL with full_page_writes=off on a share recovers from cuts of power: no torn page, no acknowledged transaction missing"""
        cut(t, "postgresql")

    @test(seconds_max=7200)
    def e2e_database_cut_mariadb(t):
        """the same for MariaDB with innodb_doublewrite=0"""
        cut(t, "mariadb")
