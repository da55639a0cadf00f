"""Bounds of memory. Those that take long to reach are only in `make soak`."""

import concurrent.futures
import contextlib
import json
import shutil
import tempfile
import threading
from pathlib import Path

from harness import EXIT, Pool, test
from harness.pool import Server


@contextlib.contextmanager
def peak_memory(server, every_s, of=Server.rss_bytes):
    """Watches memory of a server, resident memory by default; the one item of what it gives is the highest that was seen."""
    peak, ended = [0], threading.Event()

    def watch():
        while not ended.wait(every_s):
            peak[0] = max(peak[0], of(server))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def held_bytes_max(budget):
    """Anonymous memory and files in memory that a server of one share may hold, without NBD clients and rings. `budget`: MiB."""
    return int(1.25 * (budget << 20)) + (40 << 20)


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


def load_of_share(t, share):
    """Work for a small server, several programs at once: small files made, listed and read, a log and pages of a database, large files."""
    small = share / "small"
    make = (f"mkdir {small} && cd {small} && for d in $(seq 40); do mkdir $d; for f in $(seq 50); do seq $d $((d * f % 900 + 200)) > $d/$f; done; done; "
            f"sync {small}; ls -lR > {t.dir}/list; grep -r 'no such words' . > {t.dir}/found; test $? = 1")
    fio = ["fio", f"--directory={share}", "--ioengine=psync", "--buffer_compress_percentage=60", "--refill_buffers", "--minimal", "--fallocate=none"]
    programs = [
        ["sh", "-c", make],
        [*fio, "--name=pages", "--rw=randrw", "--bs=8k", "--fdatasync=8", "--size=32M", "--io_size=24M", "--numjobs=4"],
        [*fio, "--name=log", "--rw=write", "--bs=8k", "--fdatasync=1", "--size=16M"],
        [*fio, "--name=large", "--rw=rw", "--bs=1m", "--size=64M", "--io_size=96M", "--numjobs=2"],
    ]
    with concurrent.futures.ThreadPoolExecutor() as runs:
        list(runs.map(lambda words: t.run(*words, quiet=True, seconds_max=900), programs))


def held_by_small_server(t, budget):
    """Most memory that a server of a share with `--memory BUDGET` MiB held: anonymous and files in memory. It must do all its work within that."""
    pool = Pool(t, name=f"pool{budget}", capacity="2G")
    pool.shale("create", "home", "--share")
    memory = Path(tempfile.mkdtemp(prefix="shale-test-", dir="/dev/shm"))
    t.defer(shutil.rmtree, memory, ignore_errors=True)
    server = pool.serve(memory=f"{budget}M", shares=True, standby=memory)
    with peak_memory(server, 0.05, Server.held_bytes) as peak:
        load_of_share(t, server.share("home"))
    status = pool.status()
    t.equal((status["memory_budget_bytes"], status["health"]), (budget << 20, "ok"), "budget and health")
    t.expect(status["standby"], "acknowledged writes survive the server")
    server.stop()
    pool.check()
    return peak[0]


@test(seconds_max=1800)
def memory_of_a_small_server(t):
    """--memory 32M, the least, under several programs on a share: anonymous memory and files in memory stay bounded"""
    Pool(t, name="none", capacity="64M").shale("serve", "--shares", t.dir, "--memory", "31M", status=EXIT["usage"])
    held, allowed = held_by_small_server(t, 32), held_bytes_max(32)
    t.expect(held <= allowed, f"{held >> 20} MiB held, allowed {allowed >> 20} MiB")
    t.note(f"--memory 32M: at most {held / (1 << 20):.1f} MiB held of {allowed >> 20} allowed")


@test(seconds_max=3600, soak=True)
def soak_memory_of_small_servers(t):
    """the same with 64M, 128M and 256M"""
    for budget in [64, 128, 256]:
        held, allowed = held_by_small_server(t, budget), held_bytes_max(budget)
        t.expect(held <= allowed, f"--memory {budget}M: {held >> 20} MiB held, allowed {allowed >> 20} MiB")
        t.note(f"--memory {budget}M: at most {held / (1 << 20):.1f} MiB held of {allowed >> 20} allowed")
