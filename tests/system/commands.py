"""The commands: import and export of large files, locks, refusals, what is generated from the definition of the flags."""

import contextlib
import json
import os
import pty
import random
import re
import select
import struct
import subprocess
import threading
from pathlib import Path

import pytest

from harness import EXIT, Pool, data, test
from harness.context import digest
from harness.pool import BINARY


@test(seconds_max=1200)
def import_export_gigabytes(t):
    """2.5 GiB of real and random data and a hole go in and come out again, directly and through the server, byte for byte"""
    source = t.dir / "source"
    data.mixed_file(source, 1 << 30)
    data.random_file(t.dir / "noise", 256 << 20)
    with open(source, "r+b") as file:
        # Data, a hole of 1 GiB, data that no codec makes smaller, and an odd end.
        file.seek(2 << 30)
        file.write((t.dir / "noise").read_bytes())
        file.truncate((5 << 29) - 4096 * 7)
    (t.dir / "noise").unlink()
    expected = digest(source)
    pool = Pool(t, capacity="8G")
    done = json.loads(pool.shale("import", "direct", source, "--json").stdout)
    status = pool.status()
    t.expect(status["allocated_bytes"] <= (1 << 30) + (257 << 20), f"the holes are stored: {status['allocated_bytes']}")
    target = t.dir / "target"
    pool.shale("export", "direct", target)
    t.equal(digest(target), expected, "sha256 of what came back")
    t.expect(target.stat().st_blocks * 512 < (5 << 29) - (1000 << 20), "the exported file has no hole")
    target.unlink()
    server = pool.serve()
    pool.shale("import", "served", source)
    with open(target, "wb") as file:
        process = subprocess.Popen([BINARY, "export", pool.path, "served", "-"], stdout=file)
        t.equal(process.wait(300), 0, "exit status of the export to a pipe")
    t.equal(digest(target), expected, "sha256 of what came back through the server")
    t.run("nbdcopy", server.uri("direct"), target)
    t.equal(digest(target), expected, "sha256 over NBD of what was imported directly")
    server.stop()
    pool.check()
    t.note(f"import {done['bytes_per_second'] / 1e6:.0f} MB/s, ratio {done['ratio']:.2f}")


@test()
def served_export_meets_a_full_file_system(t):
    """the server writes a client's file to a file system without room: the client is told, its file goes, the server goes on"""
    pool = Pool(t)
    noise = data.random_file(t.dir / "noise", 24 << 20)
    server = pool.serve()
    pool.shale("import", "vol", noise)
    small = t.mount("small", "small", "-t", "tmpfs", "-o", "size=8M")
    done = pool.shale("export", "vol", small / "target", "--json", status=EXIT["full"])
    error = json.loads(done.stdout)["error"]
    t.expect(error["kind"] == "full" and str(small / "target") in error["message"], f"what was said: {error}")
    t.equal(list(small.iterdir()), [], "what the failed export left")
    # Nothing of the client's is open any more, so it can be unmounted.
    t.wait_for(lambda: t.run("umount", small, status=None).returncode == 0, "the end of the server's use of the file")
    pool.shale("export", "vol", t.dir / "target")
    t.equal(digest(t.dir / "target"), digest(noise), "what came out afterwards")
    server.stop()
    pool.check()


