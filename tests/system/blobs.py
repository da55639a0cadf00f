"""Blobs: the commands, and many processes that write one blob at the same time, on a directory and on an S3 server, both with kill -9."""

import json
import os
import random
import signal
import subprocess
import time

from harness import data, test
from harness.context import digest
from harness.objectstore import BUCKET, s3_server
from harness.pool import BINARY

EXIT_NOT_FOUND, EXIT_CORRUPT, EXIT_USAGE, EXIT_IO, EXIT_UNKNOWN = 3, 6, 2, 7, 13


class Store:
    """Where blobs are: a URL in front of each key, and a client's environment."""

    def __init__(self, t, url, environment):
        self.t, self.url, self.environment = t, url, environment

    def words(self, command, key, *arguments):
        """The words of `shale blob COMMAND`."""
        return [str(word) for word in (BINARY, "blob", command, f"{self.url}/{key}", *arguments)]

    def start(self, command, key, *arguments):
        """Starts a command that prints JSON."""
        return subprocess.Popen([*self.words(command, key, *arguments), "--json"], env=self.environment,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def blob(self, command, key, *arguments, status=0):
        """Runs a command and returns its JSON."""
        process = self.start(command, key, *arguments)
        out, err = process.communicate(timeout=300)
        self.t.log(f"$ blob {command} {key} {arguments} -> {process.returncode} {out[:300]} {err[:300]}")
        if status is not None:
            self.t.equal(process.returncode, status, f"exit status of blob {command} {key}: {out} {err}")
        return json.loads(out) if out.strip() else {}

    def content(self, key, *arguments):
        """The bytes of a version, as `get` writes them to stdout."""
        done = subprocess.run(self.words("get", key, "-", *arguments), env=self.environment, capture_output=True,
                              timeout=300, check=False)
        self.t.equal(done.returncode, 0, f"exit status of blob get {key}: {done.stderr.decode()}")
        return done.stdout


def own_state(t, environment):
    """The environment with caches and journals in the test's own directory."""
    return dict(environment, XDG_CACHE_HOME=str(t.dir / "cache"), XDG_STATE_HOME=str(t.dir / "state"))


def directory(t):
    """Blobs in a directory."""
    return Store(t, f"file://{t.dir}/blobs", own_state(t, os.environ))


def all_versions(store, key):
    """The log, oldest first."""
    return list(reversed(store.blob("log", key, "-n", 100000)["versions"]))


def check_history(t, store, key, payloads):
    """Replays the log from the operations' own bytes; every version must read as that says. `payloads`: message -> bytes."""
    model, seen = bytearray(), set()
    versions = all_versions(store, key)
    for line in versions:
        payload = payloads[line["message"]]
        t.expect(line["message"] not in seen, f"{line['message']} was committed twice")
        seen.add(line["message"])
        t.equal(line["bytes"], len(payload), f"length of {line['message']}")
        if line["kinds"] == ["append"]:
            t.equal(line["offset"], len(model), f"offset of {line['message']}")
        end = line["offset"] + len(payload)
        model.extend(bytes(max(0, end - len(model))))
        model[line["offset"]:end] = payload
        t.expect(store.content(f"{key}@{line['version']}") == bytes(model), f"version {line['version']} reads otherwise")
    report = store.blob("verify", key)
    t.equal(report["damaged"], [], "damage")
    return seen, bytes(model)


def acknowledged_packs(directory):
    """Packs that the store has acknowledged, of the one upload whose client keeps its journal there."""
    return sum(max(0, len(file.read_bytes().splitlines()) - 1) for file in (directory / "shale" / "uploads").glob("*"))


def crash_in_mid_append(t, store, key, server, appenders=3):
    """Kills the whole server while each of several appends has a part in the store and another under way. Those that give up are
    repeated. Each append is there once, whole, and where its client was told."""
    payloads = {f"long-{number}": random.Random(number).randbytes(40 << 20) for number in range(appenders)}
    for name, payload in payloads.items():
        (t.dir / name).write_bytes(payload)
    states = {name: t.dir / f"state of {name}" for name in payloads}

    def start(name):
        client = Store(t, store.url, dict(store.environment, XDG_STATE_HOME=str(states[name])))
        return client.start("append", key, t.dir / name, "-m", name, "--pack", "4M", "--memory", "12M")

    running = {}
    for name in payloads:
        process = running[name] = start(name)
        while acknowledged_packs(states[name]) == 0:
            t.equal(process.poll(), None, f"exit status of {name} before a pack of it is in the store")
            time.sleep(0.001)
        # It waits here for the others.
        process.send_signal(signal.SIGSTOP)
    server.kill()
    for process in running.values():
        process.send_signal(signal.SIGCONT)
    parts = [acknowledged_packs(state) for state in states.values()]
    t.expect(all(1 <= part < 10 for part in parts), f"the kill was not in the middle: {parts} packs of 10 of each append")
    server.start()
    gave_up, acknowledged = 0, {}
    for name, process in running.items():
        out, err = process.communicate(timeout=600)
        while process.returncode in (EXIT_IO, EXIT_UNKNOWN):
            gave_up += 1
            t.expect(gave_up < 20, f"{name} gives up again and again: {out} {err}")
            process = start(name)
            out, err = process.communicate(timeout=600)
        t.equal(process.returncode, 0, f"exit status of {name}: {out} {err}")
        acknowledged[name] = json.loads(out)["offset"]
    check_history(t, store, key, payloads)
    lines = all_versions(store, key)
    t.equal({line["message"]: line["offset"] for line in lines}, acknowledged, "appends, and where they are")
    t.note(f"{store.url.split(':')[0]}: killed with {parts} of 10 packs of each append in the store, {gave_up} repeated")


def writers(t, store, key, processes, rounds, kill=None, server=None):
    """Starts waves of appenders and range writers, kills some, and checks that nothing is lost and nothing torn."""
    generator = random.Random(11)
    payloads, acknowledged = {}, {}
    killed = 0
    for turn in range(rounds):
        running = []
        for number in range(processes):
            name = f"op-{turn}-{number}"
            length = generator.choice([700, 5000, 200_000, 1_500_000])
            payloads[name] = (f"{name} ".encode() * length)[:length] if number % 2 else generator.randbytes(length)
            file = t.dir / name
            file.write_bytes(payloads[name])
            if number % 3 == 2:
                running.append((name, store.start("write", key, "--at", generator.randrange(3_000_000), file, "-m", name)))
            else:
                running.append((name, store.start("append", key, file, "-m", name)))
        if server:
            server.kill()
            server.start()
        for name, process in running:
            if kill and generator.random() < kill:
                try:
                    process.wait(timeout=generator.random() * 0.2)
                except subprocess.TimeoutExpired:
                    process.kill()
                    killed += 1
            out, err = process.communicate(timeout=300)
            if process.returncode == 0:
                acknowledged[name] = json.loads(out)
            else:
                # A store that is away for longer than a client waits ends it; what it was doing is then not acknowledged.
                gave_up = server is not None and server.slow and process.returncode in (EXIT_IO, EXIT_UNKNOWN)
                t.expect(gave_up or (kill and process.returncode < 0), f"{name} ended with {process.returncode}: {out} {err}")
    seen, _ = check_history(t, store, key, payloads)
    for name, done in acknowledged.items():
        t.expect(name in seen, f"{name} was acknowledged as version {done['version']} and is not in the log")
    by_version = {line["version"]: line for line in all_versions(store, key)}
    for name, done in acknowledged.items():
        line = by_version[done["version"]]
        t.equal((line["message"], line["offset"]), (name, done["offset"]), "what the writer was told")
    t.note(f"{store.url.split(':')[0]}: {len(seen)} versions, {len(acknowledged)} acknowledged, {killed} killed")


@test(seconds_max=900)
def blob_commands(t):
    """put, append, write, get, log, stat, tag, diff and verify of a blob in a directory, every version byte for byte"""
    store = directory(t)
    source = data.mixed_file(t.dir / "source", 64 << 20)
    done = store.blob("put", "books", source, "-m", "first")
    t.expect(done["ratio"] > 1.5, f"real files are stored with ratio {done['ratio']}")
    first = done["version"]
    store.blob("get", f"books@{first}", t.dir / "back")
    t.equal(digest(t.dir / "back"), digest(source), "sha256 of what came back")
    (t.dir / "tail").write_bytes(b"the end")
    appended = store.blob("append", "books", t.dir / "tail")
    t.equal((appended["offset"], appended["bytes"]), (64 << 20, 7), "where the append landed")
    store.blob("write", "books", "--at", 1_000_001, t.dir / "tail", "-m", "third")
    expected = bytearray(source.read_bytes()) + b"the end"
    expected[1_000_001:1_000_008] = b"the end"
    t.expect(store.content("books") == bytes(expected), "the newest version")
    t.expect(store.content("books", "--range", "1000000-1000010") == bytes(expected[1_000_000:1_000_010]), "a range")
    store.blob("tag", f"books@{first}", "v1")
    # The record of a tag is no version: without a number, both name the newest version.
    newest = store.blob("log", "books")["versions"][0]["version"]
    t.equal([store.blob("tag", "books", name)["version"] for name in ("one", "two")], [newest, newest], "what tags without a number name")
    t.expect(store.content("books@v1", "--range", "1M-3M") == source.read_bytes()[1 << 20:3 << 20], "a tagged version")
    difference = store.blob("diff", "books@v1")
    t.equal([(r["offset"], r["bytes"]) for r in difference["ranges"]], [(1_000_001, 7), (64 << 20, 7)], "diff")
    t.equal([line["kinds"] for line in all_versions(store, "books")], [["put"], ["append"], ["write"]], "kinds")
    stat = store.blob("stat", "books")
    t.equal((stat["size_bytes"], stat["hole_bytes"]), ((64 << 20) + 7, 0), "size and holes")
    noise = data.random_file(t.dir / "noise", 8 << 20)
    store.blob("put", "noise", noise)
    stat = store.blob("stat", "noise")
    t.equal([codec["codec"] for codec in stat["codecs"]], ["raw"], "codecs of random data")
    for codec in ["lzo", "bzip2-9"]:
        store.blob("put", "fixed", source, "-o", f"compression={codec}")
        t.expect(codec in [c["codec"] for c in store.blob("stat", "fixed")["codecs"]], f"{codec} was asked for")
    store.blob("get", "nothing", t.dir / "x", status=EXIT_NOT_FOUND)
    store.blob("get", "books@99", t.dir / "x", status=EXIT_NOT_FOUND)
    store.blob("put", "books@1", source, status=EXIT_USAGE)
    store.blob("put", "books", source, "-o", "mode=slow", status=EXIT_USAGE)


@test(seconds_max=900)
def blob_damage(t):
    """A flipped byte in an object of a blob is found by verify, named with its place, and never given out"""
    store = directory(t)
    source = data.mixed_file(t.dir / "source", 8 << 20)
    store.blob("put", "books", source)
    packs = sorted((t.dir / "blobs").rglob("p/*/*"))
    t.expect(packs, "there is no pack")
    damaged = bytearray(packs[0].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    packs[0].write_bytes(damaged)
    report = store.blob("verify", "books", status=EXIT_CORRUPT)
    t.equal(len(report["damaged"]), 1, "damaged ranges")
    offset, length = report["damaged"][0]["offset"], report["damaged"][0]["bytes"]
    store.blob("get", "books", t.dir / "x", "--range", f"{offset}-{offset + 1}", status=EXIT_CORRUPT)
    t.expect(not (t.dir / "x").exists(), "a file is left that looks whole")
    after = store.content("books", "--range", f"{offset + length}-")
    t.expect(after == source.read_bytes()[offset + length:], "what is behind the damage")


@test(seconds_max=1200)
def blob_writers_directory(t):
    """Appenders and range writers from many processes on a directory, some killed: nothing lost, nothing torn, each offset right"""
    writers(t, directory(t), "shared", processes=6, rounds=4)
    writers(t, directory(t), "killed", processes=6, rounds=4, kill=0.5)


@test(seconds_max=2400)
def blob_writers_s3(t):
    """The same on an S3 server, which is killed in mid-append, too"""
    server = s3_server(t)
    if server is None:
        return
    store = Store(t, f"s3://{BUCKET}/dir", own_state(t, server.environment()))
    writers(t, store, "shared", processes=6, rounds=3)
    writers(t, store, "killed", processes=6, rounds=3, kill=0.5)
    writers(t, store, "crashed", processes=5, rounds=3, server=server)
    crash_in_mid_append(t, store, "long", server)
