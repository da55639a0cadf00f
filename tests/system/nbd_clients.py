"""The NBD door, used with the clients that people have: libnbd's, QEMU's, fio."""

import json

from harness import Pool, data, test
from harness.context import digest


def volume(t, size="256M", name="vol", **named):
    """A pool with one volume, served. Returns (pool, server, address)."""
    pool = Pool(t)
    pool.create(name, size)
    server = pool.serve(**named)
    return pool, server, server.uri(name)


@test()
def nbd_qemu_img_both_ways(t):
    """qemu-img converts an image to a volume and back, and finds both equal"""
    image = data.disk_image(t, t.dir / "image.raw", 256 << 20, 60 << 20)
    t.run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", image, t.dir / "image.qcow2")
    pool, server, uri = volume(t)
    t.run("qemu-img", "convert", "-n", "-f", "qcow2", "-O", "raw", t.dir / "image.qcow2", uri)
    t.run("qemu-img", "compare", "-f", "raw", "-F", "raw", image, uri)
    t.run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", uri, t.dir / "back.qcow2")
    t.run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", image, t.dir / "back.qcow2")
    # A difference must be seen: otherwise the comparisons above say nothing.
    t.run("qemu-io", "-f", "raw", "-c", "write -P 0x5a 64M 4k", uri)
    t.run("qemu-img", "compare", "-f", "raw", "-F", "raw", image, uri, status=1)
    server.stop()
    pool.check()


@test()
def nbd_qemu_io_patterns(t):
    """qemu-io writes, zeroes with unmap, discards and reads patterns, aligned and not, with FUA"""
    pool, server, uri = volume(t)
    commands = [
        "write -P 0x11 0 1M", "read -P 0x11 0 1M",
        "write -f -P 0x22 4k 64k", "read -P 0x22 4k 64k", "read -P 0x11 68k 900k",
        "write -P 0x33 1000 513", "read -P 0x33 1000 513", "read -P 0x11 0 1000", "read -P 0x11 1513 2583",
        "write -z 128k 128k", "read -P 0 128k 128k", "read -P 0x11 256k 64k",
        "write -z -u 256k 128k", "read -P 0 256k 128k",
        "write -z -u 400001 3", "read -P 0 400001 3", "read -P 0x11 400004 100",
        "discard 512k 256k", "read -P 0 512k 256k", "read -P 0x11 768k 256k",
        "aio_write -P 0x44 2M 4M", "aio_write -P 0x55 8M 4M", "aio_flush", "flush",
        "read -P 0x44 2M 4M", "read -P 0x55 8M 4M", "read -P 0 6M 2M",
        "write -P 0x66 268431360 4096", "read -P 0x66 268431360 4096",
    ]
    words = [word for command in commands for word in ("-c", command)]
    out = t.out("qemu-io", "-f", "raw", *words, uri)
    t.expect("Pattern verification failed" not in out, "qemu-io read something else than it had written")
    # The detector: a wrong pattern must be reported.
    wrong = t.run("qemu-io", "-f", "raw", "-c", "read -P 0x77 2M 4k", uri, status=None)
    t.expect("Pattern verification failed" in wrong.stdout, "qemu-io does not notice a wrong pattern")
    server.stop()
    server = pool.serve()
    out = t.out("qemu-io", "-f", "raw", "-c", "read -P 0x44 2M 4M", "-c", "read -P 0 256k 128k", server.uri("vol"))
    t.expect("Pattern verification failed" not in out, "after a restart something else is read")


@test()
def nbd_info_and_map(t):
    """nbdinfo sees names, sizes and abilities; its map shows data and holes where they are"""
    pool = Pool(t)
    pool.create("small", "64M")
    pool.create("large", "3T")
    server = pool.serve()
    exports = json.loads(t.out("nbdinfo", "--json", "--list", f"nbd+unix://?socket={server.socket}"))["exports"]
    t.equal({e["export-name"]: e["export-size"] for e in exports}, {"small": 64 << 20, "large": 3 << 40}, "exports")
    for export in exports:
        for ability in ["can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn", "can_cache", "can_df"]:
            t.equal(export[ability], True, f"{ability} of {export['export-name']}")
        t.equal(export["is_read_only"], False, "is_read_only")
        t.expect("base:allocation" in export["contexts"], f"no base:allocation in {export['contexts']}")
    t.run("nbdinfo", server.uri("absent"), status=1)
    t.run("qemu-io", "-f", "raw", "-c", "write -P 0x5a 1M 1M", "-c", "flush", server.uri("small"))
    entries = json.loads(t.out("nbdinfo", "--json", "--map", server.uri("small")))
    data_ranges = [(e["offset"], e["length"]) for e in entries if e["type"] == 0]
    t.equal(data_ranges, [(1 << 20, 1 << 20)], "ranges with data")
    t.equal(sum(e["length"] for e in entries), 64 << 20, "bytes that the map covers")
    t.expect(all(e["type"] in (0, 3) for e in entries), f"holes must also be zeroes: {entries}")
    entries = json.loads(t.out("nbdinfo", "--json", "--map", server.uri("large")))
    t.equal({e["type"] for e in entries}, {3}, "kinds of ranges in an empty volume of 3 TiB")


