"""Imports into shares that a server has mounted, while programs use them: no message for each file, and nothing outdated is seen."""

import contextlib
import errno
import json
import os
import random
import signal
import socket
import subprocess
import threading

from harness import EXIT, Pool, data, test
from harness.pool import BINARY

EXIT_READ_ONLY = 10


def small_files(tree, directories=20, files=40):
    """A tree of small files; all names in it."""
    names = []
    for number in range(directories):
        directory = tree / f"d{number}"
        directory.mkdir(parents=True)
        names.append(directory.relative_to(tree))
        for file in range(files):
            path = directory / f"f{file}.c"
            path.write_bytes(random.Random(f"{number}/{file}").randbytes(random.Random(file).randrange(6000)))
            names.append(path.relative_to(tree))
    return names


def rsync_sees(t, tree, other):
    return t.out("rsync", "-aHAX", "--checksum", "--delete", "--dry-run", "--itemize-changes", f"{tree}/", f"{other}/")


def changes(pool, share):
    """Requests of the kernel that changed the share."""
    found = json.loads(pool.shale("iostat", share, "--json", quiet=True).stdout)
    [line] = [line for line in found["volumes"] if line["volume"] == share]
    doors = [door for door in line["doors"] if door["door"] == "share"]
    kinds = [kind for door in doors for kind in door["operations"] if kind["operation"] in ("change", "write")]
    return sum(kind["count"] for kind in kinds)


@test(seconds_max=300)
def share_imports_are_seen_by_programs_that_looked_before(t):
    """names looked for, directories listed, files read and attributes cached before an import: all are as imported when it is done, with few messages"""
    tree = t.dir / "tree"
    names = small_files(tree)
    pool = Pool(t)
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True)
    home = server.share("home")
    (home / "d0").mkdir()
    (home / "d0" / "f0.c").write_text("old")
    (home / "d0" / "f1.c").write_text("old as well")
    os.link(home / "d0" / "f1.c", home / "other name")
    names.append((tree / "linked").relative_to(tree))
    os.link(tree / "d1" / "f1.c", tree / "linked")
    os.chmod(tree / "d0", 0o2751)
    os.utime(tree / "d0", ns=(10**18, 10**18 + 7))

    def looks():
        return [os.path.lexists(home / name) for name in names]

    held = os.open(home / "d0" / "f0.c", os.O_RDONLY)
    t.defer(lambda: os.close(held))
    t.equal(sum(looks()), 3, "names that are there before")
    t.equal(sum(looks()), 3, "names from the cache")
    t.equal((sorted(os.listdir(home)), os.listdir(home / "d0")), (["d0", "other name"], ["f0.c", "f1.c"]), "listings before")
    t.equal((home / "d0" / "f0.c").read_text(), "old", "content before")
    t.equal(os.stat(home / "other name").st_nlink, 2, "names of the file before")
    before = changes(pool, "home")

    pool.shale("import", "home", tree, "--overwrite")
    t.equal(changes(pool, "home") - before, 0, "requests that changed the share")
    t.equal(len(names) - sum(looks()), 0, "names that programs do not see")
    t.equal(sorted(os.listdir(home)), sorted([*os.listdir(tree), "other name"]), "the listing of the root")
    t.equal(sorted(os.listdir(home / "d0")), sorted(os.listdir(tree / "d0")), "the listing of a directory that was there")
    t.equal(os.pread(held, 10, 0), b"old", "the replaced file, which is open")
    t.equal((home / "d0" / "f0.c").read_bytes(), (tree / "d0" / "f0.c").read_bytes(), "the file in its place")
    t.equal((home / "other name").read_text(), "old as well", "the other name of a replaced file")
    t.equal(os.stat(home / "other name").st_nlink, 1, "names of that file")
    t.equal(os.stat(home / "d1" / "f1.c").st_nlink, 2, "names of an imported file")
    os.unlink(home / "other name")
    t.equal(rsync_sees(t, tree, home), "", "differences that rsync sees")
    found = os.stat(home / "d0")
    t.equal((found.st_mode & 0o7777, found.st_mtime_ns), (0o2751, 10**18 + 7), "attributes of the directory that was there")
    # Programs go on with it.
    (home / "d1" / "new").write_text("x")
    os.rename(home / "d0", home / "d1" / "moved")
    os.unlink(home / "linked")
    t.equal(os.stat(home / "d1" / "f1.c").st_nlink, 1, "names after one was removed")
    server.stop()
    pool.check()


