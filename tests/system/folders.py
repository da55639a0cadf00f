"""Folders: names in a tree, as a user walks through them, with NBD, files, loop devices, shares and kill -9."""

import json
import os

from harness import EXIT, Pool, test


def source_of(pool, name, key):
    """A property in force: its value, where it was set, and the folder that it is inherited from."""
    (found,) = json.loads(pool.shale("get", name, key, "--json").stdout)
    return found["value"], found["source"], found["folder"]


def names(pool, *words):
    """What `list` shows, by name and type."""
    lines = pool.shale("list", *words, "-H", "-o", "name,type").stdout.splitlines()
    return [tuple(line.split("\t")) for line in lines]


def begins_as(image, file):
    """Whether an image begins with the content of a file."""
    content = file.read_bytes()
    with open(image, "rb") as opened:
        return opened.read(len(content)) == content


@test(seconds_max=300)
def names_lie_in_a_tree(t):
    """folders made, listed, renamed, limited and destroyed from the command line; what cannot be is refused and says what to do"""
    pool = Pool(t)
    pool.create("a", "1M")
    features = pool.shale("list", "--json").stdout
    t.equal([line["folder"] for line in json.loads(features)], [False], "what list says of a volume")
    said = pool.shale("create", "projects/web/db1", "--size", "1G", status=EXIT["not-found"]).stderr
    t.expect("no folder 'projects/web'" in said and "--folder" in said and "-p" in said, f"what to do is told: {said}")
    pool.shale("create", "projects", "--folder", "-o", "compression=zstd-3", "-o", "snapshots=hourly", "--quota", "40M")
    said = pool.shale("create", "projects/web/db1", "--size", "1G", status=EXIT["not-found"]).stderr
    t.expect("no folder 'projects/web'" in said, f"the folder that is missing is named: {said}")
    pool.shale("create", "projects/web/db1", "--size", "1G", "-p")
    pool.shale("create", "projects/web", "--folder", "-p")
    pool.shale("create", "projects/web", "--folder", status=EXIT["exists"])
    pool.shale("create", "projects/web/db1/x", "--size", "1G", "-p", status=EXIT["usage"])
    pool.shale("create", "projects-old", "--size", "1G")
    pool.shale("create", "projects/mail", "--size", "1G", "-o", "compression=lz4")
    for bad in ["/x", "x/", "projects//x", "projects/../x", "../x", "projects/.x", "x" * 256, "/".join(["x"] * 129)]:
        said = pool.shale("create", bad, "--size", "1G", status=EXIT["usage"]).stderr
        t.expect("name" in said, f"a bad name is refused with its reason: {said}")
    expected = [("a", "volume"), ("projects", "folder"), ("projects/mail", "volume"), ("projects/web", "folder"),
                ("projects/web/db1", "volume"), ("projects-old", "volume")]
    t.equal(names(pool), expected, "the list, each folder before what is in it")
    t.equal(names(pool, "projects/web"), expected[3:5], "the list of a folder")
    t.equal(source_of(pool, "projects/web/db1", "compression"), ("zstd-3", "folder", "projects"), "inherited")
    t.equal(source_of(pool, "projects/mail", "compression"), ("lz4", "volume", None), "its own")
    t.equal(source_of(pool, "projects", "compression"), ("zstd-3", "folder", None), "the folder's own")
    t.equal(source_of(pool, "a", "compression"), ("auto", "default", None), "the default")
    said = pool.shale("get", "projects/web/db1", "compression").stdout
    t.expect("folder projects" in said, f"get says from where: {said}")
    t.equal(*[pool.shale("get", "projects/mail", *all_of_them).stdout for all_of_them in [["all"], []]], "get of all properties")
    pool.shale("set", "projects/web", "compression=off")
    t.equal(source_of(pool, "projects/web/db1", "compression"), ("off", "folder", "projects/web"), "from the nearest")
    pool.shale("set", "projects", "reservation=1G", status=EXIT["usage"])

    # A quota is for all of it together.
    noise = t.dir / "noise"
    noise.write_bytes(os.urandom(25 << 20))
    pool.shale("import", "projects/web/db1", noise, "--overwrite")
    said = pool.shale("import", "projects/mail", noise, "--overwrite", status=EXIT["full"]).stderr
    t.expect("the folder 'projects'" in said and "quota" in said, f"the folder is named: {said}")
    pool.shale("set", "projects", "quota=")
    pool.shale("import", "projects/mail", noise, "--overwrite")

    # A snapshot of all at once, a clone into a folder, a new name for the whole.
    taken = json.loads(pool.shale("snapshot", "-r", "projects@s1", "--json").stdout)["snapshots"]
    t.equal(taken, ["projects/mail@s1", "projects/web/db1@s1"], "snapshots of a folder")
    pool.shale("snapshot", "-r", "projects@s1", status=EXIT["exists"])
    pool.shale("clone", "projects/web/db1@s1", "projects/copy")
    pool.shale("rename", "projects", "p")
    pool.shale("rename", "p", "p/q", status=EXIT["usage"])
    pool.shale("rename", "p", "a", status=EXIT["exists"])
    pool.shale("export", "p/web/db1@s1", t.dir / "out")
    t.expect(begins_as(t.dir / "out", noise), "a snapshot under its new name")
    origin = json.loads(pool.shale("list", "p/copy", "--json").stdout)[0]["origin"]
    t.equal(origin, "p/web/db1@s1", "where the clone came from")
    folder = json.loads(pool.shale("list", "p", "--sync", "--json").stdout)[0]
    t.expect(folder["folder"] and folder["stored_bytes"] >= 50 << 20, f"the sums of a folder: {folder}")
    lines = pool.shale("list", "p", "-r", "-H", "-o", "name").stdout.splitlines()
    t.equal(lines, ["p", "p/copy", "p/mail", "p/mail@s1", "p/web", "p/web/db1", "p/web/db1@s1"], "list -r of a folder")
    of_types = [("p", "folder"), ("p/mail@s1", "snapshot"), ("p/web", "folder"), ("p/web/db1@s1", "snapshot")]
    t.equal(names(pool, "p", "-t", "snapshot,folder"), of_types, "list of two types")
    with_snapshots = json.loads(pool.shale("list", "-t", "snapshot", "--json").stdout)
    t.equal([volume["name"] for volume in with_snapshots], ["p/mail", "p/web/db1"], "volumes whose snapshots are told")
    t.expect("bookmark" in pool.shale("list", "-t", "disk", status=EXIT["usage"]).stderr, "a type that there is not: those that there are")

    # To another pool, under another folder, and what is newer after it.
    other = Pool(t, name="other")
    stream = t.dir / "stream"
    pool.shale("send", "-R", "p@s1", "-o", stream)
    other.shale("receive", "copies/of/p", "-i", stream)
    t.equal([name for name, kind in names(other) if kind == "volume"], ["copies/of/p/mail", "copies/of/p/web/db1"], "received")
    other.shale("export", "copies/of/p/web/db1@s1", t.dir / "there")
    t.expect(begins_as(t.dir / "there", noise), "what was received")
    pool.shale("snapshot", "-r", "p@s2")
    pool.shale("send", "-R", "p@s2", "--from", "s1", "-o", stream, "--force")
    other.shale("receive", "copies/of/p", "-i", stream)
    t.expect(("copies/of/p/mail@s2", "snapshot") in names(other, "-r"), "the difference has come")
    other.shale("receive", "-R", "-i", stream, status=None)

    # It goes when it is empty, or with everything in it.
    said = pool.shale("destroy", "p", status=EXIT["in-use"]).stderr
    t.expect("p/web" in said and "-r" in said, f"what is in it is named: {said}")
    pool.shale("hold", "p/mail@s1", "audit")
    said = pool.shale("destroy", "-r", "p", status=EXIT["in-use"]).stderr
    t.expect("audit" in said, f"what holds it is named: {said}")
    pool.shale("release", "p/mail@s1", "audit")
    pool.shale("destroy", "-r", "p")
    t.equal(names(pool), [("a", "volume"), ("projects-old", "volume")], "what is left")
    pool.check()
    other.check()


