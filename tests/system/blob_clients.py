"""What a client of blobs does when things go wrong: a store that cannot be trusted, keys that end, kills, signals, little memory."""

import json
import os
import signal
import stat
import subprocess
import sys

from harness import data, test
from harness.fake_s3 import FakeS3
from harness.objectstore import BUCKET, s3_server

from .blob_keep import keeping, many_appends
from .blobs import Store, all_versions, directory, own_state, writers

EXIT_IO, EXIT_INTERRUPTED = 7, 130
# What a client may take besides the objects under way: threads' stacks, buffers of connections, the workspaces of slow codecs.
OWN_BYTES = 96 << 20
# Runs a command, and prints the most KiB of memory that it had.
PEAK = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(status)
"""


def fake_environment(t, server, **more):
    """A client's environment for the fake server."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return own_state(t, dict(clean, AWS_REGION="us-east-1", AWS_ENDPOINT_URL=server.url, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1", **more))


@test(seconds_max=600)
def blob_probe_refuses(t):
    """A store that does not create objects atomically is refused before the first write; one that does is asked once"""
    small = t.dir / "small"
    small.write_bytes(b"words")
    keys = {"AWS_ACCESS_KEY_ID": "key-1", "AWS_SECRET_ACCESS_KEY": "secret"}
    for fault in ["ignores", "races"]:
        server = FakeS3(t, fault)
        store = Store(t, "s3://bucket/dir", fake_environment(t, server, **keys))
        done = store.blob("put", "key", small, status=EXIT_IO)
        t.expect("atomically" in json.dumps(done), f"the refusal does not say why: {done}")
        t.expect(not [name for name in server.objects if "/life/" in name], "the blob was made on a store that was refused")
        store.blob("put", "key", small, status=EXIT_IO)
    server = FakeS3(t)
    store = Store(t, "s3://bucket/dir", fake_environment(t, server, **keys))
    first = store.blob("put", "key", small)["requests"]
    second = store.blob("put", "key", small)["requests"]
    t.expect(first >= second + 40, f"the first put took {first} requests, the second {second}")
    t.expect(store.blob("stat", "key")["store_probed"] is not None, "the probe's answer is not shown")
    t.expect(store.content("key") == b"words", "what was put")


@test(seconds_max=1200)
def blob_google(t):
    """Writers, kills and every command through the client of Google's store, on a server of the harness that answers as that does"""
    server = FakeS3(t)
    account = t.dir / "account.json"
    # No keys are sent, and none asked for.
    account.write_text(json.dumps({"private_key": "none", "private_key_id": "none", "client_email": "none", "disable_oauth": True}))
    environment = own_state(t, dict(os.environ, GOOGLE_BASE_URL=server.url, GOOGLE_SERVICE_ACCOUNT=str(account), NO_PROXY="127.0.0.1", no_proxy="127.0.0.1"))
    store = Store(t, "gs://bucket/dir", environment)
    writers(t, store, "killed", processes=6, rounds=2, kill=0.5)
    keeping(t, store, Store(t, f"file://{t.dir}/elsewhere", environment))
    many_appends(t, store)
    for fault in ["ignores", "races"]:
        bad = Store(t, "gs://bucket/dir", dict(environment, GOOGLE_BASE_URL=FakeS3(t, fault).url))
        done = bad.blob("append", "key", account, status=EXIT_IO)
        t.expect("atomically" in json.dumps(done), f"a server that {fault} is not refused: {done}")


@test(seconds_max=900)
def blob_credentials_renewed(t):
    """Keys of a credential_process that end in mid-upload are asked for again, and the upload goes on"""
    server = FakeS3(t, key_ends_after=40)
    calls = t.dir / "calls"
    process = t.dir / "keys"
    process.write_text(f"""#!/bin/sh
echo call >>{calls}
n=$(wc -l <{calls})
echo '{{"Version":1,"AccessKeyId":"key-'$n'","SecretAccessKey":"secret"}}'
""")
    process.chmod(process.stat().st_mode | stat.S_IXUSR)
    config = t.dir / "config"
    config.write_text(f"[profile test]\ncredential_process = {process}\n")
    environment = fake_environment(t, server, AWS_PROFILE="test", AWS_CONFIG_FILE=str(config), AWS_SHARED_CREDENTIALS_FILE=str(t.dir / "none"))
    store = Store(t, "s3://bucket/dir", environment)
    noise = data.random_file(t.dir / "noise", 180 << 20)
    done = store.blob("put", "key", noise, "--pack", "4M", "--memory", "32M")
    t.expect(done["bytes"] == 180 << 20, "bytes put")
    t.expect(server.refused > 0, "no key ended while the upload went on")
    used = len(calls.read_text().splitlines())
    t.expect(2 <= used <= server.refused + 1, f"{used} calls of the process for {server.refused} refusals")


