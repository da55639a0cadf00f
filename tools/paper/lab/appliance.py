"""Shares as an appliance serves them: by NFS and with the API, in a network of its own whose bytes are those of its clients alone."""

import json
import os
import subprocess
import time

from .rest import Rest, make_network, remove_network
from .share import READY_SECONDS, Shares

HOST, NFS_PORT, MOUNT_PORT, HTTP_PORT = "127.0.0.1", 2049, 20048, 8080


class Appliance(Shares):
    """Shares of Shale given out by Ganesha; `rest` is a client of the API with a token that reads."""

    def _set_up(self):
        name = f"shale-paper-{os.getpid()}"
        self.network = make_network(name)
        self.stack.callback(remove_network, name)
        super()._set_up()

    def _make_pool(self):
        """The disk holds the data alone, so that its counts are those of the data; map and history are on the machine's own."""
        self.pool = self.directory / "pool"
        self.shale("init", self.pool, "--data", self.disk.device, "--capacity", self.capacity)

    def _create(self):
        super()._create()
        exports = self.directory / "exports"
        exports.mkdir()
        (exports / "settings").write_text(f"nfs-port = {NFS_PORT}\nmount-port = {MOUNT_PORT}\n")

    def _doors(self):
        return [*super()._doors(), "--exports", self.directory / "exports", "--http", f"{HOST}:{HTTP_PORT}"]

    def _come_up(self, is_new):
        super()._come_up(is_new)
        if is_new:
            token = json.loads(self.shale("token", "create", self.pool, "--name", "experiment", "--role", "operate", "--json"))["token"]
            self.rest = Rest(HOST, HTTP_PORT, token, self.network)
        self._wait_exported()

    def _wait_exported(self):
        """Until Ganesha serves all shares."""
        until, checks = time.monotonic() + READY_SECONDS, []
        command = ["nsenter", f"--net={self.network}", "--", self.lab.shale, "exports", str(self.pool), "--check", "--json"]
        while time.monotonic() < until:
            checks = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout or "{}").get("checks", [])
            if sum(check["good"] for check in checks if check["what"].startswith("nfs of share ")) == len(self.shares):
                return
            time.sleep(0.2)
        raise SystemExit(f"the shares are not given out by NFS: {[check for check in checks if not check['good']]}")

    def spawn(self, command, group=None, user=None, **how):
        """Server and load are in that network."""
        return super().spawn(["nsenter", f"--net={self.network}", "--", *command], group, user, **how)
