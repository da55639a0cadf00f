"""Volumes that begin as versions of blobs: cloned, read while they are fetched, pushed, and cloned elsewhere, with kill -9 of the
server and of the store; and the profile of a boot."""

import json
import os
import random
import subprocess

from harness import Pool, test
from harness.objectstore import BUCKET, s3_server
from harness.pool import BINARY

from .blobs import Store, own_state

EXIT_CONFLICT = 11
MIB = 1 << 20


def use(t, environment):
    """From now on every command and server has this environment."""
    before = dict(os.environ)
    t.defer(lambda: (os.environ.clear(), os.environ.update(before)))
    os.environ.clear()
    os.environ.update(environment)


def here(t):
    """Blobs in a directory."""
    use(t, own_state(t, os.environ))
    return Store(t, f"file://{t.dir}/blobs", os.environ)


def image_file(t, name="image.raw", size=24 * MIB):
    """Text, random data and holes, with an end that is no whole block."""
    file, generator = t.dir / name, random.Random(5)
    with open(file, "wb") as out:
        while out.tell() < size:
            kind = generator.randrange(3)
            part = generator.randrange(1, 2 * MIB)
            if kind == 0:
                out.seek(part, os.SEEK_CUR)
            else:
                out.write(generator.randbytes(part) if kind == 1 else (b"line %d of an image\n" % part) * (part // 20))
        out.truncate(out.tell() + 777)
    return file


def padded(file, size):
    """The bytes of a file, with zeroes behind them."""
    content = file.read_bytes()
    return content + bytes(size - len(content))


def volume(t, server, name):
    """The bytes of a volume, read over NBD."""
    target = t.dir / "read.raw"
    target.unlink(missing_ok=True)
    t.run("nbdcopy", server.uri(name), target)
    return target.read_bytes()


@test()
def image_boot_profile(t):
    """trace --reads notes what is read first, and optimize --profile puts it into one object; the content stays"""
    store = here(t)
    file = image_file(t)
    store.blob("put", "disk", file, "--pack", "4M")
    pool = Pool(t)
    pool.shale("import", "vm", file)
    server = pool.serve()
    profile = t.dir / "boot.json"
    reads = ["read 20M 4k", "read 1000k 300k", "read 20M 64k", "read 3M 1M"]
    tracer = subprocess.Popen([str(BINARY), "trace", str(pool.path), "vm", "--reads", str(profile), "--limit", "13"])
    t.defer(tracer.kill)
    words = [word for read in reads for word in ("-c", read)]

    def traced():
        t.run("qemu-io", "-r", "-f", "raw", *words, server.uri("vm"))
        return tracer.poll() is not None

    t.wait_for(traced, "the end of the trace")
    t.equal(tracer.returncode, 0, "exit status of trace")
    found = json.loads(profile.read_text())
    expected = [160, 7, 8, 9, 10, *range(24, 32)]
    groups = found["groups"]
    t.equal(len(set(groups)), 13, f"different groups of {groups}")
    t.expect(set(groups) <= {0, *expected}, f"groups that were read are {expected}, traced were {groups}")
    t.equal((found["volume"], found["group_bytes"]), ("vm", 131072), "what the profile is of")
    done = store.blob("optimize", "disk", "--profile", profile)
    t.equal(done["groups"], len([group for group in groups if group * 131072 < file.stat().st_size]), "groups of the profile")
    t.expect(0 < done["moved"] <= done["groups"], f"some have data: {done}")
    t.expect(store.content("disk") == file.read_bytes(), "the content after optimize --profile")
    t.equal(store.blob("verify", "disk")["damaged"], [], "damage")
    profile.write_text('{"group_bytes": 4096, "groups": [1]}')
    store.blob("optimize", "disk", "--profile", profile, status=2)
    store.blob("unpin", "disk", "no-such-pool", status=3)
    server.stop()


def clones_and_pushes(t, store, server_of_store=None):
    """The whole way, on one store."""
    url = f"{store.url}/disk"
    file = image_file(t)
    store.blob("put", "disk", file, "--pack", "4M")
    pool = Pool(t)
    server = pool.serve()
    clone = [BINARY, "clone", url, pool.path]
    made = json.loads(t.out(*clone, "vm1", "--json"))
    t.equal((made["version"], made["size_bytes"]), (1, file.stat().st_size), "the version that vm1 is of")
    t.run(*clone, "vm2")
    size = -(-file.stat().st_size // 4096) * 4096
    t.equal(sorted(pin[0].split("/")[-1] for pin in store.blob("stat", "disk")["pins"]), ["vm1", "vm2"], "volumes that hold the version")
    # A part, then the server dies, then all of both.
    t.run("qemu-io", "-r", "-f", "raw", "-c", "read 1M 4M", server.uri("vm1"))
    server.kill()
    server = pool.serve()
    expected = bytearray(padded(file, size))
    t.expect(volume(t, server, "vm1") == bytes(expected), "vm1 reads as the image")
    t.expect(volume(t, server, "vm2") == bytes(expected), "vm2 reads as the image")
    # The version is given up, and stays for the volumes.
    other = t.dir / "other"
    other.write_bytes(b"another version")
    store.blob("put", "disk", other)
    store.blob("expire", "disk", "--keep", "1")
    store.blob("gc", "disk", "--grace", "0s", "--uploads", "0s", "--full")
    if server_of_store:
        # The store dies, and what was not fetched waits for it.
        t.run(BINARY, "clone", f"{url}@1", pool.path, "vm3")
        server_of_store.kill()
        reader = subprocess.Popen(["nbdcopy", server.uri("vm3"), str(t.dir / "late.raw")])
        t.defer(reader.kill)
        server_of_store.start()
        t.equal(reader.wait(300), 0, "exit status of the reader that the store left alone")
        t.expect((t.dir / "late.raw").read_bytes() == bytes(expected), "vm3 reads as the image")
    # Changes in many places; pushed to another key, because there is a newer version.
    generator = random.Random(9)
    commands = []
    for pattern in range(1, 60):
        at = generator.randrange(size // 4096) * 4096
        expected[at:at + 4096] = bytes([pattern]) * 4096
        commands += ["-c", f"write -P {pattern} {at} 4k"]
    t.run("qemu-io", "-f", "raw", *commands, server.uri("vm1"), quiet=True)
    pool.shale("snapshot", "vm1@one")
    pool.shale("push", "vm1@one", url, status=EXIT_CONFLICT)
    done = json.loads(pool.shale("push", "vm1@one", url, "--to", f"{store.url}/copy", "-m", "one", "--json").stdout)
    t.expect(0 < done["groups"] <= 59 and not done["earlier"], f"only groups that changed go up: {done}")
    again = json.loads(pool.shale("push", "vm1@one", url, "--to", f"{store.url}/copy", "--json").stdout)
    t.equal((again["version"], again["earlier"]), (done["version"], True), "the same push again")
    t.expect(store.content("copy") == bytes(expected)[:file.stat().st_size], "what was pushed")
    # The next push is the difference of two snapshots.
    expected[0:8192] = b"\x77" * 8192
    t.run("qemu-io", "-f", "raw", "-c", "write -P 0x77 0 8k", server.uri("vm1"))
    pool.shale("snapshot", "vm1@two")
    done = json.loads(pool.shale("push", "vm1@two", f"{store.url}/copy", "--json").stdout)
    t.equal(done["groups"], 1, "groups that changed since the last push")
    # One without changes makes no version.
    pool.shale("snapshot", "vm1@three")
    same = json.loads(pool.shale("push", "vm1@three", f"{store.url}/copy", "--json").stdout)
    t.equal((same["version"], same["base_version"], same["groups"]), (done["version"], done["version"], 0), "a push of nothing")
    t.equal(store.blob("log", "copy")["versions"][0]["version"], done["version"], "the newest version")
    # Elsewhere.
    elsewhere = Pool(t, "elsewhere")
    t.run(BINARY, "clone", f"{store.url}/copy", elsewhere.path, "vm")
    there = elsewhere.serve()
    t.expect(volume(t, there, "vm") == bytes(expected), "the pushed version reads elsewhere as the volume here")
    there.stop()
    elsewhere.check()
    # The last volume of the version lets it go.
    gone = ["vm1", "vm2", *(["vm3"] if server_of_store else [])]
    for name in gone:
        pool.shale("destroy", "-r", name)

    def holders():
        return [pin[0].split("/")[-1] for pin in store.blob("stat", "disk")["pins"]]

    t.wait_for(lambda: not set(gone) & set(holders()), "the end of the pins")
    t.expect("vm" in holders(), "the volume elsewhere still holds the version that it has objects of")
    server.stop()
    pool.check()


@test()
def image_clones_in_a_directory(t):
    """Clones of a blob in a directory, kill -9 of the server, pushes, and a clone elsewhere, byte for byte"""
    clones_and_pushes(t, here(t))


@test()
def image_clones_on_s3(t):
    """The same on an S3 server, which is killed in the middle, too"""
    server = s3_server(t)
    if server:
        use(t, own_state(t, server.environment()))
        clones_and_pushes(t, Store(t, f"s3://{BUCKET}/dir", os.environ), server)
