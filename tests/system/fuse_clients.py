"""The FUSE door: volumes as files, loop devices on them, and real file systems on those."""

import json

from harness import EXIT, Pool, data, test
from harness.context import digest, tree_digest


def served(t, size="1G", **named):
    """A pool with the volume `vol`, served with a mount."""
    pool = Pool(t, **named)
    pool.create("vol", size)
    return pool, pool.serve(mount=True)


def make_and_fill(t, device, fstype, content_bytes=40 << 20):
    """mkfs, mount, a source tree copied in, sync. Returns (directory, digests of the tree)."""
    force = ["-F"] if fstype == "ext4" else ["-f"]
    t.run(f"mkfs.{fstype}", "-q", *force, device)
    directory = t.mount(device, "fs")
    data.source_tree(directory / "tree", content_bytes)
    expected = tree_digest(directory / "tree")
    t.run("sync", "--file-system", directory)
    return directory, expected


def fsck(t, device, fstype):
    """Must find nothing wrong and change nothing."""
    if fstype == "ext4":
        t.run("e2fsck", "-f", "-n", device)
    else:
        t.run("xfs_repair", "-n", device)


def file_system_round_trip(t, fstype, direct):
    """A source tree survives unmounting, a restart of the server, and fsck."""
    pool, server = served(t)
    device = t.loop(server.file("vol"), direct=direct)
    directory, expected = make_and_fill(t, device, fstype)
    t.umount(directory)
    fsck(t, device, fstype)
    t.detach(device)
    server.stop()
    pool.check()
    server = pool.serve(mount=True)
    device = t.loop(server.file("vol"), direct=direct)
    fsck(t, device, fstype)
    directory = t.mount(device, "fs")
    t.drop_page_cache()
    t.expect(tree_digest(directory / "tree") == expected, "the tree differs from what was copied in")
    status = pool.status()
    t.note(f"{len(expected)} files, ratio {status['allocated_bytes'] / max(status['stored_bytes'], 1):.2f}")
    t.umount(directory)
    t.detach(device)
    server.stop()


@test()
def fuse_ext4_round_trip(t):
    """mkfs.ext4 on a loop device over the mount, a source tree, fsck, restart, the same tree"""
    file_system_round_trip(t, "ext4", direct=False)


@test()
def fuse_ext4_direct_loop(t):
    """the same with direct I/O on the loop device"""
    file_system_round_trip(t, "ext4", direct=True)


@test()
def fuse_xfs_round_trip(t):
    """mkfs.xfs, a source tree, xfs_repair -n, restart, the same tree"""
    file_system_round_trip(t, "xfs", direct=True)


@test()
def fuse_force_names_the_file_system(t):
    """--force on a volume with a mounted file system says who has it open, where it is mounted, and what becomes of that"""
    pool, server = served(t)
    device = t.loop(server.file("vol"), direct=True)
    directory, _ = make_and_fill(t, device, "ext4", 4 << 20)
    pool.shale("snapshot", "vol@s")
    refused = pool.shale("rollback", "vol@s", status=EXIT["in-use"])
    t.expect("open by 1 client: file in the mount" in refused.stderr, f"who has it open: {refused.stderr}")
    done = pool.shale("rollback", "vol@s", "--force")
    for words in ["open by 1 client: file in the mount", f"with file systems mounted at {directory}", "unmount it"]:
        t.expect(words in done.stderr, f"'{words}' is not in: {done.stderr}")
    t.umount(directory)
    t.detach(device)
    t.wait_for(lambda: json.loads(pool.shale("list", "--json").stdout)[0]["clients"] == 0, "the end of the loop device's file")
    done = pool.shale("rollback", "vol@s", "--force")
    t.expect("is open by" not in done.stderr, f"it has no clients any more: {done.stderr}")
    server.stop()
    pool.check()


@test()
def fuse_rename_below_a_file_system(t):
    """a mounted volume is renamed, another one gets its name, and the file system goes on"""
    pool, server = served(t)
    device = t.loop(server.file("vol"), direct=True)
    directory, expected = make_and_fill(t, device, "ext4")
    pool.shale("rename", "vol", "vol.old")
    pool.create("vol", "64M")
    t.run("ls", "-l", server.mount_dir)
    t.equal({path.name: path.stat().st_size for path in server.mount_dir.iterdir()}, {"vol": 64 << 20, "vol.old": 1 << 30}, "files")
    data.random_file(directory / "more", 16 << 20)
    t.run("sync", "--file-system", directory)
    t.drop_page_cache()
    t.expect(tree_digest(directory / "tree") == expected, "the tree differs")
    t.umount(directory)
    fsck(t, device, "ext4")
    t.detach(device)
    server.stop()
    pool.check()


