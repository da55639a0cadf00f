"""The runs of paper-sun: ten clients write and read, at one level after the other, and the counts of clients, devices and the pool's own history.

Owns the load, the data and the rows of runs.csv, series.csv, heat.csv, counts.csv and estimates.csv; draws nothing.
"""

import json
import os
import subprocess
import time
from pathlib import Path

from lab import data, output
from lab.appliance import HOST, MOUNT_PORT, NFS_PORT, Appliance
from lab.rest import counted

HERE = Path(__file__).resolve().parent
CLIENTS = 10
MIB = 1 << 20
# In order of effort, as the work has them, then ours.
THEIRS = ["off", "lzjb", "gzip-2", "gzip-6", "gzip-9"]
MODES = ["performance", "balanced", "energy", "archive"]
LEVELS = {name: {"compression": name} for name in [*THEIRS, "lz4", "zstd-3"]} | {f"auto-{mode}": {"compression": "auto", "mode": mode} for mode in MODES}
DATA = ["text", "media"]
# Two counts of the same may differ by so much.
DIFFERENCE_MAX = 0.01
# Media that gzip-9 makes so much smaller is none.
MEDIA_SAVED_MAX = 0.01
VIDEO_SECONDS = 20
REST_SECONDS = 15
# Of the list of words, one after the other: the load wants more than a MiB.
COPIES = 8
# The graphs over time: (graph, dataset, breakdown, filters).
GRAPHS = [
    ("operations", "ops", "operation", ["door=nfs"]),
    ("network", "network", "direction", ["interface=lo"]),
    ("cpu", "cpu", "who", []),
    ("written", "disk.written", "cause", []),
    ("read", "disk.read", "cause", []),
    ("written by codec", "codec.stored", "codec", []),
    ("read by codec", "decoded.stored", "codec", []),
    ("compression", "codec.cpu", "codec", ["direction=compress"]),
    ("decompression", "codec.cpu", "codec", ["direction=decompress"]),
]


def words(lab):
    """Copies of Debian's list of words, which is what /usr/dict/words is today."""
    target = lab.work / "words"
    target.write_bytes((data.package("wamerican") / "usr/share/dict/american-english").read_bytes() * COPIES)
    return target


def video():
    """A film that no codec makes smaller: H.264 of generated pictures with noise."""
    target = data.CACHE / "film.mp4"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        made = target.with_name("film.part.mp4")
        source = f"testsrc2=size=1280x720:rate=25:duration={VIDEO_SECONDS},noise=alls=30:allf=t"
        output("ffmpeg", "-nostdin", "-y", "-loglevel", "error", "-f", "lavfi", "-i", source, "-c:v", "libx264", "-preset", "veryfast", "-threads", "2", "-b:v", "16M", made)
        made.rename(target)
    size = target.stat().st_size
    packed = len(subprocess.run(["gzip", "-9", "-c", target], check=True, capture_output=True).stdout)
    if packed < size * (1 - MEDIA_SAVED_MAX):
        raise SystemExit(f"paper-sun: gzip-9 makes {target} {100 - 100 * packed / size:.1f} % smaller: it is no media data")
    return target


def sources(lab):
    """{data: its file}."""
    return {"text": words(lab), "media": video()}


class Count:
    """Two counts of the same that must agree."""

    def __init__(self, lab, **run):
        self.lab, self.run, self.wrong = lab, run, []

    def agree(self, what, store, other, whose):
        """`store` is what the history has, `other` what was counted elsewhere."""
        difference = abs(store - other) / other if other else float(bool(store))
        self.lab.report.row("counts", **self.run, what=what, store=store, other=other, whose=whose, difference_percent=round(100 * difference, 3))
        if difference > DIFFERENCE_MAX:
            self.wrong.append(f"{what}: the history has {store:,}, {whose} {other:,}: {100 * difference:.2f} %")

    def judge(self):
        """Ends the whole run if any pair does not agree."""
        if self.wrong:
            raise SystemExit(f"paper-sun: {self.run}: counts that differ by more than {100 * DIFFERENCE_MAX:.0f} %: " + "; ".join(self.wrong))


