"""Shares in a damaged pool: what is named, what is still read, what is mended and salvaged."""

import array
import errno
import fcntl
import json
import os
import re
import struct
import subprocess
import termios

from harness import Pool, damage, data, test
from harness.context import tree_digest
from harness.pool import BINARY, EXIT

LOSSY = 12
EXTENT = 1 << 20
BLOCK = 4096
# The longest content that the record of an inode holds.
RECORD = 512


def flip(pool, every, at=333333, first=2):
    """Flips a bit in the middle of each so manieth extent that holds something there; returns how many."""
    path = pool.path / "data"
    flipped = 0
    with open(path, "r+b") as file:
        for extent in range(first, path.stat().st_size // EXTENT, every):
            file.seek(extent * EXTENT + at)
            byte = file.read(1)
            if byte and byte != b"\0":
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 0x10]))
                flipped += 1
    return flipped


def is_as_written(found, expected, rounded_up):
    """Whether a file has its content; one whose record was built anew may end with the zeroes of its last block."""
    if not rounded_up:
        return found == expected
    return found[: len(expected)] == expected and len(found) - len(expected) < BLOCK and not found[len(expected) :].strip(b"\0")


def read_all(t, directory, expected, rounded_up=()):
    """Reads every file; returns the paths that give an error. All else must be as expected."""
    failed = set()
    for path, content in expected.items():
        try:
            with open(directory / path, "rb") as file:
                found = file.read()
        except OSError as error:
            t.equal(error.errno, errno.EIO, f"the error of {path}")
            failed.add(path)
            continue
        t.expect(is_as_written(found, content, path in rounded_up), f"{path} shows bytes that were not written")
    return failed


def rounded_up_by(repair, inodes):
    """Those of the inodes that a repair says it built anew, with the data up to the end of the last block; all, if it lists only some."""
    if repair["problems_total"] > len(repair["problems"]):
        return inodes
    told = re.compile(r"means inode (\d+), .* with its data, up to the end of the last block")
    return inodes & {int(found[1]) for problem in repair["problems"] if (found := told.search(problem["detail"]))}


def contents(directory):
    """Relative path -> bytes of every file."""
    return {str(path.relative_to(directory)): path.read_bytes()
            for path in directory.rglob("*") if path.is_file() and not path.is_symlink()}


