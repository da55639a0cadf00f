"""Takes away what a test left on the machine: processes, mounts and loop devices under its directory, standby memory of its pools, then
the directory."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

from harness.namespaces import mount_table


def mounts_under(directory):
    """Mount points under a directory, the innermost first."""
    points = [point for point, *_ in mount_table() if point.startswith(f"{directory}/")]
    return sorted(points, key=len, reverse=True)


FUSE_CONNECTIONS = Path("/sys/fs/fuse/connections")


def end_fuse_mounts(directory):
    """Ends the mounts by FUSE under a directory: those of a killed server are kept for the next one, and would let umount wait for it."""
    numbers = {device.split(":")[1] for point, device, kind, _ in mount_table() if point.startswith(f"{directory}/") and kind.startswith("fuse")}
    if numbers and not os.path.ismount(FUSE_CONNECTIONS):
        subprocess.run(["mount", "-t", "fusectl", "none", FUSE_CONNECTIONS], capture_output=True, check=False)
    for number in numbers:
        with contextlib.suppress(OSError):
            (FUSE_CONNECTIONS / number / "abort").write_text("1")


def loops_under(directory):
    """Loop devices whose file is under a directory, or that the test noted and did not detach."""
    run = subprocess.run(["losetup", "--list", "--json", "--output", "NAME,BACK-FILE"], capture_output=True, text=True,
                         check=False)
    devices = json.loads(run.stdout)["loopdevices"] if run.stdout.strip() else []
    noted = {f"/dev/{note.name}" for note in (Path(directory) / ".loops").glob("loop*")}
    return [d["name"] for d in devices if d["name"] in noted or (d["back-file"] or "").startswith(f"{directory}/")]


STANDBY_DIR = Path("/dev/shm")
# Of a file of standby memory: its head, which names the pool's directory.
STANDBY_HEAD_BYTES = 4096


def standby_of(directory):
    """Files of standby memory of pools under a directory: of servers that were killed, and that no other one came after."""
    prefix = f"{os.path.realpath(directory)}/".encode()
    found = []
    for path in STANDBY_DIR.glob("shale-*"):
        try:
            with open(path, "rb") as file:
                head = file.read(STANDBY_HEAD_BYTES)
        except OSError:
            continue
        if prefix in head:
            found.append(path)
    return found


def processes_in(session):
    """Processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.getsid(int(entry.name)) == session and entry.joinpath("cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def sweep(directory, session, keep):
    """Removes everything; returns what there was, so that a test that leaves things behind is noticed.

    A worker that cleans up after its own test spares itself.
    """
    left = []
    for process in set(processes_in(session)) - {os.getpid()}:
        left.append(f"process {process}")
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
    end_fuse_mounts(directory)
    for _ in range(3):
        for point in mounts_under(directory):
            left.append(f"mount {point}")
            if subprocess.run(["umount", point], capture_output=True, check=False).returncode != 0:
                subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)
        for device in loops_under(directory):
            left.append(f"loop {device}")
            subprocess.run(["losetup", "--detach", device], capture_output=True, check=False)
            (Path(directory) / ".loops" / Path(device).name).unlink(missing_ok=True)
    if not keep:
        # That a killed server leaves it is as it must be: nothing to be noticed.
        for path in standby_of(directory):
            path.unlink(missing_ok=True)
    if not keep and not mounts_under(directory):
        shutil.rmtree(directory, ignore_errors=True)
    return sorted(set(left))
