"""Bounds of memory. Those that take long to reach are only in `make soak`."""

import contextlib
import json
import threading

from harness import Pool, test


@contextlib.contextmanager
def peak_memory(server, every_s):
    """Watches resident memory of a server; the one item of what it gives is the highest that was seen."""
    peak, ended = [0], threading.Event()

    def watch():
        while not ended.wait(every_s):
            peak[0] = max(peak[0], server.rss_bytes())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


@test(seconds_max=1800, soak=True)
def soak_memory_bound(t):
    """random writes over a volume of 100 GiB: resident memory stays within 1.3 x --memory + 64 MiB"""
    budget = 256 << 20
    allowed = int(1.3 * budget) + (64 << 20)
    pool = Pool(t, capacity="30G")
    pool.create("vol", "100G")
    server = pool.serve(memory="256M")
    with peak_memory(server, 0.2) as peak:
        out = t.out("fio", "--name=spread", "--ioengine=nbd", f"--uri={server.uri('vol')}", "--rw=randwrite", "--bs=4k", "--size=100G",
                    "--io_size=16G", "--iodepth=32", "--norandommap", "--random_generator=lfsr", "--buffer_compress_percentage=60", "--refill_buffers",
                    "--output-format=json", "--runtime=600", quiet=True)
    highest = peak[0]
    written = json.loads(out[out.index("{"):])["jobs"][0]["write"]["io_bytes"]
    t.expect(written > 1 << 30, f"fio wrote only {written} bytes")
    t.expect(highest <= allowed, f"{highest >> 20} MiB resident, allowed {allowed >> 20} MiB")
    t.note(f"{written >> 20} MiB written at random; at most {highest >> 20} MiB resident of {allowed >> 20} allowed")
    server.stop()
    pool.check()


@test()
def memory_with_standby(t):
    """NBD clients with much in flight: resident memory, the standby file included, stays within the limit that OPERATIONS gives for --memory 64M"""
    budget = 64 << 20
    pool = Pool(t, capacity="2G")
    pool.create("vol", "8G")
    server = pool.serve(memory="64M")
    standby = json.loads(pool.shale("status", "--json").stdout)["standby_bytes"]
    t.expect(0 < standby <= budget // 4, f"the standby file has {standby} bytes of a budget of {budget}")
    # 64 MiB for the clients of NBD.
    allowed = int(1.3 * budget) + (64 << 20) + budget // 4 + (64 << 20)
    with peak_memory(server, 0.1) as peak:
        t.run("fio", "--name=spread", "--ioengine=nbd", f"--uri={server.uri('vol')}", "--rw=randwrite", "--bs=1m", "--size=8G", "--io_size=256M",
              "--iodepth=64", "--numjobs=4", "--norandommap", "--buffer_compress_percentage=60", "--refill_buffers", "--output-format=json")
    highest = peak[0]
    t.expect(highest <= allowed, f"{highest >> 20} MiB resident, allowed {allowed >> 20} MiB")
    t.note(f"at most {highest >> 20} MiB resident of {allowed >> 20} allowed, {standby >> 20} MiB of standby file")
    server.stop()
    pool.check()
