"""Tables I and II of the ZBD paper: what compressing a block costs, and what kinds of files save."""

import json
import os
import subprocess
import tarfile

from lab import data, output

CODECS = {"lzo": "lzo", "zlib": "gzip-1", "zstd-1": "zstd-1", "lz4": "lz4"}
BLOCK = 4096
# Theirs: microseconds to compress and decompress 4 KiB, and per cent saved.
THEIRS = {"lzo": (46, 14, 34), "zlib": (150, 60, 54)}
KINDS = ["mail", "source", "compiled", "logs", "pdf", "db-pages", "words"]


def cpu_of(command):
    """CPU seconds of a program, all its threads."""
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def block_cost(lab, how):
    """Table I: CPU time of Shale for a block of 4 KiB, beyond that of storing it as it is."""
    content = data.mail()
    part = lab.work / "blocks"
    with open(content, "rb") as file:
        part.write_bytes(file.read(min(how["kind_bytes"], content.stat().st_size)))
    blocks = part.stat().st_size / BLOCK
    base = None
    for name in ["off", *CODECS]:
        pool = lab.work / "pool-of-blocks"
        output(lab.shale, "init", pool, "--capacity", "1G", "-o", f"compression={CODECS.get(name, name)}", "-o", "unit=4K", "-o", "dictionary=off", "-o", "min-saving=0")
        written = cpu_of([lab.shale, "--quiet", "import", pool, "blocks", part])
        read = cpu_of([lab.shale, "--quiet", "export", pool, "blocks", "-"])
        status = json.loads(output(lab.shale, "status", pool, "--sync", "--json"))
        base = base or (written, read)
        lab.report.row("block", codec=name, compress_us=round((written - base[0]) / blocks * 1e6, 2), decompress_us=round((read - base[1]) / blocks * 1e6, 2),
                       saving_percent=round(status["saving_percent"], 1), blocks=int(blocks))
        subprocess.run(["rm", "-rf", pool], check=True)
    part.unlink()
    lab.report.heading("Cost of a block of 4 KiB (table I)")
    lab.report.text("CPU time of importing and exporting mail in units of 4 KiB without dictionaries, less that with compression off; the paper measured the library alone.")
    lab.report.table(["codec", "compress, us", "decompress, us", "saved, %", "theirs"],
                     [[r["codec"], r["compress_us"], r["decompress_us"], r["saving_percent"], ", ".join(map(str, THEIRS[r["codec"]])) if r["codec"] in THEIRS else None]
                      for r in lab.report.table_of("block")])


def size_of(paths):
    """Bytes of files."""
    return sum(p.stat().st_size for p in paths)


def some_files(directory, limit):
    """The first files of a directory, in the order of their names, until there are `limit` bytes."""
    chosen, total = [], 0
    for path in sorted(p for p in directory.rglob("*") if p.is_file() and not p.is_symlink()):
        if path.stat().st_size and (total + path.stat().st_size <= limit or not chosen):
            chosen.append(path)
            total += path.stat().st_size
    return chosen


def stored_on(lab, disk, setup, files, limit):
    """Stored bytes of ext4 with these files on a volume, less what the empty file system takes."""
    with lab.place(disk, setup, size=limit * 2 + (512 << 20)) as place:
        place.sync()
        before = place.status()["stored_bytes"]
        place.run(["cp", "--backup=numbered", "--no-preserve=all", "-t", place.path, *files])
        place.sync()
        return place.status()["stored_bytes"] - before


def on_btrfs(lab, option, files, limit):
    """Bytes that a btrfs with forced compression takes for these files, without its own metadata."""
    image, mnt = lab.work / "btrfs.img", lab.work / "btrfs"
    with open(image, "wb") as file:
        file.truncate(limit * 2 + (1 << 30))
    subprocess.run(["mkfs.btrfs", "-q", "-f", image], check=True, stderr=subprocess.DEVNULL)
    mnt.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", f"loop,compress-force={option}", image, mnt], check=True)
    try:
        subprocess.run(["cp", "--backup=numbered", "--no-preserve=all", "-t", mnt, *files], check=True)
        subprocess.run(["sync", "-f", mnt], check=True)
        told = output("btrfs", "filesystem", "df", "--raw", mnt)
        return sum(int(line.split("used=")[1]) for line in told.splitlines() if line.startswith("Data"))
    finally:
        subprocess.run(["umount", mnt], check=True)
        image.unlink()


def savings_by_kind(lab, how):
    """Table II: saved by gzip for each file, gzip of a tar, btrfs, and Shale."""
    corpus = data.corpus()
    limit = how["kind_bytes"]
    names = [n for n in KINDS if n == "mail" or (corpus / n).is_dir()]
    setups = lab.setups("lzo", "zlib", "zstd-1", "auto", "auto-archive") if not lab.quick else lab.setups("lzo", "zlib")
    columns = ["gzip -r", "tar.gz", "btrfs zlib", "btrfs lzo", *[f"shale {s.name}" for s in setups]]
    for name in names:
        files = [data.mail()] if name == "mail" else some_files(corpus / name, limit)
        original = size_of(files)
        if original == 0:
            continue
        stored = {"gzip -r": sum(len(output_bytes("gzip", "-6", "-c", f)) for f in files)}
        archive = lab.work / "kind.tar"
        with tarfile.open(archive, "w") as tar:
            for number, file in enumerate(files):
                tar.add(file, arcname=f"{number}-{file.name}")
        stored["tar.gz"] = len(output_bytes("gzip", "-6", "-c", archive))
        archive.unlink()
        for option in ("zlib", "lzo"):
            stored[f"btrfs {option}"] = on_btrfs(lab, option, files, limit)
        for disk in lab.disks("raw"):
            for setup in setups:
                stored[f"shale {setup.name}"] = stored_on(lab, disk, setup, files, max(limit, original))
        lab.report.row("kinds", kind=name, files=len(files), bytes=original, **{c: round(100 * (1 - stored[c] / original), 1) for c in columns if c in stored})
    lab.report.heading("Savings by kind of file, % (table II)")
    lab.report.table(["kind", "MB", *columns], [[r["kind"], round(r["bytes"] / 1e6), *[r.get(c) for c in columns]] for r in lab.report.table_of("kinds")])


def output_bytes(*command):
    """What a program prints, as bytes."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
