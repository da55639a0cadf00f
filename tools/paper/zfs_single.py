"""The thesis' single data sets: gzip's levels, all codecs, and block sizes against ratio, time and energy (figures 6.1 to 6.9)."""

import zfs_sets
import zfs_store
from lab.report import mean

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
    return mean(report.values("codecs", field, **wanted))


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
            report.lines(f"units-{name}-{field}", f"{name}: {up} by unit size", {codec: [(s, mean(report.values("units", field, data=name, unit=s, codec=codec))) for s in sizes]
                                                                               for codec in UNIT_CODECS}, "KiB", up, logarithmic=True)
        rows = []
        for codec in UNIT_CODECS:
            for what, field in (("ratio", "ratio"), ("s", "seconds"), ("CPU s", "cpu_s")):
                rows.append([f"{codec}, {what}", *[mean(report.values("units", field, data=name, unit=s, codec=codec)) for s in sizes]])
        report.table([name, *[f"{s} KiB" for s in sizes]], rows)


def claims_of_units(lab):
    """The block sizes' claims."""
    report = lab.report
    if not report.table_of("units"):
        return []
    sizes = sorted({row["unit"] for row in report.table_of("units")})

    def of_units(codec, size):
        return mean(report.values("units", "seconds", data="linux.tar", unit=size, codec=codec))
    ratio = {c: [mean(report.values("units", "ratio", data="linux.tar", unit=s, codec=c)) for s in sizes] for c in UNIT_CODECS}
    grows = [c for c in UNIT_CODECS if c != "zle" and ratio[c][-1] > ratio[c][0]]
    tree = [mean(report.values("units", "ratio", data="linux", unit=s, codec="gzip-1")) for s in sizes]
    best = sizes[tree.index(max(tree))]
    return [["one large file: ratio grows with the block size, but for ZLE (6.3)", "significantly", ", ".join(f"{c} {ratio[c][0]:.2f} to {ratio[c][-1]:.2f}" for c in UNIT_CODECS),
             "yes" if len(grows) == len(UNIT_CODECS) - 1 else "no", "a longer unit has more to refer to"],
            ["many small files: ratio is best at 32 KiB (6.4)", "sweet spot at 32 kB; 64 and 128 kB slightly worse",
             ", ".join(f"{s} KiB {r:.2f}" for s, r in zip(sizes, tree)) + " (gzip-1)", "yes" if best == 32 and tree[-1] < max(tree) else "no",
             "a file that is shorter than a unit is a unit of its own length here, so larger units lose nothing on small files"],
            ["one large file: small blocks cost time (6.3)", "43 s with 512 B, 7 s with 128 kB", ", ".join(f"{c} {of_units(c, sizes[0]):.2f} s, {of_units(c, sizes[-1]):.2f} s" for c in UNIT_CODECS)
             + f" with {sizes[0]} and {sizes[-1]} KiB", "yes" if all(of_units(c, sizes[0]) > 1.1 * of_units(c, sizes[-1]) for c in UNIT_CODECS) else "no", "units begin at 4 KiB here"]]


