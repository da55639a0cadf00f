"""What users are told when a store refuses: one line with the store's code and message, and what to do."""

import json

from harness import test
from harness.objectstore import BUCKET, s3_server

from .blobs import Store, own_state

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
    t.expect("SignatureDoesNotMatch" in wrong and "look at the credentials" in wrong, wrong)
    bucket = told(good, "s3://no-such-bucket/errors", "put", "key", small, what="no bucket")
    t.expect("NoSuchBucket" in bucket and "make the bucket" in bucket, bucket)
    nobody = {name: value for name, value in good.items() if name not in {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}}
    nobody.update(AWS_METADATA_ENDPOINT="http://127.0.0.1:9")
    keys = told(nobody, f"s3://{BUCKET}/errors", "stat", "key", what="no keys")
    t.expect("no credentials were found" in keys and "set AWS_ACCESS_KEY_ID" in keys, keys)
    nowhere = told(dict(good, AWS_ENDPOINT_URL="http://127.0.0.1:9"), f"s3://{BUCKET}/errors", "stat", "key", what="no server")
    t.expect("cannot be reached" in nowhere and "AWS_ENDPOINT_URL" in nowhere, nowhere)
    inside = json.dumps(store.blob("put", "key/inside", small, status=EXIT_USAGE))
    t.expect("there is a blob at errors/key" in inside and "choose another key" in inside, inside)
