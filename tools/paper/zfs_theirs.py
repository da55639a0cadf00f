"""The thesis' evaluation as it was: its own candidates (LZ4, LZJB, gzip-1) in its three modes, on data as large as its own, idle and with all processors busy."""

import zfs_load
import zfs_sets
import zfs_single
import zfs_store
from lab.report import middle

CANDIDATES = "lz4,lzjb,gzip-1"
MODES = ["performance", "energy", "archive"]
SETTINGS = ["off", "lz4", "gzip-1", *[f"auto {mode}" for mode in MODES]]
DATA = ["linux.tar", "linux", "mixed.dat", "netcdf"]
BUSY = {0: "idle", zfs_load.CPUS: "under load"}


def properties(setting):
    """A setting's properties; modes choose among the thesis' candidates."""
    return zfs_store.properties(setting) | ({"candidates": CANDIDATES} if setting.startswith("auto") else {})


def measure(lab, energy, how):
    """Each setting has a pool of its own, in which the data come one after the other, each in its share."""
    sources = {name: zfs_sets.single(lab, name, how["large_bytes"]) for name in DATA}
    shares = {f"s{n}": name for n, name in enumerate(sources)}
    for disk in lab.disks(how["disk"]):
        for run in range(how["runs"]):
            for count in BUSY:
                for setting in SETTINGS:
                    wanted = dict.fromkeys(shares, properties(setting))
                    with zfs_store.shares(lab, disk, wanted, zfs_store.room(how["large_bytes"], len(sources)), cpus=zfs_load.CPUS) as place:
                        with zfs_load.busy(count):
                            for share, name in shares.items():
                                lab.report.row("theirs", data=name, setting=setting, busy=count, run=run + 1, **zfs_store.store(lab, place, energy, share, sources[name]))
                        if run == 0 and count == 0:
                            codecs(lab, place, setting, {share: sources[name] for share, name in shares.items() if sources[name].is_file()})


def codecs(lab, place, setting, files):
    """How many units of each file have which codec."""
    for share, source in files.items():
        found = {}
        for part in place.explain(share, source.name)["parts"]:
            found[part["codec"]] = found.get(part["codec"], 0) + part["units"]
        for codec, units in found.items():
            lab.report.row("theirs-codecs", data=source.name.rsplit("-", 1)[0], setting=setting, codec=codec, units=units)


def of_gzip(report, name, setting, count, field):
    """A field of gzip-1's under the same load, run by run."""
    base = middle(report.values("theirs", field, data=name, setting="gzip-1", busy=count))
    return [value / base for value in report.values("theirs", field, data=name, setting=setting, busy=count)]


def show(lab, how):
    """Figures 6.10, 6.11, 6.12 and 6.15."""
    report = lab.report
    report.heading("With the thesis' candidates and sizes (figures 6.10, 6.11, 6.12, 6.15)")
    report.text(f"auto has the candidates {CANDIDATES}. Outside of archive, gzip and lzjb are left out for the time that they take to decode. Joules are the processors' own count where it can be read, else CPU time.")
    names, settings = (list(dict.fromkeys(r[k] for r in report.table_of("theirs"))) for k in ("data", "setting"))
    loads = {BUSY[count]: count for count in BUSY if report.select("theirs", busy=count)}
    for name in names:
        theirs = zfs_single.RATIOS.get(name, {})
        report.bars(f"theirs-{name}-ratio", f"{name}: ratio", settings, ["ours"], lambda setting, _, name=name: report.values("theirs", "ratio", data=name, setting=setting), "ratio",
                    theirs=lambda setting, _, theirs=theirs: theirs.get(setting), said=f"Theirs: {zfs_single.FIGURES[name]}, by the text.")
        energy = zfs_load.OF_GZIP.get(name, {})
        report.bars(f"theirs-{name}-energy", f"{name}: joules, of gzip-1's", settings, list(loads), lambda setting, load, name=name: of_gzip(report, name, setting, loads[load], "joules"), "of gzip-1's",
                    theirs=lambda setting, load, energy=energy: energy.get(loads[load]) if setting == "auto archive" else None,
                    said=f"Theirs: {zfs_single.FIGURES[name]}, by the text, of archive." if energy else None)
        report.bars(f"theirs-{name}-seconds", f"{name}: seconds until durable", settings, list(loads), lambda setting, load, name=name: report.values("theirs", "seconds", data=name, setting=setting, busy=loads[load]), "s")
    for name in names:
        report.table([name, "ratio", *[f"{load}: s" for load in loads], *[f"{load}: CPU s" for load in loads], *[f"{load}: joules" for load in loads]],
                     [[s, middle(report.values("theirs", "ratio", data=name, setting=s)),
                       *[middle(report.values("theirs", field, data=name, setting=s, busy=count)) for field in ("seconds", "cpu_s", "joules") for count in loads.values()]] for s in settings])
    report.text("Units of each codec. Theirs, in blocks of 128 kB by archive: linux.tar 3,875 gzip-1 and 640 LZ4; TP04 70,191 gzip-1, 1,388 LZJB, 8,455 LZ4 and 1,663 not compressed.")
    report.table(["data", "setting", "codec", "units"], [[r["data"], r["setting"], r["codec"], r["units"]] for r in report.table_of("theirs-codecs")])