@test()
def commands_on_a_full_file_system(t):
    """the file system below is full to the last byte: the pool is opened, looked at, and something destroyed; what cannot be done says why"""
    small = t.dir / "small.img"
    with open(small, "wb") as file:
        file.truncate(300 << 20)
    t.run("mkfs.ext4", "-q", "-F", "-m", "0", small)
    below = t.mount(t.loop(small), "below")
    pool = Pool(t, name="below/pool", capacity="100M")
    pool.create("vol", "10M")

    def fill(name):
        """Takes all that there is."""
        for size in [1 << 20, 1 << 10]:
            with open(below / f"{name}.{size}", "wb", buffering=0) as file:
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size) == size:
                        pass

    fill("first")
    for command in [["list"], ["status"], ["check"], ["destroy", "vol"]]:
        pool.shale(*command)
    t.expect(not (pool.path / "reserve").exists(), "what was held back was not needed")
    fill("second")
    # The last block of the map's journal may have room for some openings.
    done = next((d for d in (pool.shale("list", "--json", status=None) for _ in range(64)) if d.returncode), None)
    t.expect(done and done.returncode == EXIT["full"], f"how an opening without room ends: {done}")
    error = json.loads(done.stdout)["error"]
    t.expect(error["kind"] == "full" and str(pool.path / "map") in error["message"], f"what was said: {error}")
    for size in [1 << 20, 1 << 10]:
        (below / f"first.{size}").unlink()
    t.equal(pool.shale("list", "--json").stdout.strip(), "[]", "what is left")
    t.expect((pool.path / "reserve").stat().st_blocks * 512 >= 4 << 20, "nothing is held back again")
    pool.check()


def crc32c_table():
    """Castagnoli, reflected."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


CRC32C_TABLE = tuple(crc32c_table())


def crc32c(content):
    """Of bytes."""
    value = 0xFFFFFFFF
    for byte in content:
        value = value >> 8 ^ CRC32C_TABLE[(value ^ byte) & 255]
    return value ^ 0xFFFFFFFF


# docs/FORMAT.md, superblock.
SUPERBLOCK_OFFSETS = (0, 16384)
FEATURES_INCOMPAT_OFFSET = 16


def rewrite_superblocks(path, change):
    """Applies `change` to both copies and makes their checksums right again."""
    with open(path, "r+b") as file:
        for offset in SUPERBLOCK_OFFSETS:
            file.seek(offset)
            block = bytearray(file.read(4096))
            if crc32c(block[:-4]) != struct.unpack("<I", block[-4:])[0]:
                raise AssertionError("the superblock's checksum is not where this test looks for it")
            change(block)
            block[-4:] = struct.pack("<I", crc32c(block[:-4]))
            file.seek(offset)
            file.write(block)


@test()
def refuses_unknown_features(t):
    """a pool with an unknown incompatible feature is not opened, with a message, and not touched"""
    pool = Pool(t, capacity="64M")
    pool.create("vol", "16M")
    data_file = pool.path / "data"

    def flag(block):
        block[FEATURES_INCOMPAT_OFFSET + 5] ^= 0x40

    rewrite_superblocks(data_file, flag)
    before = digest(data_file)
    for command in [("list",), ("status",), ("check",), ("create", "other", "--size", "1M")]:
        done = pool.shale(*command, status=EXIT["unsupported"])
        t.expect("0x400000000000" in done.stderr, f"{command[0]} does not name the flag: {done.stderr!r}")
    t.run(BINARY, "serve", pool.path, status=EXIT["unsupported"], seconds_max=60)
    t.equal(digest(data_file), before, "the refused pool")
    rewrite_superblocks(data_file, flag)
    pool.check()


@test()
def the_binary_has_no_planted_bugs(t):
    """what chooses a planted bug in the tests' build is not in the binary that is shipped"""
    if Path(BINARY).resolve().parent.name == "debug":
        pytest.skip("this is the tests' build, which can plant them: give another by SHALE")
    content = Path(BINARY).read_bytes()
    t.expect(b"no-sync-before-checkpoint" not in content and b"SHALE_CANARY" not in content, "the binary can plant bugs")
    t.expect(b"NOTIFY_SOCKET" in content, "the name of another variable is not found either: this test looks in the wrong place")


@test()
def one_process_at_a_time(t):
    """a second server and an offline check are refused with the first one's pid; after kill -9 the pool is free"""
    pool = Pool(t)
    pool.create("vol", "64M")
    server = pool.serve()
    for command in [["serve", pool.path, "--nbd", f"unix:{t.dir}/second.sock"], ["check", pool.path]]:
        done = t.run(BINARY, *command, status=EXIT["in-use"], seconds_max=60)
        t.expect(str(server.process.pid) in done.stderr, f"{command[0]} does not name the holder: {done.stderr!r}")
    # Through the server the commands work.
    pool.create("more", "64M")
    t.equal(pool.status()["volumes"], 2, "volumes")
    server.kill()
    pool.check()
    server = pool.serve()
    t.equal(len(json.loads(pool.shale("list", "--json").stdout)), 2, "volumes after kill -9")
    server.stop()