@test()
def fuse_git_on_ext4(t):
    """git commits, clones, checks out and verifies a repository on the volume"""
    _, server = served(t)
    device = t.loop(server.file("vol"), direct=True)
    t.run("mkfs.ext4", "-q", "-F", device)
    directory = t.mount(device, "fs")
    origin = t.dir / "origin"
    data.source_tree(origin, 12 << 20)
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.invalid", "-c", "safe.directory=*",
           "-c", "init.defaultBranch=main", "-c", "core.autocrlf=false", "-c", "gc.auto=0"]
    t.run(*git, "-C", origin, "init", "-q")
    for number in range(4):
        (origin / "counter").write_text(f"{number}\n")
        t.run(*git, "-C", origin, "add", "--all", "--force")
        t.run(*git, "-C", origin, "commit", "-q", "-m", f"commit {number}", quiet=True)
    t.run(*git, "clone", "-q", "--no-hardlinks", origin, directory / "clone")
    clone = directory / "clone"
    t.run(*git, "-C", clone, "checkout", "-q", "HEAD~2")
    t.equal((clone / "counter").read_text(), "1\n", "counter two commits ago")
    t.run(*git, "-C", clone, "checkout", "-q", "main")
    t.run(*git, "-C", clone, "repack", "-a", "-d", "-q")
    t.umount(directory)
    t.run("e2fsck", "-f", "-n", device)
    directory = t.mount(device, "fs")
    t.run(*git, "-C", clone, "fsck", "--full", "--strict")
    t.equal(t.out(*git, "-C", clone, "status", "--porcelain"), "", "git status of the clone")
    t.equal(t.out(*git, "-C", clone, "rev-parse", "HEAD"), t.out(*git, "-C", origin, "rev-parse", "HEAD"), "HEAD")
    t.umount(directory)


@test()
def fuse_mkfs_on_empty_stores_nothing(t):
    """mkfs with discard on an empty volume of 1 TiB stores only the file system's own structures"""
    pool = Pool(t, capacity="8G")
    pool.create("vol", "1T")
    server = pool.serve(mount=True)
    device = t.loop(server.file("vol"))
    t.run("mkfs.ext4", "-q", "-F", "-E", "discard,lazy_itable_init=1,lazy_journal_init=1", device)
    t.run("sync")
    after_ext4 = pool.status()
    t.run("blkdiscard", device)
    t.run("mkfs.xfs", "-q", "-f", device)
    t.run("sync")
    after_xfs = pool.status()
    for name, status in [("ext4", after_ext4), ("xfs", after_xfs)]:
        t.expect(status["stored_bytes"] < 64 << 20, f"an empty {name} of 1 TiB stores {status['stored_bytes']} bytes")
    t.run("blkdiscard", device)
    t.detach(device)
    server.stop()
    server = pool.serve()
    t.expect(pool.status()["stored_bytes"] < 1 << 20, f"after discarding all, {pool.status()['stored_bytes']} bytes are stored")
    entries = json.loads(t.out("nbdinfo", "--json", "--map", server.uri("vol")))
    t.equal({e["type"] for e in entries}, {3}, "kinds of ranges in a discarded volume")
    server.stop()


@test()
def fuse_fstrim_gives_space_back(t):
    """what is deleted and trimmed in a file system comes back as free space of the pool"""
    pool, server = served(t, size="2G", capacity="1G")
    device = t.loop(server.file("vol"), direct=True)
    t.run("mkfs.ext4", "-q", "-F", device)
    directory = t.mount(device, "fs")
    empty = pool.status()["free_bytes"]
    # More in total than the pool holds: without space coming back the third round cannot succeed.
    for number in range(4):
        data.random_file(directory / "big", 400 << 20, seed=number)
        t.run("sync", "--file-system", directory)
        full = pool.status()["free_bytes"]
        t.expect(full < empty - (380 << 20), f"400 MiB written, but free bytes went from {empty} to {full}")
        (directory / "big").unlink()
        t.run("sync", "--file-system", directory)
        t.run("fstrim", "-v", directory)
        t.run("sync", "--file-system", directory)
        t.wait_for(lambda: pool.status()["free_bytes"] > empty - (64 << 20), "the space that fstrim gave back")
    t.umount(directory)
    t.run("e2fsck", "-f", "-n", device)
    t.detach(device)
    server.stop()
    pool.check()


