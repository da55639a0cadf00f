"""Trees in and out of shares where something is wrong: names that come twice, damage, names that cannot be, odd headers."""

import os
import tarfile

from harness import EXIT, Pool, test


def contents(directory):
    """Relative path -> bytes of every file."""
    return {str(path.relative_to(directory)): path.read_bytes()
            for path in directory.rglob("*") if path.is_file() and not path.is_symlink()}


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
