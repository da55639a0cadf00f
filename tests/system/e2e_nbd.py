"""The kernel's NBD client in a virtual machine, since this machine's kernel may have none: tests/kernel-nbd, and the guide's disk of another host.
Only in `make e2e`, which sets SHALE_E2E."""

import os

from harness import test
from harness.guest import LEAN_BEGIN, ROOT, Guest, accelerator, data_disk, lean_image
from harness.guide import Guide

from .nbd_tls import guide as tls_steps

# Files that a small machine copies in minutes.
SOURCES = "/usr/sbin /etc"
# qemu-nbd returns a moment before its device has a size, which nobody notices who types.
HAS_SIZE = "until [ $(cat /sys/block/nbd0/size) -gt 0 ]; do sleep 0.1; done"


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=2 * 3600)
    def e2e_nbd_kernel(t):
        """ext4 and XFS on /dev/nbd0 with one and four connections: bytes, trim, kill -9 of the server, a volume that grows"""
        disk = data_disk(t, ROOT / "tests/kernel-nbd")
        command = f"{LEAN_BEGIN} exec bash /run/data/kernel-nbd /run/data/shale {SOURCES}"
        machine = Guest(t, lean_image(t), "nbd", accelerator(t), command, words=["--lean", "--data", disk, "--memory", 1024], seconds_max=5400)
        document = machine.wait()
        said = machine.log.read_text(errors="replace")
        t.log(said[-20_000:])
        t.equal(document["status"], 0, "exit status of tests/kernel-nbd")
        t.equal(said.count("ok: "), 5, "steps that were done")

    @test(seconds_max=3600)
    def e2e_guide_nbd_tls_device(t):
        """a block device by the guide, whose volume comes over TLS: two hosts in one machine"""
        guide, steps, connect = Guide(t), tls_steps(), "modprobe nbd"
        lines = guide.lines("Two hosts")
        lines = lines[lines.index(connect):]
        mount = next(number for number, line in enumerate(lines) if line.startswith("mount "))
        umount = next(number for number, line in enumerate(lines) if line.startswith("umount "))
        script = "\n".join([
            "set -e; shale() { /run/data/shale \"$@\"; }", "shale init /srv/pool --capacity 1G; shale create /srv/pool vm --size 512M", steps["1"],
            "mkdir -p /etc/nbd-tls; cp ca-cert.pem client-*.pem /etc/nbd-tls", f"server=$({steps['3']} --memory 64M --detach)",
            *lines[:mount], HAS_SIZE, "mkfs.ext4 -q /dev/nbd0", lines[mount], "cp -a /etc /mnt/vm; sync -f /mnt/vm; grep /mnt/vm /proc/mounts", lines[umount],
            "kill $server; tail --pid=$server -f /dev/null; shale check /srv/pool; echo whole",
        ]).replace("192.0.2.10", "127.0.0.1")
        (t.dir / "two-hosts").write_text(script)
        command = f"{LEAN_BEGIN} exec bash /run/data/two-hosts"
        disk = data_disk(t, t.dir / "two-hosts")
        machine = Guest(t, lean_image(t), "tls", accelerator(t), command, words=["--lean", "--data", disk, "--memory", 1024], seconds_max=3000)
        document = machine.wait()
        said = machine.log.read_text(errors="replace")
        t.log(said[-20_000:])
        t.equal(document["status"], 0, "exit status of the guide's commands")
        t.expect("/dev/nbd0 /mnt/vm ext4" in said and "whole" in said, "a file system on the device")
