"""Trees in and out of shares where something is wrong: names that come twice, damage, names that cannot be, odd headers."""

import errno
import io
import json
import os
import random
import shutil
import tarfile

from harness import EXIT, Pool, damage, test
from harness.pool import BINARY

BLOCK = 4096
MIB = 1 << 20
# Pages of names that one flipped bit takes along, and names that one of them holds.
NAMES_LOST_MAX = 8 * 97


def attempt(work, *arguments, **named):
    """The number of the error that something fails with; 0 if it does not."""
    try:
        work(*arguments, **named)
    except OSError as error:
        return error.errno
    return 0


def contents(directory):
    """Relative path -> bytes of every file."""
    return {str(path.relative_to(directory)): path.read_bytes()
            for path in directory.rglob("*") if path.is_file() and not path.is_symlink()}


def pax(name, records, data=b""):
    """An item of an archive with extended records."""
    item = tarfile.TarInfo(name)
    item.size, item.pax_headers = len(data), records
    raw = item.tobuf(format=tarfile.PAX_FORMAT)
    return raw + data + bytes(-len(data) % 512)


@test(seconds_max=120)
def archives_that_have_a_name_twice(t):
    """GNU tar of `d d/f` has d/f twice, the second as a link to itself: the file is there after an import, also over an old one"""
    source = t.dir / "source"
    (source / "d").mkdir(parents=True)
    (source / "d" / "f").write_text("important")
    (source / "d" / "g").write_text("other")
    # Before 1970, which the old format has as a negative number.
    os.utime(source / "d" / "g", (-315_521_816, -315_521_816))
    pool = Pool(t, capacity="256M")
    pool.shale("create", "old", "--share")
    for is_served in (False, True):
        server = pool.serve(shares=True) if is_served else None
        for form in ("gnu", "posix"):
            archive = t.dir / f"{form}.tar"
            t.run("tar", f"--format={form}", "-C", source, "-cf", archive, "d", "d/f")
            name = f"{form}{is_served}"
            pool.shale("import", name, archive, "--share")
            pool.shale("import", name, archive, "--overwrite")
            pool.shale("export", name, t.dir / name)
            t.equal(contents(t.dir / name), contents(source), f"files of {form}, served: {is_served}")
            t.equal((t.dir / name / "d" / "g").stat().st_mtime, -315_521_816, f"time before 1970, {form}")
        # What cannot be made takes the place of nothing, and brings nothing else.
        with tarfile.open(t.dir / "link.tar", "w") as archive:
            link = tarfile.TarInfo("d/f")
            link.type, link.linkname = tarfile.LNKTYPE, "no/where"
            archive.addfile(link)
        said = pool.shale("import", name, t.dir / "link.tar", "--overwrite", status=EXIT["io"]).stderr
        t.expect("d/f: cannot be linked to no/where" in said, f"what it says: {said}")
        kept = t.dir / f"{name} kept"
        pool.shale("export", name, kept)
        t.equal(contents(kept), contents(source), "files that could not be replaced")
        t.equal((os.listdir(kept), sorted(os.listdir(kept / "d"))), (["d"], ["f", "g"]), "names beside them")
        if server:
            server.stop()
    pool.check()


@test(seconds_max=300)
def exports_bring_what_can_be_read(t):
    """one flipped bit after the other in all copies of the names of a share: an export goes on behind it, and names what it leaves out"""
    pool = Pool(t, capacity="256M")
    tree = t.dir / "tree"
    expected = {}
    for number in range(2400):
        path = tree / f"directory {number // 300}" / f"a file with a rather long name and the number {number}"
        if number % 300 == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(f"content {number}\n".encode() * (number % 7 + 1))
        if number % 3 == 0:
            os.setxattr(path, "user.number", str(number).encode() * 20)
        expected[str(path.relative_to(tree))] = path.read_bytes()
    pool.shale("import", "home", tree, "--share")
    content = (pool.path / "data").read_bytes()
    places = [at for at in range(MIB, len(content), 16384) if content[at + 3000 : at + 3001].strip(b"\0")]
    random.Random(5).shuffle(places)
    harmed, fewest = 0, len(expected)
    for number, at in enumerate(places):
        copy = t.dir / f"pool {number}"
        t.run("cp", "-a", "--sparse=always", pool.path, copy)
        damage.change(copy / "data", damage.copies_of(content, at + 3000), 0x10)
        out = t.dir / f"out {number}"
        done = Pool.at(t, copy).shale("export", "home", out, "--json", status=None)
        shutil.rmtree(copy)
        report = json.loads(done.stdout)
        if "error" in report:
            # The share cannot be opened at all, and nothing came out.
            t.expect(not out.exists() or not contents(out), f"an export ended half-way: {report}, {done.stderr}")
            continue
        found = contents(out)
        wrong = [name for name in found if found[name] != expected[name]]
        told = " ".join(report["problem_lines"])
        for name in wrong:
            t.expect(name in told, f"{name} is not as it was, and nothing says so")
        missing = len(expected) - len(found)
        t.expect(missing <= NAMES_LOST_MAX, f"{missing} files are missing after one flipped bit, at {at}: {report['problem_lines'][:5]}")
        t.equal(done.returncode, EXIT["io"] if report["problems"] else 0, "exit code")
        t.expect(report["problems"] > 0 or not (missing or wrong), f"{missing} files are missing, and nothing says so")
        harmed += report["problems"] > 0
        fewest = min(fewest, len(found))
        if harmed == 5:
            break
    t.expect(harmed >= 2, f"{harmed} of {len(places)} places cost something")
    t.note(f"{harmed} harmed exports, the worst with {fewest} of {len(expected)} files")