class Phase:
    """Counts of the time in which all clients wrote, or read: by them, by the kernel, and by the history from second `first` to before `end`."""

    def __init__(self, place, load, kind, source, file_bytes):
        self.place = place
        self.first = settled(place) + 1
        before = self._read()
        out = place.run([load, kind, HOST, NFS_PORT, MOUNT_PORT, source, file_bytes, *place.shares])
        self.clients = {share: (int(count), int(requests), float(seconds)) for share, count, requests, seconds in map(str.split, out.splitlines())}
        place.sync()
        self.bytes = sum(count for count, _, _ in self.clients.values())
        self._wait_counted(kind)
        self.counted = {k: v - before[k] for k, v in self._read().items()}
        self.seconds = max(seconds for _, _, seconds in self.clients.values())
        self.requests = sum(requests for _, requests, _ in self.clients.values())

    def _read(self):
        received, sent = counted(self.place.network)
        return {**self.place.disk.counters(), "received": received, "sent": sent, "server_cpu_s": self.place.server_group.cpu_seconds() or 0.0,
                "load_cpu_s": self.place.load.cpu_seconds() or 0.0}

    def _wait_counted(self, operation):
        """Waits until the history has all bytes that the clients moved, or looked at all shares: those that were at rest it looks at each tenth second."""
        until = time.monotonic() + REST_SECONDS
        while True:
            self.end = settled(self.place) + 1
            if self.total("bytes", [f"operation={operation}", "door=nfs"]) >= self.bytes or time.monotonic() > until:
                return

    def totals(self, dataset, by=None, only=()):
        """{name: total} of the history."""
        return self.place.rest.totals(dataset, self.first, self.end, by, only)

    def total(self, dataset, only=()):
        """The sum of a dataset in the history."""
        return self.totals(dataset, None, only).get("total", 0)

    def on_disk(self, moved):
        """Bytes "written" to the disk of the data, or "read" from it: the map lies on another one."""
        return sum(count for cause, count in self.totals(f"disk.{moved}", "cause").items() if cause != "map")


def settled(place):
    """A second that the history has; nothing that happens from now on is in it."""
    return place.rest.wait_sampled(int(time.time()) + 1)


def one(lab, energy, how, load, disk, name, source, level, run):
    """All clients at one level."""
    properties = {**LEVELS[level], "nfs": "rw,no_root_squash"}
    shares = {f"client-{number}": properties for number in range(CLIENTS)}
    lab.say(f"{name}, {level}, run {run}")
    size = CLIENTS * how["file_bytes"]
    with Appliance(lab, disk, shares, size=size, server_memory=how["memory"]) as place:
        with energy:
            write = Phase(place, load, "write", source, how["file_bytes"])
            place.drop_caches()
            read = Phase(place, load, "read", source, how["file_bytes"])
        rows = [row for row in json.loads(place.shale("list", place.pool, "--json")) if row["name"] in shares]
        count = Count(lab, data=name, level=level, run=run)
        compare(count, place, write, read)
        figures(lab, energy, place, name, level, run, write, read, rows)
        if run == 1:
            history(lab, place, name, level, write, read)
            if level == "off":
                estimates(lab, place, name)
        count.judge()


def compare(count, place, write, read):
    """The history beside the clients, the network and the disk."""
    for phase, operation, moved in ((write, "write", "written"), (read, "read", "read")):
        by_share = phase.totals("bytes", "object", [f"operation={operation}", "door=nfs"])
        for share in place.shares:
            count.agree(f"bytes {moved} by {share}", by_share.get(share, 0), phase.clients[share][0], "its client")
        count.agree(f"bytes {moved}", phase.total("bytes", [f"operation={operation}", "door=nfs"]), phase.bytes, "the clients")
        network = phase.totals("network", "direction", ["interface=lo"])
        count.agree(f"network bytes received while they {operation}", network.get("received", 0), phase.counted["received"], "the kernel")
        count.agree(f"disk bytes {moved}", phase.on_disk(moved), phase.counted[f"disk_{moved}_bytes"], "the device")
        covered = place.rest.series("cpu", phase.first, phase.end)["covered_s"]
        # A sample that is a little late leaves a second out, whose counts the next one has.
        if any(not one and not other for one, other in zip(covered, covered[1:])):
            count.wrong.append(f"the history has a gap while they {operation}: {covered}")


