"""Sizes are exact: an image of any length comes back with that length, through every door."""

import json
import os

from harness import EXIT, Pool, data, test
from harness.context import digest

# A byte, a sector less and more, a block less and more, a floppy, an ISO's 2048 bytes, 64 KiB and a half sector.
LENGTHS = [1, 511, 512, 513, 2048, 4095, 4096, 4097, 65792, 1474560, 5081088, 6291969]


def sizes(pool):
    """Volume -> size in bytes, as `list --json` has it."""
    return {volume["name"]: volume["size_bytes"] for volume in json.loads(pool.shale("list", "--json").stdout)}


@test()
def sizes_of_images_are_exact(t):
    """images of a dozen odd lengths: import, list, export, NBD, the mount, send, receive and salvage keep them"""
    pool, copy = Pool(t, capacity="1G"), Pool(t, "copy", capacity="1G")
    files = {}
    for length in LENGTHS:
        name = f"v{length}"
        files[name] = data.random_file(t.dir / name, length)
        t.equal(os.path.getsize(files[name]), length, "the file")
        pool.shale("import", name, files[name], "-q")
        pool.shale("snapshot", f"{name}@s")
        pool.shale("send", f"{name}@s", "-o", t.dir / "stream", "--force", "-q")
        copy.shale("receive", name, "-i", t.dir / "stream", "-q")
    t.equal(sizes(pool), {f"v{length}": length for length in LENGTHS}, "list --json")
    rows = pool.shale("list", "-H", "-o", "name,size").stdout.split("\n")
    t.expect("v5081088\t5081088" in rows, f"list -H: {rows}")
    t.expect("4.85 MiB" in pool.shale("list").stdout, "the table is for people")
    pool.shale("salvage", "--into", t.dir / "saved")
    for kept in (pool, copy, Pool.at(t, t.dir / "saved")):
        for name, file in files.items():
            kept.shale("export", name, t.dir / "back", "--force", "-q")
            t.run("cmp", file, t.dir / "back")
    server = pool.serve(mount=True)
    for name, file in files.items():
        t.run("cmp", file, server.file(name))
        t.run("cmp", file, server.file(f"{name}@s"))
        found = t.out("nbdinfo", "--size", server.uri(name))
        t.equal(int(found), len(file.read_bytes()), "the size over NBD")
        t.run("nbdcopy", server.uri(name), t.dir / "over-nbd")
        t.run("cmp", file, t.dir / "over-nbd")
    server.stop()
    pool.check()
    copy.check()


@test()
def sizes_change_by_bytes(t):
    """a volume shrinks and grows to odd sizes: nothing that was cut off comes back, also not in a difference that is sent"""
    pool, copy = Pool(t, capacity="1G"), Pool(t, "copy", capacity="1G")
    file = data.random_file(t.dir / "image", 3000001)
    expected = bytearray(file.read_bytes())
    pool.shale("import", "vol", file, "-q")
    previous = None
    for number, size in enumerate([2999999, 2000000, 3000000, 8191, 4097, 3, 12289, 70001, 70002, 1]):
        shrink = ["--shrink"] if size < len(expected) else []
        said = pool.shale("resize", "vol", size, *shrink).stdout
        t.expect("." not in said or f"({size} bytes)" in said, f"the exact size is not said: {said}")
        del expected[size:]
        expected += bytes(size - len(expected))
        t.equal(sizes(pool)["vol"], size, "the size")
        pool.shale("export", "vol", t.dir / "back", "--force", "-q")
        t.expect((t.dir / "back").read_bytes() == expected, f"resized to {size}, the content differs")
        pool.shale("snapshot", f"vol@s{number}")
        since = ["--from", previous] if previous else []
        pool.shale("send", f"vol@s{number}", *since, "-o", t.dir / "stream", "--force", "-q")
        copy.shale("receive", "vol", "-i", t.dir / "stream", "-q")
        copy.shale("export", "vol", t.dir / "back", "--force", "-q")
        t.expect((t.dir / "back").read_bytes() == expected, f"received at {size}, the content differs")
        previous = f"s{number}"
    pool.shale("resize", "vol", "0", "--shrink", status=EXIT["usage"])
    (t.dir / "empty").touch()
    refused = pool.shale("import", "none", t.dir / "empty", status=EXIT["usage"])
    t.expect("--size" in refused.stderr, f"an empty file: {refused.stderr}")
    rounded = pool.shale("create", "odd", "--size", "10001")
    t.equal(sizes(pool)["odd"], 12288, "what `create` rounds up")
    t.expect("rounded up" in rounded.stderr, f"the rounding is not said: {rounded.stderr}")
    pool.check()
    copy.check()


@test()
def sizes_of_an_odd_ext4(t):
    """ext4 in an image that ends within a block: mounted through the volume's file, filled, exported, checked"""
    size = (64 << 20) + 1537
    image = t.dir / "image"
    with open(image, "wb") as file:
        file.truncate(size)
    t.run("mkfs.ext4", "-q", "-F", image)
    pool = Pool(t, capacity="1G")
    pool.shale("import", "vol", image, "-q")
    server = pool.serve(mount=True)
    device = t.loop(server.file("vol"))
    directory = t.mount(device, "fs")
    data.source_tree(directory / "tree", 8 << 20)
    t.umount(directory)
    t.run("e2fsck", "-f", "-n", device)
    t.detach(device)
    t.equal(server.file("vol").stat().st_size, size, "the size of the file")
    seen = digest(server.file("vol"))
    server.stop()
    pool.shale("export", "vol", t.dir / "back", "-q")
    t.equal((t.dir / "back").stat().st_size, size, "the size of the export")
    t.equal(digest(t.dir / "back"), seen, "the content of the export")
    t.run("e2fsck", "-f", "-n", t.dir / "back")
    pool.check()
