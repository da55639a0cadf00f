"""Doors of shares: real servers of network protocols over the mount, started by the server, and real clients on loopback.

The light one is HTTP by Apache, in `make test`. The others are only in `make e2e`, which sets SHALE_E2E.
"""

import contextlib
import ftplib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest

from harness import EXIT, Pool, data, test
from harness.context import digest

# What is written in a share is read by Apache as the user of HTTP, through the directory of the test.
OPEN = 0o755


def free_ports(count):
    """Ports of loopback that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Doors:
    """A directory of exports, and a pool with a share `home`, served with it."""

    def __init__(self, t, **properties):
        self.t = t
        t.dir.chmod(OPEN)
        self.dir = t.dir / "exports"
        self.dir.mkdir()
        names = ["nfs-port", "mount-port", "smb-port", "http-port", "ftp-port"]
        self.ports = dict(zip(names, free_ports(len(names))))
        low, high = 40000 + os.getpid() % 10000, 40050 + os.getpid() % 10000
        settings = [f"{key} = {port}" for key, port in self.ports.items()] + [f"ftp-passive = {low}-{high}"]
        (self.dir / "settings").write_text("\n".join(settings) + "\n")
        self.pool = Pool(t)
        words = []
        for key, value in properties.items():
            words += ["-o", f"{key}={value}"]
        self.pool.shale("create", "home", "--share", *words)
        # Whatever becomes of the server: those that it has started outlive it, as they must.
        t.defer(self.end_servers)
        self.serve()

    def serve(self):
        """Starts the server, or the next one."""
        self.server = self.pool.serve(shares=True, exports=self.dir, keeps=True)
        self.home = self.server.share("home")

    def pid(self, name):
        """The process id of a server."""
        return int((self.dir / "state" / f"{name}.pid").read_text().split()[0])

    def pids(self):
        """Those of all."""
        noted = {path.stem: path.read_text().split() for path in (self.dir / "state").glob("*.pid")}
        return {name: int(words[0]) for name, words in noted.items() if words}

    def ftp_session(self):
        """A client that stays connected by FTP."""
        session = ftplib.FTP()
        session.connect("127.0.0.1", self.ports["ftp-port"], timeout=60)
        session.login(USER, PASSWORD)
        return session

    def end_servers(self):
        """Ends what is left of them."""
        for pid in self.pids().values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def set(self, *words, status=0):
        """Sets properties of the share."""
        return self.pool.shale("set", "home", *words, status=status)

    def check(self, status=0):
        """What `shale exports --check` finds."""
        return json.loads(self.pool.shale("exports", "--check", "--json", status=status).stdout)

    def operations(self):
        """{door: {operation: counts}} of the share."""
        found = json.loads(self.pool.shale("iostat", "home", "--json", quiet=True).stdout)["volumes"]
        doors = found[0]["doors"] if found else []
        return {door["door"]: {line["operation"]: line for line in door["operations"] if line["count"]} for door in doors}

    def url(self, path=""):
        """Of a file by HTTP."""
        return f"http://127.0.0.1:{self.ports['http-port']}/home/{path}"

    def status(self, *words):
        """The status that curl gets."""
        return self.t.out("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", *words, status=None)


def wait_gone(t, pid):
    """Waits until a process has ended."""
    def has_ended():
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True
    t.wait_for(has_ended, f"the end of process {pid}")


@test(seconds_max=600)
def door_http(t):
    """a share by HTTP and WebDAV: ranges, properties in force at once, a wrong configuration and kill -9 of either server take nothing away"""
    if not shutil.which("apache2", path=f"{os.environ['PATH']}:/usr/sbin"):
        pytest.skip("apache2 is not installed (tools/setup test installs apache2-bin)")
    doors = Doors(t)
    source = data.mixed_file(t.dir / "real", 3 << 20)
    shutil.copy(source, doors.home / "real")
    os.chmod(doors.home / "real", 0o644)
    os.chmod(doors.home, 0o777)
    t.equal(json.loads(doors.pool.shale("exports", "--json").stdout)["exports"], [], "open doors of a new share")

    doors.set("http=ro")
    t.expect("http" not in doors.operations(), f"doors without a request: {doors.operations()}")
    t.drop_page_cache()
    t.run("curl", "-sf", "-o", t.dir / "got", doors.url("real"))
    t.equal(digest(t.dir / "got"), digest(source), "the file by HTTP")
    counted = doors.operations()
    t.expect(counted["http"]["read"]["bytes"] >= 3 << 20, f"bytes read through the door: {counted}")
    t.expect(counted["share"]["write"]["bytes"] >= 3 << 20, f"bytes written by a program of this machine: {counted}")
    t.expect("write" not in counted["http"], f"the door wrote nothing: {counted}")
    part = t.run("curl", "-sf", "-r", "1000000-1000999", doors.url("real"), text=False, quiet=True).stdout
    t.equal(part, source.read_bytes()[1000000:1001000], "a range of it")
    tag = next(line.split(":", 1)[1].strip() for line in t.out("curl", "-sfI", doors.url("real")).splitlines() if line.lower().startswith("etag"))
    t.equal(doors.status("-H", f"If-None-Match: {tag}", doors.url("real")), "304", "the file with its tag")
    t.expect("real" in t.out("curl", "-sf", doors.url()), "the listing has no 'real'")
    t.equal(doors.status("-T", source, doors.url("new")), "405", "a PUT to what is read-only")
    t.equal(doors.status(doors.url(".shale/snapshots/")), "403", "the snapshots")

    # In force when `set` returns: the server is the same process.
    pid = doors.pid("apache")
    doors.set("http=rw@127.0.0.0/8")
    t.run("curl", "-sf", "-T", source, doors.url("new"))
    t.equal(digest(doors.home / "new"), digest(source), "what was put, in the mount")
    (doors.home / "local").write_text("one\n")
    t.equal(t.out("curl", "-sf", doors.url("local")), "one", "what was written in the mount")
    (doors.home / "local").write_text("one and more\n")
    t.equal(t.out("curl", "-sf", doors.url("local")), "one and more", "what was written anew")
    (doors.home / "local").unlink()
    t.equal(doors.status(doors.url("local")), "404", "what was removed")
    t.equal(doors.status("-X", "MKCOL", doors.url("made")), "201", "a directory made by WebDAV")
    t.expect((doors.home / "made").is_dir(), "the directory that WebDAV made is not there")
    t.equal(doors.pid("apache"), pid, "the server's process after a change")
    found = doors.check()
    t.equal([line["address"] for line in found["exports"]], [doors.url()], "addresses")
    t.expect(all(line["good"] for line in found["checks"]), f"what --check found: {found['checks']}")

    # A right that is taken away ends the transfers that have it.
    with socket.create_connection(("127.0.0.1", doors.ports["http-port"]), timeout=60) as upload:
        upload.sendall(b"PUT /home/slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n" + bytes(8192))
        t.wait_for(lambda: any(name.startswith(".davfs") for name in os.listdir(doors.home)), "the beginning of an upload")
        doors.set("http=ro")
        with contextlib.suppress(ConnectionResetError):
            t.equal(upload.recv(100), b"", "what an upload is answered that may not go on")
    t.expect("slow" not in os.listdir(doors.home), "an upload went on without a right to it")
    doors.set("http=rw@127.0.0.0/8")
    t.equal(doors.pid("apache"), pid, "the server's process after it ended a transfer")

    # In a share that gives it out already, a share is a directory, and no second export.
    doors.pool.shale("create", "home/inner", "--share")
    (doors.home / "inner" / "file").write_text("within\n")
    os.chmod(doors.home / "inner", 0o755)
    t.equal(t.out("curl", "-sf", doors.url("inner/file")), "within", "a share within a share")
    shown = json.loads(doors.pool.shale("exports", "--json").stdout)["exports"]
    t.equal([line["share"] for line in shown], ["home"], "exports")
    doors.pool.shale("destroy", "home/inner")

    # What the administrator adds is wrong: told, and what is served stays.
    before = (doors.dir / "httpd.conf").read_text()
    (doors.dir / "httpd.local.conf").write_text("NoSuchDirective on\n")
    said = doors.set("http=ro", status=EXIT["io"]).stderr
    t.expect("NoSuchDirective" in said and "stays in force" in said, f"what set says of a wrong configuration: {said}")
    t.equal((doors.dir / "httpd.conf").read_text(), before, "the configuration in force")
    t.equal((doors.status(doors.url("real")), doors.pid("apache")), ("200", pid), "the server with a wrong configuration beside it")
    t.expect("NoSuchDirective" in doors.check(status=EXIT["unsupported"])["exports"][0]["fault"], "--check does not tell of it")
    os.kill(pid, signal.SIGKILL)
    wait_gone(t, pid)
    # Until the next one begins, those that the killed one has left behind answer.
    t.wait_for(lambda: doors.pids().get("apache", pid) != pid and doors.status(doors.url("real")) == "200",
               "the last good configuration after kill -9")
    t.equal(doors.status("-T", source, doors.url("old-rights")), "201", "a PUT as the configuration in force allows")
    (doors.dir / "httpd.local.conf").unlink()
    doors.set("http=ro")
    t.equal(doors.status("-T", source, doors.url("new")), "405", "a PUT after the configuration was mended")

    # A new share is root's: the user of HTTP may not write there, which is no fault.
    doors.pool.shale("create", "new", "--share", "-o", "http=rw@127.0.0.0/8")
    t.wait_for(lambda: len(doors.check(status=None)["exports"]) == 2, "the door of a new share")
    noted = [line for line in doors.check()["checks"] if line["warns"]]
    t.expect([line["what"] for line in noted] == ["writing (http of share new)"] and "user www-data may not write" in noted[0]["found"], f"notes: {noted}")
    # A clone is given out as its folder says, not as its origin is.
    doors.pool.shale("snapshot", "new@one")
    doors.pool.shale("clone", "new@one", "new-clone")
    doors.server.share("new-clone")
    t.equal([line["share"] for line in doors.check()["exports"]], ["home", "new"], "shares with doors beside a clone")
    t.equal(doors.status(doors.url().replace("/home/", "/new-clone/")), "403", "a clone of a share with a door")
    doors.pool.shale("destroy", "-r", "new")
    doors.pool.shale("destroy", "new-clone")

    # Ours killed: the mount and its servers stay, and a request waits for the next one.
    pid = doors.pid("apache")
    doors.server.kill(leaves_mount=True)
    waiting = subprocess.Popen(["curl", "-sf", "-o", t.dir / "late", doors.url("real")])
    t.defer(waiting.kill)
    doors.serve()
    t.equal(waiting.wait(120), 0, "a request that was made while no server was there")
    t.equal(digest(t.dir / "late"), digest(source), "its answer")
    t.equal(doors.pid("apache"), pid, "the server's process after ours was killed")

    # Names change, shares come and go.
    doors.pool.shale("rename", "home", "house")
    t.equal((doors.status(doors.url("real")), doors.status(doors.url("real").replace("/home/", "/house/"))), ("403", "200"), "old and new name: what no share has is denied")
    doors.pool.shale("rename", "house", "home")
    doors.set("http=off")
    t.expect("apache" not in doors.pids(), "the server is there, and has nothing to serve")
    doors.pool.shale("create", "vm", "--size", "1G")
    said = doors.pool.shale("set", "vm", "http=ro", status=EXIT["usage"]).stderr
    t.expect("is a volume" in said, f"what set says of a volume: {said}")
    t.expect("every client could write" in doors.set("http=rw", status=EXIT["usage"]).stderr, "http=rw for all is not refused with a reason")
    # Inherited, as other properties are.
    doors.set("http=")
    doors.pool.shale("set", "http=ro")
    t.equal(doors.status(doors.url("real")), "200", "the share with the pool's property")
    pid = doors.pid("apache")
    doors.server.stop()
    wait_gone(t, pid)
    doors.pool.check()


@contextlib.contextmanager
def silent(port):
    """A program, this one, that holds a port and accepts connections without a word."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(50)
        yield f"process {os.getpid()} ("


