"""Where a disk is read: the kernel's tracepoint of block requests, for one device."""

import re
import subprocess
from pathlib import Path

TRACING = Path("/sys/kernel/tracing")
LINE = re.compile(r"block_bio_queue: \d+,\d+ R\S* (\d+) \+ (\d+)")
SECTOR = 512
# Kilobytes of trace for each CPU: some hundred thousand requests.
BUFFER_KB = 65536


class Reads:
    """Records the reads of a disk while it is open; `offsets` are (bytes from the beginning, bytes) afterwards."""

    def __init__(self, disk):
        self.disk = disk
        self.instance = None
        self.offsets = []

    @staticmethod
    def possible():
        """Whether the kernel can tell."""
        if not (TRACING / "instances").exists():
            subprocess.run(["mount", "-t", "tracefs", "tracefs", TRACING], check=False, capture_output=True)
        return (TRACING / "events/block/block_bio_queue").exists()

    def __enter__(self):
        major, minor = (int(n) for n in self.disk.number.split(":"))
        self.instance = TRACING / "instances" / f"shale-paper-{major}-{minor}"
        self.instance.mkdir()
        (self.instance / "buffer_size_kb").write_text(str(BUFFER_KB))
        event = self.instance / "events/block/block_bio_queue"
        (event / "filter").write_text(f"dev == {major << 20 | minor}")
        (event / "enable").write_text("1")
        return self

    def __exit__(self, *_):
        (self.instance / "events/block/block_bio_queue/enable").write_text("0")
        with open(self.instance / "trace", encoding="ascii", errors="replace") as file:
            self.offsets = [(int(m[1]) * SECTOR, int(m[2]) * SECTOR) for m in map(LINE.search, file) if m]
        self.instance.rmdir()