def claims_of_codecs(lab):
    """The preliminary measurements' claims, without load."""
    report = lab.report
    if not report.table_of("codecs"):
        return []

    def pick(field, name, setting):
        return of(report, field, data=name, setting=setting)
    ratio = 100 * (pick("ratio", "linux.tar", "gzip-9") / pick("ratio", "linux.tar", "gzip-1") - 1)
    time = 100 * (pick("seconds", "linux.tar", "gzip-9") / pick("seconds", "linux.tar", "gzip-1") - 1)
    rows = [["gzip-9 gains far less ratio than it costs time (linux.tar, 6.1)", "+25 % ratio, +80 % time", f"{ratio:+.0f} % ratio, {time:+.0f} % time", "yes" if ratio < time else "no",
             "another implementation of deflate (libdeflate), whose level 1 is quicker"]]
    levels = [s for s in found(report, "setting", data="random.dat") if s.startswith("gzip-")]
    spread = [100 * (pick("cpu_s", "random.dat", s) / pick("cpu_s", "random.dat", "gzip-1") - 1) for s in levels]
    rows.append(["incompressible data: gzip's level does not matter (6.2)", "-15 to +10 %", f"{min(spread):+.0f} to {max(spread):+.0f} % CPU time", "yes" if max(spread) < 25 else "no", "all of the unit is searched in vain at each level"])
    ours = [pick("joules", "random.dat", s) / pick("joules", "random.dat", "off") for s in ("gzip-1", "lz4")]
    rows.append(["incompressible data: gzip takes more than twice the energy of no compression, LZ4 next to nothing more (6.7)", "more than 2 x; about 1 x",
                 f"gzip-1 {ours[0]:.2f} x, lz4 {ours[1]:.2f} x", "yes" if ours[0] > 2 and ours[1] < 1.25 else "no", "see how joules were had, above"])
    quicker = {s: pick("seconds", "linux.tar", s) / pick("seconds", "linux.tar", "off") for s in ("lz4", "gzip-1")}
    rows.append(["compressible data, idle: LZ4 and gzip-1 finish sooner than no compression (6.6)", "yes, both", ", ".join(f"{s} {q:.2f} of off" for s, q in quicker.items()),
                 "yes" if max(quicker.values()) < 1 else "no", "where the disk is the bound, fewer bytes are quicker; the disk is named above"])
    tree = {s: pick("seconds", "linux", s) / pick("seconds", "linux", "off") for s in found(report, "setting", data="linux") if s.startswith("gzip-")}
    rows.append(["many small files, idle: every codec takes as long as none, gzip-9 too (6.8)", "no difference", ", ".join(f"{s} {q:.2f}" for s, q in tree.items()) + " of off",
                 "yes" if max(tree.values()) < 1.15 else "no", "making files is the bound; a share compresses beside it"])
    rows.append(["mixed.dat: archive has nearly gzip-1's ratio with far less energy (6.12)", "about 1.6 both; 2.2 kJ instead of 3.8 kJ: 0.58",
                 f"ratio {pick('ratio', 'mixed.dat', 'auto archive'):.2f} and {pick('ratio', 'mixed.dat', 'gzip-1'):.2f}; energy of archive {pick('joules', 'mixed.dat', 'auto archive') / pick('joules', 'mixed.dat', 'gzip-1'):.2f}, "
                 f"of balanced {pick('joules', 'mixed.dat', 'auto balanced') / pick('joules', 'mixed.dat', 'gzip-1'):.2f} of gzip-1's",
                 "yes" if pick("ratio", "mixed.dat", "auto archive") > 0.95 * pick("ratio", "mixed.dat", "gzip-1") and pick("joules", "mixed.dat", "auto archive") < pick("joules", "mixed.dat", "gzip-1") else "no",
                 "our archive spends what it saves on noise on stronger codecs for the rest; balanced is nearer to their archive"])
    for name, theirs in (("linux.tar", "3.52; gzip-1 3.68"), ("netcdf", "2.2; gzip-1 2.24 (TP04)")):
        rows.append([f"{name}: archive comes near gzip-1's ratio (6.10, 6.15)", theirs, f"{pick('ratio', name, 'auto archive'):.2f}; gzip-1 {pick('ratio', name, 'gzip-1'):.2f}",
                     "yes" if pick("ratio", name, "auto archive") > 0.95 * pick("ratio", name, "gzip-1") else "no", "their candidates ended with gzip-1; ours go on to zstd-19"])
    short = pick("ratio", "linux", "auto archive") / pick("ratio", "linux", "gzip-1")
    rows.append(["many small files: the modes squander ratio (6.11)", "archive leaves 13,022 of 48,358 blocks raw, gzip-1 5,787", f"archive has {short:.2f} of gzip-1's ratio", "yes" if short < 1 else "no: better",
                 "no early abort of LZ4 decides here, and small files have dictionaries"])
    return rows
