"""What users are told: refusals that change nothing, and words that name the thing and the way out."""

import json
import os
import subprocess

from harness import EXIT, Pool, test
from harness.pool import BINARY


@test()
def refused_destroy_takes_nothing_from_clients(t):
    """`destroy --force` and `rollback --force` of a share that are refused: no warning, and open files go on"""
    pool = Pool(t, capacity="256M")
    pool.shale("create", "media", "--share")
    server = pool.serve(shares=True)
    share = server.share("media")
    (share / "file").write_text("here")
    pool.shale("snapshot", "media@s")
    pool.shale("snapshot", "media@t")
    with open(share / "file", encoding="ascii") as held:
        for words in [("destroy", "media", "--force"), ("rollback", "media@s", "--force")]:
            said = pool.shale(*words, status=EXIT["in-use"]).stderr
            t.expect("snapshots" in said, f"why it is refused: {said}")
            t.expect("lose" not in said and "content changes" not in said, f"nothing is announced: {said}")
            t.equal((os.pread(held.fileno(), 4, 0), held.read(0)), (b"here", ""), "the open file")
        shell = subprocess.run(["cat", "file"], cwd=share, capture_output=True, text=True, check=False)
        t.equal(shell.stdout, "here", "a shell in the share")
        said = pool.shale("destroy", "media", "-r", "--force").stdout
    t.equal(said, "share media destroyed\n", "what was destroyed")
    server.stop()


@test()
def image_formats_are_refused(t):
    """import of a qcow2 file, from a file and a pipe: refused with the command that converts it; --as-is takes it; export warns"""
    pool = Pool(t, capacity="256M")
    image = t.dir / "disk.qcow2"
    image.write_bytes(b"QFI\xfb\0\0\0\x03" + bytes(1 << 20))
    for shell in [f"{BINARY} import {pool.path} v {image}", f"cat {image} | {BINARY} import {pool.path} v -"]:
        done = t.run("sh", "-c", shell, status=EXIT["usage"])
        t.expect("qemu-img convert -O raw" in done.stderr and "qcow2" in done.stderr, f"the way out: {done.stderr}")
    t.equal(json.loads(pool.shale("list", "--json").stdout), [], "volumes behind a refusal")
    pool.shale("import", "v", image, "--as-is")
    out = t.dir / "out.QCOW2"
    done = pool.shale("export", "v", out)
    t.expect("is a raw disk image, not qcow2" in done.stderr, f"the warning: {done.stderr}")
    t.equal(out.read_bytes(), image.read_bytes(), "what was taken as it is")


@test()
def words_name_the_thing(t):
    """what is missing in `create`, names of snapshots, files of a share in a share, a codec without a level, a rule without the mode"""
    pool = Pool(t, capacity="256M")
    said = pool.shale("create", "zz", status=EXIT["usage"]).stderr
    t.expect(all(word in said for word in ["--size", "--share", "--folder"]), f"what can be made: {said}")
    said = pool.shale("snapshot", "bad name", status=EXIT["usage"]).stderr
    t.expect("FOLDER/NAME" in said, f"how a snapshot is named: {said}")
    pool.shale("create", "home", "--share", "-o", "rule.log=archive:zstd-9,energy:lz4")
    pool.shale("create", "home/meier", "--share")
    server = pool.serve(shares=True)
    home, meier = server.share("home"), server.share("home/meier")
    (meier / "F").write_bytes(os.urandom(8192))
    (home / "a.log").write_text("line\n" * 1000)
    for path in ["meier/F", str(meier / "F")]:
        found = json.loads(pool.shale("explain", "home", path, "--json").stdout)
        t.equal((found["path"], found["size_bytes"]), (path, 8192), "a file of the share in the share")
    said = " ".join(pool.shale("explain", "home", "a.log").stdout.split())
    t.expect("rule.log has no entry for the mode in force, balanced" in said, f"the rule that does nothing: {said}")
    for value, told in [("gzip", "gzip-6 (set here)"), ("zstd", "zstd-3 (set here)"), ("on", "auto (set here)")]:
        os.setxattr(home / "a.log", "user.shale.compression", value.encode())
        t.equal(os.getxattr(home / "a.log", "user.shale.compression").decode(), told, f"what {value} stands for")
    server.stop()


@test()
def figures_behind_a_recompression(t):
    """what `recompress` has won shows in `list` as soon as it ends"""
    pool = Pool(t, capacity="256M")
    pool.create("v", 16 << 20, compression="off")
    server = pool.serve()
    text = t.dir / "text"
    text.write_bytes(b"a line of text that shrinks well\n" * (300 << 10))
    pool.shale("import", "v", text, "--overwrite")
    pool.shale("set", "v", "compression=zstd-3")
    pool.shale("list", "--sync")
    done = json.loads(pool.shale("recompress", "v", "--rate", "max", "--json").stdout)
    (volume,) = json.loads(pool.shale("list", "--json").stdout)
    won = done["before_bytes"] - done["after_bytes"]
    t.expect(won > 5 << 20 and volume["stored_bytes"] < 2 << 20, f"{won} won, {volume['stored_bytes']} stored")
    server.stop()


@test()
def full_file_system_below_is_named(t):
    """the file system below has less room than the pool: `status` names it, and does not advise `grow`"""
    small = t.mount("small", "small", "-t", "tmpfs", "-o", "size=120M")
    pool = Pool(t, capacity="2G", data=small / "data")
    pool.create("v", "1G")
    noise = t.dir / "noise"
    noise.write_bytes(os.urandom(110 << 20))
    pool.shale("import", "v", noise, "--overwrite", status=None)
    said = " ".join(pool.shale("status").stdout.split())
    t.expect("file system below" in said and "'shale grow' does not help" in said, f"what is short: {said}")


@test()
def blobs_are_listed(t):
    """`blob ls` of a directory: blobs with their newest versions, directories with blobs, all with -r, and a blob itself"""
    top = t.dir / "blobs"
    (t.dir / "small").write_bytes(b"content")
    for name in ["a", "b/c", "b/d/e"]:
        t.run(BINARY, "blob", "put", f"file://{top}/{name}", t.dir / "small")
    t.run(BINARY, "blob", "tag", f"file://{top}/a@1", "first")
    (top / "empty").mkdir()

    def listed(*words):
        return json.loads(t.out(BINARY, "blob", "ls", *words, "--json"))

    found = listed(f"file://{top}")
    t.equal([line["blob"] for line in found["blobs"]], [f"file://{top}/a"], "blobs")
    t.equal((found["blobs"][0]["size_bytes"], found["blobs"][0]["tags"]), (7, ["first"]), "the newest version")
    t.equal(found["directories"], [f"file://{top}/b/"], "directories")
    found = listed(f"file://{top}", "-r")
    t.equal([line["blob"][len(f"file://{top}/") :] for line in found["blobs"]], ["a", "b/c", "b/d/e"], "all of them")
    t.equal([line["blob"] for line in listed(f"file://{top}/b/c")["blobs"]], [f"file://{top}/b/c"], "a blob")
    t.expect("no blobs below" in t.out(BINARY, "blob", "ls", f"file://{top}/empty"), "an empty directory")
    t.expect("newest versions" in t.run(BINARY, "blob", "ls", f"file://{top}/a@1", status=EXIT["usage"]).stderr, "a version")
