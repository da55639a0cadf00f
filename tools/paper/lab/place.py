"""Set-ups: ext4 on the disk itself, and ext4 on a volume of Shale whose pool is on the same disk; mounted, within limits of memory and CPUs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

# Part of the allowed memory that the server gets. What it takes beside --memory: a third more, and its copy of unfinished writes in /dev/shm.
SERVER_PART = 4
SERVER_MEMORY_MIN = 64 << 20
SERVER_MEMORY_DEFAULT = 512 << 20
STOP_SECONDS = 300
# A setting of the whole kernel; it holds for what is mounted from then on.
RINGS = Path("/sys/module/fuse/parameters/enable_uring")
# Longer than any single program of a load takes: one that takes longer hangs, and would hang all night.
STUCK_SECONDS = 1800
STUCK_SECONDS_QUICK = 240


@dataclass(frozen=True)
class Setup:
    """How data gets to the disk. `compression` None: without Shale."""
    name: str
    title: str
    compression: str | None = None
    properties: dict = field(default_factory=dict)


SETUPS = {s.name: s for s in [
    Setup("native", "ext4 on the disk"),
    Setup("off", "Shale, pass-through (compression=off)", "off"),
    Setup("lzo", "Shale, lzo", "lzo"),
    Setup("zlib", "Shale, zlib (gzip-1)", "gzip-1"),
    Setup("zstd-1", "Shale, zstd-1", "zstd-1"),
    Setup("auto", "Shale, auto, mode balanced", "auto"),
    Setup("auto-performance", "Shale, auto, mode performance", "auto", {"mode": "performance"}),
    Setup("auto-energy", "Shale, auto, mode energy", "auto", {"mode": "energy"}),
    Setup("auto-archive", "Shale, auto, mode archive", "auto", {"mode": "archive"}),
]}


def server_memory_of(memory):
    """The `--memory` of a server that shares so much with a load."""
    return max(memory // SERVER_PART, SERVER_MEMORY_MIN) if memory else SERVER_MEMORY_DEFAULT


def left_beside_server(memory, server_memory=None):
    """What is left to the load. What the server may hold at most: docs/OPERATIONS.md."""
    server_memory = server_memory or server_memory_of(memory)
    return max(memory - int(server_memory * 1.55) - (64 << 20), memory // 4)


class Place:
    """A mounted file system, `path`, while it is used.

    size        of the file system, in bytes
    memory      allowed to load and server together, in bytes; None: all
    cpus        on which load and server may run; None: all. Threads of the kernel (loop devices, writing back) are not held to them
    properties  of the volume, beside those of the set-up
    door        fuse: a file of the mount behind a loop device; nbd: the kernel's client, where it has one
    rings       FUSE over io_uring, where the kernel has it
    capacity    of the pool, extent: its extents, server_memory: instead of the part of `memory`
    """

    def __init__(self, lab, disk, setup, *, size, memory=None, cpus=None, properties=None, door="fuse", rings=False, capacity=None, extent=None, server_memory=None):
        self.lab, self.disk, self.setup, self.size = lab, disk, setup, size
        self.cpus, self.door, self.extent, self.rings = cpus, door, extent, rings
        self.capacity = capacity or size + size // 4 + (256 << 20)
        self.properties = {**setup.properties, **(properties or {})}
        self.uses_shale = setup.compression is not None
        self.server_memory = server_memory or server_memory_of(memory)
        self.load_memory = left_beside_server(memory, self.server_memory) if memory and self.uses_shale else memory
        self.server = None
        self.directory = lab.work / "place"
        self.path = self.directory / "mnt"
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.stack = stack
            self._set_up()
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def _set_up(self):
        groups = self.lab.groups
        self.path.mkdir(parents=True)
        self.stack.callback(lambda: subprocess.run(["rm", "-rf", "--one-file-system", self.directory], check=False))
        self.disk.clear()
        self.load = groups.group("load", self.load_memory, self.disk.io_max())
        self.server_group = groups.group("server", None, self.disk.io_max())
        if not self.uses_shale:
            if self.disk.device:
                self._format(self.disk.device, self.size)
                self._mount(self.disk.device, self.path, self.stack)
            return
        self._make_pool()
        self._create()
        self.up = contextlib.ExitStack()
        self.stack.callback(lambda: self.up.close())
        self._come_up(is_new=True)

    def _make_pool(self):
        """An empty pool on the disk."""
        base = self.directory
        if self.disk.device:
            base = self.directory / "disk"
            base.mkdir()
            # Room for the map and its journal beside the data.
            self._format(self.disk.device, size_of_pool(self.capacity))
            self._mount(self.disk.device, base, self.stack)
        self.pool = base / "pool"
        extent = ["--extent", str(self.extent)] if self.extent else []
        self.shale("init", self.pool, "--capacity", self.capacity, *extent, "-o", f"compression={self.setup.compression}")

    def _create(self):
        """What is in the pool before it is served."""
        self.shale("create", self.pool, "vol", "--size", self.size, *options_of(self.properties))
        (self.directory / "volumes").mkdir()

    def _doors(self):
        """Words of `serve` that say how it is given out."""
        return ["--mount", self.directory / "volumes"] if self.door == "fuse" else []

    def _come_up(self, is_new):
        """Serves the pool and mounts what is on the volume; `up` takes that back."""
        self._serve()
        device = self._attach()
        if is_new:
            self._format(device, self.size)
        self._mount(device, self.path, self.up)

    def cold(self):
        """Nothing is in any cache: neither the kernel's nor the server's, which is another one afterwards."""
        self.sync()
        if self.uses_shale:
            self.up.close()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        if self.uses_shale:
            self._come_up(is_new=False)

    @staticmethod
    def _format(device, size):
        subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "discard,lazy_itable_init=0,lazy_journal_init=0", device, f"{size >> 10}k"], check=True)

    def _mount(self, device, path, stack):
        subprocess.run(["mount", "-o", "discard,noatime", device, path], check=True)
        stack.callback(self._unmount, path)

    @staticmethod
    def _unmount(path):
        # A program that has just ended may still have been in it: lazily then, and the device goes when it can.
        if subprocess.run(["umount", path], check=False, capture_output=True).returncode:
            subprocess.run(["umount", "--lazy", path], check=False)

    def _serve(self):
        if self.rings:
            before = RINGS.read_text().strip()
            RINGS.write_text("Y")
            self.up.callback(RINGS.write_text, before)
        reader, writer = os.pipe()
        command = [self.lab.shale, "--quiet", "serve", self.pool, *self._doors(), "--nbd", f"unix:{self.directory}/nbd.sock", "--memory", self.server_memory, "--ready-fd", writer]
        self.log = open(self.directory / "server.log", "ab")
        self.server = self.spawn(command, group=self.server_group, pass_fds=[writer], stdout=self.log, stderr=self.log)
        os.close(writer)
        self.up.callback(self._stop)
        with os.fdopen(reader) as ready:
            if ready.readline().strip() != "ready":
                raise SystemExit("the server did not come up: " + (self.directory / "server.log").read_text()[-2000:])

    def _stop(self):
        if self.server.poll() is not None:
            print(f"the server ended by itself ({self.server.returncode}): " + (self.directory / "server.log").read_text()[-2000:], file=sys.stderr)
            subprocess.run(["umount", "--lazy", self.directory / "volumes"], check=False)
            return
        self.server.send_signal(signal.SIGTERM)
        try:
            self.server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()
        self.log.close()

    def _attach(self):
        if self.door == "nbd":
            device = next((d for d in sorted(Path("/sys/block").glob("nbd*")) if not (d / "pid").exists()), None)
            if device is None:
                raise SystemExit("this kernel has no free NBD device: modprobe nbd, or use the door fuse")
            subprocess.run(["nbd-client", "-unix", self.directory / "nbd.sock", f"/dev/{device.name}", "-N", "vol", "-C", "4"], check=True, capture_output=True)
            self.up.callback(lambda: subprocess.run(["nbd-client", "-d", f"/dev/{device.name}"], check=False, capture_output=True))
            return f"/dev/{device.name}"
        device = subprocess.run(["losetup", "--find", "--show", "--direct-io=on", self.directory / "volumes/vol"], check=True, capture_output=True, text=True).stdout.strip()
        self.up.callback(lambda: subprocess.run(["losetup", "--detach", device], check=False))
        return device

    def shale(self, *arguments):
        """What a command of Shale prints."""
        done = subprocess.run([self.lab.shale, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"shale {' '.join(map(str, arguments))}: exit {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout

    def status(self, sync=True):
        """The pool's state, or {} without Shale."""
        return json.loads(self.shale("status", self.pool, "--json", *(["--sync"] if sync else []))) if self.uses_shale else {}

    def hold_to(self, cpus):
        """From now on, the server and what is started run on so many CPUs."""
        self.cpus = cpus
        if self.server:
            for thread in Path(f"/proc/{self.server.pid}/task").iterdir():
                # A thread may have ended meanwhile.
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), self._cpus())

    def _cpus(self):
        return sorted(os.sched_getaffinity(0))[:self.cpus]

    def spawn(self, command, group=None, user=None, **how):
        """Starts a program within the limits of the load, or of another group."""
        group = group or self.load
        cpus = self._cpus()

        def before():
            group.enter()
            os.sched_setaffinity(0, cpus)
        if user:
            command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command]
        return subprocess.Popen([str(c) for c in command], preexec_fn=before, **how)

    def run(self, command, user=None, **how):
        """Runs a program within the limits and returns what it prints; a failure ends the run."""
        how.setdefault("stderr", subprocess.PIPE)
        process = self.spawn(command, user=user, stdout=subprocess.PIPE, text=True, **how)
        try:
            out, errors = process.communicate(timeout=STUCK_SECONDS_QUICK if self.lab.quick else STUCK_SECONDS)
        except subprocess.TimeoutExpired:
            # What waits for a device cannot be killed before the device fails.
            state = self.shale("status", self.pool, "--json") if self.uses_shale else ""
            if self.server:
                self.server.kill()
            process.kill()
            process.communicate()
            raise SystemExit(f"{' '.join(map(str, command))} on {self.setup.name}, {self.disk.name}: no end in sight, given up. {state}") from None
        if process.returncode:
            raise SystemExit(f"{' '.join(map(str, command))}: exit {process.returncode}: {(errors or out or '')[-2000:]}")
        return out

    def sync(self):
        """Makes all durable, and the pool's figures exact."""
        subprocess.run(["sync", "-f", self.path], check=True)
        self.status()

    def drop_caches(self):
        """What is read next comes from the disk: the kernel's caches are dropped after everything is durable."""
        self.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")

    def meter(self):
        """Measures what happens within it: see Meter."""
        return Meter(self)


