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
    """Median of a field."""
    return middle(report.values("codecs", field, **wanted))


def found(report, field, **wanted):
    """Values of a field of the table, or of these rows of it, in the order in which they were measured."""
    return list(dict.fromkeys(row[field] for row in report.select("codecs", **wanted)))


# Ratios in the text of the thesis, by data set: figures 6.9 to 6.12 and 6.15.
RATIOS = {"linux.tar": {"gzip-1": 3.68, "auto archive": 3.52}, "linux": {"lz4": 2.4, "lzjb": 2.0}, "mixed.dat": {"auto archive": 1.6}, "netcdf": {"gzip-1": 2.24, "auto archive": 2.2}}
FIGURES = {"linux.tar": "figure 6.10", "linux": "figure 6.9", "mixed.dat": "figure 6.12", "netcdf": "figure 6.15, TP04"}
# Energy of archive, of gzip-1's, idle: figures 6.10, 6.12 and 6.15.
ENERGY = {"linux.tar": 1.48 / 1.54, "mixed.dat": 2.2 / 3.8, "netcdf": 40 / 40.5}
# Per cent above level 1: figure 6.1 at level 9, and the band of figure 6.2.
LEVEL_9 = {"theirs, ratio": [(1, 0), (9, 25)], "theirs, time": [(1, 0), (9, 80)], "theirs, time under load": [(1, 0), (9, 200)]}
BAND = {"theirs, most": 10, "theirs, least": -15}


def show_codecs(lab, how):
    """Figures 6.1, 6.2 and 6.5 to 6.15 without load, and a table for each data set."""
    report = lab.report
    report.heading("Levels of gzip (figures 6.1 and 6.2)")
    for name in WITH_ALL_LEVELS:
        levels = [s for s in found(report, "setting", data=name) if s.startswith("gzip-")]
        base = {field: of(report, field, data=name, setting="gzip-1") for field in ("cpu_s", "seconds", "ratio")}
        curves = {what: [(int(s[5:]), [100 * (v / base[field] - 1) for v in report.values("codecs", field, data=name, setting=s)]) for s in levels]
                  for what, field in [("CPU time", "cpu_s"), ("time", "seconds"), ("ratio", "ratio")]}
        report.lines(f"gzip-{name}", f"gzip on {name}, idle: % more than level 1", curves, "level", "%", theirs=LEVEL_9 if name == "linux.tar" else BAND,
                     said="Theirs: figure 6.1, by its text, which has the ends only: level 9 takes 80 % more time, under load more than 200 %, and its ratio is about 25 % higher." if name == "linux.tar"
                     else "Theirs: figure 6.2, by its text: levels differ by +10 to -15 %.")
    for name in WITH_ALL_LEVELS:
        levels = [s for s in found(report, "setting", data=name) if s.startswith("gzip-")]
        report.table([f"gzip on {name}: % more than level 1", *levels],
                     [[what, *[100 * (of(report, field, data=name, setting=s) / of(report, field, data=name, setting="gzip-1") - 1) for s in levels]]
                      for what, field in [("CPU time", "cpu_s"), ("time", "seconds"), ("ratio", "ratio")]])
    report.heading("Codecs and modes on single data sets, idle (figures 6.5 to 6.12 and 6.15)")
    for name in found(report, "data"):
        settings = [s for s in found(report, "setting", data=name) if s not in BETWEEN]
        theirs = RATIOS.get(name, {})
        report.bars(f"codecs-{name}-ratio", f"{name}: ratio", settings, ["ours"], lambda setting, _, name=name: report.values("codecs", "ratio", data=name, setting=setting), "ratio",
                    theirs=lambda setting, _, theirs=theirs: theirs.get(setting),
                    said=f"Theirs: {FIGURES[name]}, by the text. Its archive chooses among LZ4, LZJB and gzip-1, ours among codecs up to zstd-19." if theirs else None)
        if name in OTHERS:
            # Too small for a time.
            continue
        report.bars(f"codecs-{name}-time", f"{name}: seconds until durable, and CPU seconds", settings, ["seconds", "CPU seconds"],
                    lambda setting, what, name=name: report.values("codecs", "seconds" if what == "seconds" else "cpu_s", data=name, setting=setting), "s",
                    said="Theirs has other data, and no numbers of time in its text.")
        report.bars(f"codecs-{name}-energy", f"{name}: CPU time, of gzip-1's", settings, ["ours"], lambda setting, _, name=name: of_gzip(report, name, setting), "of gzip-1's", rising=True,
                    theirs=lambda setting, _, name=name: ENERGY.get(name) if setting == "auto archive" else None,
                    said=f"Theirs: {FIGURES[name]}, by the text, in energy; ours is CPU time." if name in ENERGY else None)
    for name in found(report, "data"):
        settings = found(report, "setting", data=name)
        report.table([name, "ratio", "s", "CPU s", "joules", "joules, of off", "MB to the disk"],
                     [[s, of(report, "ratio", data=name, setting=s), of(report, "seconds", data=name, setting=s), of(report, "cpu_s", data=name, setting=s),
                       of(report, "joules", data=name, setting=s), of(report, "joules", data=name, setting=s) / max(of(report, "joules", data=name, setting="off"), 1e-9),
                       of(report, "disk_written_bytes", data=name, setting=s) / 1e6] for s in settings])


