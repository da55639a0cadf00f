"""Shares that are salvaged: every file that does not come out as it was is named, with the map and without it."""

import json
import random
import shutil

from harness import Pool, test
from harness.pool import BINARY
from system.share_damage import contents

LOSSY = 12
BLOCK = 4096
ROUNDS = 8


def differing(expected, back):
    """Paths of the files that are not as they were."""
    return {path for path, content in expected.items() if back.get(path) != content}


@test(seconds_max=900)
def salvage_names_the_files_that_are_lost(t):
    """64 KiB of the log are zeroed at several places: salvage names each file of the share and of its snapshot that differs, with the map and without"""
    chance = random.Random(7)
    pool = Pool(t, capacity="96M")
    source = t.dir / "source"
    source.mkdir()
    for number in range(100, 260):
        (source / f"file{number}").write_bytes(chance.randbytes(3000 + number * 40))
    pool.shale("import", "home", source, "--share")
    expected = contents(source)
    pool.shale("snapshot", "home@s")
    written = (pool.path / "data").read_bytes()
    places = [at for at in range(0, len(written) - (64 << 10), 64 << 10) if at >= 1 << 20 and any(written[at : at + (64 << 10)])]
    t.expect(len(places) > ROUNDS, f"only {len(places)} places hold anything")
    lost = 0
    for round_, at in enumerate(chance.sample(places, ROUNDS)):
        copy = t.dir / f"copy{round_}"
        shutil.copytree(pool.path, copy)
        with open(copy / "data", "r+b") as file:
            file.seek(at)
            file.write(bytes(64 << 10))
        for old in (copy, copy / "data"):
            new = t.dir / "new"
            shutil.rmtree(new, ignore_errors=True)
            told = t.run(BINARY, "salvage", old, "--into", new, "--capacity", "200M", status=None)
            for name in ("home", "home@s"):
                exported = t.dir / "back"
                shutil.rmtree(exported, ignore_errors=True)
                said = told.stdout + Pool.at(t, new).shale("export", name, exported, status=None).stdout
                wrong = differing(expected, contents(exported))
                lost += len(wrong)
                silent = {path for path in wrong if path not in said}
                # Names that are lost with their pages are counted by the repair of the tree.
                if "rebuilt" in told.stdout:
                    silent = set()
                t.expect(not silent, f"{name} of {old.name}, zeroes at {at}: not named: {sorted(silent)[:5]}: {told.stdout[-2000:]}")
                t.expect(not wrong or told.returncode == LOSSY, f"zeroes at {at}: exit code {told.returncode}, {len(wrong)} files differ")
        shutil.rmtree(copy)
    t.expect(lost > 20, f"only {lost} files were lost: nothing was tested")
    t.note(f"{lost} files lost in {ROUNDS} damages, all named")


@test(seconds_max=300)
def salvage_asks_the_map_without_a_superblock(t):
    """both copies of the superblock and one of the inventory are gone: the log tells which pool it is, the map what it held"""
    pool = Pool(t, capacity="128M", extent="256K")
    image = t.dir / "image"
    image.write_bytes(random.Random(3).randbytes(8 << 20))
    pool.shale("import", "v", image)
    pool.shale("snapshot", "v@s")
    data = pool.path / "data"
    size = data.stat().st_size
    with open(data, "r+b") as file:
        file.write(bytes(64 << 10))
        file.seek(size // (64 << 10) * (64 << 10) - (1 << 20))
        file.write(bytes(1 << 20))
    report = json.loads(pool.shale("salvage", "--into", t.dir / "new", "--capacity", "128M", "--json").stdout)
    t.expect(report["by_map"] and not report["lossy"], f"the report: {report}")
    new = Pool.at(t, t.dir / "new")
    new.shale("export", "v@s", t.dir / "back")
    t.equal((t.dir / "back").read_bytes(), image.read_bytes(), "the snapshot")
