"""kill -9 of the server while clients write: what a flush acknowledged is there after the restart, whole."""

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


def kill_rounds(t, rounds, seed):
    """Writers at both doors, a kill at a random moment, restart, audit; again and again on the same pool."""
    t.log(f"seed {seed}")
    chance = random.Random(seed)
    pool = Pool(t, capacity="1G", extent="256K")
    ledgers = {"file": Ledger(SLOTS), "nbd": Ledger(SLOTS)}
    for name in ledgers:
        pool.create(name, SLOTS * RECORD_BYTES)
    slowest, acknowledged, beyond = 0.0, 0, 0
    for number in range(rounds):
        server = pool.serve(mount=True, memory=MEMORY)
        slowest = max(slowest, server.ready_s)
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
        server.kill()
        for writer in writers:
            writer.join(60)
            t.expect(not writer.is_alive(), f"round {number}: a client hangs although the server is dead")
        for door in doors.values():
            door.close()
        acknowledged += sum(ledger.acknowledged for ledger in ledgers.values()) - before
    server = pool.serve(mount=True, memory=MEMORY)
    doors = open_doors(t, server)
    for name, door in doors.items():
        beyond += ledgers[name].audit(door.read)
        door.close()
    server.stop()
    pool.check()
    t.note(f"{rounds} kills, {acknowledged} records durable, {beyond} newer ones survived too; slowest start {slowest:.2f} s; seed {seed}")


def seed_of_run():
    """SHALE_SEED replays; else a new one each time, which the log names."""
    return int(os.environ.get("SHALE_SEED") or random.SystemRandom().randrange(1 << 32))


@test(seconds_max=300)
def crash_kill_records(t):
    """3 rounds of kill -9 under writers at both doors: no acknowledged record is lost, none is damaged"""
    kill_rounds(t, 3, seed_of_run())


@test(seconds_max=3600, soak=True)
def soak_kill_records(t):
    """50 rounds of kill -9 under writers at both doors"""
    kill_rounds(t, 50, seed_of_run())


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


def fio_rounds(t, rounds, seed):
    """fio writes synchronously and keeps its own account of what was answered; the server is killed; fio verifies that much."""
    t.log(f"seed {seed}")
    chance = random.Random(seed)
    pool = Pool(t, capacity="6G")
    pool.create("vol", "4G")
    verified, slowest = 0, 0.0
    for number in range(rounds):
        server = pool.serve(mount=True, memory=MEMORY)
        slowest = max(slowest, server.ready_s)
        state = t.dir / f"round-{number}"
        state.mkdir()
        # A fresh range each round is not needed: fio's blocks carry its seed, and the state says which were answered.
        job = ["fio", "--name=crash", f"--filename={server.file('vol')}", "--ioengine=libaio", "--direct=1", "--sync=dsync",
               "--rw=randwrite", "--bs=4k", f"--iodepth={chance.choice([1, 4, 16])}", "--size=2G", "--fallocate=none",
               "--buffer_compress_percentage=50", f"--randseed={chance.randrange(1 << 31)}", "--verify=crc32c",
               "--verify_fatal=1", f"--aux-path={state}"]
        # fio first saves its account, then runs the trigger.
        t.run(*job, "--do_verify=0", "--verify_state_save=1", f"--trigger-timeout={chance.choice([1, 2, 3])}",
              f"--trigger=kill -9 {server.process.pid}", status=None)
        t.equal(server.process.wait(60), -9, f"round {number}: how the server ended")
        server.kill()
        t.expect(any(state.iterdir()), f"round {number}: fio saved no account of what was answered")
        server = pool.serve(mount=True, memory=MEMORY)
        slowest = max(slowest, server.ready_s)
        out = t.out(*job, "--verify_state_load=1", "--verify_only", "--output-format=normal", cwd=state)
        reads = re.search(r"issued rwts: total=(\d+),", out)
        t.expect(reads and int(reads.group(1)) > 0, f"round {number}: fio verified nothing")
        verified += int(reads.group(1))
        server.stop()
    pool.check()
    t.note(f"{rounds} kills, {verified} blocks verified by fio; slowest start {slowest:.2f} s; seed {seed}")


@test(seconds_max=300)
def crash_kill_fio(t):
    """3 rounds of kill -9 under fio: what fio was told is durable verifies after the restart"""
    fio_rounds(t, 3, seed_of_run())


@test(seconds_max=3600, soak=True)
def soak_kill_fio(t):
    """20 rounds of kill -9 under fio"""
    fio_rounds(t, 20, seed_of_run())


def ext4_rounds(t, rounds, seed):
    """ext4 on a loop device; the server is killed while files are written and fsync'ed; the journal replays, fsck is clean."""
    t.log(f"seed {seed}")
    chance = random.Random(seed)
    pool = Pool(t, capacity="2G")
    pool.create("vol", "1G")
    server = pool.serve(mount=True)
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
        server = pool.serve(mount=True)
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
    server.stop()
    pool.check()
    t.note(f"{rounds} kills, {len(safe)} fsync'ed files intact; seed {seed}")


@test(seconds_max=300)
def crash_kill_ext4(t):
    """3 rounds of kill -9 under ext4 on a loop device: all that was fsync'ed is there, fsck is clean"""
    ext4_rounds(t, 3, seed_of_run())


@test(seconds_max=3600, soak=True)
def soak_kill_ext4(t):
    """20 rounds of kill -9 under ext4"""
    ext4_rounds(t, 20, seed_of_run())