@test(seconds_max=120)
def exports_lose_no_more_than_a_unit(t):
    """one flipped bit in a file of 10 MiB: an export has zeroes in that unit only, and says where, from the pool and from a mount"""
    pool = Pool(t, capacity="64M")
    tree = t.dir / "tree"
    tree.mkdir()
    content = random.Random(1).randbytes(10 * MIB)
    (tree / "big").write_bytes(content)
    (tree / "zzz").write_text("behind it")
    pool.shale("import", "home", tree)
    at = (pool.path / "data").read_bytes().find(content[3_000_000:3_000_100])
    t.expect(at > 0, "content is not found in the data file")
    damage.change(pool.path / "data", [at], 0x10)
    for is_served in (False, True):
        server = pool.serve(shares=True) if is_served else None
        out = t.dir / f"out {is_served}"
        done = pool.shale("export", "home", out, "--json", status=EXIT["io"])
        report = json.loads(done.stdout)
        found = (out / "big").read_bytes()
        lost = [at for at in range(0, len(content), BLOCK) if found[at : at + BLOCK] != content[at : at + BLOCK]]
        t.expect(1 <= len(lost) <= 32, f"{len(lost)} blocks are lost, served: {is_served}")
        t.equal(report["zeroed"], [{"path": "big", "offset": lost[0], "length": len(lost) * BLOCK}], "places that the report names")
        t.equal((report["problems"], report["zeroed_bytes"]), (1, len(lost) * BLOCK), "problems and bytes")
        t.expect(f"big: {len(lost) * BLOCK} bytes from byte {lost[0]} on" in done.stderr, f"what it says: {done.stderr}")
        t.expect(not found[lost[0] : lost[-1] + BLOCK].strip(b"\0"), "no zeroes where nothing can be read")
        t.equal((out / "zzz").read_text(), "behind it", "the file behind it")
        pool.shale("export", "home", t.dir / f"{is_served}.tar", status=EXIT["io"])
        with tarfile.open(t.dir / f"{is_served}.tar") as archive:
            t.expect(archive.extractfile("big").read() == found, "the archive has something else than the directory")
        # The reader goes away behind the damage: what has zeroes is named nevertheless.
        said = t.run("bash", "-c", '"$0" export "$1" home - | head -c 6000000 > /dev/null', BINARY, pool.path).stderr
        t.expect("big: " in said and "zeroes" in said, f"what an export that fails later says: {said}")
        if server:
            server.stop()


