"""A flush is a flush: the devices below a pool are told. Kills of the server cannot notice if they are not: the kernel keeps what was written."""

import os
import shutil
from pathlib import Path

import nbd

from harness import Pool, test

BLOCK = 4096
# Of each kind of request: none may be let out, and the file systems below flush at most once of their own accord.
TIMES = 5


class Below:
    """A device below a part of the pool, and the flushes that it got, as the kernel counts them (Documentation/block/stat.rst, field 16)."""

    def __init__(self, t, name, size):
        backing = t.dir / f"{name}.img"
        with open(backing, "wb") as file:
            file.truncate(size)
        self.t, self.name, self.device = t, name, t.loop(backing)

    def mount(self, target):
        """An ext4 on it, mounted somewhere, that commits its journal only for those who sync."""
        self.t.run("mkfs.ext4", "-q", "-F", self.device)
        return self.t.mount(self.device, target, "-o", "commit=600,lazytime")

    def flushes(self):
        """So far."""
        return int(Path(f"/sys/block/{Path(self.device).name}/stat").read_text().split()[15])


def flushed(t, what, action, *devices):
    """Does it several times. Each time, each of the devices must have got a flush between the request and its answer."""
    for number in range(TIMES):
        before = [device.flushes() for device in devices]
        action()
        for device, count in zip(devices, before):
            t.expect(device.flushes() > count, f"{what} (number {number + 1}) was answered without a flush of the device below the {device.name}")


def each_request_flushes(t, data, data_path):
    """On a pool whose data lies on one device, the journal and the tables of its map on another, and the mark of the map on a third."""
    mark, journal = Below(t, "mark", 256 << 20), Below(t, "map's journal", 256 << 20)
    mark.mount("pool")
    pool = Pool(t, capacity="256M", data=data_path)
    # A device of its own for what lies in a directory of its own.
    shutil.move(pool.path / "map" / "lsm", t.dir / "lsm")
    (pool.path / "map" / "lsm").mkdir()
    journal.mount("pool/map/lsm")
    for file in sorted((t.dir / "lsm").iterdir()):
        shutil.move(file, pool.path / "map" / "lsm" / file.name)
    t.run("sync")
    pool.create("vol", "64M")
    server = pool.serve(mount=True)
    handle = nbd.NBD()
    handle.connect_uri(server.uri("vol"))
    file = os.open(server.file("vol"), os.O_RDWR)
    synchronous = os.open(server.file("vol"), os.O_RDWR | os.O_DSYNC)
    offset = 0

    def somewhere():
        nonlocal offset
        offset += 16 * BLOCK
        return offset

    def write():
        handle.pwrite(os.urandom(BLOCK), somewhere())

    flushed(t, "an NBD flush", lambda: (write(), handle.flush()), data)
    flushed(t, "an NBD write with FUA", lambda: handle.pwrite(os.urandom(BLOCK), somewhere(), nbd.CMD_FLAG_FUA), data)
    flushed(t, "NBD zeroes with FUA", lambda: (write(), handle.zero(BLOCK, offset, nbd.CMD_FLAG_FUA)), data)
    for name, sync in [("fsync", os.fsync), ("fdatasync", os.fdatasync)]:
        flushed(t, f"{name} of the file", lambda sync=sync: (os.pwrite(file, os.urandom(BLOCK), somewhere()), sync(file)), data)
    flushed(t, "a write to the file with O_DSYNC", lambda: os.pwrite(synchronous, os.urandom(BLOCK), somewhere()), data)
    flushed(t, "'create'", lambda: pool.create(f"vol-{somewhere()}", "64M"), data)
    flushed(t, "'snapshot'", lambda: pool.shale("snapshot", f"vol@{somewhere()}"), data)
    # What recovery need not replay any more must be in the map, and the mark must say so.
    flushed(t, "a checkpoint", lambda: (write(), pool.status()), data, journal, mark)
    write()
    os.close(file)
    os.close(synchronous)
    before = [below.flushes() for below in (data, journal, mark)]
    handle.shutdown()
    server.stop()
    for below, count in zip((data, journal, mark), before):
        t.expect(below.flushes() > count, f"SIGTERM: the server ended without a flush of the device below the {below.name}")
    pool.check()
    t.umount(pool.path / "map" / "lsm")


@test()
def flushes_reach_a_block_device(t):
    """every flush, FUA, fsync, O_DSYNC, create and checkpoint reaches the raw device below the data, and those below the map"""
    data = Below(t, "data", 256 << 20)
    each_request_flushes(t, data, data.device)


@test()
def flushes_reach_a_file_system(t):
    """the same with the data in a file"""
    data = Below(t, "data", 512 << 20)
    each_request_flushes(t, data, data.mount("data") / "data")