@test()
def fuse_full_pool(t):
    """a full pool says ENOSPC, stays readable, and can be trimmed, written again, and emptied by destroy"""
    import errno
    import os

    pool = Pool(t, capacity="256M")
    pool.create("vol", "1G")
    pool.create("keep", "64M")
    server = pool.serve(mount=True)
    written = 0
    piece = data.random_file(t.dir / "piece", 1 << 20).read_bytes()
    file = os.open(server.file("vol"), os.O_RDWR)
    try:
        while written < 1 << 30:
            os.pwrite(file, piece, written)
            os.fsync(file)
            written += len(piece)
    except OSError as error:
        t.equal(errno.errorcode[error.errno], "ENOSPC", f"error after {written} bytes")
    t.expect(100 << 20 < written < 256 << 20, f"the pool of 256 MiB was full after {written} bytes")
    t.note(f"full after {written >> 20} of 256 MiB")
    for offset in range(0, written, 1 << 20):
        t.expect(os.pread(file, 1 << 20, offset) == piece, f"the full pool returns something else at {offset}")
    t.run("fallocate", "--punch-hole", "--offset", 0, "--length", 64 << 20, server.file("vol"))
    os.fsync(file)

    def writes_again():
        try:
            os.pwrite(file, piece, written)
            os.fsync(file)
        except OSError as error:
            t.equal(errno.errorcode[error.errno], "ENOSPC", "error after punching a hole")
            return False
        return True

    t.wait_for(writes_again, "writing to the pool after 64 MiB were given back")
    t.expect(os.pread(file, 1 << 20, 0) == bytes(1 << 20), "the hole does not read as zeroes")
    os.close(file)
    server.stop()
    pool.check()
    pool.shale("destroy", "vol")
    server = pool.serve(mount=True)
    with open(server.file("keep"), "r+b") as keep:
        keep.write(piece)
    t.expect(pool.status()["free_bytes"] > 150 << 20, "destroying the volume gave nothing back")
    server.stop()
    pool.check()


@test()
def pool_on_a_block_device(t):
    """a raw block device as the data of a pool"""
    backing = t.dir / "disk"
    with open(backing, "wb") as file:
        file.truncate(4 << 30)
    disk = t.loop(backing)
    pool = Pool(t, capacity=None, data=disk)
    pool.create("vol", "2G")
    server = pool.serve(mount=True)
    device = t.loop(server.file("vol"), direct=True)
    directory, expected = make_and_fill(t, device, "ext4")
    t.umount(directory)
    t.detach(device)
    server.stop()
    pool.check()
    # A device that is in use by a pool, or mounted, is not to be had again.
    t.expect(t.run(*init_words(t, "second", disk), status=None).returncode != 0, "a second pool was made on the same device")
    server = pool.serve(mount=True)
    device = t.loop(server.file("vol"), direct=True)
    t.run("e2fsck", "-f", "-n", device)
    directory = t.mount(device, "fs")
    t.expect(tree_digest(directory / "tree") == expected, "the tree differs")
    t.umount(directory)
    # What is discarded here is discarded on the device below, but for what the log is going to write to next.
    t.run("dd", f"if={data.random_file(t.dir / 'random', 300 << 20)}", f"of={device}", "bs=1M", "oflag=direct")
    pool.status()
    occupied = backing.stat().st_blocks * 512
    t.run("blkdiscard", device)
    t.detach(device)
    t.equal(pool.status()["stored_bytes"], 0, "bytes that are stored when everything is discarded")
    fell = occupied - backing.stat().st_blocks * 512
    t.expect(fell > 200 << 20, f"300 MiB and more were discarded, and {fell} of {occupied} bytes came back below the device")
    t.note(f"{fell >> 20} of {occupied >> 20} MiB came back below the device")
    server.stop()
    pool.check()


