"""A share whose tree cannot be opened: the server serves all else, and says which share it does not serve, and why."""

import json
import os

import nbd

from harness import Pool, test
from harness.pool import EXIT

EXTENT = 1 << 20
SECTOR = 512


def ruin(pool):
    """Flips a bit in each sector behind the first extent that holds something, but for the copy of the superblock at the end."""
    path = pool.path / "data"
    with open(path, "r+b") as file:
        for at in range(EXTENT, path.stat().st_size - EXTENT, SECTOR):
            file.seek(at)
            sector = bytearray(file.read(SECTOR))
            if any(sector):
                sector[200] ^= 0x10
                file.seek(at)
                file.write(sector)


@test()
def share_that_cannot_be_opened(t):
    """a server whose only share cannot be opened starts, serves its volumes, and status, list and exit codes say what is wrong; a share made since is served"""
    pool = Pool(t, capacity="64M")
    pool.create("vol", "1M")
    source = t.dir / "source"
    source.mkdir()
    for number in range(200):
        (source / f"file{number}").write_bytes(os.urandom(300))
    pool.shale("import", "home", source, "--share", "-o", "compression=off")
    ruin(pool)
    refused = pool.shale("export", "home", t.dir / "out", status=EXIT["io"]).stderr
    t.expect("its tree cannot be opened ('shale check POOL' reports" in refused, f"why nothing is exported, and what to do: {refused}")
    server = pool.serve(shares=True)
    t.expect(not os.path.ismount(server.shares_dir / "home"), "the share is mounted")

    handle = nbd.NBD()
    handle.connect_uri(server.uri("vol"))
    written = os.urandom(4096)
    handle.pwrite(written, 0)
    handle.flush()
    t.equal(bytes(handle.pread(4096, 0)), written, "what the volume holds")

    status = json.loads(pool.shale("status", "--json").stdout)
    [unserved] = status["unserved_shares"]
    t.equal(unserved["share"], "home", "the share that is not served")
    t.expect("its tree cannot be opened" in unserved["why"], f"why it is not served: {unserved}")
    t.expect(status["health"] in ("damaged", "share-unserved"), f"health: {status['health']}")
    for command in ("status", "list"):
        said = pool.shale(command).stdout
        line = next((line for line in said.splitlines() if "NOT SERVED" in line and "its tree cannot be opened" in line), None)
        t.expect(line and "'home'" in line, f"{command} does not tell of it: {said}")
    listed = {volume["name"]: volume["unserved"] for volume in json.loads(pool.shale("list", "--json").stdout)}
    t.expect(listed["vol"] is None and "its tree cannot be opened" in listed["home"], f"the list: {listed}")

    pool.shale("create", "new", "--share")
    (server.share("new") / "file").write_bytes(written)
    t.equal(len(json.loads(pool.shale("status", "--json").stdout)["unserved_shares"]), 1, "shares that are not served")
    handle.shutdown()
    pool.shale("destroy", "home")
    t.equal(json.loads(pool.shale("status", "--json").stdout)["unserved_shares"], [], "shares that are not served, when it is gone")
    server.stop()
    # A place where nothing can be mounted is a mistake in the command that starts the server.
    pool.shale("destroy", "new")
    pool.shale("create", "folder/in", "--share", "-p")
    (t.dir / "taken").mkdir()
    (t.dir / "taken" / "folder").write_bytes(b"")
    refused = pool.shale("serve", "--shares", t.dir / "taken", status=EXIT["io"])
    t.expect("cannot be made" in refused.stderr, f"why not: {refused.stderr}")
