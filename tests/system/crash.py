"""kill -9 of the server while clients write: what was acknowledged is there after the restart, flushed or not, whole."""

import contextlib
import os
import random
import re

import nbd

from harness import Pool, data, test
from harness.context import tree_digest
from harness.records import RECORD_BYTES, Ledger, Writer

# Slots of each volume. Few enough that each is rewritten many times, enough that they span many extents and groups.
SLOTS = 6000
# Part of the memory that a server has by default: buffers and checkpoints under pressure, not only at leisure.
MEMORY = "128M"


class FileVolume:
    """A volume through its file."""

    def __init__(self, server, name):
        self.file = os.open(server.file(name), os.O_RDWR)

    def writer(self, ledger, seed):
        """A writer thread on it."""
        return Writer(ledger, lambda offset, content: os.pwrite(self.file, content, offset), lambda: os.fdatasync(self.file), seed)

    def read(self, slot):
        """A slot's bytes."""
        return os.pread(self.file, RECORD_BYTES, slot * RECORD_BYTES)

    def close(self):
        """Lets go of it."""
        # Closing asks the server, which may be dead.
        if self.file is not None:
            with contextlib.suppress(OSError):
                os.close(self.file)
        self.file = None


def seed_of_run(t):
    """What all chances of a test come from: new each time, or as it is told."""
    seed = int(os.environ.get("SHALE_SEED") or random.SystemRandom().randrange(1 << 32))
    t.log(f"seed {seed}")
    return seed


class NbdVolume:
    """A volume through NBD."""

    def __init__(self, server, name):
        self.handle = nbd.NBD()
        self.handle.connect_uri(server.uri(name))

    def writer(self, ledger, seed):
        """A writer thread on it."""
        return Writer(ledger, lambda offset, content: self.handle.pwrite(content, offset), self.handle.flush, seed, gone=(nbd.Error,))

    def read(self, slot):
        """A slot's bytes."""
        return self.handle.pread(RECORD_BYTES, slot * RECORD_BYTES)

    def close(self):
        """Lets go of it."""
        self.handle = None


def open_doors(t, server):
    """Both volumes, let go of before the server ends: a file that is open keeps its mount busy."""
    doors = {"file": FileVolume(server, "file"), "nbd": NbdVolume(server, "nbd")}
    for door in doors.values():
        t.defer(door.close)
    return doors


class Kills:
    """One run of rounds: chances from one seed, a pool, and how long its server took to start after a kill."""

    def __init__(self, t, rounds, **pool):
        # SHALE_SEED replays; else a new one each time, which the log names.
        self.seed = seed_of_run(t)
        self.t, self.rounds, self.chance = t, rounds, random.Random(self.seed)
        self.pool = Pool(t, **pool)
        self.slowest_s = 0.0

    def serve(self, **named):
        """A server with a mount."""
        server = self.pool.serve(mount=True, **named)
        self.slowest_s = max(self.slowest_s, server.ready_s)
        return server

    def end(self, server, found):
        """Ends the last server, checks the pool, and notes what came out."""
        server.stop()
        self.pool.check()
        self.t.note(f"{self.rounds} kills, {found}; slowest start {self.slowest_s:.2f} s; seed {self.seed}")


def kill_tests(name, soak_rounds, summary):
    """Makes tests of a function of a Context and rounds: crash_kill_NAME (3 rounds), soak_kill_NAME (many)."""

    def register(loop):
        for prefix, rounds, seconds_max in [("crash", 3, 1200), ("soak", soak_rounds, 3600)]:
            def run(t, rounds=rounds):
                loop(t, rounds)

            run.__name__, run.__doc__ = f"{prefix}_kill_{name}", f"{rounds} rounds of kill -9 {summary}"
            globals()[run.__name__] = test(seconds_max=seconds_max, soak=prefix == "soak")(run)
        return loop

    return register


