"""Millions of files in one share: only in `make e2e`, which sets SHALE_E2E. SHALE_FILES says how many."""

import io
import os
import subprocess
import tarfile

from harness import Pool, test
from harness.pool import BINARY

# What the server may take, and what a million inodes that the kernel has cached may take on top: the kernel holds on to their numbers, so
# that no limit of the server's can drop them.
MEMORY_MIB = 512
MIB_PER_MILLION_CACHED = 300


def archive_into(descriptor, files):
    """Writes an archive of so many small files, a thousand in each directory."""
    with os.fdopen(descriptor, "wb", 1 << 20) as out, tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        for number in range(files):
            directory = f"d{number // 1000:05}"
            if number % 1000 == 0:
                head = tarfile.TarInfo(directory)
                head.type, head.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(head)
            head = tarfile.TarInfo(f"{directory}/file-{number}")
            head.size, head.mtime = 8, 1_700_000_000
            archive.addfile(head, io.BytesIO(b"%08d" % number))


def cached_inodes():
    """Inodes of FUSE that the kernel has in memory."""
    with open("/proc/slabinfo", encoding="ascii") as slabs:
        return next((int(line.split()[1]) for line in slabs if line.startswith("fuse_inode")), 0)


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=6 * 3600)
    def e2e_share_of_millions(t):
        """8 million files in one tree: imported, walked, held in memory that is bounded, and served again after kill -9 with the names that were not synced"""
        files = int(os.environ.get("SHALE_FILES", "8000000"))
        pool = Pool(t, capacity="16G")
        pool.shale("create", "home", "--share")
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reads)
            archive_into(writes, files)
            os._exit(0)
        os.close(writes)
        with os.fdopen(reads, "rb") as archive:
            subprocess.run([str(BINARY), "import", str(pool.path), "home", "-"], stdin=archive, stdout=subprocess.DEVNULL, check=True)
        os.waitpid(child, 0)
        server = pool.serve(shares=True, memory=f"{MEMORY_MIB}M")
        share = server.share("home")
        t.note(f"ready after {server.ready_s:.2f} s, {server.rss_bytes() >> 20} MiB")
        before = cached_inodes()
        walk = subprocess.run(["find", str(share), "-type", "f", "-size", "+0", "-printf", "."], capture_output=True, check=True)
        t.equal(len(walk.stdout), files, "files found")
        cached, rss = max(cached_inodes() - before, 0), server.rss_bytes() >> 20
        t.note(f"after a walk with {cached} inodes in the kernel's cache: {rss} MiB")
        t.expect(rss <= MEMORY_MIB + MIB_PER_MILLION_CACHED * cached / 1e6, f"{rss} MiB with {cached} cached inodes")
        t.run("sysctl", "-q", "vm.drop_caches=2")
        rss = server.rss_bytes() >> 20
        t.note(f"when the kernel has forgotten them: {rss} MiB")
        t.expect(rss <= MEMORY_MIB * 5 / 4, f"{rss} MiB, --memory is {MEMORY_MIB} MiB")
        os.rename(share / "d00001", share / "moved")
        (share / "late").write_text("not synced")
        server.kill()
        server = pool.serve(shares=True, memory=f"{MEMORY_MIB}M")
        t.note(f"ready after kill -9 in {server.ready_s:.2f} s")
        share = server.share("home")
        t.equal((len(os.listdir(share / "moved")), (share / "late").read_text()), (1000, "not synced"), "names that were not synced")
        server.stop()
