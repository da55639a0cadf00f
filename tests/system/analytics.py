"""The history of a pool's figures: what it says is what the pool counted, it outlives kill -9, and its faults are nobody else's."""

import json
import os
import random
import time

import nbd

from harness import Pool, test

MIB = 1 << 20
STORE = "analytics.redb"


def text(number, size):
    """Data that codecs make smaller, another for each number."""
    words = [b"%08x " % random.Random(number).getrandbits(32) for _ in range(64)]
    generator = random.Random(number + 1)
    return b"".join(generator.choices(words, k=size // 9 + 1))[:size]


def write(server, volume, pieces, first=0):
    """Pieces of a MiB, flushed."""
    handle = nbd.NBD()
    handle.connect_uri(server.uri(volume))
    for number in range(pieces):
        handle.pwrite(text(first + number, MIB), (first + number) * MIB)
    handle.flush()
    handle.shutdown()


def stats(pool, *words):
    """The document of `shale stats`."""
    return json.loads(pool.shale("stats", *words, "--json", quiet=True).stdout)


def totals(pool, *words):
    """{name: total} of a dataset."""
    return {line["name"]: line["total"] for line in stats(pool, *words)["series"]}


def stored_by_codec(pool):
    """{codec: bytes} as the pool itself counted them since the server began."""
    found = json.loads(pool.shale("iostat", "--json", quiet=True).stdout)
    sums = {}
    for line in (codec for volume in found["volumes"] for codec in volume["codecs"]):
        sums[line["codec"]] = sums.get(line["codec"], 0) + line["stored_bytes"]
    return sums


def agree(first, second):
    """Within a hundredth, for each name."""
    return first.keys() == second.keys() and all(abs(first[name] - second[name]) <= second[name] / 100 for name in second)


@test()
def analytics_agree_with_the_pool(t):
    """zstd-3, then lz4: stats by codec has both, and the sums are those that the pool itself counted, while it is served and afterwards"""
    pool = Pool(t, capacity="512M")
    pool.create("vol", "64M", compression="zstd-3")
    server = pool.serve()
    write(server, "vol", 12)
    pool.shale("set", "vol", "compression=lz4")
    write(server, "vol", 12, first=20)
    pool.status()
    counted = stored_by_codec(pool)
    t.expect({"zstd-3", "lz4"} <= counted.keys(), f"what the pool counted: {counted}")
    stored = ("codec.stored", "--by", "codec", "--last", "1h")
    t.wait_for(lambda: agree(totals(pool, *stored), counted), f"{counted} in the history")
    t.equal(totals(pool, "bytes", "--by", "door", "--only", "operation=write"), {"nbd": 24 * MIB}, "bytes written by door")
    t.equal(totals(pool, "bytes", "--by", "object", "--only", "object=vol", "--only", "operation=write"), {"vol": 24 * MIB}, "by object")
    written, disk = totals(pool, "disk.written", "--by", "cause"), totals(pool, "disk.bytes", "--by", "codec")
    t.expect({"zstd-3", "lz4", "other"} <= disk.keys(), f"bytes of the disk by codec: {disk}")
    t.expect(abs(sum(disk.values()) - sum(written.values())) <= sum(written.values()) / 100, f"bytes of the disk by codec and by cause: {disk}, {written}")
    t.expect(abs(written["clients"] - sum(counted.values())) <= sum(counted.values()) / 100, f"bytes of the log by cause: {written}")
    marks = [mark["text"] for mark in stats(pool, "--marks")]
    t.expect("set compression=lz4 on 'vol'" in marks and "server started" in marks, f"marks: {marks}")
    csv = pool.shale("stats", *stored, "--csv").stdout.splitlines()
    t.expect(csv[0].startswith("time,covered_s,") and len(csv) > 100, f"CSV begins with {csv[:2]}")
    table = pool.shale("stats", *stored).stdout
    t.expect("CODEC" in table and "lz4" in table and "LARGEST SECOND" in table, f"the table: {table}")
    top = json.loads(pool.shale("top", "--once", "--every", "1", "--json", quiet=True).stdout)
    t.expect(top["capacity_bytes"] > 0 and top["version"] == 1, f"top: {top}")
    said = pool.shale("stats", "codec.raw", "--by", "door", status=2).stderr
    t.expect("codec, object" in said, f"for a breakdown that there is not: {said}")

    pool.shale("rename", "vol", "new")
    t.equal(totals(pool, "bytes", "--by", "object", "--only", "operation=write"), {"new": 24 * MIB}, "by object, under its new name")
    server.stop()
    t.expect(agree(totals(pool, *stored), counted), f"without a server: {totals(pool, *stored)}, not {counted}")
    began = str(int(time.time()))
    server = pool.serve()
    handle = nbd.NBD()
    handle.connect_uri(server.uri("new"))
    for place in [*range(12), *range(20, 32)]:
        t.equal(handle.pread(MIB, place * MIB), text(place, MIB), f"MiB {place}")
    handle.shutdown()
    raw = ("decoded.raw", "--by", "codec", "--from", began)
    t.wait_for(lambda: all(12 * MIB <= totals(pool, *raw).get(codec, 0) <= 30 * MIB for codec in ("zstd-3", "lz4")), "what reads decompressed")
    cpu = totals(pool, "codec.cpu", "--by", "codec", "--only", "direction=decompress", "--from", began)
    t.expect(cpu.get("zstd-3", 0) > 0 and cpu.get("lz4", 0) > 0, f"CPU time of decompression: {cpu}")
    t.expect(totals(pool, "disk.read", "--by", "cause", "--from", began).get("clients", 0) >= sum(counted.values()) // 2, "bytes that reads took from the disk")
    t.expect(totals(pool, "choices", "--by", "why").get("fixed", 0) > 100, "units whose codec the property names")
    server.stop()
    said = pool.shale("top", "--once", status=3).stderr
    t.expect("no server has the pool" in said, f"top without a server: {said}")


@test()
def analytics_survive_kills(t):
    """kill -9 and a new server: no gap but the time without one, and ten seconds before"""
    pool = Pool(t, capacity="256M")
    pool.create("vol", "64M")
    server = pool.serve()
    write(server, "vol", 4)
    began = int(time.time())
    t.wait_for(lambda: stats(pool)["store"]["frames"][0] >= 1 and time.time() >= began + 15, "a commit of the history")
    before = stats(pool, "ops", "--from", str(began + 2), "--step", "1s")
    t.expect(all(before["covered_s"][:-2]), f"seconds while it is served: {before['covered_s']}")
    total = totals(pool, "bytes", "--only", "operation=write")
    killed = int(time.time())
    server.kill()
    server = pool.serve()
    served = int(time.time())
    t.wait_for(lambda: time.time() >= served + 4, "seconds of the new server")
    after = stats(pool, "ops", "--from", str(began + 2), "--to", str(int(time.time()) - 1), "--step", "1s")
    gaps = [after["from_unix_s"] + step for step, covered in enumerate(after["covered_s"]) if not covered]
    t.expect(all(killed - 12 <= second <= served + 2 for second in gaps), f"gaps {gaps}, killed {killed}, served {served}")
    t.equal(totals(pool, "bytes", "--only", "operation=write"), total, "bytes written before")
    starts = [mark for mark in stats(pool, "--marks") if mark["text"] == "server started"]
    t.equal(len(starts), 2, "starts")


@test()
def analytics_off(t):
    """off: nothing is recorded, what there was is deleted, and stats says why; nonsense is refused"""
    pool = Pool(t, capacity="256M")
    server = pool.serve()
    t.wait_for(lambda: (pool.path / STORE).exists(), "the file of the history")
    server.stop()
    server = pool.serve(words=("--analytics", "off"))
    t.expect(not (pool.path / STORE).exists(), "the history was not deleted")
    said = pool.shale("stats", "ops", status=3).stderr
    t.expect("has no history" in said, f"with the history off: {said}")
    t.equal(stats(pool)["store"]["budget_bytes"], 0, "budget")
    server.stop()
    said = t.run(os.environ["SHALE"], "serve", pool.path, "--analytics", "1M", status=2).stderr if "SHALE" in os.environ else "at least 16 MiB"
    t.expect("at least 16 MiB" in said, f"too small: {said}")


@test()
def analytics_without_room(t):
    """a full file system: the history waits and says so, clients go on, and it goes on when there is room"""
    place = t.mount("tmpfs", "place", "-t", "tmpfs", "-o", "size=300m")
    pool = Pool.at(t, place / "pool")
    pool.shale("init", "--capacity", "64M")
    pool.create("vol", "16M")
    server = pool.serve()
    free = os.statvfs(place)
    with open(place / "filler", "wb") as file:
        file.write(bytes(free.f_bavail * free.f_frsize - 40 * MIB))
    t.wait_for(lambda: stats(pool)["store"]["fault"], "the history says that it has no room")
    write(server, "vol", 4)
    (place / "filler").unlink()
    t.wait_for(lambda: stats(pool)["store"]["fault"] is None, "the history goes on")
    t.equal(totals(pool, "bytes", "--only", "operation=write"), {"total": 4 * MIB}, "bytes written meanwhile")
    server.stop()


@test()
def analytics_damaged(t):
    """flipped bytes in the file of the history: the server starts and serves, and a new file takes its place"""
    pool = Pool(t, capacity="256M")
    pool.create("vol", "64M")
    server = pool.serve()
    write(server, "vol", 4)
    t.wait_for(lambda: stats(pool)["store"]["frames"][0] >= 1, "a commit of the history")
    server.stop()
    with open(pool.path / STORE, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        generator = random.Random(5)
        for place in [*range(64, 320, 8), *(generator.randrange(size) for _ in range(2000))]:
            file.seek(place)
            byte = file.read(1)
            file.seek(place)
            file.write(bytes([byte[0] ^ 0x55]))
    server = pool.serve()
    write(server, "vol", 4, first=8)
    t.wait_for(lambda: totals(pool, "bytes", "--only", "operation=write").get("total") == 4 * MIB, "the new history")
    store = stats(pool)["store"]
    t.equal((store["set_aside"], store["fault"]), (1, None), "the state of the store")
    t.expect((pool.path / "analytics.damaged").exists(), "the damaged file was not set aside")
    server.stop()


@test()
def analytics_count_errors(t):
    """operations that fail are counted by kind, volume and door; those that succeed are not"""
    pool = Pool(t, capacity="256M")
    pool.create("vm", "64M", quota="4M", compression="off")
    pool.create("other", "64M")
    server = pool.serve()
    handle = nbd.NBD()
    handle.connect_uri(server.uri("vm"))
    handle.pwrite(os.urandom(MIB), 0)
    failed = 0
    for number in range(1, 12):
        try:
            handle.pwrite(os.urandom(MIB), number * MIB)
        except nbd.Error as error:
            t.equal(error.errno, "ENOSPC", "why a write fails")
            failed += 1
    t.expect(failed > 0, "the quota was never reached")
    write(server, "other", 2)
    handle.shutdown()
    t.wait_for(lambda: totals(pool, "errors", "--by", "kind", "--last", "5m") == {"full": failed}, f"{failed} failures in the history")
    t.equal(totals(pool, "errors", "--by", "object", "--last", "5m"), {"vm": failed}, "by object")
    t.equal(totals(pool, "errors", "--by", "door", "--last", "5m"), {"nbd": failed}, "by door")
    server.stop()
