"""Bounds that take long to reach: only in `make soak`."""

import json
import threading

from harness import Pool, test


@test(seconds_max=1800, soak=True)
def soak_memory_bound(t):
    """random writes over a volume of 100 GiB: resident memory stays within 1.3 x --memory + 64 MiB"""
    budget = 256 << 20
    allowed = int(1.3 * budget) + (64 << 20)
    pool = Pool(t, capacity="30G")
    pool.create("vol", "100G")
    server = pool.serve(memory="256M")
    highest = 0
    ended = threading.Event()

    def watch():
        nonlocal highest
        while not ended.wait(0.2):
            highest = max(highest, server.rss_bytes())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    out = t.out("fio", "--name=spread", "--ioengine=nbd", f"--uri={server.uri('vol')}", "--rw=randwrite", "--bs=4k", "--size=100G",
                "--io_size=16G", "--iodepth=32", "--norandommap", "--random_generator=lfsr", "--buffer_compress_percentage=60", "--refill_buffers",
                "--output-format=json", "--runtime=600", quiet=True)
    ended.set()
    watcher.join()
    written = json.loads(out[out.index("{"):])["jobs"][0]["write"]["io_bytes"]
    t.expect(written > 1 << 30, f"fio wrote only {written} bytes")
    t.expect(highest <= allowed, f"{highest >> 20} MiB resident, allowed {allowed >> 20} MiB")
    t.note(f"{written >> 20} MiB written at random; at most {highest >> 20} MiB resident of {allowed >> 20} allowed")
    server.stop()
    pool.check()
