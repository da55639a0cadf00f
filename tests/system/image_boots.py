"""Debian that boots from clones of a blob over NBD, beside kills of the server and of the store. Only in `make e2e`, which sets SHALE_E2E.

The store is behind a link of 1 Gbit/s with a round trip of 5 ms. Machines run under KVM, or are emulated where KVM does not run one. An emulated boot
takes a minute of a processor, so that one or two machines boot at a time (SHALE_GUESTS says another number); the place of 4 and 16 is then taken by
replays, which read what the first machine has read, as it did, and compare it with the image."""

import filecmp
import json
import os
import shutil
import time

from harness import Pool, test
from harness.guest import BOOT_SECONDS_MAX, TOOL, Guest, Link, accelerator, at_a_time, guests_max, image, replays
from harness.objectstore import BUCKET, s3_server
from harness.pool import BINARY

from .blobs import Store, own_state
from .images import use

MIB = 1 << 20
# What a boot has fetched, as stored, while GRUB still reads the initial RAM disk, and when the kernel runs.
IN_GRUB_BYTES, IN_SYSTEM_BYTES = 16 * MIB, 42 * MIB
# Emulated machines that boot at once.
EMULATED_AT_A_TIME = 2
# A machine whose disk has failed is watched for so long.
FAILED_SECONDS = 300
# What root does in the machine: packages are unpacked and removed, a database is filled, and files are made, whose sums are kept.
CHANGES = """set -e
mkdir /srv/made
cp -a /usr/share/perl /srv/made/perl
head -c 8M /dev/urandom >/srv/made/random
rm -rf /usr/share/doc/git
su postgres -c 'psql -qc "create table t as select n, md5(n::text) as m from generate_series(1, 20000) n"'
cd /srv/made; find . -type f | sort | xargs sha256sum >/srv/sums"""
# What the machine that boots from the pushed version must find.
LOOKS = """set -e
cd /srv/made; sha256sum --quiet -c /srv/sums; [ ! -e /usr/share/doc/git ]
largest=$(python3 -c 'import hashlib; print(max(hashlib.md5(b"%d" % n).hexdigest() for n in range(1, 20001)))')
[ "$(su postgres -c 'psql -Atc "select count(*), max(m) from t"')" = "20000|$largest" ]"""


