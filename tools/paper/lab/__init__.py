"""The common library of the commands that repeat the papers' experiments (`make paper-NAME`).

How a command is written:

    with Lab("sandforce", __doc__) as lab:                    # root is asked for, a directory for the work is made, options are read
        for disk in lab.disks("raw", "ssd270"):               # what the data lies on: the disk, or a throttled part of it
            for setup in lab.setups("native", "off", "lzo"):  # ext4 on that disk, or on a volume of Shale on that disk
                with lab.place(disk, setup, size="4G", memory="1G", cpus=2) as place:
                    with place.meter() as meter:
                        place.run(["fio", ...])               # within the limits of memory and CPUs
                    lab.report.row("runs", disk=disk.name, setup=setup.name, **meter.figures())
        lab.report.bars("throughput", ...)                    # SVG; index.html is written at the end

What is where:

    __init__.py  Lab: options, the work directory, what to take away at the end
    groups.py    limits of memory and CPUs, CPU time of a group of processes (cgroups, version 1 or 2)
    disk.py      disks: as they are, or throttled in bytes and operations; bytes that they read and wrote
    share.py     shares: directory trees of Shale, mounted on a disk within limits
    appliance.py shares given out by NFS, with the API, in a network of its own
    rest.py      a client of the API, and such networks
    energy.py    joules: counted by the processors, or CPU time at a calibrated power
    place.py     set-ups: native, and Shale with each compression; a mounted file system on a disk within limits
    report.py    CSV, index.html with how and on what it ran
    figure.py    figures as SVG (matplotlib, from Debian), theirs beside ours
    data.py      real data: mail, files by kind, TPC-H tables, files of Debian packages

How a disk is throttled: by the block layer (blk-throttle), for a loop device with direct I/O on a file of the same disk. dm-delay and nbdkit's
rate filter were looked at: kernels without device mapper or NBD cannot use them, and this one hits native and Shale at the same place.
Shale's pool lies in a file system on the throttled device, so that its data, its map and their journal are throttled alike.

Memory as in the papers: the load and the server share what is allowed. The server gets a quarter of it as --memory, and the load's group what the
server does not take then. The server's own group has no limit but --memory (a limit that it meets would kill it, and it would wait for the writers of
its own device if it shared theirs); each row has the most that it held.

Figures of a run with QUICK=1 show that a command works, not how fast anything is. They go to target/papers, full runs to papers.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from .disk import DISKS, Disk
from .groups import Groups
from .place import SETUPS, Place
from .report import Report

ROOT = Path(__file__).resolve().parents[3]


def size(text):
    """Bytes of a text such as 512M."""
    text = str(text)
    return int(float(text[:-1]) * (1 << {"K": 10, "M": 20, "G": 30}[text[-1]])) if text[-1] in "KMG" else int(text)


class Lab:
    """One run of one paper's command."""

    def __init__(self, name, about):
        parser = argparse.ArgumentParser(description=about.splitlines()[0], epilog="QUICK=1 in the environment makes a run of minutes.")
        parser.add_argument("--out", type=Path, help="directory for the report")
        parser.add_argument("--work", default=os.environ.get("TMPDIR", "/var/tmp"), help="directory on the disk that is to be measured")
        parser.add_argument("--only", default="", help="only these parts, separated by commas; page: measure nothing, draw all again from the tables")
        parser.add_argument("--disks", default="", help="only these disks: " + ", ".join(DISKS))
        parser.add_argument("--setups", default="", help="only these set-ups: " + ", ".join(SETUPS))
        parser.add_argument("--databases", default="", help="only these databases: postgresql, mariadb")
        parser.add_argument("--runs", type=int, default=0, help="how often each set-up is measured, in turns, where a part can (zbd: postmark and the file server)")
        self.options = parser.parse_args()
        self.is_partial = bool(self.options.disks or self.options.setups or self.options.databases)
        self.only_draws = self.options.only == "page"
        self.name = name
        self.quick = os.environ.get("QUICK", "") not in ("", "0")
        self.shale = os.environ.get("SHALE", str(ROOT / "target/release/shale"))
        self.stack = contextlib.ExitStack()
        out = self.options.out or ROOT / ("target/papers" if self.quick else "papers") / name
        self.report = Report(name, about, out.resolve(), self)

    def __enter__(self):
        if self.only_draws:
            return self
        if os.geteuid() != 0:
            raise SystemExit(f"paper-{self.name}: it mounts file systems and limits memory: run it as root (sudo make paper-{self.name})")
        if not os.access(self.shale, os.X_OK):
            raise SystemExit(f"paper-{self.name}: {self.shale} is not there: run 'make build'")
        # Told to end, a run takes away what it set up, as it does after an error.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(f"paper-{self.name}: it was told to end"))
        self.work = Path(tempfile.mkdtemp(prefix=f"shale-paper-{self.name}.", dir=self.options.work))
        self.stack.callback(self._remove_work)
        self.groups = self.stack.enter_context(Groups(f"shale-paper-{os.getpid()}"))
        for missing in self.groups.missing:
            self.report.note(missing)
        return self

    def __exit__(self, kind, error, trace):
        # The report of a run that broke off would look like a whole one.
        if kind is None:
            self.report.write()
        self.stack.close()
        if kind is None:
            print(f"report: {self.report.out}/index.html")

    def _remove_work(self):
        # Only what is certainly no mount is removed.
        if f" {self.work}/" in Path("/proc/self/mountinfo").read_text():
            print(f"paper-{self.name}: something is still mounted below {self.work}: it is left", file=sys.stderr)
        else:
            shutil.rmtree(self.work, ignore_errors=True)

    def wants(self, part):
        """Whether a part of the command is to run."""
        return self.chooses("only", part)

    def run(self, parts, how):
        """{part: (measure, show, table)}: measures and draws the parts that are wanted. Others are drawn from their tables for `--only page`, or where they never were."""
        self.report.in_parts(list(parts))
        if self.only_draws and not self.report.kept:
            raise SystemExit(f"paper-{self.name}: {self.report.out} has no tables to draw: run the command without --only page first")
        for name, (measure, show, table) in parts.items():
            is_wanted = self.wants(name)
            if not is_wanted and not (self.report.table_of(table) and (self.wants("page") or not (self.report.out / f"part-{name}.html").exists())):
                continue
            self.report.begin(name, measured=is_wanted)
            if is_wanted:
                measure(self, how)
            # Options may have left nothing of it.
            if self.report.table_of(table):
                show(self, how)
        self.report.begin(None)

    def chooses(self, option, name):
        """Whether an option that names some of a kind has this one: all, where it is not given."""
        given = getattr(self.options, option)
        return not given or name in given.split(",")

    def runs(self):
        """Numbers of the runs: set-ups are measured in turns, since sessions of a machine differ."""
        return range(1, (self.options.runs or 1) + 1)

    def disks(self, *names):
        """The disks of these names, each attached while it is used."""
        chosen = [n for n in names if self.chooses("disks", n)]
        for name in chosen:
            with Disk(name, self.work, self.groups) as disk:
                yield disk

    def setups(self, *names):
        """The set-ups of these names."""
        return [SETUPS[n] for n in names if self.chooses("setups", n)]

    def place(self, disk, setup, **how):
        """A file system on `disk` by `setup`: see Place."""
        self.say(f"{disk.name}, {setup.name}, {', '.join(f'{k} {v}' for k, v in how.items())}")
        how["size"] = size(how["size"])
        if how.get("memory"):
            how["memory"] = size(how["memory"])
        return Place(self, disk, setup, **how)

    def say(self, text):
        """Tells on the terminal how far it is."""
        print(f"paper-{self.name}: {text}", flush=True)


def output(*command, **how):
    """What a command prints; a failure ends the run with its message."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **how)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout
