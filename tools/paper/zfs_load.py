"""Compression while processors are busy, and what rules by extension and tests of blocks add (figures 6.5 to 6.15, table 6.1)."""

import os
import subprocess
import sys
from contextlib import contextmanager

import zfs_sets
import zfs_store
from lab.report import mean

# As the thesis' script: a process for each processor, multiplying random numbers.
BUSY = "import random\nwhile True:\n    random.random() * random.random()\n"
CPUS = 2
SETTINGS = ["off", "lz4", "gzip-1", "gzip-9", "zstd-3", *[f"auto {mode}" for mode in zfs_store.MODES]]
SETTINGS_QUICK = ["off", "lz4", "gzip-1", "auto performance", "auto archive"]
DATA = ["linux.tar", "random.dat", "mixed.dat"]
# Added overhead: gzip-1 by the share's property, by a rule for the extension, and by auto that has no other candidate.
RULED = {"property": {"compression": "gzip-1"}, "rule": {"compression": "auto", "mode": "archive", "rule.any": "gzip-1"},
         "tested": {"compression": "auto", "mode": "archive", "candidates": "gzip-1"}}
# Theirs: seconds and joules, default and adaptive.
THEIRS = {("rule", 0): (33.91, 34.20, 4530, 4580), ("rule", CPUS): (42.02, 41.98, 24587, 25055), ("tested", 0): (150.09, 150.37, 14582, 15538), ("tested", CPUS): (174.29, 192.41, 94790, 104107)}


@contextmanager
def busy(count):
    """So many processors are kept busy, the first ones that may be used."""
    allowed = sorted(os.sched_getaffinity(0))[:CPUS]
    running = []
    try:
        for cpu in allowed[:count]:
            running.append(subprocess.Popen([sys.executable, "-c", BUSY], preexec_fn=lambda cpu=cpu: os.sched_setaffinity(0, [cpu])))
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def measure(lab, energy, how):
    """Settings and data with 0, 1 and 2 busy processors, and then the three ways to the same codec."""
    sources = {name: zfs_sets.single(lab, name, how["single_bytes"]) for name in (DATA[1:] if lab.quick else DATA)}
    for disk in lab.disks(how["disk"]):
        for run in range(how["runs"]):
            for count in range(CPUS + 1):
                for setting in SETTINGS_QUICK if lab.quick else SETTINGS:
                    wanted = {f"s{n}": zfs_store.properties(setting) for n in range(len(sources))}
                    with zfs_store.shares(lab, disk, wanted, zfs_store.room(how["single_bytes"], len(sources)), cpus=CPUS) as place, busy(count):
                        for share, (name, source) in zip(wanted, sources.items()):
                            lab.report.row("load", data=name, setting=setting, busy=count, run=run + 1, **zfs_store.store(lab, place, energy, share, source))
        added(lab, energy, disk, how)


def added(lab, energy, disk, how):
    """Table 6.1: the same codec by property, by rule, and by tests, on a tree whose names all end alike."""
    data = {"tree": zfs_sets.single(lab, "linux", how["single_bytes"]), "netcdf": zfs_sets.single(lab, "netcdf", how["single_bytes"])}
    renamed = {}
    for name, source in data.items():
        renamed[name] = lab.work / "renamed" / name
        for file in zfs_sets.files_below(source) if not renamed[name].exists() else []:
            to = renamed[name] / file.relative_to(source).parent / f"{file.name}.any"
            to.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, to)
    for run in range(how["runs"]):
        for count in (0, CPUS):
            for way, properties in RULED.items():
                wanted = {name: properties for name in data}
                with zfs_store.shares(lab, disk, wanted, zfs_store.room(how["single_bytes"], len(data)), cpus=CPUS) as place, busy(count):
                    for name in data:
                        lab.report.row("added", data=name, way=way, busy=count, run=run + 1, **zfs_store.store(lab, place, energy, name, renamed[name]))


def of(report, field, **wanted):
    """Mean of a field of the table of load."""
    return mean(report.values("load", field, **wanted))


