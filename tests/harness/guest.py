"""Virtual machines for tests: Debian's image and its boots, by tools/guest, and a link of 1 Gbit/s to a store."""

import json
import os
import subprocess
import sys
from pathlib import Path

from harness.objectstore import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "guest"
# An emulated machine on a busy computer.
BOOT_SECONDS_MAX = 1800
MEMORY_MIB = 384


def image(t):
    """The file of the image; it is made if it is not there."""
    t.run(ROOT / "tools" / "setup", "guest", seconds_max=1800)
    return Path(t.out(TOOL, "build", seconds_max=3600).strip().splitlines()[-1])


def accelerator(t):
    """kvm or tcg."""
    return t.out(TOOL, "accelerator").strip()


def at_a_time():
    """So many machines have room in half of the memory that is free."""
    free = next(int(line.split()[1]) >> 10 for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return max(1, free // 2 // (MEMORY_MIB + 128))


class Guest:
    """A machine that boots."""

    def __init__(self, t, disk, name, accelerated, command=None, keep_going=600, seconds_max=BOOT_SECONDS_MAX):
        self.t, self.name, self.log = t, name, t.dir / f"{name}.console"
        words = [TOOL, "boot", disk, "--log", self.log, "--memory", MEMORY_MIB, "--accelerator", accelerated, "--keep-going", keep_going, "--seconds-max", seconds_max]
        if command:
            words += ["--command", command]
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
        out, err = self.process.communicate(timeout=BOOT_SECONDS_MAX + 120)
        self.t.log(f"{self.name}: {self.process.returncode} {out.strip()} {err.strip()}")
        self.t.equal(self.process.returncode, status, f"exit status of the boot of {self.name}: {err}")
        return json.loads(out)

    def runs(self):
        """Whether it has not ended."""
        return self.process.poll() is None


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
