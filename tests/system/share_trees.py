"""Trees in and out of shares: import and export of directories and tar archives, compared with what other programs see."""

import json
import os
import shutil
import socket
import struct
import subprocess
import tarfile

from harness import EXIT, Pool, data, test
from harness.pool import BINARY

# Entries of an ACL: tag, permissions, id.
ACL = [(1, 6, -1), (2, 5, 1234), (4, 4, -1), (8, 6, 4321), (16, 7, -1), (32, 4, -1)]


def acl(entries):
    """An ACL as the kernel takes it."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


def awkward_tree(t, name, size=6 << 20):
    """A tree that has one of everything."""
    tree = t.dir / name
    data.source_tree(tree / "code", size)
    root = os.fsencode(tree)
    os.makedirs(root + b"/odd")
    for first in range(1, 256, 50):
        name = bytes(byte for byte in range(first, min(first + 50, 256)) if byte != ord("/"))
        with open(root + b"/odd/" + name, "wb") as file:
            file.write(name)
    long = root + b"/odd/" + b"\xff" * 255
    os.mkdir(long)
    with open(long + b"/" + b"n" * 255, "wb") as file:
        file.write(b"deep")
    with open(root + b"/holes", "wb") as file:
        for at in (0, 5 << 20, 40 << 20):
            file.seek(at)
            file.write(os.urandom(10_000))
        file.truncate(200 << 20)
    os.truncate(os.open(root + b"/only hole", os.O_CREAT | os.O_WRONLY), 64 << 20)
    open(root + b"/empty", "wb").close()
    with open(root + b"/marked", "wb") as file:
        file.write(b"marked\n" * 1000)
    os.setxattr(root + b"/marked", "user.note", b"\0\n=binary\xff")
    os.setxattr(root + b"/marked", "user.a=%b", b"x" * 3000)
    os.setxattr(root + b"/marked", "trusted.secret", b"")
    os.setxattr(root + b"/marked", "system.posix_acl_access", acl(ACL))
    os.mkdir(root + b"/inherits")
    os.setxattr(root + b"/inherits", "system.posix_acl_default", acl(ACL))
    os.setxattr(root + b"/inherits", "user.of", b"a directory")
    with open(root + b"/inherits/not", "wb") as file:
        file.write(b"made before, in effect")
    os.removexattr(root + b"/inherits/not", "system.posix_acl_access")
    os.chmod(root + b"/inherits/not", 0o600)
    for mode in (0o4755, 0o2711, 0o1640, 0o000):
        path = root + b"/mode %o" % mode
        with open(path, "wb") as file:
            file.write(b"mode")
        os.chown(path, 1000 + mode, 5_000_000)
        os.chmod(path, mode)
    os.mkdir(root + b"/shared")
    os.chown(root + b"/shared", 3, 7)
    os.chmod(root + b"/shared", 0o3777)
    with open(root + b"/shared/other group", "wb") as file:
        file.write(b"x")
    os.chown(root + b"/shared/other group", 8, 9)
    os.symlink(b"to/nowhere" + b"x" * 200, root + b"/dangling")
    os.lchown(root + b"/dangling", 11, 12)
    os.link(root + b"/marked", root + b"/odd/second name")
    os.link(root + b"/dangling", root + b"/odd/second link")
    os.mkfifo(root + b"/fifo", 0o620)
    os.mknod(root + b"/device", 0o600 | 0o020000, os.makedev(1, 3))
    os.mknod(root + b"/disk", 0o640 | 0o060000, os.makedev(259, 300))
    for number, path in enumerate([b"/marked", b"/holes", b"/odd", b"/inherits", b"/dangling", b"/fifo", b""]):
        moment = (1_000_000_000 + number) * 10**9 + 123_456_789
        os.utime(root + path, ns=(moment, moment + 1), follow_symlinks=False)
    return tree


def same(t, tree, other, *options):
    """Demands that rsync sees no difference: content, owners, modes, times, attributes, ACLs, hard links."""
    said = t.out("rsync", "-aHAX", "--checksum", "--delete", "--dry-run", "--itemize-changes", *options, f"{tree}/", f"{other}/")
    t.equal(said, "", f"differences that rsync sees between {tree.name} and {other}")
    for path in ["marked", "inherits", "holes", "dangling", ""]:
        times = [os.stat(directory / path, follow_symlinks=False).st_mtime_ns for directory in (tree, other)]
        t.equal(times[1], times[0], f"time of '{path}' in nanoseconds")


def few_blocks(t, tree):
    """Demands that holes are holes."""
    for name in ("holes", "only hole"):
        taken, at = 0, 0
        with open(tree / name, "rb") as file:
            while True:
                try:
                    begin = os.lseek(file.fileno(), at, os.SEEK_DATA)
                except OSError:
                    break
                at = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
                taken += at - begin
        t.expect(taken <= 256 << 10, f"{tree / name} has {taken} bytes of data")


@test(seconds_max=600)
def share_trees_come_back_whole(t):
    """a tree with one of everything imported and exported, with and without a server: rsync sees no difference"""
    tree = awkward_tree(t, "tree")
    pool = Pool(t)
    summary = json.loads(pool.shale("import", "home", tree, "--json").stdout)
    t.equal((summary["problems"], summary["kept"], summary["links"]), (0, 0, 2), "what the import says of problems")
    t.expect(summary["hole_bytes"] > 250 << 20 and summary["ratio"] > 1.5, f"holes and ratio: {summary}")
    t.note(f"{summary['files']} files at {summary['bytes_per_second'] >> 20} MiB/s, ratio {summary['ratio']:.2f}")
    pool.check()
    pool.shale("export", "home", t.dir / "out")
    same(t, tree, t.dir / "out")
    few_blocks(t, t.dir / "out")
    pool.shale("snapshot", "home@one")

    server = pool.serve(shares=True)
    same(t, tree, server.share("home"))
    pool.shale("import", "again", tree)
    same(t, tree, server.share("again"))
    few_blocks(t, server.share("again"))
    pool.shale("export", "home@one", t.dir / "out served")
    same(t, tree, t.dir / "out served")
    pool.shale("export", "home", "inherits", t.dir / "part")
    t.equal(os.listdir(t.dir / "part"), ["not"], "a part of the share")
    t.equal(os.getxattr(t.dir / "part", "user.of"), b"a directory", "an attribute of the part itself")
    t.expect(all(not line["incomplete"] for line in json.loads(pool.shale("list", "--json").stdout)), "a share is still marked")
    server.stop()
    pool.check()
    pool.shale("export", "home@one", "marked", t.dir / "one file")
    t.equal(os.listdir(t.dir / "one file"), ["marked"], "one file of a snapshot")


@test(seconds_max=600)
def share_archives_come_back_whole(t):
    """archives of GNU tar in three forms imported, and ours unpacked by GNU tar and bsdtar: rsync sees no difference"""
    tree = awkward_tree(t, "tree", 3 << 20)
    pool = Pool(t)
    archive = t.dir / "all.tar"
    attributes = ["--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner"]
    t.run("tar", "-C", tree, *attributes, "--sparse", "-cf", archive, ".")
    pool.shale("import", "home", archive, "--share")
    pool.shale("export", "home", t.dir / "out")
    same(t, tree, t.dir / "out")
    few_blocks(t, t.dir / "out")
    # Versions 0.1 and 0.0 of the sparse format, and the one from before POSIX, which has neither attributes nor nanoseconds.
    for version in ("0.1", "0.0"):
        t.run("tar", "-C", tree, *attributes, f"--sparse-version={version}", "--sparse", "-cf", archive, "holes", "only hole")
        pool.shale("import", f"holes{version}", archive, "--share")
        pool.shale("export", f"holes{version}", t.dir / version)
        for name in ("holes", "only hole"):
            t.run("cmp", tree / name, t.dir / version / name)
        few_blocks(t, t.dir / version)
    t.run("tar", "-C", tree, "--format=gnu", "--sparse", "-cf", archive, ".")
    pool.shale("import", "old", archive, "--share")
    pool.shale("export", "old", t.dir / "old")
    said = t.out("rsync", "-rlHpgoD", "--checksum", "--delete", "--dry-run", "--itemize-changes", f"{tree}/", f"{t.dir}/old/")
    t.equal(said, "", "what differs after an archive in the old format")
    few_blocks(t, t.dir / "old")

    pool.shale("export", "home", t.dir / "ours.tar")
    (t.dir / "gnu").mkdir()
    t.run("tar", "-C", t.dir / "gnu", *attributes, "-xpf", t.dir / "ours.tar")
    same(t, tree, t.dir / "gnu")
    few_blocks(t, t.dir / "gnu")
    if shutil.which("bsdtar"):
        (t.dir / "bsd").mkdir()
        t.run("env", "LC_ALL=C.UTF-8", "bsdtar", "-C", t.dir / "bsd", "-xpf", t.dir / "ours.tar", "--numeric-owner", text=False)
        # bsdtar leaves GNU's escapes in names of attributes, and the time of `./` alone.
        os.removexattr(tree / "marked", "user.a=%b")
        os.removexattr(t.dir / "bsd" / "marked", "user.a%3D%25b")
        times = os.stat(tree)
        os.utime(t.dir / "bsd", ns=(times.st_atime_ns, times.st_mtime_ns))
        same(t, tree, t.dir / "bsd")
        t.run("env", "LC_ALL=C.UTF-8", "bsdtar", "-C", tree, "-cf", archive, "--format=pax", "--numeric-owner", ".", text=False)
        pool.shale("import", "bsd", archive, "--share")
        pool.shale("export", "bsd", t.dir / "of bsd")
        same(t, tree, t.dir / "of bsd")
        os.setxattr(tree / "marked", "user.a=%b", b"x" * 3000)
    # Through pipes, with a server on both sides.
    server = pool.serve(shares=True)
    stream = t.run(BINARY, "export", pool.path, "home", "-", text=False).stdout
    t.run(BINARY, "import", pool.path, "piped", "-", "--share", stdin=stream, text=False)
    same(t, tree, server.share("piped"))
    server.stop()
    pool.check()


@test(seconds_max=300)
def share_imports_keep_what_is_there(t):
    """a second import replaces nothing without --overwrite, says what stays, and brings the rest; so does an export"""
    tree = t.dir / "tree"
    data.source_tree(tree / "code", 1 << 20)
    (tree / "note").write_text("old\n")
    pool = Pool(t)
    pool.shale("import", "home", tree)
    (tree / "note").write_text("new\n")
    (tree / "more").write_text("more\n")
    told = pool.shale("import", "home", tree, status=EXIT["exists"])
    t.expect("--overwrite" in told.stderr, f"no advice in: {told.stderr}")
    t.expect("the whole share: " in told.stdout, f"the figures of the share are not told as such: {told.stdout}")
    pool.shale("export", "home", t.dir / "out")
    t.equal([(t.dir / "out" / name).read_text() for name in ("note", "more")], ["old\n", "more\n"], "without --overwrite")
    (t.dir / "out" / "note").write_text("mine\n")
    pool.shale("import", "home", tree, "--overwrite")
    pool.shale("export", "home", t.dir / "out", status=EXIT["exists"])
    t.equal((t.dir / "out" / "note").read_text(), "mine\n", "a file that an export found")
    pool.shale("export", "home", t.dir / "out", "--force")
    t.equal((t.dir / "out" / "note").read_text(), "new\n", "with --overwrite and --force")
    # In an archive that was appended to, the last of a name counts.
    with tarfile.open(t.dir / "twice.tar", "w") as archive:
        for text in (b"first", b"last!"):
            (t.dir / "text").write_bytes(text)
            archive.add(t.dir / "text", "text")
    pool.shale("import", "twice", t.dir / "twice.tar", "--share")
    pool.shale("export", "twice", "text", t.dir / "text out")
    t.equal((t.dir / "text out" / "text").read_bytes(), b"last!", "the last of two files of one name")
    pool.check()


@test(seconds_max=300)
def share_imports_that_are_killed(t):
    """kill -9 in the middle of an import: the pool checks clean, the share says that it is incomplete, the next import brings all"""
    tree = t.dir / "tree"
    data.source_tree(tree, 40 << 20)
    archive = t.dir / "tree.tar"
    t.run("tar", "-C", tree, "-cf", archive, ".")
    bytes_ = archive.read_bytes()
    pool = Pool(t)
    for is_served in (False, True):
        name = f"home{is_served}"
        server = pool.serve(shares=True) if is_served else None
        child = subprocess.Popen([BINARY, "import", pool.path, name, "-", "--share"], stdin=subprocess.PIPE)
        # All but what a pipe and a buffer hold has been read when this returns.
        child.stdin.write(bytes_[: len(bytes_) * 3 // 4])
        child.kill()
        child.wait()
        child.stdin.close()
        if server:
            server.kill()
        pool.check()
        line = json.loads(pool.shale("list", name, "--json").stdout)[0]
        t.expect(line["incomplete"], f"a share of a killed import does not say so: {line}")
        pool.shale("import", name, archive, "--overwrite")
        line = json.loads(pool.shale("list", name, "--json").stdout)[0]
        t.expect(not line["incomplete"], f"a share of a whole import is marked: {line}")
        pool.shale("export", name, t.dir / f"out {name}")
        said = t.out("rsync", "-aHAX", "--checksum", "--delete", "--dry-run", "--itemize-changes", f"{tree}/", f"{t.dir}/out {name}/")
        t.equal(said, "", "what differs after the second import")
        pool.check()


@test(seconds_max=300)
def share_imports_say_what_is_wrong(t):
    """what is no archive, is cut off, leads out of the tree or is a volume is refused with what to do, and leaves nothing behind"""
    pool = Pool(t)
    tree = t.dir / "tree"
    tree.mkdir()
    (tree / "big").write_bytes(os.urandom(100_000))
    (tree / "a").write_text("a")
    archive = t.dir / "tree.tar"
    t.run("tar", "-C", tree, "-cf", archive, "--sort=name", ".")
    t.run("gzip", "-k", archive)
    cut = t.dir / "cut.tar"
    cut.write_bytes(archive.read_bytes()[:50_000])
    no = t.dir / "no.tar"
    no.write_bytes(b"this is no archive " * 1000)
    (t.dir / "nothing").write_bytes(b"")
    for file, status, words in ((f"{archive}.gz", "usage", "zcat"), (no, "usage", "not a tar archive"), (t.dir / "nothing", "usage", "is empty")):
        said = pool.shale("import", "home", file, "--share", status=EXIT[status]).stderr
        t.expect(words in said and "removed" in said, f"no '{words}' in: {said}")
    t.equal(json.loads(pool.shale("list", "--json").stdout), [], "shares that failed imports have left")
    said = pool.shale("import", "home", cut, "--share", status=EXIT["corrupt"]).stderr
    t.expect("cut off" in said and "incomplete" in said, f"no advice in: {said}")
    pool.shale("import", "home", archive, "--overwrite")
    pool.shale("import", "home", t.dir / "absent", "--share", status=EXIT["not-found"])
    pool.shale("import", "home", tree, "--size", "1G", status=EXIT["usage"])
    pool.create("vm", "64M")
    said = pool.shale("import", "vm", tree, status=EXIT["unsupported"]).stderr
    t.expect("volume" in said, f"no word of the volume in: {said}")
    pool.shale("export", "home", "absent", t.dir / "out", status=EXIT["not-found"])
    pool.shale("export", "vm", "path", t.dir / "out", status=EXIT["usage"])

    with tarfile.open(t.dir / "out.tar", "w") as file:
        for name in ("../outside", "inside", "a/../../outside"):
            file.add(tree / "a", name)
        link = tarfile.TarInfo("way")
        link.type, link.linkname = tarfile.SYMTYPE, str(t.dir)
        file.addfile(link)
        file.add(tree / "a", "way/outside")
    for is_served in (False, True):
        server = pool.serve(shares=True) if is_served else None
        name = f"safe{is_served}"
        said = pool.shale("import", name, t.dir / "out.tar", "--share", status=EXIT["io"]).stderr
        t.equal(said.count("leads out of the tree"), 2, "names that lead out")
        t.expect(not (t.dir / "outside").exists(), "an archive wrote outside of the share")
        pool.shale("export", name, t.dir / name)
        t.equal(sorted(os.listdir(t.dir / name)), ["inside", "way"], "what is in the share")
        if server:
            server.stop()

    server = pool.serve()
    for words in (["import", "home", tree], ["export", "home", t.dir / "out"]):
        said = pool.shale(*words, status=EXIT["in-use"]).stderr
        t.expect("--shares" in said and "stop" in said, f"no advice in: {said}")
    server.stop()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tree / "socket"))
    listener.close()
    pool.shale("import", "sockets", tree)
    said = pool.shale("export", "sockets", t.dir / "sockets.tar", status=EXIT["io"]).stderr
    t.expect("socket" in said, f"no word of the socket in: {said}")
    pool.check()
