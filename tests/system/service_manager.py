"""The documented unit under a real systemd, which is process 1 of namespaces of its own: nothing of the machine's own services is touched."""

import contextlib
import re
import subprocess
from pathlib import Path

from harness import Pool, test
from harness.pool import BINARY, ROOT

SYSTEMD = "/lib/systemd/systemd"

# Mounts and cgroups are the namespace's own; of units it knows those of the test.
INNER = """set -e
mount --make-rprivate /
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
    mount -t tmpfs tmpfs /sys/fs/cgroup
    mkdir /sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
fi
mount -t tmpfs tmpfs /run
exec env -i container=test SYSTEMD_UNIT_PATH="$1" PATH="$PATH" HOME=/root LC_ALL=C.UTF-8 \\
    {systemd} --system --unit=test.target --log-target=console --show-status=no
""".format(systemd=SYSTEMD)


def documented_unit(pool, mount, socket):
    """The unit of OPERATIONS.md, with the paths of a test."""
    text = (ROOT / "docs" / "OPERATIONS.md").read_text()
    block = re.search(r"^    # /etc/systemd/system/shale\.service\n((?:    .*\n)+)", text, re.MULTILINE).group(1)
    unit = "".join(line[4:] + "\n" for line in block.splitlines())
    for documented, ours in (("/usr/local/bin/shale", BINARY), ("/srv/pool", pool.path), ("/run/shale.sock", socket), ("/run/shale", mount)):
        if documented not in unit:
            raise RuntimeError(f"the documented unit does not name {documented}")
        unit = unit.replace(documented, str(ours))
    # Nothing else of a system is there to be waited for.
    return unit.replace("[Unit]\n", "[Unit]\nDefaultDependencies=no\n")


class Manager:
    """A systemd with one unit."""

    def __init__(self, t, unit):
        self.t = t
        units = t.dir / "units"
        units.mkdir()
        (units / "test.target").write_text("[Unit]\nDescription=a test\nDefaultDependencies=no\n")
        (units / "shale.service").write_text(unit)
        inner = t.dir / "inner.sh"
        inner.write_text(INNER)
        top = Path("/sys/fs/cgroup")
        self.group = (top if (top / "cgroup.controllers").exists() else top / "systemd") / t.dir.name
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
        return self.inside("systemctl", "show", "--property", name, "--value", "shale.service").stdout.strip()

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


@test()
def service_restarts_after_kill(t):
    """the documented unit under systemd: after kill -9 the server is there again by itself, with its mount, its socket and all that was acknowledged"""
    pool = Pool(t, capacity="1G")
    pool.create("vm", "256M")
    mount, socket = t.dir / "run" / "mount", t.dir / "run" / "nbd.sock"
    socket.parent.mkdir()
    manager = Manager(t, documented_unit(pool, mount, socket))
    manager.inside("systemctl", "start", "shale.service")
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
    manager.inside("systemctl", "stop", "shale.service")
    t.equal((manager.shows("ActiveState"), manager.shows("Result")), ("inactive", "success"), "the service after a stop")
    t.expect(not socket.exists(), "the socket is still there after a stop")
    t.equal(manager.inside("findmnt", mount, status=None).returncode, 1, "findmnt of the mount after a stop")
    pool.check()