@test(seconds_max=300)
def doors_show_folders(t):
    """NBD exports, files of the mount, loop devices and shares in folders; renamed while they are used, and again after kill -9"""
    pool = Pool(t)
    for name in ["projects/web/db1", "projects/db2", "single"]:
        pool.shale("create", name, "--size", "64M", "-p")
    pool.shale("create", "projects/home", "--share")
    pool.shale("create", "empty", "--folder")
    server = pool.serve(mount=True, shares=True)
    listed = json.loads(t.run("nbdinfo", "--list", "--json", server.uri("")).stdout)["exports"]
    t.equal([export["export-name"] for export in listed], ["projects/db2", "projects/web/db1", "single"], "NBD exports")
    data = os.urandom(1 << 20)
    (t.dir / "data").write_bytes(data)
    t.run("nbdcopy", t.dir / "data", server.uri("projects/web/db1"))
    t.equal(sorted(os.listdir(server.mount_dir)), ["empty", "projects", "single"], "the root of the mount")
    t.equal(sorted(os.listdir(server.mount_dir / "projects")), ["db2", "web"], "a folder of the mount")
    t.equal(os.listdir(server.mount_dir / "empty"), [], "an empty folder")
    t.expect(os.path.isdir(server.mount_dir / "projects/web/../web/.") and not os.path.exists(server.file("projects/none")), "paths")
    t.equal(server.file("projects/web/db1").read_bytes()[: 1 << 20], data, "a file in a folder, written over NBD")
    for change in [lambda: os.mkdir(server.file("projects/x")), lambda: os.rmdir(server.file("empty")),
                   lambda: os.rename(server.file("empty"), server.file("full"))]:
        try:
            change()
            t.fail("a folder was changed through the mount")
        except PermissionError:
            pass
    share = server.share("projects/home")
    (share / "file").write_text("in a share")

    # Renamed while a loop device with a file system and an NBD client are on it.
    loop = t.run("losetup", "--show", "-f", server.file("projects/db2")).stdout.strip()
    t.defer(lambda: t.run("losetup", "-d", loop, status=None))
    t.run("mkfs.ext4", "-q", loop)
    node = os.stat(server.mount_dir / "projects").st_ino
    opened = os.open(server.mount_dir / "projects", os.O_RDONLY)
    busy = open(share / "file")
    said = pool.shale("rename", "projects", "p", status=EXIT["in-use"]).stderr
    t.expect("home" in said, f"the share that is in use is named: {said}")
    busy.close()
    (server.share("projects/home") / "file").read_text()
    pool.shale("rename", "projects", "p")
    t.equal(os.stat(server.mount_dir / "p").st_ino, node, "inode number of a renamed folder")
    t.equal(sorted(os.listdir(opened)), ["db2", "web"], "a directory that was open when it was renamed")
    os.close(opened)
    t.expect(not os.path.exists(server.mount_dir / "projects"), "the old name has gone")
    t.run("e2fsck", "-fn", loop)
    t.equal((server.share("p/home") / "file").read_text(), "in a share", "the share at its new place")
    t.expect(not os.path.exists(server.shares_dir / "projects"), "no directory of the old name is left")
    t.run("nbdcopy", server.uri("p/web/db1"), t.dir / "copy")
    t.equal((t.dir / "copy").read_bytes()[: 1 << 20], data, "the new export")
    said = pool.shale("destroy", "-r", "p", status=EXIT["in-use"]).stderr
    t.expect("p/" in said, f"what is in use is named: {said}")
    t.run("losetup", "-d", loop)
    # Snapshots of all, shares too: what was written before is in them, synced or not.
    (server.share("p/home") / "late").write_text("not synced")
    pool.shale("snapshot", "-r", "p@now")
    moment = server.share("p/home") / ".shale" / "snapshots" / "now"
    t.equal((moment / "late").read_text(), "not synced", "a snapshot of a share in a folder")
    server.kill()

    # By parts of names.
    server = pool.serve(mount=True, volumes=["p"])
    t.equal(sorted(os.listdir(server.mount_dir)), ["p"], "what is served of a folder")
    t.equal(sorted(os.listdir(server.mount_dir / "p")), ["db2", "db2@now", "web"], "in it")
    t.equal(server.file("p/web/db1@now").read_bytes()[: 1 << 20], data, "a snapshot in a folder after kill -9")
    server.stop()
    pool.shale("destroy", "-r", "p")
    pool.check()


