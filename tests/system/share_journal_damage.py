"""The journal of a share's names is gone or damaged when its server has died: the next opening reports the loss, and only a loss."""

import glob
import os
import struct
import subprocess

from harness import Pool, test
from harness.pool import BINARY

PAGE = 4096
# Where the two halves of records are, and the number of bytes in each (FORMAT.md).
HALVES, USED_AT = (PAGE, PAGE + (1 << 26)), (512 + 8, 544 + 8)
NAMES = 300


def journal_of(pool):
    """The journal of the only share of a pool that is served."""
    place = pool.status()["standby"]
    stem = os.path.basename(place).removesuffix(".standby") + ".beside."
    found = [name for name in os.listdir(os.path.dirname(place)) if name.startswith(stem)]
    pool.t.equal(len(found), 1, "journals")
    return os.path.join(os.path.dirname(place), found[0])


def used_pages(path):
    """The pages with records, of the half that has more of them."""
    with open(path, "rb") as file:
        head = file.read(PAGE)
    used = [struct.unpack_from("<Q", head, at)[0] for at in USED_AT]
    half = used.index(max(used))
    return range(HALVES[half], HALVES[half] + used[half], PAGE)


def zero(t, path, at, length):
    """Punched out, as by a fault of the memory: the length of the file stays."""
    t.run("fallocate", "--punch-hole", "--offset", at, "--length", length, path)


