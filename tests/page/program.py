"""The program that serves pools to the page's tests: which build it is, data to store, and a served pool with its log-in link."""

import os
import re
import select
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
READY_S_MAX = 60


def program():
    """The newest build, or None."""
    if os.environ.get("SHALE"):
        return Path(os.environ["SHALE"])
    found = [path for path in (TARGET / "release" / "shale", TARGET / "debug" / "shale") if path.exists()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def missing():
    """Why no pool can be served here, or None."""
    if program() is None:
        return "there is no build of the program"
    return None if os.access("/dev/fuse", os.W_OK) else "/dev/fuse cannot be opened"


def text(seed, size):
    """Lines that compress, and differ from file to file."""
    lines, number = [], seed
    while sum(map(len, lines[-1:])) * len(lines) < size:
        number = (number * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        lines.append(f"{number >> 40:06x} the quick brown fox {seed} jumps over the lazy dog {number % 97}\n")
    return "".join(lines).encode()[:size]


class Pool:
    """A pool in a directory, and its server while the block runs."""

    def __init__(self, folder, *words):
        self.path, self.shares, self.volumes = folder / "pool", folder / "shares", folder / "volumes"
        self.words = ["--nbd", f"unix:{folder}/nbd", "--shares", self.shares, "--keep-mounts", "off", "--http", "127.0.0.1:0", *words]
        self.link = self.server = None

    def run(self, *words, **named):
        """Runs a command on the pool, whose directory comes after the command's name; returns its output."""
        command = words[0].split()
        return subprocess.run([program(), *command, self.path, *words[1:]], check=True, stdout=subprocess.PIPE, text=True, **named).stdout

    def __enter__(self):
        self.shares.mkdir(exist_ok=True)
        self.server = subprocess.Popen([program(), "serve", self.path, *self.words], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        try:
            self.link = self.wait_for_link()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait(READY_S_MAX)

    def wait_for_link(self):
        """The log-in link, once the server is ready."""
        said, end = "", time.monotonic() + READY_S_MAX
        while True:
            link = re.search(r"(http\S*#key=\S+)", said)
            if link and re.search(r"^ready", said, re.M):
                return link.group(1)
            if not select.select([self.server.stdout], [], [], max(0, end - time.monotonic()))[0]:
                raise SystemExit(f"the server was not ready after {READY_S_MAX} s; it said: {said!r}")
            piece = os.read(self.server.stdout.fileno(), 65536).decode(errors="replace")
            if not piece:
                raise SystemExit(f"the server ended with {self.server.wait()}; it said: {said!r}")
            said += piece
