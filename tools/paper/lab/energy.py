"""Joules of what runs within: counted by the processors (RAPL), or CPU time at a calibrated power where nothing is counted."""

import json
import time
from pathlib import Path

from . import output

ZONES = Path("/sys/class/powercap")


class Rapl:
    """The processors' counters of energy; `possible` is false where they are not there or not readable."""

    def __init__(self):
        # Packages only: cores and memory controllers are counted within them.
        self.zones = [z for z in sorted(ZONES.glob("intel-rapl:*")) if z.name.count(":") == 1] if ZONES.is_dir() else []
        self.possible = bool(self.zones) and self.read() is not None

    def read(self):
        """Microjoules of each package; None where one cannot be read."""
        try:
            return [int((zone / "energy_uj").read_text()) for zone in self.zones]
        except OSError:
            return None

    def between(self, before, after):
        """Joules; a counter that began anew is seen to."""
        total = 0
        for zone, first, last in zip(self.zones, before, after):
            total += last - first if last >= first else last - first + int((zone / "max_energy_range_uj").read_text())
        return total / 1e6


class Energy:
    """Whose figure joules are on this machine, and what they come to."""

    def __init__(self, lab):
        self.rapl = Rapl()
        pool = lab.work / "pool-for-calibration"
        output(lab.shale, "init", pool, "--capacity", "1G")
        told = json.loads(output(lab.shale, "calibrate", pool, "--json"))
        output("rm", "-rf", pool)
        self.watts = told["cpu_watts"]
        self.source = "rapl" if self.rapl.possible else f"cpu-time ({told['energy_source']}, {self.watts:.1f} W for each busy CPU)"
        lab.report.note("joules: counted by the processors (RAPL), the whole machine's" if self.rapl.possible else
                        f"joules: nothing counts them here; they are CPU seconds of server and load at {self.watts:.1f} W for each busy CPU, as 'shale calibrate' says ({told['energy_source']})")

    def __enter__(self):
        self.before = self.rapl.read() if self.rapl.possible else None
        self.began = time.monotonic()
        return self

    def __exit__(self, *_):
        self.after = self.rapl.read() if self.rapl.possible else None
        self.seconds = time.monotonic() - self.began

    def joules(self, cpu_seconds):
        """Of the last time within; `cpu_seconds` counts where the processors do not."""
        return self.rapl.between(self.before, self.after) if self.before else cpu_seconds * self.watts
