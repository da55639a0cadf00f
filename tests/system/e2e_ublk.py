"""Volumes as block devices by ublk, in a virtual machine, since this machine's kernel may have no driver: file systems and fio beside kills and upgrades
of the server, resizes, snapshots, removals. Only in `make e2e`, which sets SHALE_E2E. tests/harness/ublk_guest.py is what the machine runs."""

import os
import re
import shutil
from pathlib import Path

from harness import test
from harness.guest import ROOT, Guest, accelerator, image
from harness.pool import BINARY

PARTS = ["files", "kills", "kills_of_full_queues", "upgrades", "resize", "snapshots", "removal", "left", "ends_with_its_server", "reload"]
COMMAND = "mkdir -p /run/data; mount -o ro /dev/vdb /run/data && exec python3 -B /run/data/ublk_guest.py"


def with_libraries(t, program, place):
    """Copies a program and the libraries that it loads, so that it runs on another system."""
    place.mkdir()
    for library in re.findall(r"(/\S+) \(0x", t.out("ldd", program)):
        name = "ld.so" if Path(library).name.startswith("ld-linux") else Path(library).name
        shutil.copy(library, place / name)
    shutil.copy(program, place.parent)


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=2 * 3600)
    def e2e_ublk(t):
        """ext4 and fio on a block device: kill -9, upgrades, resizes, snapshots, removals, and devices that a server has left"""
        # Linux 6.12: the driver of 6.1 is too old.
        disk, place = image(t, "--suite", "trixie"), t.dir / "guest"
        place.mkdir()
        with_libraries(t, shutil.which("fio"), place / "lib")
        shutil.copy(BINARY, place / "shale")
        shutil.copy(ROOT / "tests/harness/ublk_guest.py", place)
        data = t.dir / "guest.disk"
        t.run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", place, data, "512M")
        words = ["--lean", "--data", data, "--memory", 1024]
        machine = Guest(t, disk, "ublk", accelerator(t), COMMAND, words=words, seconds_max=5400)
        document = machine.wait()
        said = machine.log.read_text(errors="replace").replace("\r", "")
        t.log(said[-60_000:])
        results = dict(re.findall(r"^part (\S+): (.*)$", said, re.MULTILINE))
        for part, result in results.items():
            t.note(f"{part}: {result}")
        t.equal(sorted(results), sorted(PARTS), "parts that were done")
        t.expect(all(result.startswith("ok, ") for result in results.values()), f"results: {results}")
        t.equal(document["status"], 0, "exit status of the work in the machine")