@test(seconds_max=900)
def damaged_files_of_a_share(t):
    """flipped bytes under a share: check and scrub name paths, reading fails there only, salvage gives the rest byte for byte"""
    pool = Pool(t, capacity="1G")
    source = t.dir / "source"
    data.source_tree(source, 40 << 20)
    expected = contents(source)
    pool.shale("import", "home", source, "--share")
    # The names are older than what is damaged behind them.
    flipped = flip(pool, 3)
    t.expect(flipped > 2, f"only {flipped} bytes to flip")
    report = json.loads(pool.check(status=EXIT["corrupt"]))
    found = [problem for problem in report["problems"] if problem["kind"] == "fragment"]
    t.expect(found, f"check finds nothing: {report}")
    in_names = [problem for problem in found if "the names of the share" in problem["detail"]]
    named = {problem["detail"].split(", byte ")[0].removeprefix("/") for problem in found if problem not in in_names}
    # Where a name or an inode's record is lost, check has only the number of the file.
    numbered = {name for name in named if in_names and re.fullmatch(r"file \d+ without a name", name)}
    t.expect(named - numbered <= set(expected), f"paths that check names: {sorted(named - set(expected))[:5]}")
    repair = {"problems_total": 0, "problems": []}
    if in_names:
        repaired = pool.shale("check", "--repair", "--json", status=None)
        repair = json.loads(repaired.stdout)
        # Of pages that lead to others there are copies: not all damage loses names.
        whole = LOSSY if repair.get("names_lost") else 0
        t.equal(repaired.returncode, EXIT["corrupt"] if repair["problems_left"] else whole, f"exit of the repair: {repair}")
    server = pool.serve(shares=True)
    share = server.share("home")
    there = {path: content for path, content in expected.items() if (share / path).exists()}
    t.expect(in_names or there.keys() == expected.keys(), f"files without a name: {sorted(expected.keys() - there.keys())[:5]}")
    inodes = {path: (share / path).stat().st_ino for path in there}
    anew = rounded_up_by(repair, set(inodes.values()))
    rounded_up = {path for path in there if inodes[path] in anew}
    failed = read_all(t, share, there, rounded_up)
    not_named = {path for path in failed - named if f"file {inodes[path]} without a name" not in numbered}
    t.expect(not not_named, f"files that cannot be read and are not named: {sorted(not_named)[:5]}")
    scrubbed = pool.shale("scrub", status=None).stdout
    for path in list(failed)[:3]:
        t.expect(path in scrubbed, f"scrub does not name {path}")
    told = pool.status()["damages"]
    t.expect(not failed or any(f": /{path}, byte " in line for path in failed for line in told), f"status names no file: {told[:5]}")
    server.stop()

    report = json.loads(pool.shale("salvage", "--into", t.dir / "new", "--capacity", "1G", "--json", status=LOSSY).stdout)
    volume = next(volume for volume in report["volumes"] if volume["name"] == "home")
    new = Pool.at(t, t.dir / "new")
    new.shale("export", "home", t.dir / "back")
    back = contents(t.dir / "back")
    told = " ".join(place["detail"] for place in volume["damaged"])
    wrong = [path for path, content in expected.items()
             if not is_as_written(back.get(path, b""), content, path in rounded_up)]
    for path in wrong:
        t.expect(path in told or path in failed or path not in there or volume["tree"], f"{path} is not as it was, and nothing says so: {told[:500]}")
    # How many names one page takes along depends on the page. The content of a file does not go with its name, unless it is in the record.
    there_anew = {content.rstrip(b"\0") for content in back.values()}
    gone = [path for path in wrong if expected[path].rstrip(b"\0") not in there_anew | {b""} and len(expected[path]) > RECORD]
    t.expect(len(gone) <= len(found) - len(in_names), f"{len(gone)} files have lost their content, check named {len(found) - len(in_names)}: {gone[:5]}")
    t.expect(in_names or len(wrong) <= len(failed), f"{len(wrong)} files are wrong, {len(failed)} were damaged")
    new.check()
    t.note(f"{flipped} bytes flipped, {len(failed)} of {len(expected)} files damaged, {len(in_names)} places in names, "
           f"{len(rounded_up)} records built anew, {len(wrong)} files not in their places, content of {len(gone)} lost")


def damaged_names(t):
    """A pool whose share is hardly more than names, some of them damaged; and its files."""
    pool = Pool(t, capacity="256M")
    tree = t.dir / "tree"
    expected = {}
    for number in range(6000):
        directory = tree / f"directory {number // 200}"
        if number % 200 == 0:
            directory.mkdir(parents=True)
        path = directory / f"a file with a rather long name and the number {number}"
        path.write_bytes(f"content {number}\n".encode() * (number % 7 + 1))
        expected[str(path.relative_to(tree))] = path.read_bytes()
    pool.shale("import", "home", tree, "--share")
    other = t.dir / "other"
    other.mkdir()
    (other / "file").write_bytes(b"of another share")
    pool.shale("import", "second", other, "--share")
    return pool, expected


def damage_names(t, pool):
    """Flips one bit in all copies of it, so that check says that names of `home` are damaged: tried at one place after the other, newest data first."""
    path = pool.path / "data"
    content = path.read_bytes()
    places = [at for at in range(EXTENT, len(content), 8192) if content[at + 3000 : at + 3001].strip(b"\0")]
    for at in reversed(places):
        # A check may have moved what it repaired.
        hit = damage.copies_of(path.read_bytes(), at + 3000)
        damage.change(path, hit, 0x10)
        said = pool.shale("check", "--json", status=None, quiet=True).stdout
        report = json.loads(said) if said else {}
        # Not in the few pages that all others hang on.
        if any("ranges of records cannot be read; " in problem["detail"] and problem["volume"] == "home" for problem in report.get("problems", [])):
            return
        if not report.get("clean"):
            damage.change(path, hit, 0x10)
    t.fail(f"no bit of the names could be flipped, at {len(places)} places")