@kill_tests("records", 50, "under writers at both doors: no acknowledged record is lost, none is damaged")
def kill_records(t, rounds):
    """Writers at both doors, a kill at a random moment, restart, audit; again and again on the same pool."""
    kills = Kills(t, rounds, capacity="1G", extent="256K")
    pool, chance = kills.pool, kills.chance
    ledgers = {"file": Ledger(SLOTS), "nbd": Ledger(SLOTS)}
    for name in ledgers:
        pool.create(name, SLOTS * RECORD_BYTES)
    acknowledged, beyond = 0, 0
    for number in range(rounds):
        server = kills.serve(memory=MEMORY)
        doors = open_doors(t, server)
        for name, door in doors.items():
            beyond += ledgers[name].audit(door.read)
        writers = [door.writer(ledgers[name], chance.random()) for name, door in doors.items()]
        for writer in writers:
            writer.start()
        before = sum(ledger.acknowledged for ledger in ledgers.values())
        for writer in writers:
            # Some rounds die at once, some after several checkpoints' worth of records.
            t.expect(writer.wait_acknowledged(chance.choice([1, 50, 500, 2000, 5000])), f"round {number}: {writer.error}")
        # The mount and the sockets that it leaves are the next one's to take away.
        server.kill(leaves_mount=True)
        for writer in writers:
            writer.join(60)
            t.expect(not writer.is_alive(), f"round {number}: a client hangs although the server is dead")
        for door in doors.values():
            door.close()
        acknowledged += sum(ledger.acknowledged for ledger in ledgers.values()) - before
    server = kills.serve(memory=MEMORY)
    doors = open_doors(t, server)
    for name, door in doors.items():
        beyond += ledgers[name].audit(door.read)
        door.close()
    kills.end(server, f"{acknowledged} records durable, {beyond} newer ones were acknowledged or survived too")


@test()
def stop_under_load(t):
    """SIGTERM while clients write: a clean end, a clean pool, and nothing that was flushed is lost"""
    pool = Pool(t, capacity="1G", extent="256K")
    ledgers = {name: Ledger(SLOTS) for name in ["one", "two"]}
    for name in ledgers:
        pool.create(name, SLOTS * RECORD_BYTES)
    for number in range(3):
        server = pool.serve(memory=MEMORY)
        doors = {name: NbdVolume(server, name) for name in ledgers}
        for name, door in doors.items():
            ledgers[name].audit(door.read)
        writers = [door.writer(ledgers[name], f"{number} {name}") for name, door in doors.items()]
        for writer in writers:
            writer.start()
        for writer in writers:
            t.expect(writer.wait_acknowledged(500), f"round {number}: {writer.error}")
        server.stop()
        for writer in writers:
            writer.join(60)
            t.expect(not writer.is_alive(), f"round {number}: a client hangs although the server has ended")
        pool.check()
    server = pool.serve(memory=MEMORY)
    for name in ledgers:
        door = NbdVolume(server, name)
        ledgers[name].audit(door.read)
        door.close()
    t.equal(pool.status()["recovered_batches"], 0, "batches to replay after a clean end")
    server.stop()


def fio_round(t, kills, server, name, seconds):
    """fio writes for some seconds, the server is killed, and started again. Returns it, and how many blocks fio verified; 0: it had written none.

    fio's account is the number of writes, and which of the last ones, as many as its depth, were answered. One that has been under way for longer
    than that it takes for answered. What it was told of that one is an error: such blocks are not counted on.
    """
    state = t.dir / name
    state.mkdir()
    chance = kills.chance
    # A fresh range each round is not needed: fio's blocks carry its seed, and the state says which were answered.
    job = ["fio", "--name=crash", f"--filename={server.file('vol')}", "--ioengine=libaio", "--direct=1", "--sync=dsync",
           "--rw=randwrite", "--bs=4k", f"--iodepth={chance.choice([1, 4, 16])}", "--size=2G", "--fallocate=none",
           "--buffer_compress_percentage=50", f"--randseed={chance.randrange(1 << 31)}", "--verify=crc32c",
           f"--aux-path={state}"]
    # fio first saves its account, then runs the trigger.
    wrote = t.run(*job, "--do_verify=0", "--verify_state_save=1", f"--trigger-timeout={seconds}",
                  f"--trigger=kill -9 {server.process.pid}", status=None)
    refused = set(re.findall(r"io_u error on file .* write offset=(\d+)", wrote.stdout + wrote.stderr))
    t.equal(server.process.wait(60), -9, f"{name}: how the server ended")
    server.kill()
    saved = any(state.iterdir())
    server = kills.serve(memory=MEMORY)
    if not saved:
        return server, 0
    done = t.run(*job, "--verify_state_load=1", "--verify_only", "--output-format=normal", cwd=state, status=None)
    wrong = set(re.findall(r"^verify: .* offset (\d+), length", done.stdout + done.stderr, re.MULTILINE))
    t.expect(wrong <= refused, f"{name}: blocks that were answered are not what fio wrote: {sorted(wrong - refused)}")
    t.expect(done.returncode == 0 or wrong, f"{name}: fio could not verify, and exited with {done.returncode}")
    reads = re.search(r"issued rwts: total=(\d+),", done.stdout)
    return server, int(reads.group(1)) - len(wrong) if reads else 0


