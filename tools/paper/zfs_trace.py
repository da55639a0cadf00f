"""Which codec each unit got, and what that took: per-unit traces of one mixed file and of a tree (figures 6.13 and 6.14)."""

import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter

import zfs_sets
import zfs_store

SAMPLE_SECONDS = 0.01
FIRST_SECONDS = 60
FIELDS = ["offset", "raw_bytes", "stored_bytes", "codec", "class", "why", "cpu_ns", "test_ns", "energy_uj"]
PART_TYPES = 8
# Theirs in figures 6.13 and 6.14.
UNIT_MS = {"theirs, gzip-1, least": 1, "theirs, gzip-1, most": 2}
SECOND_HALF_PERCENT = 10
# Where the beginnings of files lie in a share's addresses, a MiB for each, by number; the first ones are the tree's own.
WINDOWS, WINDOW, OWN_FILES = 1 << 52, 1 << 20, 16
# Where it is written down where the rest of longer files lies.
TABLES = range(1 << 62, (1 << 62) + (1 << 55))


class Utilisation:
    """Samples the busy part of all CPUs, as the thesis did, each 10 ms."""

    def __init__(self):
        self.samples = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._sample)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def _sample(self):
        began, before = time.monotonic(), self._ticks()
        while not self.ended.wait(SAMPLE_SECONDS):
            now = self._ticks()
            busy, total = now[0] - before[0], now[1] - before[1]
            # The kernel counts in ticks of 10 ms: a sample between two of them says nothing.
            if total:
                self.samples.append((time.monotonic() - began, 100 * busy / total))
                before = now

    @staticmethod
    def _ticks():
        with open("/proc/stat", encoding="ascii") as file:
            fields = [int(n) for n in file.readline().split()[1:9]]
        return sum(fields) - fields[3] - fields[4], sum(fields)


class Trace:
    """`shale trace` while it is open; `rows` are what it told of the time within."""

    def __init__(self, lab, place):
        self.lab, self.place = lab, place
        self.file, self.messages = lab.work / "trace.jsonl", lab.work / "trace.messages"

    def __enter__(self):
        # What it says when it is interrupted at the end is no news.
        with open(self.file, "w", encoding="utf-8") as out, open(self.messages, "w", encoding="utf-8") as messages:
            self.process = subprocess.Popen([self.lab.shale, "trace", self.place.pool, "--format", "jsonl"], stdout=out, stderr=messages)
        # It is there when it tells of a file that is written for it; none of the records so far count.
        until, number = time.monotonic() + FIRST_SECONDS, 0
        while not self._told():
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit("paper-zfs: 'shale trace' tells nothing: " + self.messages.read_text(encoding="utf-8"))
            number += 1
            for name in self.place.shares:
                (self.place.at(name) / f"first-{number}").write_text("".join(f"line {n * n} of {number}\n" for n in range(3000)), encoding="ascii")
            self.place.sync()
        self.place.sync()
        time.sleep(1)
        for name in self.place.shares:
            for file in self.place.at(name).glob("first-*"):
                file.unlink()
        self.before = max(row["number"] for row in self._told())
        return self

    def _told(self):
        """Whole lines only: the last one may be on its way."""
        text = self.file.read_text(encoding="utf-8")
        return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]

    @staticmethod
    def _is_of_names(row):
        """Whether a unit belongs to the tree's own files, in which names are."""
        return WINDOWS <= row["offset"] < WINDOWS + OWN_FILES * WINDOW or row["offset"] in TABLES

    def __exit__(self, *_):
        time.sleep(1)
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        self.all_rows = [row for row in self._told() if row["number"] > self.before]
        self.rows = [row for row in self.all_rows if not self._is_of_names(row)]
        self.file.unlink()


def measure(lab, energy, how):
    """mixed.dat and the home set, in each mode."""
    sources = {"mixed.dat": zfs_sets.single(lab, "mixed.dat", how["single_bytes"]), "home": zfs_sets.file_set(lab, "home", how["set_bytes"])}
    for disk in lab.disks(how["disk"]):
        for name, source in sources.items():
            for mode in zfs_store.MODES:
                with zfs_store.shares(lab, disk, {"data": zfs_store.properties(f"auto {mode}")}, zfs_store.room(how["single_bytes"] + how["set_bytes"])) as place:
                    with Trace(lab, place) as trace, Utilisation() as busy:
                        zfs_store.store(lab, place, energy, "data", source, target=place.at("data") / name if source.is_file() else None)
                    numbers = [row["number"] for row in trace.all_rows]
                    if numbers and numbers[-1] - numbers[0] + 1 != len(numbers):
                        lab.report.note(f"trace of {name}, {mode}: {numbers[-1] - numbers[0] + 1 - len(numbers)} records were lost")
                    for at, row in enumerate(trace.rows):
                        lab.report.row("trace", data=name, mode=mode, at=at, **{k: row[k] for k in FIELDS})
                    for seconds, percent in busy.samples:
                        lab.report.row("utilisation", data=name, mode=mode, seconds=round(seconds, 3), percent=round(percent, 1))
                    explained(lab, place, name, mode, source)


