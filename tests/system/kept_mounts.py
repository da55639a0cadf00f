"""Mounts outlive kill -9 of their server: programs that use them wait for the next one, and nothing is unmounted."""

import contextlib
import json
import os
import subprocess
import threading

from harness import Pool, test
from harness.context import TestFailed
from harness.namespaces import LEAVE_OTHERS
from harness.pool import BINARY, EXIT, READY_SECONDS_MAX


def writes_of(device):
    """Requests to write that a block device has completed."""
    with open(f"/sys/block/{os.path.basename(device)}/stat", encoding="ascii") as stat:
        return int(stat.read().split()[4])


def outlive(t, kills):
    """ext4 over a loop device over a volume's file, with fio on it, while the server is killed again and again."""
    pool = Pool(t, capacity="2G")
    pool.create("vol", "512M")
    server = pool.serve(mount=True, keeps=True)
    # Open through all kills.
    held = os.open(server.file("vol"), os.O_RDONLY)
    t.defer(lambda: os.close(held))
    device = t.loop(server.file("vol"))
    t.run("mkfs.ext4", "-q", device)
    directory = t.mount(device, "fs")
    number = os.stat(server.mount_dir).st_dev
    ended, failed, rounds = threading.Event(), [], 0

    def load():
        nonlocal rounds
        while not ended.is_set() and not failed:
            run = subprocess.run(["fio", "--name=kept", f"--directory={directory}", "--rw=randwrite", "--bsrange=4k-64k", "--size=24M",
                                  "--numjobs=2", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--fsync=64", "--end_fsync=1", "--group_reporting"],
                                 capture_output=True, text=True, check=False)
            rounds += 1
            if run.returncode != 0 or "error" in run.stderr:
                failed.append(f"fio ended with {run.returncode}: {run.stdout[-800:]} {run.stderr[-800:]}")

    writer = threading.Thread(target=load, daemon=True)
    writer.start()
    for _ in range(kills):
        until = writes_of(device) + 40
        t.wait_for(lambda: writes_of(device) >= until or failed, "writes to the loop device")
        server.kill(leaves_mount=True)
        server = pool.serve(mount=True, keeps=True)
    ended.set()
    writer.join()
    t.expect(not failed, failed[0] if failed else "")
    t.equal(os.stat(server.mount_dir).st_dev, number, "the number of the mount's device")
    t.expect(len(os.pread(held, 4096, 0)) == 4096, "the file that was open all the time is read")
    busy = pool.shale("destroy", "vol", status=None)
    t.expect(busy.returncode == 4, f"the volume counts as in use: {busy}")
    t.umount(directory)
    t.run("e2fsck", "-f", "-n", device)
    t.detach(device)
    t.note(f"{kills} kills, {rounds} runs of fio")
    return pool, server


@test(seconds_max=900)
def mount_outlives_its_server(t):
    """3 kills under fio with verification on ext4 over a volume's file, without unmounting anything"""
    pool, server = outlive(t, 3)
    # The mount goes in order with a server that is stopped, and its keeper with it.
    server.stop()
    t.wait_for(lambda: not keepers(pool), "the end of the keeper")
    pool.check()


@test(seconds_max=7200, soak=True)
def soak_mount_outlives_its_server(t):
    """50 kills under fio with verification on ext4 over a volume's file, without unmounting anything"""
    pool, server = outlive(t, 50)
    server.stop()
    pool.check()


@test()
def mount_is_handed_over(t):
    """SIGUSR2: open files of a volume and of a share, a program in it and ext4 on a loop device go on with the next server"""
    pool = Pool(t, capacity="1G")
    pool.create("v", "128M")
    pool.shale("create", "s", "--share")
    server = pool.serve(mount=True, shares=True, keeps=True)
    share = server.share("s")
    device = t.loop(server.file("v"))
    t.run("mkfs.ext4", "-q", device)
    directory = t.mount(device, "fs")
    (directory / "before").write_text("before")
    # Not in this process: a server that it starts would first wait for itself, to close the file.
    words = ["sh", "-c", "exec 3>>file; while read word; do echo $word >&3 || exit 1; echo done; done"]
    with subprocess.Popen(words, cwd=share, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as held:

        def say(word):
            held.stdin.write(f"{word}\n")
            held.stdin.flush()
            t.equal(held.stdout.readline(), "done\n", f"{word} is written")

        say("not-synced")
        for word in ["one", "two"]:
            server.hand_over()
            server = pool.serve(mount=True, shares=True, keeps=True)
            say(word)
            (directory / word).write_text(word)
        held.stdin.close()
        t.equal(held.wait(), 0, "the program that had the file open all the time")
    t.equal((share / "file").read_text(), "not-synced\none\ntwo\n", "the share")
    t.umount(directory)
    t.run("e2fsck", "-f", "-n", device)
    t.detach(device)
    server.stop()
    pool.check()


@test()
def mount_that_nothing_holds_ends_in_order(t):
    """SIGUSR2 to a server without a keeper stops it as SIGTERM does"""
    pool = Pool(t, capacity="256M")
    pool.create("v", 16 << 20)
    server = pool.serve(mount=True)
    server.hand_over()
    t.expect(not os.path.ismount(server.mount_dir), "the mount is gone")
    pool.check()


def keepers(pool):
    """Whether the socket of the pool's keeper is open."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as sockets:
        return any(line.rstrip().endswith(str(pool.path / "keeper.sock")) for line in sockets)


@test()
def mount_without_keeper_ends_with_its_server(t):
    """--keep-mounts off, and a server that comes back at another directory: the old mount ends, its users get errors"""
    pool = Pool(t, capacity="256M")
    pool.create("v", 16 << 20)
    server = pool.serve(mount=True, keeps=True)
    held = os.open(server.file("v"), os.O_RDONLY)
    t.defer(lambda: os.close(held))
    server.kill(leaves_mount=True)
    # The next one does not want it.
    server = pool.serve()
    try:
        os.pread(held, 4096, 0)
        t.fail("a file of a mount that nothing serves is read")
    except OSError as error:
        t.log(f"as it should be: {error}")
    t.run("umount", "--lazy", t.dir / f"{pool.path.name}.mnt")
    server.stop()
    pool.check()


@test()
def mount_not_taken_up_ends(t):
    """a server that serves only some of what a killed one had mounted: the mounts of the others end, their users get errors"""
    pool = Pool(t, capacity="256M")
    pool.create("v", 16 << 20)
    pool.shale("create", "s", "--share")
    server = pool.serve(mount=True, shares=True, keeps=True)
    share = server.share("s")
    held = os.open(server.file("v"), os.O_RDONLY)
    t.defer(lambda: os.close(held))
    (share / "file").write_bytes(b"kept")
    server.kill(leaves_mount=True)
    server = pool.serve(shares=True, keeps=True)
    try:
        os.pread(held, 4096, 0)
        t.fail("a file of a mount that nothing serves is read")
    except OSError as error:
        t.log(f"as it should be: {error}")
    t.equal((server.share("s") / "file").read_bytes(), b"kept", "the share, which was taken up")
    t.run("umount", "--lazy", t.dir / f"{pool.path.name}.mnt")
    server.stop()
    pool.check()


@test()
def mount_taken_away_between_servers(t):
    """umount -l while no server is there: the next one mounts volumes and shares again, and open files go on"""
    pool = Pool(t, capacity="256M")
    pool.create("v", 16 << 20)
    pool.shale("create", "s", "--share")
    server = pool.serve(mount=True, shares=True, keeps=True)
    volume = os.open(server.file("v"), os.O_RDWR)
    t.defer(os.close, volume)
    # One file is closed before: the kernel learns that no FLUSH is wanted, for which programs that inherit a file would wait.
    (server.share("s") / "file").write_text("")
    file = os.open(server.share("s") / "file", os.O_RDWR)
    t.defer(os.close, file)
    server.kill(leaves_mount=True)
    for place in [server.mount_dir, server.shares_dir / "s"]:
        t.run("umount", "--lazy", place)
    server = pool.serve(mount=True, shares=True, keeps=True)
    t.equal(os.pwrite(file, b"goes on", 0), 7, "bytes written to the file that was open")
    t.equal((server.share("s") / "file").read_bytes(), b"goes on", "the same file by its name")
    t.equal(os.pwrite(volume, b"v" * 4096, 0), 4096, "bytes written to the volume that was open")
    t.equal(server.file("v").read_bytes()[:4096], b"v" * 4096, "the same volume by its name")
    server.stop()
    pool.check()


@test()
def mount_of_a_failed_start_waits(t):
    """servers that fail to start, before and after they have taken mounts over, leave them to the next one"""
    pool = Pool(t, capacity="256M")
    pool.create("v", 16 << 20)
    pool.shale("create", "s", "--share")
    server = pool.serve(mount=True, shares=True, keeps=True)
    mounts = ["--mount", server.mount_dir, "--shares", server.shares_dir]
    volume = os.open(server.file("v"), os.O_RDWR)
    t.defer(os.close, volume)
    # One file is closed before: the kernel learns that no FLUSH is wanted, for which programs that inherit a file would wait.
    (server.share("s") / "file").write_text("")
    file = os.open(server.share("s") / "file", os.O_RDWR)
    t.defer(os.close, file)
    server.kill(leaves_mount=True)
    busy = f"unix:{t.dir}/absent/sock"
    for words in [["--nbd", busy], ["--nbd", busy, "--keep-mounts", "off"], [*mounts, "--exports", "/proc/absent"],
                  ["--mount", server.mount_dir, "--shares", t.dir / "absent" / "absent"]]:
        failed = t.run(BINARY, "serve", pool.path, *words, status=None)
        t.expect(failed.returncode in (EXIT["not-found"], EXIT["io"]), f"{words}: exit status {failed.returncode}: {failed.stderr}")
    # The last thing that can fail: nobody reads the descriptor.
    failed = t.run("bash", "-c", 'exec 9> >(:); wait $!; exec "$@" --ready-fd 9', "-", BINARY, "serve", pool.path, *mounts, status=None)
    t.equal(failed.returncode, EXIT["io"], f"exit status with a --ready-fd that nobody reads: {failed.stderr}")
    t.expect("wait for the next one" in failed.stderr, f"it says so: {failed.stderr}")
    server = pool.serve(mount=True, shares=True, keeps=True)
    t.equal(os.pwrite(file, b"goes on", 0), 7, "bytes written to the file that was open")
    t.equal(os.pwrite(volume, b"v" * 4096, 0), 4096, "bytes written to the volume that was open")
    server.stop()
    pool.check()


@test()
def mount_with_copies_does_not_hold_the_server(t):
    """a bind mount and a mount namespace have copies: destroy names them, and SIGTERM ends the server"""
    pool = Pool(t, capacity="256M")
    pool.create("v", 16 << 20)
    pool.shale("create", "s", "--share")
    server = pool.serve(mount=True, shares=True, keeps=True)
    (server.share("s") / "file").write_text("kept")
    copy = t.dir / "copy"
    copy.mkdir()
    t.run("mount", "--bind", server.share("s"), copy)
    t.defer(t.run, "umount", "--lazy", copy, status=None)
    refused = pool.shale("destroy", "s", status=EXIT["in-use"]).stderr
    t.expect(str(copy) in refused, f"the copy is named: {refused}")
    t.equal((server.share("s") / "file").read_text(), "kept", "the share, which is served as before")
    there = f"{LEAVE_OTHERS}echo there; exec sleep 600"
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", there], env={**os.environ, "own": str(t.dir)}, stdout=subprocess.PIPE) as other:
        t.defer(other.kill)
        t.equal(other.stdout.readline(), b"there\n", "the process in the other namespace")
        server.stop()
        other.kill()
    t.run("umount", "--lazy", copy, status=None)
    pool.check()


@test()
def mount_waits_for_its_time(t):
    """--wait-for-server: users of a mount get errors when no server has come, and the next one mounts again"""
    pool = Pool(t, capacity="256M")
    pool.shale("create", "s", "--share")
    server = pool.serve(shares=True, keeps=True, words=["--wait-for-server", "2s"])
    (server.share("s") / "file").write_text("kept")
    held = os.open(server.share("s") / "file", os.O_RDWR)
    t.defer(os.close, held)
    server.kill(leaves_mount=True)
    # It waits as others do, and not for ever.
    t.run("df", status=None, seconds_max=120)
    t.wait_for(lambda: not keepers(pool), "the end of the keeper")
    try:
        os.pwrite(held, b"x", 0)
        t.fail("a file of a mount that nothing serves is written")
    except OSError as error:
        t.log(f"as it should be: {error}")
    server = pool.serve(shares=True, keeps=True)
    t.equal((server.share("s") / "file").read_text(), "kept", "the share, mounted anew")
    server.stop()
    pool.check()


@test()
def a_mount_waits_for_space(t):
    """a server is killed while the file system below is full: the next one serves the rest, and goes on with the mount when there is space"""
    small = t.dir / "small"
    os.mkdir(small)
    t.run("mount", "-t", "tmpfs", "-o", "size=128M,mode=700", "none", small)
    t.defer(lambda: subprocess.run(["umount", "--lazy", small], check=False))
    pool = Pool(t, "small/pool", capacity="1G")
    pool.shale("create", "home", "--share")
    pool.create("vol", "16M")
    server = pool.serve(shares=True, keeps=True, memory="64M")
    home = server.share("home")
    for number in range(100):
        (home / f"file {number}").write_text(f"number {number}" * 100)
    os.sync()
    held = os.open(home / "file 0", os.O_RDONLY)
    t.defer(lambda: os.close(held))

    def fill():
        """Leaves less than the pool leaves to its map."""
        free = os.statvfs(small).f_bavail * os.statvfs(small).f_frsize - (4 << 20)
        with open(small / "other program", "ab") as file:
            if free > 0:
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), free)

    with open(home / "large", "ab", buffering=0) as file, contextlib.suppress(OSError):
        fill()
        while file.write(os.urandom(1 << 20)):
            pass
    for number in range(1, 50):
        os.unlink(home / f"file {number}")
    expected = sorted(["file 0", "large", *(f"file {number}" for number in range(50, 100))])
    t.equal(sorted(os.listdir(home)), expected, "names before the kill")
    server.kill(leaves_mount=True)
    fill()

    def serve():
        """A server: with as little space as the writes take that the last one had acknowledged."""
        for _ in range(20):
            with contextlib.suppress(TestFailed):
                return pool.serve(shares=True, keeps=True, memory="64M")
            os.truncate(small / "other program", max(0, os.stat(small / "other program").st_size - (1 << 20)))
        t.fail("no server starts, however much space there is")

    server = serve()
    found = []
    user = threading.Thread(target=lambda: found.extend([os.listdir(home), os.pread(held, 100, 0)]), daemon=True)
    user.start()
    unserved = json.loads(pool.shale("status", "--json").stdout)["unserved_shares"]
    t.equal([line["share"] for line in unserved], ["home"], "shares that wait for space")
    t.expect("space" in unserved[0]["why"] and "damage" not in unserved[0]["why"], f"the reason: {unserved}")
    t.expect(not found, f"its programs wait: {found}")
    os.unlink(small / "other program")
    t.wait_for(lambda: not user.is_alive(), "the program that uses the mount")
    t.equal(sorted(found[0]), expected, "names after it")
    t.equal(found[1], (b"number 0" * 100)[:100], "the file that was open all the time")
    t.equal(json.loads(pool.shale("status", "--json").stdout)["unserved_shares"], [], "shares that wait then")
    server.stop()
    pool.check()


@test()
def mount_hides_nothing(t):
    """a mount point that is not empty, a live mount of another server and /proc are refused; --overlay insists"""
    first, second = Pool(t, "first", capacity="256M"), Pool(t, "second", capacity="256M")
    for pool in [first, second]:
        pool.shale("create", "home", "--share")
    server = first.serve(shares="shares")
    (server.share("home") / "file").write_text("of the first")
    refused = second.shale("serve", "--shares", server.shares_dir, status=EXIT["exists"]).stderr
    t.expect(str(first.path) in refused, f"the mount there is named: {refused}")
    t.equal((server.share("home") / "file").read_text(), "of the first", "the live share")
    server.stop()
    full = t.dir / "shares" / "home"
    (full / "important").write_text("below")
    for words in [["--shares", t.dir / "shares"], ["--mount", full]]:
        refused = second.shale("serve", *words, status=EXIT["exists"]).stderr
        t.expect("important" in refused, f"the content is named: {refused}")
    t.expect("proc" in second.shale("serve", "--mount", "/proc", status=EXIT["exists"]).stderr, "/proc is not refused")
    server = second.serve(shares="shares", words=["--overlay"])
    t.equal(os.listdir(server.share("home")), [], "the empty share over the directory")
    server.stop()
    t.equal((full / "important").read_text(), "below", "the file below")
    # One that cannot be mounted does not keep the others out.
    second.shale("create", "mail", "--share")
    server = second.serve(shares="shares")
    t.expect(os.path.ismount(server.share("mail")) and not os.path.ismount(full), "one share is served")
    t.expect("important" in second.shale("status").stdout, "status says why the other one is not")
    server.stop()


@test()
def server_in_the_background(t):
    """--detach returns when everything answers, logs with times, and gives back the exit code of a start that fails"""
    pool = Pool(t, capacity="256M")
    pool.shale("create", "s", "--share")
    shares, log = t.dir / "made", t.dir / "log"
    started = pool.shale("serve", "--shares", shares, "--detach", "--log", log)
    server = int(started.stdout)
    t.defer(t.run, "umount", "--lazy", shares / "s", status=None)
    t.defer(t.run, "kill", "-9", server, status=None)
    t.expect(os.path.ismount(shares / "s"), "the share is mounted when the command returns")
    t.expect(f"shares {shares}" in started.stderr and str(log) in started.stderr, f"the addresses are told: {started.stderr}")
    t.equal(os.getsid(server), server, "the session of the server is its own")
    for line in log.read_text().splitlines():
        t.expect(line[:4].isdigit() and line[10] == "T" and line[19] == "Z", f"a line of the log has no time: {line!r}")
    again = pool.shale("serve", "--detach", "--log", log, status=EXIT["in-use"])
    t.expect(str(server) in again.stderr, f"the message of the failed server: {again.stderr}")
    t.run("kill", server)
    t.run("timeout", READY_SECONDS_MAX, "tail", f"--pid={server}", "-f", "/dev/null")
    pool.check()


@test()
def command_waits_for_a_server_that_starts(t):
    """an import right after `serve &` waits for that server, and does not say that it mounts no shares"""
    tree = t.dir / "tree"
    tree.mkdir()
    (tree / "a").write_text("one")
    for number in range(8):
        pool = Pool(t, f"pool{number}", capacity="256M")
        pool.shale("create", "home", "--share")
        (t.dir / "mounts").mkdir(exist_ok=True)
        words = [BINARY, "serve", pool.path, "--shares", t.dir / "mounts"]
        with subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL) as server:
            t.defer(server.kill)
            # With the lock, and with or without an answer: the socket comes last.
            t.wait_for(lambda: pool.shale("status", "--wait", "0", status=None).returncode == EXIT["in-use"] or os.path.ismount(t.dir / "mounts/home"),
                       "the server has the pool")
            pool.shale("import", "home", tree, "--wait", READY_SECONDS_MAX)
            t.expect((t.dir / "mounts/home/a").read_text() == "one", "the import went through the mount")
            server.terminate()
            t.equal(server.wait(READY_SECONDS_MAX), 0, "exit status of the server")
