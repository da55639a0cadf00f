"""The load that a pool has while the page is open: volume and share are written and read back, codecs change, shares and snapshots come and go, jobs run.

Owns its threads, and the sums of what they wrote: each read is compared. `faults` has what went wrong.
"""

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zlib
from pathlib import Path

MIB = 1 << 20
CODECS = ["lz4", "zstd-3", "off", "gzip-6", "auto", "zstd-9", "lzjb"]
SLOTS = 192
FILES_MAX = 300
SNAPSHOTS_MAX = 6
SHARES_MAX = 3
# Jobs that the load starts in turn; those of an object have its name.
JOBS = [{"kind": "scrub"}, {"kind": "clean"}, {"kind": "recompress", "volume": "vm"}, {"kind": "recompress", "volume": "projects/home"}]


class Data:
    """Pieces of real files, one after the other."""

    def __init__(self, folder, seed):
        found = [path for root, folders, names in os.walk(folder) for path in (Path(root) / name for name in names) if path.is_file() and not path.is_symlink()]
        random.Random(seed).shuffle(found)
        if not found:
            raise SystemExit(f"soak: no file is in {folder}")
        self.files, self.rest = itertools.cycle(found), b""

    def piece(self, size):
        """The next bytes."""
        while len(self.rest) < size:
            try:
                self.rest += next(self.files).read_bytes()[: 8 * MIB]
            except OSError:
                continue
        piece, self.rest = self.rest[:size], self.rest[size:]
        return piece


