"""Shares that lie in shares: mounted in one another, inherited, limited, renamed, sent and destroyed together."""

import errno
import json
import os
import subprocess
import threading

from harness import EXIT, Pool, test


def names(pool, *words):
    """What `list` shows, by name and type."""
    lines = pool.shale("list", *words, "-H", "-o", "name,type").stdout.splitlines()
    return [tuple(line.split("\t")) for line in lines]


@test(seconds_max=300)
def shares_lie_in_shares(t):
    """`home/meier` in `home`: mounts in one another, at one moment, renamed and rolled back while mounted, sent, killed, destroyed"""
    pool = Pool(t)
    pool.shale("create", "home", "--share", "-o", "compression=zstd-3", "--quota", "60M")
    said = pool.shale("create", "home/disk", "--size", "1M", status=EXIT["usage"]).stderr
    t.expect("can only contain shares" in said, f"what a share holds is told: {said}")
    pool.shale("create", "home/meier", "--share", "--quota", "50M")
    server = pool.serve(shares=True)
    home, meier = server.share("home"), server.share("home/meier")
    t.expect(os.stat(home).st_dev != os.stat(meier).st_dev, "two mounts")
    pool.shale("create", "home/meier/mail", "--share", "-p")
    mail = server.share("home/meier/mail")
    for directory, text in [(home, "of home"), (meier, "of meier"), (mail, "of mail")]:
        (directory / "file").write_text(text)
    t.equal(sorted(os.listdir(home)), ["file", "meier"], "what home shows")

    # What is inherited, and what is not.
    (found,) = json.loads(pool.shale("get", "home/meier/mail", "compression", "--json").stdout)
    t.equal((found["value"], found["source"], found["folder"]), ("zstd-3", "share", "home"), "inherited from a share")
    t.expect("share home" in pool.shale("get", "home/meier", "compression").stdout, "get says from where")
    (found,) = json.loads(pool.shale("get", "home/meier/mail", "quota", "--json").stdout)
    t.equal(found["value"], "none", "a quota is a share's own")
    noise = os.urandom(30 << 20)
    (meier / "noise").write_bytes(noise)
    refused = subprocess.run(["dd", "if=/dev/urandom", f"of={mail}/more", "bs=1M", "count=40", "conv=fsync"], capture_output=True, text=True, check=False)
    t.expect(refused.returncode != 0 and "No space" in refused.stderr, f"a quota counts what lies below: {refused.stderr}")
    os.unlink(mail / "more")

    # A moment of all, seen in each.
    taken = json.loads(pool.shale("snapshot", "-r", "home@s", "--json").stdout)["snapshots"]
    t.equal(taken, ["home/meier/mail@s", "home/meier@s", "home@s"], "snapshots of a share and those in it")
    lines = pool.shale("list", "home", "-r", "-H", "-o", "name").stdout.splitlines()
    expected = ["home", "home@s", "home/meier", "home/meier@s", "home/meier/mail", "home/meier/mail@s"]
    t.equal(lines, expected, "list -r of a share")
    (meier / "file").write_text("changed")
    t.equal((meier / ".shale/snapshots/s/file").read_text(), "of meier", "the moment")

    # Directories in the way.
    os.mkdir(home / "ada")
    (home / "ada" / "x").write_text("in the way")
    said = pool.shale("create", "home/ada", "--share", status=EXIT["exists"]).stderr
    t.expect("not empty" in said and "ada" in said, f"what is in the way is told: {said}")
    t.expect(("home/ada", "share") not in names(pool), "nothing was made")
    os.symlink("/tmp", home / "link")
    pool.shale("create", "home/link", "--share", status=EXIT["exists"])
    os.unlink(home / "link")
    os.unlink(home / "ada" / "x")
    pool.shale("create", "home/ada", "--share")
    server.share("home/ada")

    # In use, renamed, rolled back.
    with open(mail / "file", encoding="ascii") as busy:
        said = pool.shale("rename", "home", "h", status=EXIT["in-use"]).stderr
        t.expect("home/meier/mail" in said, f"the one in use is named: {said}")
        t.equal(busy.read(), "of mail", "a file that stays open")
    pool.shale("rename", "home", "h")
    t.equal((server.share("h/meier/mail") / "file").read_text(), "of mail", "under the new name")
    t.expect(not os.path.exists(server.shares_dir / "home"), "no directory of the old name")
    pool.shale("rollback", "h/meier@s")
    t.equal((server.share("h/meier") / "file").read_text(), "of meier", "rolled back")
    t.equal((server.share("h/meier/mail") / "file").read_text(), "of mail", "what lies in it stays as it is")
    pool.shale("destroy", "h/ada")
    t.equal(sorted(os.listdir(server.share("h"))), ["file", "meier"], "a destroyed share takes its empty directory along")

    # Killed without a sync, and served again.
    (server.share("h/meier/mail") / "late").write_text("not synced")
    server.kill()
    server = pool.serve(shares=True)
    t.equal((server.share("h/meier/mail") / "late").read_text(), "not synced", "after kill -9")
    t.equal((server.share("h/meier") / "noise").read_bytes(), noise, "data after kill -9")

    # To another pool under another name, and what is newer after it.
    other = Pool(t, name="other")
    stream = t.dir / "stream"
    pool.shale("send", "-R", "h@s", "-o", stream)
    other.shale("receive", "copy", "-i", stream)
    t.equal(names(other), [("copy", "share"), ("copy/meier", "share"), ("copy/meier/mail", "share")], "received")
    pool.shale("snapshot", "-r", "h@s2")
    pool.shale("send", "-R", "h@s2", "--from", "s", "-o", stream, "--force")
    other.shale("receive", "copy", "-i", stream)
    other.shale("receive", "-R", "-i", stream, status=None)
    there = other.serve(shares=True)
    t.equal((there.share("copy/meier/mail") / "late").read_text(), "not synced", "the difference has come")
    there.stop()
    other.check()

    # It goes with everything in it.
    said = pool.shale("destroy", "h/meier", status=EXIT["in-use"]).stderr
    t.expect("h/meier/mail" in said and "-r" in said, f"what is in it is named: {said}")
    pool.shale("destroy", "-r", "h")
    t.equal((names(pool), os.listdir(server.shares_dir)), ([], []), "nothing is left")
    server.stop()
    pool.check()


