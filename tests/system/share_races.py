"""Shares that are made, renamed and rolled back while other commands have the server look at its shares."""

import os
import subprocess
import threading

from harness import Pool, test
from harness.pool import BINARY

# Rounds of each of the two that change shares: with the faults that these tests are for, one in some ten went wrong.
ROUNDS = 40


def command(pool, name, *words):
    """A command, and how it ended."""
    return subprocess.run([str(BINARY), name, str(pool.path), *words], capture_output=True, text=True, timeout=120, check=False)


def beside_others(t, pool, change):
    """Runs `change(number)` in two threads, while two others make and destroy volumes: each of these commands has the server look."""
    pool.create("base", "1M")
    pool.shale("snapshot", "base@s")
    over, wrong = threading.Event(), []

    def others(number):
        while not over.is_set():
            command(pool, "clone", "base@s", f"c{number}")
            command(pool, "destroy", f"c{number}")

    def changes(number):
        try:
            change(number)
        except Exception as error:  # pylint: disable=broad-except
            wrong.append(f"{type(error).__name__}: {error}")

    noise = [threading.Thread(target=others, args=(number,), daemon=True) for number in (1, 2)]
    work = [threading.Thread(target=changes, args=(number,), daemon=True) for number in (1, 2)]
    for thread in noise + work:
        thread.start()
    for thread in work:
        thread.join()
    over.set()
    for thread in noise:
        thread.join()
    t.expect(not wrong, "; ".join(wrong))


def done(pool, *words):
    """A command that must do its work."""
    run = command(pool, *words)
    if run.returncode:
        raise AssertionError(f"{words}: {run.returncode}, {run.stderr}")


def mounted(t, directory):
    """The directory, when a share is mounted there."""
    t.wait_for(lambda: os.path.ismount(directory), f"a mount at {directory}")
    return directory


@test(seconds_max=600)
def shares_are_made_once(t):
    """a share that is created, written and renamed while other commands run is opened by one tree at a time: what it holds stays"""
    pool = Pool(t, capacity="512M")
    server = pool.serve(shares=True, memory="128M")

    def change(number):
        for index in range(ROUNDS):
            name = f"t{number}-{index}"
            done(pool, "create", name, "--share")
            file = mounted(t, server.shares_dir / name) / "a"
            file.write_text("x" * 10000)
            done(pool, "rename", name, f"{name}-r")
            held = (mounted(t, server.shares_dir / f"{name}-r") / "a").read_text()
            if held != "x" * 10000:
                raise AssertionError(f"{name} has {len(held)} bytes")
            done(pool, "destroy", f"{name}-r", "--force")

    beside_others(t, pool, change)
    t.equal(os.listdir(server.shares_dir), [], "directories of destroyed shares")
    server.stop()
    pool.check()


@test(seconds_max=600)
def rollback_of_a_mounted_share_is_one_moment(t):
    """`rollback` of a mounted share, by force as well, while other commands run: it is never refused as in use by its own mount, and what
    is shown behind it is the snapshot and nothing else"""
    pool = Pool(t, capacity="512M")
    for number in (1, 2):
        pool.shale("create", f"t{number}", "--share")
    server = pool.serve(shares=True, memory="128M")

    def change(number):
        share = server.shares_dir / f"t{number}"
        for index in range(ROUNDS):
            old = "1" * 10000 * (index % 9 + 1)
            (mounted(t, share) / "a").write_text(old)
            done(pool, "snapshot", f"t{number}@r{index}")
            (share / "a").write_text("2" * 50000)
            for extra in range(30):
                (share / f"new-{extra}").write_text("y")
            done(pool, "rollback", f"t{number}@r{index}", *(["--force"] if index % 2 else []))
            held, there = (mounted(t, share) / "a").read_text(), os.listdir(share)
            if held != old or there != ["a"]:
                raise AssertionError(f"round {index}: {len(held)} bytes of {held[:1]!r}, {there}")
            done(pool, "destroy", f"t{number}@r{index}")

    beside_others(t, pool, change)
    server.stop()
    pool.check()


