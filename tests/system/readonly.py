"""The property readonly of volumes and shares: what is refused, at every door, and what goes on."""

import errno
import os

from harness import EXIT, Pool, test

EXIT_READ_ONLY = 10
MIB = 1 << 20


def refused(work):
    """The error of something that is refused, or none."""
    try:
        work()
    except OSError as error:
        return errno.errorcode[error.errno]
    return None


@test()
def readonly_volumes(t):
    """readonly=on refuses writes by NBD, through the mount and by import, inherits, and is in force at once; snapshot, rollback, clone and receive go on"""
    pool = Pool(t, capacity="256M")
    pool.shale("create", "f", "--folder")
    pool.shale("create", "f/v", "--size", "8M")
    server = pool.serve(mount=True)
    uri, file = server.uri("f/v"), server.file("f/v")
    write = ["qemu-io", "-f", "raw", "-c"]
    t.run(*write, "write -P 7 0 64k", uri)
    # A client that is connected when the property is set.
    opened = os.open(file, os.O_RDWR)
    os.pwrite(opened, b"before", MIB)
    pool.shale("set", "f", "readonly=on")
    t.equal(pool.shale("get", "f/v", "readonly", "-H", "-o", "value").stdout.strip(), "on", "readonly of the volume in the folder")
    t.equal(refused(lambda: os.pwrite(opened, b"after", MIB)), "EROFS", "a write through the mount")
    asked = t.run(*write, "write -P 8 0 64k", uri, status=None)
    t.expect(asked.returncode != 0, f"a write by NBD: {asked.stdout}{asked.stderr}")
    t.equal(os.pread(opened, 6, MIB), b"before", "what was written before")
    os.close(opened)
    source = t.dir / "source"
    source.write_bytes(b"imported" * 1024)
    said = pool.shale("import", "f/v", source, "--overwrite", status=EXIT_READ_ONLY).stderr
    t.expect("readonly=off" in said, f"what import says: {said}")
    t.run("qemu-io", "-r", "-f", "raw", "-c", "read -P 7 0 64k", uri)
    pool.shale("snapshot", "f/v@one")
    pool.shale("clone", "f/v@one", "writable")
    t.run(*write, "write -P 9 0 64k", server.uri("writable"))
    pool.shale("set", "f/v", "readonly=off")
    with open(file, "r+b") as again:
        again.write(b"again!")
    t.run(*write, "write -P 8 0 64k", uri)
    pool.shale("set", "f/v", "readonly=on")
    server.stop()
    pool.shale("rollback", "f/v@one")
    # A copy that only receives is what the property is for.
    stream, later = t.dir / "stream", t.dir / "later"
    pool.shale("send", "f/v@one", "-o", stream)
    copy = Pool(t, name="copy", capacity="256M")
    copy.shale("set", "readonly=on")
    copy.shale("receive", "v", "-i", stream)
    pool.shale("set", "f/v", "readonly=off")
    pool.shale("import", "f/v", source, "--overwrite")
    pool.shale("snapshot", "f/v@two")
    pool.shale("send", "f/v@two", "--from", "f/v@one", "-o", later)
    copy.shale("receive", "v", "-i", later)
    back = t.dir / "back"
    copy.shale("export", "v@two", back)
    t.expect(back.read_bytes().startswith(b"imported"), "what the copy received")
    copy.shale("import", "v", source, "--overwrite", status=EXIT_READ_ONLY)
    copy.check()
    pool.check()


@test()
def readonly_shares(t):
    """readonly=on of a share refuses changes in its mount with EROFS, at once and after a restart, and import; its snapshots and reads go on"""
    pool = Pool(t, capacity="256M")
    pool.shale("create", "s", "--share")
    server = pool.serve(shares=True)
    root = server.share("s")
    (root / "file").write_text("content")
    opened = os.open(root / "file", os.O_RDWR)
    pool.shale("set", "s", "readonly=on")
    changes = {
        "write": lambda: os.pwrite(opened, b"x", 0),
        "create": lambda: (root / "new").write_text(""),
        "remove": lambda: os.unlink(root / "file"),
        "rename": lambda: os.rename(root / "file", root / "new"),
        "directory": lambda: os.mkdir(root / "new"),
        "mode": lambda: os.chmod(root / "file", 0o600),
    }
    t.equal({name: refused(work) for name, work in changes.items()}, dict.fromkeys(changes, "EROFS"), "changes")
    os.fsync(opened)
    os.close(opened)
    pool.shale("snapshot", "s@one")
    t.equal((root / ".shale" / "snapshots" / "one" / "file").read_text(), "content", "the file in the snapshot")
    source = t.dir / "tree"
    source.mkdir()
    (source / "imported").write_text("imported")
    said = pool.shale("import", "s", source, status=EXIT_READ_ONLY).stderr
    t.expect("readonly=off" in said, f"what import says of the mounted share: {said}")
    server.stop()
    said = pool.shale("import", "s", source, status=EXIT_READ_ONLY).stderr
    t.expect("readonly=off" in said, f"what import says: {said}")
    server = pool.serve(shares=True)
    root = server.share("s")
    t.equal(refused(lambda: os.mkdir(root / "new")), "EROFS", "a directory after a restart")
    t.equal(os.listdir(root), ["file"], "names")
    pool.shale("inherit", "readonly", "s")
    os.mkdir(root / "new")
    said = pool.shale("set", "s", "readonly=maybe", status=EXIT["usage"]).stderr
    t.expect("off, on" in said, f"the values that are allowed: {said}")
    server.stop()
    pool.check()
