"""The FUSE door over io_uring: what holds of the mount otherwise holds there, too."""

import contextlib
import subprocess
from pathlib import Path

from harness import Pool, registry, test
from system import crash, fuse_clients  # noqa: F401  the tests that are run again

# Where an administrator allows it.
SWITCH = Path("/sys/module/fuse/parameters/enable_uring")

# What is run again over rings.
AGAIN = ["fuse_ext4_direct_loop", "fuse_xfs_round_trip", "fuse_fstrim_gives_space_back", "fuse_full_pool", "fuse_file_semantics", "fuse_fio_verify",
         "fuse_rename_below_a_file_system", "crash_kill_records", "crash_kill_fio"]


@contextlib.contextmanager
def allowed():
    """While it lasts, FUSE over io_uring is allowed on this machine, if its kernel has it; afterwards all is as it was."""
    if not SWITCH.exists():
        subprocess.run(["modprobe", "fuse"], capture_output=True, check=False)
    if not SWITCH.exists():
        yield
        return
    before = SWITCH.read_text().strip()
    SWITCH.write_text("Y")
    try:
        yield
    finally:
        SWITCH.write_text(before)


def over_rings(t, function):
    """Runs a test whose servers must get their requests over io_uring."""
    if not SWITCH.exists():
        t.note("not run: this kernel has no FUSE over io_uring (Linux 6.14 has)")
        return
    t.over_io_uring = True
    function(t)


def register(name):
    """The test of that name, over rings."""
    found = registry.TESTS[name]

    def again(t):
        over_rings(t, found.function)

    again.__name__, again.__doc__ = f"rings_{name}", f"over io_uring: {found.summary}"
    test(seconds_max=found.seconds_max, group="rings")(again)


@test(group="rings")
def rings_end_with_their_server(t):
    """--keep-mounts on is void over io_uring, and the server says so; with off it says nothing"""

    def serve_and_stop(pool, keeps):
        pool.serve(mount=True, keeps=keeps).stop()
        return "the mount will not survive its server: its requests come over io_uring" in t.said()

    def function(t):
        pool = Pool(t, capacity="64M")
        t.expect(not serve_and_stop(pool, keeps=False), "it was said although nothing was asked for")
        t.expect(serve_and_stop(pool, keeps=True), "a mount that ends with its server is not told")

    over_rings(t, function)


registry.GROUPS["rings"] = allowed
for one in AGAIN:
    register(one)
