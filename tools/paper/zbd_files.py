"""The ZBD paper's loads on files: PostMark, a file server's, extents of several sizes, the cleaner, memory for metadata."""

import itertools
import json
import subprocess
import threading
import time
from pathlib import Path

from lab import data, size
from lab.disk import DISKS
from lab.place import SETUPS
from lab.report import middle

HERE = Path(__file__).resolve().parent
READ_PERCENT = 35
MESSAGE_MIN = 4096


def build(lab, name):
    """The program of one of the loads."""
    program = lab.work / name
    if not program.exists():
        subprocess.run(["gcc", "-O2", "-pthread", "-o", program, HERE / f"{name}.c"], check=True)
    return program


def mail_load(lab, place, content, how, series=None, transactions=None):
    """Runs PostMark's load; returns what it tells, and what it took."""
    with place.meter() as meter:
        told = json.loads(place.run([build(lab, "mailserver"), place.path, content, how["mailboxes"], how["messages"], MESSAGE_MIN, how["message_max"],
                                     transactions or how["transactions"], READ_PERCENT, 1, *([series] if series else [])]))
    return told, meter.figures()


def saving(place):
    """Per cent of the allocated bytes that are not stored."""
    state = place.status()
    return round(100 * (1 - state["stored_bytes"] / state["allocated_bytes"]), 1) if state.get("allocated_bytes") else None


def postmark(lab, how):
    """Figures 2 and 3: transactions a second by CPUs and by content."""
    contents = {"mail": data.mail()}
    if not lab.quick:
        contents["attachments"] = data.mail_with_attachments()
    for disk in lab.disks(*how["disks"], *how["spindles"]):
        for run, setup in itertools.product(lab.runs(), lab.setups(*how["setups"])):
            for cpus in how["cpus"]:
                for kind, content in contents.items():
                    # Not all on all, for time's sake: one CPU, and the other mail, on the paper's kind of disk.
                    if disk.name != "disk2010" and (kind != "mail" or cpus != how["cpus"][-1]) or kind != "mail" and cpus != how["cpus"][-1]:
                        continue
                    with lab.place(disk, setup, size=how["size"], memory=how["memory"], cpus=cpus) as place:
                        told, figures = mail_load(lab, place, content, how)
                        lab.report.row("postmark", disk=disk.name, setup=setup.name, cpus=cpus, content=kind, run=run, per_s=round(how["transactions"] / told["transactions_s"], 2),
                                       saving_percent=saving(place), **told, **figures)


# Of native, figure 2.
MOST_MAIL = 1.69


def show_postmark(lab, how):
    """Bars relative to native for each disk."""
    report = lab.report
    report.heading("PostMark (figures 2 and 3)")
    kinds = {"mail": "mail", "attachments": "mail with attachments"}
    for disk in disks_of(report, "postmark"):
        rows = report.select("postmark", disk=disk)
        groups = {f"{kinds[kind]}, {cpus} CPU{'s' if cpus > 1 else ''}": (kind, cpus) for kind, cpus in dict.fromkeys((r["content"], r["cpus"]) for r in rows)}

        def of(group, name, disk=disk, groups=groups):
            kind, cpus = groups[group]
            return ratios(report, "postmark", "per_s", disk=disk, setup=name, content=kind, cpus=cpus)
        report.bars(f"postmark-{disk}", f"PostMark: transactions a second, of native's, {disk}", list(groups), found(report, "postmark", "setup", disk=disk), of, "of native",
                    theirs=lambda group, name: MOST_MAIL if name in ("lzo", "zlib") else None,
                    said=f"Theirs: up to {MOST_MAIL} of native in figure 2, and up to 1.8 in the summary (IV.K), by the text, which names no codec; eight disks. {disk}: {DISKS[disk].title}.")
    for disk in disks_of(report, "postmark"):
        report.table([f"set-up, {disk}", "content", "CPUs", "transactions/s", "of native", "CPU, % of one", "saved, %", "disk read, MB", "disk written, MB"],
                     [[r["setup"], r["content"], r["cpus"], r["per_s"], of_native(report, "postmark", r, "per_s", "cpus", "content"), r["cpu_percent"], r.get("saving_percent"),
                       round(r["disk_read_bytes"] / 1e6), round(r["disk_written_bytes"] / 1e6)] for r in report.select("postmark", disk=disk)])


