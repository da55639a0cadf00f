#!/usr/bin/python3
"""In a virtual machine: the kernel's clients of NFS and SMB on a share that the host gives out. Owns what they do; the host says with which ports.

    door_guest.py '{"nfs": PORT, "mount": PORT, "smb": PORT, "user": NAME, "password": WORD, "parts": [...], ...}'

Each client is a process with a network card, a network and a name of its own, so that the server sees another machine. It prints one line for
each part, "part NAME: ok ..." or "part NAME: FAILED ...", and goes on after a failure. Runs on what Debian's image has, and on the files beside it.
"""

import ctypes
import errno
import fcntl
import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOST = "10.0.2.2"
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
MIB = 1 << 20
KINDS = ["nfs3", "nfs4.0", "nfs4.1", "smb"]
# The clients, and what a mount by SMB asks the kernel for. It would ask for five, and for eight that there are not, before it logs in, by a program
# that runs for seconds each time in an emulated machine. But the client gives the negotiation 20 s, and Samba the log-in 60 s; then the mount fails
# with EHOSTDOWN.
MODULES = ["virtio_net", "nfsv3", "nfsv4", "cifs", "cmac", "ctr", "gcm", "ghash_generic", "sha512_generic"]
# Tests of pjdfstest that no share passes by NFS: the client keeps a removed file that is open by another name, and Ganesha sets no times of links.
NOT_BY_NFS = {"unlink::open_file_not_freed", "utimensat::follow_symlink"}
# What a lock is answered that another one forbids.
REFUSED = {errno.EAGAIN, errno.EACCES}


def run(*words, seconds_max=1200):
    """A command that must succeed; what it wrote."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=seconds_max, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))[:200]}: exit status {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout


def block(source, client, number):
    """The MiB `number` of a client's file: a piece of the source, of which no other one begins alike."""
    start = (client * 7919 + number * 104_729) % (len(source) - MIB)
    return b"%08d%08d" % (client, number) + source[start:start + MIB - 16]


class Worker:
    """What a client can be told to do, in its own process."""

    def __init__(self, settings):
        self.settings, self.files = settings, {}

    def network(self, number):
        """The card that it was given."""
        for words in (["addr", "add", "10.0.2.15/24", "dev", f"eth{number}"], ["link", "set", f"eth{number}", "up"], ["link", "set", "lo", "up"]):
            run("ip", *words)

    def mount(self, kind):
        """Mounts the share by a door and returns with which options the kernel has done so."""
        at = Path(f"/mnt/{kind}")
        at.mkdir(exist_ok=True)
        set_to = self.settings
        if kind == "smb":
            options = f"ip={HOST},port={set_to['smb']},username={set_to['user']},password={set_to['password']},vers=3.1.1"
            run("mount", "-i", "-t", "cifs", "-o", options, f"//{HOST}/home", at)
        else:
            version = kind.removeprefix("nfs")
            options = f"addr={HOST},vers={version},proto=tcp,port={set_to['nfs']}"
            # Of the server, NFS 3 has no locks.
            options += f",mountaddr={HOST},mountproto=tcp,mountport={set_to['mount']},nolock" if version == "3" else ",clientaddr=10.0.2.15"
            run("mount", "-i", "-t", "nfs" if version == "3" else "nfs4", "-o", options, f"{HOST}:/home", at)
        line = next(line.split() for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1] == str(at))
        found = re.search(r"vers=([\d.]+)", line[3])
        wanted = "3.1.1" if kind == "smb" else kind.removeprefix("nfs")
        if not found or found[1] != wanted:
            raise RuntimeError(f"mounted with {line[3]}, not as {kind}")
        return line[3]

    def unmount(self, kind):
        """Takes it away."""
        run("umount", f"/mnt/{kind}")

    def fsx(self, kind, seed, operations):
        """fsx on a file of its own."""
        artifacts = Path(f"/tmp/fsx-{kind}")
        artifacts.mkdir(exist_ok=True)
        run(HERE / "fsx", "-q", "-f", HERE / "fsx.toml", "-S", seed, "-N", operations, "-P", artifacts, f"/mnt/{kind}/fsx-{kind}")

    def pjdfstest(self, kind):
        """pjdfstest, whole, in a directory of its own; its summary, and the names of the tests that failed."""
        at = Path(f"/mnt/{kind}/pjdfstest")
        at.mkdir()
        words = [HERE / "pjdfstest", "-c", HERE / "pjdfstest.toml", "-p", at]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=3600, check=False)
        summary = re.search(r"^Summary: .*$", done.stdout, re.MULTILINE)
        if not summary:
            raise RuntimeError(f"pjdfstest did not end: {(done.stdout + done.stderr)[-1500:]}")
        return summary[0], re.findall(r"^(\S+) +FAILED", done.stdout, re.MULTILINE)

    def open(self, name, path):
        """Opens a file, made if it is not there."""
        self.files[name] = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    def close(self, name):
        """Closes it, which gives up its locks."""
        os.close(self.files.pop(name))

    def lock(self, name, start, length, how="exclusive"):
        """0, or the number of the error with which a lock of bytes was refused."""
        operation = {"exclusive": fcntl.LOCK_EX | fcntl.LOCK_NB, "shared": fcntl.LOCK_SH | fcntl.LOCK_NB, "none": fcntl.LOCK_UN}[how]
        try:
            fcntl.lockf(self.files[name], operation, length, start)
        except OSError as error:
            return error.errno
        return 0

    def write(self, path, client, count):
        """Writes a file of so many MiB, durably."""
        source = (HERE / "real").read_bytes()
        with open(path, "wb") as file:
            for number in range(count):
                file.write(block(source, client, number))
            file.flush()
            os.fsync(file.fileno())

    def compare(self, path, client, count):
        """Reads what a client wrote; the numbers of the MiB that are not as they were written."""
        source = (HERE / "real").read_bytes()
        with open(path, "rb") as file:
            wrong = [number for number in range(count) if file.read(MIB) != block(source, client, number)]
            return wrong + (["what is behind them"] if file.read(1) else [])


