"""The binary under test: a pool, and a server of it. Owns the spelling of the command line, and nothing of what it means."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path

from harness.sweep import mounts_under

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = Path(os.environ.get("SHALE", ROOT / "target" / "release" / "shale"))

# Exit codes, as `shale --help` documents them.
EXIT = {"ok": 0, "internal": 1, "usage": 2, "not-found": 3, "in-use": 4, "full": 5, "corrupt": 6, "io": 7, "exists": 8,
        "unsupported": 9}

# A server that has not come up by then never will, not even on a machine that is overloaded.
READY_SECONDS_MAX = 300
# Time for a clean end: it must drain, compress and checkpoint what is buffered.
STOP_SECONDS_MAX = 300


class Pool:
    """A pool in the test's directory, made by `init`."""

    def __init__(self, t, name="pool", capacity="4G", **options):
        self.t = t
        self.path = t.dir / name
        words = []
        for key, value in options.items():
            words += [f"--{key.replace('_', '-')}", str(value)]
        if capacity:
            words += ["--capacity", capacity]
        self.shale("init", *words)

    @classmethod
    def at(cls, t, path):
        """One that is there already."""
        pool = cls.__new__(cls)
        pool.t, pool.path = t, path
        return pool

    def shale(self, command, *arguments, **named):
        """Runs `shale COMMAND POOL ARGUMENTS`."""
        return self.t.run(BINARY, command, self.path, *arguments, **named)

    def create(self, volume, size, **properties):
        """A volume."""
        words = []
        for key, value in properties.items():
            words += ["-o", f"{key.replace('_', '-')}={value}"]
        self.shale("create", volume, "--size", size, *words)

    def status(self):
        """The figures of `status --json`, with everything in them that was written so far."""
        return json.loads(self.shale("status", "--sync", "--json").stdout)

    def check(self, status=0):
        """`check`, and what it said; the exit status must be 0 unless said otherwise."""
        return self.shale("check", "--json", status=status).stdout

    def serve(self, **named):
        """A running server."""
        return Server(self, **named)


class Server:
    """`shale serve` as a child process, ready when the constructor returns, stopped at the end of the test."""

    def __init__(self, pool, mount=False, memory=None, volumes=(), nbd=(), standby=None, keeps=False, shares=False, exports=None, stderr=None, words=()):
        self.pool, self.t = pool, pool.t
        self.socket = pool.t.dir / f"{pool.path.name}.nbd.sock"
        self.mount_dir = pool.t.dir / f"{pool.path.name}.mnt" if mount else None
        # Or the name of the directory.
        self.shares_dir = pool.t.dir / (shares if isinstance(shares, str) else f"{pool.path.name}.shares") if shares else None
        more, words = words, ["serve", pool.path, "--nbd", f"unix:{self.socket}"]
        for address in nbd:
            words += ["--nbd", address]
        if self.mount_dir:
            # Not looked at: a mount whose server was killed answers nothing.
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.mount_dir)
            # What a test kills it cleans up itself, unless the mount is to go on with the next server.
            words += ["--mount", self.mount_dir, "--keep-mounts", "on" if keeps else "off"]
        if self.shares_dir:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.shares_dir)
            words += ["--shares", self.shares_dir]
            if not self.mount_dir:
                words += ["--keep-mounts", "on" if keeps else "off"]
        if exports:
            words += ["--exports", exports]
        for volume in volumes:
            words += ["--volume", volume]
        if memory:
            words += ["--memory", memory]
        if standby:
            words += ["--standby", standby]
        words = [str(BINARY), *map(str, [*words, *more])]
        self.t.log(f"$ {' '.join(words)} &")
        began = time.monotonic()
        # The pool's directory is outside of this session's terminal: only its standard output is read.
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, stderr=stderr)
        self.t.defer(self.end)
        self.output = ""
        self._wait_ready()
        self.ready_s = time.monotonic() - began

    def _wait_ready(self):
        end = time.monotonic() + READY_SECONDS_MAX
        while not any(line.startswith("ready") for line in self.output.splitlines()):
            left = end - time.monotonic()
            if left <= 0:
                self.t.fail(f"the server was not ready after {READY_SECONDS_MAX} s; it said: {self.output!r}")
            if not select.select([self.process.stdout], [], [], left)[0]:
                continue
            piece = os.read(self.process.stdout.fileno(), 65536).decode(errors="replace")
            if not piece:
                self.t.fail(f"the server ended with {self.process.wait()} before it was ready; it said: {self.output!r}")
            self.output += piece
        self.t.log(self.output.rstrip())
        if self.mount_dir and self.t.over_io_uring:
            self.t.expect("over io_uring" in self.output, f"the mount is served without io_uring: {self.output!r}")

    def uri(self, volume):
        """The NBD address of a volume."""
        return f"nbd+unix:///{volume}?socket={self.socket}"

    def tcp(self):
        """The TCP address that was free, of a server that was told to take one (`127.0.0.1:0`)."""
        return next(line.split()[1] for line in self.output.splitlines() if line.startswith("nbd 127.0.0.1:"))

    def file(self, volume):
        """The volume as a file of the FUSE mount."""
        return self.mount_dir / volume

    def share(self, name):
        """The directory at which a share is mounted."""
        directory = self.shares_dir / name
        self.t.expect(os.path.ismount(directory), f"share {name} is not mounted at {directory}")
        return directory

    def _unmount_shares(self):
        """Takes away what a server that is dead has left."""
        if self.shares_dir:
            for point in mounts_under(self.shares_dir):
                self.t.run("umount", "--lazy", point, status=None)

    def rss_bytes(self):
        """Resident memory now."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return self.t.fail("the server has no VmRSS: it has ended")

    def stop(self):
        """SIGTERM; it must end cleanly."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.t.equal(self.process.wait(STOP_SECONDS_MAX), 0, "exit status of the server after SIGTERM")
        self.stopped_s = time.monotonic() - began
        if self.mount_dir:
            self.t.expect(str(self.mount_dir) not in mounts_under(self.t.dir), f"{self.mount_dir} is still mounted after SIGTERM")
        if self.shares_dir:
            self.t.equal(mounts_under(self.shares_dir), [], "shares that are mounted after SIGTERM")

    def hand_over(self):
        """SIGUSR2: it ends cleanly, and the mounts wait for the next server."""
        self.process.send_signal(signal.SIGUSR2)
        self.t.equal(self.process.wait(STOP_SECONDS_MAX), 0, "exit status of the server after SIGUSR2")

    def kill(self, leaves_mount=False):
        """kill -9; the mount that it leaves is taken away, or left to the next server."""
        self.process.kill()
        self.process.wait()
        if self.mount_dir and not leaves_mount:
            self.t.run("umount", "--lazy", self.mount_dir, status=None)
        if not leaves_mount:
            self._unmount_shares()

    def end(self):
        """The guard: whatever state it is in, it is gone afterwards."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
        self._unmount_shares()
        # The kernel's table is asked: a mount whose server is dead does not answer for itself.
        if self.mount_dir and str(self.mount_dir) in mounts_under(self.t.dir):
            self.t.run("umount", "--lazy", self.mount_dir, status=None)