def put_slowly(store, key, source, *arguments):
    """A put whose progress can be seen in the journal."""
    return subprocess.Popen([*store.words("put", key, source, *arguments), "--json"], env=store.environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished_packs(t):
    """Packs that journals know of."""
    files = list((t.dir / "state" / "shale" / "uploads").glob("*"))
    return sum(max(0, len(file.read_bytes().splitlines()) - 1) for file in files)


def resumes(t, store, end):
    """An upload that is ended goes on where it was, and the blob has one version of the whole file."""
    noise = data.random_file(t.dir / "noise", 128 << 20)
    arguments = ("--pack", "4M", "--memory", "16M", "-m", "whole")
    process = put_slowly(store, "books", noise, *arguments)
    t.wait_for(lambda: finished_packs(t) >= 3 or process.poll() is not None, "three finished packs")
    process.send_signal(end)
    out, err = process.communicate(timeout=120)
    t.log(f"ended with {process.returncode}: {out} {err}")
    if process.returncode == 0:
        t.fail("the upload was done before it could be ended: the file must be larger")
    if end == signal.SIGINT:
        t.equal(process.returncode, EXIT_INTERRUPTED, "exit status of an interrupted put")
        t.expect("garbage" in out and "same command" in out, f"the message does not tell what is left: {out}")
    known = finished_packs(t)
    t.expect(known >= 3, f"{known} packs are known after the end")
    again = store.blob("put", "books", noise, *arguments)
    # Random data fills packs of 4 MiB: what is not under way when it ends is not uploaded again.
    t.expect(again["resumed_bytes"] >= (known - 1) * (4 << 20) - (1 << 20), f"{known} packs known, resumed {again}")
    whole = (128 << 20) // (4 << 20) + 1
    t.expect(again["uploaded_objects"] <= whole - known + 1, f"{again['uploaded_objects']} of {whole} objects uploaded again, {known} were known")
    t.equal(again["bytes"], 128 << 20, "bytes of the version")
    t.expect(store.content("books") == noise.read_bytes(), "what was put")
    t.equal([line["message"] for line in all_versions(store, "books")], ["whole"], "versions")
    t.equal(list((t.dir / "state" / "shale" / "uploads").glob("*")), [], "journals that are left")


@test(seconds_max=900)
def blob_resume_after_kill(t):
    """A put that is killed goes on where it was, uploads only what was under way, and makes one version"""
    resumes(t, directory(t), signal.SIGKILL)


@test(seconds_max=900)
def blob_resume_after_interrupt(t):
    """A put that Ctrl-C ends says what is left in the store, and goes on when it is repeated"""
    resumes(t, directory(t), signal.SIGINT)


@test(seconds_max=900)
def blob_resume_of_other_data(t):
    """A file that changed after the interruption is not mixed with what was uploaded of the old one"""
    store = directory(t)
    noise = data.random_file(t.dir / "noise", 96 << 20)
    arguments = ("--pack", "4M", "--memory", "16M")
    process = put_slowly(store, "books", noise, *arguments)
    t.wait_for(lambda: finished_packs(t) >= 2 or process.poll() is not None, "two finished packs")
    process.kill()
    process.communicate()
    with open(noise, "r+b") as file:
        file.seek(5 << 20)
        file.write(b"another word")
    store.blob("put", "books", noise, *arguments)
    t.expect(store.content("books") == noise.read_bytes(), "the file as it is now")


@test(seconds_max=1200)
def blob_memory(t):
    """put and get of much more than the memory allowed stay within it"""
    store = directory(t)
    generator = [sys.executable, "-c", "import os,sys\nfor _ in range(640): sys.stdout.buffer.write(os.urandom(1 << 20))"]
    allowed = 48 << 20
    for command, arguments in [("put", ["-", "--pack", "8M", "--memory", "48M"]), ("get", ["/dev/null", "--force"]), ("get", [t.dir / "copy"])]:
        source = subprocess.Popen(generator, stdout=subprocess.PIPE) if command == "put" else None
        # A new process begins with its parent's peak: this one must not be the parent.
        words = [sys.executable, "-c", PEAK, *store.words(command, "large", *arguments)]
        process = subprocess.Popen(words, env=store.environment, stdin=source.stdout if source else subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, text=True)
        if source:
            source.stdout.close()
        said, _ = process.communicate()
        if source:
            source.wait()
        t.equal(process.returncode, 0, f"exit status of {command}")
        peak = int(said) * 1024
        t.expect(peak < allowed + OWN_BYTES, f"{command} took {peak >> 20} MiB, allowed are {(allowed + OWN_BYTES) >> 20}")
        t.note(f"{command} of 640 MiB took {peak >> 20} MiB")


@test(seconds_max=900)
def blob_read_cache(t):
    """Small reads are answered from the cache on disk the second time, and a damaged cache does no harm"""
    server = s3_server(t)
    if server is None:
        return
    store = Store(t, f"s3://{BUCKET}/dir", own_state(t, server.environment()))
    source = data.mixed_file(t.dir / "source", 20 << 20)
    store.blob("put", "books", source)
    expected = source.read_bytes()[7_000_000:7_004_096]
    arguments = ("--range", "7000000-7004096")
    first = store.blob("get", "books", t.dir / "a", *arguments)
    second = store.blob("get", "books", t.dir / "b", *arguments)
    t.expect(second["fetched_bytes"] < first["fetched_bytes"] and second["requests"] < first["requests"], f"{first} {second}")
    t.equal((t.dir / "b").read_bytes(), expected, "what came from the cache")
    for file in (t.dir / "cache" / "shale" / "blobs").rglob("*/*"):
        damaged = bytearray(file.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        file.write_bytes(damaged)
    store.blob("get", "books", t.dir / "c", *arguments)
    t.equal((t.dir / "c").read_bytes(), expected, "what came beside a damaged cache")
