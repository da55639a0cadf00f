"""Doors of shares, beside content: attributes that change, file handles of NFS whose files are gone, and locks of WebDAV.

The locks are in `make test`, the others only in `make e2e`, which sets SHALE_E2E.
"""

import contextlib
import email.utils
import ftplib
import os
import re
import shutil
import signal
import socket
import struct
import time

import pytest

from harness import data, test

from .exports import OPEN_DOORS, USER, Clients, Doors, wait_gone

MOUNT, NFS = 100005, 100003
NFS_OK, NFS_STALE = 0, 70


class Nfs3:
    """A client of NFS 3 that keeps file handles and caches nothing. It says that it is a user."""

    def __init__(self, ports, user=0):
        self.ports, self.user, self.calls = ports, user, 0
        status, answer = self.call(ports["mount-port"], MOUNT, 1, self.opaque(b"/home"))
        assert status == NFS_OK, f"MNT: {status}"
        self.root = self.taken(answer)[0]

    @staticmethod
    def opaque(content):
        """Bytes with their length, as RPC sends them."""
        return struct.pack(">I", len(content)) + content + bytes(-len(content) % 4)

    @staticmethod
    def taken(answer):
        """The first bytes with a length of an answer, and what is behind them."""
        length = struct.unpack_from(">I", answer)[0]
        return answer[4:4 + length], answer[4 + length + -length % 4:]

    def call(self, port, program, procedure, body):
        """The status of a call, and what is behind it."""
        self.calls += 1
        who = struct.pack(">I", 0) + self.opaque(b"test") + struct.pack(">III", self.user, self.user, 0)
        call = struct.pack(">IIIIIII", self.calls, 0, 2, program, 3, procedure, 1) + self.opaque(who) + struct.pack(">II", 0, 0) + body
        answer, is_last = b"", False
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(struct.pack(">I", 0x80000000 | len(call)) + call)
            with connection.makefile("rb") as stream:
                while not is_last:
                    head = struct.unpack(">I", stream.read(4))[0]
                    is_last, answer = head >> 31 == 1, answer + stream.read(head & 0x7FFFFFFF)
        assert struct.unpack_from(">IIIIII", answer) == (self.calls, 1, 0, 0, 0, 0), f"head of an answer: {answer[:24].hex()}"
        return struct.unpack_from(">I", answer, 24)[0], answer[28:]

    def look_up(self, name):
        """The handle of a file in the share's root."""
        status, answer = self.call(self.ports["nfs-port"], NFS, 3, self.opaque(self.root) + self.opaque(name.encode()))
        assert status == NFS_OK, f"LOOKUP of {name}: {status}"
        return self.taken(answer)[0]

    def attributes(self, handle):
        """The status of GETATTR; and mode, owner, size and time of the last change of the content."""
        status, answer = self.call(self.ports["nfs-port"], NFS, 1, self.opaque(handle))
        if status != NFS_OK:
            return status, None
        _, mode, _, owner, _, size = struct.unpack_from(">IIIIIQ", answer)
        return status, (mode & 0o7777, owner, size, struct.unpack_from(">I", answer, 68)[0])

    def set(self, handle, mode=None, size=None, modified=None):
        """The status of SETATTR."""
        words = struct.pack(">I", 0) if mode is None else struct.pack(">II", 1, mode)
        words += struct.pack(">II", 0, 0)
        words += struct.pack(">I", 0) if size is None else struct.pack(">IQ", 1, size)
        words += struct.pack(">I", 0)
        words += struct.pack(">I", 0) if modified is None else struct.pack(">III", 2, modified, 0)
        return self.call(self.ports["nfs-port"], NFS, 2, self.opaque(handle) + words + struct.pack(">I", 0))[0]

    def read(self, handle, count):
        """The status of READ from the beginning, and what was read."""
        status, answer = self.call(self.ports["nfs-port"], NFS, 6, self.opaque(handle) + struct.pack(">QI", 0, count))
        if status != NFS_OK:
            return status, None
        attributes = 84 if struct.unpack_from(">I", answer)[0] else 0
        return status, self.taken(answer[4 + attributes + 8:])[0]


