"""The guides of docs/VM-GUIDE.md that need no virtual machine, typed: file systems, clones, backups. Those with machines are in e2e_guides.py."""

import operator
import re
from pathlib import Path

from harness import data, test
from harness.guide import Guide
from harness.pool import BINARY, EXIT

MIB = 1 << 20


def with_pool(t):
    """A served pool with a golden image, which boots nothing, as the guide's first section makes it."""
    data.disk_image(t, t.dir / "debian.img", 64 * MIB, 20 * MIB)
    guide = Guide(t)
    guide.type(*guide.lines("The pool"))
    return guide


def may_grow_ext4():
    """Whether this process has CAP_SYS_RESOURCE, which containers may lack."""
    effective = re.search(r"^CapEff:\s*(\S+)", Path("/proc/self/status").read_text(), re.MULTILINE)[1]
    return bool(int(effective, 16) >> 24 & 1)


@test(seconds_max=900)
def guide_file_systems(t):
    """ext4 and XFS on volumes by the guide: made, mounted, frozen for a snapshot, cloned, grown; and their files are there"""
    guide = with_pool(t)
    before = "fsfreeze -f /mnt/data && shale snapshot /srv/pool data@before; fsfreeze -u /mnt/data"
    umount = "umount /mnt/data /mnt/media"
    lines = guide.lines("ext4 and XFS")
    t.defer(lambda: [t.umount(guide.top / "mnt" / name, must=False) for name in ("data", "media", "old")])
    sample = data.mixed_file(t.dir / "sample", 8 * MIB)
    made, rest = lines[:lines.index(before)], lines[lines.index(before):]
    grown = rest.index(umount)
    # One shell: it has the names of the devices. The old state lacks a file that came after it.
    script = [*made, f"cp {sample} /mnt/data/kept; cp {sample} /mnt/media/kept", rest[0], f"cp {sample} /mnt/data/later", *rest[1:grown],
              "df --output=size -BM /mnt/data /mnt/media", f"cmp {sample} /mnt/data/kept; cmp {sample} /mnt/data/later; cmp {sample} /mnt/media/kept"]
    mounted = "mount $old /mnt/old"
    t.expect(mounted in script, f"no line '{mounted}'")
    script[script.index(mounted)] += f"; cmp {sample} /mnt/old/kept; test ! -e /mnt/old/later"
    grow, least = "resize2fs $disk", [76 * 1024] * 2
    if not may_grow_ext4():
        t.note(f"'{grow}' was left out: a mounted ext4 grows for CAP_SYS_RESOURCE alone")
        script[script.index(grow)], least = ":", [45 * 1024, 76 * 1024]
    said = guide.type(*script, *rest[grown:])
    sizes = [int(size) for size in re.findall(r"^ *(\d+)M$", said, re.MULTILINE)]
    t.expect(len(sizes) == 2 and all(map(operator.gt, sizes, least)), f"sizes of the file systems in MiB after the volumes grew to 80 GiB: {sizes}")
    guide.type("systemctl stop shale@tank", "shale check /srv/pool")


@test(seconds_max=900)
def guide_clones(t):
    """a clone for each machine by the guide: each has a socket, and every command of the table does what it says"""
    guide = with_pool(t)
    start = "vm-vhost lab/vm1"
    guide.type(*guide.lines("A clone for each machine", before=start))
    sockets = [guide.top / f"run/shale/disks/lab/vm{n}.sock" for n in (1, 2, 3)]
    t.wait_for(lambda: all(path.is_socket() for path in sockets), "the sockets of the clones")
    data.disk_image(t, t.dir / "new.img", 64 * MIB, 30 * MIB)
    spans = guide.spans("A clone for each machine")
    t.expect(len(spans) > 8, f"commands of the table: {spans}")
    for span in spans:
        guide.type(span.replace("--every 5", "--every 1 --count 1"))
    t.wait_for(lambda: not any(path.exists() for path in sockets), "the end of the sockets")
    t.equal(guide.type("shale list /srv/pool -H -o name").split(), ["golden"], "what is left")
    guide.type("systemctl stop shale@tank", "shale check /srv/pool")


@test(seconds_max=900)
def guide_backups(t):
    """backups by the guide: differences, a stream that breaks off, old snapshots that go, and a restore"""
    guide = with_pool(t)
    script = guide.lines("Backups")
    first, look = "ssh backup shale init /srv/pool --capacity 500G", "ssh backup shale list /srv/pool -r"
    begin, runs = script.index(first) + 1, script.index("shale-backup vm1 data")
    guide.type("shale clone /srv/pool golden@1 vm1; shale create /srv/pool data --size 64M", first, *script[begin:runs + 1])

    def change(number):
        piece = data.random_file(t.dir / "piece", MIB, seed=number)
        for volume in ("vm1", "data"):
            guide.type(f"dd if={piece} of=/mnt/shale/{volume} bs=1M seek={number} conv=notrunc,fsync status=none")

    def theirs(volume):
        names = guide.type("ssh backup shale list /srv/pool -t snapshot -H -o name").split()
        return [name for name in names if name.startswith(f"{volume}@")]

    def same(volume):
        t.run(BINARY, "export", guide.top / "backup", volume, t.dir / "theirs", "--force", seconds_max=900)
        t.run(BINARY, "export", guide.top / "srv/pool", volume, t.dir / "ours", "--force", seconds_max=900)
        t.run("qemu-img", "compare", "-f", "raw", "-F", "raw", t.dir / "theirs", t.dir / "ours")

    change(1)
    guide.type(*script[runs + 1:script.index(look)])
    guide.type("shale-backup vm1 data")
    t.equal([len(theirs("vm1")), len(theirs("data"))], [2, 2], "snapshots on the other host")
    same("data")
    same("vm1")
    # The next stream breaks off; the one after it has all of it.
    change(2)
    (guide.top / "cut").write_text("300000")
    guide.type("shale-backup vm1 data", status=EXIT["io"])
    (guide.top / "cut").unlink()
    left = [name for name in guide.type("shale list /srv/pool -t snapshot -H -o name").split() if name.startswith("vm1@backup-")]
    t.equal(len(left), 1, "snapshots that the run has left")
    change(3)
    guide.type("sed -i s/keep=30/keep=2/ /usr/local/sbin/shale-backup", "shale-backup vm1 data", f"shale destroy /srv/pool {left[0]}")
    t.equal([len(theirs("vm1")), len(theirs("data"))], [2, 2], "snapshots on the other host, of which two are kept")
    same("data")
    same("vm1")
    guide.type(*script[script.index(look):-1], "shale export /srv/pool vm1-restored restored; qemu-img compare -f raw -F raw restored ours", script[-1])
    guide.type("systemctl stop shale@tank", "shale check /srv/pool", "ssh backup shale check /srv/pool")
