"""The store of an image that does not answer: what waits for it is ended by signals, by cancelling, and by the end of the server; what
was acknowledged before is kept."""

import signal
import subprocess

from harness import Pool, test
from harness.data import random_file
from harness.fake_s3 import FakeS3
from harness.pool import BINARY, EXIT, STOP_SECONDS_MAX

from .blob_clients import fake_environment
from .blobs import Store
from .images import MIB, use
from .jobs import EXIT_INTERRUPTED


SECTOR, BLOCK = 512, 4096


class Held:
    """A command that waits for the store."""

    def __init__(self, t, s3, *words):
        before = s3.held
        self.t = t
        self.process = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        t.defer(self.process.kill)
        t.wait_for(lambda: s3.held > before, f"a request of {words[1]} that the store holds up")
        t.expect(self.process.poll() is None, f"{words[1]} ended before the store answered")

    def ends(self, status):
        """It ends; what it said."""
        said = self.process.communicate(timeout=STOP_SECONDS_MAX)[1]
        self.t.equal(self.process.returncode, status, f"exit status; it said: {said}")
        return said


@test()
def image_waits_are_ended(t):
    """A send that waits for a store that hangs ends at a signal, at a cancellation and with the server, and leaves nothing in use"""
    s3 = FakeS3(t)
    keys = {"AWS_ACCESS_KEY_ID": "key-1", "AWS_SECRET_ACCESS_KEY": "secret"}
    use(t, fake_environment(t, s3, **keys))
    store = Store(t, "s3://bucket/dir", fake_environment(t, s3, **keys))
    disk = random_file(t.dir / "disk.raw", 2 * MIB)
    store.blob("put", "disk", disk)
    pool = Pool(t, capacity="256M")
    server = pool.serve()
    for name in ["vm", "other"]:
        t.run(BINARY, "clone", f"{store.url}/disk", pool.path, name, "-o", "remote-timeout=0")
    pool.shale("snapshot", "vm@a")
    s3.answers.clear()
    send = [BINARY, "send", pool.path, "vm@a"]
    held = Held(t, s3, *send)
    held.process.send_signal(signal.SIGTERM)
    t.expect("interrupted" in held.ends(EXIT_INTERRUPTED), "a signal is what ended it")
    held = Held(t, s3, *send)
    pool.shale("jobs", "2", "--cancel")
    t.expect("job 2 was cancelled" in held.ends(EXIT_INTERRUPTED), "the cancellation is what ended it")
    # The server notices that its client has gone, and lets go of the snapshot.
    t.wait_for(lambda: pool.shale("destroy", "-r", "vm", status=None).returncode == 0, "the end of what the streams held")
    # A server that is stopped waits for no store, for whatever it was asked.
    pool.shale("snapshot", "other@a")
    read = Held(t, s3, "qemu-io", "-r", "-f", "raw", "-c", "read 0 64k", server.uri("other"))
    held = Held(t, s3, BINARY, "send", pool.path, "other@a")
    server.stop()
    t.expect("is stopping" in held.process.communicate(timeout=STOP_SECONDS_MAX)[1], "the end of the server is what ended it")
    read.process.communicate(timeout=STOP_SECONDS_MAX)
    # And without a server.
    held = Held(t, s3, BINARY, "send", pool.path, "other@a")
    held.process.send_signal(signal.SIGTERM)
    t.expect("interrupted" in held.ends(EXIT_INTERRUPTED), "a signal is what ended it")
    # When its time is over it fails by the rule, and says what it waited for.
    pool.shale("set", "other", "remote-timeout=1s")
    said = pool.shale("send", "other@a", "-o", t.dir / "failed", status=EXIT["io"]).stderr
    t.expect("no answer within 1 s" in said and f"{store.url}/disk@1" in said, f"why it failed: {said}")
    s3.answers.set()
    pool.shale("send", "other@a", "-o", t.dir / "stream")
    pool.check()


@test()
def image_writes_at_the_end(t):
    """A write of a part of a block that waits for a store that hangs fails when the server stops, which says so; acknowledged ones are kept"""
    s3 = FakeS3(t)
    keys = {"AWS_ACCESS_KEY_ID": "key-1", "AWS_SECRET_ACCESS_KEY": "secret"}
    use(t, fake_environment(t, s3, **keys))
    store = Store(t, "s3://bucket/dir", fake_environment(t, s3, **keys))
    disk, new = random_file(t.dir / "disk.raw", 4 * MIB), random_file(t.dir / "new", BLOCK, seed=7)
    store.blob("put", "disk", disk)
    pool = Pool(t, capacity="256M")
    with open(t.dir / "told", "w+", encoding="utf-8") as told:
        server = pool.serve(mount=True, stderr=told)
        t.run(BINARY, "clone", f"{store.url}/disk", pool.path, "vm", "-o", "remote-timeout=0")
        file, expected = server.file("vm"), bytearray(disk.read_bytes())

        def words(at, size, *flags):
            return ["dd", f"if={new}", f"of={file}", f"bs={size}", "count=1", f"seek={at // size}", "conv=" + ",".join(["notrunc", *flags])]

        def write(at, size, *flags):
            t.run(*words(at, size, *flags))
            expected[at:at + size] = new.read_bytes()[:size]

        write(MIB + SECTOR, SECTOR, "fsync")
        s3.answers.clear()
        # Whole blocks, and parts of what is here, need nothing of the store.
        write(2 * MIB, BLOCK, "fsync")
        write(2 * MIB + BLOCK, BLOCK)
        write(2 * MIB + SECTOR, SECTOR)
        held = Held(t, s3, *words(3 * MIB + SECTOR, SECTOR))
        server.stop()
        held.ends(1)
        told.seek(0)
        said = told.read()
        t.log(said)
        start = 3 * MIB + SECTOR
        t.expect(f"'vm': 1 writes or discards failed while the server stopped, between byte {start} and byte {start + SECTOR};" in said
                 and f"{store.url}/disk@1" in said, f"what could not be written: {said}")
    s3.answers.set()
    again = pool.serve(mount=True)
    t.expect(file.read_bytes() == bytes(expected), "acknowledged writes are kept, and nothing of the other")
    again.stop()
    pool.check()
