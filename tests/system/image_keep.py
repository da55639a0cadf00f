"""What keeps images: the pins of several versions of one blob in one pool, what is told of them, and salvage without the store."""

import json

from harness import Pool, test
from harness.pool import BINARY, EXIT

from .images import EXIT_CONFLICT, MIB, here, image_file, volume


def holders(store, key):
    """Who holds versions of a blob: the names of the volumes, and the versions. A volume may have several pins of one."""
    return sorted({(pin[0].split("/")[-1], pin[1]) for pin in store.blob("stat", key)["pins"]})


@test()
def image_pins_of_several_versions(t):
    """A pool's pins of other versions of a blob stay when a volume goes, when it is renamed, and when the server looks at them"""
    store = here(t)
    first = image_file(t, size=2 * MIB)
    store.blob("put", "disk", first)
    pool = Pool(t, capacity="256M")
    clone = [BINARY, "clone", f"{store.url}/disk", pool.path]
    server = pool.serve()
    t.run(*clone, "a")
    second = t.dir / "second"
    second.write_bytes(first.read_bytes() + b"another version")
    version = store.blob("put", "disk", second)["version"]
    for name in ["b", "c"]:
        made = json.loads(t.out(*clone, name, "--json"))
        t.equal(made["version"], version, f"the version that {name} is of: pins make no new one")
    t.equal(holders(store, "disk"), [("a", 1), ("b", version), ("c", version)], "volumes that hold versions")
    # The last volumes of a version let that go, and no other one.
    pool.shale("destroy", "b")
    t.wait_for(lambda: "b" not in dict(holders(store, "disk")), "the end of the pin of b")
    pool.shale("destroy", "c")
    t.wait_for(lambda: "c" not in dict(holders(store, "disk")), "the end of the pin of c")
    t.equal(holders(store, "disk"), [("a", 1)], "the volume that is left holds its version")
    # The look of a server that begins makes a pin that is lacking, and takes none away.
    t.run(*clone, "d")
    pool_id = pool.status()["id"]
    held = next(pin[0] for pin in store.blob("stat", "disk")["pins"] if pin[0].startswith(f"{pool_id}/") and pin[0].endswith("/a"))
    store.blob("unpin", "disk", held)
    server.stop()
    server = pool.serve()
    t.wait_for(lambda: holders(store, "disk") == [("a", 1), ("d", version)], "the pins of both versions")
    # A volume with another name has a pin of that name.
    pool.shale("rename", "a", "e")
    t.wait_for(lambda: holders(store, "disk") == [("d", version), ("e", 1)], "the pin under the other name")
    store.blob("expire", "disk", "--keep", "1")
    store.blob("gc", "disk", "--grace", "0s", "--uploads", "0s", "--full")
    content = first.read_bytes()
    t.expect(volume(t, server, "e") == content + bytes(-len(content) % 4096), "e reads as the first version")
    # Behind a rewrite, too, all clones are of the same version.
    profile = t.dir / "boot.json"
    profile.write_text('{"group_bytes": 131072, "groups": [15, 14, 13, 2, 1, 0]}')
    t.expect(store.blob("optimize", "disk", "--profile", profile)["moved"] > 0, "groups are put in another order")
    versions = {json.loads(t.out(*clone, name, "--json"))["version"] for name in ["f", "g"]}
    t.expect(len(versions) == 1 and min(versions) > version, f"the version that both are of: {versions}")
    server.stop()
    pool.check()