@test(seconds_max=120)
def the_name_of_the_snapshots(t):
    """nothing gets the name .shale in the root of a share: calls are refused, and imports leave it out and bring the rest"""
    source = t.dir / "source"
    (source / ".shale" / "deep").mkdir(parents=True)
    (source / ".shale" / "deep" / "hidden").write_text("hidden")
    (source / "below").mkdir()
    (source / "below" / ".shale").write_text("a name like others")
    (source / ".shale2").write_text("as well")
    # A further name of a file that is left out comes as a file.
    os.link(source / ".shale" / "deep" / "hidden", source / "also")
    (source / "thesis").write_text("years of work")
    expected = {name: content for name, content in contents(source).items() if not name.startswith(".shale/")}
    archive = t.dir / "source.tar"
    # In an archive the further name comes first, as a file.
    t.run("tar", "-C", source, "-cf", archive, "also", "below", ".shale2", "thesis", ".shale")
    pool = Pool(t, capacity="256M")
    for is_served in (False, True):
        server = pool.serve(shares=True) if is_served else None
        for file in (source, archive):
            name = f"of{'tree' if file == source else 'tar'}{is_served}"
            said = pool.shale("import", name, file, "--share", status=EXIT["io"]).stderr
            t.equal(said.count(".shale: skipped"), 1, f"what it says: {said}")
            pool.shale("export", name, t.dir / name)
            t.equal(contents(t.dir / name), expected, f"what came into {name}")
        if server:
            server.stop()
    server = pool.serve(shares=True)
    share = server.share("oftreeTrue")
    kept = share / ".shale"
    pool.shale("snapshot", "oftreeTrue@one")
    refused = {errno.EEXIST, errno.EPERM, errno.EISDIR, errno.ENOTEMPTY}
    for what, work in {
        "mkdir": lambda: kept.mkdir(),
        "mknod": lambda: os.mkfifo(kept),
        "symlink": lambda: kept.symlink_to("x"),
        "link": lambda: os.link(share / "thesis", kept),
        "create": lambda: os.close(os.open(kept, os.O_CREAT | os.O_EXCL | os.O_WRONLY)),
        "rename of a file": lambda: os.rename(share / "thesis", kept),
        "rename of a directory": lambda: os.rename(share / "below", kept),
        "rename of it": lambda: os.rename(kept, share / "away"),
        "rmdir": lambda: kept.rmdir(),
        "unlink": lambda: kept.unlink(),
    }.items():
        found = attempt(work)
        t.expect(found in refused, f"{what} of .shale: {errno.errorcode.get(found, found)}")
        t.equal(os.listdir(kept / "snapshots"), ["one"], f"snapshots after {what}")
    t.equal(contents(share), expected, "files after all that was refused")
    server.stop()
    pool.check()


@test(seconds_max=120)
def odd_names_and_headers(t):
    """control characters in names reach no terminal, and JSON has them; sizes and roots that cannot be are told, with a server and without"""
    odd = "ok\x1b[31mred\nline"
    with tarfile.open(t.dir / "odd.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("../\x1b]0;title\x07", odd):
            item = tarfile.TarInfo(name)
            item.size = 4
            archive.addfile(item, io.BytesIO(b"data"))
    root = tarfile.TarInfo("./")
    root.type, root.mode, root.size = tarfile.REGTYPE, 0o600, 5
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "huge", "GNU.sparse.realsize": str(1 << 63)}
    map_ = b"1\n0\n4\n".ljust(512, b"\0")
    raw = root.tobuf() + b"hello".ljust(512, b"\0") + pax("x", sparse, map_ + b"abcd")
    (t.dir / "headers.tar").write_bytes(raw + pax("after", {}, b"after") + bytes(1024))
    (t.dir / "size.tar").write_bytes(pax("a", {"size": str((1 << 64) - 1)}) + pax("after", {}, b"after") + bytes(1024))
    pool = Pool(t, capacity="256M")
    for is_served in (False, True):
        server = pool.serve(shares=True) if is_served else None
        name = f"odd{is_served}"
        done = pool.shale("import", name, t.dir / "odd.tar", "--share", status=EXIT["io"])
        t.expect("\x1b" not in done.stderr and "\\u{1b}]0;title\\u{7}" in done.stderr, f"what it says: {done.stderr!r}")
        for words in (["usage", name], ["export", name, t.dir / f"{name}.tar"]):
            said = pool.shale(*words)
            t.expect("\x1b" not in said.stdout + said.stderr, f"{words[0]}: {said.stdout!r}")
        t.expect("ok\\u{1b}[31mred\\nline" in pool.shale("usage", name).stdout, "usage does not show the name")
        report = json.loads(pool.shale("usage", name, "--json").stdout)
        t.expect(any(entry["name"] == odd for entry in report["entries"]), f"JSON of usage: {report['entries']}")
        report = json.loads(pool.shale("import", name, t.dir / "odd.tar", "--json", status=EXIT["io"]).stdout)
        t.equal(report["kept_first"], odd, "the name in JSON")

        name = f"headers{is_served}"
        said = pool.shale("import", name, t.dir / "headers.tar", "--share", status=EXIT["io"]).stderr
        t.expect("huge: its size cannot be set" in said and "./: names the root" in said, f"what it says: {said}")
        out = t.dir / name
        pool.shale("export", name, out)
        t.equal(contents(out), {"after": b"after", "huge": b"abcd"}, "what came")
        t.equal(out.stat().st_mode & 0o777, 0o755, "the mode of the root")
        said = pool.shale("import", f"size{is_served}", t.dir / "size.tar", "--share", status=EXIT["corrupt"]).stderr
        t.expect("no valid size" in said, f"what it says: {said}")
        if server:
            server.stop()
    pool.check()
