"""The ZBD paper's loads on files: PostMark, a file server's, extents of several sizes, the cleaner, memory for metadata."""

import json
import subprocess
import threading
from pathlib import Path

from lab import data, size
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
    for disk in lab.disks(*how["disks"]):
        for setup in lab.setups(*how["setups"]):
            for cpus in how["cpus"]:
                for kind, content in contents.items():
                    # Not all on all, for time's sake: one CPU, and the other mail, on the paper's kind of disk.
                    if disk.name != "disk2010" and (kind != "mail" or cpus != how["cpus"][-1]) or kind != "mail" and cpus != how["cpus"][-1]:
                        continue
                    with lab.place(disk, setup, size=how["size"], memory=how["memory"], cpus=cpus) as place:
                        told, figures = mail_load(lab, place, content, how)
                        lab.report.row("postmark", disk=disk.name, setup=setup.name, cpus=cpus, content=kind, per_s=round(how["transactions"] / told["transactions_s"], 2),
                                       saving_percent=saving(place), **told, **figures)
    report = lab.report
    report.heading("PostMark (figures 2 and 3)")
    for disk in how["disks"]:
        rows = report.select("postmark", disk=disk)
        if not rows:
            continue
        names = list(dict.fromkeys(r["setup"] for r in rows))
        report.bars(f"postmark-{disk}", f"PostMark, transactions a second, {disk}", [f"{c} CPU" for c in sorted({r["cpus"] for r in rows})], names,
                    lambda group, name: report.values("postmark", "per_s", disk=disk, setup=name, cpus=int(group.split()[0]), content="mail"), "transactions/s")
        report.table(["set-up", "content", "CPUs", "transactions/s", "of native", "CPU, % of one", "saved, %", "disk read, MB", "disk written, MB"],
                     [[r["setup"], r["content"], r["cpus"], r["per_s"], of_native(report, "postmark", r, "per_s", "cpus", "content"), r["cpu_percent"], r.get("saving_percent"),
                       round(r["disk_read_bytes"] / 1e6), round(r["disk_written_bytes"] / 1e6)] for r in rows])


def of_native(report, table, row, field, *same):
    """A row's figure as a part of that of the native set-up under the same conditions."""
    native = middle(report.values(table, field, disk=row["disk"], setup="native", **{k: row[k] for k in same}))
    return round(row[field] / native, 2) if native else None


def file_server(lab, how):
    """Figures 4, 5 and 11: operations and response time at rising targets, and the volume of I/O."""
    content = data.mail()
    for disk in lab.disks(*[d for d in how["disks"] if d in how["targets"]]):
        for setup in lab.setups(*how["setups"]):
            with lab.place(disk, setup, size=how["size"], memory=how["memory"], cpus=how["cpus"][-1]) as place:
                for target in how["targets"][disk.name]:
                    figures, told = serve_files(lab, place, content, how, target)
                    lab.report.row("sfs", disk=disk.name, setup=setup.name, target=target, saving_percent=saving(place), **told, **figures)
    report = lab.report
    report.heading("File server (figures 4 and 11)")
    for disk in dict.fromkeys(r["disk"] for r in report.table_of("sfs")):
        names = list(dict.fromkeys(r["setup"] for r in report.select("sfs", disk=disk)))
        for field, what in (("per_s", "operations achieved/s"), ("response_ms", "response time, ms")):
            report.lines(f"sfs-{disk}-{field}", f"file server, {disk}", {n: [(r["target"], r[field]) for r in report.select("sfs", disk=disk, setup=n)] for n in names},
                         "operations asked for, a second", what, rising=field == "response_ms")
        lowest = how["targets"][disk][0]
        for field, what in (("disk_read_bytes", "read"), ("disk_written_bytes", "written")):
            report.bars(f"volume-{disk}-{what}", f"I/O volume at {lowest} operations/s, {disk}: {what}", [what], names,
                        lambda group, name: [v / 1e6 for v in report.values("sfs", field, disk=disk, setup=name, target=lowest)], "MB")
        report.table(["set-up", "target", "achieved/s", "response, ms", "longest, ms", "CPU, % of one", "disk read, MB", "disk written, MB"],
                     [[r["setup"], r["target"], r["per_s"], r["response_ms"], r["longest_ms"], r["cpu_percent"], round(r["disk_read_bytes"] / 1e6), round(r["disk_written_bytes"] / 1e6)]
                      for r in report.select("sfs", disk=disk)])


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
    curves(lab, "extents", "extent", "Size of extents (figure 10)", "extent, bytes")


