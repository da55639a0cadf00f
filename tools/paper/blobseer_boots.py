"""Machines that boot from clones of one image: figures 5a and 5b of the BlobSeer paper, and what their disks fetch and push.

The image is Debian's, of 2 GiB as in the paper (tools/guest). It is put as a blob with each compression, cloned into pools, and read over NBD. The paper had up to 40 hosts with a link of 1 Gbit/s each. Here
1, 4 and 16 hosts, which are pools with a server of their own, share two processors and one link of 1 Gbit/s with a round trip of 5 ms (tools/paper/lab/link.py). A real machine boots from each kind of blob; where the
processor runs no virtual machine (KVM), it is emulated, and computes so long that its time says little. So the curves are of replays: each host reads what that machine read, in its order and with as many requests under
way, and computes nothing (tools/paper/replay.py). That is the part of a boot that waits for its disk; with KVM, real machines are beside it.
"""

import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from lab import ROOT, output
from lab.report import mean, middle

MIB, GROUP, BLOCK = 1 << 20, 128 << 10, 4096
STORE_PORT, LINK_PORT = 7170, 7171
MBIT, RTT_MS = 1000, 5
# The latency between the paper's nodes.
NEAR_MS = 0.1
CODECS = {"raw": "off", "lzo": "lzo", "bzip2": "bzip2-9", "auto": "auto"}
PROFILED = "auto, profile"
# Theirs: MB of all hosts at the most of them.
HOSTS, TRAFFIC = 40, {"raw": 8000, "lzo": 4000, "bzip2": 3000}
GUEST, OBJECTSTORE = ROOT / "tools" / "guest", ROOT / "tools" / "objectstore"
MEMORY_MIB = 384
READY_SECONDS_MAX = 300


class Store:
    """An S3 server behind the link, and the blobs in it."""

    def __init__(self, lab, rtt_ms=RTT_MS):
        self.lab, self.work, self.rtt_ms = lab, Path(lab.work), rtt_ms
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        output(OBJECTSTORE, "install")
        settings = output(OBJECTSTORE, "start", "versitygw", self.work / "store", STORE_PORT)
        self.stack.callback(output, OBJECTSTORE, "stop", self.work / "store")
        words = [sys.executable, "-B", ROOT / "tools/paper/lab/link.py", LINK_PORT, STORE_PORT, "--mbit", MBIT, "--rtt-ms", self.rtt_ms]
        self.link = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True)
        self.stack.callback(self.link.wait)
        self.stack.callback(self.link.terminate)
        if self.link.stdout.readline().strip() != "ready":
            raise SystemExit("paper-blobseer: the link did not come up")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self.environment = clean | dict(line.split("=", 1) for line in settings.splitlines()) | {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{LINK_PORT}", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "SHALE_BLOB_CACHE": "0",
            "XDG_CACHE_HOME": str(self.work / "cache"), "XDG_STATE_HOME": str(self.work / "state")}
        # Blobs are put without the link: what is measured begins behind that.
        self.direct = dict(self.environment, AWS_ENDPOINT_URL=f"http://127.0.0.1:{STORE_PORT}")
        return self

    def __exit__(self, *_):
        self.stack.close()

    def traffic(self):
        """Bytes to the store and from it, so far."""
        self.link.send_signal(signal.SIGUSR1)
        return tuple(int(word) for word in self.link.stdout.readline().split())

    def shale(self, *words, environment=None):
        """A command's document."""
        out = output(self.lab.shale, *words, "--json", env=environment or self.environment)
        return json.loads(out) if out.strip() else {}

    @staticmethod
    def url(key):
        """Where a blob is."""
        return f"s3://bucket/{key.replace(', ', '-')}"


class Host:
    """A pool and its server."""

    def __init__(self, store, name):
        self.store, self.path, self.socket = store, store.work / name, store.work / f"{name}.sock"
        output(store.lab.shale, "init", self.path, "--capacity", "6G")
        words = [store.lab.shale, "serve", self.path, "--nbd", f"unix:{self.socket}", "--memory", "96M"]
        with open(store.work / "servers.log", "ab") as log:
            self.server = subprocess.Popen([str(word) for word in words], env=store.environment, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL)
        store.stack.callback(self.server.kill)
        said = b""
        while b"ready" not in said:
            if not select.select([self.server.stdout], [], [], READY_SECONDS_MAX)[0] or not (piece := os.read(self.server.stdout.fileno(), 65536)):
                raise SystemExit(f"paper-blobseer: the server of {name} does not come up: {said.decode()}")
            said += piece

    def uri(self, volume):
        """Over NBD."""
        return f"nbd+unix:///{volume}?socket={self.socket}"

    def image(self):
        """What the status says of the only image."""
        return self.store.shale("status", self.path)["images"][0]

    def end(self):
        """Stops the server and throws the pool away."""
        self.server.terminate()
        self.server.wait()
        self.server.stdout.close()
        shutil.rmtree(self.path)