@test(seconds_max=300)
def share_imports_beside_programs(t):
    """programs list, read and look for names all the time while a tree is imported, and again over itself: each file is whole, and none stays unseen"""
    tree = t.dir / "tree"
    names = small_files(tree, directories=40)
    content = {str(name): (tree / name).read_bytes() for name in names if (tree / name).is_file()}
    pool = Pool(t)
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True)
    home = server.share("home")
    over, wrong, seen = threading.Event(), [], [0]

    def look(seed):
        choice = random.Random(seed)
        while not over.is_set():
            name = str(choice.choice(names))
            try:
                if name in content:
                    found = (home / name).read_bytes()
                    seen[0] += 1
                    if found != content[name]:
                        wrong.append(f"{name} has {len(found)} of {len(content[name])} bytes")
                    if os.stat(home / name).st_size != len(found):
                        wrong.append(f"{name} has another size than content")
                else:
                    for entry in os.listdir(home / name):
                        os.stat(home / name / entry)
            except FileNotFoundError:
                pass
            except OSError as error:
                wrong.append(f"{name}: {error}")

    threads = [threading.Thread(target=look, args=(seed,), daemon=True) for seed in range(4)]
    for thread in threads:
        thread.start()
    pool.shale("import", "home", tree)
    t.equal([str(name) for name in names if not os.path.lexists(home / name)], [], "names that are not seen")
    pool.shale("import", "home", tree, "--overwrite")
    over.set()
    for thread in threads:
        thread.join()
    t.equal(wrong[:3], [], "what programs saw")
    t.note(f"{seen[0]} files read meanwhile")
    t.equal(rsync_sees(t, tree, home), "", "differences that rsync sees")
    # No file that was replaced is left behind.
    t.run("rm", "-rf", *(home / name for name in os.listdir(home)))
    server.stop()
    pool.check()


@test(seconds_max=300)
def share_imports_and_properties(t):
    """xattr=off, acl=off, readonly, an inner share, a socket and a quota: an import into a mounted share obeys them and says so"""
    tree = t.dir / "tree"
    tree.mkdir()
    (tree / "f").write_text("x")
    os.setxattr(tree / "f", "user.note", b"y")
    os.setxattr(tree / "f", "system.posix_acl_access", bytes.fromhex("02000000" "01000600ffffffff" "02000700d2040000" "04000400ffffffff" "10000700ffffffff" "20000400ffffffff"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tree / "socket"))
    listener.close()
    pool = Pool(t)
    for name, words in (("plain", []), ("bare", ["-o", "xattr=off"]), ("noacl", ["-o", "acl=off"]), ("plain/in", [])):
        pool.shale("create", name, "--share", *words)
    server = pool.serve(shares=True)
    pool.shale("import", "plain", tree)
    t.equal(os.getxattr(server.share("plain") / "f", "user.note"), b"y", "an attribute")
    t.equal(rsync_sees(t, tree, server.share("plain")).replace("*deleting   in/", "").strip(), "", "differences that rsync sees")
    said = pool.shale("import", "bare", tree, status=EXIT["io"]).stderr
    t.expect("user.note cannot be set" in said and "posix_acl_access cannot be set" in said, f"xattr=off: {said}")
    said = pool.shale("import", "noacl", tree, status=EXIT["io"]).stderr
    t.expect("user.note" not in said and "posix_acl_access cannot be set" in said, f"acl=off: {said}")
    # What the mount refuses is not there when it does not.
    for name in ("bare", "noacl"):
        pool.shale("set", name, "xattr=on", "acl=on")
    server.stop()
    server = pool.serve(shares=True)
    t.equal(os.listxattr(server.share("bare") / "f"), [], "attributes with xattr=off")
    t.equal(os.listxattr(server.share("noacl") / "f"), ["user.note"], "attributes with acl=off")
    # The directory of an inner share is not its own.
    (tree / "in").mkdir()
    (tree / "in" / "lost").write_text("x")
    said = pool.shale("import", "plain", tree, "--overwrite", status=EXIT["io"]).stderr
    t.expect("in/lost: " in said and os.strerror(errno.EBUSY) in said, f"into the directory of an inner share: {said}")
    t.equal(os.listdir(server.share("plain/in")), [], "the inner share")
    pool.shale("set", "plain", "readonly=on")
    said = pool.shale("import", "plain", tree, status=EXIT_READ_ONLY).stderr
    t.expect("readonly=off" in said, f"readonly: {said}")
    line = json.loads(pool.shale("list", "plain", "--json").stdout)[0]
    t.expect(not line["incomplete"], f"a share that was not changed is marked: {line}")
    said = t.run("setpriv", "--reuid", "65534", "--clear-groups", BINARY, "import", pool.path, "plain", tree, status=None)
    t.expect(said.returncode != 0, "a user that is not root can import")
    server.stop()
    pool.check()


