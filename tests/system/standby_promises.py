"""The promises of standby memory when its files are removed, full or damaged, and when openings die."""

import glob
import os
import signal
import struct
import subprocess
import time

import nbd

from harness import Pool, test
from harness.pool import BINARY

BLOCK = 4096
# Where the words and the ring of a standby file are (FORMAT.md).
RING_BYTES_AT, TAIL_AT, RING_AT, RECORD_HEAD = 88, 256, 4096, 64
# An opening that is watched ends by itself within this time.
WATCH_SECONDS_MAX = 120


def write_blocks(server, blocks):
    """Acknowledged, not flushed."""
    door = nbd.NBD()
    door.connect_uri(server.uri("v"))
    for number in blocks:
        door.pwrite(bytes([number + 1]) * BLOCK, number * BLOCK)


def blocks_there(server, blocks):
    """The blocks that hold the bytes of `write_blocks`."""
    door = nbd.NBD()
    door.connect_uri(server.uri("v"))
    return [number for number in blocks if bytes(door.pread(BLOCK, number * BLOCK)) == bytes([number + 1]) * BLOCK]


def memory_dir(t, size):
    """A directory in memory of that size."""
    place = t.dir / "memory"
    os.mkdir(place)
    t.run("mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", place)
    t.defer(lambda: subprocess.run(["umount", "--lazy", place], check=False))
    return place


def fill_up(place):
    """Nothing has room there any more."""
    with open(place / "full", "wb") as file:
        try:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        except OSError:
            pass


def die_opening(t, pool, place, moment):
    """A server that is killed in its opening, as soon as `moment` says of the directory of its memory that it has come."""
    words = [BINARY, "serve", pool.path, "--nbd", f"unix:{t.dir}/dies.sock"]
    process = subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + WATCH_SECONDS_MAX
    while process.poll() is None and not moment(place) and time.monotonic() < end:
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()


def inode(path):
    """0: there is no such file."""
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return 0


@test(seconds_max=900)
def openings_that_die_lose_no_name(t):
    """kill -9 of a server with a share, then of the next openings while they take over or make their memory: every name and every block is there"""
    pool = Pool(t, capacity="1G")
    pool.shale("create", "home", "--share")
    pool.create("v", 16 << 20)
    server = pool.serve(shares=True)
    place = pool.status()["standby"]
    moments = {
        "its memory is not finished": lambda path: os.path.exists(f"{path}.new"),
        "the old memory is gone": lambda path: inode(path) != old,
        "its memory is there": lambda path: inode(path) not in (0, old),
    }
    rounds = 0
    for deaths in (1, 3):
        for name, moment in moments.items():
            rounds += 1
            directory = server.share("home") / f"round {rounds}"
            os.mkdir(directory)
            for number in range(20):
                (directory / f"file {number}").write_text(f"{rounds} {number}")
            os.rename(directory / "file 0", directory / "moved")
            os.link(directory / "file 1", directory / "second")
            os.unlink(directory / "file 2")
            write_blocks(server, [rounds])
            old = inode(place)
            server.kill()
            for _ in range(deaths):
                die_opening(t, pool, place, moment)
            server = pool.serve(shares=True)
            directory = server.share("home") / f"round {rounds}"
            expected = sorted(["moved", "second", "file 1", *(f"file {number}" for number in range(3, 20))])
            t.equal(sorted(os.listdir(directory)), expected, f"names after {deaths} deaths when {name}")
            t.equal((directory / "moved").read_text(), f"{rounds} 0", "content")
            t.equal(blocks_there(server, [rounds]), [rounds], f"blocks after {deaths} deaths when {name}")
            status = pool.status()
            t.equal((status["health"], status["standby_notes"]), ("ok", []), "health, notes")
    server.stop()
    t.equal(glob.glob(place.removesuffix(".standby") + "*"), [], "files in memory after a clean stop")
    pool.check()
    t.note(f"{rounds} deaths of a server, each with one or three deaths in the openings after it")