def replays(uris, reads):
    """All at once: the seconds of each, and what it read."""
    started = [subprocess.Popen([sys.executable, "-B", str(ROOT / "tools/paper/replay.py"), uri, str(reads)], stdout=subprocess.PIPE, text=True) for uri in uris]
    done = [one.communicate()[0] for one in started]
    if any(one.returncode for one in started):
        raise SystemExit("paper-blobseer: a replay failed")
    return [json.loads(one)["seconds"] for one in done]


def machines(uris, accelerated, work):
    """Real ones, all at once: seconds until each is up."""
    words = [sys.executable, "-B", str(GUEST), "boot", "--memory", str(MEMORY_MIB), "--accelerator", accelerated, "--seconds-max", "3600"]
    started = [subprocess.Popen([*words, "--log", str(work / f"console-{number}"), uri], stdout=subprocess.PIPE, text=True) for number, uri in enumerate(uris)]
    done = [one.communicate()[0] for one in started]
    if any(one.returncode for one in started):
        raise SystemExit("paper-blobseer: a machine did not come up")
    return [json.loads(one)["up_s"] for one in done]


def deploy(store, key, count, pools, boot, table="boots", **fields):
    """`count` volumes of a blob in so many pools, `boot` of all at once, and a row of what that took."""
    store.lab.say(f"{fields['kind']}: {count} of {key} in {pools} pools")
    hosts = [Host(store, f"host-{number}") for number in range(pools)]
    up, down = store.traffic()
    began = time.monotonic()
    places = [(hosts[number % pools], f"vm{number}") for number in range(count)]
    for host, name in places:
        store.shale("clone", store.url(key), host.path, name)
    cloned = time.monotonic() - began
    seconds = boot([host.uri(name) for host, name in places])
    images = [host.image() for host in hosts]
    after = store.traffic()
    row = dict(fields, image=key, count=count, pools=pools, clone_s=round(cloned, 3), mean_s=round(mean(seconds), 3), last_s=max(seconds), down_mb=round((after[1] - down) / 1e6, 2),
               up_mb=round((after[0] - up) / 1e6, 2), groups=sum(one["fetched_groups"] for one in images), fetched_mb=round(sum(one["fetched_bytes"] for one in images) / 1e6, 2))
    store.lab.report.row(table, **row)
    for host in hosts:
        host.end()


def local(store, image, reads, run):
    """A file on this machine: what is left when nothing is fetched."""
    socket = store.work / "local.sock"
    server = subprocess.Popen(["qemu-nbd", "-r", "-t", "-f", "raw", "-x", "vm", "-k", str(socket), str(image)])
    while not socket.exists():
        if server.poll() is not None:
            raise SystemExit("paper-blobseer: qemu-nbd did not start")
        time.sleep(0.02)
    seconds = replays([f"nbd+unix:///vm?socket={socket}"], reads)[0]
    server.terminate()
    server.wait()
    socket.unlink(missing_ok=True)
    store.lab.report.row("boots", kind="replay", run=run, image="local file", count=1, mean_s=seconds, last_s=seconds)


def whole_first(store, key, reads, run):
    """The whole image is fetched, and booted from the file."""
    copy = store.work / "copy.img"
    up, down = store.traffic()
    began = time.monotonic()
    store.shale("blob", "get", store.url(key), copy, "--force")
    fetched = time.monotonic() - began
    after = store.traffic()
    local(store, copy, reads, run)
    last = store.lab.report.rows["boots"].pop()
    store.lab.report.row("boots", **dict(last, image=f"get {key}", clone_s=round(fetched, 3), down_mb=round((after[1] - down) / 1e6, 2), up_mb=round((after[0] - up) / 1e6, 2)))
    copy.unlink()


