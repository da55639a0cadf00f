"""What a test holds: its directory, commands with their output in the log, and guards that undo what it did.

A guard is registered before the next step is taken, and runs whatever happens; the newest runs first. What a test
that was killed leaves behind is swept from outside (sweep.py), by looking at the machine, not at the test.
"""

import contextlib
import hashlib
import os
import shlex
import subprocess
import time
from pathlib import Path

from harness import namespaces

# A command that takes longer hangs. Far more than anything here takes; the test's own limit is usually shorter.
COMMAND_SECONDS_MAX = 600


def held_loops(directory):
    """Where a test notes the loop devices that it holds, for itself and for the sweep."""
    notes = Path(directory) / ".loops"
    notes.mkdir(exist_ok=True)
    return notes


class TestFailed(Exception):
    """A test found what it must not find. The message says what was expected."""


class Context:
    """The hands of one test."""

    def __init__(self, directory):
        self.dir = Path(directory)
        # Whether servers must get the requests of their mounts over io_uring.
        self.over_io_uring = False
        # Remarks for the summary of the run.
        self.notes = []
        self._guards = contextlib.ExitStack()

    def close(self):
        """Runs the guards."""
        self._guards.close()

    def log(self, text):
        """A line for the log of the test."""
        print(text, flush=True)

    def fail(self, text):
        """Ends the test as failed."""
        raise TestFailed(text)

    def expect(self, condition, text):
        """Fails with `text` unless the condition holds."""
        if not condition:
            raise TestFailed(text)

    def equal(self, found, expected, what):
        """Fails unless both are equal."""
        if found != expected:
            raise TestFailed(f"{what}: {difference(found, expected)}")

    def said(self):
        """All that was said so far: servers write their standard error to the log of the test."""
        return Path(os.readlink("/proc/self/fd/2")).read_text(errors="replace")

    def note(self, text):
        """A remark for the summary of the run: a figure that is worth seeing."""
        self.log(f"NOTE {text}")
        self.notes.append(text)

    def defer(self, function, *arguments, **named):
        """Registers a guard."""
        self._guards.callback(function, *arguments, **named)

    def run(self, *command, status=0, text=True, stdin=None, seconds_max=COMMAND_SECONDS_MAX, quiet=False, cwd=None):
        """Runs a command to its end and returns what it wrote; its exit status must be `status` (None: any)."""
        words = [str(word) for word in command]
        self.log(f"$ {shlex.join(words)}")
        done = subprocess.run(words, input=stdin, capture_output=True, timeout=seconds_max, cwd=cwd, check=False,
                              text=text)
        if text and not quiet:
            for stream in (done.stdout, done.stderr):
                if stream:
                    self.log(stream.rstrip("\n")[-8000:])
        if status is not None and done.returncode != status:
            error = done.stderr if text else done.stderr.decode(errors="replace")
            last = (error.strip().splitlines() or ["(it said nothing)"])[-1]
            self.fail(f"'{shlex.join(words)[:300]}' exited with {done.returncode}, expected {status}: {last}")
        return done

    def out(self, *command, **named):
        """What a command wrote to its standard output, without the last line's end."""
        return self.run(*command, **named).stdout.strip()

    def loop(self, file, direct=False, read_only=False, **options):
        """A loop device on a file, detached at the end of the test."""
        words = ["losetup", "--find", "--show"]
        if direct:
            words.append("--direct-io=on")
        if read_only:
            words.append("--read-only")
        for name, value in options.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        device = self.out(*words, file)
        held_loops(self.dir).joinpath(Path(device).name).touch()
        self.defer(self.detach, device)
        return device

    def detach(self, device):
        """Detaches a loop device, if this test still holds it."""
        # Not asked of the kernel: once a dead mount was taken away lazily, it knows the file only by half of its name.
        mark = held_loops(self.dir) / Path(device).name
        if mark.exists():
            self.run("losetup", "--detach", device)
            mark.unlink()

    def mount(self, device, name, *options):
        """Mounts a device on a directory of the test, unmounted at its end."""
        directory = self.dir / name
        directory.mkdir(exist_ok=True)
        self.run("mount", *options, device, directory)
        self.defer(self.umount, directory, must=False)
        return directory

    def umount(self, directory, must=True):
        """Unmounts, if it is mounted, and waits until no namespace has the file system any more."""
        if os.path.ismount(directory):
            device = namespaces.source_of(directory)
            done = self.run("umount", directory, status=0 if must else None)
            if device and done.returncode == 0 and not namespaces.wait_until_unused(device) and must:
                self.fail(f"{device} is still mounted in another namespace after 'umount {directory}'")

    def drop_page_cache(self):
        """What is read from here on comes from the devices."""
        self.run("sync")
        Path("/proc/sys/vm/drop_caches").write_text("1\n")

    def wait_for(self, condition, what, seconds_max=150):
        """Returns the first true value of `condition()`; fails after a generous time. For states that nothing announces."""
        end = time.monotonic() + seconds_max
        while time.monotonic() < end:
            if value := condition():
                return value
            time.sleep(0.02)
        return self.fail(f"{what} did not come about in {seconds_max} s")


def digest(path):
    """sha256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def difference(found, expected):
    """What differs, said so that its first line is enough: of two dictionaries, only the keys that are not alike."""
    if not (isinstance(found, dict) and isinstance(expected, dict)):
        return f"expected {expected!r}, found {found!r}"
    keys = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
    told = (f"{key!r}: expected {expected.get(key, 'nothing')!r}, found {found.get(key, 'nothing')!r}" for key in keys[:5])
    return f"{len(keys)} of {len(expected)} differ: " + "; ".join(told)


def tree_digest(directory):
    """Path -> what is there (a digest, a link's target, 'directory'), for everything under a directory."""
    found = {}
    for root, directories, files in os.walk(directory):
        directories.sort()
        for name in directories + files:
            path = Path(root) / name
            relative = str(path.relative_to(directory))
            if path.is_symlink():
                found[relative] = f"-> {os.readlink(path)}"
            elif path.is_dir():
                found[relative] = "directory"
            elif path.is_file():
                found[relative] = digest(path)
    return found
