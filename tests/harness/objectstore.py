"""An S3 server for tests of blobs: versitygw on a port of its own, killed and started again at will.

Owns where its binary comes from (tools/objectstore), and the environment that a client needs. Without Go the server cannot
be had, and a test says so; a server that is there and does not work is a failure.
"""

import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
KEY, SECRET, BUCKET = "test-key", "test-secret", "bucket"
TOOL = ROOT / "tools" / "objectstore"
# Exit status of tools/objectstore when there is no Go.
NO_GO = 3


def free_port():
    """A port that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def free_ports():
    """The first of a hundred ports in a row that are free, below those that the kernel hands out by itself."""
    for first in range(17000, 30000, 100):
        held = []
        try:
            for port in range(first, first + 100):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
        return first
    raise RuntimeError("no hundred ports in a row are free")


class Service:
    """A server of some kind that tools/objectstore starts and ends: for `make e2e`."""

    # Starting all of its parts again may take longer than a client waits.
    slow = True

    def __init__(self, t, kind):
        self.t, self.kind, self.data, self.port = t, kind, t.dir / kind, free_ports()
        t.run(TOOL, "install", kind, seconds_max=3600)
        t.defer(lambda: t.run(TOOL, "stop", self.data))
        self.settings = {}
        self.start()

    def start(self):
        """Starts the parts that are down, and waits until all serve."""
        out = self.t.out(TOOL, "start", self.kind, self.data, self.port, seconds_max=600)
        self.settings = dict(line.split("=", 1) for line in out.splitlines())

    def kill(self):
        """Kills all of its parts, as a crash would."""
        self.t.run(TOOL, "stop", "-9", self.data, seconds_max=300)

    def environment(self):
        """The settings of a client."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return dict(clean, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1", **self.settings)


class S3Server:
    """A server with one bucket."""

    slow = False

    def __init__(self, t, binary):
        self.t, self.binary = t, binary
        self.data = t.dir / "s3"
        (self.data / BUCKET).mkdir(parents=True)
        self.port = free_port()
        self.process = None
        t.defer(self.kill)
        self.start()

    def start(self):
        """Starts it and waits until it answers."""
        environment = dict(os.environ, ROOT_ACCESS_KEY=KEY, ROOT_SECRET_KEY=SECRET)
        log = open(self.t.dir / "s3.log", "ab")  # the server keeps it
        self.process = subprocess.Popen(
            [self.binary, "--port", f"127.0.0.1:{self.port}", "--quiet", "--keep-alive", "posix", self.data],
            env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        log.close()
        self.t.wait_for(self.answers, "an answer of versitygw")

    def answers(self):
        """Whether it serves."""
        self.t.expect(self.process.poll() is None, f"versitygw ended with {self.process.returncode}: see s3.log")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=2):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    def kill(self):
        """Kills it, as a crash would."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def environment(self):
        """What a client needs."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return dict(clean, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_REGION="us-east-1",
                    AWS_ENDPOINT_URL=f"http://127.0.0.1:{self.port}", NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")


def s3_server(t):
    """A running server; `None` where there is no Go to build it with, which the test's line says."""
    done = t.run(TOOL, "install", status=None, seconds_max=1800)
    if done.returncode == NO_GO:
        t.note("SKIPPED on S3: there is no Go to build versitygw with")
        return None
    t.equal(done.returncode, 0, "exit status of tools/objectstore install")
    return S3Server(t, t.out(TOOL, "path"))
