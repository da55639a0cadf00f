"""Names of shares that nobody synced, when the server dies and nothing holds its mounts."""

import os
import shutil
import subprocess

from harness import Pool, data, test
from harness.context import tree_digest


def source_of(t, size=8 << 20):
    """An archive of sources with all kinds of names, and what a tree of it looks like."""
    source = t.dir / "source"
    data.source_tree(source, size)
    os.symlink("nowhere/at/all", source / "dangling")
    os.link(next(path for path in source.rglob("*") if path.is_file()), source / "second name")
    os.mkfifo(source / "pipe")
    t.run("tar", "-C", t.dir, "-cSf", t.dir / "source.tar", "source")
    return t.dir / "source.tar", tree_digest(source)


def journals(pool):
    """Files beside the standby memory of a pool that is served."""
    place = pool.status()["standby"]
    stem = place.removesuffix(".standby")
    return [os.path.join(os.path.dirname(place), name) for name in os.listdir(os.path.dirname(place))
            if name.startswith(os.path.basename(stem) + ".beside.")]


def fill(t, pool, archive, name):
    """A server whose share gets a tree, which is renamed in part, and that dies at once."""
    server = pool.serve(shares=True)
    share = server.share("home")
    t.equal(len(journals(pool)), 1, "journals of a served share")
    place = journals(pool)[0]
    os.mkdir(share / name)
    t.run("tar", "-C", share / name, "-xSf", archive)
    os.rename(share / name / "source", share / name / "moved")
    os.unlink(share / name / "moved" / "pipe")
    server.kill()
    return place


def expect_tree(t, share, name, expected):
    """What `fill` made is there."""
    wanted = {path: found for path, found in expected.items() if path != "pipe"}
    t.equal(os.listdir(share / name), ["moved"], f"names in {name}")
    t.equal(tree_digest(share / name / "moved"), wanted, f"the tree in {name}")


@test(seconds_max=1200)
def names_survive_without_a_keeper(t):
    """kill -9 at once after tar, again and again, nothing synced and nothing holding the mount: every name is there, whatever opens the pool next"""
    archive, expected = source_of(t)
    pool = Pool(t)
    pool.shale("create", "home", "--share")
    made = []
    # What opens the pool first: a server, with and without a keeper, or a command.
    for number, way in enumerate(2 * ["serve", "snapshot", "check", "list", "send"]):
        name = f"{number}-{way}"
        place = fill(t, pool, archive, name)
        made.append(name)
        if way == "serve":
            t.expect(os.path.exists(place), "the journal of a server that was killed is gone before another one came")
        elif way == "snapshot":
            pool.shale(way, f"home@dead{number}")
        elif way == "send":
            pool.shale("snapshot", f"home@sent{number}")
            pool.shale(way, f"home@sent{number}", "-o", t.dir / f"stream{number}")
            os.remove(t.dir / f"stream{number}")
        else:
            pool.shale(way)
        if way != "serve":
            t.expect(not os.path.exists(place), f"{place} is there after {way}")
        keeps = number % 3 == 2
        server = pool.serve(shares=True, keeps=keeps)
        share = server.share("home")
        for name in made:
            expect_tree(t, share, name, expected)
        if way == "snapshot":
            expect_tree(t, share / ".shale" / "snapshots" / f"dead{number}", name, expected)
        t.equal(pool.status()["standby_notes"], [], "what is said of standby memory")
        place = journals(pool)[0]
        server.stop()
        t.expect(not os.path.exists(place), f"{place} is there after a clean stop")
        pool.check()
    t.note(f"{len(made)} kills right after tar")


@test(seconds_max=600)
def names_of_a_kept_mount_survive_without_it(t):
    """a mount that a keeper holds: the next server keeps none, or a command comes first, and the names are there all the same"""
    archive, expected = source_of(t, 2 << 20)
    pool = Pool(t)
    pool.shale("create", "home", "--share")
    for number, first in enumerate((None, ["check"], ["snapshot", "home@between"])):
        name = f"tree{number}"
        server = pool.serve(shares=True, keeps=True)
        share = server.share("home")
        os.mkdir(share / name)
        t.run("tar", "-C", share / name, "-xSf", archive)
        os.rename(share / name / "source", share / name / "moved")
        os.unlink(share / name / "moved" / "pipe")
        server.kill(leaves_mount=True)
        if first:
            pool.shale(*first)
        server = pool.serve(shares=True, keeps=first is not None)
        expect_tree(t, server.share("home"), name, expected)
        server.stop()
        pool.check()


@test(seconds_max=600)
def a_rollback_takes_back_names_too(t):
    """kill -9, then rollback without a server: the names that came after the snapshot do not come back"""
    pool = Pool(t)
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True)
    share = server.share("home")
    (share / "before").write_text("kept")
    pool.shale("snapshot", "home@one")
    (share / "after").write_text("taken back")
    server.kill()
    pool.shale("rollback", "home@one")
    server = pool.serve(shares=True)
    share = server.share("home")
    t.equal((os.listdir(share), (share / "before").read_text()), (["before"], "kept"), "the share after the rollback")
    server.stop()
    pool.check()


def dead_share(t, name):
    """A pool whose server died with names that were not synced, a copy of their journal, and its place."""
    pool = Pool(t, name=name)
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True)
    share = server.share("home")
    (share / "synced").write_text("synced")
    t.run("sync", share)
    place = journals(pool)[0]
    for number in range(100):
        (share / f"name {number}").write_text("not synced")
    server.kill()
    shutil.copy(place, t.dir / f"{name}.journal")
    return pool, place, t.dir / f"{name}.journal"


