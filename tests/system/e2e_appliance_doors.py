"""Clients of NFS, SMB, HTTP and FTP, and a program of this machine, at once on one share: each is counted at its own door, in the history and
in the metrics. Only in `make e2e`, which sets SHALE_E2E."""

import json
import os
import threading

from harness import data, test

from .door_clients import require
from .exports import OPEN_DOORS, Clients, Doors
from .http import Web, samples

MIB = 1 << 20
FILE_BYTES = 4 * MIB
# Files that each door's client writes, and reads: no two sums are alike, so that none is taken for another.
WRITES = {"share": 1, "nfs": 2, "smb": 3, "http": 4, "ftp": 5}
READS = {"share": 6, "nfs": 10, "smb": 9, "http": 8, "ftp": 7}


class WithHttp(Doors):
    """Doors of a share, with metrics and history."""

    def serve(self):
        self.server = self.pool.serve(shares=True, exports=self.dir, keeps=True, words=["--http", "127.0.0.1:0"])
        self.home = self.server.share("home")


def put(clients, door, source, name):
    """Writes a file as the client of a door."""
    t, doors = clients.t, clients.doors
    if door == "share":
        (doors.home / name).write_bytes(source.read_bytes())
    elif door == "smb":
        clients.smb(f"put {source} {name}")
    else:
        words = {"nfs": ["nfs-cp", source, clients.nfs(name)], "http": ["curl", "-sf", "-T", source, doors.url(name)], "ftp": ["curl", "-sf", "-T", source, clients.ftp(name)]}
        t.run(*words[door])


def got(clients, door, name):
    """A file as the client of a door reads it."""
    t, doors, place = clients.t, clients.doors, clients.t.dir / f"got-{door}"
    if door == "share":
        return (doors.home / name).read_bytes()
    if door == "nfs":
        return t.run("nfs-cat", clients.nfs(name), text=False, quiet=True).stdout
    if door == "smb":
        clients.smb(f"get {name} {place}")
    else:
        t.run("curl", "-sf", "-o", place, doors.url(name) if door == "http" else clients.ftp(name))
    return place.read_bytes()


def at_once(t, work, doors):
    """Does the work of all doors at one time."""
    failures, begin = [], threading.Barrier(len(doors))

    def of(door):
        try:
            begin.wait(60)
            work(door)
        except Exception as error:
            failures.append(f"{door}: {error!r}")

    threads = [threading.Thread(target=of, args=(door,)) for door in doors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    t.equal(failures, [], "failures of clients")


def in_history(pool, operation):
    """{door: bytes} of the share, as `shale stats` has them."""
    words = ["bytes", "--by", "door", "--only", "object=home", "--only", f"operation={operation}", "--last", "1h", "--json"]
    series = json.loads(pool.shale("stats", *words, quiet=True).stdout)["series"]
    # The tree below a share counts all of it once more.
    return {line["name"]: line["total"] for line in series if line["name"] != "tree"}


def in_metrics(web, operation):
    """The same of /metrics."""
    values = samples(web.ask("GET", "/metrics", api=False)[2])
    names = {door: f'shale_operation_bytes_total{{door="{door}",object="home",operation="{operation}"}}' for door in WRITES}
    return {door: float(values[name]) for door, name in names.items() if name in values}


def is_near(found, expected):
    """Whether each door has what its clients did, within a hundredth."""
    return found.keys() == expected.keys() and all(abs(found[door] - expected[door]) <= expected[door] / 100 for door in expected)


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=900)
    def e2e_appliance_doors(t):
        """clients of NFS, SMB, HTTP, FTP and a program write and read one share at once: stats by door and the metrics have the bytes of each within 1 %"""
        require("nfs-cp", "smbclient", "vsftpd", "apache2")
        doors = WithHttp(t, **OPEN_DOORS)
        clients, web = Clients(t, doors), Web(doors.server)
        clients.let_in_by_smb()
        sources = []
        for number in range(max(WRITES.values())):
            sources.append(data.random_file(t.dir / f"source-{number}", FILE_BYTES, seed=number))

        def write(door):
            for number in range(WRITES[door]):
                put(clients, door, sources[number], f"{door}-{number}")

        # For the log: the state of the history, its marks and its seconds.
        t.defer(doors.pool.shale, "stats", "--json", status=None)
        t.defer(doors.pool.shale, "stats", "--marks", status=None)
        t.defer(doors.pool.shale, "stats", "bytes", "--by", "door", "--only", "operation=write", "--last", "5m", "--step", "1s", "--json", status=None)
        at_once(t, write, WRITES)
        for door, count in WRITES.items():
            for number in range(count):
                t.equal((doors.home / f"{door}-{number}").stat().st_size, FILE_BYTES, f"size of what {door} wrote")
        written = {door: count * FILE_BYTES for door, count in WRITES.items()}
        for where, look in (("metrics", lambda: in_metrics(web, "write")), ("history", lambda: in_history(doors.pool, "write"))):
            t.wait_for(lambda look=look: is_near(look(), written), f"{written} written, in the {where}, which has {look()},")

        # Files of all doors, each read once: what the kernel has of a file is not asked of the server again.
        files = [(f"{door}-{number}", number) for door, count in WRITES.items() for number in range(count)]
        extra = sum(READS.values()) - len(files)
        for number in range(extra):
            put(clients, "share", sources[number % len(sources)], f"extra-{number}")
            files.append((f"extra-{number}", number % len(sources)))
        for name, _ in files:
            os.chmod(doors.home / name, 0o666)
        written["share"] += extra * FILE_BYTES
        # Mixed, so that each door reads what others wrote.
        share_of = {door: [files.pop(0 if place % 2 else -1) for place in range(count)] for door, count in READS.items()}
        t.drop_page_cache()

        def read(door):
            for name, number in share_of[door]:
                t.expect(got(clients, door, name) == sources[number].read_bytes(), f"{door} does not read {name} as it was written")

        at_once(t, read, READS)
        done = {door: count * FILE_BYTES for door, count in READS.items()}
        for operation, expected in (("read", done), ("write", written)):
            for where, look in (("metrics", lambda o=operation: in_metrics(web, o)), ("history", lambda o=operation: in_history(doors.pool, o))):
                t.wait_for(lambda look=look, expected=expected: is_near(look(), expected), f"{expected} by operation {operation}, in the {where}, which has {look()},")
        errors = json.loads(doors.pool.shale("stats", "errors", "--by", "door", "--last", "1h", "--json", quiet=True).stdout)["series"]
        t.equal([line for line in errors if line["total"]], [], "failed operations")
        off = {f"{door} {operation}": 100 * in_history(doors.pool, operation)[door] / expected[door] - 100 for operation, expected in (("read", done), ("write", written)) for door in expected}
        t.note("bytes in the history beyond what the clients did, in percent: " + ", ".join(f"{what} {percent:.2f}" for what, percent in off.items()))
        doors.server.stop()
        doors.pool.check()
