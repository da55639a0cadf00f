"""Mounts outlive kill -9 of their server: programs that use them wait for the next one, and nothing is unmounted."""

import os
import subprocess
import threading

from harness import Pool, test


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
