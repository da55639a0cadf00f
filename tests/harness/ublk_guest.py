#!/usr/bin/python3
"""In a virtual machine whose kernel has ublk: volumes as block devices. Owns what is done to them; the host says which parts.

    ublk_guest.py [PART...]        all without arguments

Beside this file lies the program, `shale`. It prints one line for each part, "part NAME: ok, ..." or "part NAME: FAILED ...", and ends after a failure.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHALE = str(HERE / "shale")
WORK = Path(tempfile.mkdtemp(prefix="ublk.", dir=os.environ.get("TMPDIR", "/var/tmp")))
MIB = 1 << 20
# An emulated machine on a busy computer.
SECONDS_MAX = 600
EXIT_IN_USE, EXIT_CONFLICT = 4, 11
# How often a load begins anew: it must outlast some ends of the server.
LOOPS = int(os.environ.get("SHALE_UBLK_LOOPS", "4"))


def run(*words, status=0, seconds_max=SECONDS_MAX):
    """A command that ends with this status; all that it wrote."""
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds_max, check=False)
    expect(done.returncode == status, f"{' '.join(map(str, words))[:200]}: exit status {done.returncode}: {done.stdout[-1500:]}")
    return done.stdout


def expect(is_so, text):
    """Fails the part unless it is so."""
    if not is_so:
        raise RuntimeError(text)


def until(is_so, what, seconds_max=SECONDS_MAX):
    """Waits for a condition."""
    end = time.monotonic() + seconds_max
    while not (found := is_so()):
        expect(time.monotonic() < end, f"{what}: not within {seconds_max} s")
        time.sleep(0.02)
    return found


def pattern(number, length):
    """Bytes of which each block differs, and which shrink to a half."""
    line = hashlib.sha256(b"%d" % number).digest() + bytes(32)
    return b"".join(b"%016d" % at + line[16:] for at in range(length // 64))


class Pool:
    """A pool with a volume `vm`, and its server."""

    def __init__(self, name, size="192M"):
        self.path, self.log, self.process = WORK / name, WORK / f"{name}.log", None
        self.shale("init", "--capacity", "640M")
        self.shale("create", "vm", "--size", size)

    def shale(self, command, *words, **how):
        """A command on the pool."""
        return run(SHALE, command, self.path, *words, **how)

    def serve(self, *words):
        """Serves, and returns the devices by volume once it is ready."""
        read, write = os.pipe()
        with open(self.log, "ab") as log, open(WORK / "out", "wb") as out:
            self.process = subprocess.Popen([SHALE, "serve", self.path, "--memory", "96M", "--json", "--ready-fd", str(write), *words],
                                            stdin=subprocess.DEVNULL, stdout=out, stderr=log, pass_fds=[write])
        os.close(write)
        with open(read, encoding="utf-8") as ready:
            said = ready.readline()
        expect(said == "ready\n", f"the server is not ready: {self.told()[-1500:]}")
        return {one["volume"]: one["device"] for one in json.loads((WORK / "out").read_text())["ublk"]}

    def signal(self, number, status=0):
        """Ends the server by a signal."""
        self.process.send_signal(number)
        found = self.process.wait(SECONDS_MAX)
        expect(found == status, f"exit status of the server after {number}: {found}: {self.told()[-1500:]}")

    def kill(self):
        """kill -9."""
        self.signal(signal.SIGKILL, -signal.SIGKILL)

    def told(self):
        """The server's messages."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def end(self):
        """Stops in order: the devices go, and the pool is whole."""
        self.signal(signal.SIGTERM)
        expect(devices() == [], f"devices are left: {devices()}")
        self.shale("check")
        shutil.rmtree(self.path)


def devices():
    """Block devices of the driver."""
    return sorted(str(path) for path in Path("/dev").glob("ublkb*"))


def of_queue(device, name):
    """A setting of a device's queue."""
    return (Path("/sys/block") / Path(device).name / "queue" / name).read_text().strip()


def size(device):
    """Bytes of a device."""
    return int((Path("/sys/block") / Path(device).name / "size").read_text()) * 512


def completed(device):
    """Requests that a device has completed."""
    fields = (Path("/sys/block") / Path(device).name / "stat").read_text().split()
    return sum(int(fields[at]) for at in (0, 4, 11, 15) if at < len(fields))


@contextlib.contextmanager
def mounted(device, make=True):
    """An ext4 on a device, and where it is mounted; it must be whole afterwards."""
    at = WORK / "mnt"
    at.mkdir(exist_ok=True)
    if make:
        run("mkfs.ext4", "-q", "-F", device)
    run("mount", device, at)
    try:
        yield at
    finally:
        run("umount", at)
    run("e2fsck", "-fn", device)


