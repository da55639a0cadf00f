"""The trace of a share names the files whose units were compressed."""

import csv
import os
import subprocess

from harness import EXIT, Pool, data, test
from harness.pool import BINARY

NAMES = ["plain", "dir/with, a comma and \"quotes\"", "dir/large"]
MIB = 1 << 20


@test(seconds_max=300)
def a_trace_names_files(t):
    """shale trace tells the path and the byte in the file of each unit that a mounted share writes, names that need quotes included"""
    pool = Pool(t, capacity="256M")
    pool.shale("create", "home", "--share", "-o", "compression=auto")
    server = pool.serve(shares=True)
    share = server.share("home")
    (share / "dir").mkdir()
    found = t.dir / "trace.csv"
    with open(found, "wb") as out:
        tracer = subprocess.Popen([str(BINARY), "trace", str(pool.path), "--idle", "5"], stdout=out)
    t.defer(tracer.kill)
    t.wait_for(lambda: found.stat().st_size > 0 or tracer.poll() is not None, "the head of the trace")
    # Each record is for one trace only.
    refused = pool.shale("trace", "--limit", "1", status=EXIT["in-use"]).stderr
    t.expect(f"process {tracer.pid}" in refused, f"the trace in the way is not named: {refused}")
    content = data.mixed_file(t.dir / "real", 4 * MIB).read_bytes()
    sizes = {}
    for name, size in zip(NAMES, [MIB // 4, 100_000, 3 * MIB]):
        with open(share / name, "wb") as file:
            file.write(content[:size])
            os.fsync(file.fileno())
        sizes[f"home/{name}"] = size
    t.equal(tracer.wait(timeout=120), 0, "exit status of trace")
    with open(found, newline="", encoding="utf-8") as file:
        units = list(csv.DictReader(file))
    lines = [line for line in units if "/" in line["path"]]
    # The third file is so large that a table leads to its end.
    own = {line["path"] for line in units if line not in lines}
    t.expect(own and own <= {"home (names)", "home (tables)", "home (not known)"}, f"units of the share's own: {sorted(own)}")
    # Behind a look that took long the next files are told by their numbers.
    named = [line for line in lines if "/#" not in line["path"]]
    t.expect(named and {line["path"] for line in named} <= set(sizes), f"files in the trace: {sorted({line['path'] for line in named})}")
    t.expect(f"home/{NAMES[0]}" in {line["path"] for line in named}, f"files in the trace: {sorted({line['path'] for line in named})}")
    for line in named:
        at, raw = int(line["file_offset"]), int(line["raw_bytes"])
        t.expect(at % 4096 == 0 and at < sizes[line["path"]] and raw > 0, f"a unit of no such file: {line}")
    server.stop()
    pool.check()
