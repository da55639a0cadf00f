#!/usr/bin/python3
"""In a virtual machine with dm-log-writes: a pool on a file system on a device whose writes are recorded, in their order, and replayed up to each flush.

    log_writes_guest.py [COMMITS]

A program writes to a volume and syncs it, again and again; a mark in the record follows each sync. For each mark, and for a place between it and the
next one, the record is replayed onto an empty disk, as if the power had failed there: the pool must open, be whole, and have all that was synced
before the mark. Beside this file lies the program, `shale`. It prints "part NAME: ok, ..." or "part NAME: FAILED ...".
"""

import hashlib
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHALE = str(Path(__file__).resolve().parent / "shale")
WORK = Path(tempfile.mkdtemp(prefix="log-writes.", dir=os.environ.get("TMPDIR", "/var/tmp")))
MIB, BLOCK = 1 << 20, 4096
DISK_MIB, LOG_MIB, VOLUME_MIB = 448, 1400, 24
SECONDS_MAX = 600
# Of the kernel's drivers/md/dm-log-writes.c: the head of the record, and that of an entry.
MAGIC, HEAD, ENTRY = 0x6A736677736872, struct.Struct("<QQQI"), struct.Struct("<QQQQ")
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8


def run(*words, status=0):
    """A command that ends with this status; all that it wrote."""
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS_MAX, check=False)
    expect(done.returncode == status, f"{' '.join(map(str, words))[:200]}: exit status {done.returncode}: {done.stdout[-1500:]}")
    return done.stdout


def expect(is_so, text):
    """Fails unless it is so."""
    if not is_so:
        raise RuntimeError(text)