@test(seconds_max=300)
def waiting_is_shown(t):
    """a command that waits for another one has a spinner on a terminal, and a line after 30 seconds elsewhere, none with --quiet"""
    pool = Pool(t)
    holder = subprocess.Popen([BINARY, "import", pool.path, "v", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    t.defer(holder.kill)
    t.wait_for(lambda: pool.shale("list", "--wait", "0", status=None).returncode == EXIT["in-use"], "the pool to be held")
    words = [BINARY, "list", pool.path, "--wait", "200"]
    master, slave = pty.openpty()
    shown = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=slave, env={**os.environ, "TERM": "xterm"})
    logged = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    quiet = subprocess.Popen([*words, "--quiet"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for process in [shown, logged, quiet]:
        t.defer(process.kill)
    os.close(slave)
    seen = bytearray()
    threading.Thread(target=drain, args=(master, seen), daemon=True).start()
    t.wait_for(lambda: b"list" in seen, "the spinner")
    t.equal(select.select([logged.stderr], [], [], 120)[0], [logged.stderr], "streams with a line")
    t.equal(logged.stderr.readline(), "list: under way for 30 s\n", "the line")
    holder.communicate(b"x" * 4096)
    for process in [shown, logged, quiet]:
        t.equal(process.wait(60), 0, "exit status")
    t.equal(quiet.stderr.read(), "", "what the quiet command wrote")


def drain(master, seen):
    """Reads from a terminal until its other end is closed."""
    with contextlib.suppress(OSError):
        while part := os.read(master, 4096):
            seen += part


@test()
def exit_codes_and_json_errors(t):
    """each kind of error has its exit code, its name in JSON, and a message that names the thing"""
    pool = Pool(t, capacity="64M")
    pool.create("vol", "16M")
    cases = [
        ("usage", "invalid", ["create", pool.path, "other", "--size", "12parsecs"]),
        ("usage", "invalid", ["set", pool.path, "vol", "compression=magic"]),
        ("not-found", "not-found", ["status", t.dir / "absent"]),
        ("not-found", "not-found", ["resize", pool.path, "absent", "1G"]),
        ("exists", "exists", ["create", pool.path, "vol", "--size", "1M"]),
        ("exists", "exists", ["init", pool.path]),
    ]
    for code, kind, command in cases:
        done = t.run(BINARY, *command, "--json", status=EXIT[code])
        error = json.loads(done.stdout)["error"]
        t.equal(error["kind"], kind, f"kind of {command}")
        t.expect(len(error["message"]) > 10, f"message of {command}: {error['message']!r}")
    noise = data.random_file(t.dir / "noise", 96 << 20)
    done = pool.shale("import", "big", noise, "--json", status=EXIT["full"])
    t.equal(json.loads(done.stdout)["error"]["kind"], "full", "kind of an import that does not fit")
    names = [v["name"] for v in volumes_of(pool)]
    t.equal(names, ["vol"], "volumes after the failed import")
    pool.check()


def volumes_of(pool):
    """`list --json`, be it a list or an object that holds one."""
    found = json.loads(pool.shale("list", "--json").stdout)
    return found["volumes"] if isinstance(found, dict) else found


@test()
def check_finds_damage(t):
    """flipped bytes in stored data are found by check, named, and never returned by a read"""
    pool = Pool(t, capacity="256M")
    source = data.mixed_file(t.dir / "source", 32 << 20)
    pool.shale("import", "vol", source)
    pool.check()
    data_file = pool.path / "data"
    size = data_file.stat().st_size
    flipped = 0
    with open(data_file, "r+b") as file:
        # Somewhere in the middle of each fourth extent that holds data.
        for extent in range(2, size >> 20, 4):
            file.seek((extent << 20) + 333333)
            byte = file.read(1)
            if byte and byte != b"\0":
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 0x10]))
                flipped += 1
    t.expect(flipped > 2, f"only {flipped} bytes to flip in {size} bytes")
    report = json.loads(pool.check(status=EXIT["corrupt"]))
    found = [p for p in report["problems"] if p["kind"] == "fragment"]
    t.expect(0 < len(found) <= flipped, f"{flipped} bytes flipped, {len(found)} damaged fragments found")
    for problem in found:
        t.expect(problem["volume"] == "vol" and problem["offset"] is not None, f"where is it? {problem}")
    pool.shale("export", "vol", t.dir / "target", status=EXIT["corrupt"])
    server = pool.serve()
    original = source.read_bytes()
    import nbd

    handle = nbd.NBD()
    handle.connect_uri(server.uri("vol"))
    errors = 0
    for offset in range(0, len(original), 4096):
        try:
            t.expect(handle.pread(4096, offset) == original[offset:offset + 4096], f"wrong bytes at {offset}")
        except nbd.Error:
            errors += 1
    t.expect(errors >= len(found), f"{len(found)} damaged fragments, but only {errors} blocks gave an error")
    handle.shutdown()
    server.stop()
    t.note(f"{flipped} bytes flipped, {len(found)} fragments named, {errors} blocks refused, none wrong")