class Load:
    """Runs while the block does, at about `pace` bytes a second of each kind."""

    def __init__(self, pool, folder, seed, pace):
        self.pool, self.folder, self.seed, self.pace = pool, folder, seed, pace
        self.end, self.faults, self.done = threading.Event(), [], {}
        self.address = pool.link.split("#")[0] + "api/v1"
        self.token = json.loads(pool.run("token create", "--name", "soak", "--role", "admin", "--json", stderr=subprocess.DEVNULL))["token"]
        # The page logs in with it once its session is over.
        pool.run("passwd", "soak", "--role", "admin", input="correct horse battery\n")
        self.threads = [threading.Thread(target=self.guarded, args=(work,), daemon=True) for work in (self.volume, self.share, self.changes)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        for thread in self.threads:
            thread.join(120)

    def guarded(self, work):
        """A thread that fails is reported, and ends nothing else."""
        try:
            work(random.Random(self.seed + len(work.__name__)))
        except Exception as error:
            self.faults.append(f"{work.__name__}: {type(error).__name__}: {error}")
            print(f"soak: load: {self.faults[-1]}", file=sys.stderr, flush=True)

    def count(self, what, amount=1):
        self.done[what] = self.done.get(what, 0) + amount

    def paced(self, size, began):
        """Waits until this many bytes are due."""
        self.end.wait(max(0, size / self.pace - (time.monotonic() - began)))

    def volume(self, dice):
        """Slots of the volume are overwritten, and others read back."""
        data, sums = Data(self.folder, self.seed), {}
        file = os.open(self.pool.volumes / "vm", os.O_RDWR)
        try:
            for number in itertools.count():
                if self.end.is_set():
                    return
                began, slot, piece = time.monotonic(), dice.randrange(SLOTS), data.piece(MIB)
                os.pwrite(file, piece, slot * MIB)
                sums[slot] = zlib.crc32(piece)
                if number % 8 == 0:
                    os.fdatasync(file)
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                slot = dice.choice(list(sums))
                if zlib.crc32(os.pread(file, MIB, slot * MIB)) != sums[slot]:
                    raise ValueError(f"MiB {slot} of the volume reads as other bytes than were written")
                self.count("volume_bytes", 2 * MIB)
                self.paced(2 * MIB, began)
        finally:
            os.close(file)

    def share(self, dice):
        """Files of the share are written, renamed, read back and removed."""
        data, files, top = Data(self.folder, self.seed + 1), {}, self.pool.shares / "projects" / "home"
        for number in itertools.count():
            if self.end.is_set():
                return
            began, size = time.monotonic(), dice.choice([4 << 10, 60 << 10, 300 << 10, MIB])
            path = top / f"d{number % 16}" / f"{number}.{dice.choice(['log', 'txt', 'bin', 'html'])}"
            path.parent.mkdir(exist_ok=True)
            piece = data.piece(size)
            path.write_bytes(piece)
            if number % 5 == 0:
                path = path.rename(path.with_suffix(".moved"))
            files[path] = zlib.crc32(piece)
            other = dice.choice(list(files))
            if zlib.crc32(other.read_bytes()) != files[other]:
                raise ValueError(f"{other} reads as other bytes than were written")
            if len(files) > FILES_MAX:
                oldest = next(iter(files))
                oldest.unlink()
                del files[oldest]
            self.count("share_bytes", 2 * size)
            self.paced(2 * size, began)

    def changes(self, dice):
        """Codecs, snapshots, shares and jobs, one change after the other."""
        steps = itertools.cycle([self.codec, self.snapshot, self.codec, self.new_share, self.snapshot, self.job])
        for number, step in enumerate(steps):
            if self.end.is_set():
                return
            step(number, dice)
            self.count(step.__name__)
            self.end.wait(1)

    def ask(self, method, path, body=None, kind="application/json", ignored=()):
        """The document of an answer; None: no document, or a status that is to be ignored."""
        fields = {"Authorization": f"Bearer {self.token}", **({"Content-Type": kind} if body is not None else {})}
        request = urllib.request.Request(self.address + path, None if body is None else json.dumps(body).encode(), fields, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                said = answer.read()
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            if error.code in ignored:
                return None
            raise OSError(f"{method} {path}: {error.code} {said[:300]}") from error
        return json.loads(said) if said else None

    def codec(self, number, _dice):
        """Another codec for the volume, or for the share."""
        name = ["vm", "projects%2Fhome"][number // 2 % 2]
        self.ask("PATCH", f"/objects/{name}/properties", {"compression": CODECS[number // 4 % len(CODECS)]}, "application/merge-patch+json")

    def snapshot(self, number, _dice):
        """A new snapshot; the oldest goes. One that a page or a job has open stays until the next time."""
        name = ["vm", "projects%2Fhome"][number // 3 % 2]
        self.ask("POST", f"/objects/{name}/snapshots", {"name": f"s{number:06}"})
        own = sorted((one for one in self.ask("GET", f"/objects/{name}/snapshots")), key=lambda one: one["name"])
        for one in own[:-SNAPSHOTS_MAX]:
            self.ask("DELETE", f"/objects/{one['id']}", ignored=(404, 409))

    def new_share(self, number, dice):
        """A new share with files; the oldest one goes."""
        name = f"projects/s{number:06}"
        self.ask("POST", "/shares", {"share": name, "properties": {"compression": dice.choice(CODECS)}})
        data = Data(self.folder, number)
        for at in range(3):
            (self.pool.shares / name / f"{at}.bin").write_bytes(data.piece(200 << 10))
        shares = sorted((one for one in self.ask("GET", "/objects?kind=share&limit=1000")["objects"] if one["name"].startswith("projects/s")), key=lambda one: one["name"])
        for one in shares[:-SHARES_MAX]:
            self.ask("DELETE", f"/objects/{one['id']}?recursive=true&force=true", ignored=(404, 409))

    def job(self, number, _dice):
        """A job; each third one is paused, resumed and cancelled."""
        made = self.ask("POST", "/jobs", {"wish": JOBS[number // 6 % len(JOBS)]}, ignored=(409,))
        if made and number // 6 % 3 == 0:
            for method, rest in (("POST", "/pause"), ("POST", "/resume"), ("DELETE", "")):
                # It may have ended in between.
                self.ask(method, f"/jobs/{made['id']}{rest}", {} if method == "POST" else None, ignored=(404, 409, 422))