@test(seconds_max=300)
def nested_mounts_outlive_their_server(t):
    """kill -9 of the server with kept mounts of shares in one another: files that are open go on, and what is mounted anew is mounted whole"""
    pool = Pool(t)
    for share in ["home", "home/meier", "home/meier/mail"]:
        pool.shale("create", share, "--share")
    server = pool.serve(shares=True, keeps=True)
    places = [server.share(share) for share in ["home", "home/meier", "home/meier/mail"]]
    opened = []
    for place in places:
        (place / "file").write_text("before")
        opened.append(os.open(place / "open", os.O_CREAT | os.O_RDWR))
    devices = [os.stat(place).st_dev for place in places]
    for round_ in range(3):
        for file in opened:
            os.pwrite(file, bytes([round_]) * 4096, round_ * 4096)
        server.kill(leaves_mount=True)
        server = pool.serve(shares=True, keeps=True)
        for file in opened:
            t.equal(os.pread(file, 4096, round_ * 4096), bytes([round_]) * 4096, "a file that was open")
    t.equal([os.stat(place).st_dev for place in places], devices, "the numbers of the mounts' devices")
    for file in opened:
        os.close(file)
    # Served at another directory, nothing of the old mounts is left.
    server.kill(leaves_mount=True)
    server = pool.serve(shares="moved", keeps=True)
    t.equal((server.share("home/meier/mail") / "file").read_text(), "before", "a file at the new place")
    server.stop()
    with open("/proc/mounts", encoding="utf-8") as mounts:
        t.equal([line for line in mounts if str(t.dir) in line], [], "mounts that are left")
    pool.check()


@test(seconds_max=300)
def nothing_lands_in_the_directory_of_an_inner_share(t):
    """while `home/meier` is unmounted or rolled back, or a tree is imported into `home`, nothing can be named in its directory in `home`,
    not by those either who hold that directory from before"""
    pool = Pool(t)
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True)
    home = server.share("home")
    os.mkdir(home / "meier")
    below = os.open(home / "meier", os.O_RDONLY | os.O_DIRECTORY)
    pool.shale("create", "home/meier", "--share")
    meier = server.share("home/meier")
    (meier / "file").write_text("of meier")
    pool.shale("snapshot", "home/meier@s")

    def is_refused(what, work):
        try:
            work()
        except OSError as error:
            t.equal(error.errno, errno.EBUSY, what)
            return
        t.expect(False, f"{what}: it was not refused")

    # By those who hold the directory while the mount is over it.
    is_refused("a file", lambda: os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=below))
    is_refused("a directory", lambda: os.mkdir("new", dir_fd=below))
    (home / "mine").write_text("x")
    is_refused("a rename", lambda: os.rename(home / "mine", "new", dst_dir_fd=below))
    is_refused("a link", lambda: os.link(home / "mine", "new", dst_dir_fd=below))
    # While the share is unmounted and mounted anew.
    over, wrong = threading.Event(), []

    def intrude():
        while not over.is_set():
            try:
                os.close(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=below))
                wrong.append("a file came to be")
            except OSError as error:
                if error.errno != errno.EBUSY:
                    wrong.append(str(error))

    thread = threading.Thread(target=intrude, daemon=True)
    thread.start()
    for _ in range(10):
        pool.shale("rollback", "home/meier@s")
        t.equal((server.share("home/meier") / "file").read_text(), "of meier", "rolled back")
    over.set()
    thread.join()
    t.equal(wrong[:3], [], "what came of files in the directory")
    # By all, while it is not mounted.
    subprocess.run(["umount", meier], check=True)
    is_refused("unmounted from a shell", lambda: (meier / "new").write_text("x"))
    os.close(below)
    server.stop()
    # A tree that is imported has nothing for it either.
    tree = t.dir / "tree"
    (tree / "meier").mkdir(parents=True)
    (tree / "meier" / "new").write_text("x")
    (tree / "beside").write_text("x")
    pool.shale("import", "home", tree, status=None)
    server = pool.serve(shares=True)
    t.equal((server.share("home/meier") / "file").read_text(), "of meier", "the share in it is mounted")
    t.equal(sorted(os.listdir(server.share("home"))), ["beside", "meier", "mine"], "names in home")
    server.stop()
    pool.check()
