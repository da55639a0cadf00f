"""Imports into shares that a server creates for them: no message of the kernel for a file, and a share that is mounted when the import has ended."""

import contextlib
import io
import json
import os
import random
import signal
import socket
import subprocess
import tarfile

from harness import EXIT, Pool, data, test
from harness.pool import BINARY
from harness.sweep import mounts_under

SECONDS_MAX = 120


def small_files(tree, directories=20, files=40):
    """A tree of small files."""
    for number in range(directories):
        directory = tree / f"d{number}"
        directory.mkdir(parents=True)
        for file in range(files):
            content = random.Random(f"{number}/{file}")
            (directory / f"f{file}.c").write_bytes(content.randbytes(content.randrange(6000)))


def same(t, tree, other):
    found = t.out("rsync", "-aHAX", "--checksum", "--delete", "--dry-run", "--itemize-changes", f"{tree}/", f"{other}/")
    t.equal(found, "", f"differences between {tree} and {other}")


def listed(pool, name):
    """The line of a share."""
    return json.loads(pool.shale("list", name, "--json", quiet=True).stdout)[0]


def changes(pool, share):
    """Requests of the kernel that changed a share."""
    found = json.loads(pool.shale("iostat", share, "--json", quiet=True).stdout)
    kinds = [kind for line in found["volumes"] if line["volume"] == share for door in line["doors"] if door["door"] == "share" for kind in door["operations"]]
    return sum(kind["count"] for kind in kinds if kind["operation"] in ("change", "write"))


