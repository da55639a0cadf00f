"""Blobs over time: clones, copies, expiry, garbage collection, optimising, removing; explaining; on a directory and on an S3 server."""

import subprocess

from harness import data, test
from harness.objectstore import BUCKET, s3_server

from .blobs import EXIT_NOT_FOUND, EXIT_USAGE, Store, all_versions, directory, own_state

EXIT_EXISTS = 8
NOW = ("--grace", "0s", "--uploads", "0s")


def pack_files(t, store):
    """The objects with data, where the store is a directory."""
    return sorted((t.dir / "blobs").rglob("p/*/*"))


def keeping(t, store, elsewhere):
    """All commands that keep or give up versions, with every byte read back."""
    first, second = data.mixed_file(t.dir / "first", 20 << 20), data.random_file(t.dir / "second", 6 << 20)
    one = store.blob("put", "books", first, "-m", "one")["version"]
    two = store.blob("put", "books", second, "-m", "two")["version"]
    # A clone has the old version's bytes, and keeps them when the source gives it up and goes.
    clone = f"{store.url}/clone"
    cloned = store.blob("clone", f"books@{one}", clone)
    t.equal((cloned["version"], cloned["size_bytes"]), (one, 20 << 20), "what was cloned")
    t.expect(store.content("clone") == first.read_bytes(), "the clone reads otherwise")
    store.blob("clone", f"books@{one}", clone, status=EXIT_EXISTS)
    store.blob("clone", f"books@{one}", f"memory://{'x'}", status=EXIT_USAGE)
    again = store.blob("clone", "clone", f"{store.url}/again")
    t.expect(store.content("again") == first.read_bytes(), f"the clone's clone reads otherwise: {again}")
    copied = store.blob("cp", f"books@{one}", f"{elsewhere.url}/copy", "-o", "compression=lz4")
    t.equal(copied["bytes"], 20 << 20, "bytes copied")
    t.expect(elsewhere.content("copy") == first.read_bytes(), "the copy reads otherwise")
    # Nothing to collect while the versions live; the pinned one stays when they are given up.
    t.equal(store.blob("gc", "books", *NOW)["deleted"], 0, "objects deleted of live versions")
    store.blob("expire", "books", status=EXIT_USAGE)
    three = store.blob("put", "books", second, "-m", "three")["version"]
    expired = store.blob("expire", "books", "--keep", "1")
    t.expect(expired["expired"], "nothing was given up")
    t.equal(expired["kept"], [[one, one]], "numbers that a clone needs")
    store.blob("get", f"books@{two}", t.dir / "x", status=EXIT_NOT_FOUND)
    kept = store.blob("gc", "books", "--uploads", "0s")
    t.equal(kept["deleted"], 0, "objects deleted within the grace")
    planned = store.blob("gc", "books", *NOW, "--dry-run")
    done = store.blob("gc", "books", *NOW)
    t.expect(done["deleted"] > 0 and done["bytes"] >= 6 << 20, f"the second version was not taken back: {done}")
    t.equal((planned["deleted"], planned["bytes"]), (done["deleted"], done["bytes"]), "a dry run's and the run's objects")
    t.equal(store.blob("gc", "books", *NOW, "--full")["deleted"], 0, "objects deleted by a second, full run")
    t.expect(store.content(f"books@{three}") == second.read_bytes(), "the newest version")
    for clone in ("clone", "again"):
        t.expect(store.content(clone) == first.read_bytes(), f"{clone} after gc of its source")
        t.equal(store.blob("verify", clone)["damaged"], [], f"damage of {clone}")
    removed = store.blob("rm", "books")
    t.expect(removed["pinned"] > 0 and removed["deleted"] > 0, f"removed {removed}")
    store.blob("stat", "books", status=EXIT_NOT_FOUND)
    t.expect(store.content("clone") == first.read_bytes(), "the clone after its source was removed")
    # The key can be used again, and nothing of the old life is in the new one.
    store.blob("append", "books", second)
    t.expect(store.content("books") == second.read_bytes(), "a blob at a key that was used before")
    store.blob("rm", "again")
    store.blob("rm", "clone")
    t.expect(store.content("books") == second.read_bytes(), "the new blob after the clones were removed")


