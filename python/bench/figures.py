"""The measurements of tools/bench-python, inside its network namespace: prints progress, writes figures as JSON."""

import argparse
import io
import json
import os
import random
import shutil
import statistics
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PORT, RATE, MIB = 7970, "1gbit", 1 << 20


def start(work):
    """Starts the link and the server; the settings go to the environment, for clients and workers."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    words = [ROOT / "tools/objectstore", "start", "versitygw", work / "server", str(PORT)]
    out = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    os.environ.update(line.split("=", 1) for line in out.split())
    os.environ.update(no_proxy="127.0.0.1", XDG_CACHE_HOME=str(work / "cache"), XDG_STATE_HOME=str(work / "state"), SHALE_BLOB_CACHE="0")
    limit = ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", RATE, "burst", "256k", "latency", "100ms"]
    subprocess.run(limit, check=True)


def seconds(work):
    """Of one call."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def medians(runs, prepare=lambda: None, **ways):
    """Returns {way: median seconds}; the ways take turns, so that other load on the machine affects all of them."""
    found = {name: [] for name in ways}
    for _ in range(runs):
        for name, work in ways.items():
            prepare()
            found[name].append(seconds(work))
    return {name: statistics.median(times) for name, times in found.items()}


class Bench:
    """File systems, and the figures so far."""

    def __init__(self, quick, text):
        import fsspec

        self.quick, self.runs, self.text = quick, 1 if quick else 3, text
        client = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "client_kwargs": {"region_name": "us-east-1"}}
        self.raw = fsspec.filesystem("s3", skip_instance_cache=True, **client)
        self.ours = fsspec.filesystem("shale+s3", skip_instance_cache=True)
        self.figures = []

    def add(self, figure, what, ways, us, other, goal=None):
        """Returns a figure: the other's seconds divided by ours."""
        ratio = round(ways[other] / ways[us], 2)
        shown = {name: round(value, 3) for name, value in ways.items()}
        held = None if goal is None else ratio >= goal
        self.figures.append({"figure": figure, "what": what, "measured": ratio, "goal": "" if goal is None else f">= {goal}",
                             "held": held, "seconds": shown})
        print(f"{figure} {what}: {ratio} {shown}", flush=True)

    def store(self, name, data):
        """Stores the same bytes as an object and as a blob."""
        self.raw.pipe(f"bucket/raw-{name}", data)
        self.ours.pipe(f"bucket/{name}", data)
        return f"bucket/raw-{name}", f"bucket/{name}"

    def cold(self):
        """Drops the frames that earlier runs have decoded, in each open blob of the process; connects, as s3fs has."""
        from shale import blob as blobs

        blobs._STORES.clear()
        self.ours.exists("bucket/none")

    def random_ranges(self):
        """G16: 1000 ranges of 4 KiB, one call, one process."""
        there, here = self.store("text", self.text)
        starts = [random.Random(seed).randrange(len(self.text) - 4096) for seed in range(1000)]
        ends = [start + 4096 for start in starts]

        def ours():
            got = self.ours.cat_ranges([here] * 1000, starts, ends)
            assert got[17] == self.text[starts[17]:ends[17]]

        def s3fs():
            got = self.raw.cat_ranges([there] * 1000, starts, ends)
            assert got[17] == self.text[starts[17]:ends[17]]

        ways = medians(self.runs, self.cold, ours=ours, s3fs=s3fs)
        self.add("G16", f"1000 ranges of 4 KiB of {len(self.text) >> 20} MiB text, against s3fs", ways, "ours", "s3fs", 3)

    def whole(self):
        """Compares a sequential read with the link's own time for the raw bytes."""
        there, here = "bucket/raw-text", "bucket/text"

        def read(files, path):
            with files.open(path, block_size=8 * MIB) as file:
                while file.read(8 * MIB):
                    pass

        def ours():
            read(self.ours, here)

        ways = medians(self.runs, self.cold, ours=ours, s3fs=lambda: read(self.raw, there))
        ways["raw"] = len(self.text) / (125e6 / 1.05)
        self.add("read", "all of the text through a file, against s3fs", ways, "ours", "s3fs")
        self.add("read", "the same, against the raw object at the link's rate", ways, "ours", "raw")

    def netcdf(self):
        """xarray with h5netcdf: a few time steps of a field."""
        import numpy as np
        import xarray as xr

        steps = 60 if self.quick else 240
        rng = np.random.default_rng(4)
        field = np.round(np.cumsum(rng.normal(size=(steps, 300, 300)), axis=2), 1).astype("f4")
        out = io.BytesIO()
        data = xr.Dataset({"t": (("time", "y", "x"), field)}, {"time": np.arange(steps)})
        data.to_netcdf(out, engine="h5netcdf", encoding={"t": {"chunksizes": (1, 300, 300)}})
        there, here = self.store("field.nc", out.getvalue())

        def read(files, path):
            with files.open(path) as file, xr.open_dataset(file, engine="h5netcdf") as opened:
                got = opened.isel(time=slice(steps // 3, steps // 3 * 2)).t.load()
                assert np.array_equal(got.values, field[steps // 3:steps // 3 * 2])

        def ours():
            read(self.ours, here)

        ways = medians(self.runs, self.cold, ours=ours, s3fs=lambda: read(self.raw, there))
        ways["raw"] = len(out.getvalue()) / 3 / (125e6 / 1.05)
        size = f"{len(out.getvalue()) >> 20} MiB NetCDF"
        self.add("netcdf", f"a third of the steps of a {size}, against s3fs", ways, "ours", "s3fs")
        self.add("netcdf", "the same, against its raw bytes at the link's rate", ways, "ours", "raw")

    def parquet(self):
        """pandas: two columns of a table."""
        import numpy as np
        import pandas as pd

        rows = 500_000 if self.quick else 3_000_000
        rng = np.random.default_rng(3)
        frame = pd.DataFrame({"id": np.arange(rows), "value": rng.normal(size=rows), "kind": rng.choice(["red", "green", "blue"], rows),
                              "noise": rng.integers(0, 1 << 60, rows)})
        for compression in ("snappy", None):
            out = io.BytesIO()
            frame.to_parquet(out, row_group_size=rows // 10, index=False, compression=compression)
            there, here = self.store(f"table-{compression}.parquet", out.getvalue())

            def read(files, path):
                got = pd.read_parquet(path, columns=["id", "kind"], filesystem=files)
                assert len(got) == rows

            def ours(path=here):
                    read(self.ours, path)

            ways = medians(self.runs, self.cold, ours=ours, s3fs=lambda path=there: read(self.raw, path))
            what = f"two columns of a {len(out.getvalue()) >> 20} MiB parquet ({compression or 'not compressed inside'}), against s3fs"
            self.add("parquet", what, ways, "ours", "s3fs")

    def ingest(self, work):
        """G17: Dask with two workers against the program."""
        import distributed

        import shale
        import shale.dask

        source = work / "source"
        source.write_bytes(self.text)
        program = os.environ["SHALE"]
        name = iter(range(100))

        def by_program():
            words = [program, "blob", "put", f"s3://bucket/cli-{next(name)}", str(source)]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
            with distributed.Client(cluster) as client:
                client.run(lambda: __import__("shale"))

                def by_dask():
                    target = f"shale+s3://bucket/dask-{next(name)}"
                    parts = max(4 * MIB, len(self.text) // 8)
                    shale.dask.ingest(f"file://{source}", target, client=client, part_bytes=parts, state=work / "jobs")
                    assert len(shale.Blob(target).versions()) == 1

                ways = medians(self.runs, ours=by_dask, program=by_program)
        self.add("G17", f"ingest of {len(self.text) >> 20} MiB by two Dask workers, against `shale blob put`", ways, "ours", "program", 0.9)


def text_of(quick):
    """Returns text that compresses like source code."""
    names = subprocess.run(["git", "ls-files", "crates", "docs"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    pieces = [(ROOT / name).read_bytes() for name in names]
    size, rng, out = (48 if quick else 256) * MIB, random.Random(1), []
    total = 0
    while total < size:
        out.append(rng.choice(pieces))
        total += len(out[-1])
    return b"".join(out)[:size]


def main():
    """All of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    start(options.work)
    try:
        bench = Bench(options.quick, text_of(options.quick))
        bench.random_ranges()
        bench.whole()
        bench.netcdf()
        bench.parquet()
        bench.ingest(options.work)
    finally:
        subprocess.run([ROOT / "tools/objectstore", "stop", options.work / "server"], check=False)
        shutil.rmtree(options.work / "server", ignore_errors=True)
    options.out.write_text(json.dumps(bench.figures), encoding="utf-8")


if __name__ == "__main__":
    main()