@test(seconds_max=600)
def door_port_held(t):
    """a port that a silent program holds: set is refused with its holder, and the server starts, answers, stops and serves once it is free"""
    if not shutil.which("apache2", path=f"{os.environ['PATH']}:/usr/sbin"):
        pytest.skip("apache2 is not installed (tools/setup test installs apache2-bin)")
    doors = Doors(t)
    port = doors.ports["http-port"]
    os.chmod(doors.home, OPEN)
    with silent(port) as holder:
        said = doors.set("http=ro", status=EXIT["in-use"]).stderr
        t.expect(f"port {port} is held by {holder}" in said, f"what set says of a port that is held: {said}")
        t.equal(json.loads(doors.pool.shale("exports", "--json").stdout)["exports"], [], "open doors after a set that was refused")
        # Set while nothing is served, it is a fault of the server that starts, which the log names.
        doors.server.stop()
        doors.set("http=ro")
        doors.serve()
        (line,) = doors.check(status=EXIT["unsupported"])["exports"]
        t.expect(line["share"] == "home" and holder in line["fault"], f"the fault of the share: {line}")
        doors.pool.shale("snapshot", "home@one")
        doors.server.stop()
        doors.serve()
    t.wait_for(lambda: doors.status(doors.url()) == "200", "HTTP once its port is free")
    t.equal(json.loads(doors.pool.shale("exports", "--json").stdout)["exports"][0]["fault"], None, "the fault then")

    # Networks that loopback does not reach, and doors that nothing serves.
    said = doors.set("http=ro@10.0.0.0/8,ro@127.0.0.0/8").stderr
    t.expect("10.0.0.0/8 is not reached" in said and "listen on 127.0.0.1 only" in said, f"what set says of a network: {said}")
    noted = [line["found"] for line in doors.check()["checks"] if line["warns"]]
    t.expect(len(noted) == 1 and "10.0.0.0/8 is not reached" in noted[0], f"notes: {noted}")
    t.equal(doors.set("http=ro").stderr, "", "what set says of all clients")
    doors.server.stop()
    doors.server = doors.pool.serve(shares=True)
    t.expect("nothing serves smb" in doors.set("smb=rw").stderr, "set smb=rw says nothing of a server without --exports")
    t.equal(doors.set("smb=off").stderr, "", "what set says of a door that is shut")
    doors.server.stop()
    doors.pool.check()