@test()
def nbd_nbdcopy_both_ways(t):
    """nbdcopy brings a sparse image in over several connections and out again, byte for byte"""
    image = data.disk_image(t, t.dir / "image.raw", 256 << 20, 60 << 20)
    _, server, uri = volume(t)
    t.run("nbdcopy", "--connections=4", "--flush", image, uri)
    t.run("nbdcopy", "--connections=4", uri, t.dir / "back.raw")
    t.equal(digest(t.dir / "back.raw"), digest(image), "sha256 of what came back")
    piped = t.run("nbdcopy", uri, "-", text=False).stdout
    t.equal(len(piped), 256 << 20, "bytes through a pipe")
    with open(image, "rb") as file:
        t.expect(file.read() == piped, "what came through a pipe differs from the image")
    server.stop()


@test()
def nbd_odd_requests(t):
    """nbdsh: odd offsets and lengths, zero with and without holes, several connections and one flush, errors"""
    _, server, uri = volume(t)
    t.run("nbdsh", "--command", "-", stdin=f"uri = {uri!r}\n{ODD_REQUESTS}")
    server.stop()


ODD_REQUESTS = r"""
import errno

def connect():
    handle = nbd.NBD()
    handle.add_meta_context("base:allocation")
    # The server, not the library, is to refuse what is wrong.
    handle.set_strict_mode(0)
    handle.connect_uri(uri)
    return handle

def must_fail(what, allowed, function, *arguments):
    try:
        function(*arguments)
    except nbd.Error as error:
        assert error.errnum in allowed, (what, error.errnum, allowed)
    else:
        raise AssertionError(what + " was accepted")

a, b = connect(), connect()
size = a.get_size()
assert size == 256 << 20
assert a.can_multi_conn()

# Odd offsets and lengths against a model of the first megabyte.
model = bytearray(1 << 20)
import random
random.seed(7)
for step in range(400):
    offset = random.randrange(len(model))
    length = min(random.choice([1, 3, 511, 512, 513, 4095, 4096, 4097, 70001]), len(model) - offset)
    what = random.randrange(6)
    if what <= 2:
        content = random.randbytes(length) if what else bytes([step & 255]) * length
        a.pwrite(content, offset, nbd.CMD_FLAG_FUA if step % 5 == 0 else 0)
        model[offset:offset + length] = content
    elif what == 3:
        a.zero(length, offset, nbd.CMD_FLAG_NO_HOLE if step % 2 else 0)
        model[offset:offset + length] = bytes(length)
    elif what == 4:
        a.trim(length, offset)
        # Trimmed bytes may read as anything by the protocol; here they are promised to be zeroes.
        model[offset:offset + length] = bytes(length)
    else:
        assert b.pread(length, offset) == bytes(model[offset:offset + length]), (step, offset, length)
assert b.pread(len(model), 0) == bytes(model)

# Written on one connection, flushed on another, seen on both.
a.pwrite(b"x" * 4096, 2 << 20)
b.flush()
assert b.pread(4096, 2 << 20) == b"x" * 4096

# No hole where none is wanted, a hole where one is allowed.
def map_of(offset, length):
    found = []
    a.block_status(length, offset, lambda context, at, entries, error: found.extend(entries) or 0)
    return [(found[i], found[i + 1]) for i in range(0, len(found), 2)]
a.pwrite(b"y" * 65536, 4 << 20)
a.zero(65536, 4 << 20, nbd.CMD_FLAG_NO_HOLE)
assert all(not flags & 1 for _, flags in map_of(4 << 20, 65536)), map_of(4 << 20, 65536)
a.zero(65536, 4 << 20)
assert all(flags & 1 for _, flags in map_of(4 << 20, 65536)), map_of(4 << 20, 65536)
assert a.pread(65536, 4 << 20) == bytes(65536)
if a.can_fast_zero():
    a.zero(1 << 20, 8 << 20, nbd.CMD_FLAG_FAST_ZERO)

# Past the end: refused, nothing done in part, and the connection goes on.
past = {errno.EINVAL, errno.ENOSPC, errno.EIO}
must_fail("a read past the end", past, a.pread, 4096, size - 100)
must_fail("a write past the end", past, a.pwrite, b"z" * 4096, size - 100)
must_fail("a trim past the end", past, a.trim, 4096, size)
must_fail("a zero past the end", past, a.zero, 4096, size - 1)
must_fail("an offset near 2^63", past, a.pread, 512, (1 << 63) - 512)
assert a.pread(100, size - 100) == bytes(100)

# Many requests in flight, answered in whatever order.
buffers = {}
for i in range(64):
    buffer = nbd.Buffer(8192)
    buffers[a.aio_pread(buffer, i * 8192)] = (buffer, i * 8192)
while buffers:
    a.poll(-1)
    for cookie in [c for c in buffers if a.aio_command_completed(c)]:
        buffer, offset = buffers.pop(cookie)
        assert buffer.to_bytearray() == model[offset:offset + 8192]

# The largest request, and one that is larger.
largest = random.randbytes(32 << 20)
a.pwrite(largest, 16 << 20)
assert b.pread(len(largest), 16 << 20) == largest
assert [int(a.get_block_size(kind)) for kind in (nbd.SIZE_MINIMUM, nbd.SIZE_MAXIMUM)] == [1, 32 << 20]
must_fail("a read of more than the largest", {errno.EOVERFLOW}, a.pread, len(largest) + 1, 16 << 20)
must_fail("a write of more than the largest", {errno.EINVAL}, a.pwrite, bytes(len(largest) + 4096), 16 << 20)
assert a.pread(len(largest), 16 << 20) == largest
a.cache(1 << 20, 0)
a.shutdown()
b.shutdown()
"""


