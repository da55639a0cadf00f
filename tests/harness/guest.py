"""Virtual machines for tests: Debian's image and its boots, by tools/guest, and a link of 1 Gbit/s to a store."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from harness.objectstore import free_port
from harness.pool import BINARY

ROOT = Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "guest"
# An emulated machine on a busy computer.
BOOT_SECONDS_MAX = 1800
MEMORY_MIB = 384


def image(t, *words):
    """The file of the image; it is made if it is not there."""
    t.run(ROOT / "tools" / "setup", "guest", seconds_max=1800)
    return Path(t.out(TOOL, "build", *words, seconds_max=3600).strip().splitlines()[-1])


# What works on disks in a machine that runs a test of ours and nothing else.
LEAN_PACKAGES = ["dmsetup", "e2fsprogs", "fio", "iproute2", "nbd-client", "openssl", "python3", "qemu-utils", "stress-ng", "xfsprogs"]
# The tests' files are there; memory is where servers expect it, and locks where qemu-nbd does.
LEAN_BEGIN = "set -e; mkdir -p /run/data /run/lock /dev/shm; mount -o ro /dev/vdb /run/data; mount -t tmpfs tmpfs /dev/shm; ip link set lo up; "


def lean_image(t, *words):
    """The file of an image for such machines; Linux 6.12 unless told otherwise."""
    return image(t, "--suite", "trixie", "--packages", ",".join(LEAN_PACKAGES), *words)


def data_disk(t, *files):
    """A disk with the program and these files: /run/data behind LEAN_BEGIN."""
    place, disk = t.dir / "data", t.dir / "data.disk"
    place.mkdir()
    shutil.copy(BINARY, place / "shale")
    for file in files:
        shutil.copy(file, place)
    t.run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", place, disk, "512M")
    return disk


def accelerator(t):
    """kvm or tcg."""
    return t.out(TOOL, "accelerator").strip()


def at_a_time():
    """So many machines have room in half of the memory that is free."""
    free = next(int(line.split()[1]) >> 10 for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return max(1, free // 2 // (MEMORY_MIB + 128))


class Guest:
    """A machine that boots."""

    def __init__(self, t, disk, name, accelerated, command=None, keep_going=600, reads=None, words=(), seconds_max=BOOT_SECONDS_MAX):
        self.t, self.name, self.log, self.seconds_max = t, name, t.dir / f"{name}.console", seconds_max
        words = [TOOL, "boot", disk, "--log", self.log, "--memory", MEMORY_MIB, "--accelerator", accelerated, "--keep-going", keep_going, "--seconds-max", seconds_max, *words]
        if command:
            words += ["--command", command]
        if reads:
            words += ["--reads", reads]
        t.log(f"$ boot {disk} &")
        self.process = subprocess.Popen([sys.executable, "-B", *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        t.defer(self.end)

    def end(self):
        """Takes it away, if it still runs."""
        if self.process.poll() is None:
            # Its tool ends the machine.
            self.process.terminate()
            self.process.wait()

    def wait(self, status=0):
        """Its document, once it is up and its command has ended."""
        out, err = self.process.communicate(timeout=self.seconds_max + 120)
        self.t.log(f"{self.name}: {self.process.returncode} {out.strip()} {err.strip()}")
        self.t.equal(self.process.returncode, status, f"exit status of the boot of {self.name}: {err}")
        return json.loads(out)

    def stays_down(self, seconds):
        """It does not come up in that time, and is taken away."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end()
            self.t.log(f"{self.name}: not up after {seconds} s more")
        else:
            self.wait(status=4)

    def runs(self):
        """Whether it has not ended."""
        return self.process.poll() is None


def parts_of(t, machine, expected):
    """Waits for a machine whose command prints "part NAME: ok, ..." for each part; all must be there, and good."""
    document = machine.wait()
    said = machine.log.read_text(errors="replace").replace("\r", "")
    t.log(said[-60_000:])
    results = dict(re.findall(r"^part (\S+): (.*)$", said, re.MULTILINE))
    for part, result in results.items():
        t.note(f"{part}: {result}")
    t.equal(sorted(results), sorted(expected), "parts that were done")
    t.expect(all(result.startswith("ok, ") for result in results.values()), f"results: {results}")
    t.equal(document["status"], 0, "exit status of the work in the machine")


def replays(t, uris, reads, content):
    """The seconds that each of these volumes takes to be read as a recorded boot did, all at once. What is read must be so in a file, too."""
    words = ["/usr/bin/python3", "-B", ROOT / "tools/paper/replay.py"]
    t.log(f"$ replay {reads} on {len(uris)} volumes")
    running = [subprocess.Popen([*map(str, words), uri, str(reads), str(content)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
               for uri in uris]
    for one in running:
        t.defer(one.kill)
    done = [one.communicate(timeout=BOOT_SECONDS_MAX) for one in running]
    for uri, one, (out, err) in zip(uris, running, done, strict=True):
        t.equal(one.returncode, 0, f"exit status of the replay on {uri}: {out} {err}")
    said = [json.loads(out) for out, _ in done]
    t.expect(said[0]["bytes"] > 0 and len({one["bytes"] for one in said}) == 1, f"replays of one boot read the same: {said}")
    return [one["seconds"] for one in said]


class Link:
    """A link in front of a server on this machine: 1 Gbit/s, and a round trip of 5 ms."""

    def __init__(self, t, target, mbit=1000, rtt_ms=5):
        self.port = free_port()
        words = [ROOT / "tools/paper/lab/link.py", self.port, target, "--mbit", mbit, "--rtt-ms", rtt_ms]
        self.process = subprocess.Popen([sys.executable, "-B", *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        t.defer(self.end)
        t.equal(self.process.stdout.readline().strip(), "ready", "what the link says")

    def end(self):
        """Cuts it."""
        self.process.terminate()
        self.process.wait()

    def environment(self, settings):
        """The settings of a client, which goes over the link."""
        return dict(settings, AWS_ENDPOINT_URL=f"http://127.0.0.1:{self.port}")


def guests_max():
    """Most machines at a time, as SHALE_GUESTS says; 16 as the paper's figures need."""
    return int(os.environ.get("SHALE_GUESTS", "16"))