def curves(lab, table, across, title, words):
    """A curve of `per_s` for each load, and a table."""
    rows = lab.report.table_of(table)
    if not rows:
        return
    lab.report.heading(title)
    loads = list(dict.fromkeys(r["load"] for r in rows))
    for load in loads:
        lab.report.lines(f"{table}-{load}", f"{title}: {load}", {load: [(r[across], r["per_s"]) for r in rows if r["load"] == load]}, words, "transactions or operations/s", logarithmic=True)
    lab.report.table(["load", words, "per second", "disk read, MB", "disk written, MB"],
                     [[r["load"], r[across], r["per_s"], round(r["disk_read_bytes"] / 1e6), round(r["disk_written_bytes"] / 1e6)] for r in rows])


def cleaner(lab, how):
    """Figure 12: PostMark over time in a pool that cannot hold all that is written, with what the cleaner does beside it."""
    content = data.mail_with_attachments() if not lab.quick else data.mail()
    live = how["messages"] * (MESSAGE_MIN + how["message_max"]) // 2
    for disk in lab.disks("cloud" if not lab.quick else how["disks"][0]):
        for setup in lab.setups("lzo"):
            # Little more than the live messages take, as stored and with what is appended to them: the cleaner must run, again and again.
            room = 1.1 if lab.quick else 1.8
            with lab.place(disk, setup, size=how["size"], memory=how["memory"], capacity=int(live * room), extent="256K") as place:
                series, states, ended = lab.work / "series", [], threading.Event()

                def watch():
                    while not ended.wait(0.5):
                        state = place.status(sync=False)
                        states.append((state["cleaned_extents"], state["free_bytes"], state["moved_bytes"]))
                watcher = threading.Thread(target=watch, daemon=True)
                watcher.start()
                told, figures = mail_load(lab, place, content, how, series=series, transactions=how["transactions"] * 3)
                ended.set()
                watcher.join()
                before = (0.0, 0, 0)
                rates = []
                for line in series.read_text().splitlines():
                    at, done, moved = (float(f) for f in line.split())
                    rates.append((at, (done - before[1]) / (at - before[0]), (moved - before[2]) / (at - before[0]) / 1e6))
                    lab.report.row("cleaner", disk=disk.name, second=at, transactions_per_s=round(rates[-1][1], 1), mb_per_s=round(rates[-1][2], 1))
                    before = (at, done, moved)
                for index, (extents_cleaned, free, moved) in enumerate(states):
                    lab.report.row("cleaner-states", disk=disk.name, second=index / 2, cleaned_extents=extents_cleaned, free_bytes=free, moved_bytes=moved)
                lab.report.heading("The cleaner (figure 12)")
                lab.report.text(f"{states[-1][0] if states else 0} extents emptied, {(states[-1][2] if states else 0) / 1e6:.0f} MB moved while {(told['written_bytes'] + told['made_bytes']) / 1e6:.0f} MB were written.")
                if rates:
                    lab.report.lines("cleaner", f"PostMark over time, {disk.name}", {"transactions/s": [(t, r) for t, r, _ in rates], "MB/s": [(t, m) for t, _, m in rates]}, "seconds", "per second")
                if states:
                    lab.report.lines("cleaner-extents", "extents emptied by then", {"extents": [(i / 2, c) for i, (c, _, _) in enumerate(states)]}, "seconds", "extents")


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
    curves(lab, "metadata", "memory", "Memory for metadata (figure 13)", "--memory, bytes")