def explained(lab, place, name, mode, source):
    """What `explain` says of the file, or of one file of each of the most frequent types."""
    if source.is_file():
        chosen = {name: name}
    else:
        files = zfs_sets.files_below(source)
        ends = [end for end, _ in Counter(f.suffix for f in files).most_common(PART_TYPES)]
        chosen = {end or "no extension": str(max((f for f in files if f.suffix == end), key=lambda f: f.stat().st_size).relative_to(source)) for end in ends}
    for what, path in chosen.items():
        report = place.explain("data", path)
        for part in report["parts"]:
            lab.report.row("parts", data=name, mode=mode, what=what, path=os.path.basename(path), compression=report["compression"],
                           **{k: part[k] for k in ("offset", "units", "raw_bytes", "stored_bytes", "codec", "why")})


def codecs_of(rows):
    """(units of each codec, those of a reason to test)."""
    return Counter(r["codec"] for r in rows)


def show(lab, how):
    """Points by codec: where the unit lies, and its CPU time; the CPUs' utilisation; and counts."""
    report = lab.report
    report.heading("Which codec each unit got (figures 6.13 and 6.14)")
    report.text("Each point is a unit: across, the order in which they were stored; up, the CPU time of all attempts at it. Half of mixed.dat is linux.tar, half random bytes. "
                "Units with the share's names are left out, but for those behind the first MiB of them. "
                "The trace has what auto chooses: files for which a rule names a codec, as the default rules for text and sources do but for mode performance, are not in it. Below, how busy the machine's processors were, sampled as the kernel counts (ticks of 10 ms).")
    for name in dict.fromkeys(r["data"] for r in report.table_of("trace")):
        for mode in zfs_store.MODES:
            rows = report.select("trace", data=name, mode=mode)
            if not rows:
                continue
            curves = {codec: [(r["at"], r["cpu_ns"] / 1e6) for r in rows if r["codec"] == codec] for codec in codecs_of(rows)}
            is_theirs = name == "mixed.dat" and mode == "archive"
            report.lines(f"trace-{name}-{mode}", f"{name}, {mode}: CPU time of each unit by codec", curves, "units", "ms", points=True,
                         theirs=UNIT_MS if is_theirs else None, said="Theirs: figures 6.13 and 6.14, by the text: blocks of 128 kB take 1 to 2 ms by gzip-1, 2 to 6 where they wait, 3 where they do not compress." if is_theirs else None)
            samples = report.select("utilisation", data=name, mode=mode)
            report.lines(f"trace-{name}-{mode}-busy", f"{name}, {mode}: utilisation of the processors", {"busy": [(r["seconds"], r["percent"]) for r in samples]}, "s", "%", points=True,
                         theirs={"theirs, second half": SECOND_HALF_PERCENT} if is_theirs else None,
                         said="Theirs: figure 6.14, by its text: in the half that does not compress, archive's utilisation almost never goes above 10 %." if is_theirs else None)
    rows = []
    for name in dict.fromkeys(r["data"] for r in report.table_of("trace")):
        for mode in zfs_store.MODES:
            units = report.select("trace", data=name, mode=mode)
            if units:
                cpu = sum(r["cpu_ns"] for r in units)
                rows.append([f"{name}, {mode}", len(units), ", ".join(f"{c} {n}" for c, n in codecs_of(units).most_common()), cpu / 1e9, 100 * sum(r["test_ns"] for r in units) / max(cpu, 1),
                             sum(r["raw_bytes"] for r in units) / max(sum(r["stored_bytes"] for r in units), 1)])
    report.table(["data and mode", "units", "codecs", "CPU s", "tests, % of it", "ratio"], rows)
    report.text("What `shale explain` says of the parts of mixed.dat, and of the largest file of each frequent type of the tree, in mode archive: the most data of each.")
    parts = Counter()
    for r in report.select("parts", mode="archive"):
        parts[(f"{r['data']}: {r.get('what')}", r["codec"], r["why"])] += r["raw_bytes"]
    report.table(["data", "codec", "why", "KB"], [[what, codec, why, round(size / 1e3)] for (what, codec, why), size in parts.most_common(40)])