@test(seconds_max=600)
def memory_that_is_removed_is_made_again(t):
    """the files in memory of a running server are removed: status says so, they come back, and kill -9 loses nothing then"""
    pool = Pool(t, capacity="1G")
    pool.shale("create", "home", "--share")
    pool.create("v", 16 << 20)
    server = pool.serve(shares=True)
    place = pool.status()["standby"]
    share = server.share("home")
    (share / "before").write_text("before")
    write_blocks(server, range(8))
    for path in glob.glob(place.removesuffix(".standby") + "*"):
        os.remove(path)
    t.wait_for(lambda: pool.status()["standby"] == place and not pool.status()["names_at_risk"], "the promise to hold again")
    status = pool.status()
    t.expect(any("was recreated" in note for note in status["standby_notes"]), f"notes: {status['standby_notes']}")
    (share / "after").write_text("after")
    write_blocks(server, range(8, 16))
    server.kill()
    server = pool.serve(shares=True)
    t.equal(blocks_there(server, range(16)), list(range(16)), "blocks")
    t.equal(sorted(os.listdir(server.share("home"))), ["after", "before"], "names")
    status = pool.status()
    t.equal((status["health"], status["standby_notes"]), ("ok", []), "health, notes")
    server.stop()
    pool.check()


@test(seconds_max=600)
def memory_whose_head_is_gone_is_made_again(t):
    """the first page of the memory of a running server is punched out, or overwritten with zeroes: a new file takes its place, and kill -9 loses nothing"""
    pool = Pool(t, capacity="1G")
    pool.create("v", 16 << 20)
    damages = {
        "punched": lambda place: t.run("fallocate", "--punch-hole", "--offset", "0", "--length", BLOCK, place),
        "overwritten": lambda place: t.run("dd", "if=/dev/zero", f"of={place}", f"bs={BLOCK}", "count=1", "conv=notrunc"),
    }
    for name, damage in damages.items():
        server = pool.serve()
        place = pool.status()["standby"]
        write_blocks(server, range(8))
        damage(place)
        t.wait_for(lambda: any("was recreated" in note for note in pool.status()["standby_notes"]), f"{name}: another file")
        t.wait_for(lambda: pool.status()["standby"] == place, f"{name}: the promise to hold again")
        write_blocks(server, range(8, 16))
        server.kill()
        server = pool.serve()
        status = pool.status()
        t.equal((blocks_there(server, range(16)), status["health"]), (list(range(16)), "ok"), f"{name}: blocks, health")
        t.equal(status["losses"], [], f"{name}: losses")
        server.stop()
        pool.check()


@test(seconds_max=600)
def memory_that_cannot_be_made_again_is_told(t):
    """the memory of a running server is removed, and there is no room for another: status promises nothing, and the next opening reports the loss"""
    pool = Pool(t, capacity="1G")
    pool.create("v", 16 << 20)
    place = memory_dir(t, "40M")
    server = pool.serve(memory="64M", standby=place)
    t.expect("the server's death" in pool.shale("status").stdout, "status does not promise")
    # The server holds the space of the removed file, so there is no room for another.
    fill_up(place)
    os.remove(pool.status()["standby"])
    status = pool.status()
    t.equal(status["standby"], None, "standby memory")
    t.expect(any("no standby memory" in note for note in status["standby_notes"]), f"notes: {status['standby_notes']}")
    t.expect("the server's death" not in pool.shale("status").stdout, "status makes a promise that does not hold")
    write_blocks(server, range(4))
    server.kill()
    os.remove(place / "full")
    server = pool.serve(memory="64M", standby=place)
    status = pool.status()
    t.expect(status["health"] == "recovered-with-loss" and "may be missing" in status["losses"][0]["text"], f"status says {status['losses']}")
    server.stop()
    pool.check()