def init_words(t, name, disk):
    """`init` of another pool on a device."""
    from harness.pool import BINARY

    return [BINARY, "init", t.dir / name, "--data", disk]


def discard_half(t, pool, server, file, written):
    """Discards the second half of what was written: where that begins, and bytes that the file system below got back."""
    import os

    occupied = os.stat(pool.path / "data").st_blocks * 512
    half = written // 2 >> 20 << 20
    t.run("fallocate", "--punch-hole", "--offset", half, "--length", written - half, server.file("vol"))
    os.fsync(file)
    pool.status()
    fell = occupied - os.stat(pool.path / "data").st_blocks * 512
    t.expect(fell > half // 4, f"of {occupied} bytes {fell} came back for {written - half} discarded ones")
    return half, fell


@test()
def pool_on_a_full_file_system(t):
    """the file system below fills up: writes fail with ENOSPC, nothing acknowledged is lost, and it goes on with space"""
    import errno
    import os

    small = t.dir / "small.img"
    with open(small, "wb") as file:
        file.truncate(300 << 20)
    t.run("mkfs.ext4", "-q", "-F", small)
    device = t.loop(small)
    below = t.mount(device, "below")
    ballast = data.random_file(below / "ballast", 100 << 20)
    pool = Pool(t, name="below/pool", capacity="1G")
    pool.create("vol", "512M")
    server = pool.serve(mount=True)
    piece = data.random_file(t.dir / "piece", 1 << 20, seed=3).read_bytes()
    written = 0
    file = os.open(server.file("vol"), os.O_RDWR)
    try:
        while written < 512 << 20:
            taken = os.pwrite(file, piece, written)
            os.fsync(file)
            if taken < len(piece):
                break
            written += taken
    except OSError as error:
        t.expect(error.errno in (errno.ENOSPC, errno.EIO), f"error {error} after {written} bytes")
    t.expect(written < 300 << 20, "a file system of 300 MiB holds more than 300 MiB")
    for offset in range(0, written, 1 << 20):
        t.expect(os.pread(file, 1 << 20, offset) == piece, f"acknowledged bytes at {offset} are not returned")
    # Discarding what is there makes room, for the pool and for others.
    half, fell = discard_half(t, pool, server, file, written)
    full, written = written, half + (8 << 20)
    for offset in range(half, written, 1 << 20):
        os.pwrite(file, piece, offset)
    os.fsync(file)
    os.close(file)
    ballast.unlink()
    server.stop()
    pool.check()
    server = pool.serve(mount=True)
    file = os.open(server.file("vol"), os.O_RDWR)
    for offset in range(0, written, 1 << 20):
        t.expect(os.pread(file, 1 << 20, offset) == piece, f"acknowledged bytes at {offset} are lost")
    os.pwrite(file, piece, written)
    os.fsync(file)
    os.close(file)
    server.stop()
    t.note(f"full below after {full >> 20} MiB, {fell >> 20} came back, went on with more space")


@test()
def pool_restarted_on_a_full_file_system(t):
    """the file system below is full to the last when the server is killed: it starts again, and discarding still makes room"""
    import errno
    import os

    small = t.dir / "small.img"
    with open(small, "wb") as file:
        file.truncate(300 << 20)
    t.run("mkfs.ext4", "-q", "-F", "-m", "0", small)
    below = t.mount(t.loop(small), "below")
    pool = Pool(t, name="below/pool", capacity="1G")
    pool.create("vol", "512M")
    server = pool.serve(mount=True)
    piece = data.random_file(t.dir / "piece", 1 << 20, seed=3).read_bytes()

    def fill(path, leave):
        """Writes until nothing is taken any more, or so many bytes are left on the file system."""
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        taken = 0
        try:
            while os.statvfs(below).f_bavail * os.statvfs(below).f_frsize > leave and os.pwrite(file, piece, taken) == len(piece):
                os.fsync(file)
                taken += len(piece)
        except OSError as error:
            t.expect(error.errno in (errno.ENOSPC, errno.EIO), f"error {error} after {taken} bytes")
        finally:
            os.close(file)
        return taken

    written = fill(server.file("vol"), 0)
    # Others take what the pool leaves for its map.
    fill(below / "ballast", 3 << 20)
    server.kill()
    server = pool.serve(mount=True)
    file = os.open(server.file("vol"), os.O_RDWR)
    for offset in range(0, written, 1 << 20):
        t.expect(os.pread(file, 1 << 20, offset) == piece, f"acknowledged bytes at {offset} are lost")
    half, fell = discard_half(t, pool, server, file, written)
    os.pwrite(file, piece, half)
    os.fsync(file)
    os.close(file)
    server.stop()
    pool.check()
    t.note(f"full below after {written >> 20} MiB, {fell >> 20} came back behind the restart")


@test()
def fuse_file_semantics(t):
    """a volume's file: size, st_blocks, SEEK_DATA and SEEK_HOLE, punch, zero range, no growing, no removing"""
    import errno
    import os

    _, server = served(t, size="128M")
    path = server.file("vol")
    file = os.open(path, os.O_RDWR)
    t.equal(os.fstat(file).st_size, 128 << 20, "size")
    t.equal(os.fstat(file).st_blocks, 0, "blocks of an empty volume")
    os.pwrite(file, b"a" * (1 << 20), 4 << 20)
    t.equal(os.fstat(file).st_blocks, (1 << 20) // 512, "blocks of what was just written: tar -S keeps nothing of a file without any")
    os.fsync(file)
    t.equal(os.lseek(file, 0, os.SEEK_DATA), 4 << 20, "first data")
    t.equal(os.lseek(file, 4 << 20, os.SEEK_HOLE), 5 << 20, "first hole behind it")
    t.run("fallocate", "--punch-hole", "--offset", 4 << 20, "--length", 512 << 10, path)
    t.run("fallocate", "--zero-range", "--offset", (4 << 20) + (768 << 10), "--length", 4096, path)
    expected = bytearray(b"a" * (1 << 20))
    expected[: 512 << 10] = bytes(512 << 10)
    expected[768 << 10: (768 << 10) + 4096] = bytes(4096)
    t.expect(os.pread(file, 1 << 20, 4 << 20) == bytes(expected), "punch-hole or zero-range did something else")
    t.equal(os.lseek(file, 0, os.SEEK_DATA), (4 << 20) + (512 << 10), "first data after punching")
    for what, action in [("truncate", lambda: os.truncate(path, 1 << 20)), ("unlink", lambda: os.unlink(path)),
                         ("create", lambda: open(server.mount_dir / "new", "xb").close()),
                         ("rename", lambda: os.rename(path, server.mount_dir / "other"))]:
        try:
            action()
        except OSError as error:
            t.expect(error.errno in (errno.EPERM, errno.EROFS, errno.EOPNOTSUPP, errno.EACCES, errno.ENOSYS), f"{what}: {error}")
        else:
            t.fail(f"{what} was allowed")
    t.equal(os.fstat(file).st_size, 128 << 20, "size afterwards")
    os.close(file)
    server.stop()


@test()
def fuse_fio_verify(t):
    """fio with verification on the file, through the page cache and around it"""
    pool, server = served(t, size="512M")
    common = [f"--filename={server.file('vol')}", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--output-format=terse",
              "--buffer_compress_percentage=50", "--refill_buffers", "--verify_state_save=0", "--fallocate=none"]
    t.run("fio", *common, "--name=buffered", "--rw=randwrite", "--bs=4k", "--size=64M", "--ioengine=psync", "--fsync=64")
    t.run("fio", *common, "--name=direct", "--rw=randwrite", "--bs=4k", "--size=128M", "--ioengine=libaio", "--iodepth=32",
          "--direct=1")
    t.run("fio", *common, "--name=large", "--rw=write", "--bs=1M", "--size=512M", "--ioengine=libaio", "--iodepth=4", "--direct=1")
    t.equal(len(digest(server.file("vol"))), 64, "length of the digest of the whole file")
    server.stop()
    pool.check()


@test()
def fuse_errors_of_the_mount(t):
    """a mount point that is taken or not there is refused with a message, and nothing is left behind"""
    from harness.pool import BINARY

    pool = Pool(t)
    pool.create("vol", "64M")
    done = t.run(BINARY, "serve", pool.path, "--mount", t.dir / "absent", status=None)
    t.expect(done.returncode not in (EXIT["ok"], 101), f"exit status {done.returncode}")
    t.expect("absent" in done.stderr, f"the message does not name the directory: {done.stderr!r}")
