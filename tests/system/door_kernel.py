"""Doors of shares, with the kernel's own clients of NFS and SMB: in a virtual machine, since this machine's kernel may have none.

Only in `make e2e`, which sets SHALE_E2E. tests/harness/door_guest.py is what the machine runs.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys

from harness import data, test
from harness.door_guest import MIB, block
from harness.guest import ROOT, TOOL, accelerator, image

from .exports import OPEN_DOORS, PASSWORD, USER, Clients, Doors

TOOLS = ROOT / "target" / "tools" / "bin"
# An emulated machine on a busy computer.
SECONDS_MAX = 5400
FSX = """flen = 524288
[opsize]
max = 65536
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 4
fsync = 0.2
fdatasync = 0.2
sendfile = 2
posix_fadvise = 1
"""
PJDFSTEST = """[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"""


class Machine:
    """A virtual machine with clients of a share `home`."""

    def __init__(self, t, **properties):
        self.t = t
        t.run(ROOT / "tools" / "setup", "guest", "posix", seconds_max=1800)
        self.image = image(t)
        self.doors = Doors(t, **dict(OPEN_DOORS, **properties))
        self.clients = Clients(t, self.doors)
        self.clients.let_in_by_smb()
        os.chmod(self.doors.home, 0o777)
        # Its second disk, with all that it runs.
        place = t.dir / "guest"
        place.mkdir()
        self.source = data.mixed_file(place / "real", 3 << 20).read_bytes()
        for file in (TOOLS / "fsx", TOOLS / "pjdfstest", ROOT / "tests/harness/door_guest.py"):
            shutil.copy(file, place)
        (place / "fsx.toml").write_text(FSX)
        (place / "pjdfstest.toml").write_text(PJDFSTEST)
        self.disk = t.dir / "guest.disk"
        t.run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", place, self.disk, "192M")

    def run(self, parts, clients, **more):
        """Runs parts of door_guest.py; what it said of each. All must be good."""
        ports = self.doors.ports
        settings = dict(more, nfs=ports["nfs-port"], mount=ports["mount-port"], smb=ports["smb-port"], user=USER, password=PASSWORD, parts=parts, clients=clients)
        command = f"mkdir -p /mnt /run/data; mount -o ro /dev/vdb /run/data && exec python3 -B /run/data/door_guest.py '{json.dumps(settings)}'"
        log = self.t.dir / "guest.log"
        words = [TOOL, "boot", self.image, "--lean", "--data", self.disk, "--nics", clients, "--memory", 768, "--accelerator", accelerator(self.t), "--log", log,
                 "--seconds-max", SECONDS_MAX - 300, "--command", command]
        self.t.log(f"$ boot of the clients: {parts}")
        machine = subprocess.Popen([sys.executable, "-B", *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.t.defer(machine.wait)
        self.t.defer(machine.terminate)
        out, error = machine.communicate(timeout=SECONDS_MAX)
        said = log.read_text(errors="replace").replace("\r", "")
        self.t.log(said[-60_000:])
        for log in sorted(self.doors.dir.rglob("*.log")):
            self.t.log(f"{log.name}:\n{log.read_text(errors='replace')[-8000:]}")
        results = dict(re.findall(r"^part (\S+): (.*)$", said, re.MULTILINE))
        self.t.equal(machine.returncode, 0, f"the machine of the clients: {error}")
        self.t.equal(sorted(results), sorted(parts), "parts that were done")
        for part, result in results.items():
            self.t.note(f"{part}: {result}")
        self.t.expect(all(result.startswith("ok, ") for result in results.values()), f"what failed: {[part for part in results if results[part].startswith('FAILED')]}")
        self.t.equal(json.loads(out)["status"], 0, "exit status of the clients")
        return results


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=SECONDS_MAX)
    def e2e_doors_kernel_clients(t):
        """the kernel's clients of NFS 3, 4.0, 4.1 and SMB 3.1.1: fsx, and locks of bytes that other clients and the mount see"""
        machine = Machine(t)
        home = machine.doors.home
        pairs = ["nfs4.1-nfs4.1", "nfs4.0-nfs4.1", "smb-smb", "nfs4.1-smb", "smb-nfs4.1"]
        parts = [f"fsx:{kind}" for kind in ("nfs3", "nfs4.0", "nfs4.1", "smb")] + [f"locks:{pair}" for pair in pairs] + ["held:nfs4.1", "held:smb"]
        with open(home / "held", "w+b") as held:
            os.chmod(home / "held", 0o666)
            fcntl.lockf(held, fcntl.LOCK_EX, 10, 0)
            machine.run(parts, 2, seed=int(os.environ.get("SHALE_SEED", "34")), operations=int(os.environ.get("SHALE_FSX_OPERATIONS", "1000")))
        machine.doors.server.stop()
        machine.doors.pool.check()

    @test(seconds_max=SECONDS_MAX)
    def e2e_doors_kernel_pjdfstest(t):
        """pjdfstest by NFS 4.1 with the kernel's client: two tests fail that no share can pass there, and no other one"""
        machine = Machine(t)
        machine.run(["pjdfstest:nfs4.1"], 1)
        machine.doors.server.stop()
        machine.doors.pool.check()

    @test(seconds_max=SECONDS_MAX)
    def e2e_doors_kernel_many(t):
        """ten of the kernel's clients write by NFS 3, 4.0 and 4.1 at one time, and a neighbour and the mount read the same bytes"""
        machine = Machine(t)
        clients, size = 10, int(os.environ.get("SHALE_CLIENT_MIB", "30"))
        machine.run([f"many:{size}"], clients)
        for client in range(clients):
            with open(machine.doors.home / f"many-{client}", "rb") as file:
                for number in range(size):
                    t.expect(file.read(MIB) == block(machine.source, client, number), f"MiB {number} of what client {client} wrote is not so in the mount")
                t.equal(file.read(1), b"", f"what is behind the file of client {client}")
        machine.doors.server.stop()
        machine.doors.pool.check()