def put_there(journal, place):
    """A journal where the next opening looks."""
    shutil.copy(journal, place)
    os.chmod(place, 0o600)


def names_in(pool, notes):
    """Names of the share as the next server has them, which says so much of journals."""
    server = pool.serve(shares=True)
    found = sorted(os.listdir(server.share("home")))
    said = [note for note in pool.status()["standby_notes"] if "journal" in note or "accompany that memory" in note]
    pool.t.equal(len(said), notes, f"notes on journals: {said}")
    server.stop()
    pool.check()
    for note in said:
        os.remove(note.split("kept as ")[1].split(" until")[0])
    return found


@test(seconds_max=600)
def journals_that_do_not_count(t):
    """a journal of an older session, of another pool, of a copy, a damaged and a cut one, and one whose standby memory is gone: none is replayed, all are told"""
    both = sorted(["synced"] + [f"name {number}" for number in range(100)])
    pool, place, journal = dead_share(t, "pool")
    other, other_place, other_journal = dead_share(t, "other")
    copy = t.dir / "copy"
    t.run("cp", "-a", "--sparse=always", pool.path, copy)
    # A copy has what was durable, and takes nothing of the original.
    server = Pool.at(t, copy).serve(shares=True)
    t.expect("name 99" not in os.listdir(server.share("home")), "a copy has names that only the original's journal had")
    server.stop()
    t.expect(os.path.exists(place), "the original's journal is gone when its copy was served")
    t.equal(names_in(pool, 0), both, "names after the journal was replayed")
    # The same journal again: its session is over, and names have changed since.
    server = pool.serve(shares=True)
    os.unlink(server.share("home") / "name 7")
    server.stop()
    put_there(journal, place)
    without = [name for name in both if name != "name 7"]
    t.equal(names_in(pool, 1), without, "names after a journal of an older session")
    put_there(other_journal, place)
    t.equal(names_in(pool, 1), without, "names after another pool's journal")
    # Damaged: any byte of a record.
    content = bytearray(other_journal.read_bytes())
    at = next(at for at in range(4096, len(content)) if content[at])
    content[at + 60] ^= 1
    (t.dir / "damaged").write_bytes(content)
    put_there(t.dir / "damaged", other_place)
    found = names_in(other, 1)
    t.expect("synced" in found and "name 99" not in found, f"names after a damaged journal: {found}")
    # Cut: a journal that has its name was whole.
    (t.dir / "cut").write_bytes(journal.read_bytes()[:1000])
    put_there(t.dir / "cut", place)
    t.equal(names_in(pool, 1), without, "names after a journal that is cut")
    t.expect(not os.path.exists(place), "a journal that was cut stays")
    # One that was never finished: nothing was acknowledged by it.
    put_there(t.dir / "cut", f"{place}.new")
    t.equal(names_in(pool, 0), without, "names after a journal that was never finished")
    t.expect(not os.path.exists(f"{place}.new"), "a journal that was never finished stays")
    t.equal(len(pool.status()["losses"]), 3, "losses that are remembered: of an older session, of another pool, and the cut")


@test(seconds_max=600)
def names_without_their_data_are_not_replayed(t):
    """the standby memory is gone after kill -9 and the journal is there: the share is as it was when it was synced, and that is told"""
    pool, place, _ = dead_share(t, "pool")
    standby = place.split(".beside.")[0] + ".standby"
    os.remove(standby)
    found = names_in(pool, 1)
    t.expect("synced" in found and "name 99" not in found, f"names without their data: {found}")


@test(seconds_max=600)
def without_standby_memory_names_must_be_synced(t):
    """--standby off: no journal is made, the server says what is promised, and what was synced is there after kill -9"""
    pool = Pool(t)
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True, standby="off")
    share = server.share("home")
    (share / "synced").write_text("synced")
    t.run("sync", share)
    t.equal(pool.status()["standby"], None, "standby memory")
    server.kill()
    server = pool.serve(shares=True)
    t.equal((server.share("home") / "synced").read_text(), "synced", "what was synced")
    server.stop()
    pool.check()


@test(seconds_max=600)
def a_journal_without_a_place_is_told(t):
    """a directory without room for a journal: the server serves and says that names must be synced, until there is room and the journal is made"""
    pool = Pool(t)
    pool.shale("create", "home", "--share")
    place = t.dir / "memory"
    os.mkdir(place)
    t.run("mount", "-t", "tmpfs", "-o", "size=2M,mode=700", "none", place)
    t.defer(lambda: subprocess.run(["umount", "--lazy", place], check=False))
    server = pool.serve(shares=True, standby=place)
    share = server.share("home")
    (share / "synced").write_text("synced")
    t.run("sync", share)
    status = pool.status()
    t.expect(status["standby"] and status["names_at_risk"], f"status says {status['standby_notes']}")
    t.expect("only once synced" in pool.shale("status").stdout, "the promise leaves names out")
    for number in range(500):
        os.symlink("x" * 1000, share / f"name {number}")
    t.run("mount", "-o", "remount,size=20M", place)
    t.wait_for(lambda: not pool.status()["names_at_risk"], "the journal to be made")
    t.equal(pool.status()["standby_notes"], [], "notes when there is room again")
    os.symlink("x", share / "last")
    server.kill()
    server = pool.serve(shares=True, standby=place)
    found = os.listdir(server.share("home"))
    t.equal(len(found), 1 + 500 + 1, "names")
    server.stop()
    pool.check()
