"""Virtual machines with disks by vhost-user-blk: a file system on one beside kills of the server, and a boot from a clone. Only in `make e2e`, which
sets SHALE_E2E."""

import os
import re
import time

from harness import Pool, test
from harness.guest import BOOT_SECONDS_MAX, TOOL, Guest, accelerator, image

# What root does on the disk: trees are copied and compared, free space is given back, and the file system grows with the disk.
WORK = """set -e
disk=/dev/vdb
[ "$(cat /sys/block/vdb/queue/write_cache)" = "write back" ]
[ "$(cat /sys/block/vdb/queue/discard_max_bytes)" -gt 0 ]
echo "serial $(cat /sys/block/vdb/serial)"
mkfs.ext4 -q $disk
mkdir -p /mnt/v
mount $disk /mnt/v
(cd /usr/share/perl; find . -type f | sort | xargs sha256sum) > /tmp/sums
for round in 1 2 3 4 5 6; do
    cp -a /usr/share/perl /mnt/v/$round
    echo "copied $round"
    sync
done
umount /mnt/v
mount $disk /mnt/v
for round in 1 2 3 4 5 6; do
    (cd /mnt/v/$round; sha256sum --quiet -c /tmp/sums)
    echo "compared $round"
done
fstrim /mnt/v
echo "wants to grow"
until [ "$(cat /sys/block/vdb/size)" = 3145728 ]; do sleep 0.2; done
resize2fs $disk >/dev/null
cp -a /usr/share/perl /mnt/v/more
umount /mnt/v
e2fsck -fn $disk"""
# Lines behind which the server is killed.
KILLS = ["copied 1", "copied 3", "copied 5", "compared 2"]


class Disks:
    """A served pool whose volumes have sockets."""

    def __init__(self, t):
        self.t, self.pool, self.dir = t, Pool(t, capacity="8G"), t.dir / "disks"
        self.server = None

    def serve(self):
        """Serves, again if it was killed."""
        self.server = self.pool.serve(words=["--vhost-user", self.dir])

    def socket(self, name):
        """The socket of a volume."""
        return self.dir / f"{name}.sock"

    def kill(self):
        """Kills the server, and serves again."""
        self.server.kill()
        self.serve()

    def end(self):
        """Nothing is wrong with the pool."""
        self.server.stop()
        self.t.expect(not list(self.dir.rglob("*.sock")), "the server removes its sockets")
        self.pool.check()


def said_by(machine):
    """The console of a machine, which is there when it begins."""
    return machine.log.read_text(errors="replace") if machine.log.exists() else ""


def await_line(t, machine, line):
    """Waits until the machine has written a line to its console."""

    def is_there():
        # A look at the console each time: not more often than a machine needs.
        time.sleep(0.2)
        runs, text = machine.runs(), said_by(machine)
        found = re.search(rf"^{re.escape(line)}\r?$", text, re.MULTILINE)
        t.expect(found or runs, f"the machine ended before '{line}': {text[-1000:]}")
        return found

    t.wait_for(is_there, f"'{line}' on the console", seconds_max=BOOT_SECONDS_MAX)


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=2 * 3600)
    def e2e_vhost_outlives_kills(t):
        """ext4 on a vhost-user disk of a machine: kill -9 of the server under load costs it a pause; discard and resize reach it"""
        disks = Disks(t)
        disks.pool.create("vm", "1G")
        disks.serve()
        words = ["--lean", "--vhost-user", disks.socket("vm")]
        machine = Guest(t, image(t), "vm", accelerator(t), WORK, words=words)
        for line in KILLS:
            await_line(t, machine, line)
            disks.kill()
        await_line(t, machine, "wants to grow")
        disks.pool.shale("resize", "vm", "1536M")
        t.equal(machine.wait()["status"], 0, "exit status of the work in the machine")
        disks.end()

    @test(seconds_max=2 * 3600)
    def e2e_vhost_boots_from_a_clone(t):
        """Debian boots from a clone over vhost-user, beside a kill -9 of the server; the origin stays as it was"""
        disks = Disks(t)
        source = image(t)
        disks.pool.shale("import", "golden", source, seconds_max=1800)
        disks.pool.shale("snapshot", "golden@1")
        disks.pool.shale("clone", "golden@1", "vm")
        disks.serve()
        machine = Guest(t, f"vhost-user:{disks.socket('vm')}", "vm", accelerator(t), "set -e; mkdir /srv/made; cp -a /usr/share/perl /srv/made; sync")
        # GRUB has read the kernel when it speaks.
        t.wait_for(lambda: time.sleep(0.2) or said_by(machine), "the first word of the machine", seconds_max=BOOT_SECONDS_MAX)
        disks.kill()
        t.equal(machine.wait()["status"], 0, "exit status of the work in the machine")
        copy = t.dir / "vm.raw"
        disks.pool.shale("export", "vm", copy, seconds_max=1800)
        t.run(TOOL, "check", copy, seconds_max=1800)
        copy.unlink()
        disks.pool.shale("export", "golden", copy, seconds_max=1800)
        t.run("cmp", copy, source, seconds_max=1800)
        disks.end()