DAMAGES = {
    "nothing": lambda t, path: None,
    "removed": lambda t, path: os.remove(path),
    "first record": lambda t, path: zero(t, path, used_pages(path)[0], PAGE),
    "middle page": lambda t, path: zero(t, path, used_pages(path)[len(used_pages(path)) // 2], PAGE),
    "last page": lambda t, path: zero(t, path, used_pages(path)[-1], PAGE),
    "header": lambda t, path: zero(t, path, 0, PAGE),
    "all of it": lambda t, path: zero(t, path, 0, os.path.getsize(path)),
    "cut to nothing": lambda t, path: os.truncate(path, 0),
    "cut to its header": lambda t, path: os.truncate(path, PAGE),
    "without its end": lambda t, path: os.truncate(path, os.path.getsize(path) - 1),
}


def remove_aside(journal):
    """Journals that were not replayed are kept until somebody removes them."""
    for path in glob.glob(glob.escape(journal) + ".aside*"):
        os.remove(path)


def served(t, name, **named):
    """A server with one share that has synced names."""
    pool = Pool(t, name=name, capacity="512M")
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True, **named)
    t.defer(remove_aside, journal_of(pool))
    (server.share("home") / "synced").write_text("synced")
    t.run("sync", server.share("home"))
    return pool, server


def make_names(t, server, prefix):
    """Names that no commit has yet: a commit comes within five seconds, so the last ones count."""
    for number in range(NAMES):
        (server.share("home") / f"{prefix} {number}").write_text("not synced")


def killed_with_names(t, server, prefix):
    """Kills a server whose journal has all of the names, and returns them."""
    make_names(t, server, prefix)
    server.kill()
    return [f"{prefix} {number}" for number in range(NAMES)]


def expect_reported(t, pool, server, damage, names, is_noted=True):
    """Checks that a loss is reported, and that every name is there if nothing was damaged."""
    found, status = os.listdir(server.share("home")), pool.status()
    missing = [name for name in names if name not in found]
    t.expect("synced" in found, f"{damage}: a synced name is missing")
    told = (status["health"], len(status["losses"]))
    if damage == "nothing":
        t.equal((missing, told), ([], ("ok", 0)), "missing names, health and losses")
        return
    t.equal(told, ("recovered-with-loss", 1), f"{damage}: health and losses {status['losses']}, with {len(missing)} names missing")
    t.expect("'home'" in status["losses"][-1]["text"], f"{damage}: the loss does not name the share: {status['losses']}")
    if is_noted:
        t.expect(any("'home'" in note for note in status["standby_notes"]), f"{damage}: notes {status['standby_notes']}")


def die_in_opening(t, pool, delay_s):
    """A server that is killed so long after its start."""
    words = [BINARY, "serve", pool.path, "--nbd", f"unix:{t.dir}/dies.sock"]
    process = subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(delay_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@test(seconds_max=1800)
def a_journal_that_is_gone_after_a_crash_is_reported(t):
    """kill -9, then the journal is removed, cut off, or zeroed as a whole or in a page: the next server reports the loss once; undamaged, all names are there"""
    pool, server = served(t, "pool")
    journal = journal_of(pool)
    for damage, harm in DAMAGES.items():
        names = killed_with_names(t, server, damage)
        harm(t, journal)
        server = pool.serve(shares=True)
        expect_reported(t, pool, server, damage, names)
        remove_aside(journal)
        if damage != "nothing":
            pool.shale("status", "--acknowledge")
        t.equal(pool.status()["health"], "ok", "health when the loss is known")
        # The next death loses nothing.
        names = killed_with_names(t, server, f"after {damage}")
        server = pool.serve(shares=True)
        expect_reported(t, pool, server, "nothing", names)
    server.stop()
    t.expect(not os.path.exists(journal), "a journal after a clean stop")
    # Nothing is noted any more.
    t.equal((pool.status()["health"], pool.status()["losses"]), ("ok", []), "health, losses")
    pool.check()


@test(seconds_max=900)
def a_command_that_misses_a_journal_reports_it(t):
    """the journal is gone and a command opens the pool first: it reports that, and the next server still does; another directory of memory makes no difference"""
    place = t.dir / "memory"
    os.mkdir(place)
    t.run("mount", "-t", "tmpfs", "-o", "size=300M,mode=700", "none", place)
    t.defer(lambda: subprocess.run(["umount", "--lazy", place], check=False))
    for standby in (None, place):
        pool, server = served(t, "own" if standby else "usual", standby=standby)
        for number, damage in enumerate(("removed", "first record"), 1):
            journal = journal_of(pool)
            killed_with_names(t, server, damage)
            DAMAGES[damage](t, journal)
            said = pool.shale("list").stderr
            t.expect("'home'" in said and "not synced" in said, f"list said {said!r}")
            server = pool.serve(shares=True, standby=standby)
            status = pool.status()
            t.equal((status["health"], len(status["losses"])), ("recovered-with-loss", number), f"health and losses {status['losses']}")
        server.stop()
        pool.check()


@test(seconds_max=900)
def openings_that_die_still_miss_the_journal(t):
    """the journal is gone, and the next two openings are killed at some moment: the third reports the loss once; with the journal there, nothing is lost"""
    pool, server = served(t, "pool")
    journal = journal_of(pool)
    rounds = ("removed", "nothing", "first record") * 3
    for number, damage in enumerate(rounds):
        names = killed_with_names(t, server, f"{number} {damage}")
        DAMAGES[damage](t, journal)
        for turn in (1, 2):
            die_in_opening(t, pool, server.ready_s * (2 * number + turn) / (2 * len(rounds)))
        server = pool.serve(shares=True)
        # One of the openings that died may have reported it.
        expect_reported(t, pool, server, damage, names, is_noted=False)
        remove_aside(journal)
        if damage != "nothing":
            pool.shale("status", "--acknowledge")
    server.stop()
    pool.check()


@test(seconds_max=600)
def an_orderly_end_leaves_no_journal_to_miss(t):
    """after a clean stop, and after kill -9 of a server whose share was unmounted or destroyed, there is no journal, and nothing is reported"""
    pool, server = served(t, "pool")
    make_names(t, server, "orderly")
    server.stop()
    server = pool.serve(shares=True)
    t.equal((pool.status()["health"], len(os.listdir(server.share("home")))), ("ok", NAMES + 1), "health, names")
    # From a shell: the tree is closed, and its journal is given back.
    journal = journal_of(pool)
    t.run("umount", server.share("home"))
    t.wait_for(lambda: not os.path.exists(journal), "the journal to be given back")
    server.kill()
    t.equal((pool.status()["health"], pool.status()["losses"]), ("ok", []), "health, losses after an unmount")
    server = pool.serve(shares=True)
    pool.shale("destroy", "home")
    server.kill()
    t.equal((pool.status()["health"], pool.status()["losses"]), ("ok", []), "health, losses of a share that was destroyed")
    pool.check()