class Client:
    """A machine as the server sees it."""

    def __init__(self, number, settings):
        self.number = number
        self.ours, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(target=self.work, args=(theirs, settings), daemon=True)
        self.process.start()
        if self.answer() != "apart":
            raise RuntimeError("a client has no network of its own")
        run("ip", "link", "set", f"eth{number}", "netns", self.process.pid)
        self.do("network", number)

    def work(self, pipe, settings):
        """The process."""
        if LIBC.unshare(CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS) or LIBC.mount(b"none", b"/", None, 0x44000, None):
            pipe.send((False, os.strerror(ctypes.get_errno())))
        socket.sethostname(f"client-{self.number}")
        pipe.send((True, "apart"))
        worker = Worker(settings)
        while True:
            name, words = pipe.recv()
            try:
                pipe.send((True, getattr(worker, name)(*words)))
            except Exception as error:
                pipe.send((False, f"{type(error).__name__}: {error}"))

    def begin(self, name, *words):
        """Tells it to do something."""
        self.ours.send((name, words))

    def answer(self):
        """What came of it."""
        good, result = self.ours.recv()
        if not good:
            raise RuntimeError(f"client {self.number}: {result}")
        return result

    def do(self, name, *words):
        """Both."""
        self.begin(name, *words)
        return self.answer()


def must_be(found, allowed, what):
    """Fails unless a result is one of those that are allowed."""
    if found not in allowed:
        raise RuntimeError(f"{what}: {errno.errorcode.get(found, found)}")
    return errno.errorcode.get(found, "granted")


def locks(first, second, doors):
    """Locks of bytes that one client holds by one door, as another client meets them by the same or another one."""
    holder, other = doors
    name, path = f"{holder}-{other}", f"/locks-{holder}-{other}"
    # SMB never; an NFS 4.1 client gets EIO for a lock that is not of NFS.
    refused = REFUSED | ({errno.EIO} if other.startswith("nfs") and holder != other else set())
    first.do("open", name, f"/mnt/{holder}{path}")
    second.do("open", name, f"/mnt/{other}{path}")
    must_be(first.do("lock", name, 100, 100), {0}, "the first lock")
    said = must_be(second.do("lock", name, 150, 10), refused, "a lock of bytes that another client has locked")
    must_be(second.do("lock", name, 150, 10, "shared"), refused, "a shared lock of bytes that another client has locked")
    must_be(second.do("lock", name, 200, 100), {0}, "a lock beside it")
    must_be(first.do("lock", name, 250, 10), REFUSED | {errno.EIO}, "a lock of the first client where the second has one")
    must_be(first.do("lock", name, 100, 100, "none"), {0}, "the end of the first lock")
    must_be(second.do("lock", name, 100, 100), {0}, "a lock of bytes that were given up")
    must_be(second.do("lock", name, 100, 100, "none"), {0}, "the end of it")
    must_be(first.do("lock", name, 0, 50, "shared"), {0}, "a shared lock")
    must_be(second.do("lock", name, 0, 50, "shared"), {0}, "a shared lock beside a shared one")
    must_be(second.do("lock", name, 0, 50, "none"), {0}, "the end of that")
    must_be(second.do("lock", name, 0, 50), refused, "an exclusive lock where another client has a shared one")
    first.do("close", name)
    must_be(second.do("lock", name, 0, 50), {0}, "a lock where the file was closed")
    second.do("close", name)
    return f"a lock that another client has: {said}"