def options_of(properties):
    """Properties as words of a command."""
    return [word for key, value in properties.items() for word in ("-o", f"{key}={value}")]


def size_of_pool(capacity):
    """Bytes of the file system in which a pool of a capacity is."""
    return capacity + capacity // 16 + (1 << 30)


class Meter:
    """Seconds, CPU time and bytes of the disk between its begin and end; durable at both."""

    def __init__(self, place):
        self.place = place

    def _read(self):
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(t) for t in file.readline().split()[1:9]]
        # Not idle, not waiting for a disk, and not for programs that were made to stand back (nice): those are not the load's.
        busy = (sum(ticks) - ticks[1] - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
        return {"seconds": time.monotonic(), "machine_cpu": busy, "load_cpu": self.place.load.cpu_seconds() or 0.0,
                "server_cpu": self.place.server_group.cpu_seconds() or 0.0, **self.place.disk.counters()}

    def __enter__(self):
        self.place.sync()
        self.before = self._read()
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.own_seconds = time.monotonic() - self.before["seconds"]
            self.place.sync()
            self.after = self._read()

    def figures(self):
        """Deltas. `seconds` until the load ended, `durable_seconds` until all of it was durable; `cpu_percent` of one CPU, of the whole machine, in that time."""
        delta = {k: self.after[k] - self.before[k] for k in self.before}
        durable = delta.pop("seconds")
        busy = delta.pop("machine_cpu")
        return {"seconds": round(self.own_seconds, 3), "durable_seconds": round(durable, 3), "cpu_percent": round(100 * busy / durable, 1),
                "load_cpu_s": round(delta.pop("load_cpu"), 3), "server_cpu_s": round(delta.pop("server_cpu"), 3),
                "server_peak_bytes": self.place.server_group.memory_peak(), **delta}
