"""A kernel tree on a share, against btrfs with zstd:3 and a tar packed with zstd -3."""

import re
import subprocess

import zfs_sets
import zfs_store
from lab import output
from lab.report import middle

SETTINGS = ["zstd-3", "auto balanced", "auto archive"]
# What the share may take of each.
GOALS = {"btrfs zstd:3": 0.80, "tar + zstd -3": 1.25}


def measure(lab, energy, how):
    """Bytes of each; of the share and of btrfs all that they took more than empty, names included."""
    tree = zfs_sets.kernel_tree(lab) if not lab.quick else zfs_sets.file_set(lab, "kernel", how["set_bytes"])
    files, size = zfs_sets.size_of(tree)
    for disk in lab.disks(how["disk"]):
        for setting in SETTINGS:
            with zfs_store.shares(lab, disk, {"data": zfs_store.properties(setting)}, zfs_store.room(size)) as place:
                before = place.status()["stored_bytes"]
                found = zfs_store.store(lab, place, energy, "data", tree)
                whole = place.status()["stored_bytes"] - before
            lab.report.row("kernel", what=f"share, {setting}", files=files, bytes=size, taken=whole, data=found["stored"], seconds=found["seconds"], cpu_s=found["cpu_s"])
    lab.report.row("kernel", what="btrfs zstd:3", files=files, bytes=size, taken=on_btrfs(lab, tree, size))
    packed = subprocess.Popen(["tar", "--sort=name", "-C", tree, "-cf", "-", "."], stdout=subprocess.PIPE)
    zstd = subprocess.Popen(["zstd", "-3", "-c"], stdin=packed.stdout, stdout=subprocess.PIPE)
    packed.stdout.close()
    taken = 0
    while piece := zstd.stdout.read(1 << 20):
        taken += len(piece)
    if packed.wait() or zstd.wait():
        raise SystemExit("paper-zfs: tar or zstd failed")
    lab.report.row("kernel", what="tar + zstd -3", files=files, bytes=size, taken=taken)


def on_btrfs(lab, tree, size):
    """Bytes of data and metadata that btrfs takes for it on a loop device."""
    image, mnt = lab.work / "btrfs.img", lab.work / "btrfs"
    with open(image, "wb") as file:
        file.truncate(size * 2 + (1 << 30))
    output("mkfs.btrfs", "-q", "-f", "-m", "single", image)
    mnt.mkdir(exist_ok=True)
    output("mount", "-o", "loop,compress=zstd:3,noatime", image, mnt)

    def used():
        output("btrfs", "filesystem", "sync", mnt)
        return sum(int(n) for n in re.findall(r"used=(\d+)", output("btrfs", "filesystem", "df", "-b", mnt)))
    try:
        before = used()
        output("cp", "-r", "--no-preserve=all", f"{tree}/.", mnt)
        return used() - before
    finally:
        output("umount", mnt)
        image.unlink()


def taken(report, what):
    """Bytes of one of them."""
    return middle(report.values("kernel", "taken", what=what))


def show(lab, how):
    """The table, and bars."""
    report = lab.report
    report.heading("A kernel tree: share, btrfs, tar")
    report.text("Bytes of everything that was written, names and metadata included (one copy of it). btrfs keeps a file in whole blocks of 4 KiB, and small ones within its metadata; a tar sees all files as one.")
    rows = report.table_of("kernel")
    report.bars("kernel", "MB that the tree takes", [r["what"] for r in rows], ["MB"], lambda what, _: [taken(report, what) / 1e6], "MB")
    report.table(["what", "MB", "ratio", *[f"of {peer}" for peer in GOALS], "of it data, MB", "s", "CPU s"],
                 [[r["what"], r["taken"] / 1e6, r["bytes"] / r["taken"], *[r["taken"] / taken(report, peer) for peer in GOALS], r["data"] / 1e6 if r.get("data") else None, r.get("seconds"), r.get("cpu_s")] for r in rows])