def found(report, table, field, **wanted):
    """Values of a field in the order in which they were measured; set-ups in their own."""
    values = list(dict.fromkeys(row[field] for row in report.select(table, **wanted)))
    return sorted(values, key=list(SETUPS).index) if field == "setup" else values


def disks_of(report, table):
    """The disks that were measured, theirs first."""
    return sorted(found(report, table, "disk"), key=lambda disk: list(DISKS).index(disk) if DISKS[disk].is_loop else len(DISKS))


def ratios(report, table, field, **wanted):
    """A field of a set-up's rows as parts of native's, under the same conditions."""
    native = middle(report.values(table, field, **(wanted | {"setup": "native"})))
    return [value / native for value in report.values(table, field, **wanted)] if native else []


def of_native(report, table, row, field, *same):
    """A row's figure as a part of that of the native set-up under the same conditions."""
    native = middle(report.values(table, field, disk=row["disk"], setup="native", **{k: row[k] for k in same}))
    return round(row[field] / native, 2) if native else None


def file_server(lab, how):
    """Figures 4 and 11: operations and response time at rising targets, and the volume of I/O."""
    serve_targets(lab, how, "sfs", data.mail(), how["files"], how["disks"])


def file_server_compressible(lab, how):
    """Figure 5: the same on more compressible files."""
    serve_targets(lab, how, "sfs-compressible", data.logs(), how["files"], how["disks"][:1], setups=how["few_setups"])


def file_server_large(lab, how):
    """Figure 4 with files far above the memory, as theirs were."""
    serve_targets(lab, how, "sfs-large", data.mail(), how["large_files"], how["disks"][:1], size=how["large_size"], targets=how["large_targets"], setups=how["few_setups"])


def serve_targets(lab, how, table, content, files, disks, **other):
    """Each set-up at rising targets."""
    how = how | {"files": files} | other
    for disk in lab.disks(*[d for d in disks if d in how["targets"]]):
        for run, setup in itertools.product(lab.runs(), lab.setups(*how["setups"])):
            with lab.place(disk, setup, size=how["size"], memory=how["memory"], cpus=how["cpus"][-1]) as place:
                for target in how["targets"][disk.name]:
                    figures, told = serve_files(lab, place, content, how, target)
                    lab.report.row(table, disk=disk.name, setup=setup.name, target=target, run=run, saving_percent=saving(place), **told, **figures)


# Loads that theirs sustained, in operations a second, with the files of figure 4 and with the more compressible ones of figure 5.
SUSTAINED = {"sfs": {"native": 3400, "off": 3700, "lzo": 4000, "zlib": 4300}, "sfs-large": {"native": 3400, "off": 3700, "lzo": 4000, "zlib": 4300},
             "sfs-compressible": {"native": 3400, "lzo": 4300, "zlib": 4600}}
# What part of a load must be achieved, so that it is sustained.
IS_SUSTAINED = 0.99
# Theirs of native's bytes, figure 11a: of lzo and zlib the text has no reads.
VOLUMES = {"read": {"off": 2.85}, "written": {"off": 1.51, "lzo": 0.97, "zlib": 0.74}, "together": {"off": 2.33, "lzo": 1.91, "zlib": 1.71}}


def sustained(report, table, disk, setup):
    """The highest load that was asked for and achieved."""
    loads = [load for load, achieved in by_target(report, table, disk, setup, "per_s") if middle(achieved) >= IS_SUSTAINED * load]
    return max(loads, default=0)


def by_target(report, table, disk, setup, field):
    """[(load that was asked for, a field of its runs)]."""
    return [(load, report.values(table, field, disk=disk, setup=setup, target=load)) for load in found(report, table, "target", disk=disk, setup=setup)]


def show_file_server(lab, how):
    """Figures 4 and 11."""
    show_targets(lab, "sfs", "File server (figures 4 and 11)", "figure 4")
    report = lab.report
    for disk in disks_of(report, "sfs"):
        lowest = report.select("sfs", disk=disk)[0]["target"]
        fields = {"read": ["disk_read_bytes"], "written": ["disk_written_bytes"], "together": ["disk_read_bytes", "disk_written_bytes"]}

        def of(group, name, disk=disk, lowest=lowest, fields=fields):
            whole = {n: sum(middle(report.values("sfs", f, disk=disk, setup=n, target=lowest)) for f in fields[group]) for n in ("native", name)}
            return [whole[name] / whole["native"]]
        names = found(report, "sfs", "setup", disk=disk)
        if "native" in names:
            report.bars(f"volume-{disk}", f"I/O volume at {lowest:,} operations/s, of native's, {disk}", list(fields), names, of, "of native",
                        theirs=lambda group, name: VOLUMES[group].get(name), said="Theirs: figure 11a and section IV.G, by the text, at 3,400 operations/s.")


