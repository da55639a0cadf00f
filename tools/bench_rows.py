"""Rows of bench/results/*.json, as tools/performance-table puts them into the documents, for the tools that measure in rounds.

Owns the layout of a row, commands that must succeed, and servers that run during a block.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHALE = os.environ.get("SHALE", str(ROOT / "target/release/shale"))
READY_SECONDS, STOP_SECONDS = 120, 120


def fail(text):
    """Ends the run."""
    raise SystemExit(f"{Path(sys.argv[0]).name}: {text}")


def run(*words, **named):
    """Returns the output of a command, which must succeed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **named)
    if done.returncode:
        fail(f"{' '.join(map(str, words))}: {(done.stderr or done.stdout).strip()[-1000:]}")
    return done.stdout


class Rows:
    """The figures, each with its target."""

    def __init__(self, quick):
        self.command, self.rows = f"`make {Path(sys.argv[0]).name}{' ARGS=--quick' if quick else ''}`", []
        self.version, self.day = run(SHALE, "--version").split("\n")[0].strip(), time.strftime("%Y-%m-%d", time.gmtime())

    def add(self, name, values, unit, least, how):
        """Adds the median of one value a round; the target is at least `least`, None for no target."""
        value = round(statistics.median(values), 4)
        low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        target = {} if least is None else {"target": f"at least {least:,} {unit}", "met": value >= least}
        spread = f"quartiles {low:.4g} and {high:.4g} {unit}"
        self.rows.append({"name": name, "value": value, "unit": unit, "target": None, "met": None, **target,
                          "how": f"{spread}; {how}; median of {len(values)} rounds; {self.command}", "version": self.version, "day": self.day})
        print(f"{name}: {value:,} {unit}, {spread}{'' if least is None else f' (at least {least:,})'}", flush=True)

    def ratio(self, name, values, base, unit, least, how):
        """Adds the median of the ratios of the rounds, in percent or as a factor."""
        scale = 100 if unit == "%" else 1
        self.add(name, [scale * one / other for one, other in zip(values, base)], unit, least, how)

    def write(self, out, is_part):
        """Writes the rows to a file; those of a part of the run leave the others of the file as they are."""
        measured = {row["name"] for row in self.rows}
        kept = [row for row in json.loads(out.read_text()) if row["name"] not in measured] if is_part and out.exists() else []
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(kept + self.rows, indent=1) + "\n")
        print(f"written: {out}")


@contextlib.contextmanager
def running(words, is_ready, log):
    """A server, while the block runs; `is_ready` gets its process and is asked until it returns something."""
    with open(log, "wb") as out:
        process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        end = time.monotonic() + READY_SECONDS
        while not (found := is_ready()):
            if process.poll() is not None or time.monotonic() > end:
                fail(f"{words[0]} does not serve: {log.read_text(errors='replace')[-1000:]}")
            time.sleep(0.02)
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def daemon(work, name, device):
    """qemu-storage-daemon with a disk behind a vhost-user socket, which the block gets."""
    path = work / f"{name}.sock"
    path.unlink(missing_ok=True)
    words = ["qemu-storage-daemon", "--object", "iothread,id=io", "--blockdev", f"{device},node-name=disk",
             "--export", f"vhost-user-blk,id=e,node-name=disk,addr.type=unix,addr.path={path},num-queues=1,writable=on,iothread=io"]
    return running(words, lambda: path.exists() and path, work / f"{name}.log")
