"""Table 3.4: what its rules make of each type of file in each mode."""

import gzip
import itertools
import shutil
import subprocess

import zfs_sets
import zfs_store
from lab import ROOT, data
from lab.report import middle

# The thesis' table 3.4: archive, energy, performance.
TABLE = {"txt": {"archive": "gzip-6", "energy": "gzip-1", "performance": "lz4"}, "log": {"archive": "gzip-9", "energy": "gzip-6", "performance": "gzip-1"},
         "nc": {"archive": "gzip-1", "energy": "lz4", "performance": "lz4"}, "gz": {"archive": "off", "energy": "off", "performance": "off"}}
# Both branches of figure 3.1: what is set, and the end of its tables' names.
BRANCHES = {"auto": "", "off": "-off"}
# No type of file begins so.
UNHEARD = b"\x01\x02\x03\0"


def rule(codecs):
    """A row of the table as a property."""
    return ",".join(f"{mode}:{codec}" for mode, codec in codecs.items()) if len(set(codecs.values())) > 1 else next(iter(codecs.values()))


def log_lines(lab, limit):
    """Lines of logs: those of the benchmarks' data, or of this repository's history."""
    if not lab.quick:
        return b"".join(f.read_bytes()[:limit // 2] for f in zfs_sets.files_below(data.corpus() / "logs"))[:limit]
    told = subprocess.run(["git", "log", "--stat", "-n", "2000"], cwd=ROOT, capture_output=True, check=False).stdout
    return (told or b"".join(zfs_sets.messages(limit)))[:limit]


def typed_set(lab, limit):
    """Files of the table's four types, of one that no rule knows, and of sources and pictures, which default rules know."""
    target = lab.work / "sets" / f"types-{limit}"
    if target.exists():
        return target
    target.mkdir(parents=True)
    for number, message in enumerate(zfs_sets.messages(limit)):
        (target / f"{number}.txt").write_bytes(message)
    lines = log_lines(lab, limit)
    for number, at in enumerate(range(0, len(lines), limit // 4)):
        (target / f"{number}.log").write_bytes(lines[at:at + limit // 4])
        (target / f"{number}.gz").write_bytes(gzip.compress(lines[at:at + limit // 4], 6, mtime=0))
        # The same with a name and first bytes that say nothing.
        (target / f"{number}.unheard").write_bytes(UNHEARD + lines[at:at + limit // 4])
    for file in zfs_sets.files_below(zfs_sets.single(lab, "netcdf", limit)):
        shutil.copyfile(file, target / file.name)
    for kind, ends in (("kernel", (".c", ".h")), ("home", (".png", ".jpg", ".pdf"))):
        for number, file in enumerate(zfs_sets.pick([f for f in zfs_sets.files_below(zfs_sets.file_set(lab, kind, limit)) if f.name.endswith(ends)], limit)):
            shutil.copyfile(file, target / f"{number}-{file.name}")
    return target


def measure(lab, energy, how):
    """The tree in each mode, with the table's rules beside the defaults; compressed by auto, and the other branch of figure 3.1: not compressed but for the mode."""
    source = typed_set(lab, how["set_bytes"] // 4)
    examples = {f.suffix[1:]: f.name for f in zfs_sets.files_below(source)}
    rules = {f"rule.{word}": rule(codecs) for word, codecs in TABLE.items()}
    for disk in lab.disks(how["disk"]):
        for mode, (compression, end) in itertools.product(zfs_store.MODES, BRANCHES.items()):
            with zfs_store.shares(lab, disk, {"data": {"compression": compression, "mode": mode}}, zfs_store.room(how["set_bytes"], 2), **rules) as place:
                lab.report.row(f"modes{end}", mode=mode, **zfs_store.store(lab, place, energy, "data", source))
                explained = {end: place.explain("data", name) for end, name in examples.items()}
                for extension, told in explained.items():
                    lab.report.row(f"examples{end}", mode=mode, end=extension, type=told["file_type"] or "-", counts=told["compression"], codecs=" ".join(dict.fromkeys(p["codec"] for p in told["parts"])),
                                   why="; ".join(dict.fromkeys(p["why"] for p in told["parts"])))
                for line in place.usage("data")["types"]:
                    lab.report.row(f"types{end}", mode=mode, type=line["name"], files=line["files"], bytes=line["size_bytes"], stored=line["stored_bytes"],
                                   ratio=round(line["size_bytes"] / max(line["stored_bytes"], 1), 4))


def wanted(end, mode):
    """The table's codec; None where it has none."""
    return TABLE.get(end, {}).get(mode)


def show(lab, how):
    """Ratio by type and mode, and what decided."""
    report = lab.report
    report.heading("Rules by extension and mode (table 3.4)")
    report.text("The table's rules are set on the pool: " + "; ".join(f"rule.{word}={rule(codecs)}" for word, codecs in TABLE.items()) + ". Mode balanced is not in the table: there the defaults count.")
    names = list(dict.fromkeys(r["type"] for r in report.table_of("types")))
    report.bars("types", "ratio by type of file and mode", names, zfs_store.MODES, lambda name, mode: report.values("types", "ratio", type=name, mode=mode), "ratio")
    report.table(["type", "files", "MB", *zfs_store.MODES],
                 [[name, report.values("types", "files", type=name)[0], report.values("types", "bytes", type=name)[0] / 1e6, *[middle(report.values("types", "ratio", type=name, mode=m)) for m in zfs_store.MODES]]
                  for name in names])
    for compression, branch in BRANCHES.items():
        if not report.table_of(f"modes{branch}"):
            continue
        report.text(f"With compression={compression} and each mode:")
        report.table(["file and mode", "table 3.4", "stored with", "what counts", "why"],
                     [[f".{r['end']}, {r['mode']}", wanted(r["end"], r["mode"]), r.get("codecs"), r["counts"], r.get("why")] for r in report.table_of(f"examples{branch}")])
        report.table(["mode", "ratio", "s", "CPU s", "joules"], [[r["mode"], r["ratio"], r["seconds"], r["cpu_s"], r["joules"]] for r in report.table_of(f"modes{branch}")])
