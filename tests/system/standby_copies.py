"""Standby memory beside copies of a pool, and what is said when it is gone or knows of more than the log has."""

import json
import os

import nbd

from harness import Pool, test
from harness.pool import EXIT

BLOCK = 4096
FLUSHED, UNFLUSHED = b"flushed!" * (BLOCK // 8), b"unflushd" * (BLOCK // 8)
LOSSY = 12


def door_of(server):
    """An NBD client."""
    door = nbd.NBD()
    door.connect_uri(server.uri("v"))
    return door


def die(pool, blocks=1):
    """A server that is killed with so many blocks flushed, one after the other, and one that is acknowledged only."""
    server = pool.serve(memory="128M")
    door = door_of(server)
    for number in range(blocks):
        door.pwrite(FLUSHED, number * BLOCK)
        door.flush()
    door.pwrite(UNFLUSHED, 1 << 20)
    server.kill()


def copy_of(t, pool, name):
    """What a backup makes."""
    t.run("cp", "-a", "--sparse=always", pool.path, t.dir / name)
    return Pool.at(t, t.dir / name)


def expect_all(t, pool):
    """The original's next server has what the last one had acknowledged, and says nothing else."""
    server = pool.serve(memory="128M")
    t.equal(pool.status()["standby_notes"], [], "what is said of standby memory")
    door = door_of(server)
    t.equal((bytes(door.pread(BLOCK, 0)), bytes(door.pread(BLOCK, 1 << 20))) == (FLUSHED, UNFLUSHED), True, "the blocks are there")
    server.stop()
    t.equal(pool.status()["losses"], [], "losses")
    pool.check()


@test()
def copies_take_no_standby_memory(t):
    """after kill -9 a copy of the pool, newer or older, is listed and served: the original loses nothing, and the copy says what it is"""
    pool = Pool(t, capacity="256M")
    pool.create("v", 16 << 20)
    older = copy_of(t, pool, "older")
    die(pool)
    newer = copy_of(t, pool, "newer")
    for copy in (newer, older):
        said = copy.shale("list").stderr
        t.expect("is left alone" in said and ("this is a copy" in said) == (copy is newer), f"what a copy says: {said!r}")
    for copy in (newer, older):
        server = copy.serve(memory="128M")
        place = copy.status()["standby"]
        server.kill()
        copy.shale("list")
        t.expect(not os.path.exists(place), f"{place} is left")
        t.equal(copy.status()["losses"], [], "losses of a copy")
    expect_all(t, pool)


@test()
def standby_memory_that_is_gone_is_told(t):
    """the file in /dev/shm is removed after kill -9: the next server says that writes may be missing, until it is acknowledged"""
    pool = Pool(t, capacity="256M")
    pool.create("v", 16 << 20)
    server = pool.serve()
    place = pool.status()["standby"]
    server.kill()
    os.remove(place)
    server = pool.serve()
    status = pool.status()
    t.expect(status["health"] == "recovered-with-loss" and place in status["losses"][0]["text"], f"status says {status['losses']}")
    pool.shale("status", "--acknowledge")
    t.equal(pool.status()["losses"], [], "losses")
    server.stop()


@test()
def lost_batches_that_standby_memory_knows_of(t):
    """the last flushed batch is damaged after kill -9: check and serve refuse, and only an accepted loss opens the pool"""
    pool = Pool(t, capacity="256M")
    pool.create("v", 16 << 20)
    die(pool, blocks=8)
    data = pool.path / "data"
    with open(data, "r+b") as file:
        content = file.read(64 << 20)
        last = max(at for at in range(0, len(content), 512) if content[at : at + 4] == b"SHBT")
        file.seek(last + 100)
        file.write(bytes([content[last + 100] ^ 1]))
    for words in (["check"], ["serve", "--nbd", f"unix:{t.dir}/refused.sock"], ["check", "--repair"]):
        said = pool.shale(*words, status=EXIT["corrupt"])
        t.expect("had been flushed, as the standby memory" in said.stderr, f"{words} says {said.stderr!r}")
    report = json.loads(pool.shale("check", "--repair", "--accept-loss", "--json", status=LOSSY).stdout)
    t.expect("1 acknowledged write or discard (4 KiB)" in report["loss"]["what"], f"the loss is {report['loss']}")
    server = pool.serve()
    status = pool.status()
    t.equal((status["health"], len(status["losses"])), ("recovered-with-loss", 1), "health, losses")
    aside = next(note.split("kept as ")[1].split(" until")[0] for note in status["standby_notes"] if "kept as " in note)
    t.expect(os.path.exists(aside), f"{aside} is kept")
    os.remove(aside)
    door = door_of(server)
    t.equal(bytes(door.pread(BLOCK, 0)) == FLUSHED, True, "what was flushed before is there")
    server.stop()
    pool.check()