def record_profile(store, reads):
    """A boot of `auto` is traced, and its groups are put into one object of another blob."""
    store.shale("blob", "clone", store.url("auto"), store.url(PROFILED), environment=store.direct)
    host, file = Host(store, "traced"), store.work / "boot.json"
    store.shale("clone", store.url("auto"), host.path, "vm")
    tracer = subprocess.Popen([store.lab.shale, "trace", str(host.path), "vm", "--reads", str(file)], env=store.environment, stdout=subprocess.DEVNULL)
    # The trace is on when its server has it: a short wait is a part of any use of it.
    time.sleep(2)
    replays([host.uri("vm")], reads)
    tracer.send_signal(signal.SIGINT)
    tracer.wait()
    done = store.shale("blob", "optimize", store.url(PROFILED), "--profile", file, environment=store.direct)
    host.end()
    store.lab.report.note(f"profile: {done['groups']} groups, {done['moved']} of them in one object of {done['stored_bytes'] / 1e6:.1f} MB")


def push(store, image, megabytes):
    """Random blocks of 4 KiB change, and the snapshot goes up."""
    import nbd
    host, generator = Host(store, "pushing"), random.Random(1)
    store.shale("clone", store.url("auto"), host.path, "vm")
    disk, size = nbd.NBD(), image.stat().st_size
    disk.connect_uri(host.uri("vm"))
    groups = set()
    with open(image, "rb") as content:
        for _ in range(megabytes * MIB // BLOCK):
            # Other blocks of the image: data as machines write it.
            content.seek(generator.randrange(size // BLOCK) * BLOCK)
            at = generator.randrange(size // BLOCK) * BLOCK
            disk.pwrite(content.read(BLOCK), at)
            groups.add(at // GROUP)
    disk.flush()
    disk.shutdown()
    store.shale("snapshot", host.path, "vm@changed")
    up, down = store.traffic()
    began = time.monotonic()
    done = store.shale("push", host.path, "vm@changed", store.url("auto"), "--to", store.url("pushed"))
    seconds = time.monotonic() - began
    after = store.traffic()
    store.lab.report.row("push", changed_mb=megabytes, groups=done["groups"], touched=len(groups), as_stored=done["as_stored"], stored_mb=round(done["stored_bytes"] / 1e6, 2),
                         up_mb=round((after[0] - up) / 1e6, 2), down_mb=round((after[1] - down) / 1e6, 2), seconds=round(seconds, 2))
    host.end()


def is_zero(image, group):
    """Whether a group of the image is zeroes, which are never fetched."""
    image.seek(group * GROUP)
    return not image.read(GROUP).strip(b"\0")


def working_set(lab, image, reads):
    """What a boot reads, in blocks of 4 KiB that are not in groups of zeroes."""
    blocks, requests, total = set(), 0, 0
    for line in reads.read_text(encoding="ascii").splitlines()[1:]:
        _, event, _, offset, count = line.split(",")
        if event == "read":
            blocks.update(range(int(offset) // BLOCK, (int(offset) + int(count) + BLOCK - 1) // BLOCK))
            requests, total = requests + 1, total + int(count)
    groups = {block * BLOCK // GROUP for block in blocks}
    with open(image, "rb") as file:
        zero = {group for group in groups if is_zero(file, group)}
    unique = sum(block * BLOCK // GROUP not in zero for block in blocks)
    lab.report.row("reads", requests=requests, read_mb=round(total / 1e6, 2), unique_mb=round(unique * BLOCK / 1e6, 2), groups=len(groups - zero), groups_of_zeroes=len(zero),
                   image_mb=round(image.stat().st_size / 1e6, 1), allocated_mb=round(image.stat().st_blocks * 512 / 1e6, 1))


def image_of(lab):
    """(the image, the accelerator of its machines)."""
    # Ended from outside, it stops the store, the link and the servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    output(ROOT / "tools" / "setup", "guest")
    image = Path(output(GUEST, "build").strip().splitlines()[-1])
    return image, output(GUEST, "accelerator").strip()


def recorded(store, image, accelerated):
    """(seconds until a machine that boots from a file is up, what it read)."""
    reads, copy = store.work / "reads.csv", store.work / "machine.img"
    output("cp", "--sparse=always", image, copy)
    store.lab.say(f"a machine boots from a file ({accelerated})")
    up = json.loads(output(GUEST, "boot", copy, "--memory", MEMORY_MIB, "--accelerator", accelerated, "--seconds-max", "3600", "--reads", reads, "--log", store.work / "console"))["up_s"]
    copy.unlink()
    return up, reads


def put(store, image, key):
    """Puts the image with a compression."""
    store.lab.say(f"put {key}")
    return store.shale("blob", "put", store.url(key), image, "-o", f"compression={CODECS[key]}", environment=store.direct)


def measure(lab, how):
    """All of it."""
    image, accelerated = image_of(lab)
    lab.report.note(f"boots: machines have {MEMORY_MIB} MiB of memory, and {'run under KVM' if accelerated == 'kvm' else 'are emulated, for the processor runs no virtual machine'}")
    lab.report.note(f"boots: one link of {MBIT} Mbit/s for all hosts, each direction apart, with a round trip of {RTT_MS} ms; the store, the hosts and the link share the processors")
    with Store(lab) as store:
        up, reads = recorded(store, image, accelerated)
        lab.report.row("boots", kind=accelerated, run=1, image="local file", count=1, mean_s=up, last_s=up)
        working_set(lab, image, reads)
        for key in how["images"]:
            done = put(store, image, key)
            lab.report.row("blobs", image=key, stored_mb=round(done["stored_bytes"] / 1e6, 2), data_mb=round(done["bytes"] / 1e6, 2))
        record_profile(store, reads)
        for run in range(1, how["boot_runs"] + 1):
            local(store, image, reads, run)
            whole_first(store, "auto", reads, run)
            for key in [*how["images"], PROFILED]:
                for count in how["hosts"]:
                    deploy(store, key, count, count, lambda uris: replays(uris, reads), kind="replay", run=run)
            deploy(store, "auto", how["hosts"][-1], 1, lambda uris: replays(uris, reads), kind="replay", run=run)
        for key in [*how["images"], PROFILED] if not lab.quick else ["auto"]:
            for count in how["hosts"] if accelerated == "kvm" else [1]:
                deploy(store, key, count, count, lambda uris: machines(uris, accelerated, store.work), kind=accelerated, run=1)
        push(store, image, how["push_mb"])


def measure_near(lab, how):
    """Replays over a link with the latency of the paper's."""
    image, accelerated = image_of(lab)
    lab.report.note(f"near: as boots, with a round trip of {NEAR_MS} ms instead of {RTT_MS}")
    with Store(lab, NEAR_MS) as store:
        _, reads = recorded(store, image, accelerated)
        for key in how["images"]:
            put(store, image, key)
        for run in range(1, how["boot_runs"] + 1):
            for count in how["hosts"]:
                for key in how["images"]:
                    deploy(store, key, count, count, lambda uris: replays(uris, reads), table="near", kind="replay", run=run)


def show_near(lab, _how):
    """Figures 5a and 5b at the paper's latency."""
    report = lab.report
    report.heading(f"Figures 5a and 5b with a round trip of {NEAR_MS} ms")
    rows = report.table_of("near")
    images, counts = list(dict.fromkeys(r["image"] for r in rows)), sorted({r["count"] for r in rows})

    def against(field):
        raw = {n: middle(report.values("near", field, image="raw", count=n)) for n in counts}
        return {key: [(n, [value / raw[n] for value in report.values("near", field, image=key, count=n)]) for n in counts] for key in images}
    if "raw" in images:
        report.lines("near-5a", "replays of a boot: time relative to raw", against("mean_s"), "hosts", "times that of raw", logarithmic=True, rising=True, theirs={"theirs, lzo": 0.8, "theirs, bzip2": 1.3},
                     said="Theirs: figure 5a and section 4.4, by the text: LZO takes 20 % less than raw, BZIP2 30 % more, with a link for each host and chunks of 2 MB.")
        report.lines("near-5b", "replays of a boot: traffic relative to raw", against("down_mb"), "hosts", "times that of raw", logarithmic=True, theirs={"theirs, lzo": 0.5, "theirs, bzip2": 0.4},
                     said="Theirs: figure 5b and section 4.4, by the text: more than 50 % and more than 60 % less.")
    report.table(["hosts x blob, run", "s, mean", "s, the last", "s of the clones", "MB from the store"], [[f"{r['count']} x {r['image']}, {r['run']}", r["mean_s"], r["last_s"], r["clone_s"], r["down_mb"]] for r in rows])


def figure(report, image, count, field, pools=None, kind="replay"):
    """The median of a field."""
    return middle(runs(report, image, count, field, pools, kind))


def runs(report, image, count, field, pools=None, kind="replay"):
    """A field, run by run."""
    return report.values("boots", field, kind=kind, image=image, count=count, pools=count if pools is None else pools)


def against_raw(report, image, count, field):
    """A field of each run, relative to the median of raw."""
    raw = middle(runs(report, "raw", count, field))
    return [value / raw for value in runs(report, image, count, field)]


def only(report, image, count, run):
    """Seconds of the clones of one run."""
    return report.values("boots", "clone_s", kind="replay", image=image, count=count, pools=count, run=run)


def shown(report):
    """(blobs, numbers of hosts) that were measured."""
    rows = report.select("boots", kind="replay")
    images = dict.fromkeys(row["image"] for row in rows if row.get("pools"))
    return list(images), sorted({row["count"] for row in rows if row.get("pools")})


def show(lab, _how):
    """The figures 5a and 5b, and the goals of ours."""
    report = lab.report
    images, counts = shown(report)
    report.heading("Figure 5a: the disk's part of a boot, for all hosts")
    report.lines("figure-5a", "replays of a boot: seconds, mean of the hosts", {key: [(n, runs(report, key, n, "mean_s")) for n in counts] for key in images}, "hosts", "seconds",
                 logarithmic=True, rising=True)
    report.lines("figure-5a-relative", "replays of a boot: time relative to raw", {key: [(n, against_raw(report, key, n, "mean_s")) for n in counts] for key in images}, "hosts",
                 "times that of raw", logarithmic=True, rising=True, theirs={"theirs, lzo": 0.8, "theirs, bzip2": 1.3},
                 said="Theirs: figure 5a and section 4.4, by the text, 1 to 40 hosts with a link each and a latency of 0.1 ms: LZO takes 20 % less than raw, BZIP2 30 % more.")
    report.lines("figure-5a-clone", "time of the clones for all hosts, one after the other, by run",
                 {f"{key}, run {run}": [(n, only(report, key, n, run)) for n in counts] for key in ("raw", "auto") for run in sorted({r["run"] for r in report.table_of("boots")}) if only(report, key, counts[0], run)},
                 "hosts", "seconds", logarithmic=True, rising=True, said="Not in the paper. It is not in the times of boots.")
    report.heading("Figure 5b: traffic")
    report.lines("figure-5b", "replays of a boot: from the store, all hosts together", {key: [(n, runs(report, key, n, "down_mb")) for n in counts] for key in images}, "hosts", "MB",
                 logarithmic=True, rising=True, theirs={f"theirs, {key}": [(1, most / HOSTS), (HOSTS, most)] for key, most in TRAFFIC.items()},
                 said=f"Theirs: figure 5b and section 4.4, by the text: at {HOSTS} hosts raw close to 8 GB, LZO well below 4, BZIP2 about 3, and the growth is linear.")
    rows = []
    for count in counts:
        for key in images:
            seconds, down = (figure(report, key, count, field) for field in ("mean_s", "down_mb"))
            rows.append([f"{count} x {key}", seconds, figure(report, key, count, "last_s"), seconds / figure(report, "raw", count, "mean_s"), down, down / figure(report, "raw", count, "down_mb")])
    report.table(["hosts x blob", "s, mean", "s, the last", "of raw", "MB from the store", "of raw"], rows)
    report.heading("Real machines")
    found = [row for row in report.table_of("boots") if row["kind"] != "replay"]
    report.table(["machines x image", "processor", "s until up, mean", "MB from the store"], [[f"{row['count']} x {row['image']}", row["kind"], row["mean_s"], row.get("down_mb")] for row in found])
    report.heading("What a boot reads, and what the blobs take")
    read = report.table_of("reads")[-1]
    report.table(["requests", "MB read", "MB of different blocks", "groups of 128 KiB", "MB of the image", "MB of it in use"],
                 [[read[key] for key in ("requests", "read_mb", "unique_mb", "groups", "image_mb", "allocated_mb")]])
    report.table(["blob", "MB stored"], [[row["image"], row["stored_mb"]] for row in report.table_of("blobs")])