@test(seconds_max=300)
def folders_and_the_clock(t):
    """snapshots=hourly of a folder: the server takes them of each volume in it, and none elsewhere"""
    pool = Pool(t)
    pool.shale("create", "f", "--folder", "-o", "snapshots=hourly", "-o", "keep=2h")
    for name in ["f/inner/one", "f/two", "apart"]:
        pool.shale("create", name, "--size", "1M", "-p")
    pool.shale("set", "f/two", "snapshots=off")
    server = pool.serve()

    def taken():
        return [line.split("@")[0] for line in pool.shale("list", "-r", "-H", "-o", "name").stdout.splitlines() if "@auto-" in line]

    t.wait_for(taken, "a snapshot by the clock")
    t.equal(taken(), ["f/inner/one"], "volumes that have snapshots by the clock")
    server.stop()


@test(seconds_max=300)
def snapshots_of_a_folder_go_and_come_back_together(t):
    """what snapshot -r took is gone back to and destroyed by one name; one that is held stops it, and what went before is told"""
    pool = Pool(t)
    old, new = t.dir / "old", t.dir / "new"
    old.write_bytes(b"before" * 10_000)
    new.write_bytes(b"behind" * 10_000)
    pool.shale("create", "projects", "--folder")
    for name in ["projects/a", "projects/web/b"]:
        pool.shale("create", name.rpartition("/")[0], "--folder", "-p")
        pool.shale("import", name, old)
    pool.create("other", "1M")
    pool.shale("snapshot", "-r", "projects@s1")
    pool.shale("snapshot", "other@s1")
    for name in ["projects/a", "projects/web/b"]:
        pool.shale("import", name, new, "--overwrite")
    taken = json.loads(pool.shale("rollback", "projects@s1", "--json").stdout)
    t.equal(taken["snapshots"], ["projects/a@s1", "projects/web/b@s1"], "all that went back are named")
    for name in ["projects/a", "projects/web/b"]:
        pool.shale("export", name, t.dir / "back", "--force")
        t.expect(begins_as(t.dir / "back", old), f"{name} is as it was")
    said = pool.shale("rollback", "projects@s2", status=EXIT["not-found"]).stderr
    t.expect("nothing in 'projects' has a snapshot 's2'" in said, f"what is missing is named: {said}")
    pool.shale("hold", "projects/web/b@s1", "kept")
    refused = pool.shale("destroy", "-r", "projects@s1", status=None)
    t.expect(refused.returncode != 0, "a held snapshot stops it")
    t.expect("projects/web/b@s1" in refused.stderr, f"the held one is named: {refused.stderr}")
    left = pool.shale("list", "-r", "-H", "-o", "name").stdout.split()
    t.expect("projects/a@s1" in left, f"nothing has gone: {left}")
    pool.shale("release", "projects/web/b@s1", "kept")
    gone = json.loads(pool.shale("destroy", "-r", "projects@s1", "--json").stdout)
    t.equal(gone["destroyed"], ["projects/a@s1", "projects/web/b@s1"], "all of them go")
    left = pool.shale("list", "-r", "-H", "-o", "name").stdout.split()
    t.expect("other@s1" in left and not [name for name in left if name.startswith("projects") and "@" in name], f"others stay: {left}")