@test()
def online_changes(t):
    """properties, sizes and volumes change while clients work; what is new is stored as the new property says"""
    pool = Pool(t)
    pool.create("vol", "512M", compression="off")
    server = pool.serve(mount=True)
    image = data.mixed_file(t.dir / "image", 64 << 20, data.PLAIN)
    t.run("nbdcopy", image, server.uri("vol"))
    raw = pool.status()
    pool.shale("set", "vol", "compression=zstd-3", "unit=64K")
    t.run("nbdcopy", image, server.uri("vol"))
    packed = pool.status()
    t.expect(raw["stored_bytes"] >= raw["allocated_bytes"], f"compression=off stored {raw['stored_bytes']}")
    t.expect(packed["stored_bytes"] * 2 < raw["stored_bytes"], f"zstd-3 on text and records: {packed['stored_bytes']} bytes")
    pool.shale("resize", "vol", "1G")
    t.wait_for(lambda: os.stat(server.file("vol")).st_size == 1 << 30, "the new size of the file")
    pool.create("fresh", "64M")
    t.wait_for(lambda: server.file("fresh").exists(), "the new volume's file")
    pool.shale("destroy", "fresh")
    t.wait_for(lambda: not server.file("fresh").exists(), "the end of the destroyed volume's file")
    t.run("nbdcopy", server.uri("vol"), t.dir / "back")
    with open(t.dir / "back", "rb") as file:
        t.expect(file.read(64 << 20) == image.read_bytes(), "the content differs after all this")
    server.stop()
    pool.check()


@test()
def completions_and_manuals(t):
    """shell completions parse, and every manual page renders without complaint"""
    for shell in ["bash", "zsh", "fish"]:
        script = t.run(BINARY, "completions", shell, quiet=True).stdout
        t.expect("SHALE_COMPLETE" in script, f"the {shell} completion does not ask the binary")
        if shell == "bash":
            t.run("bash", "-n", "/dev/stdin", stdin=script)
    t.run(BINARY, "man", t.dir / "man")
    pages = sorted((t.dir / "man").glob("*.1"))
    names = {p.name for p in pages}
    for command in ["init", "create", "set", "get", "list", "status", "serve", "import", "export", "resize", "destroy", "check"]:
        t.expect(f"shale-{command}.1" in names, f"no manual page for {command}: {sorted(names)}")
    for page in pages:
        done = t.run("man", "--warnings", "--local-file", "--encoding=utf8", page, quiet=True)
        t.equal(done.stderr, "", f"complaints about {page.name}")
        t.expect(all(section in done.stdout for section in ["NAME", "SYNOPSIS", "EXAMPLES", "EXIT STATUS"]), f"{page.name} lacks a section")
    for command in ["init", "serve", "import"]:
        help_text = t.out(BINARY, command, "--help", quiet=True)
        t.expect(re.search(r"^Examples:", help_text, re.MULTILINE), f"'{command} --help' has no examples")


