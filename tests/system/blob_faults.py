"""Faults below and around blobs: objects that are gone, cut or foreign, a full disk, kills in the middle of each command, collectors
beside each other, keys and stores that are not there. Each must be told by message and exit code; no wrong byte, no clean verification."""

import contextlib
import json
import random
import shutil
import signal
import subprocess
import time

from harness import data, test
from harness.objectstore import BUCKET, free_port, s3_server

from .blobs import EXIT_CORRUPT, EXIT_IO, EXIT_NOT_FOUND, EXIT_USAGE, Store, all_versions, directory, own_state

EXIT_FULL, EXIT_FENCED = 5, 11
NOW = ("--grace", "0s", "--uploads", "0s")


def whole(t, store, key):
    """Everything of a blob is as its checksums say."""
    report = store.blob("verify", key, "--all")
    t.equal((report["damaged"], report["all"]["wrong"]), ([], []), "damage")
    return report["all"]


@test(seconds_max=900)
def blob_objects_gone_cut_foreign(t):
    """Objects that are gone, cut, longer, another's or changed in any bit: exit code 6 and the object's name, or the right bytes"""
    store = directory(t)
    generator = random.Random(3)
    first, second = data.mixed_file(t.dir / "first", 1 << 20), data.random_file(t.dir / "second", 300_000)
    (t.dir / "few").write_bytes(b"a few words")
    store.blob("put", "b", first)
    store.blob("append", "b", second)
    for _ in range(16):
        store.blob("append", "b", t.dir / "few")
    expected = store.content("b")
    t.equal(expected, first.read_bytes() + second.read_bytes() + b"a few words" * 16, "what was written")
    whole(t, store, "b")
    root = t.dir / "blobs" / "b"
    packs, records = sorted(root.rglob("p/*/*")), sorted(root.rglob("log/*"))
    t.equal((len(packs), len(records)), (2, 18), "objects")
    for file in [*packs, *records[:2], records[-1], root / "hint", root / "life" / f"{1:020}"]:
        good = file.read_bytes()
        for fault in ["bit", "gone", "cut", "foreign"]:
            bad = bytearray(good)
            if fault == "bit":
                bad[generator.randrange(len(bad))] ^= 1 << generator.randrange(8)
            elif fault == "cut":
                bad = bad[:len(bad) // 2]
            elif fault == "foreign":
                bad = b"nothing of ours"
            file.write_bytes(bad)
            if fault == "gone":
                file.unlink()
            what = f"{fault} {file.name} of {file.parent.name}"
            got = subprocess.run(store.words("get", "b", "-"), env=store.environment, capture_output=True, timeout=120, check=False)
            verified = store.start("verify", "b", "--all")
            out, _ = verified.communicate(timeout=120)
            t.log(f"{what}: get {got.returncode} {got.stderr[:300]}, verify {verified.returncode} {out[-400:]}")
            # A record that a store with later ones denies is no state that a store may be in: "let it recover".
            may = {0, EXIT_CORRUPT} | ({EXIT_IO} if fault == "gone" and file in records else set())
            t.expect(got.returncode in may, f"{what}: exit status {got.returncode} of get: {got.stderr}")
            t.expect(expected.startswith(got.stdout), f"{what}: get gave wrong bytes")
            if fault == "gone" and file == records[-1]:
                # That no key of the log vanishes is what the protocol assumes (A3): without its last record the log is an older one.
                t.equal(got.stdout, expected[:-len(b"a few words")], f"{what}: the version before")
            else:
                t.expect(got.returncode or got.stdout == expected, f"{what}: get is done and gave less")
            if file in packs:
                t.equal((got.returncode, verified.returncode), (EXIT_CORRUPT, EXIT_CORRUPT), f"{what}: exit status of get and verify")
                t.expect(file.parent.name in out, f"{what}: verify does not name the object: {out}")
            elif file in records[:2]:
                t.equal(verified.returncode, EXIT_CORRUPT, f"{what}: exit status of verify --all")
                t.expect(file.name in out, f"{what}: verify does not name the record: {out}")
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(good)
    whole(t, store, "b")


@test(seconds_max=600)
def blob_full_disk(t):
    """A full disk below a directory ends put and get with exit code 5, the blob is as it was, and with room the upload goes on"""
    place = t.mount("tmpfs", "place", "-t", "tmpfs", "-o", "size=48m")
    store = Store(t, f"file://{place}", own_state(t, directory(t).environment))
    small, large = data.random_file(t.dir / "small", 300_000), data.random_file(t.dir / "large", 28 << 20)
    version = store.blob("put", "b", small)["version"]
    filler = place / "filler"
    filler.write_bytes(bytes(28 << 20))
    done = store.blob("put", "b", large, "--pack", "4M", "--memory", "16M", status=EXIT_FULL)
    t.expect("No space left" in json.dumps(done), f"the message does not say what is full: {done}")
    t.equal([line["version"] for line in all_versions(store, "b")], [version], "versions after a full disk")
    t.expect(store.content("b") == small.read_bytes(), "the version from before")
    whole(t, store, "b")
    filler.unlink()
    done = store.blob("put", "b", large, "--pack", "4M", "--memory", "16M")
    t.expect(done["resumed_bytes"] > 0, f"nothing was taken up: {done}")
    t.expect(store.content("b") == large.read_bytes(), "the file, once there was room")
    # A transfer that was under way beside the one that failed leaves a half-written file, which the next gc takes away.
    store.blob("tag", "b", "large")
    store.blob("gc", "b", *NOW, "--full")
    t.equal(list(place.rglob("*#*")), [], "half-written files that are left")
    whole(t, store, "b")
    # What does not fit is told by get, too, and nothing is left that looks whole.
    filler.write_bytes(b"x")
    store.blob("get", "b", place / "copy", status=EXIT_FULL)
    t.expect(not (place / "copy").exists(), "half a file is left by get")
    # A change that brings no data is refused as well, and not told as one whose outcome is not known.
    with contextlib.suppress(OSError), open(place / "rest", "wb", buffering=0) as rest:
        while True:
            rest.write(bytes(4096))
    done = store.blob("tag", "b", "late", status=EXIT_FULL)
    t.expect("No space left" in json.dumps(done), f"the message does not say what is full: {done}")
    (place / "rest").unlink()
    store.blob("tag", "b", "late")


def killed_everywhere(t, store):
    """kill -9 of each command that changes something, at random moments; every byte and checksum is right after each."""
    generator = random.Random(8)
    base, more = data.random_file(t.dir / "base", 24 << 20), data.mixed_file(t.dir / "more", 24 << 20)
    kept = {base.read_bytes(), more.read_bytes()}
    store.blob("put", "k", base, "--pack", "4M")
    killed = 0
    commands = [("put", "k", more, "--pack", "4M"), ("optimize", "k", "--all"), ("expire", "k", "--keep", "1"), ("gc", "k", *NOW, "--full"),
                ("put", "k", base, "--pack", "4M"), ("gc", "k", *NOW)]
    # How long each takes, as far as is known: a machine may be quick.
    seconds = [0.4] * len(commands)
    for turn in range(36):
        command, key, *arguments = commands[turn % len(commands)]
        began = time.monotonic()
        process = store.start(command, key, *arguments)
        try:
            process.wait(timeout=generator.random() * seconds[turn % len(commands)])
            seconds[turn % len(commands)] = time.monotonic() - began
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += 1
        out, err = process.communicate(timeout=300)
        t.expect(process.returncode in (0, -signal.SIGKILL, EXIT_FENCED), f"{command} ended with {process.returncode}: {out} {err}")
        t.expect(store.content("k") in kept, f"the newest version is neither file after a killed {command}")
        whole(t, store, "k")
    t.expect(killed >= 6, f"only {killed} commands were killed")
    # All that the killed ones left goes, also what was half written.
    store.blob("put", "k", base, "--pack", "4M", status=None)
    (t.dir / "few").write_bytes(b"x")
    store.blob("append", "k", t.dir / "few")
    store.blob("expire", "k", "--keep", "1")
    store.blob("gc", "k", *NOW, "--full")
    needed = whole(t, store, "k")["objects"]
    t.note(f"{store.url.split(':')[0]}: {killed} of 36 commands killed, {needed} objects left")
    return needed


@test(seconds_max=1800)
def blob_kills_directory(t):
    """kill -9 of put, optimize, expire and gc on a directory: always whole, and nothing is left behind after a gc and an rm"""
    store = directory(t)
    needed = killed_everywhere(t, store)
    left = [path for path in (t.dir / "blobs").rglob("p/*/*") if path.is_file()]
    t.equal((len(left), [path for path in left if "#" in path.name]), (needed, []), "objects in the directory")
    store.blob("rm", "k")
    t.equal(list((t.dir / "blobs").rglob("p/*/*")), [], "what rm left")


@test(seconds_max=2400)
def blob_kills_s3(t):
    """The same on an S3 server"""
    server = s3_server(t)
    if server is not None:
        killed_everywhere(t, Store(t, f"s3://{BUCKET}/dir", own_state(t, server.environment())))


@test(seconds_max=1200)
def blob_collectors_beside_writers(t):
    """Two gc at a time that fence whatever they may, beside appenders and expiries: nothing acknowledged is lost, nothing needed deleted"""
    store = directory(t)
    store.blob("put", "b", data.random_file(t.dir / "base", 100_000))
    model, acknowledged = bytearray((t.dir / "base").read_bytes()), {}
    for turn in range(8):
        names = [f"op-{turn}-{number}" for number in range(4)]
        for number, name in enumerate(names):
            (t.dir / name).write_bytes(random.Random(name).randbytes([90, 20_000, 300_000, 700_000][number]))
        writers = {name: store.start("append", "b", t.dir / name, "-m", name) for name in names}
        others = [store.start("gc", "b", *NOW), store.start("gc", "b", *NOW, "--full"), store.start("expire", "b", "--keep", "2")]
        for name, process in writers.items():
            out, err = process.communicate(timeout=300)
            t.expect(process.returncode in (0, EXIT_FENCED), f"{name} ended with {process.returncode}: {out} {err}")
            if process.returncode == 0:
                acknowledged[json.loads(out)["offset"]] = name
        for process in others:
            out, err = process.communicate(timeout=300)
            t.equal(process.returncode, 0, f"exit status of a collector: {out} {err}")
    for offset, name in sorted(acknowledged.items()):
        t.equal(offset, len(model), f"where {name} is")
        model += (t.dir / name).read_bytes()
    t.expect(len(acknowledged) >= 8, f"only {len(acknowledged)} appends were not fenced")
    t.expect(store.content("b") == bytes(model), "the acknowledged appends, one behind the other")
    whole(t, store, "b")
    t.note(f"{len(acknowledged)} of 32 appends, the others fenced")


@test(seconds_max=600)
def blob_edges(t):
    """Empty blobs, ranges at and behind the end, versions and tags that are not there, keys with odd characters"""
    store = directory(t)
    empty, few = t.dir / "empty", t.dir / "few"
    empty.write_bytes(b"")
    few.write_bytes(b"a few words")
    store.blob("put", "e", empty)
    store.blob("get", "e", t.dir / "out")
    t.equal((t.dir / "out").read_bytes(), b"", "an empty version")
    store.blob("clone", "e", f"{store.url}/e2")
    store.blob("cp", "e2", f"{store.url}/e3")
    for command in ["verify", "stat", "log", "explain", "estimate", "optimize", "gc"]:
        store.blob(command, "e3")
    store.blob("write", "e", "--at", 10, empty)
    t.equal(store.content("e"), bytes(10), "an empty write behind the end")
    store.blob("put", "b", few)
    t.equal(store.content("b", "--range", "2-100"), b"few words", "a range over the end")
    t.equal(store.content("b", "--range", "11-"), b"", "a range at the end")
    store.blob("get", "b", "-", "--range", "12-", status=EXIT_USAGE)
    store.blob("get", "b", "-", "--range", "5-3", status=EXIT_USAGE)
    for version in ["@2", "@0", "@no-such-tag", "@18446744073709551615"]:
        store.blob("get", f"b{version}", t.dir / "x", status=EXIT_NOT_FOUND)
    store.blob("get", "b@99999999999999999999", t.dir / "x", status=EXIT_USAGE)
    for key in ["a b", "ü€", "x%20y", "p#1", "star*?", "back\\slash", "quo'te\"s", "a@b/c", "~", "{}|^`<>"]:
        store.blob("put", key, few)
        t.equal(store.content(key), b"a few words", f"what is at {key}")
    for key in ["a//b", "a/../b", "tab\tkey", "line\nkey"]:
        store.blob("put", key, few, status=EXIT_USAGE)
    done = store.blob("stat", "never/was", status=EXIT_NOT_FOUND)
    t.expect(f"{store.url}/never/was" in json.dumps(done), f"the message does not name the blob as its user did: {done}")


@test(seconds_max=900)
def blob_no_store(t):
    """Wrong keys, a bucket or a server that is not there, no permission: exit code 7 and a message that says which"""
    few = t.dir / "few"
    few.write_bytes(b"a few words")
    server = s3_server(t)
    if server is not None:
        environment = own_state(t, server.environment())
        store = Store(t, f"s3://{BUCKET}/dir", environment)
        store.blob("put", "b", few)
        for command, arguments in [("get", ["-"]), ("append", [few]), ("gc", [])]:
            wrong = Store(t, store.url, dict(environment, AWS_SECRET_ACCESS_KEY="wrong"))
            done = wrong.blob(command, "b", *arguments, status=EXIT_IO)
            t.expect("SignatureDoesNotMatch" in json.dumps(done), f"{command} does not tell that the keys are wrong: {done}")
            nowhere = Store(t, store.url, dict(environment, AWS_ENDPOINT_URL=f"http://127.0.0.1:{free_port()}"))
            nowhere.blob(command, "b", *arguments, status=EXIT_IO)
            for fresh in (True, False):
                place = dict(environment, XDG_CACHE_HOME=str(t.dir / f"cache-{fresh}")) if fresh else environment
                done = Store(t, "s3://nowhere/dir", place).blob(command, "b", *arguments, status=EXIT_IO)
                t.expect("NoSuchBucket" in json.dumps(done), f"{command} does not tell that there is no bucket: {done}")
        t.equal(store.content("b"), b"a few words", "what was there")
    files = directory(t)
    files.blob("put", "b", few)
    shutil.copy(few, t.dir / "blobs" / "file")
    done = files.blob("put", "file/b", few, status=EXIT_IO)
    t.expect("Not a directory" in json.dumps(done), f"a key below a file: {done}")


@test(seconds_max=600)
def blob_last_object_gone(t):
    """verify of a blob whose last object, which has the nodes, is gone: it ends, with exit code 6 and the object's name; cp too"""
    store = directory(t)
    source = data.random_file(t.dir / "source", 40 << 20)
    store.blob("put", "b", source, "--pack", "4M")
    packs = sorted((t.dir / "blobs" / "b").rglob("p/*/*"))
    t.expect(len(packs) >= 10, f"{len(packs)} objects")
    for pack in (packs[-1], packs[3]):
        away = t.dir / "away"
        pack.rename(away)
        report = store.blob("verify", "b", status=EXIT_CORRUPT)
        t.expect(report["damaged"] and all(pack.parent.name in one["what"] for one in report["damaged"]), f"{pack.name}: {report}")
        report = store.blob("verify", "b", "--all", status=EXIT_CORRUPT)
        t.expect(any(pack.name in one["object"] for one in report["all"]["wrong"]), f"{pack.name}: {report['all']}")
        done = store.blob("cp", "b", f"{store.url}/copy", status=EXIT_CORRUPT)
        t.expect(pack.parent.name in json.dumps(done), f"cp does not name the object: {done}")
        away.rename(pack)
    whole(t, store, "b")
