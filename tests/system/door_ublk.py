"""Block devices by ublk on a machine whose kernel has no driver: what is missing is said before anything is served. With a driver see e2e_ublk.py."""

from pathlib import Path

from harness import EXIT, Pool, test
from harness.pool import BINARY


@test()
def ublk_refusals(t):
    """words that make no sense, volumes that are not there, and a kernel without the driver are refused, each with its remedy"""
    pool = Pool(t, capacity="256M")
    pool.create("vm", "16M")

    def refused(kind, words, *options):
        said = t.run(BINARY, "serve", pool.path, *options, status=EXIT[kind]).stderr
        t.expect(all(word in said for word in words), f"{options}: {said!r} does not have {words}")

    refused("usage", ["'size'", "NAME,queues=N"], "--ublk", "vm,size=3")
    refused("usage", ["queues: use a number from 1 to 64"], "--ublk", "vm,queues=0")
    refused("usage", ["depth: use a number from 1 to 1024"], "--ublk", "vm,queues=1,depth=1025")
    refused("usage", ["depth: use a number"], "--ublk", "vm,depth")
    refused("usage", ["--ublk vm is given twice"], "--ublk", "vm", "--ublk", "vm,queues=1")
    refused("not-found", ["'none'"], "--ublk", "none")
    refused("not-found", ["'vm' has no snapshot 'none'"], "--ublk", "vm@none")
    pool.create("other", "16M")
    refused("not-found", ["'other' is not served"], "--ublk", "other", "--volume", "vm")
    if Path("/dev/ublk-control").exists():
        t.note("this machine has the driver")
    else:
        refused("unsupported", ["there is no /dev/ublk-control", "modprobe ublk_drv", "Linux 6.5"], "--ublk", "vm")
    # Nothing was begun that would be in the way now.
    pool.serve().stop()
    pool.check()
