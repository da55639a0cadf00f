"""Volumes as block devices by ublk, in virtual machines, since this machine's kernel may have no driver: file systems and fio beside kills and upgrades
of the server, resizes, snapshots, removals. Only in `make e2e`, which sets SHALE_E2E. tests/harness/ublk_guest.py is what the machines run."""

import os

from harness import test
from harness.guest import LEAN_BEGIN, ROOT, Guest, accelerator, data_disk, lean_image, parts_of

SCRIPT = ROOT / "tests/harness/ublk_guest.py"
PARTS = ["files", "xfs", "kills", "kills_of_full_queues", "upgrades", "resize", "snapshots", "removal", "left", "ends_with_its_server", "reload"]


def in_machine(t, image):
    """All parts with the kernel of an image."""
    words = ["--lean", "--data", data_disk(t, SCRIPT), "--memory", 1024]
    command = f"{LEAN_BEGIN} exec python3 -B /run/data/{SCRIPT.name}"
    parts_of(t, Guest(t, image, "ublk", accelerator(t), command, words=words, seconds_max=5400), PARTS)


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=2 * 3600)
    def e2e_ublk(t):
        """ext4, XFS and fio on a block device of Linux 6.12: kill -9, upgrades, resizes, snapshots, removals, and devices that a server has left"""
        in_machine(t, lean_image(t))

    @test(seconds_max=2 * 3600)
    def e2e_ublk_newer_kernel(t):
        """the same with the kernel of Debian's backports, which resizes devices and notices deaths at once"""
        in_machine(t, lean_image(t, "--backports"))
