"""Programs that people run on file systems, on the mount of a share. The long ones only in `make e2e`, which sets SHALE_E2E."""

import os
import shutil
import sqlite3
import subprocess
import threading

from harness import Pool, data, test
from harness.context import tree_digest

from .share_trees import awkward_tree, same


def share_of(t):
    """A pool, its server and the mount of a share."""
    pool = Pool(t)
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True)
    return pool, server, server.share("home")


def end(pool, server):
    """Stops the server, and demands that the pool is clean."""
    server.stop()
    pool.check()


def repository(t, size, commits):
    """A git repository of real sources, with some history."""
    tree = t.dir / "origin"
    data.source_tree(tree, size)
    git = ["git", "-C", tree, "-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "gc.auto=0"]
    t.run("git", "init", "-q", "-b", "main", tree)
    t.run(*git, "add", "-A", quiet=True)
    t.run(*git, "commit", "-q", "-m", "first")
    files = sorted(path for path in tree.rglob("*.rs") if ".git" not in path.parts) or sorted(tree.rglob("*.h"))
    for number in range(commits):
        for path in files[number::commits]:
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"// change {number}\n")
        t.run(*git, "commit", "-q", "-a", "-m", f"change {number}")
    return tree


def use_git(t, share, size, commits):
    """Clones into a share, works there, packs, and demands that git finds nothing wrong."""
    origin = repository(t, size, commits)
    clone = share / "clone"
    git = ["git", "-C", clone, "-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "core.fsync=all"]
    t.run("git", "clone", "-q", "--no-local", origin, clone)
    t.equal(t.out(*git, "status", "--porcelain"), "", "what git status says of a clone")
    for commit in ("HEAD~3", "main"):
        t.run(*git, "checkout", "-q", commit)
        t.equal(t.out(*git, "status", "--porcelain"), "", f"what git status says of {commit}")
    t.run(*git, "checkout", "-q", "-b", "work", "HEAD~2")
    (clone / "new file").write_text("new\n")
    t.run(*git, "add", "-A")
    t.run(*git, "commit", "-q", "-m", "of the share")
    t.run(*git, "rebase", "-q", "main")
    t.run(*git, "gc", "-q", "--prune=now")
    t.run(*git, "fsck", "--full", "--strict")
    t.equal(t.out(*git, "rev-list", "--count", "work"), str(commits + 2), "commits of a branch that was rebased")
    t.run("git", "clone", "-q", "--bare", "--no-local", clone, t.dir / "back")
    t.run("git", "-C", t.dir / "back", "fsck", "--full")
    t.equal(t.out("git", "-C", t.dir / "back", "rev-parse", "main"), t.out("git", "-C", origin, "rev-parse", "main"), "the commit that came back")


@test(seconds_max=600)
def programs_git(t):
    """git on a share: clone, checkout, commit, rebase, gc; fsck finds nothing wrong, and what comes back is the same"""
    pool, server, share = share_of(t)
    use_git(t, share, 6 << 20, 8)
    end(pool, server)


@test(seconds_max=600)
def programs_tar_and_rsync(t):
    """tar and rsync -aHAX into a share and out of it: rsync sees no difference in a tree with one of everything"""
    tree = awkward_tree(t, "tree", 4 << 20)
    pool, server, share = share_of(t)
    t.run("rsync", "-aHAXS", f"{tree}/", f"{share}/by rsync/")
    same(t, tree, share / "by rsync")
    attributes = ["--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "--sparse"]
    t.run("tar", "-C", tree, *attributes, "-cf", t.dir / "in.tar", ".")
    (share / "by tar").mkdir()
    t.run("tar", "-C", share / "by tar", *attributes, "-xpf", t.dir / "in.tar")
    same(t, tree, share / "by tar")
    t.run("tar", "-C", share / "by tar", *attributes, "-cf", t.dir / "out.tar", ".")
    (t.dir / "out").mkdir()
    t.run("tar", "-C", t.dir / "out", *attributes, "-xpf", t.dir / "out.tar")
    same(t, tree, t.dir / "out")
    t.run("rsync", "-aHAXS", f"{share}/by rsync/", f"{t.dir}/back/")
    same(t, tree, t.dir / "back")
    end(pool, server)


@test(seconds_max=900)
def programs_cargo(t):
    """cargo builds a crate on a share, builds again what was changed, and nothing else; the program runs there"""
    pool, server, share = share_of(t)
    crate = share / "hello"
    (crate / "src").mkdir(parents=True)
    (crate / "Cargo.toml").write_text('[package]\nname = "hello"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n')
    (crate / "src" / "lib.rs").write_text('pub fn word() -> &\'static str { "one" }\n')
    (crate / "src" / "main.rs").write_text('fn main() { println!("{}", hello::word()); }\n')
    build = ["cargo", "build", "--offline", "--quiet", "--manifest-path", crate / "Cargo.toml", "--target-dir", crate / "target"]
    t.run(*build)
    program = crate / "target" / "debug" / "hello"
    t.equal(t.out(program), "one", "what the program says")
    first = os.stat(program).st_mtime_ns
    t.run(*build)
    t.equal(os.stat(program).st_mtime_ns, first, "the time of a program that nothing was changed of")
    (crate / "src" / "lib.rs").write_text('pub fn word() -> &\'static str { "two" }\n')
    t.run(*build)
    t.equal(t.out(program), "two", "what the program says after a change")
    end(pool, server)


@test(seconds_max=600)
def programs_sqlite(t):
    """SQLite on a share, with a rollback journal and with WAL in shared memory, several writers and a reader: nothing is lost"""
    pool, server, share = share_of(t)
    for mode in ("delete", "wal"):
        path = share / f"{mode}.db"
        with sqlite3.connect(path) as database:
            t.equal(database.execute(f"pragma journal_mode={mode}").fetchone()[0], mode, "the journal's mode")
            database.execute("create table lines (writer int, number int, text blob)")
        writers, rows = 3, 60
        failed = []

        def write(writer, path=path, rows=rows, failed=failed):
            try:
                database = sqlite3.connect(path, timeout=120, isolation_level=None)
                for number in range(rows):
                    database.execute("begin immediate")
                    database.execute("insert into lines values (?, ?, ?)", (writer, number, os.urandom(3000)))
                    database.execute("commit")
                database.close()
            except sqlite3.Error as error:
                failed.append(error)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        t.equal(failed, [], f"errors of writers with {mode}")
        database = sqlite3.connect(path)
        t.equal(database.execute("select count(distinct writer * 1000 + number) from lines").fetchone()[0], writers * rows, "rows")
        t.equal(database.execute("pragma integrity_check").fetchone()[0], "ok", "SQLite's own check")
        database.execute("vacuum")
        t.equal(database.execute("pragma integrity_check").fetchone()[0], "ok", "SQLite's own check after vacuum")
        database.close()
    end(pool, server)


@test(seconds_max=300)
def programs_overlayfs(t):
    """overlayfs over a share: its lower directory is seen whole; as the upper one it works, or the kernel refuses it before anything is written"""
    pool, server, share = share_of(t)
    for name in ("lower", "upper", "work"):
        (share / name).mkdir()
    data.source_tree(share / "lower", 2 << 20)
    expected = tree_digest(share / "lower")
    plain = t.dir / "plain"
    for name in ("upper", "work"):
        (plain / name).mkdir(parents=True)
    for kind, upper, work in (("lower", plain / "upper", plain / "work"), ("upper", share / "upper", share / "work")):
        merged = t.dir / f"merged {kind}"
        merged.mkdir()
        options = f"lowerdir={share}/lower,upperdir={upper},workdir={work}"
        said = t.run("mount", "-t", "overlay", "overlay", "-o", options, merged, status=None)
        if said.returncode != 0:
            t.equal(kind, "upper", f"the overlay that the kernel refuses ({said.stderr.strip()})")
            t.equal(os.listdir(share / "upper"), [], "what the kernel has left in a directory that it refuses")
            t.note("this kernel takes no directory of a FUSE mount as the upper one")
            continue
        t.defer(t.umount, merged, must=False)
        t.equal(tree_digest(merged), expected, "the tree in the overlay")
        victim = next(path for path in sorted(merged.rglob("*")) if path.is_file())
        victim.write_text("changed")
        (merged / "new").mkdir()
        os.rename(victim, merged / "new" / "moved")
        shutil.rmtree(next(path for path in sorted(merged.iterdir()) if path.is_dir() and path.name != "new"))
        t.equal((merged / "new" / "moved").read_text(), "changed", "a file that was changed and moved")
        t.umount(merged)
        t.equal(tree_digest(share / "lower"), expected, "the lower tree after changes in the overlay")
    end(pool, server)


def dbench(t, share, seconds, clients):
    """Runs dbench, if it is installed."""
    if not shutil.which("dbench"):
        t.note("dbench is not installed")
        return
    said = t.out("dbench", "-D", share, "-t", seconds, clients)
    last = said.splitlines()[-1]
    t.expect("Throughput" in last, f"no result of dbench in: {last}")
    t.note(f"{clients} clients: {last.split('(')[0].strip()}")


@test(seconds_max=300)
def programs_dbench(t):
    """dbench, two clients for some seconds: no operation fails"""
    pool, server, share = share_of(t)
    dbench(t, share, 4, 2)
    end(pool, server)


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=3600)
    def e2e_share_programs(t):
        """git on 200 MB, dbench with 8 clients for a minute, and stress-ng's class of file systems, each for 5 s, on one share"""
        pool, server, share = share_of(t)
        use_git(t, share, 200 << 20, 12)
        shutil.rmtree(share / "clone")
        dbench(t, share, 60, 8)
        if shutil.which("stress-ng"):
            # It tells 0 if all passed, 3 if some have no place to run here.
            said = subprocess.run(["stress-ng", "--class", "filesystem", "--sequential", "2", "--timeout", "5s", "--verify",
                                   "--temp-path", share], capture_output=True, text=True, check=False, timeout=3000)
            t.log(said.stderr)
            t.expect(said.returncode in (0, 3, 4), f"stress-ng exited with {said.returncode}")
            t.equal([line for line in said.stderr.splitlines() if " fail: " in line], [], "what stress-ng says of failures")
        end(pool, server)
