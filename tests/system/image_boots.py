"""Debian that boots from clones of a blob over NBD, beside kills of the server and of the store. Only in `make e2e`, which sets SHALE_E2E.

The store is behind a link of 1 Gbit/s with a round trip of 5 ms. Machines run under KVM, or are emulated where KVM does not run one: then 4 boot
where 16 would (SHALE_GUESTS says another number), and a boot takes a minute or more."""

import filecmp
import json
import os
import time

from harness import Pool, test
from harness.guest import BOOT_SECONDS_MAX, TOOL, Guest, Link, accelerator, at_a_time, guests_max, image
from harness.objectstore import BUCKET, s3_server
from harness.pool import BINARY

from .blobs import Store, own_state
from .images import use

MIB = 1 << 20
# What a boot has fetched, as stored, while GRUB still reads the initial RAM disk, and when the kernel runs.
IN_GRUB_BYTES, IN_SYSTEM_BYTES = 16 * MIB, 42 * MIB
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
[ "$(su postgres -c 'psql -Atc "select count(*), max(m) from t"')" = "20000|$(seq 20000 | while read n; do printf %s $n | md5sum; done | cut -c1-32 | sort | tail -n 1)" ]"""


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

    def fsck(self, server, name):
        """The file system of a volume that a machine wrote to is whole."""
        copy = self.read(server, name)
        self.t.run(TOOL, "check", copy, seconds_max=1800)
        copy.unlink()


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=3 * 3600)
    def e2e_boot_clones(t):
        """1, 4 and 16 machines boot at once from clones of a raw and of a compressed blob, which fetch each group once"""
        ground = Ground(t)
        most = min(at_a_time(), guests_max() if ground.accelerated == "kvm" or "SHALE_GUESTS" in os.environ else 4)
        for key, compression in [("raw", "off"), ("packed", "auto")]:
            ground.put(key, compression)
            alone = None
            for count in [n for n in (1, 4, 16) if n <= most]:
                # A pool of its own for each number: nothing is there before.
                pool = Pool(t, f"{key}-{count}", capacity="12G")
                server = pool.serve()
                names = [f"{key}-{count}-{number}" for number in range(count)]
                for name in names:
                    ground.clone(key, name, pool=pool)
                machines = [ground.boot(server, name) for name in names]
                times = [machine.wait()["up_s"] for machine in machines]
                found = ground.fetched(key, pool)
                t.equal(found["volumes"], count, "volumes of the image")
                t.expect(found["fetched_bytes"] > MIB, f"a boot reads something: {found}")
                alone = alone or found
                # Machines differ in what they read; what they share is fetched once.
                t.expect(found["fetched_groups"] <= 1.25 * alone["fetched_groups"] + 64, f"{count} machines fetch like one: {found}, one: {alone}")
                t.note(f"{key}: {count} machines, {ground.accelerated}: up after {min(times):.0f} to {max(times):.0f} s, {found['fetched_bytes'] / MIB:.0f} MiB fetched")
                ground.clone(key, "untouched", pool=pool)
                ground.is_whole(server, "untouched")
                server.stop()
                pool.check()

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
    def e2e_boot_kills(t):
        """kill -9 of the server, and of the store, in mid-boot: the boot goes on; a store that stays away fails it clearly"""
        ground = Ground(t)
        ground.put("disk", "auto")
        server = ground.pool.serve()
        ground.clone("disk", "vm1")
        machine = ground.boot(server, "vm1")
        ground.wait_until(lambda found: found["fetched_bytes"] > IN_SYSTEM_BYTES, "the middle of the boot", "disk")
        t.expect(machine.runs(), "the machine was up before the server could be killed")
        server.kill()
        server = ground.pool.serve()
        machine.wait()
        ground.fsck(server, "vm1")
        if ground.store_server:
            store_dies(t, ground, server)
        ground.clone("disk", "untouched")
        ground.is_whole(server, "untouched")
        server.stop()
        ground.pool.check()


def store_dies(t, ground, server):
    """The store is killed in mid-boot and comes back; then it is killed and stays away for longer than remote-timeout."""
    # Another pool has nothing of the image yet.
    for name, comes_back in [("late", True), ("lost", False)]:
        pool = Pool(t, name, capacity="12G")
        if not comes_back:
            pool.shale("set", "remote-timeout=5s")
        there = pool.serve()
        ground.clone("disk", name, pool=pool)
        machine = ground.boot(there, name, seconds_max=BOOT_SECONDS_MAX if comes_back else 300)
        enough = IN_SYSTEM_BYTES if comes_back else IN_GRUB_BYTES
        ground.wait_until(lambda found, enough=enough: found["fetched_bytes"] > enough, "the middle of the boot", "disk", pool)
        t.expect(machine.runs(), "the machine was up before the store could be killed")
        ground.store_server.kill()
        ground.wait_until(lambda found: found["last_error"] is not None, "an error of the store in the status", "disk", pool)
        if comes_back:
            ground.store_server.start()
            machine.wait()
        else:
            # GRUB meets an error of its disk, and never zeroes that look like data.
            machine.wait(status=4)
            t.expect(ground.fetched("disk", pool)["failures"] > 0, "requests that failed are counted")
            ground.store_server.start()
        ground.clone("disk", "untouched", pool=pool)
        ground.is_whole(there, "untouched")
        there.stop()
        pool.check()