def many_appends(t, store):
    """Small appends and a clipped frame, put together by optimize: the same bytes, in fewer frames."""
    expected, real = bytearray(), data.mixed_file(t.dir / "real", 1 << 20).read_bytes()
    for number in range(24):
        part = t.dir / "part"
        part.write_bytes(real[number * 10_000:(number + 1) * 10_000])
        expected += part.read_bytes()
        store.blob("append", "log", part)
    (t.dir / "over").write_bytes(b"over it" * 100)
    store.blob("write", "log", "--at", "5000", t.dir / "over")
    expected[5000:5700] = b"over it" * 100
    before = store.blob("stat", "log")
    done = store.blob("optimize", "log")
    after = store.blob("stat", "log")
    t.equal((done["ranges"], done["bytes"]), (1, len(expected)), "what was written anew")
    # Not their bytes: a busy machine may choose a quicker codec for the second time.
    frames = [sum(codec["frames"] for codec in stat["codecs"]) for stat in (before, after)]
    t.expect(after["extents"] < before["extents"] / 4 and frames[1] < frames[0] / 4, f"{before} {after}")
    t.expect(store.content("log") == bytes(expected), "the content after optimize")
    t.equal(store.blob("optimize", "log")["ranges"], 0, "ranges that a second run finds")
    everything = store.blob("optimize", "log", "--all", "-o", "compression=bzip2-9")
    t.equal(everything["ranges"], 1, "ranges with --all")
    t.equal([c["codec"] for c in store.blob("stat", "log")["codecs"]], ["bzip2-9"], "codecs after --all")
    t.expect(store.content("log") == bytes(expected), "the content after optimize --all")
    kinds = [line["kinds"] for line in all_versions(store, "log")]
    t.equal(kinds.count(["append"]), 24, "appends in the log")


@test(seconds_max=1200)
def blob_keep_directory(t):
    """clone, cp, expire, gc, optimize and rm of blobs in a directory, every version byte for byte"""
    store = directory(t)
    keeping(t, store, Store(t, f"file://{t.dir}/elsewhere", store.environment))
    many_appends(t, store)
    store.blob("rm", "log")
    store.blob("rm", "books")
    # The clones are gone: their pins hold nothing any more.
    done = store.blob("gc", "books", *NOW)
    t.expect(done["deleted"] <= done["packs"] and (done["bytes"] > 0) == (done["deleted"] > 0), f"gc of a removed blob: {done}")
    store.blob("gc", "clone", *NOW)
    store.blob("gc", "books", *NOW)
    t.equal(pack_files(t, store), [], "objects that are left after everything was removed")


@test(seconds_max=1800)
def blob_keep_s3(t):
    """The same on an S3 server, copying from it to a directory"""
    server = s3_server(t)
    if server is None:
        return
    environment = own_state(t, server.environment())
    store = Store(t, f"s3://{BUCKET}/dir", environment)
    keeping(t, store, Store(t, f"file://{t.dir}/elsewhere", environment))
    many_appends(t, store)
    stat = store.blob("stat", "log")
    t.expect(stat["store_probed"] is not None, "the store's probe is not known")


@test(seconds_max=900)
def blob_gc_by_sessions(t):
    """A second gc looks only at what is new; the garbage of an interrupted upload is found; nothing that lives is touched"""
    store = directory(t)
    noise = data.random_file(t.dir / "noise", 5 << 20)
    for _ in range(6):
        store.blob("put", "books", noise)
    store.blob("expire", "books", "--keep", "1")
    first = store.blob("gc", "books", *NOW)
    t.expect(first["full"] and first["deleted"] >= 5, f"the first run {first}")
    for _ in range(2):
        store.blob("put", "books", noise)
    store.blob("expire", "books", "--keep", "1")
    store.blob("gc", "books", *NOW)
    store.blob("put", "books", noise)
    store.blob("expire", "books", "--keep", "1")
    third = store.blob("gc", "books", *NOW)
    t.expect(not third["full"] and third["deleted"] >= 1, f"the third run {third}")
    full = store.blob("gc", "books", *NOW, "--full")
    t.equal(full["deleted"], 0, "what a full run finds that the others left")
    t.expect(store.content("books") == noise.read_bytes(), "the newest version")
    # A pack of a session that never committed.
    pack = pack_files(t, store)[0]
    stray = pack.parent.parent / f"{1:020}-{'ab' * 16}" / "00000000"
    stray.parent.mkdir()
    stray.write_bytes(pack.read_bytes())
    t.equal(store.blob("gc", "books", *NOW, "--full")["deleted"], 1, "the stray object")
    t.expect(not stray.exists() and pack.exists(), "the wrong object was deleted")


@test(seconds_max=900)
def blob_explain(t):
    """explain shows how regions are stored and what each candidate would make of one; estimate comes near what a put takes"""
    store = directory(t)
    source = t.dir / "mixed"
    real = data.mixed_file(t.dir / "real", 8 << 20).read_bytes()
    noise = data.random_file(t.dir / "noise", 8 << 20).read_bytes()
    source.write_bytes(real + noise)
    put = store.blob("put", "mixed", source)
    regions = store.blob("explain", "mixed")
    t.equal([region["offset"] for region in regions], [0, 4 << 20, 8 << 20, 12 << 20], "regions")
    t.equal(sum(region["stored_bytes"] for region in regions), put["stored_bytes"], "stored bytes of all regions")
    t.equal([c["codec"] for c in regions[3]["codecs"]], ["raw"], "codecs of random data")
    detail = store.blob("explain", "mixed", "--region", "12M")
    t.expect(detail["chosen"] == "raw" and detail["bits_per_byte"] > 7.5, f"random data: {detail}")
    t.expect(detail["trials"] and all(trial["stored_bytes"] is None for trial in detail["trials"]), "trials on random data")
    text = store.blob("explain", "mixed", "--region", "0")
    t.expect(any(trial["stored_bytes"] for trial in text["trials"]), f"no codec shrinks real files: {text}")
    estimate = store.blob("estimate", "mixed", "--codecs", "none")
    configured = next(line for line in estimate["settings"] if line["configured"])
    margin = max(0.05 * put["stored_bytes"], 2 * (configured["margin_percent"] or 0) / 100 * estimate["data_bytes"])
    t.expect(abs(configured["stored_bytes"] - put["stored_bytes"]) < margin, f"estimated {configured}, stored {put['stored_bytes']}")




