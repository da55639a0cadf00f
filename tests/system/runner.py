"""How the system tests are run: planted tests, in a copy of the harness, fail and are cleaned up as they should."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from harness import test
from harness.namespaces import LEAVE_OTHERS, is_in_use
from harness.sweep import loops_under, mounts_under

TESTS = Path(__file__).resolve().parent.parent

PLANTED = '''
import multiprocessing
import subprocess
import time

import pytest

from harness import test
from harness.namespaces import LEAVE_OTHERS, is_in_use


def mount(t):
    (t.dir / "m").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", t.dir / "m"], check=True)


@test()
def succeeds(t):
    """notes a figure"""
    t.note("3 MB/s")
    print("a line for the log")


@test()
def fails_with_an_open_file(t):
    """fails, and the mount can be removed"""
    mount(t)
    t.defer(t.umount, t.dir / "m")
    file = open(t.dir / "m" / "open", "w")
    t.fail("as planted")


@test()
def leaves_everything(t):
    """leaves a process, a mount and a loop device"""
    mount(t)
    subprocess.Popen(["sleep", "infinity"])
    image = t.dir / "image"
    image.write_bytes(bytes(1 << 20))
    subprocess.run(["losetup", "--find", image], check=True)


@test(seconds_max=2)
def hangs(t):
    """waits, while its children hold everything open"""
    mount(t)
    subprocess.Popen(["sleep", "infinity"], cwd=t.dir / "m")
    multiprocessing.get_context("fork").Process(target=signal_never_comes).start()
    signal_never_comes()


def signal_never_comes():
    time.sleep(600)


@test()
def is_skipped(t):
    """has no client"""
    pytest.skip("no client")


@test(seconds_max=500, soak=True)
def waits_for_a_signal(t):
    """is interrupted"""
    mount(t)
    (t.dir / "../ready").touch()
    time.sleep(600)
'''


def run_planted(t, *options):
    """pytest on the planted tests, under way; its output is a file."""
    words = [sys.executable, "-P", "-m", "pytest", "system", "--numprocesses=2", *options]
    environment = dict(os.environ, SHALE="/bin/true", TMPDIR=str(t.dir), COLUMNS="200")
    with open(t.dir / "output", "w") as output:
        process = subprocess.Popen(words, cwd=t.dir / "tests", env=environment, stdout=output, stderr=subprocess.STDOUT)
    t.defer(process.kill)
    return process


def copy_harness(t):
    """A copy of what runs the system tests, with the planted ones only."""
    shutil.copytree(TESTS / "harness", t.dir / "tests" / "harness")
    shutil.copy(TESTS / "pytest.ini", t.dir / "tests")
    (t.dir / "tests" / "system").mkdir()
    for name in ("__init__.py", "conftest.py"):
        shutil.copy(TESTS / "system" / name, t.dir / "tests" / "system")
    (t.dir / "tests" / "system" / "planted.py").write_text(PLANTED)


def nothing_is_left(t):
    """Demands that mounts, loop devices and directories of planted tests are gone."""
    t.equal(mounts_under(t.dir), [], "mounts of planted tests")
    t.equal(loops_under(t.dir), [], "loop devices of planted tests")
    t.equal(list(t.dir.glob("shale-tests.*")), [], "directories of planted tests")


@test()
def runner_reports_and_cleans_up(t):
    """planted tests that hang, leave things or fail are reported as such, and nothing is left of them"""
    copy_harness(t)
    process = run_planted(t)
    t.equal(process.wait(300), 1, "exit status of pytest")
    output = (t.dir / "output").read_text()
    t.log(output)
    failed_at = PLANTED.splitlines().index('    t.fail("as planted")') + 1
    # Tests of the worker that the hanging one took along have run in another one.
    for line in ["2 failed, 2 passed, 1 skipped, 1 error in", "succeeds: 3 MB/s", "as planted", "left behind: loop ",
                 "in signal_never_comes: time.sleep(600)", f"::fails_with_an_open_file - planted.py:{failed_at}: "]:
        t.expect(line in output, f"'{line}' is not in the output")
    log = t.dir / "target" / "system" / "succeeds.log"
    t.equal(log.read_text(), "NOTE 3 MB/s\na line for the log\n", "the log of a test")
    nothing_is_left(t)


@test()
def unmounted_means_unused(t):
    """a mount namespace keeps a copy of a mount for a while: umount returns when it is gone, and a test's own namespace has no copies of others' mounts"""
    image = t.dir / "image"
    image.touch()
    os.truncate(image, 16 << 20)
    t.run("mkfs.ext4", "-q", "-F", image)
    device = t.loop(image)
    directory = t.mount(device, "m")

    def beside(own, leave=""):
        """A process in a namespace of its own, which ends after the unmount has begun."""
        until = f"until ! grep -q ' {directory} ' /proc/{os.getpid()}/mountinfo; do sleep 0.1; done; sleep 1"
        process = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{leave}echo there; {until}"],
                                   env={**os.environ, "own": str(own)}, stdout=subprocess.PIPE)
        t.defer(process.kill)
        t.equal(process.stdout.readline(), b"there\n", "the process in a namespace")
        return process

    process = beside(t.dir)
    t.umount(directory)
    t.expect(not is_in_use(device), "the device is in use after umount has returned")
    process.wait()

    t.mount(device, "m")
    process = beside(t.dir.parent / "another", LEAVE_OTHERS)
    t.run("umount", directory)
    t.expect(not is_in_use(device), "a namespace of another test has a copy")
    t.equal(process.poll(), None, "the end of the process in the namespace")
    process.wait()


@test()
def runner_cleans_up_when_it_is_ended(t):
    """SIGTERM during a test: nothing of it is left"""
    copy_harness(t)
    process = run_planted(t, "--soak")
    t.wait_for(lambda: list(t.dir.glob("shale-tests.*/ready")), "the planted test")
    for ready in t.dir.glob("shale-tests.*/ready"):
        ready.unlink()
    process.send_signal(signal.SIGTERM)
    t.equal(process.wait(300), 2, "exit status of pytest")
    nothing_is_left(t)
