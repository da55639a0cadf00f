"""What POSIX and ext4 promise of set-id bits, access times, preallocation and caches, on the mount of a share."""

import ctypes
import errno
import itertools
import mmap
import os
import struct
import tempfile
import threading
from pathlib import Path

from harness import EXIT, Pool, test

LIBC = ctypes.CDLL(None, use_errno=True)
# Users and groups that no machine has.
A, B, GROUP_A, GROUP_B, GROUP_C = 61001, 61002, 61101, 61102, 61103
USERS = {"owner": (A, GROUP_A, [GROUP_A, GROUP_C]), "stranger": (B, GROUP_B, [GROUP_B, GROUP_C]), "root": (0, 0, [0])}
MODES = [0o4755, 0o2755, 0o2745, 0o6777, 0o2767, 0o4711, 0o2666, 0o6664, 0o660]
KEEP_SIZE, PUNCH, ZERO = 1, 3, 16
# cap_net_raw+ep, as `struct vfs_cap_data` of version 2 has it.
CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)


def share_of(t, *properties, **named):
    """A pool, its server and the mount of a share that every user gets to."""
    pool = Pool(t, **named)
    pool.shale("create", "home", "--share", *properties)
    server = pool.serve(shares=True)
    share = server.share("home")
    os.chmod(share, 0o755)
    for directory in (t.dir, server.shares_dir):
        os.chmod(directory, 0o755)
    return pool, server, share


def end(pool, server):
    """Stops the server, and demands that the pool is clean."""
    server.stop()
    pool.check()


def as_user(who, work):
    """Does something in a process of that user; what comes of it."""
    from_child, to_parent = os.pipe()
    child = os.fork()
    if child == 0:
        uid, gid, groups = USERS[who]
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        try:
            work()
            said = "ok"
        except OSError as error:
            said = errno.errorcode[error.errno]
        os.write(to_parent, said.encode())
        os._exit(0)
    os.close(to_parent)
    with os.fdopen(from_child) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def allocate(descriptor, mode, offset, length):
    """fallocate(2)."""
    if LIBC.fallocate(descriptor, mode, ctypes.c_long(offset), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), "fallocate")


def opened(work, flags=os.O_WRONLY):
    """Does something with the descriptor of a path."""
    def run(path):
        descriptor = os.open(path, flags)
        try:
            work(descriptor)
        finally:
            os.close(descriptor)
    return run


def copy_into(path):
    """copy_file_range of a neighbour into a file."""
    with open(f"{path}.source", "rb") as source:
        opened(lambda file: os.copy_file_range(source.fileno(), file, 4096, 0, 0))(path)


CHANGES = {
    "write": opened(lambda file: os.write(file, b"x")),
    "append": opened(lambda file: os.write(file, b"x"), os.O_WRONLY | os.O_APPEND),
    "truncate": lambda path: os.truncate(path, 1),
    "open with O_TRUNC": opened(lambda file: None, os.O_WRONLY | os.O_TRUNC),
    "fallocate": opened(lambda file: allocate(file, 0, 0, 30000)),
    "fallocate, size kept": opened(lambda file: allocate(file, KEEP_SIZE, 0, 30000)),
    "punch": opened(lambda file: allocate(file, PUNCH, 0, 5000)),
    "zero": opened(lambda file: allocate(file, ZERO, 0, 5000)),
    "copy_file_range": copy_into,
    "chown to nobody": lambda path: os.chown(path, -1, -1),
    "chown to the owner": lambda path: os.chown(path, A, -1),
    "chgrp to a group of mine": lambda path: os.chown(path, -1, GROUP_C),
    "chgrp to another group": lambda path: os.chown(path, -1, GROUP_B),
    "chmod g+s": lambda path: os.chmod(path, 0o2775),
    "read": opened(lambda file: os.read(file, 10), os.O_RDONLY),
}


def tried(root, mode, who, change):
    """What comes of a change of a file with that mode: answer, mode, owner, group and size."""
    path = f"{root}/f"
    for name, content in ((path, b"0" * 20000), (f"{path}.source", b"1" * 4096)):
        with open(name, "wb") as file:
            file.write(content)
    os.chmod(f"{path}.source", 0o644)
    os.chown(path, A, GROUP_A)
    os.chmod(path, mode)
    os.setxattr(path, "security.capability", CAPABILITY)
    said = as_user(who, lambda: CHANGES[change](path))
    found = os.stat(path)
    left = said, oct(found.st_mode), found.st_uid, found.st_gid, found.st_size, "security.capability" in os.listxattr(path)
    os.unlink(path)
    return left


