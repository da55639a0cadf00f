"""Losses of power at each flush of the disk below a pool, by the kernel's own record of its writes (dm-log-writes), in a virtual machine. Only in
`make e2e`, which sets SHALE_E2E. tests/harness/log_writes_guest.py is what the machine runs."""

import os

from harness import test
from harness.guest import LEAN_BEGIN, ROOT, Guest, accelerator, data_disk, lean_image, parts_of

SCRIPT = ROOT / "tests/harness/log_writes_guest.py"


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=2 * 3600)
    def e2e_log_writes(t):
        """the record of all writes below a pool, replayed up to each sync of a volume and between them: the pool opens, and has all that was synced"""
        words = ["--lean", "--data", data_disk(t, SCRIPT), "--memory", 1024]
        machine = Guest(t, lean_image(t), "log", accelerator(t), f"{LEAN_BEGIN} exec python3 -B /run/data/{SCRIPT.name}", words=words, seconds_max=5400)
        parts_of(t, machine, ["replay"])