@test(seconds_max=600)
def share_imports_of_killed_servers(t):
    """kill -9 of the server in the middle of an import, with and without a mount that is kept: the names are a beginning, and the next import brings all"""
    tree = t.dir / "tree"
    data.source_tree(tree, 30 << 20)
    archive = t.dir / "tree.tar"
    t.run("tar", "-C", tree, "-cf", archive, ".")
    bytes_ = archive.read_bytes()
    pool = Pool(t)
    for keeps in (False, True):
        name = f"home{keeps}"
        server = pool.serve(shares=True, keeps=keeps)
        child = subprocess.Popen([BINARY, "import", pool.path, name, "-", "--share"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=False)
        child.stdin.write(bytes_[: len(bytes_) * 2 // 3])
        child.stdin.flush()
        home = server.share(name)
        t.wait_for(lambda: os.listdir(home), "imported names")
        # Those that are missing are cached as absent.
        missing = [path.relative_to(tree) for path in sorted(tree.rglob("*")) if not os.path.lexists(home / path.relative_to(tree))]
        t.expect(missing, "the import is complete before the server was killed")
        server.kill(leaves_mount=keeps)
        said = child.communicate(bytes_[len(bytes_) * 2 // 3 :])[1].decode()
        t.expect(child.returncode != 0 and "server ended" in said, f"what the import says of a killed server: {said}")
        if not keeps:
            pool.check()
        server = pool.serve(shares=True, keeps=keeps)
        home = server.share(name)
        for path in home.rglob("*"):
            original = tree / path.relative_to(home)
            t.expect(not path.is_file() or path.read_bytes() == original.read_bytes(), f"{path} is not whole")
        line = json.loads(pool.shale("list", name, "--json").stdout)[0]
        t.expect(line["incomplete"], f"a share of a broken import is not marked: {line}")
        pool.shale("import", name, archive, "--overwrite")
        t.equal([str(path) for path in missing if not os.path.lexists(home / path)], [], "names that are not seen")
        t.equal(rsync_sees(t, tree, home), "", "differences that rsync sees")
        server.stop()
        pool.check()


@test(seconds_max=300)
def share_imports_that_end_early(t):
    """Ctrl-C, a cancelled job, a stopped server: the share is marked, the server goes on, and can be stopped and started"""
    tree = t.dir / "tree"
    small_files(tree)
    archive = t.dir / "tree.tar"
    t.run("tar", "-C", tree, "-cf", archive, ".")
    bytes_ = archive.read_bytes()
    pool = Pool(t)
    server = pool.serve(shares=True)

    def begin(name):
        child = subprocess.Popen([BINARY, "import", pool.path, name, "-", "--share"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        child.stdin.write(bytes_[: len(bytes_) // 2])
        child.stdin.flush()
        t.wait_for(lambda: os.path.ismount(server.shares_dir / name) and os.listdir(server.shares_dir / name), "imported names")
        busy = t.run("umount", server.share(name), status=None)
        t.expect(busy.returncode != 0 and "busy" in busy.stderr, f"a share that is imported into can be unmounted: {busy}")
        return child

    def end(child):
        """Feeds it slowly until it ends, because it looks for the reason between two reads."""
        pieces = iter(range(len(bytes_) // 2, len(bytes_), 4096))

        def feed():
            at = next(pieces, None)
            t.expect(at is not None, "the import did not end early")
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(bytes_[at : at + 4096])
                child.stdin.flush()
            return child.poll() is not None

        t.wait_for(feed, "the end of the import")
        return child.stderr.read().decode()

    def is_marked(name):
        return json.loads(pool.shale("list", name, "--json").stdout)[0]["incomplete"]

    child = begin("interrupted")
    child.send_signal(signal.SIGINT)
    said = end(child)
    t.expect("incomplete" in said and is_marked("interrupted"), f"what an interrupted import says: {said}")
    child = begin("cancelled")
    [job] = json.loads(pool.shale("jobs", "--json").stdout)
    pool.shale("jobs", "--cancel", str(job["id"]), status=None)
    said = end(child)
    t.expect("was cancelled" in said and is_marked("cancelled"), f"what a cancelled import says: {said}")
    # Nothing of it keeps the share in use.
    pool.shale("destroy", "cancelled", "--recursive")
    child = begin("stopped")
    server.stop()
    said = end(child)
    t.expect("server is stopping" in said, f"what an import says of a stopped server: {said}")
    server = pool.serve(shares=True)
    t.expect(is_marked("stopped"), "a share whose server was stopped is not marked")
    pool.shale("import", "stopped", archive, "--overwrite")
    t.equal(rsync_sees(t, tree, server.share("stopped")), "", "differences that rsync sees")
    server.stop()
    pool.check()
