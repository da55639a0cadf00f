"""Jobs of a server: long work in the background beside clients that write, and after kill -9 in the middle of it."""

import json
import os
import random
import signal
import subprocess
import time

from harness import EXIT, Pool, data, test
from harness.context import digest
from harness.pool import BINARY

# A job that has not changed by then never will, not even on a machine that is overloaded.
CHANGE_SECONDS_MAX = 300
EXIT_INTERRUPTED = 130


def job(pool, number):
    """A job as the list has it; None: the list has none of that number."""
    jobs = json.loads(pool.shale("jobs", "--json", quiet=True).stdout)
    return next((job for job in jobs if job["id"] == number), None)


def numbers(pool):
    """The numbers of all jobs."""
    return [job["id"] for job in json.loads(pool.shale("jobs", "--json", quiet=True).stdout)]


def awaited(t, pool, number, is_so):
    """The job, once it is as the caller wants it."""
    end = time.monotonic() + CHANGE_SECONDS_MAX
    while True:
        now = job(pool, number)
        if now and is_so(now):
            return now
        t.expect(time.monotonic() < end, f"job {number} stays {now}")
        time.sleep(0.05)


def overwrite(file, copy, count, seed, block=4096):
    """Writes the same blocks at the same places of a volume and of a copy of it."""
    places = random.Random(seed)
    size = os.path.getsize(copy)
    with open(file, "r+b", buffering=0) as volume, open(copy, "r+b") as own:
        for _ in range(count):
            place = places.randrange(size // block) * block
            content = places.randbytes(block // 2) + bytes(block // 2)
            own.seek(place)
            own.write(content)
            os.pwrite(volume.fileno(), content, place)
        os.fsync(volume.fileno())


@test()
def job_beside_writers(t):
    """a recompression in the background beside a writer: paused, resumed, killed with its server, and done by the next one: the same bytes, fewer of them"""
    source = t.dir / "source"
    data.mixed_file(source, 24 << 20)
    pool = Pool(t, capacity="512M")
    pool.shale("import", "vol", source, "-o", "compression=lz4")
    server = pool.serve(mount=True)
    slowly = ["recompress", "vol", "--mode", "archive", "--rate", "64K", "--background", "--json"]
    begun = json.loads(pool.shale(*slowly).stdout)
    t.equal((begun["id"], begun["kind"], begun["target"], begun["state"]), (1, "recompress", "vol", "running"), "the job")
    awaited(t, pool, 1, lambda job: job["bytes_done"] > 0)
    overwrite(server.file("vol"), source, 100, seed=1)

    pool.shale("jobs", 1, "--pause")
    paused = job(pool, 1)
    overwrite(server.file("vol"), source, 100, seed=2)
    pool.shale("snapshot", "vol@s")
    refused = pool.shale("recompress", "vol", status=EXIT["in-use"]).stderr
    t.expect("by job 1" in refused and "'shale jobs " in refused, f"the job in the way is not named: {refused}")
    # Nothing that is looked at for this is kept locked by the first one's slices.
    pool.shale("recompress", "vol", "no/file", status=EXIT["usage"])
    still = job(pool, 1)
    t.equal((still["state"], still["bytes_done"]), ("paused", paused["bytes_done"]), "a paused job beside writers")
    pool.shale("jobs", 1, "--resume")
    awaited(t, pool, 1, lambda job: job["bytes_done"] > paused["bytes_done"])

    watcher = subprocess.Popen([BINARY, "jobs", pool.path, "1"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    t.defer(watcher.kill)
    t.expect(watcher.stderr.readline().startswith("job 1 (recompress vol): recompressing "), "the watcher shows nothing")
    overwrite(server.file("vol"), source, 50, seed=3)
    server.kill()
    said = watcher.communicate()[1]
    t.equal(watcher.returncode, EXIT["io"], f"exit status of a watcher whose server was killed; it said: {said}")
    t.expect("watching job 1" in said, f"it does not say what it was at: {said}")

    server = pool.serve(mount=True)
    t.equal(json.loads(pool.shale("jobs", "--json").stdout), [], "jobs of a new server")
    t.equal(digest(server.file("vol")), digest(source), "sha256 after kill -9")
    t.equal(json.loads(pool.shale("recompress", "vol", "--mode", "archive", "--report", "--json").stdout)["finished"], False,
            "the recompression that was killed")
    # A terminal that is closed ends the command that started a job, and the job with it.
    started = subprocess.Popen([BINARY, *map(str, [slowly[0], pool.path, *slowly[1:4], "--rate", "64K"])], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    t.defer(started.kill)
    [number] = t.wait_for(lambda: numbers(pool), "the job of the command")
    t.expect(number > 1, "the number of a job of the server before is used again")
    awaited(t, pool, number, lambda job: job["state"] == "running")
    started.send_signal(signal.SIGHUP)
    t.equal(started.wait(), EXIT_INTERRUPTED, "exit status after SIGHUP")
    t.equal(job(pool, number)["state"], "cancelled", "the job of a command that got SIGHUP")

    begun = json.loads(pool.shale("recompress", "vol", "--mode", "archive", "--rate", "max", "--background", "--json").stdout)
    t.equal(begun["id"], number + 1, "the next number")
    done = json.loads(pool.shale("jobs", number + 1, "--json").stdout)
    made = done["result"]["recompressed"]
    t.equal((done["state"], made["finished"]), ("done", True), "the job that was watched to its end")
    t.expect(0 < made["after_bytes"] < made["before_bytes"], f"nothing became smaller: {made}")
    t.equal(digest(server.file("vol")), digest(source), "sha256 of the recompressed volume")
    server.stop()
    pool.check()