@test()
def image_pins_of_a_copied_pool(t):
    """A copy of a pool (cp -a) takes no pin from the original, has pins of its own once it is served, and cannot pass off its snapshots as the original's"""
    store = here(t)
    first = image_file(t, size=2 * MIB)
    store.blob("put", "disk", first)
    url = f"{store.url}/disk"
    pool, copy = Pool(t, capacity="256M"), t.dir / "copy"
    t.run(BINARY, "clone", f"{url}@1", pool.path, "vm")
    original = store.blob("stat", "disk")["pins"]
    t.equal(len(original), 1, "pins of the original")
    t.run("cp", "-a", pool.path, copy)
    # Both take their next snapshot, of different data: one is pushed, and the other is another one.
    changed = t.dir / "changed"
    for number, place in enumerate((pool.path, copy)):
        changed.write_bytes(bytes([number]) * (2 * MIB))
        t.run(BINARY, "import", place, "vm", changed, "--overwrite")
        t.run(BINARY, "snapshot", place, "vm@s")
    pushed = json.loads(t.out(BINARY, "push", pool.path, "vm@s", url, "--json"))
    t.equal(json.loads(t.out(BINARY, "push", pool.path, "vm@s", url, "--json"))["version"], pushed["version"], "the same push again")
    t.run(BINARY, "push", copy, "vm@s", url, status=EXIT_CONFLICT)
    t.expect(store.content("disk")[:2 * MIB] == bytes(2 * MIB), "the blob has what the original pushed")
    # The copy is served, which gives it a pin; then its volume goes.
    log = t.dir / "server.log"
    with open(log, "w", encoding="utf-8") as stderr:
        server = Pool.at(t, copy).serve(stderr=stderr)
    t.wait_for(lambda: len(store.blob("stat", "disk")["pins"]) == 2, "a pin of the copy's own")
    t.wait_for(lambda: "another copy of this pool" in log.read_text(encoding="utf-8"), "the log names the pin of the original")
    server.stop()
    t.run(BINARY, "destroy", copy, "vm", "-r")
    t.equal(store.blob("stat", "disk")["pins"], original, "the original's pin stays, and the copy's goes")
    store.blob("put", "disk", changed)
    store.blob("expire", "disk", "--keep", "1")
    store.blob("gc", "disk", "--grace", "0s", "--uploads", "0s", "--full")
    t.run(BINARY, "clone", f"{url}@1", pool.path, "again")
    back = t.dir / "back"
    t.run(BINARY, "export", pool.path, "again", back)
    t.expect(back.read_bytes()[:2 * MIB] == first.read_bytes()[:2 * MIB], "the version that the original holds")


@test()
def image_told_and_salvaged(t):
    """list and status say what is here of an image; salvage copies that, and needs no store then; what is lacking is never zeroes"""
    store = here(t)
    file = image_file(t, size=4 * MIB)
    store.blob("put", "disk", file)
    url = f"{store.url}/disk"
    pool = Pool(t, capacity="256M")
    clone = [BINARY, "clone", url, pool.path]
    t.run(*clone, "small", "--size", "1M", status=EXIT["usage"])
    t.run(*clone, "whole", "-o", "hydrate=on")
    t.equal(t.out(BINARY, "get", pool.path, "whole", "unit").split()[-2:], ["128K", "volume"], "unit of a clone")
    server = pool.serve()
    t.wait_for(lambda: pool.status()["images"][0]["complete"], "the rest of the image")
    columns = t.out(BINARY, "list", pool.path, "-H", "-o", "name,origin,local").split()
    t.equal(columns[:2], ["whole", f"{url}@1"], "name and origin")
    t.expect(0 < int(columns[2]) <= file.stat().st_size + 4096, f"what is here of the image: {columns}")
    shown = t.out(BINARY, "list", pool.path)
    t.expect(f"image {url} version 1, for whole: " in shown and "all that is needed" in shown, f"list says what is here: {shown}")
    t.expect("in destroyed volumes" not in shown, f"an image is no destroyed volume: {shown}")
    t.run("qemu-io", "-f", "raw", "-c", "write -P 9 64k 4k", server.uri("whole"))
    expected = bytearray(volume(t, server, "whole"))
    server.stop()
    # Another image, of which nothing is here.
    store.blob("put", "other", file)
    t.run(BINARY, "clone", f"{store.url}/other", pool.path, "absent", "-o", "remote-timeout=1s")
    (t.dir / "blobs").rename(t.dir / "away")
    new = Pool.at(t, t.dir / "new")
    report = json.loads(pool.shale("salvage", "--into", new.path, "--json").stdout)
    t.expect(any(f"{url}@1" in note for note in report["notes"]), f"the report tells of the image: {report['notes']}")
    t.expect(any(f"{store.url}/other@1" in note for note in report["notes"]), f"and of the other one: {report['notes']}")
    server = new.serve()
    t.expect(volume(t, server, "whole") == bytes(expected), "the volume of which all was here reads without the store")
    read = t.run("qemu-io", "-r", "-f", "raw", "-c", "read 0 1M", server.uri("absent"), status=None)
    t.expect("read failed" in read.stdout + read.stderr, f"what is not here is an error: {read.stdout} {read.stderr}")
    (t.dir / "away").rename(t.dir / "blobs")
    new.shale("set", "absent", "remote-timeout=5m")
    content = file.read_bytes()
    t.expect(volume(t, server, "absent") == content + bytes(-len(content) % 4096), "the other one, when the store is back")
    server.stop()
    new.check()


