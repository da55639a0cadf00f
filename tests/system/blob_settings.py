"""What the store's settings do: the bucket in the host's name, private authorities, a store that is busy or keeps its objects; and whose a wrong setting is."""

import json
import os
import shutil
import subprocess

from harness import test
from harness.fake_s3 import FakeS3

from .blobs import EXIT_IO, EXIT_NOT_FOUND, EXIT_USAGE, Store, directory, own_state


def settings(t, server, **more):
    """The environment of a client of that server."""
    keys = {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "key-1", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}
    left = {name: value for name, value in os.environ.items() if not name.startswith("AWS_") and not name.startswith("SSL_CERT")}
    return own_state(t, {**left, "HOME": str(t.dir), **keys, **more})


def small_file(t):
    """A file of some bytes."""
    file = t.dir / "small"
    file.write_bytes(b"some words")
    return file


@test()
def blob_bucket_in_the_host(t):
    """AWS_VIRTUAL_HOSTED_STYLE_REQUEST puts each bucket into the host's name of every request, and is refused where that cannot be"""
    server, small = FakeS3(t), small_file(t)
    hosted = settings(t, server, AWS_VIRTUAL_HOSTED_STYLE_REQUEST="true", AWS_ENDPOINT_URL="http://s3.test", http_proxy=server.url)
    one, two = Store(t, "s3://one/p", hosted), Store(t, "s3://two/p", hosted)
    one.blob("put", "k", small)
    two.blob("stat", "k", status=EXIT_NOT_FOUND)
    t.equal(one.content("k"), b"some words", "what is in bucket one")
    one.blob("gc", "k", "--grace", "0s", "--uploads", "0s", "--full")
    t.equal({name.partition("/")[0] for name in server.objects}, {"one"}, "buckets that have objects")
    # The same server asked by path has the same objects there.
    by_path = Store(t, "s3://one/p", settings(t, server))
    t.equal(by_path.content("k"), b"some words", "the object by path")
    for bucket, url in (("one", server.url), ("One_two", "http://s3.test")):
        wrong = Store(t, f"s3://{bucket}/p", dict(hosted, AWS_ENDPOINT_URL=url)).blob("put", "k", small, status=EXIT_USAGE)
        t.expect("remove AWS_VIRTUAL_HOSTED_STYLE_REQUEST" in str(wrong), f"{bucket} at {url}: {wrong}")


@test()
def blob_private_authority(t):
    """A store whose certificate is of a private authority is trusted by AWS_CA_BUNDLE or SSL_CERT_FILE; without them the message names these"""
    if not shutil.which("openssl"):
        t.log("no openssl here")
        return
    small = small_file(t)

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=t.dir, check=True, capture_output=True, timeout=120)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=private")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "request", "-subj", "/CN=localhost")
    (t.dir / "names").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n", encoding="utf-8")
    openssl("x509", "-req", "-in", "request", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names",
            "-out", "cert.pem")
    both = t.dir / "both.pem"
    both.write_bytes((t.dir / "cert.pem").read_bytes() + (t.dir / "key.pem").read_bytes())
    server = FakeS3(t, certificate=both)
    authority = str(t.dir / "ca.pem")
    for number, name in enumerate(("AWS_CA_BUNDLE", "SSL_CERT_FILE")):
        store = Store(t, f"s3://bucket/{number}", settings(t, server, **{name: authority}))
        store.blob("put", "k", small)
        t.equal(store.content("k"), b"some words", f"what was put with {name}")
    told = json.dumps(Store(t, "s3://bucket/0", settings(t, server)).blob("stat", "k", status=EXIT_IO))
    t.expect("AWS_CA_BUNDLE" in told and "certificate" in told, told)
    missing = Store(t, "s3://bucket/0", settings(t, server, AWS_CA_BUNDLE="/no/such/file")).blob("stat", "k", status=EXIT_USAGE)
    t.expect("AWS_CA_BUNDLE names /no/such/file" in str(missing), f"{missing}")
    # The variable is of S3 alone: stores of other kinds are asked, here where nothing listens.
    away = "http://127.0.0.1:9"
    others = {"az": {"AZURE_STORAGE_ACCOUNT_NAME": "name", "AZURE_STORAGE_ACCOUNT_KEY": "a2V5", "AZURE_STORAGE_ENDPOINT": away},
              "gs": {"GOOGLE_SKIP_SIGNATURE": "true", "GOOGLE_BASE_URL": away}}
    for scheme, environment in others.items():
        environment = dict(environment, AWS_CA_BUNDLE="/no/such/file")
        asked = Store(t, f"{scheme}://bucket/0", environment).blob("stat", "k", status=EXIT_IO)
        t.expect("/no/such/file" not in str(asked) and "127.0.0.1:9" in str(asked), f"{scheme}: {asked}")