@test(seconds_max=600)
def blob_small_words(t):
    """A tag that moves says from where; expire says which numbers; a clone is made inside no blob; gc of a removed blob counts what it deletes"""
    store = directory(t)
    noise = data.random_file(t.dir / "noise", 1 << 20)
    for _ in range(4):
        store.blob("put", "b", noise)
    t.equal([store.blob("tag", f"b@{version}", "now")["was"] for version in (1, 3)], [None, 1], "where the tag was")
    store.blob("tag", "b@4", "a b")
    shown = subprocess.run(store.words("log", "b"), env=store.environment, capture_output=True, text=True, check=True, timeout=60).stdout
    t.expect("@'a b'" in shown and "SIZE" in shown, shown)
    expired = store.blob("expire", "b", "--keep", "1")
    t.equal((expired["given_up"], expired["kept"]), ([[1, 2]], [[3, 3]]), "numbers that were given up, and of those with a tag")
    words = subprocess.run(store.words("expire", "b@3"), env=store.environment, capture_output=True, text=True, check=True, timeout=60).stdout
    t.expect("kept, because a tag, a clone or a volume needs them: 3" in words, words)
    inside = store.blob("clone", "b", f"{store.url}/b/inside", status=EXIT_USAGE)
    t.expect(f"there is a blob at {store.url}/b, and {store.url}/b/inside would be inside it" in str(inside), f"{inside}")
    wrong = store.blob("put", "b", noise, "-o", "unit=4K", status=EXIT_USAGE)
    t.expect("compression, mode, candidates, min-saving" in str(wrong) and "quota" not in str(wrong), f"{wrong}")
    store.blob("clone", "b", f"{store.url}/c")
    kept = store.blob("rm", "b")["pinned"]
    store.blob("rm", "c")
    done = store.blob("gc", "b", *NOW)
    t.equal((kept, done["deleted"], done["packs"]), (1, 1, 1), "objects of the removed blob")
    t.expect(done["bytes"] > 1 << 20, f"bytes of them: {done}")


@test(seconds_max=900)
def blob_many_clones(t):
    """270 clones of one blob: the log does not know of them, each holds the version, and gc drops the pins of those that go"""
    store, count = directory(t), 270
    first, second = data.random_file(t.dir / "first", 1 << 20), data.random_file(t.dir / "second", 1 << 20)
    store.blob("put", "image", first)
    for number in range(count):
        store.blob("clone", "image@1", f"{store.url}/clone-{number}")
    stat = store.blob("stat", "image")
    t.equal(sorted(pin[0].rsplit("-")[-1] for pin in stat["pins"]), sorted(str(number) for number in range(count)), "what holds the version")
    t.equal((stat["newest"], {pin[1] for pin in stat["pins"]}), (1, {1}), "the newest record, and the versions that are held")
    store.blob("put", "image", second)
    t.equal(store.blob("expire", "image", "--keep", "1")["kept"], [[1, 1]], "versions that clones need")
    t.equal(store.blob("gc", "image", *NOW)["deleted"], 0, "objects deleted while clones need them")
    t.expect(store.content(f"clone-{count - 1}") == first.read_bytes(), "the last clone reads otherwise")
    for number in range(0, count, 90):
        store.blob("rm", f"clone-{number}")
    t.equal(store.blob("gc", "image", *NOW)["pins_dropped"], count // 90, "pins of clones that are gone")
    t.equal(len(store.blob("stat", "image")["pins"]), count - count // 90, "pins that are left")
    t.expect(store.content("clone-1") == first.read_bytes(), "a clone that stays reads otherwise")


@test(seconds_max=600)
def blob_log_of_operation(t):
    """log --op finds the record of one operation, and says when there is none"""
    store = directory(t)
    small = t.dir / "small"
    small.write_bytes(b"words")
    for number in range(5):
        store.blob("append", "log", small, "-m", f"number {number}")
    lines = all_versions(store, "log")
    found = store.blob("log", "log", "--op", lines[2]["ops"][0])["versions"]
    t.equal([line["message"] for line in found], ["number 2"], "the record of the third operation")
    store.blob("log", "log", "--op", "ab" * 16, status=EXIT_NOT_FOUND)
    store.blob("log", "log", "--op", "ab", status=EXIT_USAGE)