def show(lab, how):
    """Bars for each data set, and table 6.1."""
    report = lab.report
    report.heading("With busy processors (figures 6.5 to 6.15)")
    report.text(f"Load, server and the busy processes run on {CPUS} processors. Each busy process is bound to one of them, and multiplies random numbers.")
    names, settings = (list(dict.fromkeys(r[k] for r in report.table_of("load"))) for k in ("data", "setting"))
    counts = sorted({r["busy"] for r in report.table_of("load")})
    for name in names:
        for field, what in (("seconds", "seconds until durable"), ("joules", "joules")):
            report.bars(f"load-{name}-{field}", f"{name}: {what} with busy processors", settings, [f"{n} busy" for n in counts],
                        lambda setting, count, name=name, field=field: report.values("load", field, data=name, setting=setting, busy=int(count.split()[0])), what)
        report.table([name, "ratio", *[f"{n} busy: s" for n in counts], *[f"{n} busy: CPU s" for n in counts], *[f"{n} busy: joules" for n in counts]],
                     [[s, of(report, "ratio", data=name, setting=s), *[of(report, f, data=name, setting=s, busy=n) for f in ("seconds", "cpu_s", "joules") for n in counts]] for s in settings])
    report.heading("Added overhead (table 6.1)")
    report.text("All names end in .any. gzip-1 by the share's property; by a rule for that extension; and by auto, unit by unit, which has gzip-1 as its only candidate. "
                "The tree's files are known by their first bytes, so default rules count for them in the last way; the claim is judged on NetCDF.")
    rows = []
    for name in ("tree", "netcdf"):
        for way in RULED:
            for count in (0, CPUS):
                found = report.select("added", data=name, way=way, busy=count)
                rows.append([f"{name}, {way}, {count} busy", *[mean([r[f] for r in found]) for f in ("seconds", "cpu_s", "joules", "ratio")]])
    report.table(["data, way, load", "s", "CPU s", "joules", "ratio"], rows)


def claims(lab):
    """What the thesis says of load and overhead."""
    report, rows = lab.report, []
    for (way, count), theirs in THEIRS.items():
        name = "tree" if way == "rule" else "netcdf"
        found = {w: [mean(report.values("added", f, data=name, way=w, busy=count)) for f in ("seconds", "joules")] for w in ("property", way)}
        if None in found["property"] + found[way]:
            continue
        time, joules = (found[way][n] / found["property"][n] for n in (0, 1))
        what = "a rule by extension adds nothing" if way == "rule" else "testing blocks adds little"
        rows.append([f"{what}, {'idle' if not count else 'under load'} (table 6.1)", f"time {theirs[1] / theirs[0]:.3f}, energy {theirs[3] / theirs[2]:.3f} of the property's",
                     f"time {time:.3f}, energy {joules:.3f}", "yes" if joules < (1.05 if way == "rule" else 1.1) else "no",
                     "the extension is looked up once, when a file is made" if way == "rule" else "each unit is probed; tests are bounded by a budget of 1 % of the CPU time of compressing"])
    if report.table_of("load"):
        name = "linux.tar" if report.select("load", data="linux.tar") else "mixed.dat"
        slower = {s: of(report, "seconds", data=name, setting=s, busy=CPUS) / of(report, "seconds", data=name, setting="off", busy=CPUS) for s in ("lz4", "gzip-1")}
        rows.append([f"under load LZ4 still finishes no later than no compression, gzip-1 far later ({name}, 6.6)", "LZ4 sooner, gzip-1 significantly later", ", ".join(f"{s} {q:.2f} of off" for s, q in slower.items()),
                     "yes" if slower["lz4"] <= 1.02 and slower["gzip-1"] > slower["lz4"] else "no", "who compresses more needs more of processors that are busy"])
        if report.select("load", data=name, setting="gzip-9"):
            more = {f: 100 * (of(report, f, data=name, setting="gzip-9", busy=CPUS) / of(report, f, data=name, setting="gzip-1", busy=CPUS) - 1) for f in ("ratio", "seconds")}
            rows.append([f"gzip-9 gains far less ratio than it costs time, under load ({name}, 6.1)", "+25 % ratio, +200 % time", f"{more['ratio']:+.0f} % ratio, {more['seconds']:+.0f} % time",
                         "yes" if more["ratio"] < more["seconds"] else "no", "another implementation of deflate (libdeflate), whose level 1 is quicker"])
        noise = {s: of(report, "joules", data="random.dat", setting=s, busy=CPUS) / of(report, "joules", data="random.dat", setting="off", busy=CPUS) for s in ("gzip-1", "lz4")}
        rows.append(["incompressible data under load: gzip takes three times the energy of no compression, LZ4 no more (6.7)", "3 x; about 1 x", ", ".join(f"{s} {q:.2f} x" for s, q in noise.items()),
                     "yes" if noise["gzip-1"] > 2 and noise["lz4"] < 1.25 else "no", "see how joules were had, above"])
        saved = of(report, "joules", data="mixed.dat", setting="auto archive", busy=CPUS) / of(report, "joules", data="mixed.dat", setting="gzip-1", busy=CPUS)
        rows.append(["mixed.dat under load: archive takes little more than half of gzip-1's energy (6.12)", f"28 of 51 kJ: {28 / 51:.2f}", f"{saved:.2f}", "yes" if saved < 1 else "no", "noise is not tried; what is not noise gets stronger codecs than gzip-1"])
        quick = of(report, "seconds", data="mixed.dat", setting="auto performance", busy=CPUS) / of(report, "seconds", data="mixed.dat", setting="off", busy=CPUS)
        rows.append(["performance is the least decrease in throughput, also under load", "like LZ4", f"{quick:.2f} of the time with compression off", "yes" if quick < 1.1 else "no", "it takes the strongest codec within 5 % of the quickest way"])
    return rows