@test(seconds_max=300)
def posix_set_id_bits_go_as_below(t):
    """set-user-id, set-group-id and capabilities after every kind of change by owner, stranger and root: as on the file system below"""
    pool, server, share = share_of(t)
    below = Path(tempfile.mkdtemp(dir=t.dir))
    for root in (share, below):
        os.chmod(root, 0o755)
    different = []
    for mode, who, change in itertools.product(MODES, USERS, CHANGES):
        here, there = (tried(root, mode, who, change) for root in (share, below))
        if here != there:
            different.append(f"{oct(mode)} {change} by {who}: {here}, below {there}")
    t.equal(different, [], "what differs")
    t.note(f"{len(MODES) * len(USERS) * len(CHANGES)} cases")
    end(pool, server)


@test(seconds_max=120)
def posix_trusted_names(t):
    """trusted.* attributes are listed to the administrator alone, in the share and in its snapshots"""
    pool, server, share = share_of(t, "-o", "snapdir=visible")
    (share / "f").write_text("x")
    os.setxattr(share / "f", "trusted.overlay.opaque", b"y")
    os.setxattr(share / "f", "user.open", b"z")
    pool.shale("snapshot", "home@monday")
    for path in (share / "f", share / ".shale" / "snapshots" / "monday" / "f"):
        def seen(path=path):
            if os.listxattr(path) != ["user.open"]:
                raise OSError(errno.EPERM, "a name of the administrator's")
        t.equal(as_user("stranger", seen), "ok", f"what another user sees of {path}")
        t.equal(sorted(os.listxattr(path)), ["trusted.overlay.opaque", "user.open"], "what root sees")
    end(pool, server)


@test(seconds_max=180)
def posix_fallocate_keeps_to_the_room(t):
    """fallocate beyond the quota or the pool is ENOSPC and changes nothing; what fits shows in st_blocks, after kill -9 too"""
    pool, server, share = share_of(t, "--quota", "20M", capacity="300M")
    pool.shale("create", "free", "--share")
    server.stop()
    server = pool.serve(shares=True)
    share, free = server.share("home"), server.share("free")
    (share / "f").write_bytes(os.urandom(100_000))
    before = (share / "f").read_bytes()
    for mode in (0, KEEP_SIZE, ZERO):
        for directory, length in ((share, 10 << 30), (share, 64 << 20), (free, 1 << 30), (free, 1 << 50)):
            path = directory / "f"
            path.touch()
            was = os.stat(path)
            t.equal(as_user("root", lambda: opened(lambda file: allocate(file, mode, 0, length))(path)), "ENOSPC", f"{length} bytes with mode {mode}")
            now = os.stat(path)
            t.equal((now.st_size, now.st_blocks, now.st_mtime_ns), (was.st_size, was.st_blocks, was.st_mtime_ns), "a file for which there was no room")
    t.expect((share / "f").read_bytes() == before, "a refused fallocate changed the content")
    (share / "g").touch()
    opened(lambda file: allocate(file, 0, 4095, 2))(share / "g")
    t.equal((os.stat(share / "g").st_size, os.stat(share / "g").st_blocks), (4097, 16), "size and blocks of a range that touches two blocks")
    opened(lambda file: allocate(file, 0, 0, 10 << 20))(share / "g")
    t.equal(t.out("du", "-k", share / "g").split()[0], "10240", "KiB of du")
    server.kill()
    server = pool.serve(shares=True)
    found = os.stat(server.share("home") / "g")
    t.equal((found.st_size, found.st_blocks * 512), (10 << 20, 10 << 20), "size and blocks after kill -9")
    end(pool, server)


