"""The metadata directory is lost after a kill -9: everything that was flushed comes out of the data file alone."""

import json
import random
import shutil

from harness import Pool, test
from harness.pool import BINARY
from harness.records import RECORD_BYTES, Ledger
from system.crash import MEMORY, SLOTS, NbdVolume, seed_of_run


@test(seconds_max=1200)
def salvage_after_kill(t):
    """kill -9 under a writer, with snapshots and a clone; the map is lost; every record that was durable is salvaged"""
    seed = seed_of_run(t)
    chance = random.Random(seed)
    pool = Pool(t, capacity="1G", extent="256K")
    pool.create("vol", SLOTS * RECORD_BYTES)
    ledger = Ledger(SLOTS)
    for number in range(3):
        server = pool.serve(memory=MEMORY)
        door = NbdVolume(server, "vol")
        t.defer(door.close)
        ledger.audit(door.read)
        writer = door.writer(ledger, chance.random())
        writer.start()
        t.expect(writer.wait_acknowledged(chance.choice([500, 2000, 5000])), f"round {number}: {writer.error}")
        pool.shale("snapshot", f"vol@s{number}")
        if number == 1:
            pool.shale("clone", "vol@s1", "copy")
        t.expect(writer.wait_acknowledged(chance.choice([50, 1000])), f"round {number}: {writer.error}")
        server.kill()
        writer.join(60)
        door.close()
    shutil.rmtree(pool.path / "map")
    (pool.path / "pool.json").unlink()
    new = t.dir / "new"
    report = json.loads(t.run(BINARY, "--json", "salvage", pool.path, "--into", new, "--capacity", "1G").stdout)
    names = {volume["name"] for volume in report["volumes"]}
    t.equal(names, {"vol", "vol@s0", "vol@s1", "vol@s2", "copy"}, "volumes and snapshots")
    t.expect(not report["lossy"], f"something was lost: {report}")
    salvaged = Pool.at(t, new)
    server = salvaged.serve(memory=MEMORY)
    door = NbdVolume(server, "vol")
    t.defer(door.close)
    # The data file alone is salvaged: what was only in the standby memory of the killed server is not in it.
    beyond = ledger.audit(door.read, answered=False)
    door.close()
    server.stop()
    salvaged.check()
    t.note(f"{ledger.acknowledged} records durable, all salvaged, {beyond} newer ones too; seed {seed}")