def fio(name, **settings):
    """fio's words for a job whose blocks are verified."""
    settings = {"rw": "randwrite", "bs": "4k", "ioengine": "libaio", "direct": 1, "iodepth": 16, "verify": "crc32c", "verify_fatal": 1,
                "verify_backlog": 512, "randrepeat": 0, **settings}
    return ["fio", f"--name={name}", "--output-format=terse", *(f"--{key}={value}" for key, value in settings.items())]


@contextlib.contextmanager
def load(*jobs):
    """fio in the background: it ends without an error, whatever happens meanwhile."""
    running = [subprocess.Popen(job, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for job in jobs]
    try:
        yield running
        for one in running:
            out, _ = one.communicate(timeout=SECONDS_MAX)
            expect(one.returncode == 0, f"fio: exit status {one.returncode}: {out[-1500:]}")
    finally:
        for one in running:
            one.kill()
            one.wait()


def part_files():
    """ext4: trees of files, fio with verification, discards, and what the kernel knows of the device."""
    pool = Pool("files")
    device = pool.serve("--ublk", "vm")["vm"]
    found = {name: of_queue(device, name) for name in ("logical_block_size", "physical_block_size", "discard_granularity", "write_cache", "fua")}
    expect(found == {"logical_block_size": "512", "physical_block_size": "4096", "discard_granularity": "4096", "write_cache": "write back", "fua": "1"},
           f"settings of the queue: {found}")
    expect(int(of_queue(device, "discard_max_bytes")) > 0 and int(of_queue(device, "write_zeroes_max_bytes")) > 0, "no discard or no zeroes")
    expect(size(device) == 192 * MIB, f"size: {size(device)}")
    with mounted(device) as at:
        for number in range(8):
            (at / f"file{number}").write_bytes(pattern(number, 4 * MIB))
        run("sync", "-f", at)
        run("sh", "-c", "echo 3 > /proc/sys/vm/drop_caches")
        for number in range(8):
            expect((at / f"file{number}").read_bytes() == pattern(number, 4 * MIB), f"bytes of file {number}")
        run(*fio("verify", filename=at / "fio", size="24m"))
        run(*fio("large", filename=at / "fio", size="24m", bs="512k", rw="write", iodepth=4))
        for number in range(8):
            (at / f"file{number}").unlink()
        run("sync", "-f", at)
        before = stored(pool)
        run("fstrim", at)
        run("sync", "-f", at)
        until(lambda: stored(pool) < before - 16 * MIB, "space that discards gave back")
    run(*fio("sectors", filename=device, size="2m", bs=512, ioengine="psync", iodepth=1))
    run(*fio("raw", filename=device, size="32m", bs="64k"))
    run("blkdiscard", "-z", device)
    with open(device, "rb") as file:
        expect(not any(file.read(8 * MIB)), "zeroes")
    pool.end()
    return "ext4, fio, fstrim, zeroes"


def part_xfs():
    """XFS: fio with verification, a kill -9 of the server under it, discards, and its check."""
    pool = Pool("xfs", size="512M")
    device = pool.serve("--ublk", "vm")["vm"]
    at = WORK / "mnt"
    at.mkdir(exist_ok=True)
    run("mkfs.xfs", "-q", device)
    run("mount", "-o", "discard", device, at)
    with load(fio("verify", filename=at / "fio", size="24m", loops=LOOPS)):
        seen = completed(device)
        until(lambda: completed(device) > seen + 200, "progress before the end of the server")
        pool.kill()
        expect(pool.serve("--ublk", "vm") == {"vm": device}, "the device that was taken over")
    before = stored(pool)
    (at / "fio").unlink()
    run("sync", "-f", at)
    until(lambda: stored(pool) < before - 16 * MIB, "space that discards gave back")
    run("umount", at)
    run("xfs_repair", "-n", device)
    pool.end()
    return "fio, kill -9, discards"


def stored(pool):
    """Logical bytes of the pool that hold data."""
    return json.loads(pool.shale("status", "--sync", "--json"))["allocated_bytes"]


def kills(words, count, how):
    """The server ends in some way under load, again and again, and each time the next one takes over."""
    pool = Pool("kills")
    device = pool.serve("--ublk", words)["vm"]
    with mounted(device) as at:
        jobs = [fio("direct", filename=at / "direct", size="24m", loops=LOOPS),
                fio("synced", filename=at / "synced", size="8m", ioengine="psync", iodepth=1, fsync=8, direct=0, loops=LOOPS)]
        with load(*jobs) as running:
            for number in range(count):
                seen = completed(device)
                until(lambda seen=seen: completed(device) > seen + 200, f"progress before the end {number} of a server")
                expect(any(one.poll() is None for one in running), "the load has ended before the server")
                how(pool)
                expect(Path(device).exists(), "the device has gone with the server")
                expect(pool.serve("--ublk", words) == {"vm": device}, "the device that was taken over")
                expect(f"{device} was taken over" in pool.told(), f"no message: {pool.told()[-500:]}")
            seen = completed(device)
            until(lambda: completed(device) > seen or all(one.poll() is not None for one in running), "progress after the last takeover")
        (at / "after").write_bytes(pattern(77, MIB))
    pool.end()
    return f"{count} ends of the server"


def part_kills():
    """kill -9 under fio on ext4."""
    return kills("vm", 4, Pool.kill)


def part_kills_of_full_queues():
    """The same with a queue whose tags are all in use: kernels before 6.16 notice the death late."""
    return kills("vm,queues=1,depth=2", 2, Pool.kill)


def part_upgrades():
    """SIGUSR2 under load."""
    return kills("vm", 3, lambda pool: pool.signal(signal.SIGUSR2))


def part_resize():
    """A running device follows the volume, where the kernel can; otherwise that is said, and the next device has the size."""
    pool = Pool("resize")
    device = pool.serve("--ublk", "vm")["vm"]
    with mounted(device) as at:
        (at / "file").write_bytes(pattern(1, MIB))
        pool.shale("resize", "vm", "256M")
        has_it = until(lambda: size(device) == 256 * MIB and "resized" or "the kernel cannot resize it" in pool.told() and "not resized", "the new size")
        if has_it == "resized":
            run("resize2fs", device)
    if has_it == "not resized":
        pool.signal(signal.SIGTERM)
        device = pool.serve("--ublk", "vm")["vm"]
    expect(size(device) == 256 * MIB, f"size: {size(device)}")
    with mounted(device, make=False) as at:
        expect((at / "file").read_bytes() == pattern(1, MIB), "bytes")
    # A size that changes while there is no server.
    pool.kill()
    pool.shale("resize", "vm", "320M")
    expect(pool.serve("--ublk", "vm") == {"vm": device}, "the device that was taken over")
    if has_it == "resized":
        until(lambda: size(device) == 320 * MIB, "the size after a takeover")
    pool.end()
    return has_it


def part_snapshots():
    """A snapshot is a device that cannot be written; several devices of one server."""
    pool = Pool("snapshots")
    device = pool.serve("--ublk", "vm")["vm"]
    with open(device, "r+b") as file:
        file.write(pattern(5, MIB))
        os.fsync(file.fileno())
    pool.shale("snapshot", "vm@s")
    pool.signal(signal.SIGTERM)
    both = pool.serve("--ublk", "vm", "--ublk", "vm@s")
    expect(len(set(both.values())) == 2 and sorted(both) == ["vm", "vm@s"], f"devices: {both}")
    with open(both["vm"], "r+b") as file:
        file.write(bytes(MIB))
        os.fsync(file.fileno())
    snapshot = both["vm@s"]
    expect(run("blockdev", "--getro", snapshot).strip() == "1", "the snapshot can be written")
    with open(snapshot, "rb") as file:
        expect(file.read(MIB) == pattern(5, MIB), "bytes of the snapshot")
    run("dd", "if=/dev/zero", f"of={snapshot}", "bs=4k", "count=1", "oflag=direct", status=1)
    pool.kill()
    expect(pool.serve("--ublk", "vm@s", "--ublk", "vm") == both, "the devices that were taken over")
    pool.shale("destroy", "vm@s", status=EXIT_IN_USE)
    pool.end()
    return f"{len(both)} devices"


def part_removal():
    """An orderly stop removes a device that is in use, after its file system was synced; programs get errors."""
    pool = Pool("removal")
    device = pool.serve("--ublk", "vm")["vm"]
    at = WORK / "mnt"
    at.mkdir(exist_ok=True)
    run("mkfs.ext4", "-q", "-F", device)
    run("mount", device, at)
    (at / "file").write_bytes(pattern(9, 2 * MIB))
    pool.signal(signal.SIGTERM)
    expect(devices() == [], f"devices are left: {devices()}")
    expect("is in use, was synced, and is removed now" in pool.told(), f"no message: {pool.told()[-800:]}")
    run("umount", at)
    device = pool.serve("--ublk", "vm")["vm"]
    with mounted(device, make=False) as at:
        expect((at / "file").read_bytes() == pattern(9, 2 * MIB), "bytes that were written without a sync")
    pool.end()
    return "in use, and free"


def part_left():
    """A device whose server was killed waits: without --ublk it is named, a copy of the pool does not take it, and without standby memory nobody does."""
    pool = Pool("left")
    device = pool.serve("--ublk", "vm")["vm"]
    with open(device, "r+b") as file:
        file.write(pattern(3, MIB))
        os.fsync(file.fileno())
    pool.kill()
    copy = WORK / "copy"
    run("cp", "-a", "--sparse=always", pool.path, copy)
    pool.shale("create", "other", "--size", "16M")
    for words in ([], ["--ublk", "other"]):
        pool.log.unlink()
        pool.serve(*words)
        expect(f"{device} waits, as an earlier server left it: --ublk vm serves it again" in pool.told(), f"it is not named: {pool.told()}")
        pool.signal(signal.SIGTERM)
        expect(devices() == [device], f"devices: {devices()}")
    said = pool.shale("serve", "--ublk", "vm", "--standby", "off", status=EXIT_CONFLICT)
    expect(f"{device} waits for a server that keeps acknowledged writes" in said, f"the refusal: {said}")
    # The same pool, but for its place.
    theirs, ours = Pool.__new__(Pool), pool
    theirs.path, theirs.log, theirs.process = copy, WORK / "copy.log", None
    other = theirs.serve("--ublk", "vm")["vm"]
    expect(other != device, "the copy has taken the device of the original")
    theirs.signal(signal.SIGTERM)
    shutil.rmtree(copy)
    expect(ours.serve("--ublk", "vm") == {"vm": device}, "the device that was taken over")
    with open(device, "rb") as file:
        expect(file.read(MIB) == pattern(3, MIB), "bytes")
    ours.end()
    return "named, not taken by a copy"


def part_ends_with_its_server():
    """Without standby memory a device ends with its server: a file system must not go on with data that is lost."""
    pool = Pool("ends")
    device = pool.serve("--ublk", "vm", "--standby", "off")["vm"]
    pool.kill()
    until(lambda: not Path(device).exists(), "the end of the device")
    pool.serve("--ublk", "vm", "--standby", "off")
    pool.end()
    return "it ends"


def part_reload():
    """Devices come and go with the file of settings, but for one that is in use."""
    pool = Pool("reload")
    pool.shale("create", "other", "--size", "32M")
    file = WORK / "settings.toml"

    def settings(*names):
        file.write_text(f"pool = '{pool.path}'\nmemory = '96M'\nnbd = ['unix:{WORK}/nbd.sock']\nublk = {json.dumps(names)}\n")

    settings("vm")
    read, write = os.pipe()
    with open(pool.log, "ab") as log:
        pool.process = subprocess.Popen([SHALE, "serve", "--config", file, "--ready-fd", str(write)], stdout=log, stderr=log, pass_fds=[write])
    os.close(write)
    with open(read, encoding="utf-8") as ready:
        expect(ready.readline() == "ready\n", f"the server is not ready: {pool.told()[-1500:]}")
    [device] = devices()
    with mounted(device) as at:
        (at / "file").write_bytes(pattern(2, MIB))
        settings("other")
        expect("is in use: unmount it first" in run(SHALE, "reload", pool.path, status=EXIT_IN_USE), "the refusal")
        expect(devices() == [device], f"devices: {devices()}")
        settings("vm", "other,queues=1,depth=8")
        run(SHALE, "reload", pool.path)
        expect(len(devices()) == 2, f"devices: {devices()}")
    settings("other,queues=1,depth=8")
    run(SHALE, "reload", pool.path)
    expect(len(devices()) == 1 and device not in devices(), f"devices: {devices()}")
    settings()
    run(SHALE, "reload", pool.path)
    expect(devices() == [], f"devices: {devices()}")
    pool.end()
    return "devices come and go"


PARTS = {name.removeprefix("part_"): part for name, part in globals().items() if name.startswith("part_")}


def main():
    subprocess.run(["modprobe", "-q", "ublk_drv"], check=False)
    print(f"kernel {os.uname().release}", flush=True)
    failed = 0
    for name in sys.argv[1:] or PARTS:
        began = time.monotonic()
        try:
            print(f"part {name}: ok, {PARTS[name]()} in {time.monotonic() - began:.0f} s", flush=True)
        except BaseException as error:  # noqa: BLE001 (each part is reported)
            failed += 1
            said = re.sub(r"\s+", " ", str(error))[:2000]
            print(f"part {name}: FAILED {said}", flush=True)
            traceback.print_exc()
            kernel = subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout
            print(kernel[-3000:], flush=True)
            # Devices that wait would stop the parts that follow, and the end of the machine.
            break
    return 1 if failed else 0


sys.exit(main())
