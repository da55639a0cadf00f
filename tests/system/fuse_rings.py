"""The FUSE door over io_uring: what holds of the mount otherwise holds there, too."""

from harness import Pool, test
from system import crash, fuse_clients

# The tests that are run again over rings.
AGAIN = [
    fuse_clients.fuse_ext4_direct_loop,
    fuse_clients.fuse_xfs_round_trip,
    fuse_clients.fuse_fstrim_gives_space_back,
    fuse_clients.fuse_full_pool,
    fuse_clients.fuse_file_semantics,
    fuse_clients.fuse_fio_verify,
    fuse_clients.fuse_rename_below_a_file_system,
    crash.crash_kill_records,
    crash.crash_kill_fio,
]


def over_rings(function):
    """The same test, named rings_..., with servers that must get their requests over io_uring."""

    def again(t):
        t.over_io_uring = True
        function(t)

    again.__name__, again.__doc__ = f"rings_{function.__name__}", f"over io_uring: {function.__doc__}"
    [limit] = [mark for mark in function.pytestmark if mark.name == "timeout"]
    return test(seconds_max=limit.args[0], rings=True)(again)


@test(rings=True)
def rings_end_with_their_server(t):
    """--keep-mounts on is void over io_uring, and the server says so; with off it says nothing"""

    def serve_and_stop(pool, keeps):
        pool.serve(mount=True, keeps=keeps).stop()
        return "the mount will not survive its server: its requests come over io_uring" in t.said()

    t.over_io_uring = True
    pool = Pool(t, capacity="64M")
    t.expect(not serve_and_stop(pool, keeps=False), "it was said although nothing was asked for")
    t.expect(serve_and_stop(pool, keeps=True), "a mount that ends with its server is not told")


globals().update({f"rings_{function.__name__}": over_rings(function) for function in AGAIN})
