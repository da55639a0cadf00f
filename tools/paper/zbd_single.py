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


def show_block_cost(lab, how):
    """Table I beside theirs."""
    lab.report.heading("Cost of a block of 4 KiB (table I)")
    lab.report.text("CPU time of importing and exporting mail in units of 4 KiB without dictionaries, less that with compression off; the paper measured the library alone.")
    rows = [r for r in lab.report.table_of("block") if r["codec"] != "off"]
    for field, title, unit, index in (("compress_us", "compressing", "us", 0), ("decompress_us", "decompressing", "us", 1), ("saving_percent", "saved of", "%", 2)):
        lab.report.bars(f"block-{field.split('_')[0]}", f"{title} a block of 4 KiB", [r["codec"] for r in rows], ["ours"],
                        lambda codec, _, field=field: lab.report.values("block", field, codec=codec), unit, theirs=lambda codec, _, index=index: THEIRS[codec][index] if codec in THEIRS else None,
                        said="Theirs: table I, of the libraries in Linux 2.6.18 on a processor of 2 GHz.")
    lab.report.table(["codec", "compress, us", "theirs", "decompress, us", "theirs", "saved, %", "theirs"],
                     [[r["codec"], r["compress_us"], of[0], r["decompress_us"], of[1], r["saving_percent"], of[2]] for r in rows for of in [THEIRS.get(r["codec"], (None, None, None))]])


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


# Table II: MB, and per cent saved by gzip file by file, gzip of a tar, NTFS, ZFS, ZBD with zlib, and with lzo.
TABLE_2 = {"mbox 1": (125, None, 29, 7, 4, 17, 11), "mbox 2": (63, None, 68, 39, 31, 54, 34), "MS Word": (1100, 50, 51, 37, 35, 44, 33), "MS Excel": (756, 67, 67, 47, 41, 55, 47),
           "PDF": (1400, 22, 22, 14, 15, 15, 12), "Linux source": (277, 55, 76, 27, 33, 69, 46), "Linux compiled": (1400, 63, 71, 47, 52, 67, 58)}
# Kinds that both have: ours, theirs.
BOTH = {"mail": "mbox 2", "source": "Linux source", "compiled": "Linux compiled", "pdf": "PDF"}


def show_savings_by_kind(lab, how):
    """Table II, and theirs."""
    report = lab.report
    report.heading("Savings by kind of file, % (table II)")
    columns = [c for c in report.table_of("kinds")[0] if c not in ("kind", "files", "bytes")]
    of = {"gzip -r": 1, "tar.gz": 2, "shale zlib": 5, "shale lzo": 6}
    report.bars("kinds", "saved by kind of file", [k for k in BOTH if report.select("kinds", kind=k)], list(of), lambda kind, column: report.values("kinds", column, kind=kind), "% saved",
                theirs=lambda kind, column: TABLE_2[BOTH[kind]][of[column]], said="Theirs: table II, of the kinds that both have; other files of these kinds, and ZBD where ours is Shale. Of mail: their mbox 2, without gzip -r.")
    report.table(["kind", "MB", *columns], [[r["kind"], round(r["bytes"] / 1e6), *[r.get(c) for c in columns]] for r in report.table_of("kinds")])
    report.text("Theirs, table II:")
    report.table(["kind", "MB", "gzip -r", "tar.gz", "NTFS", "ZFS", "ZBD zlib", "ZBD lzo"], [[kind, *row] for kind, row in TABLE_2.items()])


def output_bytes(*command):
    """What a program prints, as bytes."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