# A user for each test, so that several can run at a time.
USER, PASSWORD = f"shale-e2e-{os.getpid()}", "only-on-loopback"


class Clients:
    """A client of each door, on a share `home` that a user of this machine may write."""

    def __init__(self, t, doors):
        self.t, self.doors = t, doors
        t.run("useradd", "--no-create-home", "--home-dir", "/", "--shell", "/bin/sh", USER)
        t.defer(t.run, "userdel", USER, status=None)
        t.run("chpasswd", stdin=f"{USER}:{PASSWORD}\n")
        os.chmod(doors.home, 0o1777)

    def let_in_by_smb(self):
        """Gives the user a password with the SMB server."""
        self.t.run("smbpasswd", "-c", self.doors.dir / "smb.conf", "-a", "-s", USER, stdin=f"{PASSWORD}\n{PASSWORD}\n")

    def nfs(self, name=""):
        """The address of a file for the tools of libnfs."""
        ports = self.doors.ports
        return f"nfs://127.0.0.1/home/{name}?nfsport={ports['nfs-port']}&mountport={ports['mount-port']}&version=3"

    def ftp(self, name=""):
        """The address of a file by FTP."""
        return f"ftp://{USER}:{PASSWORD}@127.0.0.1:{self.doors.ports['ftp-port']}/{name}"

    def smb(self, command, status=0):
        """Runs a command of smbclient."""
        return self.t.run("smbclient", "//127.0.0.1/home", "-p", self.doors.ports["smb-port"], "-U", f"{USER}%{PASSWORD}", "-c", command, status=status)

    def listed(self, share, version=3):
        """What a listing of a share by NFS shows; none if it is refused."""
        ports = self.doors.ports
        address = f"nfs://127.0.0.1/{share}?nfsport={ports['nfs-port']}&mountport={ports['mount-port']}&version={version}"
        done = self.t.run("nfs-ls", address, status=None)
        return sorted(line.split()[-1] for line in done.stdout.splitlines()) if done.returncode == 0 else None

    def smb_guest(self, command):
        """Runs a command of smbclient without a password; what it says."""
        done = self.t.run("smbclient", "//127.0.0.1/home", "-p", self.doors.ports["smb-port"], "-N", "-c", command, status=None)
        return done.stdout + done.stderr

    def read(self, door, name):
        """A file as a door's client reads it."""
        got = self.t.dir / "got"
        got.unlink(missing_ok=True)
        if door == "nfs":
            return self.t.run("nfs-cat", self.nfs(name), text=False, quiet=True).stdout
        if door == "smb":
            self.smb(f"get {name} {got}")
        elif door == "http":
            self.t.run("curl", "-sf", "-o", got, self.doors.url(name))
        elif door == "ftp":
            self.t.run("curl", "-sf", "-o", got, self.ftp(name))
        else:
            return (self.doors.home / name).read_bytes()
        return got.read_bytes() if got.exists() else b""

    def write(self, door, name, content, status=0):
        """Writes a file as a door's client."""
        put = self.t.dir / "put"
        put.write_bytes(content)
        if door == "nfs":
            # It makes a file, and writes over none.
            if status == 0:
                (self.doors.home / name).unlink(missing_ok=True)
            self.t.run("nfs-cp", put, self.nfs(name), status=status)
            if status == 0:
                # As libnfs makes it, only its owner reads it.
                os.chmod(self.doors.home / name, 0o666)
        elif door == "smb":
            self.smb(f"put {put} {name}", status=status)
        elif door == "http":
            self.t.run("curl", "-sf", "-T", put, self.doors.url(name), status=status)
        elif door == "ftp":
            self.t.run("curl", "-sf", "-T", put, self.ftp(name), status=status)
        else:
            (self.doors.home / name).write_bytes(content)


