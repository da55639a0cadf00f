"""A scrub of a pool under a light write load covers what was written before it began."""

import json
import random

from harness import Pool, test
from harness.pool import EXIT
from harness.records import RECORD_BYTES, Ledger
from system.crash import SLOTS, NbdVolume

PIECE = 64


@test(seconds_max=300)
def scrub_covers_what_no_checkpoint_has_counted(t):
    """data written a moment ago is damaged below, while a client writes: scrub names it, reads fail, status is damaged"""
    chance = random.Random(5)
    pool = Pool(t, capacity="1G", extent="256K")
    pool.create("load", SLOTS * RECORD_BYTES)
    image = t.dir / "image"
    image.write_bytes(chance.randbytes(16 << 20))
    server = pool.serve()
    door = NbdVolume(server, "load")
    t.defer(door.close)
    ledger = Ledger(SLOTS)
    writer = door.writer(ledger, 0.1)
    writer.start()
    t.expect(writer.wait_acknowledged(100), f"the load: {writer.error}")
    pool.shale("import", "v", image)
    content, stored, hit = image.read_bytes(), (pool.path / "data").read_bytes(), 0
    with open(pool.path / "data", "r+b") as file:
        for at in (1_000_000, 7_000_000, 13_000_000):
            place = stored.find(content[at : at + PIECE])
            if place > 0:
                file.seek(place)
                file.write(b"X" * PIECE)
                hit += 1
    t.expect(hit == 3, f"{hit} of 3 places were found in the data file")
    report = json.loads(pool.shale("scrub", "--rate", "max", "--restart", "--json", status=EXIT["corrupt"]).stdout)
    t.expect(report["found"] >= hit and report["bytes"] >= len(content), f"what the scrub verified: {report}")
    t.equal(pool.status()["health"], "damaged", "the health")
    t.expect(writer.wait_acknowledged(50), f"the load: {writer.error}")
    server.kill()
    writer.join(60)