@test()
def image_pins_of_a_disk_with_another_number(t):
    """A pool has the same pins when its disk gets another device number, and a copy of the disk has others"""
    store = here(t)
    store.blob("put", "disk", image_file(t, size=2 * MIB))
    disk, copy = t.dir / "pool.disk", t.dir / "copy.disk"
    with open(disk, "wb") as file:
        file.truncate(400 * MIB)
    t.run("mkfs.ext4", "-q", disk)

    def clone(device, name):
        """A clone in the pool on a device, and who holds the image then: pool and place, without the volumes."""
        directory = t.mount(device, "mnt")
        t.run(BINARY, "clone", f"{store.url}/disk@1", directory / "pool", name)
        t.umount(directory)
        return {pin[0].rpartition("/")[0] for pin in store.blob("stat", "disk")["pins"]}

    first = t.loop(disk)
    t.mount(first, "mnt")
    Pool(t, name="mnt/pool", capacity="256M")
    t.umount(t.dir / "mnt")
    original = clone(first, "one")
    t.equal(len(original), 1, "places of the original")
    # Attached before the first one is given up: whatever others attach and detach meanwhile, the number is another.
    second = t.loop(disk)
    t.detach(first)
    t.equal(clone(second, "two"), original, "places with another device number")
    t.detach(second)
    t.run("cp", "--sparse=always", disk, copy)
    t.equal(len(clone(t.loop(copy), "three") - original), 1, "places of a copy of the disk")


@test()
def image_held_under_an_earlier_name(t):
    """An image version that was given up stays with its volume when that is renamed, and is not called gone"""
    store = here(t)
    first = image_file(t, size=2 * MIB)
    store.blob("put", "disk", first)
    pool = Pool(t, capacity="256M")
    t.run(BINARY, "clone", f"{store.url}/disk", pool.path, "a")
    second = t.dir / "second"
    second.write_bytes(b"another version")
    store.blob("put", "disk", second)
    # As if the pin had come while an expiry was under way that did not see it.
    pins = {path: path.read_bytes() for path in (t.dir / "blobs").rglob("pin/*/*/*") if path.is_file()}
    t.equal(len(pins), 1, "pins")
    store.blob("unpin", "disk", store.blob("stat", "disk")["pins"][0][0])
    store.blob("expire", "disk", "--keep", "1")
    for path, content in pins.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    pool.shale("rename", "a", "b")
    log = t.dir / "server.log"
    with open(log, "w", encoding="utf-8") as stderr:
        server = pool.serve(stderr=stderr)
    t.wait_for(lambda: "for its volumes: " in log.read_text(encoding="utf-8"), "the look at the image")
    told = log.read_text(encoding="utf-8")
    t.expect("stays as long as it has pins" in told, f"what the log says: {told}")
    t.equal((pool.status()["health"], holders(store, "disk")), ("ok", [("a", 1)]), "health, and who holds the version")
    # A further clone of it is refused, and says nothing of the volume.
    t.run(BINARY, "clone", f"{store.url}/disk@1", pool.path, "c", status=EXIT["not-found"])
    t.equal(pool.status()["health"], "ok", "health after a clone that was refused")
    store.blob("gc", "disk", "--grace", "0s", "--uploads", "0s", "--full")
    content = first.read_bytes()
    t.expect(volume(t, server, "b") == content + bytes(-len(content) % 4096), "b reads as its version")
    server.stop()
