"""The guides of docs/VM-GUIDE.md with virtual machines: Debian boots as they say. Only in `make e2e`, which sets SHALE_E2E."""

import os
import re
import shutil
import subprocess
import time

import pytest
from harness import test
from harness.guide import Guide
from harness.guest import BOOT_SECONDS_MAX, accelerator, image

from .nbd_tls import guide as tls_steps

# Where KVM runs no ordinary machine: one processor, which is the most stable one.
EMULATED = """#!/bin/bash
# QEMU, without KVM.
words=()
while (($#)); do
    case $1 in
    -enable-kvm) ;;
    -cpu | -smp) shift ;;
    *) words+=("$1") ;;
    esac
    shift
done
exec /usr/bin/qemu-system-x86_64 -accel tcg -machine hpet=off "${words[@]}"
"""
PRIVATE = "192.0.2.10"
# Whom machines of libvirt run as.
USER, GROUP = "nobody", "nogroup"
WITHOUT_HPET = "<features><acpi/></features><clock offset='utc'><timer name='hpet' present='no'/></clock>"


class Machines:
    """A guide whose machines boot Debian."""

    def __init__(self, t):
        self.t, self.guide = t, Guide(t)
        (t.dir / "debian.img").symlink_to(image(t))
        if accelerator(t) == "tcg":
            self.guide.program("qemu-system-x86_64", EMULATED)
        self.guide.type(*self.guide.lines("The pool"))

    def pid(self, name):
        """Of a machine that runs."""
        return int((self.guide.top / f"run/{name}.pid").read_text())

    def console(self, name):
        """What it has written."""
        return (self.guide.top / f"var/log/{name}.console").read_text(errors="replace")

    def boots(self, command, name):
        """Starts a machine, and waits until it is up."""
        self.t.defer(self.end, name)
        self.guide.type(command)

        def is_up():
            # A look at the console each time: not more often than a machine needs.
            time.sleep(0.5)
            self.t.expect(os.path.exists(f"/proc/{self.pid(name)}"), f"the machine has ended: {self.console(name)[-1000:]}")
            return "guest: up after" in self.console(name)

        self.t.wait_for(is_up, f"a machine that is up, by {command}", seconds_max=BOOT_SECONDS_MAX)

    def end(self, name):
        """It is gone afterwards."""
        if (self.guide.top / f"run/{name}.pid").exists():
            self.guide.type(f"kill $(cat /run/{name}.pid)")
            self.t.wait_for(lambda: not (self.guide.top / f"run/{name}.pid").exists(), "the end of a machine")

    def stop(self):
        """The pool is whole."""
        self.guide.type("systemctl stop shale@tank", "shale check /srv/pool")


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=2 * 3600)
    def e2e_guide_qemu(t):
        """machines by the guide: one volume boots by vhost-user-blk and, after that, by NBD; it grows; a clone boots"""
        machines = Machines(t)
        guide, start = machines.guide, "vm-vhost vm1"
        lines = guide.lines("A machine with QEMU")
        guide.type(*guide.lines("A machine with QEMU", before=start))
        machines.boots(start, "vm1")
        after = lines[lines.index(start) + 1:]
        # What ends it, and the new size.
        guide.type(*after)
        t.wait_for(lambda: not (guide.top / "run/vm1.pid").exists(), "the end of the machine")
        machines.boots("vm-nbd vm1", "vm1")
        machines.end("vm1")
        start = "vm-vhost lab/vm1"
        guide.type(*guide.lines("A clone for each machine", before=start))
        machines.boots(start, "lab/vm1")
        machines.end("lab/vm1")
        machines.stop()

    @test(seconds_max=2 * 3600)
    def e2e_guide_two_hosts(t):
        """a machine by the guide whose disk comes from another host by TLS"""
        machines = Machines(t)
        guide = machines.guide
        guide.type("shale clone /srv/pool golden@1 vm", "systemctl stop shale@tank")
        tls = tls_steps()
        guide.type(tls["1"].replace(PRIVATE, "127.0.0.1"))
        client = guide.top / "etc/nbd-tls"
        client.mkdir()
        for name in ("ca-cert.pem", "client-cert.pem", "client-key.pem"):
            shutil.copy(guide.top / "etc/shale/tls" / name, client)
        served = guide.type(tls["3"].replace(f"{PRIVATE}:10809", "127.0.0.1:0") + f" --detach --json --log {t.dir}/tls.log")
        port = re.search(r"127\.0\.0\.1:(\d+)", served)[1]
        start = "vm-tls vm"
        lines = [line.replace(PRIVATE, "127.0.0.1").replace("port=10809", f"port={port}") for line in guide.lines("Two hosts", before=start)]
        guide.type(*lines)
        machines.boots(start, "vm")
        machines.end("vm")
        guide.end_server()
        guide.type("shale check /srv/pool")

    @test(seconds_max=3600)
    def e2e_guide_libvirt(t):
        """a machine by the guide under libvirt: its description is accepted, with the disk by vhost-user-blk and by NBD, and it boots"""
        if not shutil.which("virsh"):
            pytest.skip("libvirt is not installed (tools/setup e2e installs it)")
        machines = Machines(t)
        guide, start = machines.guide, "virsh start vm2"
        lines = guide.lines("A machine with libvirt", before=start)
        # A user's own daemon, whose machines run as that user: root's would change this machine.
        home = t.dir / "home"
        home.mkdir(mode=0o700)
        shutil.chown(home, USER, GROUP)
        (home / "libvirt").mkdir(mode=0o700)
        shutil.chown(home / "libvirt", USER, GROUP)
        # QEMU writes the console itself, without a daemon of logs that would outlive the test.
        (home / "libvirt/qemu.conf").write_text('stdio_handler = "file"\n')
        # On the way to the sockets of the pool.
        t.dir.chmod(0o711)
        socket = home / "libvirt/libvirt-sock"
        os.environ["LIBVIRT_DEFAULT_URI"] = f"qemu+unix:///session?socket={socket}"
        emulated = accelerator(t) == "tcg"
        lines = [line.replace("libvirt-qemu", GROUP) for line in lines]
        console = home / "vm2.console"
        lines = [line.replace("<serial type='pty'/>", f"<serial type='file'><source path='{console}'/></serial>") for line in lines]
        if emulated:
            changes = {"type='kvm'": "type='qemu'", "<vcpu>2": "<vcpu>1", " queues='2'": "", "<features><acpi/></features>": WITHOUT_HPET}
            for found, instead in changes.items():
                lines = [line.replace(found, instead) for line in lines]
        places = dict.fromkeys(["HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"], str(home))
        kvm = [] if emulated else [os.stat("/dev/kvm").st_gid]
        daemon = subprocess.Popen(["libvirtd"], stdin=subprocess.DEVNULL, cwd="/", env={**os.environ, **places}, user=USER, group=GROUP,
                                  extra_groups=kvm)
        t.defer(daemon.wait)
        t.defer(daemon.terminate)
        t.wait_for(socket.exists, "the socket of libvirt")
        (guide.top / "etc/tmpfiles.d").mkdir()
        guide.type(*lines)
        fragment = re.search(r"```xml\n(.*?)```", guide.section("A machine with libvirt"), re.DOTALL)[1]
        description = (guide.top / "etc/shale/vm2.xml").read_text()
        by_nbd = re.sub(r"<disk .*?</disk>", lambda _: guide.here(fragment).strip(), description, flags=re.DOTALL)
        by_nbd = re.sub(r"\s*<memoryBacking>.*</memoryBacking>", "", by_nbd)
        guide.type(re.search(r"`(setfacl [^`]+)`", guide.section("A machine with libvirt"))[1].replace("libvirt-qemu", USER))
        for text in (description, by_nbd):
            (t.dir / "vm2.xml").write_text(text)
            # A description without a UUID does not replace another one.
            t.run("virsh", "undefine", "vm2")
            t.run("virsh", "define", t.dir / "vm2.xml")
            console.unlink(missing_ok=True)
            t.defer(t.run, "virsh", "destroy", "vm2", status=None)
            guide.type(start)
            t.wait_for(lambda: time.sleep(0.5) or console.exists() and "guest: up after" in console.read_text(errors="replace"),
                       "a machine of libvirt that is up", seconds_max=BOOT_SECONDS_MAX)
            guide.type("virsh destroy vm2")
        t.run("virsh", "undefine", "vm2")
        machines.stop()
