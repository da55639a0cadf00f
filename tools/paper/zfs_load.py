"""Compression while processors are busy, and what rules by extension and tests of blocks add (figures 6.5 to 6.15, table 6.1)."""

import os
import subprocess
import sys
from contextlib import contextmanager

import zfs_sets
import zfs_single
import zfs_store
from lab.report import middle

# As the thesis' script: a process for each processor, multiplying random numbers.
BUSY = "import random\nwhile True:\n    random.random() * random.random()\n"
CPUS = 2
SETTINGS = ["off", "lz4", "gzip-1", "gzip-9", "zstd-3", *[f"auto {mode}" for mode in zfs_store.MODES]]
SETTINGS_QUICK = ["off", "lz4", "gzip-1", "auto performance", "auto archive"]
DATA = ["linux.tar", "random.dat", "mixed.dat", "linux", "netcdf"]
# Added overhead: gzip-1 by the share's property, by a rule for the extension, by auto that has no other candidate, and by auto that has the thesis' three.
RULED = {"property": {"compression": "gzip-1"}, "rule": {"compression": "auto", "mode": "archive", "rule.any": "gzip-1"},
         "tested": {"compression": "auto", "mode": "archive", "candidates": "gzip-1"}, "tested, three": {"compression": "auto", "mode": "archive", "candidates": "lz4,lzjb,gzip-1"}}
# Theirs: seconds and joules of table 6.1, idle and under load, by the default way and by ours.
TABLE_6_1 = {"rule": {0: (33.91, 4530, 34.20, 4580), 2: (42.02, 24587, 41.98, 25055)}, "tested": {0: (150.09, 14582, 150.37, 15538), 2: (174.29, 94790, 192.41, 104107)}}
# Energy of archive, of gzip-1's: figures 6.10, 6.12 and 6.15, idle and under load. Energy of gzip, of that without compression: figure 6.7, more than that.
OF_GZIP = {"linux.tar": {0: 1.48 / 1.54}, "mixed.dat": {0: 2.2 / 3.8, 2: 28 / 51}, "netcdf": {0: 40 / 40.5}}
OF_OFF = {0: 2, 2: 3}


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
                wanted = dict.fromkeys(data, properties)
                with zfs_store.shares(lab, disk, wanted, zfs_store.room(how["single_bytes"], len(data)), cpus=CPUS) as place, busy(count):
                    for name in data:
                        lab.report.row("added", data=name, way=way, busy=count, run=run + 1, **zfs_store.store(lab, place, energy, name, renamed[name]))


def of(report, field, **wanted):
    """Median of a field of the table of load."""
    return middle(report.values("load", field, **wanted))


def of_same(report, name, setting, count, field, base):
    """A field of a setting of that of another one under the same load, run by run."""
    wanted = {"data": name, "busy": int(count.split()[0])}
    return [value / of(report, field, setting=base, **wanted) for value in report.values("load", field, setting=setting, **wanted)]


def show(lab, how):
    """Bars for each data set, and table 6.1."""
    report = lab.report
    report.heading("With busy processors (figures 6.5 to 6.15)")
    report.text(f"Load, server and the busy processes run on {CPUS} processors. Each busy process is bound to one of them, and multiplies random numbers.")
    names, settings = (list(dict.fromkeys(r[k] for r in report.table_of("load"))) for k in ("data", "setting"))
    counts = sorted({r["busy"] for r in report.table_of("load")})
    busy_names = [f"{n} busy" for n in counts]
    for name in names:
        report.bars(f"load-{name}-seconds", f"{name}: seconds until durable, of those without compression", settings, busy_names, lambda setting, count, name=name: of_same(report, name, setting, count, "seconds", "off"),
                    "of off", said="Theirs: figure 6.6; its text has the order of codecs, and no numbers." if name == "linux.tar" else None)
        if name == "random.dat":
            report.bars("load-random.dat-energy", "random.dat: CPU time, of that without compression", settings, busy_names, lambda setting, count: of_same(report, "random.dat", setting, count, "cpu_s", "off"),
                        "of off", rising=True, theirs=lambda setting, count: OF_OFF.get(int(count.split()[0])) if setting.startswith("gzip") else None,
                        said="Theirs: figure 6.7, by its text, in energy: all levels of gzip more than twice (idle) and three times (under load) the rest.")
        else:
            report.bars(f"load-{name}-energy", f"{name}: CPU time, of gzip-1's", settings, busy_names, lambda setting, count, name=name: of_same(report, name, setting, count, "cpu_s", "gzip-1"),
                        "of gzip-1's", rising=True, theirs=lambda setting, count, name=name: OF_GZIP.get(name, {}).get(int(count.split()[0])) if setting == "auto archive" else None,
                        said=f"Theirs: {zfs_single.FIGURES[name]}, by the text, in energy of archive among LZ4, LZJB and gzip-1." if name in OF_GZIP else None)
    for name in names:
        report.table([name, "ratio", *[f"{n} busy: s" for n in counts], *[f"{n} busy: CPU s" for n in counts], *[f"{n} busy: joules" for n in counts]],
                     [[s, of(report, "ratio", data=name, setting=s), *[of(report, f, data=name, setting=s, busy=n) for f in ("seconds", "cpu_s", "joules") for n in counts]] for s in settings])
    report.heading("Added overhead (table 6.1)")
    report.text("All names end in .any. gzip-1 by the share's property; by a rule for that extension; and by auto, unit by unit, which has gzip-1 as its only candidate, or the thesis' three. "
                "The tree's files are known by their first bytes, so default rules apply to them in the last way. With one candidate there is nothing to test.")
    rows = []
    for name in ("tree", "netcdf"):
        for way in RULED:
            for count in (0, CPUS):
                if found := report.select("added", data=name, way=way, busy=count):
                    rows.append([f"{name}, {way}, {count} busy", *[middle([r[f] for r in found]) for f in ("seconds", "cpu_s", "joules", "ratio")]])
    report.table(["data, way, load", "s", "CPU s", "joules", "ratio"], rows)
    # Theirs has the rule on the tree, and the tests on NetCDF.
    pairs = {"rule": "tree", "tested": "netcdf", "tested, three": "netcdf"}
    groups = {f"{what}, {way}, {'idle' if count == 0 else 'under load'}": (what, way, count) for way, what in pairs.items() for count in (0, CPUS) if report.select("added", data=what, way=way)}

    def ratio(group, field):
        what, way, count = groups[group]
        base = middle(report.values("added", field, data=what, way="property", busy=count))
        return [value / base for value in report.values("added", field, data=what, way=way, busy=count)]

    def theirs(group, field):
        _, way, count = groups[group]
        seconds, joules, with_seconds, with_joules = TABLE_6_1[way.split(",")[0]][count]
        return with_seconds / seconds if field == "seconds" else with_joules / joules
    report.bars("added", "rule by extension and tests of blocks, of the same codec by property", list(groups), ["seconds", "cpu_s"], ratio, "of the property's", theirs=theirs,
                said="Theirs: table 6.1, time and energy; the rule on the tree, tests on NetCDF. Ours: time and CPU time.")
    report.table(["theirs, table 6.1", "s, default", "J, default", "s, adaptive", "J, adaptive"],
                 [[f"{way}, {'idle' if count == 0 else 'under load'}", *TABLE_6_1[way][count]] for way in TABLE_6_1 for count in (0, 2)])
