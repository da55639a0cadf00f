"""What clients do, counted: the same operations through each door, once each."""

import json
import mmap
import os

import nbd

from harness import Pool, test

BLOCK = 4096


def counts(t, pool, volume, door):
    """{operation: (count, bytes)} of what came through a door. Each histogram must have each operation once."""
    found = json.loads(pool.shale("iostat", volume, "--json", quiet=True).stdout)
    [line] = [line for line in found["volumes"] if line["volume"] == volume]
    [of_door] = [line for line in line["doors"] if line["door"] == door]
    for line in of_door["operations"]:
        t.equal(sum(line["histogram"]), line["count"], f"operations in the histogram of {line['operation']} through {door}")
        t.equal(len(line["histogram"]), len(found["bucket_ends_ns"]) + 1, "buckets")
    return {line["operation"]: (line["count"], line["bytes"]) for line in of_door["operations"] if line["count"]}


@test()
def iostat_counts_exactly(t):
    """reads, writes, flushes and discards through NBD, files of the mount and a share: iostat tells each once, with its bytes, and what it was stored as"""
    pool = Pool(t, capacity="512M")
    pool.create("vol", "16M", compression="lz4")
    pool.create("file", "16M")
    pool.shale("create", "home", "--share")
    server = pool.serve(mount=True, shares=True)

    handle = nbd.NBD()
    handle.connect_uri(server.uri("vol"))
    for number in range(7):
        handle.pwrite(os.urandom(BLOCK // 2) + bytes(BLOCK // 2), number * BLOCK)
    handle.flush()
    for number in range(3):
        handle.pread(2 * BLOCK, number * BLOCK)
    handle.trim(BLOCK, 64 * BLOCK)
    expected = {"write": (7, 7 * BLOCK), "read": (3, 6 * BLOCK), "flush": (1, 0), "discard": (1, BLOCK)}
    t.equal(counts(t, pool, "vol", "nbd"), expected, "what came through NBD")
    found = json.loads(pool.shale("iostat", "vol", "--json", quiet=True).stdout)
    [codec] = found["volumes"][0]["codecs"]
    t.equal((codec["codec"], codec["raw_bytes"]), ("lz4", 7 * BLOCK), "what was written")
    t.expect(codec["stored_bytes"] < 5 * BLOCK and codec["cpu_ns"] > 0, f"what it cost: {codec}")

    file = os.open(server.file("file"), os.O_RDWR)
    for number in range(5):
        os.pwrite(file, os.urandom(BLOCK), number * BLOCK)
    os.fsync(file)
    os.pread(file, 2 * BLOCK, 0)
    os.close(file)
    expected = {"write": (5, 5 * BLOCK), "read": (1, 2 * BLOCK), "flush": (1, 0)}
    t.equal(counts(t, pool, "file", "mount"), expected, "what came through the file of the mount")

    share = server.share("home")
    for number in range(4):
        os.mkdir(share / str(number))
    os.rmdir(share / "0")
    (share / "text").touch()
    before = counts(t, pool, "home", "share")
    # Straight to the server and from it: the kernel's pages would answer.
    file = os.open(share / "text", os.O_RDWR | os.O_DIRECT)
    pages = mmap.mmap(-1, 2 * BLOCK)
    pages.write(os.urandom(2 * BLOCK))
    for number in range(6):
        os.pwrite(file, pages, number * 2 * BLOCK)
    os.fsync(file)
    os.preadv(file, [pages], 0)
    os.close(file)
    # A request is counted behind its answer.
    expected = {"write": (6, 12 * BLOCK), "read": (1, 2 * BLOCK), "flush": (1, 0)}

    def data():
        return {kind: count for kind, count in counts(t, pool, "home", "share").items() if kind in expected}

    t.wait_for(lambda: data() == expected, f"{expected} through the share")
    t.expect(before["change"][0] >= 6, f"names that were changed in the share: {before}")
    t.expect(not set(before) & set(expected), f"names are no data: {before}")

    text = pool.shale("iostat", "vol").stdout
    t.expect("vol" in text and "nbd" in text and "lz4" in text, f"the table: {text}")
    text = pool.shale("iostat", "vol", "--histogram").stdout
    t.expect("WRITE" in text and "vol, nbd" in text, f"the histogram: {text}")
    reports = [json.loads(line) for line in pool.shale("iostat", "vol", "--every", "1", "--count", "2", "--json").stdout.splitlines()]
    t.equal(len(reports), 2, "reports")
    [first, second] = [{line["operation"]: line["count"] for line in report["volumes"][0]["doors"][0]["operations"]} for report in reports]
    t.equal((first["write"], set(second.values())), (7, {0}), "operations since the beginning, and in a second in which there were none")
    handle.shutdown()
    server.stop()
    said = pool.shale("iostat", status=3)
    t.expect("no server has the pool" in said.stderr, f"without a server: {said.stderr}")
