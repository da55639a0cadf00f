"""Shares on a disk: directory trees of Shale, mounted while they are used, within limits of memory and CPUs."""

import json
import os
import subprocess
import time

from .place import Place, Setup, options_of

READY_SECONDS = 300
# What a share's own names may take beside the data of a tree.
NAMES_BYTES = 256 << 20


class Shares(Place):
    """A served pool with shares: {name: properties}. `path` is the first one's mount, `at(name)` any one's."""

    def __init__(self, lab, disk, shares, *, size, pool_properties=None, **how):
        self.shares = shares
        first = next(iter(shares))
        self.title = f"{first}: {', '.join(f'{k}={v}' for k, v in shares[first].items())}"
        super().__init__(lab, disk, Setup("shares", "shares of Shale", "auto", dict(pool_properties or {})), size=size,
                         capacity=how.pop("capacity", None) or size * 2 + NAMES_BYTES + (512 << 20), **how)
        self.path = self.at(first)

    def at(self, name):
        """Where a share is mounted."""
        return self.directory / "shares" / name

    def _create(self):
        for key, value in self.properties.items():
            self.shale("set", self.pool, f"{key}={value}")
        for name, properties in self.shares.items():
            self.shale("create", self.pool, name, "--share", *options_of(properties))

    def _doors(self):
        return ["--shares", self.directory / "shares", "--keep-mounts", "off"]

    def _come_up(self, is_new):
        self._serve()
        until = time.monotonic() + READY_SECONDS
        while not all(os.path.ismount(self.at(name)) for name in self.shares):
            if self.server.poll() is not None or time.monotonic() > until:
                raise SystemExit("the shares are not mounted: " + (self.directory / "server.log").read_text()[-2000:])
            time.sleep(0.05)

    def sync(self):
        """Makes all durable: `sync -f` writes the kernel's pages back, `sync DIR` makes names durable, for FUSE does not pass the first on."""
        for name in self.shares:
            subprocess.run(["sync", "-f", self.at(name)], check=True)
            subprocess.run(["sync", self.at(name)], check=True)
        self.status()

    def usage(self, name):
        """What a share takes, by directory and by type."""
        return json.loads(self.shale("usage", self.pool, name, "--json"))

    def explain(self, name, path):
        """How a file is stored, and why."""
        return json.loads(self.shale("explain", self.pool, name, path, "--json"))

    def change(self, name, **properties):
        """Properties from now on."""
        self.shale("set", self.pool, name, *[f"{key.replace('_', '-')}={value}" for key, value in properties.items()])
