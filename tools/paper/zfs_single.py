"""The thesis' single data sets: gzip's levels, all codecs, and block sizes against ratio, time and energy (figures 6.1 to 6.9)."""

import zfs_sets
import zfs_store
from lab.report import middle

GZIP = [f"gzip-{n}" for n in range(1, 10)]
CODECS = ["off", "zle", "lzjb", "lz4", *GZIP, "zstd-1", "zstd-3", "zstd-9"]
CODECS_QUICK = ["off", "lz4", "gzip-1", "gzip-6", "gzip-9", "zstd-3"]
MODES = [f"auto {mode}" for mode in zfs_store.MODES]
# The thesis' five; behind them files of users, by extension.
THESIS = ["linux.tar", "random.dat", "mixed.dat", "linux", "netcdf"]
OTHERS = ["pdf", "png", "sqlite", "whl", "gz"]
UNITS = ["4K", "8K", "16K", "32K", "64K", "128K"]
UNIT_CODECS = ["zle", "lzjb", "lz4", "gzip-1", "zstd-3"]
# Figures 6.1 and 6.2 alone have all levels of gzip: those between are measured on their data sets only.
BETWEEN, WITH_ALL_LEVELS = ["gzip-2", "gzip-3", "gzip-4", "gzip-5", "gzip-7", "gzip-8"], ["linux.tar", "random.dat"]


def codecs(lab, energy, how):
    """Each data set with each codec and each mode, on a share of its own in one pool for each setting."""
    settings = (CODECS_QUICK if lab.quick else CODECS) + MODES
    names = THESIS + (OTHERS[:2] if lab.quick else OTHERS)
    sources = {name: zfs_sets.single(lab, name, how["single_bytes"]) for name in names}
    for disk in lab.disks(how["disk"]):
        for run in range(how["runs"]):
            for setting in settings:
                chosen = WITH_ALL_LEVELS if setting in BETWEEN else names
                wanted = {f"s{n}": zfs_store.properties(setting) for n in range(len(chosen))}
                with zfs_store.shares(lab, disk, wanted, zfs_store.room(how["single_bytes"], len(chosen))) as place:
                    for share, name in zip(wanted, chosen):
                        lab.report.row("codecs", data=name, setting=setting, run=run + 1, **zfs_store.store(lab, place, energy, share, sources[name]))


def of(report, field, **wanted):
    """Mean of a field."""
    return middle(report.values("codecs", field, **wanted))


def found(report, field, **wanted):
    """Values of a field of the table, or of these rows of it, in the order in which they were measured."""
    return list(dict.fromkeys(row[field] for row in report.select("codecs", **wanted)))


def show_codecs(lab, how):
    """Figures 6.1, 6.2 and 6.5 to 6.9 without load, and a table for each data set."""
    report = lab.report
    report.heading("Codecs on single data sets, idle (figures 6.1 to 6.9)")
    for name in found(report, "data"):
        settings = found(report, "setting", data=name)
        report.bars(f"codecs-{name}-time", f"{name}: seconds until durable, and CPU seconds", settings, ["seconds", "CPU seconds"],
                    lambda setting, what, name=name: report.values("codecs", "seconds" if what == "seconds" else "cpu_s", data=name, setting=setting), "s")
        report.table([name, "ratio", "s", "CPU s", "joules", "joules, of off", "MB to the disk"],
                     [[s, of(report, "ratio", data=name, setting=s), of(report, "seconds", data=name, setting=s), of(report, "cpu_s", data=name, setting=s),
                       of(report, "joules", data=name, setting=s), of(report, "joules", data=name, setting=s) / max(of(report, "joules", data=name, setting="off"), 1e-9),
                       of(report, "disk_written_bytes", data=name, setting=s) / 1e6] for s in settings])
    for name in WITH_ALL_LEVELS:
        levels = [s for s in found(report, "setting", data=name) if s.startswith("gzip-")]
        curves = {what: [(int(s[5:]), 100 * (of(report, field, data=name, setting=s) / of(report, field, data=name, setting="gzip-1") - 1)) for s in levels]
                  for what, field in [("CPU time", "cpu_s"), ("time", "seconds"), ("ratio", "ratio")]}
        report.table([f"gzip on {name}: % more than level 1", *levels], [[what, *[y for _, y in curve]] for what, curve in curves.items()])
        if name == "linux.tar":
            report.lines("gzip-levels", "gzip on linux.tar: % more than level 1 (figure 6.1)", curves, "level", "%")


def units(lab, energy, how):
    """Unit sizes, the record size of ZFS, with the thesis' codecs and zstd-3, on one file and on many."""
    for disk in lab.disks(how["disk"]):
        for run in range(how["runs"]):
            for name in ("linux.tar", "linux"):
                source = zfs_sets.single(lab, name, how["single_bytes"])
                for unit in UNITS[::2] if lab.quick else UNITS:
                    wanted = {f"with-{codec}": {"compression": codec, "unit": unit} for codec in UNIT_CODECS}
                    with zfs_store.shares(lab, disk, wanted, zfs_store.room(how["single_bytes"], len(wanted))) as place:
                        for share, codec in zip(wanted, UNIT_CODECS):
                            lab.report.row("units", data=name, unit=int(unit[:-1]), codec=codec, run=run + 1, **zfs_store.store(lab, place, energy, share, source))


def show_units(lab, how):
    """Figures 6.3 and 6.4."""
    report = lab.report
    report.heading("Unit sizes (figures 6.3 and 6.4)")
    report.text("The thesis had blocks of 0.5 to 128 KiB; units here are of 4 to 128 KiB. Files that are shorter than a unit are a unit of their own.")
    sizes = sorted({row["unit"] for row in report.table_of("units")})
    for name in ("linux.tar", "linux"):
        for field, up in (("ratio", "ratio"), ("seconds", "seconds until durable"), ("cpu_s", "CPU seconds")):
            report.lines(f"units-{name}-{field}", f"{name}: {up} by unit size", {codec: [(s, report.values("units", field, data=name, unit=s, codec=codec)) for s in sizes]
                                                                               for codec in UNIT_CODECS}, "KiB", up, logarithmic=True)
        rows = []
        for codec in UNIT_CODECS:
            for what, field in (("ratio", "ratio"), ("s", "seconds"), ("CPU s", "cpu_s")):
                rows.append([f"{codec}, {what}", *[middle(report.values("units", field, data=name, unit=s, codec=codec)) for s in sizes]])
        report.table([name, *[f"{s} KiB" for s in sizes]], rows)