class Parts:
    """What the host can ask for."""

    def __init__(self, settings):
        self.settings = settings
        self.clients = [Client(number, settings) for number in range(settings["clients"])]

    def fsx(self, kind):
        """fsx by a door."""
        client = self.clients[0]
        options = client.do("mount", kind)
        client.do("fsx", kind, self.settings["seed"], self.settings["operations"])
        client.do("unmount", kind)
        return f"{self.settings['operations']} operations, {options.split(',addr')[0]}"

    def pjdfstest(self, kind):
        """pjdfstest by a door."""
        client = self.clients[0]
        client.do("mount", kind)
        summary, failed = client.do("pjdfstest", kind)
        client.do("unmount", kind)
        if others := set(failed) - NOT_BY_NFS:
            raise RuntimeError(f"{summary}: {', '.join(sorted(others))}")
        return f"{summary}: {', '.join(failed)}"

    def locks(self, kinds):
        """Locks seen by a second client."""
        doors = kinds.split("-")
        first, second = self.clients[:2]
        first.do("mount", doors[0])
        second.do("mount", doors[1])
        try:
            return locks(first, second, doors)
        finally:
            first.do("unmount", doors[0])
            second.do("unmount", doors[1])

    def held(self, kind):
        """Bytes that a program of the host has locked."""
        client = self.clients[0]
        client.do("mount", kind)
        client.do("open", "held", f"/mnt/{kind}/held")
        said = must_be(client.do("lock", "held", 5, 1), REFUSED | {errno.EIO}, "a lock of bytes that a program of the host has locked")
        must_be(client.do("lock", "held", 10, 10), {0}, "a lock beside it")
        client.do("close", "held")
        client.do("unmount", kind)
        return said

    def many(self, count):
        """All clients write at one time, each a file of its own, and read what their neighbours wrote."""
        kinds = [KINDS[:3][client.number % 3] for client in self.clients]
        for client, kind in zip(self.clients, kinds, strict=True):
            client.do("mount", kind)
        for client, kind in zip(self.clients, kinds, strict=True):
            client.begin("write", f"/mnt/{kind}/many-{client.number}", client.number, int(count))
        for client in self.clients:
            client.answer()
        for client, kind in zip(self.clients, kinds, strict=True):
            neighbour = (client.number + 1) % len(self.clients)
            client.begin("compare", f"/mnt/{kind}/many-{neighbour}", neighbour, int(count))
        wrong = {client.number: found for client in self.clients if (found := client.answer())}
        for client, kind in zip(self.clients, kinds, strict=True):
            client.do("unmount", kind)
        if wrong:
            raise RuntimeError(f"by client, MiB of a neighbour's file that are wrong: {wrong}")
        return f"{len(self.clients)} clients x {count} MiB by {', '.join(kinds[:3])}"


def main():
    settings = json.loads(sys.argv[1])
    # What one user makes another one may write.
    os.umask(0)
    run("modprobe", "-a", *MODULES)
    # From here on the kernel asks for none.
    Path("/proc/sys/kernel/modprobe").write_text("\n", encoding="ascii")
    parts, failed = Parts(settings), 0
    for part in settings["parts"]:
        what, _, which = part.partition(":")
        try:
            print(f"part {part}: ok, {getattr(parts, what)(which)}", flush=True)
        except Exception as error:
            traceback.print_exc()
            print(f"part {part}: FAILED, {' '.join(str(error).split())}", flush=True)
            failed += 1
    if failed:
        # What the kernel has to say about its mounts.
        print("\n".join(run("dmesg").splitlines()[-40:]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