def show_file_server_compressible(lab, how):
    """Figure 5."""
    show_targets(lab, "sfs-compressible", "File server with more compressible files (figure 5)", "figure 5")


def show_file_server_large(lab, how):
    """Figure 4, larger."""
    show_targets(lab, "sfs-large", "File server with files far above the memory (figure 4)", "figure 4")


def show_targets(lab, table, title, theirs):
    """Achieved operations, response times, and the load that each set-up sustains."""
    report = lab.report
    report.heading(title)
    for disk in disks_of(report, table):
        names = found(report, table, "setup", disk=disk)
        report.lines(f"{table}-{disk}-per_s", f"operations achieved, {disk}", {n: by_target(report, table, disk, n, "per_s") for n in names},
                     "operations asked for, a second", "operations/s", said=f"Theirs, {theirs}, asked for 3,400 to 4,600 operations/s. {disk}: {DISKS[disk].title}.")
        report.lines(f"{table}-{disk}-response_ms", f"response time, {disk}", {n: by_target(report, table, disk, n, "response_ms") for n in names},
                     "operations asked for, a second", "ms", rising=True, said=f"Theirs, {theirs}: the text has differences of response times only.")
        if sustained(report, table, disk, "native"):
            report.bars(f"{table}-{disk}-sustained", f"highest load that was sustained, of native's, {disk}", names, ["ours"],
                        lambda name, _, disk=disk: [sustained(report, table, disk, name) / sustained(report, table, disk, "native")], "of native",
                        theirs=lambda name, _: SUSTAINED[table][name] / SUSTAINED[table]["native"] if name in SUSTAINED[table] else None,
                        said=f"Theirs: {theirs}, by its text. Ours: the highest of {', '.join(f'{t:,}' for t in found(report, table, 'target', disk=disk))} operations/s of which {100 * IS_SUSTAINED:.0f} % were achieved.")
    for disk in disks_of(report, table):
        report.table([f"set-up, {disk}", "target", "achieved/s", "response, ms", "longest, ms", "CPU, % of one", "disk read, MB", "disk written, MB"],
                     [[r["setup"], r["target"], r["per_s"], r["response_ms"], r["longest_ms"], r["cpu_percent"], round(r["disk_read_bytes"] / 1e6), round(r["disk_written_bytes"] / 1e6)]
                      for r in report.select(table, disk=disk)])


def serve_files(lab, place, content, how, target):
    """Makes the set of files if need be, then measures at one target."""
    program = [build(lab, "fileserver"), place.path, content, how["files"], how["file_bytes"], target]
    # A tenth of a second makes the set; from then on it is there.
    place.run([*program, "0.1", 1, 1])
    place.drop_caches()
    with place.meter() as meter:
        told = json.loads(place.run([*program, how["sfs_seconds"], how["threads"], 2]))
    return meter.figures(), told


def extents(lab, how):
    """Figure 10: PostMark and the file server with extents of several sizes."""
    content = data.mail()
    for disk in lab.disks(how["disks"][0]):
        for setup in lab.setups("zlib"):
            for extent in how["extents"]:
                with lab.place(disk, setup, size=how["size"], memory=how["memory"], extent=extent) as place:
                    told, figures = mail_load(lab, place, content, how)
                    lab.report.row("extents", disk=disk.name, load="postmark", extent=size(extent), per_s=round(how["transactions"] / told["transactions_s"], 2), **figures)
                with lab.place(disk, setup, size=how["size"], memory=how["memory"], extent=extent) as place:
                    figures, told = serve_files(lab, place, content, how, how["targets"][disk.name][-1])
                    lab.report.row("extents", disk=disk.name, load="sfs", extent=size(extent), per_s=told["per_s"], **figures)


# Where theirs was best: figures 10a and 10b.
BEST_EXTENT = {"postmark": 512 << 10, "sfs": 64 << 10}
# With the largest cache of metadata, of that with the least: figures 13a and 13b.
MOST_METADATA = {"postmark": 2.0, "sfs": 1.49}


def show_extents(lab, how):
    """Figure 10."""
    curves(lab, "extents", "extent", "Size of extents (figure 10)", "extent",
           lambda load, first: {"theirs_at": {"theirs, best": BEST_EXTENT[load]}, "said": f"Theirs: figure 10{'ab'[load == 'sfs']}, by its text: best at {BEST_EXTENT[load] >> 10} KB."})


