"""The unit of the package under a real systemd, which is process 1 of namespaces of its own: nothing of the machine's own services is touched."""

import contextlib
import os
import subprocess
from pathlib import Path

from harness import Pool, test
from harness.namespaces import LEAVE_OTHERS
from harness.pool import BINARY, ROOT
from system.configuration import write

SYSTEMD = "/lib/systemd/systemd"

# Mounts and cgroups are the namespace's own; of units it knows those of the test.
INNER = f"""set -e
own=${{1%/*}}
{LEAVE_OTHERS}
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
    mount -t tmpfs tmpfs /sys/fs/cgroup
    mkdir /sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
fi
mount -t tmpfs tmpfs /run
exec env -i container=test SYSTEMD_UNIT_PATH="$1" PATH="$PATH" HOME=/root LC_ALL=C.UTF-8 \\
    {SYSTEMD} --system --unit=test.target --log-target=console --show-status=no
"""


UNIT = "shale@tank.service"


def packaged_unit(file):
    """The unit of the package, with the paths of a test."""
    unit = (ROOT / "packaging" / "systemd" / "shale@.service").read_text()
    for packaged, ours in (("/usr/bin/shale", BINARY), ("/etc/shale/%i.toml", file)):
        if packaged not in unit:
            raise RuntimeError(f"the unit does not name {packaged}")
        unit = unit.replace(packaged, str(ours))
    # Nothing else of a system is there to be waited for.
    return unit.replace("[Unit]\n", "[Unit]\nDefaultDependencies=no\n")


class Manager:
    """A systemd with one unit."""

    def __init__(self, t, unit):
        self.t = t
        units = t.dir / "units"
        units.mkdir()
        (units / "test.target").write_text("[Unit]\nDescription=a test\nDefaultDependencies=no\n")
        (units / "shale@.service").write_text(unit)
        inner = t.dir / "inner.sh"
        inner.write_text(INNER)
        top = Path("/sys/fs/cgroup")
        # An interrupted run may have left one with the name of the test.
        self.group = (top if (top / "cgroup.controllers").exists() else top / "systemd") / f"{t.dir.name}.{os.getpid()}.{id(self)}"
        self.group.mkdir()
        t.defer(self.end)
        start = f"echo $$ > {self.group}/cgroup.procs; exec unshare --pid --fork --kill-child=SIGKILL --mount --mount-proc --cgroup --ipc --uts sh {inner} {units}"
        self.process = subprocess.Popen(["sh", "-c", start], stdin=subprocess.DEVNULL)
        self.leader = t.wait_for(self._child, "a process 1")
        t.wait_for(lambda: self.inside("systemctl", "is-active", "test.target", status=None).returncode == 0, "a systemd that answers")

    def _child(self):
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else None

    def inside(self, *command, **named):
        """Runs a command beside the service."""
        return self.t.run("nsenter", "--target", self.leader, "--mount", "--pid", *command, **named)

    def shows(self, name):
        """A property of the unit."""
        return self.inside("systemctl", "show", "--property", name, "--value", UNIT).stdout.strip()

    def is_up(self, instead_of=None):
        """Whether the service runs, as another process than the one named."""
        pid = self.shows("MainPID")
        return self.shows("ActiveState") == "active" and pid not in ("0", instead_of) and pid

    def end(self):
        """Whatever state it is in, it is gone afterwards."""
        self.process.kill()
        self.process.wait()
        for _ in range(3):
            for directory in sorted(self.group.rglob("*/"), key=lambda path: len(path.parts), reverse=True):
                with contextlib.suppress(OSError):
                    directory.rmdir()
            with contextlib.suppress(OSError):
                self.group.rmdir()


def settings(t, pool, **more):
    """A settings file, with a mount and a socket below the test's directory."""
    mount, socket, file = t.dir / "mount", t.dir / "nbd.sock", t.dir / "tank.toml"
    mount.mkdir(exist_ok=True)
    write(file, pool=pool.path, mount=mount, nbd=[f"unix:{socket}"], **more)
    return file, mount, socket


@test()
def service_restarts_after_kill(t):
    """the unit of the package under systemd: after kill -9 the server is there again by itself, with its mount, its socket and all that was acknowledged; `systemctl reload` has it read its file again"""
    pool = Pool(t, capacity="1G")
    pool.create("vm", "256M")
    file, mount, socket = settings(t, pool)
    manager = Manager(t, packaged_unit(file))
    manager.inside("systemctl", "start", UNIT)
    for round_number in range(1, 4):
        pid = manager.is_up()
        t.expect(pid, "the service does not run")
        content = bytes([round_number]) * (1 << 20)
        manager.inside("dd", f"of={mount}/vm", "bs=1M", f"seek={round_number}", "conv=notrunc", stdin=content, text=False)
        manager.inside("kill", "-9", pid)
        t.wait_for(lambda: manager.is_up(instead_of=pid), "the service after kill -9")
        t.equal(manager.shows("NRestarts"), str(round_number), "restarts")
        for known in range(1, round_number + 1):
            read = manager.inside("dd", f"if={mount}/vm", "bs=1M", f"skip={known}", "count=1", text=False)
            t.equal(read.stdout, bytes([known]) * (1 << 20), f"what was written before kill -9 number {known}")
        uri = f"nbd+unix:///vm?socket={socket}"
        manager.inside("nbdinfo", "--size", uri)
    pid = manager.is_up()
    settings(t, pool, vhost_user=t.dir / "vhost")
    manager.inside("systemctl", "reload", UNIT)
    t.expect((t.dir / "vhost" / "vm.sock").exists(), "the door that came by the reload is not there")
    write(file, pool=pool.path, mout=mount)
    t.expect(manager.inside("systemctl", "reload", UNIT, status=None).returncode != 0, "a wrong file was reloaded")
    t.equal(manager.is_up(), pid, "the server after the reloads")
    manager.inside("systemctl", "stop", UNIT)
    t.equal((manager.shows("ActiveState"), manager.shows("Result")), ("inactive", "success"), "the service after a stop")
    t.expect(not socket.exists(), "the socket is still there after a stop")
    t.equal(manager.inside("findmnt", mount, status=None).returncode, 1, "findmnt of the mount after a stop")
    pool.check()


@test()
def service_watchdog(t):
    """a server under systemd that gives no sign of life is killed and started again, and one that does is not"""
    pool = Pool(t, capacity="1G")
    pool.create("vm", "16M")
    file, mount, _ = settings(t, pool)
    unit = packaged_unit(file)
    t.expect("WatchdogSec=180\n" in unit, "the unit has no watchdog")
    manager = Manager(t, unit.replace("WatchdogSec=180\n", "WatchdogSec=3\nTimeoutAbortSec=1\n"))
    manager.inside("systemctl", "start", UNIT)
    pid = manager.is_up()
    # It has given many signs by then.
    since = int(manager.shows("WatchdogTimestampMonotonic"))
    t.wait_for(lambda: int(manager.shows("WatchdogTimestampMonotonic")) > since + 6_000_000, "signs of life for more than twice the time of the watchdog")
    t.equal((manager.is_up(), manager.shows("NRestarts")), (pid, "0"), "the server that is alive")
    manager.inside("kill", "-STOP", pid)
    t.wait_for(lambda: manager.is_up(instead_of=pid), "another server instead of the one that stands still")
    t.equal(manager.inside("stat", "--format=%s", mount / "vm").stdout.strip(), str(16 << 20), "size of a volume in the mount")
    manager.inside("systemctl", "stop", UNIT)
    pool.check()