def content(block, version):
    """What a block of the volume has in a version: half of it shrinks."""
    head = b"%016d%016d" % (block, version)
    noise = b"".join(hashlib.sha256(head + b"%d" % number).digest() for number in range(BLOCK // 64))
    return (head + noise + bytes(BLOCK))[:BLOCK]


def loop(name, mib):
    """A device on an empty file."""
    path = WORK / name
    with open(path, "wb") as file:
        file.truncate(mib * MIB)
    return run("losetup", "--find", "--show", path).strip()


class Recorded:
    """A device that records its writes."""

    def __init__(self):
        self.below, self.log = loop("disk", DISK_MIB), loop("log", LOG_MIB)
        # Otherwise dmsetup might wait for a manager of devices, of which there is none.
        os.environ["DM_DISABLE_UDEV"] = "1"
        run("dmsetup", "create", "recorded", "--table", f"0 {DISK_MIB * MIB // 512} log-writes {self.below} {self.log}")
        # Without a manager of devices nothing makes the node.
        run("dmsetup", "mknodes")
        self.path = "/dev/mapper/recorded"

    def mark(self, name):
        """A mark in the record; the kernel takes one word."""
        run("dmsetup", "message", "recorded", "0", "mark", name)

    def end(self):
        """The record is complete."""
        run("dmsetup", "remove", "recorded")
        run("losetup", "--detach", self.below, self.log)


def entries(file):
    """(flags, offset, length, place of the data, mark) of each entry of a record."""
    magic, version, count, sector = HEAD.unpack(file.read(HEAD.size))
    expect((magic, version) == (MAGIC, 1), "this is no record of dm-log-writes")
    at = sector
    for _ in range(count):
        file.seek(at)
        text = file.read(sector)
        start, sectors, flags, length = ENTRY.unpack_from(text)
        at += sector
        yield flags, start * sector, sectors * sector, at, text[ENTRY.size:ENTRY.size + length].decode() if flags & MARK else ""
        if not flags & DISCARD:
            at += sectors * sector


def write(commits):
    """Makes the record; the versions of the blocks that each mark promises, and the last ones of all."""
    # Nobody else makes the nodes by which their first users would load them.
    run("modprobe", "--all", "loop", "fuse", "dm-log-writes")
    device, mnt, mount = Recorded(), WORK / "mnt", WORK / "volumes"
    mnt.mkdir()
    mount.mkdir()
    run("mkfs.ext4", "-q", device.path)
    run("mount", device.path, mnt)
    run(SHALE, "init", mnt / "pool", "--capacity", "256M")
    run(SHALE, "create", mnt / "pool", "vm", "--size", f"{VOLUME_MIB}M")
    read, write_end = os.pipe()
    log = open(WORK / "serve.log", "wb")
    # What is synced counts, and nothing else: no memory outlives a loss of power.
    server = subprocess.Popen([SHALE, "serve", mnt / "pool", "--mount", mount, "--memory", "64M", "--standby", "off", "--ready-fd", str(write_end)],
                              stdout=log, stderr=log, pass_fds=[write_end])
    os.close(write_end)
    with open(read, encoding="utf-8") as ready:
        expect(ready.readline() == "ready\n", f"the server is not ready: {(WORK / 'serve.log').read_text()[-1500:]}")
    generator, versions, promised = random.Random(5), {}, []
    volume = os.open(mount / "vm", os.O_RDWR)
    for number in range(commits):
        for version in range(40):
            block = generator.randrange(VOLUME_MIB * MIB // BLOCK)
            versions[block] = number * 100 + version + 1
            os.pwrite(volume, content(block, versions[block]), block * BLOCK)
        os.fdatasync(volume)
        promised.append(dict(versions))
        device.mark(f"synced-{number}")
        # No promise holds for these.
        for version in range(40, 60):
            block = generator.randrange(VOLUME_MIB * MIB // BLOCK)
            versions[block] = number * 100 + version + 1
            os.pwrite(volume, content(block, versions[block]), block * BLOCK)
    os.close(volume)
    server.send_signal(signal.SIGTERM)
    expect(server.wait(SECONDS_MAX) == 0, f"the server: {(WORK / 'serve.log').read_text()[-1500:]}")
    run("umount", mnt)
    device.end()
    return promised, versions


def verify(disk, promised, last):
    """The pool on a disk on which the record ended: what was promised is there."""
    at = WORK / "replayed"
    at.mkdir(exist_ok=True)
    # What ext4 and the pool write when they recover goes to a copy.
    copy = WORK / "copy"
    run("cp", "--sparse=always", disk, copy)
    run("mount", "-o", "loop", copy, at)
    try:
        run(SHALE, "check", at / "pool")
        run(SHALE, "export", at / "pool", "vm", WORK / "volume", "--force")
    finally:
        run("umount", at)
    found = 0
    with open(WORK / "volume", "rb") as file:
        for block in last:
            file.seek(block * BLOCK)
            data = file.read(BLOCK)
            if not any(data):
                expect(block not in promised, f"block {block} is empty, and version {promised.get(block)} was synced")
                continue
            version = int(data[16:32])
            expect(data == content(block, version), f"block {block} is no version of it: {data[:32]}")
            expect(promised.get(block, 0) <= version <= last[block], f"block {block} has version {version}, and {promised.get(block)} was synced")
            found += 1
    return found


def replay(promised, last):
    """Replays the record, and verifies what lies there at each mark, and between marks."""
    disk, verified, writes = WORK / "replay", 0, 0
    with open(disk, "wb") as file:
        file.truncate(DISK_MIB * MIB)
    with open(WORK / "log", "rb") as log, open(disk, "r+b") as target:
        listed = list(entries(log))
        marks = [place for place, entry in enumerate(listed) if entry[4].startswith("synced-")]
        expect(len(marks) == len(promised), f"{len(marks)} marks of {len(promised)} in the record")
        between = [(mark + following) // 2 for mark, following in zip(marks, [*marks[1:], len(listed) - 1])]
        number = -1
        for place, (flags, offset, length, data, _) in enumerate(listed):
            if flags & DISCARD:
                # Zeroes, as a disk may answer.
                target.seek(offset)
                target.write(bytes(length))
            elif length:
                log.seek(data)
                target.seek(offset)
                target.write(log.read(length))
                writes += 1
            number += place in marks
            if place in marks or place in between:
                target.flush()
                verify(disk, promised[number], last)
                verified += 1
    flushes = sum(bool(entry[0] & (FLUSH | FUA)) for entry in listed)
    return f"{verified} states of {writes} writes and {flushes} flushes"


def main():
    commits, began = int((sys.argv[1:] or ["8"])[0]), time.monotonic()
    try:
        print(f"part replay: ok, {replay(*write(commits))} in {time.monotonic() - began:.0f} s", flush=True)
    except BaseException as error:  # noqa: BLE001 (it is reported)
        said = re.sub(r"\s+", " ", str(error))[:2000]
        print(f"part replay: FAILED {type(error).__name__}: {said}", flush=True)
        return 1
    return 0


sys.exit(main())