@test(seconds_max=300)
def a_folder_goes_back_as_a_whole_or_not_at_all(t):
    """rollback of a folder changes nothing while a file of a share in it is open, and everything once it is closed"""
    pool = Pool(t)
    old, new = t.dir / "old", t.dir / "new"
    old.write_bytes(b"before" * 10_000)
    new.write_bytes(b"behind" * 10_000)
    pool.shale("create", "projects", "--folder")
    pool.shale("import", "projects/a", old)
    pool.shale("create", "projects/files", "--share")
    pool.shale("import", "projects/z", old)
    server = pool.serve(shares=True)
    file = server.shares_dir / "projects" / "files" / "f"
    file.write_bytes(b"before")
    pool.shale("snapshot", "-r", "projects@s1")
    file.write_bytes(b"behind")
    for name in ["projects/a", "projects/z"]:
        pool.shale("import", name, new, "--overwrite")
    with open(file, "rb"):
        refused = pool.shale("rollback", "projects@s1", status=EXIT["in-use"]).stderr
        t.expect("files" in refused, f"the share is named: {refused}")
        for name in ["projects/a", "projects/z"]:
            pool.shale("export", name, t.dir / "back", "--force")
            t.expect(begins_as(t.dir / "back", new), f"{name} has not gone back")
    pool.shale("rollback", "projects@s1")
    for name in ["projects/a", "projects/z"]:
        pool.shale("export", name, t.dir / "back", "--force")
        t.expect(begins_as(t.dir / "back", old), f"{name} has gone back")
    t.equal(file.read_bytes(), b"before", "the file of the share")
    server.stop()
    pool.check()


@test(seconds_max=120)
def a_folder_that_is_there_is_told(t):
    """create --folder -p of a folder that is there says so, and does not pass over what it was to be"""
    pool = Pool(t)
    pool.shale("create", "old", "--folder")
    said = pool.shale("create", "old", "--folder", "-p").stdout
    t.expect("already exists" in said, f"it is told: {said}")
    refused = pool.shale("create", "old", "--folder", "-p", "--quota", "1G", status=EXIT["exists"]).stderr
    t.expect("shale set" in refused, f"what to do is told: {refused}")
    t.equal(source_of(pool, "old", "quota")[1], "default", "nothing was set")
