"""Snapshots and clones of a real file system that is in use."""

import json

from harness import Pool, data, test
from harness.context import digest, tree_digest
from harness.pool import BINARY, EXIT


@test()
def history_of_a_mounted_ext4(t):
    """snapshots of a mounted ext4, read through both doors, cloned, rolled back; each is a whole file system"""
    pool = Pool(t)
    pool.create("vol", "1G")
    server = pool.serve(mount=True)
    device = t.loop(server.file("vol"), direct=True)
    t.run("mkfs.ext4", "-q", "-F", device)
    directory = t.mount(device, "fs")
    expected = []
    for number in range(3):
        data.source_tree(directory / f"tree{number}", 12 << 20)
        (directory / "counter").write_text(f"{number}\n")
        t.run("fsfreeze", "--freeze", directory)
        try:
            pool.shale("snapshot", f"vol@s{number}")
        finally:
            t.run("fsfreeze", "--unfreeze", directory)
        expected.append({name: value for name, value in tree_digest(directory).items() if "lost+found" not in name})
    # One more that nobody has prepared for: as after a power failure, with a journal to replay.
    data.source_tree(directory / "unsynced", 8 << 20)
    pool.shale("snapshot", "vol@unprepared")
    t.umount(directory)
    t.detach(device)

    listed = json.loads(pool.shale("list", "-r", "--sync", "--json").stdout)
    names = [snapshot["name"] for snapshot in listed[0]["snapshots"]]
    t.equal(names, ["s0", "s1", "s2", "unprepared"], "snapshots")

    for number in range(3):
        # Read only through FUSE, and the same bytes through NBD.
        file = server.file(f"vol@s{number}")
        device = t.loop(file, read_only=True)
        directory = t.mount(device, f"s{number}", "-o", "ro,noload")
        found = {name: value for name, value in tree_digest(directory).items() if "lost+found" not in name}
        t.expect(found == expected[number], f"the tree in snapshot {number} is not what was there")
        t.umount(directory)
        t.detach(device)
        image = t.dir / f"s{number}.img"
        t.run("nbdcopy", server.uri(f"vol@s{number}"), image)
        t.equal(digest(image), digest(file), f"snapshot {number} through NBD and FUSE")
        t.run("e2fsck", "-f", "-n", image)
        image.unlink()
    info = json.loads(t.out("nbdinfo", "--json", server.uri("vol@s0")))
    t.expect(info["exports"][0]["is_read_only"], "NBD says that a snapshot can be written")

    pool.shale("clone", "vol@unprepared", "clone")
    device = t.loop(server.file("clone"), direct=True)
    t.run("e2fsck", "-f", "-p", device)
    directory = t.mount(device, "clone")
    t.equal((directory / "counter").read_text(), "2\n", "the counter in the clone")
    (directory / "counter").write_text("mine\n")
    t.umount(directory)
    t.run("e2fsck", "-f", "-n", device)
    t.detach(device)

    pool.shale("rollback", "-r", "vol@s1")
    device = t.loop(server.file("vol"), direct=True)
    t.run("e2fsck", "-f", "-n", device)
    directory = t.mount(device, "back")
    found = {name: value for name, value in tree_digest(directory).items() if "lost+found" not in name}
    t.expect(found == expected[1], "the volume is not what it was in snapshot 1")
    t.umount(directory)
    t.detach(device)
    server.kill()

    # All of it is there after a crash, and gives its space back.
    server = pool.serve(mount=True)
    t.expect(server.file("clone").exists() and server.file("vol@s1").exists(), "the clone or the snapshot is gone")
    pool.shale("destroy", "-r", "vol")
    device = t.loop(server.file("clone"), direct=True)
    directory = t.mount(device, "clone")
    t.equal((directory / "counter").read_text(), "mine\n", "the counter in the clone, its origin destroyed")
    t.umount(directory)
    t.detach(device)
    pool.shale("destroy", "clone")

    def is_empty():
        status = pool.status()
        return status["reaping"] == 0 and status["stored_bytes"] == 0

    t.wait_for(is_empty, "the space to come back")
    server.stop()
    pool.check()


@test()
def send_and_receive_of_a_mounted_ext4(t):
    """snapshots of a mounted ext4 through pipes to another pool, killed on the way, resumed; each arrives as it was"""
    source, target = Pool(t, "source"), Pool(t, "target", extent="256K")
    source.create("vol", "1G", compression="zstd-3")
    server = source.serve(mount=True)
    device = t.loop(server.file("vol"), direct=True)
    t.run("mkfs.ext4", "-q", "-F", device)
    directory = t.mount(device, "fs")
    previous = None
    for number in range(3):
        data.source_tree(directory / f"tree{number}", 16 << 20)
        if number == 2:
            t.run("rm", "-r", directory / "tree0")
        t.run("fsfreeze", "--freeze", directory)
        try:
            source.shale("snapshot", f"vol@s{number}")
        finally:
            t.run("fsfreeze", "--unfreeze", directory)
        since = ["--from", previous] if previous else []
        # The receiver, a server in the last round, is cut off in the middle, and goes on with what it has.
        other = target.serve() if number == 2 else None
        stream = t.dir / f"stream{number}"
        source.shale("send", f"vol@s{number}", *since, "-o", stream)
        whole = stream.read_bytes()
        stream.write_bytes(whole[: len(whole) // 2])
        failed = target.shale("receive", "copy", "-i", stream, status=EXIT["io"])
        t.expect("--resume shale1-" in failed.stderr, f"no token in: {failed.stderr}")
        if other:
            other.kill()
        token = target.status()["receives"][0]["token"]
        t.run("bash", "-c", f"set -o pipefail; {BINARY} send {source.path} --resume {token} | {BINARY} receive {target.path} copy")
        stream.unlink()
        previous = f"s{number}"
    stored = [json.loads(pool.shale("list", "--sync", "--json").stdout)[0]["stored_bytes"] for pool in (source, target)]
    t.note(f"stored in the source {stored[0] >> 10} KiB, in the copy {stored[1] >> 10} KiB")
    t.umount(directory)
    t.detach(device)
    other = target.serve(mount=True)
    for number in range(3):
        name = f"copy@s{number}"
        t.equal(digest(other.file(name)), digest(server.file(f"vol@s{number}")), f"snapshot {number}")
        t.run("e2fsck", "-f", "-n", other.file(name))
        device = t.loop(other.file(name), read_only=True)
        directory = t.mount(device, f"s{number}", "-o", "ro,noload")
        t.expect((directory / "tree1").exists() == (number > 0), f"the trees of snapshot {number}")
        t.umount(directory)
        t.detach(device)
    server.stop()
    other.stop()
    source.check()
    target.check()