class Ground:
    """An image in a store behind a link, and a pool."""

    def __init__(self, t):
        self.t = t
        self.image = image(t)
        self.accelerated = accelerator(t)
        self.store_server = s3_server(t)
        if self.store_server:
            link = Link(t, self.store_server.port)
            use(t, own_state(t, link.environment(self.store_server.environment())))
            self.store = Store(t, f"s3://{BUCKET}/dir", os.environ)
        else:
            use(t, own_state(t, os.environ))
            self.store = Store(t, f"file://{t.dir}/blobs", os.environ)
        # Reads must come from the store.
        os.environ["SHALE_BLOB_CACHE"] = "0"
        self.pool = Pool(t, capacity="12G")

    def put(self, key, compression):
        """The image as a blob."""
        self.t.run(BINARY, "blob", "put", f"{self.store.url}/{key}", self.image, "-o", f"compression={compression}", "--quiet")

    def clone(self, key, name, *words, pool=None):
        """A volume that begins as the image."""
        self.t.run(BINARY, "clone", f"{self.store.url}/{key}", (pool or self.pool).path, name, *words)

    def boot(self, server, name, command=None, **named):
        """A machine that boots from a volume."""
        return Guest(self.t, server.uri(name), name, self.accelerated, command, **named)

    def fetched(self, key, pool=None):
        """What the status says of the image of that key."""
        status = json.loads((pool or self.pool).shale("status", "--json", quiet=True).stdout)
        return next(one for one in status["images"] if one["image"].endswith(f"/{key}"))

    def wait_until(self, truth, what, key, pool=None):
        """Returns when that holds for what the status says of an image."""

        def holds():
            # A command each time: not more often than a boot needs.
            time.sleep(0.3)
            return truth(self.fetched(key, pool))

        self.t.wait_for(holds, what, seconds_max=BOOT_SECONDS_MAX)

    def read(self, server, name):
        """A volume as a file."""
        target = self.t.dir / f"{name}.raw"
        target.unlink(missing_ok=True)
        self.t.run("nbdcopy", server.uri(name), target, seconds_max=1800)
        return target

    def is_whole(self, server, name):
        """A volume that nothing was written to reads as the image."""
        copy = self.read(server, name)
        self.t.expect(filecmp.cmp(copy, self.image, shallow=False), f"{name} does not read as the image")
        copy.unlink()

    def end(self, server, key, pool):
        """Another clone reads as the image, and nothing is wrong with the pool."""
        self.clone(key, "untouched", pool=pool)
        self.is_whole(server, "untouched")
        server.stop()
        pool.check()

    def fsck(self, server, name):
        """The file system of a volume that a machine wrote to is whole."""
        copy = self.read(server, name)
        self.t.run(TOOL, "check", copy, seconds_max=1800)
        copy.unlink()


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=3 * 3600)
    def e2e_boot_clones_raw(t):
        """1, 4 and 16 machines boot at once from clones of a raw blob, which fetch each group once"""
        boot_clones(t, "raw", "off")

    @test(seconds_max=3 * 3600)
    def e2e_boot_clones_packed(t):
        """1, 4 and 16 machines boot at once from clones of a compressed blob, which fetch each group once"""
        boot_clones(t, "packed", "auto")

    @test(seconds_max=2 * 3600)
    def e2e_boot_push_elsewhere(t):
        """A machine changes its disk; the snapshot is pushed, and another host boots it and finds the changes"""
        ground = Ground(t)
        ground.put("disk", "auto")
        server = ground.pool.serve()
        ground.clone("disk", "vm")
        t.equal(ground.boot(server, "vm", CHANGES).wait()["status"], 0, "exit status of the changes in the machine")
        ground.pool.shale("snapshot", "vm@changed")
        done = json.loads(ground.pool.shale("push", "vm@changed", f"{ground.store.url}/disk", "--to", f"{ground.store.url}/changed", "--json", seconds_max=1800).stdout)
        t.expect(0 < done["groups"] < 2048 * MIB // 131072 // 4, f"only what changed goes up: {done}")
        t.note(f"pushed {done['groups']} groups, {done['as_stored']} as stored: {done['stored_bytes'] / MIB:.0f} MiB")
        server.stop()
        ground.pool.check()
        elsewhere = Pool(t, "elsewhere", capacity="12G")
        there = elsewhere.serve()
        ground.clone("changed", "vm", pool=elsewhere)
        t.equal(ground.boot(there, "vm", LOOKS).wait()["status"], 0, "exit status of the look in the other machine")
        ground.fsck(there, "vm")
        ground.clone("disk", "untouched", pool=elsewhere)
        ground.is_whole(there, "untouched")
        there.stop()
        elsewhere.check()

    @test(seconds_max=2 * 3600)
    def e2e_boot_server_killed(t):
        """kill -9 of the server in mid-boot: the boot goes on with the next one"""
        ground = Ground(t)
        ground.put("disk", "auto")
        server = ground.pool.serve()
        ground.clone("disk", "vm")
        machine = ground.boot(server, "vm")
        ground.wait_until(lambda found: found["fetched_bytes"] > IN_SYSTEM_BYTES, "the middle of the boot", "disk")
        t.expect(machine.runs(), "the machine was up before the server could be killed")
        server.kill()
        server = ground.pool.serve()
        machine.wait()
        ground.fsck(server, "vm")
        ground.end(server, "disk", ground.pool)

    @test(seconds_max=2 * 3600)
    def e2e_boot_store_killed(t):
        """kill -9 of the store in mid-boot: the boot goes on when the store comes back"""
        ground = Ground(t)
        if ground.store_server:
            server, machine = store_dies(t, ground, IN_SYSTEM_BYTES)
            ground.store_server.start()
            machine.wait()
            ground.end(server, "disk", ground.pool)

    @test(seconds_max=2 * 3600)
    def e2e_boot_store_lost(t):
        """a store that is killed in mid-boot and stays away for longer than remote-timeout fails the boot clearly, and is used again when it is back"""
        ground = Ground(t)
        if ground.store_server:
            ground.pool.shale("set", "remote-timeout=5s")
            server, machine = store_dies(t, ground, IN_GRUB_BYTES)
            # GRUB meets an error of its disk, and never zeroes that look like data.
            ground.wait_until(lambda found: found["failures"] > 0, "a request that failed", "disk")
            machine.stays_down(FAILED_SECONDS)
            ground.store_server.start()
            ground.end(server, "disk", ground.pool)


def boot_clones(t, key, compression):
    """Machines, or replays of the first one's reads, at once from clones of a blob; each number has a pool of its own: nothing is there before."""
    ground = Ground(t)
    ground.put(key, compression)
    wanted = guests_max() if ground.accelerated == "kvm" or "SHALE_GUESTS" in os.environ else EMULATED_AT_A_TIME
    most, alone, reads = min(at_a_time(), wanted), None, t.dir / "reads.csv"
    for count in (1, 2, 4, 16):
        real = count <= most
        if not real and count == 2:
            continue
        pool = Pool(t, f"{key}-{count}", capacity="12G")
        server = pool.serve()
        names = [f"{key}-{count}-{number}" for number in range(count)]
        for name in names:
            ground.clone(key, name, pool=pool)
        if real:
            machines = [ground.boot(server, name, reads=None if alone else reads) for name in names]
            times = [machine.wait()["up_s"] for machine in machines]
        else:
            times = replays(t, [server.uri(name) for name in names], reads, ground.image)
        found = ground.fetched(key, pool)
        t.equal(sorted(found["volumes"]), sorted(names), "volumes of the image")
        t.expect(found["fetched_bytes"] > MIB, f"a boot reads something: {found}")
        alone = alone or found
        # Machines differ in what they read; what they share is fetched once.
        t.expect(found["fetched_groups"] <= 1.25 * alone["fetched_groups"] + 64, f"{count} machines fetch like one: {found}, one: {alone}")
        what = f"machines, {ground.accelerated}: up" if real else "replays of the first machine's reads: done"
        t.note(f"{key}: {count} {what} after {min(times):.0f} to {max(times):.0f} s, {found['fetched_groups']} groups, {found['fetched_bytes'] / MIB:.0f} MiB fetched")
        ground.end(server, key, pool)
        shutil.rmtree(pool.path)


def store_dies(t, ground, enough):
    """The server and the machine, behind the end of the store when so many bytes were fetched, once the server has met an error."""
    ground.put("disk", "auto")
    server = ground.pool.serve()
    ground.clone("disk", "vm")
    machine = ground.boot(server, "vm")
    ground.wait_until(lambda found: found["fetched_bytes"] > enough, "the middle of the boot", "disk")
    t.expect(machine.runs(), "the machine was up before the store could be killed")
    ground.store_server.kill()
    ground.wait_until(lambda found: found["last_error"] is not None, "an error of the store in the status", "disk")
    return server, machine
