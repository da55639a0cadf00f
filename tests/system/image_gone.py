"""Images that are not there any more, or cannot be reached for a while: what is refused, what status tells, and the way back."""

import json
import stat

from harness import Pool, test
from harness.data import random_file
from harness.fake_s3 import FakeS3
from harness.pool import BINARY, EXIT

from .blob_clients import fake_environment
from .blobs import Store
from .image_keep import holders
from .images import MIB, here, use, volume


def thin_stream(t, store, source):
    """A stream of what differs from version 1 of the blob `disk`."""
    t.run(BINARY, "clone", f"{store.url}/disk", source.path, "vm")
    source.shale("snapshot", "vm@one")
    source.shale("send", "vm@one", "--thin", "-o", t.dir / "thin")
    return t.dir / "thin"


@test()
def image_gone_under_a_server(t):
    """A blob that is taken away under a server: no pin is made there, receive and clone say so, status says image-gone until it is back"""
    store = here(t)
    disk = random_file(t.dir / "disk.raw", 4 * MIB)
    store.blob("put", "disk", disk)
    stream = thin_stream(t, store, Pool(t, "source", capacity="256M"))
    pool = Pool(t, capacity="256M")
    server = pool.serve()
    pool.shale("receive", "first", "-i", stream)
    t.equal(pool.status()["health"], "ok", "health while the image is there")
    place, away = t.dir / "blobs" / "disk", t.dir / "away"
    url = f"file://{place}"
    place.rename(away)
    for name in ["second", "first-of-all"]:
        failed = pool.shale("receive", name, "-i", stream, status=EXIT["not-found"])
        t.expect(f"{url}@1" in failed.stderr and f"'{name}'" in failed.stderr and "restore them or mount the store" in failed.stderr, f"why not: {failed.stderr}")
        t.expect(not place.exists(), "something was written where the blob was")
    t.run(BINARY, "clone", f"{url}@1", pool.path, "third", status=EXIT["not-found"])
    t.equal([line["name"] for line in json.loads(pool.shale("list", "--json").stdout)], ["first"], "volumes")
    told = pool.status()
    t.equal((told["health"], [image["gone"] for image in told["images"]]), ("image-gone", [True]), "what status tells of the image")
    words = " ".join(pool.shale("status").stdout.split())
    t.expect(f"THE IMAGE {url}@1 IS GONE from its store" in words, f"status in words: {words}")
    away.rename(place)
    pool.shale("receive", "second", "-i", stream)
    t.equal(pool.status()["health"], "ok", "health once it is back and held")
    t.equal([name for name, _ in holders(store, "disk")], ["first", "second", "vm"], "who holds the version")
    # A read finds it out as well; a server that begins holds it again.
    place.rename(away)
    failed = t.run("nbdcopy", server.uri("first"), t.dir / "copy", status=None)
    t.expect(failed.returncode != 0, "what is not there was read")
    t.equal(pool.status()["health"], "image-gone", "health after a read")
    away.rename(place)
    server.stop()
    server = pool.serve()
    t.expect(volume(t, server, "first") == disk.read_bytes(), "the volume reads as the image again")
    t.equal(pool.status()["health"], "ok", "health of the next server")
    server.stop()
    pool.check()


@test()
def image_keys_rotated_under_a_thin_stream(t):
    """Keys that end under a server: a thin stream is refused with exit code 7 and says which keys; with new ones the same command goes through"""
    s3 = FakeS3(t)
    key, process, config = t.dir / "key", t.dir / "keys", t.dir / "config"
    key.write_text("key-1")
    process.write_text(f"#!/bin/sh\necho '{{\"Version\":1,\"AccessKeyId\":\"'$(cat {key})'\",\"SecretAccessKey\":\"secret\"}}'\n")
    process.chmod(process.stat().st_mode | stat.S_IXUSR)
    config.write_text(f"[profile test]\ncredential_process = {process}\n")
    use(t, fake_environment(t, s3, AWS_PROFILE="test", AWS_CONFIG_FILE=str(config), AWS_SHARED_CREDENTIALS_FILE=str(t.dir / "none")))
    store = Store(t, "s3://bucket/dir", fake_environment(t, s3, AWS_PROFILE="test", AWS_CONFIG_FILE=str(config)))
    disk = random_file(t.dir / "disk.raw", 2 * MIB)
    store.blob("put", "disk", disk)
    stream = thin_stream(t, store, Pool(t, "source", capacity="256M"))
    pool = Pool(t, capacity="256M")
    server = pool.serve()
    pool.shale("receive", "first", "-i", stream)
    # From here on only key-2 is good, and later ones.
    s3.key_ends_after = s3.served = 10**9
    failed = pool.shale("receive", "second", "-i", stream, status=EXIT["io"])
    t.expect("ExpiredToken" in failed.stderr and "check the credentials" in failed.stderr and "'second'" in failed.stderr, f"why not: {failed.stderr}")
    t.expect(s3.refused > 0, "the store refused nothing")
    t.equal(pool.status()["health"], "ok", "an image that is not reached is not gone")
    key.write_text("key-2")
    pool.shale("receive", "second", "-i", stream)
    t.equal([name for name, _ in holders(store, "disk")], ["first", "second", "vm"], "who holds the version")
    t.expect(volume(t, server, "second") == disk.read_bytes(), "the volume reads as the image")
    server.stop()
    pool.check()