@test(seconds_max=300)
def door_http_locks(t):
    """a lock by WebDAV keeps writers without its token out, over kill -9 of Apache and of our server, until it is given up"""
    if not shutil.which("apache2", path=f"{os.environ['PATH']}:/usr/sbin"):
        pytest.skip("apache2 is not installed (tools/setup test installs apache2-bin)")
    doors = Doors(t, http="rw@127.0.0.0/8")
    os.chmod(doors.home, 0o777)
    url, new = doors.url("file"), t.dir / "new"
    new.write_bytes(b"one")
    t.equal(doors.status("-T", new, url), "201", "a PUT")
    wish = ('<?xml version="1.0"?><D:lockinfo xmlns:D="DAV:"><D:lockscope><D:exclusive/></D:lockscope><D:locktype><D:write/></D:locktype>'
            "<D:owner>one</D:owner></D:lockinfo>")
    lock = ["-X", "LOCK", "-H", "Timeout: Infinite", "-H", "Content-Type: text/xml", "--data", wish]
    head = t.out("curl", "-s", "-o", t.dir / "said", "-D", "-", *lock, url)
    token = re.search(r"(?im)^lock-token: *<([^>]+)>", head)
    t.expect(token, f"no token of a lock in: {head}")
    token = token.group(1)
    new.write_bytes(b"two")

    def is_locked(when):
        """Checks that others are kept out, and readers are not."""
        refused = [doors.status(*words, url) for words in [("-T", new), ("-X", "DELETE"), lock]]
        t.equal(refused, ["423"] * 3, f"PUT, DELETE and LOCK of a locked file {when}")
        t.equal(t.out("curl", "-sf", url), "one", f"the locked file {when}")

    is_locked("at first")
    pid = doors.pid("apache")
    os.kill(pid, signal.SIGKILL)
    wait_gone(t, pid)
    t.wait_for(lambda: doors.pids().get("apache", pid) != pid and doors.status(url) == "200", "another Apache")
    is_locked("after kill -9 of Apache")
    doors.server.kill(leaves_mount=True)
    doors.serve()
    is_locked("after kill -9 of our server")
    t.equal(doors.status("-T", new, "-H", f"If: (<{token}>)", url), "204", "a PUT with the token")
    t.equal(t.out("curl", "-sf", url), "two", "the file that the lock's owner has written")
    t.equal(doors.status("-X", "UNLOCK", "-H", f"Lock-Token: <{token}>", url), "204", "the end of the lock")
    t.equal(doors.status("-X", "DELETE", url), "204", "a DELETE behind it")
    t.expect("file" not in os.listdir(doors.home), "a file that was removed by WebDAV is in the mount")
    doors.server.stop()
    doors.pool.check()


def seen(t, doors, clients, nfs, session):
    """Size and time of the content's last change of the file `a`, as each door tells it."""
    found = os.stat(doors.home / "a")
    told = {"local": (found.st_size, int(found.st_mtime)), "nfs": nfs.attributes(nfs.look_up("a"))[1][2:]}
    line = next(line for line in clients.smb("ls a").stdout.splitlines() if line.split()[:1] == ["a"])
    size, when = re.search(r"(\d+)\s+(\w{3} \w{3} +\d+ [\d:]{8} \d{4})$", line).groups()
    told["smb"] = int(size), int(time.mktime(time.strptime(when, "%a %b %d %H:%M:%S %Y")))
    head = dict(line.lower().split(": ", 1) for line in t.out("curl", "-sfI", doors.url("a")).splitlines() if ": " in line)
    told["http"] = int(head["content-length"]), int(email.utils.parsedate_to_datetime(head["last-modified"]).timestamp())
    when = time.strptime(session.sendcmd("MDTM a").split()[1], "%Y%m%d%H%M%S")
    told["ftp"] = session.size("a"), int(time.mktime(when))
    return told


