"""Snapshots and clones of a real file system that is in use."""

import json

from harness import Pool, data, test
from harness.context import digest, tree_digest


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
