"""A small S3 server in memory whose faults a test chooses: creating objects that is not atomic, keys that end.

It knows what blobs ask: PUT with If-None-Match, GET with a range, HEAD, DELETE of one and of many, lists. Signatures are not
verified; only the key's name in them is looked at. A client of Google's store uses the same requests, with a condition of its own.
As a proxy it takes requests for hosts below `s3.test`, whose first part is the bucket.
"""

import hashlib
import re
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

# Rivals that the racy server lets pass between its look and its write, and how long it waits for them.
RIVALS, RIVALS_WAIT_S = 8, 2


class FakeS3:
    """A server on a port of its own. `fault`: None, "ignores" conditions, or "races" between look and write."""

    def __init__(self, t, fault=None, key_ends_after=None, certificate=None, keeps_objects=False):
        """`certificate`: a file with it and its key, for TLS. `keeps_objects`: deletions are refused."""
        self.keeps_objects = keeps_objects
        self.objects, self.lock, self.fault = {}, threading.Lock(), fault
        self.barrier = threading.Barrier(RIVALS)
        # Requests until the oldest key that is good is the next one: key-1, key-2, ...
        self.key_ends_after, self.served, self.refused = key_ends_after, 0, 0
        # While this is not set, requests get no answer; how many were held up so.
        self.answers, self.held = threading.Event(), 0
        self.answers.set()
        t.defer(self.answers.set)
        fake = self

        class Handler(BaseHTTPRequestHandler):
            """One connection."""

            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                """Says nothing."""

            def do_PUT(self):
                """Writes an object."""
                fake.put(self)

            def do_GET(self):
                """Reads or lists."""
                fake.get(self, True)

            def do_HEAD(self):
                """Asks for an object."""
                fake.get(self, False)

            def do_DELETE(self):
                """Deletes one object."""
                if fake.keeps_objects:
                    fake.answer(self, 403, b"<Error><Code>AccessDenied</Code><Message>kept</Message></Error>")
                elif not fake.refuses(self):
                    with fake.lock:
                        fake.objects.pop(fake.name(self), None)
                    fake.answer(self, 204)

            def do_POST(self):
                """Deletes many."""
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if fake.refuses(self):
                    return
                if fake.keeps_objects:
                    fake.answer(self, 403, b"<Error><Code>AccessDenied</Code><Message>kept</Message></Error>")
                    return
                keys = [unescape(key) for key in re.findall(r"<Key>(.*?)</Key>", body.decode())]
                bucket = urlsplit(self.path).path.strip("/").split("/")[0]
                with fake.lock:
                    for key in keys:
                        fake.objects.pop(f"{bucket}/{key}", None)
                deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
                fake.answer(self, 200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

        class Server(ThreadingHTTPServer):
            """Takes the rivals' connections at once."""

            request_queue_size = 64
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        t.defer(self.server.shutdown)
        self.port = self.server.server_address[1]
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self.port}"

    @staticmethod
    def name(handler):
        """Bucket and key."""
        path = unquote(urlsplit(handler.path).path).strip("/")
        bucket, dot, _ = handler.headers.get("Host", "").partition(".s3.test")
        return f"{bucket}/{path}".strip("/") if dot else path

    @staticmethod
    def answer(handler, status, body=b"", **headers):
        """Sends an answer; for HEAD the caller gives the length."""
        handler.send_response(status)
        headers.setdefault("Content_Length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    def refuses(self, handler):
        """Whether the request's key has ended; then it is answered."""
        if not self.answers.is_set():
            with self.lock:
                self.held += 1
            self.answers.wait()
        if self.key_ends_after is None:
            return False
        with self.lock:
            # A client with many requests on their way may have asked for a newer key already.
            used = re.search(r"Credential=key-(\d+)/", handler.headers.get("Authorization", ""))
            if used and int(used.group(1)) > self.served // self.key_ends_after:
                self.served += 1
                return False
            self.refused += 1
        handler.close_connection = True
        self.answer(handler, 403, b"<Error><Code>ExpiredToken</Code><Message>ended</Message></Error>")
        return True

    def put(self, handler):
        """PUT, conditional or not."""
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        if self.refuses(handler):
            return
        name = self.name(handler)
        conditional = handler.headers.get("If-None-Match") == "*" or handler.headers.get("x-goog-if-generation-match") == "0"
        if conditional and self.fault == "races":
            exists = name in self.objects
            try:
                self.barrier.wait(RIVALS_WAIT_S)
            except threading.BrokenBarrierError:
                self.barrier.reset()
        with self.lock:
            if self.fault is None:
                exists = name in self.objects
            if conditional and self.fault != "ignores" and exists:
                self.answer(handler, 412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            self.objects[name] = body
        self.answer(handler, 200, ETag=f'"{hashlib.md5(body).hexdigest()}"', x_goog_generation="1")

    def get(self, handler, with_body):
        """GET and HEAD."""
        if self.refuses(handler):
            return
        parts = urlsplit(handler.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        if "list-type" in query:
            self.list(handler, self.name(handler), query)
            return
        with self.lock:
            body = self.objects.get(self.name(handler))
        if body is None:
            self.answer(handler, 404, b"<Error><Code>NoSuchKey</Code></Error>" if with_body else b"")
            return
        headers = {"ETag": f'"{hashlib.md5(body).hexdigest()}"', "Last_Modified": "Wed, 25 Nov 2026 00:00:00 GMT"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
        if asked and with_body:
            first, last = int(asked[1]), min(int(asked[2]), len(body) - 1)
            headers["Content_Range"] = f"bytes {first}-{last}/{len(body)}"
            self.answer(handler, 206, body[first:last + 1], **headers)
        elif with_body:
            self.answer(handler, 200, body, **headers)
        else:
            self.answer(handler, 200, b"", Content_Length=str(len(body)), **headers)

    def list(self, handler, bucket, query):
        """A list, in one page."""
        prefix, after = query.get("prefix", [""])[0], query.get("start-after", [""])[0]
        with self.lock:
            keys = sorted(name[len(bucket) + 1:] for name in self.objects if name.startswith(f"{bucket}/{prefix}"))
            found = [(key, len(self.objects[f"{bucket}/{key}"])) for key in keys if key > after]
        common = set()
        if delimiter := query.get("delimiter", [""])[0]:
            common = {prefix + key[len(prefix):].partition(delimiter)[0] + delimiter for key, _ in found if delimiter in key[len(prefix):]}
            found = [(key, size) for key, size in found if delimiter not in key[len(prefix):]]
        rows = "".join(f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-25T00:00:00.000Z</LastModified>"
                       f"<ETag>x</ETag><Size>{size}</Size></Contents>" for key, size in found)
        rows += "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(common))
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        self.answer(handler, 200, body.encode())
