"""Shares: a directory tree in the pool, mounted, killed, looked at again."""

import errno
import json
import os
import random
import subprocess

from harness import EXIT, Pool, data, test
from harness.context import tree_digest


def listed(pool, name):
    """What `list` says of a volume or a share."""
    found = json.loads(pool.shale("list", name, "--sync", "--json").stdout)
    return found[0]


@test(seconds_max=600)
def shares_hold_a_tree(t):
    """a share made, served, filled by tar, killed with -9 without a sync, served again: every byte, mode, owner and link is there"""
    pool = Pool(t)
    pool.shale("create", "home", "--share", "-o", "compression=zstd-3")
    server = pool.serve(shares=True)
    share = server.share("home")
    source = t.dir / "source"
    data.source_tree(source, 24 << 20)
    os.chmod(next(path for path in source.rglob("*") if path.is_file()), 0o640)
    os.symlink("nowhere/at/all", source / "dangling")
    os.link(next(path for path in source.rglob("*") if path.is_file()), source / "second name")
    (source / "hole").write_bytes(b"x")
    os.truncate(source / "hole", 64 << 20)
    os.chown(source / "hole", 1234, 5678)
    t.run("tar", "-C", t.dir, "-cSf", t.dir / "source.tar", "source")
    t.run("tar", "-C", share, "-xSf", t.dir / "source.tar")
    expected = tree_digest(source)
    t.equal(tree_digest(share / "source"), expected, "the tree in the share")
    # Nothing was synced.
    server.kill()

    server = pool.serve(shares=True)
    share = server.share("home")
    t.equal(tree_digest(share / "source"), expected, "the tree after kill -9")
    found = os.stat(share / "source" / "hole")
    t.equal((found.st_uid, found.st_gid, found.st_size), (1234, 5678, 64 << 20), "owner, group and size")
    names = os.stat(share / "source" / "second name")
    t.equal(names.st_nlink, 2, "names of a file with a hard link")
    said = t.out("diff", "-r", "--no-dereference", source, share / "source")
    t.equal(said, "", "what diff says")

    line = listed(pool, "home")
    t.expect(line["share"] and line["ratio"] > 2, f"a share of sources that takes half at most: {line}")
    t.note(f"source code at {line['ratio']:.2f}x")
    text = pool.shale("list", "-o", "name,type,size").stdout.split()
    t.equal(text, ["NAME", "TYPE", "SIZE", "home", "share", "-"], "what list shows")
    status = pool.status()
    t.equal(status["shares"], str(server.shares_dir), "where shares are served")
    t.run("rm", "-rf", share / "source")
    t.equal(os.listdir(share), [], "what is left after rm -rf")
    server.stop()
    pool.check()


@test(seconds_max=600)
def shares_have_history(t):
    """snapshots of a mounted share, clones, rollback, send and receive: each shows what was there then"""
    pool = Pool(t)
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True)
    share = server.share("home")
    data.source_tree(share / "tree", 8 << 20)
    (share / "notes").write_text("monday\n")
    monday = tree_digest(share)
    # Nothing was synced: the snapshot sees to that.
    pool.shale("snapshot", "home@monday")
    t.run("rm", "-rf", share / "tree")
    (share / "notes").write_text("tuesday\n")
    tuesday = tree_digest(share)
    pool.shale("snapshot", "home@tuesday")

    snapshots = share / ".shale" / "snapshots"
    t.equal(sorted(os.listdir(snapshots)), ["monday", "tuesday"], "names of snapshots")
    t.equal(tree_digest(snapshots / "monday"), monday, "the snapshot in its share's mount")
    t.expect(".shale" not in os.listdir(share), "a listing shows .shale")
    for change in (lambda: (snapshots / "monday" / "notes").write_text("no"), lambda: (snapshots / "monday" / "new").mkdir(),
                   lambda: os.rename(share / "notes", snapshots / "monday" / "notes")):
        try:
            change()
            t.fail("a snapshot in the mount was changed")
        except OSError as error:
            t.log(f"refused as it must be: {error}")
    t.run("cp", "-a", snapshots / "monday" / "tree", share / "back")
    t.equal(tree_digest(share / "back"), tree_digest(snapshots / "monday" / "tree"), "what was brought back")
    t.run("rm", "-rf", share / "back")
    pool.shale("clone", "home@monday", "again")
    t.equal(tree_digest(server.share("again")), monday, "the clone")
    (server.share("again") / "notes").write_text("of the clone\n")
    t.equal(tree_digest(share), tuesday, "the share beside its clone")

    other = Pool(t, name="other")
    for words in (["home@monday"], ["home@tuesday", "--from", "monday"]):
        stream = t.dir / f"stream{len(words)}"
        pool.shale("send", *words, "-o", stream)
        other.shale("receive", "copy", "-i", stream)
    pool.shale("destroy", "home@tuesday")
    t.equal(os.listdir(snapshots), ["monday"], "names of snapshots after one was destroyed")
    pool.shale("rollback", "home@monday", "-r")
    t.equal(tree_digest(share), monday, "the share after the rollback")
    pool.shale("destroy", "-r", "again")
    t.expect(not os.path.ismount(server.shares_dir / "again"), "a destroyed share is still mounted")
    pool.shale("rename", "home", "house")
    t.equal(tree_digest(server.share("house")), monday, "the share under its new name")
    server.stop()
    pool.check()

    server = other.serve(shares=True)
    t.equal(tree_digest(server.share("copy")), tuesday, "the share that was received")
    other.shale("receive", "second", "-i", t.dir / "stream1")
    other.shale("export", "second", t.dir / "second")
    t.equal(tree_digest(t.dir / "second"), monday, "a share that was received under the server")
    server.stop()
    other.check()


