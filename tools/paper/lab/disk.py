"""Disks to measure on: the machine's own, or a throttled loop device on a file of it; and what they read and wrote."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

SECTOR = 512
# More than any run fills; the file is sparse.
DISK_BYTES = 64 << 30
V1 = Path("/sys/fs/cgroup/blkio")


@dataclass(frozen=True)
class Kind:
    """What a disk is like; 0: not limited."""
    title: str
    is_loop: bool = True
    bytes_per_s: int = 0
    ops_per_s: int = 0


DISKS = {
    "raw": Kind("the machine's disk", is_loop=False),
    "file": Kind("a loop device on the machine's disk, not throttled: its bytes are counted apart from all others"),
    "disk2010": Kind("100 MB/s and 200 operations/s, a hard disk of 2010", bytes_per_s=100_000_000, ops_per_s=200),
    "disks8": Kind("800 MB/s and 1,600 operations/s, eight hard disks of 2010 side by side", bytes_per_s=800_000_000, ops_per_s=1600),
    "shelf": Kind("100 MB/s and 3,000 operations/s, a shelf of disks of 2009 behind one link", bytes_per_s=100_000_000, ops_per_s=3000),
    "cloud": Kind("125 MB/s and 3,000 operations/s, a small cloud volume", bytes_per_s=125_000_000, ops_per_s=3000),
    "ssd270": Kind("270 MB/s, the SSD of 2012", bytes_per_s=270_000_000),
}


class Disk:
    """A disk while it is attached. `device` is its block device, None for the machine's own."""

    def __init__(self, name, work, groups):
        self.name = name
        self.kind = DISKS[name]
        self.work = work
        self.groups = groups
        self.device = None
        self.number = None

    def __enter__(self):
        if self.kind.is_loop:
            self.file = self.work / f"disk-{self.name}"
            with open(self.file, "wb") as file:
                file.truncate(DISK_BYTES)
            self.device = subprocess.run(["losetup", "--find", "--show", "--direct-io=on", self.file], check=True, capture_output=True, text=True).stdout.strip()
            self.number = (Path("/sys/block") / Path(self.device).name / "dev").read_text().strip()
            if self.kind.bytes_per_s or self.kind.ops_per_s:
                self._throttle(self.kind.bytes_per_s, self.kind.ops_per_s)
        else:
            number = os.stat(self.work).st_dev
            self.number = f"{os.major(number)}:{os.minor(number)}"
        return self

    def __exit__(self, *_):
        if self.device:
            self._throttle(0, 0)
            subprocess.run(["losetup", "--detach", self.device], check=False)
            self.file.unlink(missing_ok=True)

    def _throttle(self, bytes_per_s, ops_per_s):
        """Version 1 limits the device for the root group, in which all loads are here; version 2 limits each group (see `io_max`)."""
        if self.groups.version != 1 or not self.groups.throttles:
            return
        for direction in ("read", "write"):
            for what, limit in (("bps", bytes_per_s), ("iops", ops_per_s)):
                (V1 / f"blkio.throttle.{direction}_{what}_device").write_text(f"{self.number} {limit}")

    def io_max(self):
        """The line of io.max for groups whose processes use this disk, or None."""
        if self.groups.version != 2 or not (self.kind.bytes_per_s or self.kind.ops_per_s):
            return None
        per_s, ops = self.kind.bytes_per_s or "max", self.kind.ops_per_s or "max"
        return f"{self.number} rbps={per_s} wbps={per_s} riops={ops} wiops={ops}"

    def clear(self):
        """Forgets what an earlier set-up wrote, so that each begins with an empty disk."""
        if self.device:
            subprocess.run(["blkdiscard", "--force", self.device], check=False, capture_output=True)

    def counters(self):
        """Bytes and operations since the machine came up: of the machine's disk, those of all processes."""
        fields = [int(f) for f in (Path("/sys/dev/block") / self.number / "stat").read_text().split()]
        return {"disk_reads": fields[0], "disk_read_bytes": fields[2] * SECTOR, "disk_writes": fields[4], "disk_written_bytes": fields[6] * SECTOR}