def options_of(directory):
    """The options of the mount at a directory."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    return next(line.split(" ")[5].split(",") for line in lines if line.split(" ")[4] == str(directory))


def moves(path, read):
    """Whether a read moves the access time of something that has changed since it was read last."""
    os.utime(path, (5, 6), follow_symlinks=False)
    read(path)
    return os.stat(path, follow_symlinks=False).st_atime != 5


def all_move(share):
    """Whether reads move access times: of a cached file, a directory and a link; None: of some."""
    (share / "f").write_bytes(b"x" * 8192)
    (share / "d").mkdir(exist_ok=True)
    if not (share / "l").is_symlink():
        os.symlink("f", share / "l")
    reads = {"f": lambda path: path.read_bytes(), "d": os.listdir, "l": os.readlink}
    found = {moves(share / name, read) for name, read in reads.items()}
    return found.pop() if len(found) == 1 else None


@test(seconds_max=180)
def posix_attributes_off(t):
    """xattr=off and acl=off hold from the next mount on, are inherited and explained, and what is there comes back"""
    pool, server, share = share_of(t)
    (share / "f").write_bytes(b"x")
    os.setxattr(share / "f", "user.a", b"b")
    t.equal(pool.shale("set", "home", "xattr=maybe", status=EXIT["usage"]).stdout, "", "a value that there is not")
    said = pool.shale("set", "xattr=off")
    t.expect("'xattr' takes effect at the next mount of a share; SMB will not serve it then" in said.stdout + said.stderr, "no note on the next mount")
    t.equal(os.getxattr(share / "f", "user.a"), b"b", "an attribute before the next mount")
    t.expect("none (xattr=off)" in pool.shale("explain", "home", "f").stdout, "explain without what xattr=off costs")
    # At first by the value of the pool.
    for changes, of_user, of_acl in [((), errno.EOPNOTSUPP, errno.ENODATA), (("xattr=on", "acl=off"), None, errno.EOPNOTSUPP)]:
        if changes:
            pool.shale("set", "home", *changes)
        server.stop()
        server = pool.serve(shares=True)
        share = server.share("home")
        for name, expected in [("user.a", of_user), ("system.posix_acl_access", of_acl)]:
            try:
                found = os.getxattr(share / "f", name)
                t.equal((expected, found), (None, b"b"), f"{name} with {changes}")
            except OSError as error:
                t.equal(error.errno, expected, f"{name} with {changes}")
    end(pool, server)


@test(seconds_max=180)
def posix_access_times(t):
    """a share says noatime and keeps to it; atime=relatime holds from the next mount on, and over kill -9 in a kept mount"""
    pool, server, share = share_of(t)
    t.expect("noatime" in options_of(share) and all_move(share) is False, "a share that moves access times and says noatime")
    pool.shale("set", "home", "atime=relatime")
    t.expect("noatime" in options_of(share) and all_move(share) is False, "a property that holds before the next mount")
    pool.shale("set", "home", "atime=strict", status=EXIT["usage"])
    server.stop()
    server = pool.serve(shares=True, keeps=True)
    share = server.share("home")
    t.expect("noatime" not in options_of(share) and all_move(share) is True, "a share with atime=relatime whose access times stay")
    # Once after a change: not with the second read.
    (share / "f").read_bytes()
    before = os.stat(share / "f").st_atime_ns
    (share / "f").read_bytes()
    t.equal(os.stat(share / "f").st_atime_ns, before, "the access time after a second read")
    # The program that goes on with the mount does as was agreed upon, whatever the property says now.
    pool.shale("set", "home", "atime=off")
    with open(share / "f", "rb") as held:
        server.kill(leaves_mount=True)
        server = pool.serve(shares=True, keeps=True)
        t.equal(len(held.read()), 8192, "bytes of a file that was open")
        t.expect("noatime" not in options_of(share) and all_move(share) is True, "a mount that was gone on with in another way")
    server.stop()
    pool.check()


class Aio:
    """Asynchronous direct writes of one thread, as databases do them."""

    SETUP, SUBMIT, EVENTS, WRITE = 206, 209, 208, 1

    def __init__(self, path, bytes_):
        self.file = os.open(path, os.O_RDWR | os.O_DIRECT)
        self.memory = mmap.mmap(-1, bytes_)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.context = ctypes.c_ulong(0)
        if LIBC.syscall(self.SETUP, 8, ctypes.byref(self.context)):
            raise OSError(ctypes.get_errno(), "io_setup")

    def write(self, content, offset):
        """Writes, and waits for the end of it."""
        self.memory[:] = content
        control = ctypes.create_string_buffer(struct.pack("<QIIHhIQQqQII", 0, 0, 0, self.WRITE, 0, self.file, self.address, len(content), offset, 0, 0, 0))
        pointer = ctypes.pointer(ctypes.c_void_p(ctypes.addressof(control)))
        event = ctypes.create_string_buffer(32)
        if LIBC.syscall(self.SUBMIT, self.context, ctypes.c_long(1), pointer) != 1:
            raise OSError(ctypes.get_errno(), "io_submit")
        if LIBC.syscall(self.EVENTS, self.context, ctypes.c_long(1), ctypes.c_long(1), event, None) != 1:
            raise OSError(ctypes.get_errno(), "io_getevents")
        done = struct.unpack_from("<q", event, 16)[0]
        if done != len(content):
            raise OSError(-done, "a write")


@test(seconds_max=180)
def posix_no_stale_pages(t):
    """a buffered read behind an asynchronous direct write gives what was written, with other readers of the same pages about"""
    pool, server, share = share_of(t)
    block, blocks, rounds = 4096, 128, 12
    path = share / "f"
    path.write_bytes(bytes(block * blocks))
    stop = threading.Event()

    def read(seed):
        at = seed
        with open(path, "rb", buffering=0) as file:
            while not stop.is_set():
                at = (at * 1103515245 + 12345) % (1 << 31)
                os.pread(file.fileno(), block, at % blocks * block)

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    [reader.start() for reader in readers]
    stale = 0
    try:
        aio = Aio(path, block)
        with open(path, "rb", buffering=0) as file:
            for number, at in itertools.product(range(1, rounds + 1), range(blocks)):
                content = bytes([number]) * block
                aio.write(content, at * block)
                stale += os.pread(file.fileno(), block, at * block) != content
    finally:
        stop.set()
        [reader.join() for reader in readers]
    t.equal(stale, 0, f"old blocks that were read, of {rounds * blocks}")
    t.expect(path.read_bytes() == bytes([rounds]) * (block * blocks), "old blocks are still in the cache")
    os.close(aio.file)
    end(pool, server)