def readers(t, doors, clients, nfs, session):
    """The doors through which the user reads the file `a`."""
    doors_of = set()
    with contextlib.suppress(ftplib.error_perm):
        session.retrbinary("RETR a", lambda _: None)
        doors_of.add("ftp")
    if nfs.read(nfs.look_up("a"), 10)[0] == NFS_OK:
        doors_of.add("nfs")
    done = clients.smb(f"get a {t.dir / 'got'}", status=None)
    if "NT_STATUS_ACCESS_DENIED" not in done.stdout + done.stderr:
        doors_of.add("smb")
    if doors.status(doors.url("a")) == "200":
        doors_of.add("http")
    return doors_of


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=900)
    def e2e_doors_attributes(t):
        """size, time, mode and owner that change in the mount, by NFS or by FTP are seen at once through every door, by clients that have asked before"""
        # As the times are told that have no zone.
        os.environ.update(TZ="UTC", LC_ALL="C")
        time.tzset()
        doors = Doors(t, **OPEN_DOORS)
        clients = Clients(t, doors)
        clients.let_in_by_smb()
        file, user = doors.home / "a", int(t.out("id", "-u", USER))
        file.write_bytes(data.mixed_file(t.dir / "real", 1 << 20).read_bytes())
        os.chmod(file, 0o644)
        root, other = Nfs3(doors.ports), Nfs3(doors.ports, user)
        handle = root.look_up("a")
        with doors.ftp_session() as session:
            session.voidcmd("TYPE I")

            def all_see(size, modified, what):
                t.equal(seen(t, doors, clients, root, session), dict.fromkeys(["local", "nfs", "smb", "http", "ftp"], (size, modified)), what)

            def read_by(expected, what):
                t.equal(readers(t, doors, clients, other, session), expected, what)

            everyone = {"nfs", "smb", "http", "ftp"}
            all_see(1 << 20, int(file.stat().st_mtime), "a new file")
            os.truncate(file, 100)
            os.utime(file, (0, 1_000_000_000))
            all_see(100, 1_000_000_000, "a file that was cut and dated")
            with open(file, "ab") as opened:
                opened.write(b"more")
            os.utime(file, (0, 1_100_000_000))
            all_see(104, 1_100_000_000, "a file that has grown")
            t.equal(root.set(handle, size=7, modified=1_200_000_000), NFS_OK, "a change by NFS")
            all_see(7, 1_200_000_000, "a file that was cut and dated by NFS")

            read_by(everyone, "who reads a file that all may read")
            os.chmod(file, 0o600)
            read_by(set(), "who reads a file that only root may read")
            os.chown(file, user, -1)
            read_by({"nfs", "smb", "ftp"}, "who reads a file that was given to the user")
            session.voidcmd("SITE CHMOD 644 a")
            t.equal(root.attributes(handle)[1][:2], (0o644, user), "mode and owner by NFS")
            read_by(everyone, "who reads a file whose mode was changed by FTP")
            t.equal(root.set(handle, mode=0o000), NFS_OK, "a change by NFS")
            t.equal(file.stat().st_mode & 0o7777, 0, "the mode in the mount")
            t.equal(doors.status(doors.url("a")), "403", "a file whose mode was changed by NFS, by HTTP")
        doors.server.stop()
        doors.pool.check()

    @test(seconds_max=900)
    def e2e_doors_stale_handles(t):
        """a file handle of NFS means its file for good: renamed, after kill -9 of Ganesha and of our server; and nothing once that is removed or replaced, through whatever door"""
        doors = Doors(t, **OPEN_DOORS)
        clients = Clients(t, doors)
        clients.let_in_by_smb()
        # Each user may remove what others have made.
        os.chmod(doors.home, 0o777)
        nfs = Nfs3(doors.ports)
        names = ["stays", "renamed", "replaced", "removed", "by-smb", "by-http", "by-ftp"]
        for name in names:
            (doors.home / name).write_bytes(name.encode())
            os.chmod(doors.home / name, 0o666)
        handles = {name: nfs.look_up(name) for name in names}
        t.equal(len(set(handles.values())), len(names), "different handles")

        os.rename(doors.home / "renamed", doors.home / "elsewhere")
        (doors.home / "new").write_bytes(b"another")
        os.rename(doors.home / "new", doors.home / "replaced")
        (doors.home / "removed").unlink()
        clients.smb("del by-smb")
        t.equal(doors.status("-X", "DELETE", doors.url("by-http")), "204", "a DELETE by HTTP")
        with doors.ftp_session() as session:
            session.delete("by-ftp")
        left = {path.name for path in doors.home.iterdir()}
        t.equal(left, {"stays", "elsewhere", "replaced"}, "files that are left")

        def as_they_must_be(when):
            """Checks all handles: what is there by its content, what is gone as stale, not as another file."""
            for name in ["stays", "renamed"]:
                t.equal(nfs.read(handles[name], 100), (NFS_OK, name.encode()), f"the handle of '{name}' {when}")
            for name in names[2:]:
                t.equal(nfs.attributes(handles[name])[0], NFS_STALE, f"GETATTR with the handle of '{name}' {when}")
                t.equal(nfs.read(handles[name], 100)[0], NFS_STALE, f"READ with the handle of '{name}' {when}")
            t.equal(nfs.read(nfs.look_up("replaced"), 100), (NFS_OK, b"another"), f"the file that replaced another one {when}")

        as_they_must_be("at once")
        # No new file has a number that was another one's.
        for number in range(300):
            (doors.home / f"later-{number}").write_bytes(b"later")
        as_they_must_be("after new files")
        pid = doors.pid("ganesha")
        os.killpg(pid, signal.SIGKILL)
        wait_gone(t, pid)
        t.wait_for(lambda: doors.pids().get("ganesha", pid) != pid, "another Ganesha")
        t.wait_for(lambda: all(line["good"] for line in doors.check(status=None)["checks"]), "NFS after kill -9 of Ganesha")
        as_they_must_be("after kill -9 of Ganesha")
        doors.server.kill(leaves_mount=True)
        doors.serve()
        as_they_must_be("after kill -9 of our server")
        doors.server.stop()
        doors.pool.check()