@test(seconds_max=1200)
def estimate_then_import(t):
    """what `estimate` says of a file before it is imported, and of the volume afterwards, is what the import stores, within 2 points"""
    data.mixed_file(t.dir / "real", 400 << 20)
    data.random_file(t.dir / "noise", 64 << 20)
    with open(t.dir / "mixed", "wb") as mixed:
        # Half of it is a hole, the rest alternates between data and noise.
        real, noise = open(t.dir / "real", "rb"), open(t.dir / "noise", "rb")
        with real, noise:
            for _ in range(30):
                mixed.write(real.read(3 << 20))
                mixed.write(noise.read(1 << 20))
        mixed.truncate(mixed.tell() * 2)
    pool = Pool(t)
    for name, codec in [("real", "zstd-3"), ("real", "lz4"), ("noise", "zstd-3"), ("mixed", "zstd-9"),
                        ("mixed", "auto")]:
        path, volume = t.dir / name, f"{name}-{codec}"
        assumed = ["-o", f"compression={codec}"]
        if codec == "auto":
            # Far enough apart that the choice does not hang on how busy the machine is.
            assumed += ["-o", "candidates=lz4,zstd-3"]
        wanted = [*assumed, "--codecs", "none", "--sample", "48M", "--json"]

        def configured(*words):
            report = json.loads(t.run(BINARY, "estimate", *words, *wanted).stdout)
            line = report["settings"][0]
            name = "auto, balanced" if codec == "auto" else codec
            t.equal((line["setting"], line["configured"]), (name, True), "first line")
            return report, line

        report, before = configured(path)
        # Of what is less than twice as much, all is looked at.
        if report["data_bytes"] > 100 << 20:
            t.expect(report["sampled_bytes"] <= 52 << 20, f"{report['sampled_bytes']} bytes were read")
        done = json.loads(pool.shale("import", volume, path, *assumed, "--json").stdout)
        stored = 100 * (1 - done["stored_bytes"] / done["allocated_bytes"])
        data_error = abs(report["data_bytes"] - done["allocated_bytes"]) / done["allocated_bytes"]
        t.expect(data_error < 0.02, f"{volume}: data {report['data_bytes']}, in truth {done['allocated_bytes']}")
        _, after = configured(pool.path, volume)
        for when, line in (("before", before), ("after", after)):
            error = abs(line["saving_percent"] - stored)
            t.expect(error < 2, f"{volume} {when}: {line['saving_percent']} ±{line['margin_percent']}, in truth {stored:.2f}")
        t.note(f"{volume}: {before['saving_percent']} ±{before['margin_percent']}, then {stored:.1f}")
    server = pool.serve()
    served = json.loads(t.run(BINARY, "estimate", pool.path, "noise-zstd-3", "--json").stdout)
    t.expect(all(abs(line["saving_percent"]) < 0.1 for line in served["settings"]), f"noise: {served['settings']}")
    server.stop()
    t.run(BINARY, "estimate", t.dir / "nothing", status=EXIT["not-found"])
    t.run(BINARY, "estimate", pool.path, "no-such-volume", status=EXIT["not-found"])
    t.run(BINARY, "estimate", pool.path, status=EXIT["usage"])
    t.run(BINARY, "snapshot", pool.path, "noise-zstd-3@then")
    snapshot = json.loads(t.run(BINARY, "estimate", pool.path, "noise-zstd-3@then", "--json").stdout)
    t.expect(snapshot["data_bytes"] == served["data_bytes"], f"a snapshot has {snapshot['data_bytes']}, its volume {served['data_bytes']}")
    t.run(BINARY, "estimate", t.dir / "noise", "-o", "unit=5K", status=EXIT["usage"])


