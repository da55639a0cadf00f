"""What users are told when a store refuses: one line with the store's code and message, and what to do."""

import json
import subprocess

from harness import test
from harness.objectstore import BUCKET, s3_server

from .blobs import EXIT_NOT_FOUND, Store, all_versions, directory, own_state

EXIT_USAGE, EXIT_IO = 2, 7


@test(seconds_max=300)
def blob_errors_are_plain(t):
    """Wrong keys, no keys, no bucket, no server, a blob inside another: each is told in one line that says what to do"""
    small = t.dir / "small"
    small.write_bytes(b"words")
    server = s3_server(t)
    if server is None:
        return
    good = own_state(t, dict(server.environment(), HOME=str(t.dir)))
    store = Store(t, f"s3://{BUCKET}/errors", good)
    store.blob("put", "key", small)

    def told(environment, url, *words, what):
        done = Store(t, url, environment).blob(*words, status=EXIT_IO)
        text = json.dumps(done)
        t.log(f"{what}: {text}")
        t.expect("<" not in text and "?xml" not in text, f"{what}: raw XML: {text}")
        return text

    wrong = told(dict(good, AWS_SECRET_ACCESS_KEY="wrong"), f"s3://{BUCKET}/errors", "stat", "key", what="wrong keys")
    t.expect("SignatureDoesNotMatch" in wrong and "check the credentials" in wrong, wrong)
    bucket = told(good, "s3://no-such-bucket/errors", "put", "key", small, what="no bucket")
    t.expect("NoSuchBucket" in bucket and "create the bucket" in bucket, bucket)
    nobody = {name: value for name, value in good.items() if name not in {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}}
    nobody.update(AWS_METADATA_ENDPOINT="http://127.0.0.1:9")
    keys = told(nobody, f"s3://{BUCKET}/errors", "stat", "key", what="no keys")
    t.expect("this command: " in keys and "no credentials were found" in keys and "set AWS_ACCESS_KEY_ID" in keys, keys)
    nowhere = told(dict(good, AWS_ENDPOINT_URL="http://127.0.0.1:9"), f"s3://{BUCKET}/errors", "stat", "key", what="no server")
    t.expect("cannot be reached" in nowhere and "AWS_ENDPOINT_URL" in nowhere, nowhere)
    inside = json.dumps(store.blob("put", "key/inside", small, status=EXIT_USAGE))
    t.expect(f"there is a blob at s3://{BUCKET}/errors/key" in inside and "choose another key" in inside, inside)


@test(seconds_max=300)
def blob_names_are_refused_in_words(t):
    """Tags, messages and buckets that no name can be: exit code 2, one line without control characters that says what to do, nothing done"""
    store = directory(t)
    few = t.dir / "few"
    few.write_bytes(b"words")
    store.blob("put", "b", few, "-m", "two lines\n\tand a tab")
    before = all_versions(store, "b")
    for tag, why in [("a\nb", "'\\n'"), ("\x1b[31mred", "'\\u{1b}'"), ("del\x7f", "'\\u{7f}'"), ("gpj\u202eexe", "'\\u{202e}'"),
                     ("17", "number"), ("a/b", "'/'"), ("a@b", "'@'"), ("", "empty"), ("x" * 256, "256 bytes")]:
        done = store.blob("tag", "b", tag, status=EXIT_USAGE)
        said = done["error"]["message"]
        t.expect(why in said and "such as v1" in said and said.isprintable(), f"tag {tag!r}: {said}")
    for message, why in [("bell\x07", "'\\u{7}'"), ("x" * 1025, "shorten it")]:
        done = store.blob("append", "b", few, "-m", message, status=EXIT_USAGE)
        said = done["error"]["message"]
        t.expect(why in said and said.isprintable(), f"message {message[:9]!r}: {said}")
        # The blob is not even made.
        store.blob("put", "new", few, "-m", message, status=EXIT_USAGE)
    store.blob("stat", "new", status=EXIT_NOT_FOUND)
    for url in ["s3://buc ket", "s3://buc\tket", "s3://b?x", "az://b#x", f"{store.url}/a\x1bb"]:
        Store(t, url, store.environment).blob("stat", "b", status=EXIT_USAGE)
    for command in ["gc", "log", "rm", "optimize"]:
        done = store.blob(command, "b@1", status=EXIT_USAGE)
        t.expect("remove `@VERSION`" in json.dumps(done) or "expire" in json.dumps(done), f"{command} of one version: {done}")
    t.equal(all_versions(store, "b"), before, "versions")
    # A line of the log is one line, whatever the message.
    shown = subprocess.run(store.words("log", "b"), env=store.environment, capture_output=True, text=True, check=True, timeout=60).stdout
    t.expect(len(shown.splitlines()) == 2 and "two lines\\n\\tand a tab" in shown, shown)
    # The longest name of a source makes no message that is too long.
    long = "/".join(["d" * 200] * 5)
    store.blob("put", long, few)
    store.blob("cp", long, f"{store.url}/copy")
    t.expect(all_versions(store, "copy")[0]["message"].startswith("copy of version 1 of "), "the message of a copy")