class Import:
    """An import from stdin of which the first half of the archive has been sent."""

    def __init__(self, t, pool, name, archive):
        self.t, self.bytes = t, archive.read_bytes()
        self.child = subprocess.Popen([BINARY, "import", pool.path, name, "-", "--share"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        t.defer(self.child.kill)
        self.child.stdin.write(self.bytes[: len(self.bytes) // 2])
        self.child.stdin.flush()
        t.wait_for(lambda: name in pool.shale("list", quiet=True).stdout, "the new share")

    def end(self):
        """Sends the rest; returns what the command says."""
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.write(self.bytes[len(self.bytes) // 2 :])
            self.child.stdin.close()
        said = self.child.stderr.read().decode()
        self.child.wait()
        return said


def archive_of(t, tree):
    archive = t.dir / f"{tree.name}.tar"
    t.run("tar", "-C", tree, "-cf", archive, ".")
    return archive


@test(seconds_max=300)
def share_imports_take_no_messages(t):
    """a new share of a served pool is imported without requests of the kernel, mounted when the command returns, and used at once; so it is where no share is mounted"""
    tree = t.dir / "tree"
    small_files(tree)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tree / "socket"))
    listener.close()
    os.chmod(tree, 0o2751)
    os.chown(tree / "d0", 1234, 4_000_000_000)
    os.utime(tree / "d0", ns=(10**18 + 3, 10**18 + 7))
    pool = Pool(t)
    server = pool.serve(shares=True)
    t.expect(not os.path.lexists(server.shares_dir / "home"), "a share that was not created")
    told = json.loads(pool.shale("import", "home", tree, "--json").stdout)
    t.equal((told["files"], told["directories"], told["others"], told["problems"]), (800, 21, 1, 0), "counts of the import")
    home = server.share("home")
    t.equal(changes(pool, "home"), 0, "requests that changed the share")
    same(t, tree, home)
    t.expect(not listed(pool, "home")["incomplete"], "a whole share is marked")
    (home / "new").write_text("x")
    (home / "new").unlink()
    (home / "d1" / "f1.c").unlink()
    # The second import is one into a mounted share.
    pool.shale("import", "home", tree, "--overwrite")
    t.expect(changes(pool, "home") > 800, "an import into a mounted share without requests")
    same(t, tree, home)
    server.kill()
    server = pool.serve(shares=True)
    same(t, tree, server.share("home"))
    server.stop()
    server = pool.serve()
    pool.shale("import", "unmounted", tree)
    server.stop()
    pool.check()
    server = pool.serve(shares=True)
    same(t, tree, server.share("unmounted"))
    server.stop()


@test(seconds_max=300)
def share_imports_keep_their_share(t):
    """a share that is being imported is listed as incomplete, is not mounted, and cannot be destroyed or renamed; a share in it is mounted with it"""
    tree = t.dir / "tree"
    small_files(tree)
    pool = Pool(t)
    server = pool.serve(shares=True)
    running = Import(t, pool, "home", archive_of(t, tree))
    t.expect(listed(pool, "home")["incomplete"], "a share is not marked during its import")
    pool.shale("create", "home/in", "--share")
    pool.shale("create", "other", "--share")
    t.equal(mounts_under(server.shares_dir), [str(server.shares_dir / "other")], "mounted shares")
    for words in (["destroy", "home", "--recursive", "--force"], ["rename", "home", "away"]):
        pool.shale(*words, status=EXIT["in-use"])
    said = pool.shale("import", "home", tree, status=EXIT["in-use"]).stderr
    t.expect("is being imported by job" in said, f"a second import meanwhile: {said}")
    t.expect(listed(pool, "home")["incomplete"], "the second import has removed the mark of the first")
    said = pool.shale("export", "home", t.dir / "out", status=EXIT["in-use"]).stderr
    t.expect("is being imported by job" in said, f"an export meanwhile: {said}")
    t.equal(running.end(), "", "problems of the import")
    t.equal(running.child.returncode, 0, "its exit code")
    t.expect(os.path.ismount(server.share("home/in")), "the share in it is not mounted")
    t.equal(sorted(os.listdir(server.share("home"))), sorted([*os.listdir(tree), "in"]), "names in the share")
    server.stop()
    pool.check()


@test(seconds_max=300)
def share_imports_refuse_what_mounts_refuse(t):
    """readonly, a name that is taken, xattr=off, acl=off, a quota and a full pool: an import into a new share says so, and the server goes on"""
    tree = t.dir / "tree"
    tree.mkdir()
    (tree / "f").write_text("x")
    os.setxattr(tree / "f", "user.note", b"y")
    acl = bytes.fromhex("0200000001000600ffffffff02000700d204000004000400ffffffff10000700ffffffff20000400ffffffff")
    os.setxattr(tree / "f", "system.posix_acl_access", acl)
    pool = Pool(t, capacity="256M")
    server = pool.serve(shares=True)
    said = pool.shale("import", "fixed", tree, "-o", "readonly=on", status=10).stderr
    t.expect("readonly=on" in said, f"readonly: {said}")
    for name, words, refused, kept in (("bare", "xattr=off", ["user.note", "posix_acl_access"], []), ("noacl", "acl=off", ["posix_acl_access"], ["user.note"])):
        said = pool.shale("import", name, tree, "-o", words, status=EXIT["io"]).stderr
        t.equal([word for word in ("user.note", "posix_acl_access") if f"{word} cannot be set" in said], refused, f"{words}: {said}")
        # What the mount would refuse is not there when it does not.
        pool.shale("set", name, "xattr=on", "acl=on")
        server.stop()
        server = pool.serve(shares=True)
        t.equal(os.listxattr(server.share(name) / "f"), kept, f"attributes with {words}")
    big = t.dir / "big"
    big.mkdir()
    for number in range(40):
        (big / f"f{number}").write_bytes(os.urandom(1 << 20))
    said = pool.shale("import", "small", big, "-o", "quota=8M", status=EXIT["full"]).stderr
    t.expect("incomplete" in said, f"quota: {said}")
    t.expect(listed(pool, "small")["incomplete"] and os.listdir(server.share("small")), "the share that was at its quota")
    for number in range(40, 300):
        (big / f"f{number}").write_bytes(os.urandom(1 << 20))
    said = pool.shale("import", "all", big, status=EXIT["full"]).stderr
    t.expect("incomplete" in said, f"a full pool: {said}")
    for name in ("all", "small"):
        pool.shale("destroy", name, "--recursive")
    pool.shale("import", "again", tree)
    same(t, tree, server.share("again"))
    names = [line["name"] for line in json.loads(pool.shale("list", "--json").stdout)]
    t.equal(sorted(names), ["again", "bare", "noacl"], "shares")
    server.stop()
    pool.check()


@test(seconds_max=600)
def share_imports_that_end_early(t):
    """kill -9 and Ctrl-C of the command, a cancelled job, SIGTERM and kill -9 of the server: the share stays marked, is mounted by this server or the next, and the next import brings the rest"""
    tree = t.dir / "tree"
    data.source_tree(tree, 30 << 20)
    archive = archive_of(t, tree)
    pool = Pool(t, capacity="1G")
    server = pool.serve(shares=True)

    def finish(name):
        t.expect(listed(pool, name)["incomplete"], f"'{name}' is not marked as incomplete")
        t.wait_for(lambda: os.path.ismount(server.shares_dir / name), f"the mount of {name}")
        for path in server.share(name).rglob("*"):
            t.expect(os.path.lexists(tree / path.relative_to(server.share(name))), f"{path} is not of the archive")
        pool.shale("import", name, archive, "--overwrite")
        same(t, tree, server.share(name))
        t.expect(not listed(pool, name)["incomplete"], f"'{name}' is still marked")
        pool.shale("destroy", name, "--recursive")

    running = Import(t, pool, "killed", archive)
    running.child.kill()
    running.child.wait()
    finish("killed")
    running = Import(t, pool, "interrupted", archive)
    running.child.send_signal(signal.SIGINT)
    said = running.end()
    t.expect(running.child.returncode == 130 and "incomplete" in said, f"what an interrupted import says: {said}")
    finish("interrupted")
    running = Import(t, pool, "cancelled", archive)
    [job] = [job for job in json.loads(pool.shale("jobs", "--json").stdout) if job["target"] == "cancelled"]
    pool.shale("jobs", "--cancel", str(job["id"]), status=None)
    said = running.end()
    t.expect("cancelled" in said, f"what a cancelled import says: {said}")
    finish("cancelled")
    running = Import(t, pool, "stopped", archive)
    server.stop()
    said = running.end()
    # The server cancels the job of the import as well: whichever the command meets first.
    t.expect(running.child.returncode != 0 and ("stopping" in said or "was cancelled" in said), f"what an import says of a server that stops: {said}")
    pool.check()
    server = pool.serve(shares=True)
    finish("stopped")
    running = Import(t, pool, "gone", archive)
    server.kill()
    said = running.end()
    t.expect(running.child.returncode != 0 and "server ended" in said, f"what an import says of a killed server: {said}")
    pool.check()
    server = pool.serve(shares=True)
    finish("gone")
    server.stop()
    pool.check()


@test(seconds_max=300)
def share_imports_keep_the_marks_of_others(t):
    """an import that fails, or one without --overwrite, leaves the mark of an earlier import that was killed; of two imports into a mounted share the second is refused"""
    tree, small, text = t.dir / "tree", t.dir / "small", t.dir / "text"
    small_files(tree)
    small.mkdir()
    (small / "new").write_text("x")
    text.write_text("no archive\n" * 100)
    archive = archive_of(t, tree)
    pool = Pool(t)
    server = pool.serve(shares=True)
    running = Import(t, pool, "home", archive)
    running.child.kill()
    running.child.wait()
    t.wait_for(lambda: os.path.ismount(server.shares_dir / "home"), "the mount of the share")
    home = server.share("home")
    said = pool.shale("import", "home", text, "--share", status=EXIT["usage"]).stderr
    t.expect("marked as incomplete by an earlier import" in said, f"an import that fails: {said}")
    t.expect(listed(pool, "home")["incomplete"], "the mark after an import that failed")
    said = pool.shale("import", "home", small).stderr
    t.expect("stays marked as incomplete" in said, f"an import of another tree: {said}")
    pool.shale("import", "home", archive, "--share", status=EXIT["exists"])
    t.expect(listed(pool, "home")["incomplete"], "the mark after an import that kept what was there")
    (home / "new").unlink()
    pool.shale("import", "home", archive, "--share", "--overwrite")
    t.expect(not listed(pool, "home")["incomplete"], "the mark after a whole import")
    same(t, tree, home)
    pool.shale("create", "mounted", "--share")
    mounted = server.share("mounted")
    running = Import(t, pool, "mounted", archive)
    t.wait_for(lambda: listed(pool, "mounted")["incomplete"], "the mark of an import into a mounted share")
    said = pool.shale("import", "mounted", small, status=EXIT["in-use"]).stderr
    t.expect("is being imported by job" in said, f"a second import into a mounted share: {said}")
    running.child.kill()
    running.child.wait()
    t.expect(listed(pool, "mounted")["incomplete"], "the mark of a killed import after a second one")
    pool.shale("import", "mounted", archive, "--share", "--overwrite")
    t.expect(not listed(pool, "mounted")["incomplete"], "the mark after the rest was imported")
    same(t, tree, mounted)
    server.stop()
    pool.check()


@test(seconds_max=300)
def share_imports_replace_whole_files(t):
    """kill -9 and Ctrl-C in the middle of a file that an import replaces, with and without a server: the old content is there, under its name or another, and the same import leaves nothing but the new files"""
    old, new = t.dir / "old", t.dir / "new"
    for tree, letter in ((old, b"o"), (new, b"n")):
        tree.mkdir()
        for number in range(4):
            (tree / f"f{number}").write_bytes(letter * (4 << 20))
    archive = archive_of(t, new)
    pool = Pool(t)
    for is_served in (True, False):
        server = pool.serve(shares=True) if is_served else None
        for number, interruption in enumerate((signal.SIGKILL, signal.SIGINT)):
            name = f"home{is_served}{number}"
            pool.shale("import", name, old)
            child = subprocess.Popen([BINARY, "import", pool.path, name, "-", "--share", "--overwrite"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
            t.defer(child.kill)
            # In the middle of the third file; all but the content of a pipe and a buffer has been read.
            child.stdin.write(archive.read_bytes()[: 10 << 20])
            child.stdin.flush()
            child.send_signal(interruption)
            child.wait()
            out = t.dir / f"out {name}"
            pool.shale("export", name, out)
            for file in range(4):
                found = [(out / beside).read_bytes() for beside in (f"f{file}", f".shale-replaced-f{file}") if (out / beside).exists()]
                t.expect(any(content in (b"o" * (4 << 20), b"n" * (4 << 20)) for content in found), f"f{file} of '{name}' is neither old nor new")
            if interruption == signal.SIGINT:
                t.equal(sorted(os.listdir(out)), sorted(os.listdir(new)), f"names in '{name}' after an interruption")
            pool.shale("import", name, archive, "--overwrite")
            pool.shale("export", name, t.dir / f"again {name}")
            same(t, new, t.dir / f"again {name}")
        if server:
            server.stop()
    pool.check()


@test(seconds_max=300)
def share_imports_that_wait_say_so(t):
    """an import into a mounted share whose server is killed says that it waits for the next server, and leaves a marked share"""
    tree = t.dir / "tree"
    small_files(tree)
    archive = archive_of(t, tree)
    pool = Pool(t)
    server = pool.serve(shares=True, keeps=True)
    pool.shale("create", "home", "--share")
    server.share("home")
    running = Import(t, pool, "home", archive)
    t.wait_for(lambda: listed(pool, "home")["incomplete"], "the mark of the import")
    server.kill(leaves_mount=True)
    # More of the archive makes it use the mount; the pipe holds as much while it waits.
    rest = running.bytes[len(running.bytes) // 2 :]
    running.child.stdin.write(rest[: 48 << 10])
    running.child.stdin.flush()
    said = running.child.stderr.readline().decode()
    t.expect("server has ended" in said and "--wait-for-server" in said, f"what an import that waits says: {said}")
    server = pool.serve(shares=True, keeps=True)
    with contextlib.suppress(BrokenPipeError):
        running.child.stdin.write(rest[48 << 10 :])
        running.child.stdin.close()
    running.child.stderr.read()
    t.expect(running.child.wait() != 0, "an import whose server was killed ended with 0")
    t.expect(listed(pool, "home")["incomplete"], "the mark of an import whose server was killed")
    pool.shale("import", "home", archive, "--overwrite")
    t.wait_for(lambda: os.path.ismount(server.shares_dir / "home"), "the mount of the share")
    same(t, tree, server.share("home"))
    server.stop()
    pool.check()


@test(seconds_max=120)
def share_imports_bring_no_foreign_acls(t):
    """an import into a mounted share whose directories have default ACLs gives its files none of these"""
    tree = t.dir / "tree"
    (tree / "d" / "e").mkdir(parents=True)
    for name in ("f", "d/f", "d/e/f"):
        (tree / name).write_text("x")
        os.chmod(tree / name, 0o640)
    os.mkfifo(tree / "d" / "fifo")
    pool = Pool(t)
    server = pool.serve(shares=True)
    pool.shale("create", "home", "--share")
    home = server.share("home")
    acl = bytes.fromhex("0200000001000600ffffffff02000700d204000004000400ffffffff10000700ffffffff20000400ffffffff")
    os.setxattr(home, "system.posix_acl_default", acl)
    (home / "d").mkdir()
    t.expect(os.listxattr(home / "d"), "the directory that was there has no ACL")
    pool.shale("import", "home", tree)
    t.equal([name for name in ("f", "d/f", "d/e", "d/e/f", "d/fifo") if os.listxattr(home / name)], [], "names with the ACL of a directory")
    t.expect(os.listxattr(home) and os.listxattr(home / "d"), "the directories that were there have lost theirs")
    pool.shale("import", "home", tree, "--overwrite")
    same(t, tree, home)
    server.stop()
    pool.check()


def raw_import(pool, name, bytes_):
    """What the server answers to an archive that no command has read."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS_MAX)
        connection.connect(str(pool.path / "control.sock"))
        request = {"op": "import_tree", "share": name, "properties": {"incomplete": "yes"}}
        connection.sendall(json.dumps({"version": 1, "request": request}).encode() + b"\n")
        with connection.makefile("rb") as lines:
            created = json.loads(lines.readline())
            if "error" in created:
                return created
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(bytes_)
                connection.shutdown(socket.SHUT_WR)
            return json.loads(lines.readline())


@test(seconds_max=120)
def share_imports_of_hostile_archives(t):
    """archives that lead out of the tree by names, symbolic and hard links, end anywhere, or claim sizes that cannot be, sent to the server itself: nothing outside is read or written, and the server goes on"""
    outside = t.dir / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:

        def add(name, **fields):
            item = tarfile.TarInfo(name)
            for key, value in fields.items():
                setattr(item, key, value)
            archive.addfile(item, io.BytesIO(b"x" * item.size))

        add("inside", size=1)
        add("../above", size=1)
        add(f"{t.dir}/absolute", size=1)
        add("a/../../above", size=1)
        add("way", type=tarfile.SYMTYPE, linkname=str(outside))
        add("way/through", size=1)
        add("hard", type=tarfile.LNKTYPE, linkname=str(outside / "secret"))
        add("hard2", type=tarfile.LNKTYPE, linkname="way/secret")
        add("hard3", type=tarfile.LNKTYPE, linkname="../outside/secret")
        add(".shale/snapshots", size=1)
        add("last", size=1)
    whole = output.getvalue()
    pool = Pool(t, capacity="256M")
    server = pool.serve(shares=True)
    told = raw_import(pool, "safe", whole)
    t.expect(told["fault"] is None and told["tally"]["problems"] >= 6, f"the answer: {told}")
    safe = server.share("safe")
    found = sorted(str(path.relative_to(safe)) for path in safe.rglob("*"))
    t.expect({"inside", "last", "way"} <= set(found) and not {"hard", "hard2", "hard3"} & set(found), f"names in the share: {found}")
    t.equal((os.listdir(outside), os.path.exists(t.dir / "above"), os.path.exists(t.dir / "absolute")), (["secret"], False, False), "files outside")
    t.expect(listed(pool, "safe")["incomplete"], "the mark that the client set is gone")
    t.expect("error" in raw_import(pool, "safe", whole), "a second import into the same share")
    choice = random.Random(1)
    for number in range(40):
        bytes_ = bytearray(whole[: choice.randrange(len(whole))])
        for _ in range(choice.randrange(20) if bytes_ else 0):
            bytes_[choice.randrange(len(bytes_))] = choice.randrange(256)
        told = raw_import(pool, f"odd{number}", bytes(bytes_))
        t.expect("tally" in told, f"the answer to archive {number}: {told}")
    huge = tarfile.TarInfo("huge")
    huge.size = (1 << 33) - 1
    told = raw_import(pool, "huge", huge.tobuf() + b"x" * 5000)
    t.expect(told["fault"] is not None, f"the answer to a file that is cut off: {told}")
    t.equal((os.listdir(outside), os.path.exists(t.dir / "above")), (["secret"], False), "files outside after damaged archives")
    t.equal((server.share("safe") / "inside").read_text(), "x", "the first share")
    server.stop()
    pool.check()
