"""Doors of shares with clients that people use: litmus, cadaver and rclone by WebDAV, lftp by FTP, smbclient and smbtorture by SMB.

Only in `make e2e`, which sets SHALE_E2E and installs them.
"""

import filecmp
import hashlib
import os
import re
import shutil

import pytest

from harness import data, test

from .exports import OPEN_DOORS, PASSWORD, USER, Clients, Doors


def require(*programs):
    """Skips the test where programs are missing."""
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed (tools/setup e2e installs them)")


def version(t, package):
    """Of a Debian package."""
    return t.out("dpkg-query", "-W", "-f", "${Version}", package)


def tree(t, name):
    """A directory with files of all sizes, many of them, and names that need to be quoted."""
    root = t.dir / name
    (root / "sub" / "deep er").mkdir(parents=True)
    (root / "empty").mkdir()
    source = data.mixed_file(t.dir / f"{name}.real", 3 << 20).read_bytes()
    for number, size in enumerate([0, 1, 511, 512, 513, 4095, 4096, 16_385, 131_072, 131_073, 1 << 20, 3 << 20]):
        (root / f"file-{number}").write_bytes(source[:size])
        (root / "sub" / f"part {number} äöü #%+&.txt").write_bytes(source[len(source) - size:])
    for number in range(60):
        (root / "sub" / "deep er" / f"{number}.c").write_bytes(source[number * 1000:number * 1000 + 700])
    return root


def files(root):
    """The files of a tree with their content's digest."""
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in root.rglob("*") if path.is_file()}