def show_metadata(lab, how):
    """Figure 13."""
    curves(lab, "metadata", "memory", "Memory for metadata (figure 13)", "--memory",
           lambda load, first: {"theirs": {"theirs, most metadata cache": MOST_METADATA[load] * first},
                                "said": f"Theirs: figure 13{'ab'[load == 'sfs']}, by its text, of ours with the least: up to {MOST_METADATA[load]:g} times with a larger cache for metadata alone. --memory is all memory of the server."})


def curves(lab, table, across, title, words, theirs):
    """A curve of `per_s` for each load, and a table."""
    rows = lab.report.table_of(table)
    lab.report.heading(title)
    loads = list(dict.fromkeys(r["load"] for r in rows))
    for load in loads:
        curve = [(r[across], r["per_s"]) for r in rows if r["load"] == load]
        lab.report.lines(f"{table}-{load}", f"{title}: {load}", {"ours": curve}, words, "transactions or operations/s", logarithmic=True, **theirs(load, curve[0][1]))
    lab.report.table(["load", words, "per second", "disk read, MB", "disk written, MB"],
                     [[r["load"], r[across], r["per_s"], round(r["disk_read_bytes"] / 1e6), round(r["disk_written_bytes"] / 1e6)] for r in rows])


# The marks of figure 12: per cent of free space below and above which theirs cleaned.
MARKS = {"clean-low": "10", "clean-high": "25"}


def geometry(lab, how):
    """PostMark with the paper's own geometry: blocks of 4 KiB in extents of 32 KiB; natively beside it."""
    content = data.mail()
    for disk in lab.disks(how["disks"][0]):
        for setup in lab.setups("native", "lzo", "zlib"):
            own = {"properties": {"unit": "4K"}, "extent": "32K"} if setup.compression else {}
            with lab.place(disk, setup, size=how["size"], memory=how["memory"], **own) as place:
                told, figures = mail_load(lab, place, content, how)
                lab.report.row("geometry", disk=disk.name, setup=setup.name, per_s=round(how["transactions"] / told["transactions_s"], 2), saving_percent=saving(place), **told, **figures)


def show_geometry(lab, how):
    """Relative to native."""
    report = lab.report
    report.heading("PostMark with units of 4 KiB and extents of 32 KiB (figure 2)")
    for disk in disks_of(report, "geometry"):
        report.bars(f"geometry-{disk}", f"PostMark with the paper's geometry: transactions a second, of native's, {disk}", found(report, "geometry", "setup", disk=disk), ["ours"],
                    lambda name, _, disk=disk: ratios(report, "geometry", "per_s", disk=disk, setup=name), "of native", theirs=lambda name, _: MOST_MAIL if name != "native" else None,
                    said=f"Theirs: up to {MOST_MAIL} of native in figure 2, by its text, which names no codec; eight disks.")
    report.table(["set-up", "transactions/s", "CPU, % of one", "saved, %", "disk reads", "disk writes", "disk read, MB", "disk written, MB"],
                 [[r["setup"], r["per_s"], r["cpu_percent"], r.get("saving_percent"), r["disk_reads"], r["disk_writes"], round(r["disk_read_bytes"] / 1e6), round(r["disk_written_bytes"] / 1e6)]
                  for r in report.table_of("geometry")])


def cleaner(lab, how):
    """Figure 12: PostMark over time in a pool that cannot hold all that is written, with what the cleaner does beside it."""
    clean(lab, how, "cleaner", {})


def cleaner_marks(lab, how):
    """Figure 12 with the marks that the paper set for it."""
    clean(lab, how, "cleaner-marks", MARKS)