def figures(lab, energy, place, name, level, run, write, read, rows):
    """The row of a run."""
    # Of what the clients wrote: the shares' own names take a few KiB of what is stored, too.
    logical, stored = write.bytes, sum(row["stored_bytes"] for row in rows)
    cpu = {who: write.totals("cpu", "who").get(who, 0) + read.totals("cpu", "who").get(who, 0) for who in ("user", "system", "idle", "iowait", "server")}
    machine = sum(cpu[who] for who in ("user", "system", "idle", "iowait"))
    # Joules are those of the codecs' share, and of server and load as a whole.
    server_s, load_s = (sum(phase.counted[key] for phase in (write, read)) for key in ("server_cpu_s", "load_cpu_s"))
    lab.report.row("runs", data=name, level=level, run=run, bytes=write.bytes, write_s=round(write.seconds, 3), read_s=round(read.seconds, 3),
                   seconds=round(write.seconds + read.seconds, 3), raw=logical, stored=stored, ratio=round(logical / stored, 4),
                   saving_percent=round(100 - 100 * stored / logical, 3), write_requests=write.requests, read_requests=read.requests,
                   network_bytes=write.counted["received"] + read.counted["received"],
                   disk_written=write.on_disk("written"), disk_read=read.on_disk("read"), map_written=write.totals("disk.written", "cause").get("map", 0),
                   compress_s=seconds(write.total("codec.cpu", ["direction=compress"])), decompress_s=seconds(read.total("codec.cpu", ["direction=decompress"])),
                   shale_cpu_s=seconds(cpu["server"]), server_cpu_s=round(server_s, 3), load_cpu_s=round(load_s, 3),
                   busy_percent=round(100 * (cpu["user"] + cpu["system"]) / machine, 1) if machine else None,
                   write_busy_percent=busy(write), read_busy_percent=busy(read),
                   joules=round(energy.joules(server_s + load_s), 2), server_peak_bytes=place.server_group.memory_peak())
    for direction, phase in (("compress", write), ("decompress", read)):
        for codec, ns in phase.totals("codec.cpu", "codec", [f"direction={direction}"]).items():
            moved = phase.totals("codec.stored" if phase is write else "decoded.stored", "codec").get(codec, 0)
            lab.report.row("codecs", data=name, level=level, run=run, direction=direction, codec=codec, bytes=moved, cpu_s=seconds(ns),
                           joules=round(ns / 1e9 * energy.watts, 3))


def seconds(ns):
    """Of nanoseconds."""
    return round(ns / 1e9, 3)


def busy(phase):
    """Percent of the machine's CPU time that was used."""
    found = phase.totals("cpu", "who")
    whole = sum(found.get(who, 0) for who in ("user", "system", "idle", "iowait"))
    return round(100 * (found.get("user", 0) + found.get("system", 0)) / whole, 1) if whole else None


def history(lab, place, name, level, write, read):
    """The history of a run, second by second: a line for each value that is not zero, second 0 being the first of the writes."""
    for graph, dataset, by, only in GRAPHS:
        found = place.rest.series(dataset, write.first, read.end, by, only)
        for line in found["series"]:
            for second, value in enumerate(line["values"]):
                if value:
                    lab.report.row("series", data=name, level=level, graph=graph, name=line["name"], second=second, value=value)
    lab.report.row("spans", data=name, level=level, write_end=write.end - write.first, read_first=read.first - write.first, read_end=read.end - write.first)
    for operation, phase in (("write", write), ("read", read)):
        heat = place.rest.get("/analytics/heatmap", dataset="latency", only=["door=nfs", f"operation={operation}"], from_unix_s=phase.first, to_unix_s=phase.end, step_s=1)
        for bucket, counts in enumerate(heat["counts"]):
            end = heat["bucket_ends_ns"][bucket] if bucket < len(heat["bucket_ends_ns"]) else None
            for second, value in enumerate(counts):
                if value:
                    lab.report.row("heat", data=name, level=level, operation=operation, bucket=bucket, end_ns=end, second=phase.first - write.first + second, value=value)


def estimated(place, share):
    """The estimate of a share. No other place knows how it is asked for."""
    return json.loads(place.shale("estimate", place.pool, share, "--codecs", ",".join(level for level in LEVELS if not level.startswith(("auto", "off"))), "--json"))


def estimates(lab, place, name):
    """The estimate for each level of a share that is not compressed."""
    began = time.monotonic()
    found = estimated(place, next(iter(place.shares)))
    took = time.monotonic() - began
    for line in found["settings"]:
        level = line["setting"].replace("auto, ", "auto-").replace("mode ", "")
        # The model of the speed of writes is part of the document once the server knows processors and device; fields without a value are left out.
        lab.report.row("estimates", data=name, level=level, setting=line["setting"], sampled=found["sampled_bytes"], of=found["data_bytes"], took_s=round(took, 3),
                       saving_percent=line["saving_percent"], margin_percent=line["margin_percent"] or 0.0, cpu_s=line["cpu_seconds"], mb_per_s=line["mb_per_second"],
                       joules=line["joules"], cpus=os.cpu_count(), write_mb_per_s=line.get("write_mb_per_second"), write_bound=line.get("write_bound"))


def measure(lab, energy, how):
    """All levels on both kinds of data, as often as said."""
    load = lab.work / "nfsload"
    output("gcc", "-O2", "-pthread", "-o", load, HERE / "nfsload.c", "-lnfs")
    made = sources(lab)
    for disk in lab.disks(how["disk"]):
        for run in range(1, how["runs"] + 1):
            for name, source in made.items():
                for level in how["levels"]:
                    one(lab, energy, how, load, disk, name, source, level, run)