@kill_tests("fio", 50, "under fio: what fio was told is durable verifies after the restart")
def kill_fio(t, rounds):
    """fio writes synchronously and keeps its own account of what was answered; the server is killed; fio verifies that much."""
    kills = Kills(t, rounds, capacity="6G")
    chance = kills.chance
    kills.pool.create("vol", "4G")
    verified = 0
    server = kills.serve(memory=MEMORY)
    for number in range(rounds):
        # A machine that is busy with other things may not have come to anything by the time of the kill: that proves nothing, and is done again.
        for seconds in [chance.choice([1, 2, 3]), 15, 60]:
            server, found = fio_round(t, kills, server, f"round-{number}-{seconds}", seconds)
            if found > 0:
                break
        t.expect(found > 0, f"round {number}: fio verified nothing")
        verified += found
    kills.end(server, f"{verified} blocks verified by fio")


@kill_tests("ext4", 20, "under ext4 on a loop device: all that was fsync'ed is there, fsck is clean")
def kill_ext4(t, rounds):
    """ext4 on a loop device; the server is killed while files are written and fsync'ed; the journal replays, fsck is clean."""
    kills = Kills(t, rounds, capacity="2G")
    chance = kills.chance
    kills.pool.create("vol", "1G")
    server = kills.serve()
    device = t.loop(server.file("vol"), direct=True)
    t.run("mkfs.ext4", "-q", "-F", device)
    directory = t.mount(device, "fs")
    data.source_tree(directory / "tree", 10 << 20)
    expected_tree = tree_digest(directory / "tree")
    t.run("sync", "--file-system", directory)
    safe = {}
    for number in range(rounds):
        target = len(safe) + chance.choice([3, 20, 80])
        while len(safe) < target:
            name = f"file-{len(safe)}"
            content = chance.randbytes(chance.randrange(1, 60000)) + b"text " * chance.randrange(20000)
            with open(directory / name, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            safe[name] = content
        # Not synced: it may be lost, but must not hurt what was.
        for extra in range(20):
            (directory / f"unsynced-{number}-{extra}").write_bytes(chance.randbytes(100000))
        server.kill()
        t.run("umount", directory, status=None)
        t.run("umount", "--lazy", directory, status=None)
        t.detach(device)
        server = kills.serve()
        device = t.loop(server.file("vol"), direct=True)
        directory = t.mount(device, "fs")
        for name, content in safe.items():
            t.expect((directory / name).read_bytes() == content, f"round {number}: {name}, which was fsync'ed, is lost or damaged")
        t.expect(tree_digest(directory / "tree") == expected_tree, f"round {number}: the tree differs")
        t.umount(directory)
        t.run("e2fsck", "-f", "-n", device)
        directory = t.mount(device, "fs")
    t.umount(directory)
    t.detach(device)
    kills.end(server, f"{len(safe)} fsync'ed files intact")


@test()
def stop_under_a_file_system(t):
    """SIGTERM under a mounted ext4 and an open file: what was written is brought down, the end is clean, fsck and content are right"""
    pool = Pool(t, capacity="1G")
    pool.create("vol", "512M")
    pool.create("raw", "64M")
    server = pool.serve(mount=True)
    device = t.loop(server.file("vol"), direct=True)
    t.run("mkfs.ext4", "-q", "-F", device)
    directory = t.mount(device, "fs")
    data.source_tree(directory / "tree", 20 << 20)
    expected = tree_digest(directory / "tree")
    raw = os.open(server.file("raw"), os.O_RDWR)
    os.pwrite(raw, b"acknowledged, and nothing more", 12345)
    client = NbdVolume(server, "raw")
    # Nothing of all this was synced.
    server.stop()
    t.note(f"ended {server.stopped_s:.2f} s after SIGTERM")
    for what, action in [("file", lambda: os.pwrite(raw, b"x", 0)), ("client", lambda: client.handle.pread(512, 0))]:
        try:
            action()
        except (OSError, nbd.Error):
            continue
        t.fail(f"the {what} goes on although the server has ended")
    os.close(raw)
    client.close()
    t.run("umount", directory, status=None)
    t.run("umount", "--lazy", directory, status=None)
    t.detach(device)
    pool.check()
    server = pool.serve(mount=True)
    t.equal(pool.status()["recovered_batches"], 0, "batches to replay after a clean end")
    raw = os.open(server.file("raw"), os.O_RDONLY)
    t.equal(os.pread(raw, 30, 12345), b"acknowledged, and nothing more", "what the open file had written")
    os.close(raw)
    device = t.loop(server.file("vol"), direct=True)
    directory = t.mount(device, "fs")
    t.expect(tree_digest(directory / "tree") == expected, "the tree differs from what was copied in")
    t.umount(directory)
    t.run("e2fsck", "-f", "-n", device)
    t.detach(device)
    server.stop()


@test()
def killed_server_starts_again(t):
    """after kill -9 the same command works again: its dead mount and sockets are taken away, a live mount never is"""
    pool = Pool(t, capacity="256M")
    pool.create("v", 16 << 20)
    server = pool.serve(mount=True)
    held = os.open(server.file("v"), os.O_RDWR)
    t.defer(lambda: os.close(held))
    os.pwrite(held, b"told" * 1024, 4096)
    server.kill(leaves_mount=True)
    again = pool.serve(mount=True)
    with open(again.file("v"), "rb") as file:
        t.equal(os.pread(file.fileno(), 4, 4096), b"told", "what was acknowledged and not flushed")
    status = pool.status()
    t.equal((status["replayed_writes"], status["standby_notes"]), (1, []), "writes brought to the log, and what is said of it")
    t.expect(os.path.exists(status["standby"]), f"{status['standby']} is there while the server lives")
    # Another pool's server must not take the place of a live one.
    other = Pool(t, capacity="256M", name="other")
    refused = other.shale("serve", "--mount", again.mount_dir, status=None)
    t.expect(refused.returncode not in (0, 101), f"a second server mounted over a live one: {refused}")
    with open(again.file("v"), "rb") as file:
        t.equal(os.pread(file.fileno(), 4, 4096), b"told", "through the mount that was there first")
    again.stop()
    t.expect(not os.path.exists(status["standby"]), f"{status['standby']} is left after an orderly end")
    pool.check()


@test()
def without_standby_memory_only_flushes_count(t):
    """--standby off: said by status, and no file is left behind; a file of another directory is found without being named"""
    pool = Pool(t, capacity="256M")
    pool.create("v", 16 << 20)
    server = pool.serve(standby="off")
    t.equal(pool.status()["standby"], None, "standby memory")
    server.stop()
    place = t.dir / "memory"
    place.mkdir()
    server = pool.serve(standby=place)
    t.expect(pool.status()["standby"].startswith(str(place)), f"it is in {place}")
    door = nbd.NBD()
    door.connect_uri(server.uri("v"))
    door.pwrite(b"told" * 1024, 8192)
    server.kill()
    # Any command that opens the pool brings it to the log.
    t.equal(pool.status()["replayed_writes"], 1, "writes brought to the log")
    t.equal(list(place.iterdir()), [], "what is left in the directory")
    server = pool.serve()
    door = nbd.NBD()
    door.connect_uri(server.uri("v"))
    t.equal(bytes(door.pread(4, 8192)), b"told", "what was acknowledged and not flushed")
    server.stop()