def clean(lab, how, table, marks):
    """One run, and its series."""
    content = data.mail_with_attachments() if not lab.quick else data.mail()
    live = how["messages"] * (MESSAGE_MIN + how["message_max"]) // 2
    for disk in lab.disks("cloud" if not lab.quick else how["disks"][0]):
        for setup in lab.setups("lzo"):
            # Little more than the live messages take, as stored and with what is appended to them: the cleaner must run, again and again.
            room = 1.1 if lab.quick else 1.8
            with lab.place(disk, setup, size=how["size"], memory=how["memory"], capacity=int(live * room), extent="256K") as place:
                if marks:
                    place.shale("set", place.pool, *[f"{key}={value}" for key, value in marks.items()])
                series, states, ended = lab.work / "series", [], threading.Event()
                series.unlink(missing_ok=True)

                def watch():
                    while not ended.wait(0.5):
                        state = place.status(sync=False)
                        # The load makes this file before it makes its messages.
                        if series.exists():
                            states.append((time.monotonic(), state["cleaned_extents"], state["free_bytes"], state["moved_bytes"]))
                watcher = threading.Thread(target=watch, daemon=True)
                watcher.start()
                told, figures = mail_load(lab, place, content, how, series=series, transactions=how["transactions"] * 3)
                ended.set()
                watcher.join()
                before = (0.0, 0, 0)
                for line in series.read_text().splitlines():
                    at, done, moved = (float(f) for f in line.split())
                    lab.report.row(table, disk=disk.name, second=at, transactions_per_s=round((done - before[1]) / (at - before[0]), 1), mb_per_s=round((moved - before[2]) / (at - before[0]) / 1e6, 1))
                    before = (at, done, moved)
                for at, extents_cleaned, free, moved in states:
                    # On the clock of the series, which begins when all messages are made.
                    lab.report.row(f"{table}-states", disk=disk.name, second=round(at - states[0][0] - told["make_s"], 1), cleaned_extents=extents_cleaned, free_bytes=free, moved_bytes=moved)
                lab.report.note(f"cleaner: {states[-1][1] if states else 0} extents emptied, {(states[-1][3] if states else 0) / 1e6:.0f} MB moved while {(told['written_bytes'] + told['made_bytes']) / 1e6:.0f} MB were written.")


def show_cleaner(lab, how):
    """Figure 12 with our marks."""
    show_clean(lab, "cleaner", "The cleaner (figure 12)", "In the run of November 2026 the clock of this figure begins before the messages are made, some seconds before that of the load.")


def show_cleaner_marks(lab, how):
    """Figure 12 with theirs."""
    show_clean(lab, "cleaner-marks", "The cleaner with the marks of the paper: 10 and 25 % (figure 12)", None)


def show_clean(lab, table, title, clock):
    """Rate and free space over time."""
    report = lab.report
    report.heading(title)
    series, states = report.table_of(table), report.table_of(f"{table}-states")
    begins = next((r["second"] for r in states if r["cleaned_extents"]), None)
    # A pool that is cleaned from the beginning has no time before.
    before = middle([r["transactions_per_s"] for r in series if begins is None or r["second"] < begins] or [r["transactions_per_s"] for r in series])
    report.lines(table, f"PostMark over time, {series[0]['disk']}", {"transactions/s": [(r["second"], r["transactions_per_s"]) for r in series], "MB/s": [(r["second"], r["mb_per_s"]) for r in series]},
                 "seconds", "per second", theirs={"theirs, in its valleys": 0.4 * before},
                 said="Theirs: figure 12, by its text, of our median before cleaning begins: degraded by up to 150 % in two valleys of 10 and 15 s, that is to 0.4. It cleaned below 10 % of free extents, until 25 %.")
    if states:
        report.lines(f"{table}-extents", "extents emptied by then", {"extents": [(r["second"], r["cleaned_extents"]) for r in states]}, "seconds", "extents",
                     said=clock)
        report.lines(f"{table}-free", "free space by then", {"free": [(r["second"], r["free_bytes"] / 1e6) for r in states]}, "seconds", "MB", said="Theirs: 15 % of the capacity, 1.4 GB, is reclaimed in each valley.")


def metadata(lab, how):
    """Figure 13: PostMark and the file server by the memory that the server has for its map and caches."""
    content = data.mail()
    for disk in lab.disks(how["disks"][0]):
        for setup in lab.setups("lzo"):
            for cache in how["caches"]:
                with lab.place(disk, setup, size=how["size"], memory=how["memory"] + size(cache), server_memory=size(cache)) as place:
                    told, figures = mail_load(lab, place, content, how)
                    lab.report.row("metadata", disk=disk.name, load="postmark", memory=size(cache), per_s=round(how["transactions"] / told["transactions_s"], 2), **figures)
                with lab.place(disk, setup, size=how["size"], memory=how["memory"] + size(cache), server_memory=size(cache)) as place:
                    figures, told = serve_files(lab, place, content, how, how["targets"][disk.name][-1])
                    lab.report.row("metadata", disk=disk.name, load="sfs", memory=size(cache), per_s=told["per_s"], **figures)