@test(seconds_max=300)
def forced_rollback_cuts_its_users_off(t):
    """`rollback --force` of a share in which a program has files open: that program gets errors, and nothing of what it writes comes behind the rollback"""
    pool = Pool(t, capacity="512M")
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True)
    share = server.share("home")
    (share / "a").write_text("as it was")
    pool.shale("snapshot", "home@s")
    (share / "a").write_text("changed")
    file = os.open(share / "b", os.O_CREAT | os.O_RDWR)
    directory = os.open(share, os.O_RDONLY)
    os.write(file, b"before")
    pool.shale("rollback", "home@s", "--force")
    refused = 0
    for work in [lambda: os.write(file, b"x" * 100000), lambda: os.fsync(file), lambda: os.open("c", os.O_CREAT | os.O_RDWR, dir_fd=directory),
                 lambda: os.rename("a", "z", src_dir_fd=directory, dst_dir_fd=directory)]:
        try:
            work()
        except OSError:
            refused += 1
    os.close(directory)
    try:
        os.close(file)
    except OSError:
        refused += 1
    t.expect(refused >= 3, f"requests of a program that was cut off: {refused} refused")
    again = server.share("home")
    t.equal((os.listdir(again), (again / "a").read_text()), (["a"], "as it was"), "what is there behind the rollback")
    (again / "new").write_text("goes on")
    server.stop()
    pool.check()
    server = pool.serve(shares=True)
    t.equal(sorted(os.listdir(server.share("home"))), ["a", "new"], "after the next start")


@test(seconds_max=300)
def a_share_is_renamed_beside_those_who_read_its_tree(t):
    """`rename` of a share and of the folder above it beside `usage`, `explain`, `recompress` and `snapshot -r`: each of them does its work or is
    refused in words, and no tree is opened by two"""
    pool = Pool(t, capacity="512M")
    pool.shale("create", "f/a", "--share", "-p")
    server = pool.serve(shares=True, memory="128M")
    share = mounted(t, server.shares_dir / "f" / "a")
    for index in range(200):
        (share / f"file-{index}").write_text(f"{index} " * 500)
    names = [("f/a", "f/b"), ("f", "g")]
    over, wrong = threading.Event(), []

    def look(number):
        index = 0
        while not over.is_set():
            index += 1
            where = [f"{folder}/{own}" for folder in "fg" for own in "ab"][index % 4]
            words = [("usage", where), ("recompress", where), ("explain", where, "file-7"), ("snapshot", "-r", f"{where[0]}@s{number}-{index}")]
            run = command(pool, *words[(index // 4 + number) % 4])
            # Not there under that name (3), or just being renamed (4).
            if run.returncode not in (0, 3, 4):
                wrong.append(f"{words}: {run.returncode}, {run.stderr}")

    looks = [threading.Thread(target=look, args=(number,), daemon=True) for number in (1, 2, 3)]
    for thread in looks:
        thread.start()
    renamed = 0
    for index in range(2 * ROUNDS):
        old, new = names[index // 2 % 2][::1 if index % 2 == 0 else -1]
        run = command(pool, "rename", old, new)
        while run.returncode == 4:
            run = command(pool, "rename", old, new)
        renamed += run.returncode == 0
        t.expect(run.returncode == 0, f"rename of {old} to {new}: {run.returncode}, {run.stderr}")
    over.set()
    for thread in looks:
        thread.join()
    t.expect(not wrong, "; ".join(wrong))
    t.equal(renamed, 2 * ROUNDS, "renames")
    share = mounted(t, server.shares_dir / "f" / "a")
    t.equal(sorted(os.listdir(share)), sorted(f"file-{index}" for index in range(200)), "names")
    t.expect(all((share / f"file-{index}").read_text() == f"{index} " * 500 for index in range(200)), "contents")
    server.stop()
    pool.check()