@test(seconds_max=600)
def damaged_records_are_told(t):
    """a byte of a record, of its head or of the tail is changed after kill -9: the loss is reported and remembered, and nothing else is lost"""
    places = {"data": RECORD_HEAD + 7, "head": 3, "tail": None}
    for name, offset in places.items():
        pool = Pool(t, name=name, capacity="1G")
        pool.create("v", 16 << 20)
        server = pool.serve()
        place = pool.status()["standby"]
        write_blocks(server, range(64))
        server.kill()
        with open(place, "r+b") as file:
            content = file.read()
            ring, tail = struct.unpack_from("<Q", content, RING_BYTES_AT)[0], struct.unpack_from("<Q", content, TAIL_AT)[0]
            at = TAIL_AT + 1 if offset is None else RING_AT + tail % ring + 20 * (RECORD_HEAD + BLOCK) + offset
            file.seek(at)
            file.write(bytes([content[at] ^ 0x10]))
        server = pool.serve()
        there, status = blocks_there(server, range(64)), pool.status()
        if offset is None:
            t.equal((len(there), status["health"]), (64, "ok"), "blocks that are there with one damaged copy of the tail, health")
        else:
            lost = [number for number in range(64) if number not in there]
            t.equal((lost, status["health"]), ([20], "recovered-with-loss"), f"blocks that are lost with a damaged {name}, health")
            t.expect("are missing" in status["losses"][0]["text"], f"losses: {status['losses']}")
            pool.shale("status", "--acknowledge")
            t.equal(pool.status()["health"], "ok", "health when the loss is known")
        server.stop()
        pool.check()


@test(seconds_max=600)
def names_survive_in_a_full_directory(t):
    """the directory of the memory is full while thousands of names are made: their journal has its space, and kill -9 loses none"""
    pool = Pool(t, capacity="1G")
    pool.shale("create", "home", "--share")
    place = memory_dir(t, "130M")
    server = pool.serve(shares=True, standby=place)
    fill_up(place)
    share = server.share("home")
    for number in range(3000):
        os.symlink("x" * 500, share / f"name {number}")
    status = pool.status()
    t.equal((status["names_at_risk"], status["standby_notes"]), (False, []), "names at risk, notes")
    for number in range(300):
        (share / f"file {number}").write_text(str(number))
    server.kill()
    os.remove(place / "full")
    server = pool.serve(shares=True, standby=place)
    t.equal(len(os.listdir(server.share("home"))), 3300, "names")
    t.equal(pool.status()["health"], "ok", "health")
    server.stop()
    pool.check()


@test(seconds_max=600)
def memory_in_an_earlier_directory_is_found(t):
    """each server has another directory for its memory and is killed, and so are openings in between: the next one finds all memory"""
    pool = Pool(t, capacity="1G")
    pool.create("v", 16 << 20)
    place = memory_dir(t, "300M")
    dirs = [place / name for name in ("one", "two", "three")]
    for directory in dirs:
        os.mkdir(directory)
    server = pool.serve()
    write_blocks(server, [0])
    server.kill()
    for number, directory in enumerate(dirs, 1):
        server = pool.serve(standby=directory)
        t.equal(blocks_there(server, range(number)), list(range(number)), f"blocks with memory in {directory}")
        t.equal((pool.status()["health"], pool.status()["losses"]), ("ok", []), "health, losses")
        write_blocks(server, [number])
        server.kill()
        # With the next directory, it dies before it has taken anything over.
        words = [BINARY, "serve", pool.path, "--nbd", f"unix:{t.dir}/dies.sock", "--standby", dirs[number % 3]]
        note, before = pool.path / "standby", (pool.path / "standby").read_bytes()
        process = subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + WATCH_SECONDS_MAX
        while process.poll() is None and note.read_bytes() == before and time.monotonic() < end:
            pass
        process.kill()
        process.wait()
    server = pool.serve()
    t.equal(blocks_there(server, range(4)), list(range(4)), "blocks with memory in the usual directory")
    server.stop()
    pool.check()