@test(seconds_max=300)
def shares_outlive_their_server(t):
    """kill -9 of the server is a pause: open files, names that nobody synced, and a snapshot's directory go on with the next one"""
    pool = Pool(t)
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True, keeps=True)
    share = server.share("home")
    (share / "old").write_text("as it was")
    pool.shale("snapshot", "home@one")
    with open(share / "open", "w+b", buffering=0) as file:
        file.write(b"before ")
        for number in range(200):
            (share / f"name {number}").write_text(f"{number}")
        os.rename(share / "old", share / "new")
        server.kill(leaves_mount=True)
        server = pool.serve(shares=True, keeps=True)
        file.write(b"after")
        os.fsync(file.fileno())
        file.seek(0)
        t.equal(file.read(), b"before after", "the file that was open")
    share = server.share("home")
    t.equal((share / "new").read_text(), "as it was", "the file that was renamed")
    for number in range(200):
        t.equal((share / f"name {number}").read_text(), f"{number}", "a file that nobody synced")
    t.equal(os.listdir(share / ".shale" / "snapshots" / "one"), ["old"], "the snapshot")
    server.stop()
    pool.check()


def fill(directory, generator, known):
    """Files of random bytes, each made durable, until there is no room; the error. `known`: what was acknowledged."""
    number = len(known)
    while True:
        path = directory / f"{generator.getrandbits(48):x}"
        content = generator.randbytes(generator.choice([700, 40_000, 1 << 20]))
        try:
            with open(path, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return error
        known[path] = content
        number += 1
        if number > 5000:
            raise AssertionError("the pool was never full")


def go_on_when_full(t, pool):
    """Files fill a share again and again."""
    pool.shale("create", "home", "--share", "-o", "compression=off")
    server = pool.serve(shares=True, keeps=True)
    share = server.share("home")
    generator = random.Random(5)
    known = {}
    counts = []
    for number in range(4):
        error = fill(share, generator, known)
        t.equal(errno.errorcode[error.errno], "ENOSPC", "what a writer is told")
        counts.append(len(known))
        # Names find no room either, in the end.
        made = []
        try:
            for name in range(200_000):
                os.mkdir(share / f"empty {name}")
                made.append(name)
        except OSError as refused:
            t.equal(errno.errorcode[refused.errno], "ENOSPC", "what mkdir is told")
        if number == 1:
            # The server dies in a full pool, and the next one finds its way.
            server.kill(leaves_mount=True)
            server = pool.serve(shares=True, keeps=True)
        for name in made:
            os.rmdir(share / f"empty {name}")
        for path in list(known)[::2]:
            moved = path.with_name(f"{path.name} moved")
            os.rename(path, moved)
            known[moved] = known.pop(path)
        for path in list(known)[::3]:
            path.unlink()
            del known[path]
        t.run("sync", share)
        t.drop_page_cache()
        for path, content in known.items():
            t.expect(path.read_bytes() == content, f"{path} is not what was acknowledged")
        left = set(os.listdir(share)) - {path.name for path in known}
        t.expect(len(left) <= number + 1, f"names that were refused or removed are there: {left}")
    t.run("rm", "-rf", *share.iterdir())
    t.run("sync", share)
    error = fill(share, generator, {})
    t.equal(errno.errorcode[error.errno], "ENOSPC", "what a writer is told at last")
    t.note(f"full with {counts} files")
    server.stop()
    pool.check()


@test(seconds_max=900)
def shares_go_on_in_a_full_pool(t):
    """a pool filled by files again and again: ENOSPC and no other error, files are removed and renamed all the same, and all goes on"""
    go_on_when_full(t, Pool(t, capacity="160M"))


@test(seconds_max=900)
def shares_go_on_on_a_full_file_system(t):
    """the same in a pool that is larger than the file system below it, and alone there"""
    small = t.dir / "small.img"
    with open(small, "wb") as file:
        file.truncate(200 << 20)
    t.run("mkfs.ext4", "-q", "-F", small)
    t.mount(t.loop(small), "below")
    go_on_when_full(t, Pool(t, name="below/pool", capacity="1G"))


@test(seconds_max=300)
def shares_are_no_volumes(t):
    """what is for volumes refuses shares by name, and says what to do; quotas hold; files that are open keep a share"""
    pool = Pool(t)
    pool.shale("create", "home", "--share", "-o", "quota=16M")
    pool.create("vm", "64M")
    said = pool.shale("create", "home", "--share", status=EXIT["exists"]).stderr
    t.expect("home" in said, f"the name is not in: {said}")
    pool.shale("resize", "home", "1G", status=EXIT["usage"])
    (t.dir / "image").write_bytes(b"no archive" * 100)
    pool.shale("export", "home", t.dir / "image", status=EXIT["exists"])
    pool.shale("import", "home", t.dir / "image", status=EXIT["usage"])
    server = pool.serve(shares=True, mount=True)
    t.equal(os.listdir(server.mount_dir), ["vm"], "files of volumes")
    probe = subprocess.run(["nbdinfo", server.uri("home")], capture_output=True, check=False, text=True)
    t.expect(probe.returncode != 0, "NBD gives a share out as a volume")
    share = server.share("home")
    with open(share / "big", "wb") as file:
        try:
            for _ in range(64):
                file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
            t.fail("64 MiB went into a quota of 16 MiB")
        except OSError as error:
            t.log(f"refused as it must be: {error}")
        # In use: not without being told.
        pool.shale("destroy", "home", status=EXIT["in-use"])
    t.expect(os.path.ismount(share), "the share was unmounted although a file was open")
    (share / "big").unlink()
    pool.shale("destroy", "home")
    t.expect(not os.path.ismount(server.shares_dir / "home"), "a destroyed share is still mounted")
    server.stop()
    pool.check()