def lost_small_files(report):
    """Names, without the directories, of files that a check or a repair says are lost with the records of their inodes."""
    told = re.compile(r"(?s)(?:.*/)?([^/]*): (?:lost with the record of its inode|the name means inode \d+, .* with it a file of at most)")
    return {found[1] for problem in report["problems"] if (found := told.match(problem["detail"]))}


def by_content(found, expected):
    """How many of the expected contents are there, under any name; a file in lost+found may end with the zeroes of its block."""
    there = {content.rstrip(b"\0") for content in found.values()}
    return sum(content in there for content in expected.values())


@test(seconds_max=900)
def damaged_names_are_mended(t):
    """flipped bytes in the names of a share: it is served as far as it can be, check --repair builds its names anew, and files keep their content"""
    pool, expected = damaged_names(t)
    damage_names(t, pool)
    lost = lost_small_files(json.loads(pool.check(status=EXIT["corrupt"])))
    known = {os.path.basename(path) for path in expected}
    t.expect(lost <= known, f"files that check says are lost: {sorted(lost - known)[:5]}")
    # A server goes on, with that share and the other one.
    server = pool.serve(shares=True)
    t.equal((server.shares_dir / "second" / "file").read_bytes(), b"of another share", "the other share")
    seen = 0
    for path, content in expected.items():
        try:
            t.equal((server.shares_dir / "home" / path).read_bytes(), content, path)
            seen += 1
        except OSError as error:
            t.expect(error.errno in (errno.EIO, errno.ENOENT, errno.ESTALE), f"{path}: {error}")
    t.equal((server.shares_dir / "second" / "file").read_bytes(), b"of another share", "the other share, afterwards")
    server.stop()
    # All is mended, and some names are lost: neither "all repaired" nor "cannot be repaired".
    report = json.loads(pool.shale("check", "--repair", "--json", status=LOSSY).stdout)
    t.equal((report["clean"], report["problems_left"], report["names_lost"]), (True, 0, ["home"]), "what repair says in all")
    mended = [problem["detail"] for problem in report["problems"] if problem["kind"] == "tree"]
    t.expect(any("rebuilt" in detail for detail in mended), f"what repair says: {mended[:5]}")
    t.expect(lost <= lost_small_files(report), f"files that check names and repair does not: {sorted(lost - lost_small_files(report))[:5]}")
    lost = lost_small_files(report)
    server = pool.serve(shares=True)
    share = server.share("home")
    found = contents(share)
    there = {os.path.basename(path) for path in found}
    t.expect(not lost & there, f"files that are there and said to be lost: {sorted(lost & there)[:5]}")
    same = sum(found.get(path) == content for path, content in expected.items())
    there = by_content(found, expected)
    t.expect(same >= seen, f"{seen} files were read before the repair, {same} are in their places after it")
    (share / "new").write_text("goes on")
    server.stop()
    report = json.loads(pool.check())
    t.equal(report["problems"], [], "what check says behind the repair")
    t.note(f"{seen} of {len(expected)} files read while damaged, {same} in their places after the repair, {there} contents there, {len(lost)} said to be lost")


@test(seconds_max=900)
def damaged_names_are_salvaged(t):
    """flipped bytes in the names of a share: salvage brings its files out, those without a name into lost+found, into a pool that is whole"""
    pool, expected = damaged_names(t)
    damage_names(t, pool)
    report = json.loads(pool.shale("salvage", "--into", t.dir / "new", "--capacity", "256M", "--json", status=LOSSY).stdout)
    volume = next(volume for volume in report["volumes"] if volume["name"] == "home")
    t.expect(any("rebuilt" in line for line in volume["tree"]), f"what salvage says of the tree: {volume['tree'][:5]}")
    new = Pool.at(t, t.dir / "new")
    new.check()
    new.shale("export", "home", t.dir / "back")
    found = contents(t.dir / "back")
    same = sum(found.get(path) == content for path, content in expected.items())
    there = by_content(found, expected)
    t.expect(there > 0 and same <= there, f"{same} in their places, {there} there")
    for path, content in found.items():
        t.expect(content.rstrip(b"\0") in set(expected.values()) or path.startswith("lost+found"), f"{path}: {content[:40]!r}")
    server = new.serve(shares=True)
    t.equal((server.share("second") / "file").read_bytes(), b"of another share", "the other share")
    t.equal(tree_digest(server.share("home")), tree_digest(t.dir / "back"), "the tree in the new pool's mount")
    server.stop()
    t.note(f"of {len(expected)} files {same} in their places, {there} contents there")