def is_like(t, found, expected, what):
    """Fails unless two trees have the same files."""
    t.equal(files(found), files(expected), what)


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=900)
    def e2e_doors_webdav_clients(t):
        """litmus, cadaver and rclone on a share by WebDAV: all of litmus passes, and trees are as they were put"""
        require("litmus", "cadaver", "rclone")
        doors = Doors(t, http="rw@127.0.0.0/8")
        os.chmod(doors.home, 0o777)
        (doors.home / "dav").mkdir()
        os.chmod(doors.home / "dav", 0o777)
        done = t.run("litmus", "-k", doors.url("dav/"), status=None, cwd=t.dir)
        ran = re.findall(r"summary for `(\w+)': of (\d+) tests run: (\d+) passed, (\d+) failed", done.stdout)
        t.equal([suite for suite, *_ in ran], ["basic", "copymove", "props", "locks", "http"], "suites of litmus")
        passed, failed = (sum(int(counts[place]) for counts in ran) for place in (2, 3))
        t.note(f"litmus {version(t, 'litmus')} on Apache {version(t, 'apache2-bin')}: {passed} passed, {failed} failed")
        t.equal((failed, done.returncode), (0, 0), "failures of litmus and its exit status")
        t.expect(passed > 100, f"litmus ran only {passed} tests")

        source = data.mixed_file(t.dir / "real", 3 << 20)
        back = t.dir / "back"
        # It says what it did, and ends well whatever that was: what counts is what is there then.
        script = f"put {source} one\nmkcol made\ncopy one made/two\nmove made/two made/three\nlock one\nunlock one\nget made/three {back}\ndelete one\nquit\n"
        t.run("cadaver", doors.url("dav/"), stdin=script)
        t.expect(filecmp.cmp(back, source, shallow=False), "what cadaver got is not what it put")
        t.expect(filecmp.cmp(doors.home / "dav/made/three", source, shallow=False), "what cadaver put, copied and moved is not so in the mount")
        t.equal(os.listdir(doors.home / "dav" / "made"), ["three"], "files in a directory that cadaver made")
        t.expect(not (doors.home / "dav" / "one").exists(), "a file that cadaver deleted")

        root = tree(t, "tree")
        remote = f":webdav,url='{doors.url('')}',vendor=other:"
        rclone = ["rclone", "--config", "/dev/null", "--transfers", "8"]
        t.run(*rclone, "copy", "--create-empty-src-dirs", root, f"{remote}tree")
        is_like(t, doors.home / "tree", root, "what rclone copied, in the mount")
        t.run(*rclone, "check", "--download", root, f"{remote}tree")
        (root / "file-5").write_bytes(b"changed")
        (root / "file-6").unlink()
        (root / "sub" / "new").write_bytes(b"new")
        # Times are not kept by WebDAV.
        t.run(*rclone, "sync", "--ignore-times", root, f"{remote}tree")
        is_like(t, doors.home / "tree", root, "what rclone synchronized, in the mount")
        t.run(*rclone, "copy", f"{remote}tree", t.dir / "again")
        is_like(t, t.dir / "again", root, "what rclone copied back")
        t.run(*rclone, "purge", f"{remote}tree")
        t.expect(not (doors.home / "tree").exists(), "what rclone purged is still there")
        doors.server.stop()
        doors.pool.check()

    @test(seconds_max=900)
    def e2e_doors_ftp_client(t):
        """lftp on a share by FTP: trees both ways with parallel transfers, files in pieces, transfers that go on, renames, modes"""
        require("lftp")
        doors = Doors(t, **OPEN_DOORS)
        Clients(t, doors)
        root = tree(t, "tree")

        def lftp(*commands, status=0):
            head = ["set ftp:ssl-allow no", "set net:max-retries 2", "set net:timeout 60", "set cmd:fail-exit yes",
                    f"open -u {USER},{PASSWORD} -p {doors.ports['ftp-port']} 127.0.0.1"]
            return t.run("lftp", "-c", "; ".join([*head, *commands]), status=status, cwd=t.dir)

        lftp("mirror -R --parallel=4 tree tree")
        is_like(t, doors.home / "tree", root, "what lftp put, in the mount")
        t.expect((doors.home / "tree" / "empty").is_dir(), "an empty directory that lftp put")
        lftp("mirror --parallel=4 tree again", "pget -n 4 tree/file-11 -o in-pieces")
        is_like(t, t.dir / "again", root, "what lftp got")
        t.expect(filecmp.cmp(t.dir / "in-pieces", root / "file-11", shallow=False), "a file that lftp got in four pieces")
        # Cut in the middle, both ways.
        os.truncate(doors.home / "tree" / "file-11", 1_000_001)
        os.truncate(t.dir / "in-pieces", 2_000_003)
        lftp("put -c tree/file-11 -o tree/file-11", "get -c tree/file-11 -o in-pieces", "mv tree/file-10 tree/renamed", "chmod 640 tree/renamed", "mkdir made", "rm tree/file-9")
        t.expect(filecmp.cmp(doors.home / "tree" / "file-11", root / "file-11", shallow=False), "a file whose transfer to the share went on")
        t.expect(filecmp.cmp(t.dir / "in-pieces", root / "file-11", shallow=False), "a file whose transfer from the share went on")
        t.equal((doors.home / "tree" / "renamed").stat().st_mode & 0o777, 0o640, "the mode that lftp set")
        t.expect((doors.home / "made").is_dir() and not (doors.home / "tree" / "file-9").exists(), "mkdir or rm by lftp did nothing")
        lftp("rm -r tree")
        t.expect(not (doors.home / "tree").exists(), "what lftp removed is still there")
        lftp("get no-such-file -o nothing", status=1)
        doors.server.stop()
        doors.pool.check()

    # Without its benchmarks, and without what makes thousands of files.
    TORTURE = ["smb2.connect", "smb2.lock", "smb2.rw", "smb2.read", "smb2.getinfo", "smb2.mkdir", "smb2.maximum_allowed", "smb2.delete-on-close-perms", "smb2.streams",
               "smb2.dir.find", "smb2.dir.one", "smb2.fileid.fileid", "smb2.fileid.fileid-dir", "smb2.sharemode.bug14375",
               *(f"smb2.rename.{name}" for name in ("simple", "simple_nodelete", "no_sharing", "share_delete_and_delete_access", "msword", "rename_dir_openfile")),
               *(f"smb2.create.{name}" for name in ("open", "blob", "brlocked", "multi", "delete", "leading-slash", "aclfile", "acldir", "nulldacl", "mkdir-dup"))]
    # What a directory of the machine's passes and a share does not. `rw.invalid` asks that a write at a very large offset
    # fails, as ext4 has it (EFBIG at 2^60): a share, like tmpfs, has room there.
    TORTURE_KNOWN = {"smb2.rw.invalid"}

    @test(seconds_max=1500)
    def e2e_doors_smb_clients(t):
        """smbclient with trees and smbtorture's tests of SMB 2 and 3 on a share: what passes on a directory of this machine passes there"""
        require("smbtorture", "smbclient")
        doors = Doors(t, **OPEN_DOORS)
        clients = Clients(t, doors)
        clients.let_in_by_smb()
        root = tree(t, "tree")
        clients.smb(f"prompt off; recurse on; mkdir tree; cd tree; lcd {root}; mput *")
        is_like(t, doors.home / "tree", root, "what smbclient put, in the mount")
        (t.dir / "again").mkdir()
        clients.smb(f"prompt off; recurse on; cd tree; lcd {t.dir / 'again'}; mget *")
        is_like(t, t.dir / "again", root, "what smbclient got")
        clients.smb("cd tree; rename file-10 renamed; del file-9; rm file-8; deltree sub")
        left = {path.name for path in (doors.home / "tree").iterdir()}
        t.equal(left, {path.name for path in root.iterdir()} - {"file-8", "file-9", "file-10", "sub"} | {"renamed"}, "files after changes by smbclient")

        # The same server gives a directory of the machine's out: what fails there as well is the server's.
        plain = t.dir / "plain"
        plain.mkdir()
        plain.chmod(0o1777)
        (doors.dir / "smb.local.conf").write_text(f"[plain]\n    path = {plain}\n    read only = no\n")
        doors.set("smb=rw@127.0.0.0/8")

        def torture(suite, share):
            """Passed and failed tests."""
            done = t.run("smbtorture", f"//127.0.0.1/{share}", "-p", doors.ports["smb-port"], "-U", f"{USER}%{PASSWORD}", suite, status=None, seconds_max=300)
            return [{f"{suite}.{name}" for name in re.findall(rf"^(?:{how}): (\S+)", done.stdout, re.MULTILINE)} for how in ("success", "failure|error")]

        passed, alike, ours = set(), set(), set()
        for suite in TORTURE:
            good, bad = torture(suite, "home")
            t.expect(good | bad, f"smbtorture did not run {suite}")
            passed |= good
            on_plain = torture(suite, "plain")[1] if bad else set()
            alike, ours = alike | (bad & on_plain), ours | (bad - on_plain)
        t.note(f"smbtorture of Samba {version(t, 'samba')}: {len(passed)} passed; failed on a directory of the machine's as well: {', '.join(sorted(alike)) or 'none'}; "
               f"only on the share: {', '.join(sorted(ours)) or 'none'}")
        t.expect(len(passed) > 60, f"only {len(passed)} tests of smbtorture passed")
        t.expect(ours <= TORTURE_KNOWN, f"what a directory of the machine's passes and the share does not: {sorted(ours - TORTURE_KNOWN)}")
        doors.server.stop()
        doors.pool.check()