@test()
def import_by_rule(t):
    """where the pool says auto, the type of an imported file decides its volume's codec by rule; what is said for the volume wins"""
    (t.dir / "table.sql").write_text("insert into orders values (17, 'unfulfilled');\n" * 20000)
    (t.dir / "photo").write_bytes(b"\xff\xd8\xff\xe0" + os.urandom(200000))
    (t.dir / "data.nc").write_bytes(b"CDF\x01" + bytes(range(256)) * 2000)
    pool = Pool(t)

    def imported(volume, name, *words):
        pool.shale("import", volume, t.dir / name, *words)
        found = {p["key"]: p for p in json.loads(pool.shale("get", volume, "--json").stdout)}
        return found["compression"]["value"]

    pool.shale("set", "compression=zstd-2")
    t.equal(imported("fixed", "table.sql"), "zstd-2", "a fixed codec of the pool")
    pool.shale("set", "compression=auto", "mode=balanced", "rule.nc=archive:gzip-1,balanced:lz4hc-9")
    t.equal(imported("text", "table.sql"), "zstd-3", "the default rule for sql")
    t.equal(imported("photo", "photo"), "zle", "the default rule for what the content says")
    t.equal(imported("science", "data.nc"), "lz4hc-9", "a rule that was set")
    t.equal(imported("own", "table.sql", "-o", "compression=auto"), "auto", "what is said for the volume")
    t.equal(imported("archive", "table.sql", "-o", "mode=archive"), "auto", "the default rule in another mode")
    pool.shale("set", "rule.nc=archive:gzip-1,balanced:gzip-99", status=EXIT["usage"])
    pool.shale("set", "rule.nc=")
    t.equal(imported("later", "data.nc"), "auto", "no rule any more")
    pool.check()


@test()
def sorting_a_served_volume(t):
    """a volume overwritten block by block is sorted while it is served: the same bytes, less to store, nothing to do a second time, also after kill -9"""
    size, block = 64 << 20, 4096
    source = t.dir / "source"
    data.mixed_file(source, size)
    pool = Pool(t, capacity="512M")
    pool.shale("import", "vol", source)
    server = pool.serve(mount=True)
    scattered = random.Random(1)
    with open(source, "r+b") as copy, open(server.file("vol"), "r+b", buffering=0) as volume:
        for _ in range(2 * size // block):
            copy.seek(scattered.randrange(size // block) * block)
            content = copy.read(block)
            place = scattered.randrange(size // block) * block
            copy.seek(place)
            copy.write(content)
            os.pwrite(volume.fileno(), content, place)
        os.fsync(volume.fileno())
    expected = digest(source)
    refused = pool.shale("clean", "--restart", status=EXIT["usage"])
    t.expect("--sort" in refused.stderr, f"--restart alone: {refused.stderr}")
    t.expect("never sorted" in pool.shale("clean", "--sort", "--report").stdout, "it has not been sorted yet")
    done = json.loads(pool.shale("clean", "--sort", "--all", "--rate", "max", "--json").stdout)
    t.expect(done["sort"]["finished"] and size >= done["sort"]["bytes_done"] == done["sort"]["bytes_total"] > size // 2, f"not finished: {done}")
    t.expect(done["sort"]["rewritten_bytes"] > size // 2, f"little was scattered: {done}")
    t.equal(digest(server.file("vol")), expected, "sha256 of the sorted volume")
    again = json.loads(pool.shale("clean", "--sort", "--json").stdout)
    t.expect(again["sort"]["rewritten_bytes"] < size // 20, f"it did not stay sorted: {again}")
    server.kill()
    server = pool.serve(mount=True)
    t.equal(digest(server.file("vol")), expected, "sha256 after kill -9")
    server.stop()
    pool.check()
    t.note(f"{done['sort']['rewritten_bytes'] >> 20} of {size >> 20} MiB written anew, {again['sort']['rewritten_bytes'] >> 10} KiB a second time")