def of_gzip(report, name, setting):
    """CPU time of gzip-1's, run by run."""
    base = of(report, "cpu_s", data=name, setting="gzip-1")
    return [value / base for value in report.values("codecs", "cpu_s", data=name, setting=setting)]


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


FIGURE, SECONDS = {"linux.tar": "6.3", "linux": "6.4"}, {"linux.tar": "43 and 7", "linux": "53 and 40"}
# Seconds of 637 MB with the smallest and with the largest block, in KiB: the text of section 6.2.2 names no codec. From 4 KiB on, linux.tar takes as long.
BLOCKS = {"linux.tar": [(0.5, 43 / 6.37), (4, 7 / 6.37), (128, 7 / 6.37)], "linux": [(0.5, 53 / 6.37), (128, 40 / 6.37)]}


def scaled(row, field):
    """A field as it is, or of 100 MB where it grows with the data."""
    return row[field] if field == "ratio" else row[field] * 1e8 / row["bytes"]


def show_units(lab, how):
    """Figures 6.3 and 6.4."""
    report = lab.report
    report.heading("Unit sizes (figures 6.3 and 6.4)")
    report.text("The thesis had blocks of 0.5 to 128 KiB; units here are of 4 to 128 KiB. Files that are shorter than a unit are a unit of their own.")
    sizes = sorted({row["unit"] for row in report.table_of("units")})
    for name in ("linux.tar", "linux"):
        for field, up in (("ratio", "ratio"), ("seconds", "seconds of 100 MB, until durable"), ("cpu_s", "CPU seconds of 100 MB")):
            curves = {codec: [(s, [scaled(r, field) for r in report.select("units", data=name, unit=s, codec=codec)]) for s in sizes] for codec in UNIT_CODECS}
            report.lines(f"units-{name}-{field}", f"{name}: {up} by unit size", curves, "KiB", up, logarithmic=True, theirs={"theirs": BLOCKS[name]} if field == "seconds" else None,
                         said=f"Theirs: figure {FIGURE[name]} and section 6.2.2, by the text, with 512 B and with 128 kB: {SECONDS[name]} s for about 637 MB{', and as long from 4 to 128 kB' if name == 'linux.tar' else ''}." if field == "seconds"
                         else f"Theirs: figure {FIGURE[name]}; its text has no number of this.")
        rows = []
        for codec in UNIT_CODECS:
            for what, field in (("ratio", "ratio"), ("s", "seconds"), ("CPU s", "cpu_s")):
                rows.append([f"{codec}, {what}", *[middle(report.values("units", field, data=name, unit=s, codec=codec)) for s in sizes]])
        report.table([name, *[f"{s} KiB" for s in sizes]], rows)