def small_share(t):
    """A pool with a share of small files, whose names have one batch or two; and the files."""
    pool = Pool(t, capacity="64M", extent="256K")
    tree = t.dir / "tree"
    expected = {}
    for number in range(240):
        path = tree / f"directory {number // 60}" / f"file {number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(6).hex().encode() * (1 + number % 40) + b" %d" % number)
        expected[str(path.relative_to(tree))] = path.read_bytes()
    pool.shale("import", "home", tree, "--share")
    return pool, expected


def names_of(pool):
    """The data file of a pool with one share, and a byte in each sector of its names: files have one copy only."""
    content = (pool.path / "data").read_bytes()
    # Between the superblock and its copy at the end.
    bytes_of = (sector + 37 * number % 512 for number, sector in enumerate(range(256 << 10, 63 << 20, 512)) if content[sector : sector + 512].strip(b"\0"))
    return content, [at for at in bytes_of if len(damage.copies_of(content, at)) > 1]


@test(seconds_max=300)
def one_bit_in_the_names_of_a_small_share(t):
    """one flipped bit anywhere in the names of a small share, in one copy of them: a check repairs it and says so, and nothing is lost"""
    pool, expected = small_share(t)
    _, places = names_of(pool)
    t.expect(len(places) > 40, f"only {len(places)} sectors have a copy")
    repaired = 0
    for number, at in enumerate(places[:: len(places) // 20]):
        hit = copy_of(t, pool, f"hit {number}")
        damage.change(hit.path / "data", [at], 1)
        report = json.loads(hit.shale("check", "--json").stdout)
        for problem in report["problems"]:
            is_said = "the names of the share" in problem["detail"] and "another copy replaces it" in problem["detail"]
            t.expect(is_said and problem["repaired"], f"byte {at}: {problem}")
        repaired += bool(report["problems"])
        t.equal((report["clean"], report["problems_left"]), (True, 0), f"byte {at}: what check says in all")
        t.equal(json.loads(hit.check())["problems"], [], f"byte {at}: what the next check says")
        hit.shale("export", "home", t.dir / f"back {number}", quiet=True)
        t.equal(contents(t.dir / f"back {number}"), expected, f"byte {at}: files after the repair")
    t.expect(repaired > 4, f"only {repaired} bits were in names that are used")
    t.note(f"{repaired} bits repaired")


@test(seconds_max=300)
def one_bit_in_all_copies_of_the_names_of_a_small_share(t):
    """one flipped bit anywhere in all copies of the names of a small share: a repair leaves no damage, and says what is lost"""
    pool, expected = small_share(t)
    content, places = names_of(pool)
    in_names = lossy = 0
    for number, at in enumerate(places[:: len(places) // 20]):
        hit = copy_of(t, pool, f"hit {number}")
        damage.change(hit.path / "data", damage.copies_of(content, at), 1)
        report = json.loads(hit.shale("check", "--json", status=None).stdout)
        if report["clean"]:
            continue
        in_names += 1
        if in_names <= 3:
            said = hit.shale("check", status=EXIT["corrupt"]).stdout
            t.expect("run with --repair" in said, f"byte {at}: a repair mends it, and check says: {said[-300:]}")
        repaired = json.loads(hit.shale("check", "--repair", "--json", status=None).stdout)
        t.equal(repaired["problems_left"], 0, f"byte {at}: what a repair leaves")
        t.equal(json.loads(hit.check())["problems"], [], f"byte {at}: what check says after the repair")
        hit.shale("export", "home", t.dir / f"back {number}", quiet=True)
        told = lost_small_files(repaired)
        lossy += bool(told)
        there = set(contents(t.dir / f"back {number}").values())
        gone = {os.path.basename(path) for path, content_of in expected.items() if content_of not in there}
        # The name of a file may go with its record: then only the repair's exit status and its list of shares tell of it.
        t.expect(gone <= told or repaired["names_lost"] == ["home"], f"byte {at}: lost and not named: {sorted(gone - told)[:5]}")
    t.expect(in_names > 8, f"only {in_names} bits were in names that are used")
    t.note(f"{in_names} bits in names, {lossy} cost small files")


def hits(t, pool, wants):
    """Copies of a pool with one bit of names flipped in all copies of it, and what check says of them: those that `wants`, given the details of the problems; newest data first."""
    content, places = names_of(pool)
    for number, at in enumerate(reversed(places)):
        hit = copy_of(t, pool, f"{pool.path.name} hit {number}")
        damage.change(hit.path / "data", damage.copies_of(content, at), 4)
        report = json.loads(hit.shale("check", "--json", status=None, quiet=True).stdout)
        details = [problem["detail"] for problem in report.get("problems", [])]
        if not report.get("clean") and wants(details):
            yield hit, details
        t.run("rm", "-rf", hit.path, quiet=True)


def copy_of(t, pool, name):
    t.run("cp", "-r", "--sparse=always", pool.path, t.dir / name, quiet=True)
    return Pool.at(t, t.dir / name)


def facts(directory):
    """Name -> mode and extended attributes of every file."""
    def of(path):
        return os.lstat(path).st_mode & 0o7777, {name: os.getxattr(path, name) for name in os.listxattr(path)}

    return {path.name: of(path) for path in directory.rglob("*") if path.is_file()}


@test(seconds_max=300)
def lost_acls_are_named_and_give_no_rights(t):
    """one flipped bit in the extended attributes of a share: check, repair and salvage name each file that lost some, and no file has more rights than before"""
    tree = t.dir / "tree"
    tree.mkdir()
    # The group may not read; the mode, 0660, has the mask.
    entries = ((1, 6, 0xFFFFFFFF), (2, 6, 1234), (4, 0, 0xFFFFFFFF), (16, 6, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    for number in range(300):
        path = tree / f"file-{number:03}-{os.urandom(6).hex()}"
        path.write_bytes(os.urandom(700))
        os.setxattr(path, "system.posix_acl_access", acl)
        os.setxattr(path, "user.note", os.urandom(40).hex().encode())
    expected = facts(tree)
    t.equal({mode for mode, _ in expected.values()}, {0o660}, "modes with a mask")
    pool = Pool(t, capacity="64M", extent="256K")
    pool.shale("import", "home", tree, "--share")
    hit, details = next(hits(t, pool, lambda details: any("its ACL or its capabilities are lost" in detail for detail in details)), (None, None))
    t.expect(hit, "no bit was in extended attributes")
    damaged = copy_of(t, hit, "damaged")
    report = json.loads(hit.shale("check", "--repair", "--json", status=LOSSY).stdout)
    t.equal((report["clean"], report["attributes_lost"]), (True, ["home"]), "what repair says in all")
    salvaged = json.loads(damaged.shale("salvage", "--into", t.dir / "new", "--capacity", "64M", "--memory", "128M", "--json", status=LOSSY).stdout)
    said = {"check": details, "repair": [problem["detail"] for problem in report["problems"]], "salvage": salvaged["volumes"][0]["tree"]}
    for name, mended in (("repair", hit), ("salvage", Pool.at(t, t.dir / "new"))):
        mended.check()
        mended.shale("export", "home", t.dir / f"back by {name}")
        found = facts(t.dir / f"back by {name}")
        lost = {file for file in expected.keys() & found.keys() if found[file][1] != expected[file][1]}
        t.expect(lost, f"{name}: nothing was lost")
        for file in found:
            t.expect(found[file][0] == (0o660 if acl in found[file][1].values() else 0o600), f"{name}: {file} has the mode {found[file][0]:o}")
        for who in ("check", name):
            not_named = {file for file in lost if not any(file in detail for detail in said[who])}
            t.expect(not not_named or len(lost) > 100 and who == "check", f"{who} does not name {len(not_named)} of {len(lost)}: {sorted(not_named)[:3]}")
    status = hit.status()
    t.equal(status["health"], "recovered-with-loss", "health behind the repair")
    t.expect("extended attributes are lost" in status["losses"][0]["text"], f"losses of status: {status['losses']}")
    t.note(f"{len(lost)} of 300 files lost attributes")


@test(seconds_max=300)
def a_repair_that_is_killed_tells_its_losses_later(t):
    """kill -9 of check --repair when all is mended and nothing was told yet: the next repair tells of the same losses, and status does until they are acknowledged"""
    pool, _ = small_share(t)
    # More than fits in the pipe below.
    lost = "lost with the record of its inode"
    hit, details = next(hits(t, pool, lambda details: sum(lost in detail for detail in details) > 20), (None, None))
    t.expect(hit, "no bit took many small files along")
    names = {detail.split(": lost with")[0] for detail in details if lost in detail}
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    child = subprocess.Popen([BINARY, "check", hit.path, "--repair", "--json"], stdin=subprocess.DEVNULL, stdout=writer)
    t.defer(child.kill)
    waiting = array.array("i", [0])

    def is_full():
        fcntl.ioctl(reader, termios.FIONREAD, waiting)
        return waiting[0] >= 4096

    t.wait_for(is_full, "the report of the repair")
    child.kill()
    child.wait()
    os.close(reader)
    os.close(writer)
    status = hit.status()
    t.equal(status["health"], "recovered-with-loss", "health behind a repair that was killed")
    t.expect("names of files are lost" in status["losses"][0]["text"], f"losses of status: {status['losses']}")
    told = json.loads(hit.check())
    t.expect(any("an interrupted repair" in note for note in told["notes"]), f"notes of check: {told['notes']}")
    report = json.loads(hit.shale("check", "--repair", "--json", status=LOSSY).stdout)
    t.equal(report["names_lost"], ["home"], "what the next repair says in all")
    said = " ".join(problem["detail"] for problem in report["problems"])
    t.expect(all(name in said for name in names), f"files that the next repair does not name: {sorted(name for name in names if name not in said)[:5]}")
    # Once is enough; the status goes on.
    report = json.loads(hit.shale("check", "--repair", "--json").stdout)
    t.equal(report["problems"], [], "what a third repair finds")
    t.equal(len(hit.status()["losses"]), 1, "losses of status")
    hit.shale("status", "--acknowledge")
    t.equal(hit.status()["health"], "ok", "health when that is known")


@test(seconds_max=300)
def damage_that_a_snapshot_has_as_well_is_left(t):
    """one flipped bit in names that a snapshot shares: a repair mends the share, names the snapshot, and says so with its exit code"""
    pool, _ = small_share(t)
    pool.shale("snapshot", "home@one")
    found = hits(t, pool, lambda details: any("the names of the share" in detail and "also affects home@one" in detail for detail in details))
    for number, (hit, _) in zip(range(3), found):
        report = json.loads(hit.shale("check", "--repair", "--json", status=EXIT["corrupt"]).stdout)
        left = [problem for problem in report["problems"] if not problem["repaired"]]
        t.equal((report["clean"], report["problems_left"], len(left)), (False, len(left), len(left)), f"hit {number}: what is left")
        t.expect(all(problem["volume"] == "home@one" for problem in left), f"hit {number}: {left}")
        t.expect("copy the readable data" in left[0]["detail"], f"hit {number}: {left[0]}")
        again = json.loads(hit.check(status=EXIT["corrupt"]))
        t.expect({problem["volume"] for problem in again["problems"]} == {"home@one"}, f"hit {number}: what check says then: {again['problems']}")
        hit.shale("destroy", "home@one")
        t.equal(json.loads(hit.check())["problems"], [], f"hit {number}: without the snapshot")
    t.equal(number, 2, "hits")


@test(seconds_max=300)
def all_names_of_a_damaged_file(t):
    """a damaged file with several hard links: check and scrub name each path"""
    pool = Pool(t, capacity="64M", extent="256K")
    tree = t.dir / "tree"
    (tree / "below").mkdir(parents=True)
    content = os.urandom(1 << 20)
    (tree / "one").write_bytes(content)
    os.link(tree / "one", tree / "two")
    os.link(tree / "one", tree / "below" / "three")
    pool.shale("import", "home", tree, "--share")
    with open(pool.path / "data", "r+b") as file:
        at = file.read().find(content[500000:500100])
        t.expect(at > 0, "the content is not where it can be found")
        file.seek(at)
        file.write(bytes([content[500000] ^ 1]))
    details = [problem["detail"] for problem in json.loads(pool.check(status=EXIT["corrupt"]))["problems"]]
    scrubbed = pool.shale("scrub", status=EXIT["corrupt"]).stdout
    for path in ("/one", "/two", "/below/three"):
        t.expect(len(details) == 1 and path in details[0], f"check does not name {path}: {details}")
        t.expect(path in scrubbed, f"scrub does not name {path}: {scrubbed}")


@test(seconds_max=300)
def du_tells_holes(t):
    """st_blocks of a sparse file, a punched one, and one that was cut: what is allocated"""
    pool = Pool(t, capacity="256M")
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True)
    share = server.share("home")
    (share / "dense").write_bytes(os.urandom(100_000))
    with open(share / "sparse", "wb") as file:
        file.truncate(1 << 30)
        file.seek(512 << 20)
        file.write(os.urandom(8192))
    t.equal(os.stat(share / "dense").st_blocks * 512, 102_400, "allocated of a dense file")
    t.equal(os.stat(share / "sparse").st_blocks * 512, 8192, "allocated of a sparse file")
    t.run("fallocate", "--punch-hole", "--offset", 0, "--length", 40_960, share / "dense")
    t.equal(os.stat(share / "dense").st_blocks * 512, 102_400 - 40_960, "allocated of a punched file")
    t.equal(t.out("du", "--block-size=1", share / "sparse").split()[0], "8192", "what du says")
    server.stop()
    server = pool.serve(shares=True)
    t.equal(os.stat(server.share("home") / "sparse").st_blocks * 512, 8192, "allocated of a sparse file, afterwards")
    server.stop()
    pool.check()


@test()
def repair_keeps_its_promise(t):
    """noise over a header and over data of the same extents: a repair moves what can be read, names the files of the rest, and the next one has nothing to do"""
    pool = Pool(t, capacity="256M")
    tree = t.dir / "tree"
    tree.mkdir()
    contents = {f"file-{number}": os.urandom(40_000) for number in range(200)}
    for path, content in contents.items():
        (tree / path).write_bytes(content)
    pool.shale("import", "s", tree)
    with open(pool.path / "data", "r+b") as file:
        data = file.read()
        extents = sorted({at // EXTENT for content in contents.values() if (at := data.find(content[10_000:10_100])) > 0})
        for extent in extents[:3:2]:
            file.seek(extent * EXTENT)
            found = file.read(EXTENT)
            header = found.index(b"SHBT")
            for at in [header + 9, header + EXTENT // 2]:
                file.seek(extent * EXTENT + at)
                file.write(os.urandom(8))
    kinds = [json.loads(pool.shale("check", *words, "--json", status=EXIT["corrupt"]).stdout) for words in [(), ("--repair",), ("--repair",), ()]]
    t.expect("header" in kinds[0]["kinds"], f"damaged headers: {kinds[0]['kinds']}")
    moved = [problem["repaired"] for problem in kinds[1]["problems"] if problem["kind"] == "header"]
    t.expect(moved and all(moved), f"what a repair moves: {kinds[1]['problems']}")
    for later in kinds[2:]:
        t.expect("header" not in later["kinds"], f"what the next one says: {later['problems']}")
        told = " ".join(problem["detail"] for problem in later["problems"])
        t.expect("--repair" not in told and "file-" in told, f"files, and no promises: {told}")
    named = {path for path in contents if f"/{path}" in told or f"'{path}'" in told or path in told.split()}
    t.log(f"named: {named}")
    server = pool.serve(shares=True)
    failed = read_all(t, server.share("s"), contents)
    t.expect(0 < len(failed) < 40, f"files that are lost: {failed}")
    server.stop()
