"""Groups of processes: limits of memory and CPUs, and the CPU time that they took (cgroups, version 1 or 2)."""

import os
from pathlib import Path

BASE = Path("/sys/fs/cgroup")


class Groups:
    """Makes groups below one name and takes them away. `missing` says what this machine cannot limit."""

    def __init__(self, name):
        self.name = name
        self.made = []
        self.missing = []
        unified = (BASE / "cgroup.controllers").exists()
        self.version = 2 if unified else 1
        if unified:
            self.controllers = set((BASE / "cgroup.controllers").read_text().split())
        else:
            self.controllers = {n for n in ("memory", "cpuacct", "blkio") if (BASE / n / "cgroup.procs").exists()}
        self.writable = os.access(BASE / ("cgroup.subtree_control" if unified else "memory/cgroup.procs"), os.W_OK)

    def __enter__(self):
        needed = {"memory": "memory is not limited", "io" if self.version == 2 else "blkio": "disks are not throttled"}
        for controller, what in needed.items():
            if controller not in self.controllers or not self.writable:
                self.missing.append(f"This machine has no usable cgroup controller '{controller}': {what}.")
        return self

    def __exit__(self, *_):
        for group in reversed(self.made):
            group.remove()

    @property
    def limits_memory(self):
        return self.writable and "memory" in self.controllers

    @property
    def throttles(self):
        return self.writable and bool({"io", "blkio"} & self.controllers)

    def group(self, name, memory=None, throttle=None):
        """A new group; `memory` in bytes, `throttle` lines for io.max (version 2 only: see Disk)."""
        group = Group(self, f"{self.name}-{name}-{len(self.made)}", memory, throttle)
        self.made.append(group)
        return group


class Group:
    """One group of processes."""

    def __init__(self, groups, name, memory, throttle):
        self.paths = []
        self.version = groups.version
        if not groups.writable:
            return
        if self.version == 2:
            wanted = groups.controllers & {"memory", "io", "cpu"}
            (BASE / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in sorted(wanted)))
            self.paths = [BASE / name]
        else:
            self.paths = [BASE / c / name for c in ("memory", "cpuacct") if c in groups.controllers]
        for path in self.paths:
            path.mkdir()
        if memory and groups.limits_memory:
            limit = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
            (self.paths[0] / limit).write_text(str(memory))
        if throttle and self.version == 2:
            (self.paths[0] / "io.max").write_text(throttle)

    def enter(self):
        """Puts the calling process into the group: for the time between fork and exec."""
        for path in self.paths:
            (path / "cgroup.procs").write_text(str(os.getpid()))

    def cpu_seconds(self):
        """CPU time that its processes took, those that have ended too; None where it is not counted."""
        for path in self.paths:
            if self.version == 2:
                return int((path / "cpu.stat").read_text().split()[1]) / 1e6
            if "cpuacct" in path.parts:
                return int((path / "cpuacct.usage").read_text()) / 1e9
        return None

    def memory_peak(self):
        """Most bytes that its processes ever held at once; None where it is not counted."""
        for path in self.paths:
            peak = path / ("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes")
            if peak.exists():
                return int(peak.read_text())
        return None

    def remove(self):
        """Takes the group away; a process that is left in it keeps it."""
        for path in self.paths:
            try:
                path.rmdir()
            except OSError:
                pass
        self.paths = []
