"""Streams of volumes that begin as images: only what differs from these goes over, and the version is held before a volume is made."""

import json

from harness import Pool, test
from harness.pool import BINARY, EXIT

from .image_keep import holders
from .images import MIB, here, image_file, padded, volume


def collect(store):
    """Gives up all versions but the newest, and deletes what only they had."""
    store.blob("expire", "disk", "--keep", "1")
    store.blob("gc", "disk", "--grace", "0s", "--uploads", "0s", "--full")


@test()
def image_thin_streams(t):
    """send --thin leaves the image out, however much of it is here; receive pins its version before it makes the volume, or says why not"""
    store = here(t)
    file = image_file(t, size=16 * MIB)
    store.blob("put", "disk", file)
    url = f"{store.url}/disk"
    pool = Pool(t, capacity="256M")
    t.run(BINARY, "clone", url, pool.path, "vm", "-o", "compression=off")
    server = pool.serve()
    size = -(-file.stat().st_size // 4096) * 4096
    expected = bytearray(padded(file, size))
    t.expect(volume(t, server, "vm") == bytes(expected), "vm reads as the image")
    t.run("qemu-io", "-f", "raw", "-c", "write -P 7 5M 3M", "-c", "write -P 9 12345 100", "-c", "discard 10M 64k", server.uri("vm"))
    expected[5 * MIB:8 * MIB] = b"\x07" * (3 * MIB)
    expected[12345:12445] = b"\x09" * 100
    expected[10 * MIB:10 * MIB + 65536] = bytes(65536)
    t.expect(volume(t, server, "vm") == bytes(expected), "vm as it was changed")
    pool.shale("snapshot", "vm@one")
    pool.shale("send", "vm@one", "--thin", "--from", "vm@one", "-o", t.dir / "none", status=EXIT["usage"])
    stream = t.dir / "thin"
    sent = json.loads(pool.shale("send", "vm@one", "--thin", "-o", stream, "--json").stdout)
    t.equal(sent["image"], f"{url}@1", "the image that the stream names")
    t.expect(3 * MIB < sent["stream_bytes"] < 3.5 * MIB, f"only the changes are sent: {sent}")
    t.run("qemu-io", "-f", "raw", "-c", "write -P 5 8M 4k", server.uri("vm"))
    pool.shale("snapshot", "vm@two")
    pool.shale("send", "vm@two", "--from", "one", "-o", t.dir / "difference")

    # A part comes into a server, which keeps its pin.
    there = Pool(t, "there", capacity="256M")
    other = there.serve()
    (t.dir / "part").write_bytes(stream.read_bytes()[:2 * MIB])
    broken = there.shale("receive", "far", "-i", t.dir / "part", status=EXIT["io"])
    t.expect("--resume shale2-" in broken.stderr, f"a token of a thin stream: {broken.stderr}")
    t.equal(holders(store, "disk"), [("far", 1), ("vm", 1)], "who holds the version")
    other.stop()
    pool.shale("destroy", "-r", "vm")
    t.wait_for(lambda: holders(store, "disk") == [("far", 1)], "the end of the sender's pin")
    server.stop()
    second = t.dir / "second"
    second.write_bytes(b"another version")
    store.blob("put", "disk", second)
    collect(store)
    # The store is away, or not this machine's: nothing is made.
    (t.dir / "blobs").rename(t.dir / "away")
    failed = there.shale("receive", "lost", "-i", stream, status=None)
    t.expect(failed.returncode in (EXIT["not-found"], EXIT["io"]) and f"{url}@1" in failed.stderr, f"why not: {failed.stderr}")
    there.shale("set", "lost", "mode=archive", status=EXIT["not-found"])
    (t.dir / "away").rename(t.dir / "blobs")
    # All of it, and the difference, with a server that looks at its pins.
    got = json.loads(there.shale("receive", "far", "-i", stream, "--json").stdout)
    t.equal((got["image"], got["is_new"]), (f"{url}@1", True), "what was received")
    other = there.serve()
    t.expect(volume(t, other, "far") == bytes(expected), "the copy reads as the snapshot")
    there.shale("receive", "far", "-i", t.dir / "difference")
    expected[8 * MIB:8 * MIB + 4096] = b"\x05" * 4096
    t.expect(volume(t, other, "far") == bytes(expected), "and with the difference as the next one")
    # One that is given up lets the version go, and then it is gone.
    there.shale("receive", "half", "-i", t.dir / "part", status=EXIT["io"])
    t.equal(holders(store, "disk"), [("far", 1), ("half", 1)], "who holds the version")
    there.shale("destroy", "half")
    t.wait_for(lambda: holders(store, "disk") == [("far", 1)], "the end of the pin of half")
    there.shale("destroy", "-r", "far")
    t.wait_for(lambda: holders(store, "disk") == [], "the end of all pins")
    collect(store)
    failed = there.shale("receive", "late", "-i", stream, status=EXIT["not-found"])
    t.expect(f"{url}@1" in failed.stderr and "late" in failed.stderr, f"the version is gone: {failed.stderr}")
    other.stop()
    pool.check()
    there.check()
