"""Holes of files and of blobs: put, get, cp and verify pass over them. Files here are larger than any disk, so a command that reads
or writes their holes takes hours or fails."""

import os
import signal
import subprocess

from harness import data, test

from .blob_clients import finished_packs, put_slowly
from .blobs import directory

TIB, MIB = 1 << 40, 1 << 20
# A file with holes of 1 MiB may have them shorter afterwards.
TAKEN_MAX = 64 * MIB


def sparse(path, size, pieces):
    """A file of that size with bytes at places, and holes between them."""
    with open(path, "wb") as file:
        for at, piece in pieces.items():
            file.seek(at)
            file.write(piece)
        file.truncate(size)
    return path


def same(t, path, size, pieces, what):
    """A file has these bytes at these places, zeroes around them, and takes little room."""
    about = os.stat(path)
    t.equal(about.st_size, size, f"length of {what}")
    t.expect(about.st_blocks * 512 < TAKEN_MAX, f"{what} takes {about.st_blocks * 512} bytes: its holes were written")
    with open(path, "rb") as file:
        for at, piece in pieces.items():
            file.seek(max(0, at - 5))
            before = bytes(min(at, 5))
            t.expect(file.read(len(before) + len(piece) + 5) == (before + piece + bytes(5))[:size - at + len(before)], f"bytes of {what} at {at}")


@test(seconds_max=600)
def blob_holes(t):
    """put, append, write, cp, get, stat and verify of files with holes of terabytes read and write no hole"""
    store = directory(t)
    pieces = {0: b"head", 3 * MIB + 1: os.urandom(2 * MIB), 2 * TIB - 9: b"near a boundary", 3 * TIB + 5: b"tail"}
    size = 3 * TIB + 9
    source = sparse(t.dir / "source", size, pieces)
    done = store.blob("put", "sparse", source)
    t.equal(done["bytes"], size, "bytes put")
    t.expect(done["stored_bytes"] < 3 * MIB, f"{done['stored_bytes']} bytes are stored")
    stat = store.blob("stat", "sparse")
    t.equal(stat["size_bytes"], size, "size")
    t.expect(stat["hole_bytes"] > size - 4 * MIB, f"{stat['hole_bytes']} bytes of {size} are holes")
    store.blob("get", "sparse", t.dir / "back")
    same(t, t.dir / "back", size, pieces, "what get wrote")
    store.blob("cp", "sparse", f"{store.url}/copied")
    store.blob("get", "copied", t.dir / "copied-back")
    same(t, t.dir / "copied-back", size, pieces, "the copy")
    verified = [store.blob("verify", key) for key in ("sparse", "copied")]
    t.expect(0 < verified[0]["frames"] < 100 and verified[0]["damaged"] == [], f"verify: {verified[0]}")
    t.equal(verified[0]["frames"], verified[1]["frames"], "frames of both")
    # A file that ends with a hole, behind one that does, and over the middle.
    t.equal(store.blob("append", "sparse", sparse(t.dir / "more", TIB, {9: b"x"}))["offset"], size, "where the append is")
    store.blob("write", "sparse", sparse(t.dir / "over", TIB, {TIB - 1: b"y"}), "--at", str(TIB))
    pieces |= {2 * TIB - 9: bytes(8) + b"y" + b"near a boundary"[9:], size + 9: b"x"}
    store.blob("get", "sparse", t.dir / "all")
    same(t, t.dir / "all", size + TIB, pieces, "the newest version")
    # What can have no holes gets zeroes.
    t.expect(store.content("sparse", "--range", f"{size + 5}-{size + 5 + 3 * MIB}") == bytes(4) + b"x" + bytes(3 * MIB - 5), "a range on stdout")
    store.blob("put", "empty", sparse(t.dir / "empty", TIB + 1, {}))
    t.equal(store.blob("stat", "empty")["hole_bytes"], TIB + 1, "holes of an empty file")
    store.blob("get", "empty", t.dir / "empty-back")
    same(t, t.dir / "empty-back", TIB + 1, {}, "a file that is one hole")


@test(seconds_max=600)
def blob_holes_resume(t):
    """A put of a file with a hole of a terabyte that is killed behind the hole goes on there, and does not read the hole"""
    store = directory(t)
    noise = data.random_file(t.dir / "noise", 96 * MIB)
    source = sparse(t.dir / "source", TIB + 96 * MIB, {0: b"head", TIB: noise.read_bytes()})
    arguments = ("--pack", "4M", "--memory", "16M")
    process = put_slowly(store, "sparse", source, *arguments)
    t.wait_for(lambda: finished_packs(t) >= 3 or process.poll() is not None, "three finished packs")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=120)
    if process.returncode == 0:
        t.fail("the upload was done before it could be killed: the file must be larger")
    again = store.blob("put", "sparse", source, *arguments)
    t.expect(again["resumed_bytes"] > TIB, f"{again['resumed_bytes']} bytes were there: it did not go on behind the hole")
    t.equal(again["bytes"], TIB + 96 * MIB, "bytes put")
    store.blob("get", "sparse", t.dir / "tail", "--range", f"{TIB}-")
    subprocess.run(["cmp", t.dir / "tail", noise], check=True)
    t.expect(store.content("sparse", "--range", "0-8") == b"head" + bytes(4), "the head")