@test()
def nbd_fio_verify(t):
    """fio writes with a checksum in each block and verifies: random 4 KiB, mixed sizes, sequential 128 KiB"""
    pool, server, uri = volume(t, "512M")
    common = ["--ioengine=nbd", f"--uri={uri}", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1",
              "--buffer_compress_percentage=50", "--refill_buffers", "--verify_state_save=0", "--output-format=terse"]
    jobs = [
        ["--name=random", "--rw=randwrite", "--bs=4k", "--size=96M", "--iodepth=32"],
        ["--name=mixed", "--rw=randwrite", "--bsrange=512-64k", "--blockalign=512", "--bs_unaligned=1", "--size=96M", "--iodepth=16",
         "--fsync=64"],
        ["--name=sequential", "--rw=write", "--bs=128k", "--size=256M", "--iodepth=16"],
    ]
    for job in jobs:
        t.run("fio", *common, *job)
    status = pool.status()
    # fio makes the compressible half of a block zeroes: whole blocks of them are holes, the rest compresses.
    t.expect(status["stored_bytes"] < 140 << 20, f"256 MiB that are half compressible take {status['stored_bytes']} bytes")
    server.stop()
    pool.check()
    server = pool.serve()
    # What was written last is still right after a restart.
    t.run("fio", *common, *jobs[-1], "--verify_only")


@test()
def nbd_hostile_clients(t):
    """Nonsense, silence and half a request on a socket cost their own connection only"""
    import socket

    _, server, uri = volume(t)
    nonsense = [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 64, b"\xff" * 4096, b"\x00\x00\x00\x03IHAVEOPT\xff\xff\xff\xff\xff\xff\xff\xff",
                b"\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x07\xff\xff\xff\xf0", b"\x00\x00"]
    silent = []
    for _ in range(16):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(server.socket))
        silent.append(connection)
    for content in nonsense:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(300)
            connection.connect(str(server.socket))
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            try:
                while connection.recv(65536):
                    pass
            except ConnectionError:
                pass
    t.run("qemu-io", "-f", "raw", "-c", "write -P 1 0 1M", "-c", "read -P 1 0 1M", uri)
    for connection in silent:
        connection.close()
    t.expect(server.process.poll() is None, "the server has ended")
    server.stop()


@test()
def nbd_tcp_and_names(t):
    """Several exports over TCP on loopback; resize is seen by the next connection"""
    pool = Pool(t)
    pool.create("one", "64M")
    pool.create("two", "64M")
    server = pool.serve(nbd=["127.0.0.1:0"])
    address = server.tcp()
    t.run("qemu-io", "-f", "raw", "-c", "write -P 1 0 64k", f"nbd://{address}/one")
    t.run("qemu-io", "-f", "raw", "-c", "write -P 2 0 64k", f"nbd://{address}/two")
    out = t.out("qemu-io", "-f", "raw", "-c", "read -P 1 0 64k", server.uri("one"))
    out += t.out("qemu-io", "-f", "raw", "-c", "read -P 2 0 64k", server.uri("two"))
    t.expect("Pattern verification failed" not in out, "the volumes are mixed up")
    pool.shale("resize", "one", "128M")
    t.equal(t.out("nbdinfo", "--size", server.uri("one")), str(128 << 20), "size after resize")
    server.stop()
