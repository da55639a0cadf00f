"""The API of a served pool, as a program with a token uses it; also of a server in a network of its own."""

import contextlib
import ctypes
import http.client
import json
import os
import socket
import time
from urllib.parse import urlencode

from . import output

CLONE_NEWNET = 0x40000000
ANSWER_SECONDS_MAX = 120
# An address of documents (RFC 5737).
OUTER = "192.0.2.1/32"
# The sampler takes a second at its end.
SAMPLED_SECONDS_MAX = 30


@contextlib.contextmanager
def within(network):
    """The thread makes its sockets in this network (a file of /run/netns); None: in its own."""
    if network is None:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net", "rb") as own, open(network, "rb") as other:
        if libc.setns(other.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            libc.setns(own.fileno(), CLONE_NEWNET)


class Refused(Exception):
    """An answer that is no success: status and text."""


class Rest:
    """A client of `host:port`."""

    def __init__(self, host, port, token, network=None):
        self.address, self.token, self.network = (host, port), token, network

    def ask(self, method, path, body=None, headers=None):
        """(fields, body) of an answer."""
        fields = {"Authorization": f"Bearer {self.token}", **({"Content-Type": "application/json"} if body is not None else {}), **(headers or {})}
        connection = http.client.HTTPConnection(*self.address)
        with within(self.network):
            connection.sock = socket.create_connection(self.address, timeout=ANSWER_SECONDS_MAX)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), fields)
            answer = connection.getresponse()
            text = answer.read()
        if answer.status >= 300:
            raise Refused(f"{method} {path}: {answer.status} {text.decode(errors='replace')[:500]}")
        return answer.headers, text

    def get(self, path, **parameters):
        """A document."""
        pairs = [(k, v) for k, values in parameters.items() for v in (values if isinstance(values, list) else [values]) if v is not None]
        return json.loads(self.ask("GET", f"/api/v1{path}{'?' + urlencode(pairs) if pairs else ''}")[1])

    def series(self, dataset, first, end, by=None, only=(), step=1):
        """A dataset over the seconds from `first` to before `end`."""
        return self.get("/analytics/series", dataset=dataset, by=by, only=list(only), from_unix_s=first, to_unix_s=end, step_s=step)

    def totals(self, dataset, first, end, by=None, only=()):
        """{name: total} of the same."""
        return {line["name"]: line["total"] for line in self.series(dataset, first, end, by, only)["series"]}

    def wait_sampled(self, second):
        """Waits until the history has this second or a later one, and returns the last one that it has: on a busy machine the sampler leaves seconds out."""
        until = time.monotonic() + SAMPLED_SECONDS_MAX
        while time.monotonic() < until:
            covered = self.series("cpu", second, second + SAMPLED_SECONDS_MAX + 1)["covered_s"]
            if any(covered):
                return second + max(at for at, sampled in enumerate(covered) if sampled)
            time.sleep(0.1)
        raise SystemExit(f"the history has no second from {second} on after {SAMPLED_SECONDS_MAX} s")


def counted(network):
    """Bytes (received, sent) that the loopback interface of a network has carried."""
    with within(network), open("/proc/thread-self/net/dev", encoding="ascii") as file:
        line = next(line for line in file if line.split(":")[0].strip() == "lo")
    fields = line.split(":")[1].split()
    return int(fields[0]), int(fields[8])


def make_network(name):
    """A network of its own with a loopback interface; returns its file."""
    output("ip", "netns", "add", name)
    output("ip", "-n", name, "link", "set", "lo", "up")
    # Ganesha looks addresses up as the C library does for machines with a network: one that has 127.0.0.1 alone has none.
    output("ip", "-n", name, "address", "add", OUTER, "dev", "lo")
    return f"/run/netns/{os.path.basename(name)}"


def remove_network(name):
    """The end of it."""
    output("ip", "netns", "delete", name)
