"""Virtual machines with disks by vhost-user-blk and NBD: file systems beside kills of the server and losses of the machine's power, and boots from
clones. Only in `make e2e`, which sets SHALE_E2E."""

import os
import re
import time

from harness import Pool, test
from harness.guest import BOOT_SECONDS_MAX, TOOL, Guest, accelerator, image, lean_image

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
# Files that are synced one after the other, while others are made and removed; the power fails meanwhile.
LOAD = """set -e
disk=/dev/vdb
MKFS $disk
mkdir -p /mnt/v
mount -o discard $disk /mnt/v
fio --name=verify --directory=/mnt/v --size=16m --rw=randwrite --bs=4k --ioengine=libaio --direct=1 --iodepth=16 --verify=crc32c --verify_fatal=1 >/tmp/fio
rm /mnt/v/verify*
stress-ng --temp-path /mnt/v --hdd 1 --hdd-bytes 8M --hdd-ops 200 --rename 1 --rename-ops 500 --dir 1 --dir-ops 200 --quiet
echo "under load"
(while :; do cp -a /etc /mnt/v/other; rm -r /mnt/v/other; done) &
number=0
while :; do
    number=$((number + 1))
    yes "line of file $number" | head -c 40000 >/mnt/v/file$number
    sync /mnt/v/file$number /mnt/v
    echo "synced $number"
done"""
# What the next machine must find.
RECOVERED = """set -e
disk=/dev/vdb
mkdir -p /mnt/v
mount $disk /mnt/v
for number in $(seq COUNT); do
    yes "line of file $number" | head -c 40000 | cmp - /mnt/v/file$number
done
umount /mnt/v
CHECK $disk"""
FILE_SYSTEMS = {"ext4": ("mkfs.ext4 -q", "e2fsck -fn"), "xfs": ("mkfs.xfs -q", "xfs_repair -n")}
# Of a machine with work to do, emulated on a busy computer.
WORK_SECONDS_MAX = 5400
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

    def address(self, name, door):
        """Of a volume, as machines boot from it."""
        return self.server.uri(name) if door == "nbd" else f"vhost-user:{self.socket(name)}"

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
        machine = Guest(t, image(t), "vm", accelerator(t), WORK, words=words, seconds_max=WORK_SECONDS_MAX)
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
        boots_from_a_clone(t, "vhost-user")

    @test(seconds_max=2 * 3600)
    def e2e_nbd_boots_from_a_clone(t):
        """the same over NBD: QEMU connects again"""
        boots_from_a_clone(t, "nbd")

    @test(seconds_max=2 * 3600)
    def e2e_vhost_power_cut_ext4(t):
        """fio and stress-ng on ext4 of a machine whose power fails: each file that was synced is there for the next machine"""
        power_cut(t, "ext4")

    @test(seconds_max=2 * 3600)
    def e2e_vhost_power_cut_xfs(t):
        """the same with XFS"""
        power_cut(t, "xfs")


def boots_from_a_clone(t, door):
    """A machine boots from a clone, which it changes."""
    disks = Disks(t)
    source = image(t)
    disks.pool.shale("import", "golden", source, seconds_max=1800)
    disks.pool.shale("snapshot", "golden@1")
    disks.pool.shale("clone", "golden@1", "vm")
    disks.serve()
    # dpkg syncs each of its steps.
    work = "set -e; mkdir /srv/made; cp -a /usr/share/perl /srv/made; apt-get purge -qq -y git >/dev/null; dpkg --audit; sync"
    machine = Guest(t, disks.address("vm", door), "vm", accelerator(t), work, seconds_max=WORK_SECONDS_MAX)
    # GRUB has read the kernel when it speaks.
    t.wait_for(lambda: time.sleep(0.2) or said_by(machine), "the first word of the machine", seconds_max=BOOT_SECONDS_MAX)
    disks.kill()
    document = machine.wait()
    t.equal(document["status"], 0, "exit status of the work in the machine")
    t.note(f"{door}, {document['accelerator']}: up after {document['up_s']} s, the kill of the server included")
    copy = t.dir / "vm.raw"
    disks.pool.shale("export", "vm", copy, seconds_max=1800)
    t.run(TOOL, "check", copy, seconds_max=1800)
    copy.unlink()
    disks.pool.shale("export", "golden", copy, seconds_max=1800)
    t.run("cmp", copy, source, seconds_max=1800)
    disks.end()


def power_cut(t, kind):
    """The power of a machine fails under load, soon after the server was killed; another machine looks at the disk."""
    disks, disk = Disks(t), lean_image(t)
    disks.pool.create("vm", "1G")
    disks.serve()
    words = ["--lean", "--vhost-user", disks.socket("vm"), "--memory", 512]
    mkfs, check = FILE_SYSTEMS[kind]
    machine = Guest(t, disk, "load", accelerator(t), LOAD.replace("MKFS", mkfs), words=words, seconds_max=WORK_SECONDS_MAX)
    await_line(t, machine, "under load")
    await_line(t, machine, "synced 5")
    disks.kill()
    await_line(t, machine, "synced 20")
    machine.end()
    count = max(int(number) for number in re.findall(r"^synced (\d+)\r?$", said_by(machine), re.MULTILINE))
    machine = Guest(t, disk, "look", accelerator(t), RECOVERED.replace("COUNT", str(count)).replace("CHECK", check), words=words)
    t.equal(machine.wait()["status"], 0, f"exit status of the look at {count} files that were synced")
    t.note(f"{kind}: {count} files were synced before the cut")
    disks.end()
