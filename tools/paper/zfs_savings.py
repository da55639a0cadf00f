"""What file sets save: each fixed codec, each mode of auto, and the oracle, which has the best of all codecs for each unit."""

import os
import shutil

import zfs_sets
import zfs_store

FIXED = ["off", "lz4", "gzip-1", "gzip-6", "gzip-9", "zstd-3"]
SETTINGS = FIXED + [f"auto {mode}" for mode in zfs_store.MODES]
# The oracle's codecs: the default candidates at their ends and in their middle, and the strongest of the others.
ORACLE = ["off", "lz4", "gzip-9", "bzip2-9", "zstd-3", "zstd-9", "zstd-19"]
UNIT = 32 << 10
DIRECTORY_FILES = 1000


def measure(lab, energy, how):
    """Each setting has a pool of its own, in which the sets come one after the other, each in its share."""
    sets = {kind: zfs_sets.file_set(lab, kind, how["set_bytes"]) for kind in zfs_sets.KINDS}
    size = zfs_store.room(how["set_bytes"], len(sets))
    for disk in lab.disks(how["disk"]):
        for setting in SETTINGS:
            with zfs_store.shares(lab, disk, {kind: zfs_store.properties(setting) for kind in sets}, size) as place:
                for kind, source in sets.items():
                    lab.report.row("savings", kind=kind, setting=setting, **zfs_store.store(lab, place, energy, kind, source))
    oracle(lab, sets, how)
    shutil.rmtree(lab.work / "units", ignore_errors=True)


def cut(source, target):
    """Each unit of each file as a file of its own: so what each codec makes of it can be asked for."""
    count = 0
    for file in zfs_sets.files_below(source):
        content = file.read_bytes()
        for at in range(0, len(content), UNIT):
            directory = target / f"{count // DIRECTORY_FILES}"
            directory.mkdir(parents=True, exist_ok=True)
            (directory / f"{count % DIRECTORY_FILES}").write_bytes(content[at:at + UNIT])
            count += 1


def taken(file):
    """Stored bytes of a file."""
    told = dict(word.split("=") for word in os.getxattr(file, "user.shale.usage").decode().split())
    return int(told["stored"])


def oracle(lab, sets, how):
    """The least that any codec makes of each unit, and what each codec makes of all of them."""
    for disk in lab.disks(how["disk"]):
        for kind, source in sets.items():
            units = lab.work / "units" / kind
            if not units.exists():
                cut(source, units)
            names = [f"with-{codec}" for codec in ORACLE]
            wanted = {name: {"compression": codec, "unit": "32K"} for name, codec in zip(names, ORACLE)}
            with zfs_store.shares(lab, disk, wanted, zfs_store.room(how["set_bytes"], len(ORACLE))) as place:
                for name in names:
                    zfs_store.copy(place, units, place.at(name))
                place.sync()
                least, sums = 0, dict.fromkeys(ORACLE, 0)
                for unit in zfs_sets.files_below(units):
                    within = unit.relative_to(units)
                    found = [min(taken(place.at(name) / within), unit.stat().st_size) for name in names]
                    least += min(found)
                    for codec, stored in zip(ORACLE, found):
                        sums[codec] += stored
            size = zfs_sets.size_of(source)[1]
            lab.report.row("oracle", kind=kind, bytes=size, stored=least, saving_percent=round(100 * (1 - least / size), 2),
                           **{f"{codec} %": round(100 * (1 - stored / size), 2) for codec, stored in sums.items()})


def saved(report, kind, setting):
    """Mean saving, in per cent."""
    values = report.values("savings", "saving_percent", kind=kind, setting=setting)
    return sum(values) / len(values) if values else None


def cpu(report, kind, setting):
    """Mean CPU seconds of the server."""
    values = report.values("savings", "server_cpu_s", kind=kind, setting=setting)
    return sum(values) / len(values) if values else None


def kinds(report):
    """The sets that were measured."""
    found = {row["kind"] for row in report.table_of("savings")}
    return [kind for kind in zfs_sets.KINDS if kind in found]


def oracle_of(report, kind):
    """The oracle's saving of a set, in per cent."""
    return next(iter(report.values("oracle", "saving_percent", kind=kind)), None)


def better_than(report, kind, mode):
    """(fixed codecs that took no more CPU time than `auto mode`, those of them that saved more), of a set."""
    ours, time = saved(report, kind, f"auto {mode}"), cpu(report, kind, f"auto {mode}")
    rivals = [s for s in FIXED if s != "off" and cpu(report, kind, s) <= time]
    return rivals, [s for s in rivals if saved(report, kind, s) > ours]


def show(lab, how):
    """Bars of savings and CPU time, and the tables."""
    report = lab.report
    report.heading("File sets by kind: fixed codecs, modes and the oracle")
    report.text("Saved of the files' bytes, in per cent. The oracle has the least that any of its codecs makes of each unit of 32 KiB, without dictionaries "
                f"({', '.join(ORACLE)}); auto has dictionaries for small files, so it may save more. Fixed codecs are on shares whose compression names them: no rule counts there.")
    report.bars("savings", "saved by kind of files", kinds(report), SETTINGS, lambda kind, setting: report.values("savings", "saving_percent", kind=kind, setting=setting), "% saved")
    report.table(["kind", "files", "MB", *SETTINGS, "oracle"],
                 [[kind, report.values("savings", "files", kind=kind)[0], round(report.values("savings", "bytes", kind=kind)[0] / 1e6, 1),
                   *[saved(report, kind, s) for s in SETTINGS], oracle_of(report, kind)] for kind in kinds(report)])
    report.text("CPU seconds of the server for it.")
    report.bars("savings-cpu", "CPU time of the server by kind of files", kinds(report), SETTINGS, lambda kind, setting: report.values("savings", "server_cpu_s", kind=kind, setting=setting), "s")
    report.table(["kind", *SETTINGS], [[kind, *[cpu(report, kind, s) for s in SETTINGS]] for kind in kinds(report)])
    rows = []
    for kind in kinds(report):
        best = max((s for s in FIXED), key=lambda s: saved(report, kind, s))
        whole = oracle_of(report, kind)
        for mode in zfs_store.MODES:
            ours = saved(report, kind, f"auto {mode}")
            rivals, better = better_than(report, kind, mode)
            rows.append([f"{kind}, {mode}", ours, f"{best}: {saved(report, kind, best):.1f}", f"{100 * ours / whole:.1f} %" if whole else None,
                         ", ".join(rivals) or "none", ", ".join(better) or "none"])
    report.table(["set and mode", "saved, %", "best fixed", "of the oracle's saving", "fixed codecs that took no more CPU", "of these, saved more"], rows)
    report.text("Units stored alone, one file each: what each codec of the oracle saves, in per cent.")
    report.table(["kind", *ORACLE, "oracle"], [[r["kind"], *[r.get(f"{c} %") for c in ORACLE], r["saving_percent"]] for r in report.table_of("oracle")])