ALL = ["local", "nfs", "smb", "http", "ftp"]
OPEN_DOORS = {"nfs": "rw@127.0.0.0/8,no_root_squash", "smb": "rw", "http": "rw@127.0.0.0/8", "ftp": "rw"}


def compound(t, port, minor):
    """The status of an empty COMPOUND of NFSv4 with a minor version."""
    words = [1, 0, 2, 100003, 4, 1, 0, 0, 0, 0, 0, minor, 0]
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(struct.pack(f">I{len(words)}I", 0x80000000 | 4 * len(words), *words))
        head = struct.unpack(">I", connection.recv(4, socket.MSG_WAITALL))[0] & 0x7FFFFFFF
        answer = struct.unpack(f">{head // 4}I", connection.recv(head, socket.MSG_WAITALL))
    t.equal(answer[1:6], (1, 0, 0, 0, 0), "head of the answer")
    return answer[6]


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=1800)
    def e2e_doors(t):
        """what is written through NFS, SMB, HTTP, FTP or the mount is read at once through every other; rights change while clients work"""
        doors = Doors(t, **OPEN_DOORS)
        clients = Clients(t, doors)
        clients.let_in_by_smb()
        source = data.mixed_file(t.dir / "real", 3 << 20).read_bytes()
        for size in (5, 3 << 20, 70_000, 0, 1 << 20):
            for writer in ALL:
                clients.write(writer, f"by-{writer}", source[:size])
                for reader in ALL:
                    t.expect(clients.read(reader, f"by-{writer}") == source[:size], f"{reader} does not read the {size} bytes that {writer} wrote")
        # Through the mount, behind the back of all.
        (doors.home / "log").write_bytes(b"one\n")
        t.equal([clients.read(door, "log") for door in ALL], [b"one\n"] * 5, "a new file")
        with open(doors.home / "log", "ab") as file:
            file.write(b"two\n")
        t.equal([clients.read(door, "log") for door in ALL], [b"one\ntwo\n"] * 5, "a file that has grown")
        (doors.home / "other").write_bytes(b"another\n")
        os.rename(doors.home / "other", doors.home / "log")
        t.equal([clients.read(door, "log") for door in ALL], [b"another\n"] * 5, "a file that another one replaced")
        t.equal(compound(t, doors.ports["nfs-port"], 1), 0, "status of NFS 4.1")
        t.equal(compound(t, doors.ports["nfs-port"], 2), 10021, "status of NFS 4.2, whose READ_PLUS gives zeroes")
        found = doors.check()
        t.expect(all(line["good"] for line in found["checks"]), f"what --check found: {found['checks']}")

        pids = doors.pids()
        doors.set("nfs=ro@127.0.0.0/8", "smb=ro", "http=ro", "ftp=ro,login")
        for door in ALL[1:]:
            clients.write(door, f"by-{door}", b"no", status=None)
            t.equal(clients.read(door, f"by-{door}"), source[:1 << 20], f"a file after a write by {door}, which may only read")
        clients.write("nfs", "new-by-nfs", b"no", status=None)
        t.expect(not (doors.home / "new-by-nfs").exists(), "a file that NFS made, which may only read")
        doors.set(*(f"{door}={value}" for door, value in OPEN_DOORS.items()))
        for door in ALL[1:]:
            clients.write(door, f"by-{door}", b"yes")
            t.equal(clients.read(door, f"by-{door}"), b"yes", f"a file after a write by {door}, which may write again")
        t.equal(doors.pids(), pids, "processes of the servers after changes")

        # Rights that are taken away end the sessions that have them.
        with doors.ftp_session() as session:
            session.voidcmd("NOOP")
            doors.set("ftp=ro,login")
            try:
                session.voidcmd("NOOP")
                t.fail("a session by FTP goes on with the rights that it had")
            except (EOFError, OSError, ftplib.error_temp):
                pass
        with doors.ftp_session() as session:
            for name in [".shale", "./.shale", ".shale/snapshots", "../.shale/snapshots", "/.shale/"]:
                try:
                    session.cwd(name)
                    t.fail(f"FTP shows {name}")
                except ftplib.error_perm:
                    pass
            doors.set("ftp=off")
            try:
                session.voidcmd("NOOP")
                t.fail("a session by FTP outlives its door")
            except (EOFError, OSError, ftplib.error_temp):
                pass
        doors.set(f"ftp={OPEN_DOORS['ftp']}")
        doors.set("smb=ro,guest")
        for name in [".shale", ".shale/snapshots"]:
            said = clients.smb_guest(f'cd "{name}"; ls')
            t.expect("NT_STATUS_OBJECT_" in said, f"SMB shows {name} to guests: {said}")
        t.expect("by-smb" in clients.smb_guest("ls"), "a guest sees no files")
        doors.set("smb=rw,user=no-such-user")
        wrong = [line for line in doors.check(status=EXIT["unsupported"])["checks"] if not line["good"]]
        t.expect(any("no-such-user" in line["what"] for line in wrong), f"what --check says of a user that is not there: {wrong}")
        doors.set(f"smb={OPEN_DOORS['smb']}")

        # In a share that gives it out already, a share is a directory, and no second name or port.
        pool = doors.pool
        pool.shale("create", "home/inner", "--share")
        (doors.home / "inner" / "file").write_text("within")
        os.chmod(doors.home / "inner", 0o777)
        os.chmod(doors.home / "inner" / "file", 0o644)
        t.equal([clients.read(door, "inner/file") for door in ["smb", "http", "ftp"]], [b"within"] * 3, "a share within a share")
        found = doors.check()
        t.expect(all(line["good"] for line in found["checks"]), f"what --check found: {found['checks']}")
        t.equal([line["door"] for line in found["exports"] if line["share"] == "home/inner"], ["nfs"], "doors of a share within a share")
        pool.shale("destroy", "home/inner")

        pool.shale("create", "more", "--share", "-o", "nfs=ro", "-o", "http=ro")
        t.equal(doors.status(doors.url().replace("/home/", "/more/")), "200", "a share that was created with open doors")
        t.run("nfs-ls", clients.nfs().replace("/home/", "/more/"))
        pool.shale("snapshot", "home@one")
        clients.write("local", "log", b"after\n")
        pool.shale("rollback", "home@one")
        t.equal([clients.read(door, "log") for door in ALL], [b"another\n"] * 5, "a file after a rollback")
        pool.shale("destroy", "more")
        t.equal(doors.status(doors.url().replace("/home/", "/more/")), "403", "a share that was destroyed: what no share has is denied")
        doors.server.stop()
        pool.check()

    @test(seconds_max=1800)
    def e2e_doors_nested(t):
        """shares in shares by NFS: rolled back, renamed, shut and destroyed without a client in the way, outer and inner ones, and by the same Ganesha"""
        doors = Doors(t, nfs="on")
        clients, pool = Clients(t, doors), doors.pool
        for name in ["p", "p/q", "p/q/r"]:
            pool.shale("create", name, "--share")
        for name in ["p", "p/q", "p/q/r"]:
            (doors.server.share(name) / f"in-{name.replace('/', '-')}").write_text(name)
        pid = doors.pid("ganesha")

        def expect_exports(*shares):
            found = doors.check(status=None)
            wrong = [line for line in found["checks"] if not line["good"]] + [line for line in found["exports"] if line["fault"]]
            t.equal(wrong, [], "faults")
            t.equal(sorted(line["share"] for line in found["exports"]), sorted(shares), "exports")
            for share in shares:
                for version in (3, 4):
                    # A directory that another share is mounted at is there as well.
                    seen = clients.listed(share, version)
                    t.expect(seen is not None and set(seen) >= {name for name in os.listdir(doors.server.shares_dir / share) if name.startswith("in-")},
                             f"NFS {version} lists {seen} in {share}")
            t.equal(doors.pid("ganesha"), pid, "the NFS server's process")

        pool.shale("set", "p", "nfs=on")
        expect_exports("home", "p", "p/q", "p/q/r")
        for name in ["p", "p/q", "p/q/r"]:
            pool.shale("snapshot", f"{name}@1")
        for name in ["p", "p/q", "p/q/r"]:
            pool.shale("rollback", f"{name}@1")
            expect_exports("home", "p", "p/q", "p/q/r")
        pool.shale("rename", "p", "pp")
        expect_exports("home", "pp", "pp/q", "pp/q/r")
        pool.shale("rename", "pp", "p")
        pool.shale("rename", "p/q", "p/o")
        expect_exports("home", "p", "p/o", "p/o/r")
        pool.shale("rename", "p/o", "p/q")

        # The outer one shut, and the inner ones open: and opened again above them.
        pool.shale("set", "p/q", "nfs=ro")
        pool.shale("set", "p", "nfs=off")
        expect_exports("home", "p/q", "p/q/r")
        pool.shale("rollback", "p@1")
        pool.shale("rollback", "p/q@1")
        pool.shale("set", "p", "nfs=rw")
        expect_exports("home", "p", "p/q", "p/q/r")
        # What the server lists of the outer one then, with a mount in it that it may not show, is its own affair.
        pool.shale("set", "p/q", "nfs=off")
        t.equal([line["share"] for line in doors.check()["exports"]], ["home", "p"], "exports without the inner ones")
        pool.shale("rollback", "p/q@1")
        pool.shale("set", "p/q", "nfs=")
        pool.shale("set", "p", "nfs=off")
        expect_exports("home")
        pool.shale("set", "p", "nfs=on")
        pool.shale("destroy", "-r", "p/q")
        expect_exports("home", "p")
        pool.shale("create", "p/s", "--share")
        doors.server.share("p/s")
        expect_exports("home", "p", "p/s")
        pool.shale("destroy", "-r", "p")
        expect_exports("home")
        doors.server.stop()
        t.expect("FATAL" not in (doors.dir / "logs" / "ganesha.log").read_text(), "the NFS server ended on a fault")
        pool.check()

    @test(seconds_max=1800)
    def e2e_doors_checked(t):
        """exports --check names users without an SMB password, shares of root, two shares on one port of FTP, and what rpcbind does not know"""
        doors = Doors(t)
        pool = doors.pool
        t.run("useradd", "--no-create-home", "--home-dir", "/", "--shell", "/bin/sh", USER)
        t.defer(t.run, "userdel", USER, status=None)

        def lines(kind, status):
            found = [line for line in doors.check(status=status)["checks"] if not line["good"] or line["warns"]]
            return {line["what"]: line["found"] for line in found if line["warns"] == (kind == "noted")}

        doors.set(f"smb=rw,user={USER}")
        bad = lines("bad", EXIT["unsupported"])
        t.expect(list(bad) == [f"SMB password of {USER} (share home)"] and "smbpasswd" in bad[f"SMB password of {USER} (share home)"], f"a user without a password: {bad}")
        t.run("smbpasswd", "-c", doors.dir / "smb.conf", "-a", "-s", USER, stdin=f"{PASSWORD}\n{PASSWORD}\n")
        noted = lines("noted", 0)
        t.expect(list(noted) == ["writing (smb of share home)"] and USER in noted["writing (smb of share home)"], f"a share of root: {noted}")
        shutil.chown(doors.home, USER)
        t.equal(lines("noted", 0), {}, "notes on a share of the user's")

        doors.set("smb=on,guest")
        t.expect("guest ok = yes" in (doors.dir / "smb.conf").read_text(), "smb=on,guest lets no guests in")
        doors.set("smb=off")
        pool.shale("create", "second", "--share")
        doors.server.share("second")
        doors.set("ftp=on")
        said = pool.shale("set", "second", "ftp=on", status=EXIT["io"]).stderr
        t.expect("'second' is not served" in said and "belongs to share 'home'" in said, f"what set says of a port that another share has: {said}")
        found = doors.check(status=EXIT["unsupported"])
        t.equal([(line["share"], line["address"] is not None) for line in found["exports"]], [("home", True), ("second", False)], "addresses")
        bad = {line["what"]: line["found"] for line in found["checks"] if not line["good"]}
        t.expect(list(bad) == ["ftp of share second"] and "belongs to share home" in bad["ftp of share second"], f"two shares on one port: {bad}")
        (other,) = free_ports(1)
        pool.shale("set", "second", f"ftp=on,port={other}")
        t.expect("share second" in ftplib.FTP().connect("127.0.0.1", other, timeout=60), "the second share greets at its own port")
        doors.check()

        pool.shale("set", "second", "ftp=off")
        doors.set("ftp=off", "nfs=ro")
        noted = [line["found"] for line in doors.check()["checks"] if line["what"] == "NFS 3"]
        # Which of both depends on the machine's rpcbind.
        t.expect(len(noted) == 1 and ("rpcbind returns" in noted[0] or f"mountport={doors.ports['mount-port']}" in noted[0]), f"what is said of NFS 3: {noted}")
        doors.server.stop()
        pool.check()

    @test(seconds_max=1800)
    def e2e_doors_silent(t):
        """ftp set to a port of a silent program, or of another door: refused with the holder, and served at the old port, by every door, over restarts"""
        doors = Doors(t)
        doors.set("smb=rw,user=root")
        doors.set("ftp=ro,login")
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(50)
            for port, holder in [(listener.getsockname()[1], f"process {os.getpid()} ("), (doors.ports["smb-port"], f"process {doors.pid('smbd')} (smbd)")]:
                said = doors.set(f"ftp=ro,login,port={port}", status=EXIT["in-use"]).stderr
                t.expect(f"port {port} is held by {holder}" in said, f"what set says of a port that is held: {said}")
                doors.pool.shale("exports")
            pid = doors.pid("ftp-home")
            doors.server.kill(leaves_mount=True)
            # As a command without a server sets it: the server that goes on with the processes does not end this one for it.
            doors.pool.shale("set", "home", f"ftp=ro,login,port={listener.getsockname()[1]}")
            doors.serve()
            (fault,) = [line["fault"] for line in doors.check(status=None)["exports"] if line["door"] == "ftp"]
            t.expect(f"held by process {os.getpid()} (" in fault, f"the fault of the share: {fault}")
            t.equal(doors.pid("ftp-home"), pid, "the FTP server's process")
            t.expect("share home" in ftplib.FTP().connect("127.0.0.1", doors.ports["ftp-port"], timeout=60), "the old port does not greet")
            doors.server.stop()
            wait_gone(t, pid)
            doors.serve()
            doors.server.stop()
        doors.pool.check()

    @test(seconds_max=1800)
    def e2e_doors_moments(t):
        """SMB lists a share's snapshots by the times at which they were taken, a user's own included, and users cannot take the names of those by the clock"""
        doors = Doors(t, smb="rw")
        clients = Clients(t, doors)
        clients.let_in_by_smb()
        clients.write("smb", "file", b"one")
        said = doors.pool.shale("snapshot", "home@auto-2020-01-01T0000Z", status=EXIT["usage"]).stderr
        t.expect("reserved for scheduled snapshots" in said, f"what snapshot says of a name of the server's: {said}")
        doors.pool.shale("snapshot", "home@monday")
        (made,) = json.loads(doors.pool.shale("list", "-t", "snapshot", "--json").stdout)[0]["snapshots"]
        moment = time.strftime("@GMT-%Y.%m.%d-%H.%M.%S", time.gmtime(made["created_unix_s"]))
        clients.write("smb", "file", b"two")
        t.wait_for(lambda: moment in clients.smb("allinfo file").stdout, f"the earlier version {moment}")
        got = t.dir / "earlier"
        clients.smb(f"get {moment}/file {got}")
        t.equal((got.read_bytes(), clients.read("smb", "file")), (b"one", b"two"), "the earlier version and the file")
        doors.pool.shale("destroy", "home@monday")
        t.wait_for(lambda: "@GMT" not in clients.smb("allinfo file").stdout, "no earlier version")
        doors.server.stop()
        doors.pool.check()

    @test(seconds_max=1800)
    def e2e_doors_killed(t):
        """kill -9 of each server and of ours between requests: all come again, NFS handles stay good, and nothing is lost"""
        doors = Doors(t, **OPEN_DOORS)
        clients = Clients(t, doors)
        clients.let_in_by_smb()
        source = data.mixed_file(t.dir / "real", 1 << 20).read_bytes()
        for door in ALL[1:]:
            clients.write(door, f"by-{door}", source)
        names = {"nfs": "ganesha", "smb": "smbd", "http": "apache", "ftp": "ftp-home"}
        for door, name in names.items():
            pid = doors.pid(name)
            os.killpg(pid, signal.SIGKILL)
            wait_gone(t, pid)
            t.wait_for(lambda name=name, pid=pid: doors.pids().get(name, pid) != pid, f"another process of {name}")
            t.wait_for(lambda: all(line["good"] for line in json.loads(
                doors.pool.shale("exports", "--check", "--json", status=None).stdout)["checks"]), f"{door} after kill -9")
            t.expect(clients.read(door, f"by-{door}") == source, f"{door} after kill -9 of its server")
        pids = doors.pids()
        device = os.stat(doors.home).st_dev
        for turn in range(3):
            doors.server.kill(leaves_mount=True)
            waiting = subprocess.Popen(["nfs-cat", clients.nfs("by-nfs")], stdout=subprocess.PIPE)
            t.defer(waiting.kill)
            doors.serve()
            t.expect(waiting.communicate(timeout=120)[0] == source, "a read by NFS that waited for our server")
            for door in ALL[1:]:
                t.expect(clients.read(door, f"by-{door}") == source, f"{door} after kill -9 of our server")
                clients.write(door, f"turn-{turn}-{door}", source[:70_000])
        t.equal(doors.pids(), pids, "processes of the servers after ours was killed")
        t.equal(os.stat(doors.home).st_dev, device, "the device number of the mount")
        for turn in range(3):
            for door in ALL[1:]:
                t.expect(clients.read("local", f"turn-{turn}-{door}") == source[:70_000], f"what {door} wrote in turn {turn}")
        doors.server.stop()
        doors.pool.check()

    @test(seconds_max=1800)
    def e2e_doors_wrong(t):
        """a wrong configuration of each server is told, and takes nothing away; a port that is taken is named"""
        doors = Doors(t, **OPEN_DOORS)
        clients = Clients(t, doors)
        clients.let_in_by_smb()
        for door in ALL[1:]:
            clients.write(door, f"by-{door}", door.encode())
        pids = doors.pids()
        wrong = {"smb": "smb.local.conf", "http": "httpd.local.conf", "ftp": "vsftpd.local.conf"}
        changed = {"smb": "rw,user=nobody", "http": "ro", "ftp": "ro,login"}
        for door, file in wrong.items():
            (doors.dir / file).write_text("no_such_word = 1\n" if door != "ftp" else "no_such_word=1\n")
            said = doors.set(f"{door}={changed[door]}", status=EXIT["io"]).stderr
            t.expect("not in force" in said, f"what set says of a wrong {file}: {said}")
            t.equal(clients.read(door, f"by-{door}"), door.encode(), f"a file by {door} with a wrong configuration beside it")
            clients.write(door, f"by-{door}", door.encode() * 2)
            (doors.dir / file).unlink()
            doors.set(f"{door}={OPEN_DOORS[door]}")
            t.equal(clients.read(door, f"by-{door}"), door.encode() * 2, f"a file by {door} after it was mended")
        t.equal(doors.pids()["ganesha"], pids["ganesha"], "the NFS server")
        # Read by Ganesha when it starts: it is served without what is wrong.
        (doors.dir / "ganesha.local.conf").write_text("NFSv4 { this is no configuration\n")
        os.kill(pids["ganesha"], signal.SIGKILL)
        wait_gone(t, pids["ganesha"])
        t.wait_for(lambda: doors.pids().get("ganesha", pids["ganesha"]) != pids["ganesha"], "another NFS server")
        t.wait_for(lambda: "without ganesha.local.conf" in (doors.check(status=None)["exports"][0]["fault"] or ""), "a word on ganesha.local.conf")
        t.equal(clients.read("nfs", "by-nfs"), b"nfs", "a file by NFS without the wrong part")
        doors.server.stop()

        with socket.socket() as taken:
            # Connections that were there until now still count for a while.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", doors.ports["http-port"]))
            taken.listen()
            doors.serve()
            bad = [line for line in doors.check(status=EXIT["unsupported"])["checks"] if not line["good"]]
            t.expect(any(f"port {doors.ports['http-port']}" in line["what"] and "taken" in line["found"] for line in bad), f"a port that is taken: {bad}")
            t.equal(clients.read("smb", "by-smb"), b"smbsmb", "a file by another door meanwhile")
        t.wait_for(lambda: doors.status(doors.url("by-http")) == "200", "HTTP once its port is free")
        doors.server.stop()
        doors.pool.check()
