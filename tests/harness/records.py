"""Numbered records, to find out what a crash has taken.

The writer writes 4 KiB records at random slots of a volume and flushes now and then. Each record holds its slot and a version
that only grows, and a body made of both. The ledger, kept outside of the storage under test, knows for each slot the version
whose write was answered last, flushed or not, and all versions sent since. The servers of these tests are killed and the machine
lives on: so after a crash each slot must hold one of these, whole.

1. `Ledger.writing(slot)` takes a version and notes it BEFORE the write is sent: it may survive whether or not it was answered.
2. `Ledger.answered(slot, version)` is called after the write was answered: from now on nothing older may be there.
3. `Ledger.flushed(...)` is called after the flush was answered, with what had been answered before it was sent.
4. `Ledger.audit(read)` after the crash: fails with slot, found and allowed versions; what survived is the new base.
"""

import hashlib
import random
import struct
import threading

RECORD_BYTES = 4096
MAGIC = b"shalerec"
HEADER = struct.Struct("<8sQQ32s")


def body(slot, version):
    """Half random, half text: it compresses about two to one, and no two are alike."""
    generator = random.Random(slot << 32 | version)
    half = (RECORD_BYTES - HEADER.size) // 2
    text = f"slot {slot} holds version {version}; ".encode() * (half // 16)
    return (generator.randbytes(half) + text)[: RECORD_BYTES - HEADER.size].ljust(RECORD_BYTES - HEADER.size, b".")


def record(slot, version):
    """The bytes of a version of a slot; version 0 is a slot that was never written."""
    if version == 0:
        return bytes(RECORD_BYTES)
    content = body(slot, version)
    return HEADER.pack(MAGIC, slot, version, hashlib.sha256(content).digest()) + content


def parse(slot, found):
    """The version that a slot holds, or what is wrong with it as text."""
    if not any(found):
        return 0
    magic, found_slot, version, checksum = HEADER.unpack_from(found)
    if magic != MAGIC:
        return f"no record, but {found[:16].hex()}..."
    if found_slot != slot:
        return f"a record of slot {found_slot} (version {version})"
    if hashlib.sha256(found[HEADER.size:]).digest() != checksum or found != record(slot, version):
        return f"version {version}, but its content is damaged"
    return version


class Ledger:
    """What may be in each slot of one volume. One writer at a time."""

    def __init__(self, slots):
        self.durable = [0] * slots
        self.since = [[] for _ in range(slots)]
        self.told = [0] * slots
        self.version = 0
        self.acknowledged = 0

    def writing(self, slot):
        """The next version, for a write that is about to be sent."""
        self.version += 1
        self.since[slot].append(self.version)
        return self.version

    def answered(self, slot, version):
        """The write of a version was answered."""
        self.told[slot] = version

    def flushed(self, answered):
        """A flush was answered: `answered` holds slot -> newest version whose write was answered before the flush was sent."""
        for slot, version in answered.items():
            self.durable[slot] = version
            self.since[slot] = [v for v in self.since[slot] if v > version]
        self.acknowledged += len(answered)

    def audit(self, read, answered=True):
        """Compares every slot, read with `read(slot)`, with what it may hold; returns how many slots went beyond the flush.

        Nothing that was answered may be gone; with `answered=False`, nothing that was flushed.
        """
        newer = 0
        problems = []
        for slot, durable in enumerate(self.durable):
            found = parse(slot, read(slot))
            least = max(durable, self.told[slot]) if answered else durable
            allowed = [least, *(v for v in self.since[slot] if v > least)]
            if found not in allowed:
                problems.append(f"slot {slot}: found {found}, allowed {allowed}; {durable} was flushed")
                continue
            newer += found != durable
            self.durable[slot] = found
            self.since[slot] = []
            self.told[slot] = found
        if problems:
            raise AssertionError(f"{len(problems)} slots hold what they must not: " + " | ".join(problems[:5]))
        return newer


class Writer(threading.Thread):
    """Writes records until the storage goes away.

    `write(offset, bytes)` and `flush()` raise OSError (or anything of `gone`) once the server is dead.
    """

    def __init__(self, ledger, write, flush, seed, gone=(OSError,)):
        super().__init__(daemon=True)
        self.ledger, self.write, self.flush, self.gone = ledger, write, flush, gone
        self.random = random.Random(seed)
        self.progress = threading.Condition()
        self.error = None
        self.ended = False

    def run(self):
        """Thread body."""
        try:
            while True:
                answered = {}
                for _ in range(self.random.choice([1, 1, 2, 8, 32, 100])):
                    slot = self.random.randrange(len(self.ledger.durable))
                    version = self.ledger.writing(slot)
                    self.write(slot * RECORD_BYTES, record(slot, version))
                    self.ledger.answered(slot, version)
                    answered[slot] = version
                self.flush()
                with self.progress:
                    self.ledger.flushed(answered)
                    self.progress.notify_all()
        except self.gone as error:
            self.error = error
        finally:
            with self.progress:
                self.ended = True
                self.progress.notify_all()

    def wait_acknowledged(self, count, seconds_max=240):
        """Returns when so many records more are durable, false if the writer ended or it took too long."""
        with self.progress:
            target = self.ledger.acknowledged + count
            done = self.progress.wait_for(lambda: self.ended or self.ledger.acknowledged >= target, seconds_max)
            return done and not self.ended