@test()
def blob_refused_deletions(t):
    """Objects that the store does not let be deleted: rm and gc say so, end with 7, and gc takes them once it may"""
    server, small = FakeS3(t, keeps_objects=True), t.dir / "noise"
    small.write_bytes(os.urandom(100_000))
    store = Store(t, "s3://bucket/p", settings(t, server))
    store.blob("put", "k", small)
    store.blob("put", "k", small)
    store.blob("expire", "k", "--keep", "1")
    kept = store.blob("gc", "k", "--grace", "0s", "--uploads", "0s", status=EXIT_IO)
    t.equal((kept["deleted"], kept["refused"]), (0, 1), "objects deleted and refused")
    told = store.blob("rm", "k", status=EXIT_IO)
    t.expect("the blob is removed, but the store would not delete 2 of its objects" in str(told), f"{told}")
    store.blob("stat", "k", status=EXIT_NOT_FOUND)
    server.keeps_objects = False
    t.equal(store.blob("gc", "k")["deleted"], 2, "objects deleted by the next gc")


@test()
def blob_one_number_for_a_version(t):
    """put, log, ls, stat, verify, get and tag call a version by one number and count the same ones; gc of a key that never was a blob is exit code 3"""
    store = directory(t)
    for text in (b"one", b"two", b"three"):
        (t.dir / "f").write_bytes(text)
        newest = store.blob("append", "b", t.dir / "f")["version"]
    store.blob("tag", "b@1", "first")
    t.equal(store.blob("tag", "b", "last")["version"], newest, "what tag names")
    stat = store.blob("stat", "b")
    t.equal((stat["version"], stat["newest"], stat["live_versions"]), (newest, newest, 3), "stat")
    t.equal(store.blob("log", "b")["versions"][0]["version"], newest, "log")
    listed = Store(t, store.url, store.environment).blob("ls", "")["blobs"]
    t.equal([line["version"] for line in listed], [newest], "ls")
    verified = store.blob("verify", "b", "--all")
    t.equal((verified["version"], verified["all"]["live_versions"]), (newest, 3), "verify")
    t.equal(store.blob("get", "b", t.dir / "out")["version"], newest, "get")
    expired = store.blob("expire", "b", "--keep", "1")
    # The first one has a tag.
    t.equal((expired["live_versions"], store.blob("stat", "b")["live_versions"]), (2, 2), "versions that are left")
    told = store.blob("gc", "c", status=EXIT_NOT_FOUND)
    t.expect(f"there is no blob at {store.url}/c" in str(told), f"{told}")
    store.blob("gc", "c", "--dry-run", status=EXIT_NOT_FOUND)
    store.blob("rm", "b")
    store.blob("gc", "b")


@test()
def blob_get_keeps_the_old_file(t):
    """get --force over a file that fails half-way leaves the old file; one that succeeds replaces it, with its mode"""
    store, old, new, copy = directory(t), t.dir / "old", t.dir / "new", t.dir / "copy"
    old.write_bytes(os.urandom(5_000_000))
    new.write_bytes(os.urandom(4_000_000))
    store.blob("put", "b", new)
    copy.write_bytes(old.read_bytes())
    copy.chmod(0o640)
    pack = next((t.dir / "blobs").rglob("p/*/*"))
    good = pack.read_bytes()
    pack.write_bytes(good[:3_500_000] + bytes(1000) + good[3_501_000:])
    store.blob("get", "b", copy, "--force", status=6)
    t.equal(copy.read_bytes(), old.read_bytes(), "the old file after a copy that failed")
    store.blob("get", "b", t.dir / "fresh", status=6)
    t.expect(not (t.dir / "fresh").exists(), "a new file has its name though it is incomplete")
    t.equal([path.name for path in t.dir.glob(".shale-get*")], [], "files that are left")
    pack.write_bytes(good)
    store.blob("get", "b", t.dir / "fresh")
    t.equal((t.dir / "fresh").read_bytes(), new.read_bytes(), "a file that is new")
    store.blob("get", "b", copy, "--force")
    t.equal((copy.read_bytes(), copy.stat().st_mode & 0o777), (new.read_bytes(), 0o640), "the new file")
    store.blob("get", "b", copy, status=8)


@test()
def blob_clocks_are_warned_of(t):
    """expire --older-than warns when all but the newest version look old, and keeps silent when they do not"""
    store, small = directory(t), small_file(t)
    for _ in range(3):
        store.blob("append", "b", small)

    def said(*words):
        done = subprocess.run(store.words("expire", "b", *words), env=store.environment, capture_output=True, text=True, check=True, timeout=60)
        return done.stderr

    t.equal(said("--older-than", "1d"), "", "what is said of young versions")
    newest = max(line["time"] for line in store.blob("log", "b")["versions"])
    t.wait_for(lambda: said("--older-than", "0s") != "", f"a warning once the clock is behind {newest}")
    t.expect("if the clock is wrong" in said("--older-than", "0s"), "what the warning says")
