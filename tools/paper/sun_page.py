"""The page of paper-sun: graphs over time from the history, ratio and time beside theirs, and the estimate beside what was measured."""

from statistics import median

from sun_runs import CLIENTS, DATA, DIFFERENCE_MAX, LEVELS

# Numbers that are in the text of the work: its charts of ratio and time have no others.
RATIOS = {("text", "lzjb"): 1.47, ("text", "gzip-9"): 2.52, ("media", "off"): 1.00, ("media", "gzip-2"): 1.01, ("media", "gzip-9"): 1.01}
BUSY_MOST = {("text", "gzip-9"): 50.0}
GAP_SECONDS = 3
MB = 1e6
# Over time: (graph, title, unit, divisor of its values, whether its series are stacked, its series or all).
CHARTS = [
    ("operations", "operations that reach the shares", "operations/s", 1, False, None),
    ("network", "network bytes (loopback: sent is received)", "MB/s", MB, False, ["received"]),
    ("cpu", "CPU of the machine, and of the server in it", "processors", 1e9, False, ["user", "system", "server"]),
    ("written", "bytes written to disk, by cause", "MB/s", MB, True, None),
    ("read", "bytes read from disk, by cause", "MB/s", MB, True, None),
    ("written by codec", "bytes written, as stored, by codec", "MB/s", MB, True, None),
    ("read by codec", "bytes read, as stored, by codec", "MB/s", MB, True, None),
    ("compression", "CPU time of compression, by codec", "processors", 1e9, True, None),
    ("decompression", "CPU time of decompression, by codec", "processors", 1e9, True, None),
]
COLOURS = ["#2f6f8f", "#c0672f", "#4f8f3f", "#8f4f8f", "#b0902f", "#3f8f8f", "#af3f5f", "#5f5faf", "#8a6a4a", "#222222"]
# A codec has one colour in all graphs.
CODECS = dict(zip(["raw", "lzjb", "gzip-2", "gzip-6", "gzip-9", "lz4", "zstd-1", "zstd-3", "zstd-6", "zstd-9"], COLOURS))
# Room for the legend above the curves.
LEGEND_ROOM = 1.25
DISK_MB_PER_S = 100.0
# Errors that an estimate may have: points of saving beyond its margin (names of the shares, headers), shares of CPU time and speed.
SAVING_OFF_MAX, CPU_OFF_MAX, SPEED_OFF_MAX = 0.5, 0.25, 1 / 3


def levels(lab, data):
    """Those that were measured, in order of effort."""
    found = {row["level"] for row in lab.report.select("runs", data=data)}
    return [level for level in LEVELS if level in found]


def mid(lab, field, **wanted):
    """Median of the runs; None without one."""
    found = lab.report.values("runs", field, **wanted)
    return median(found) if found else None


class Line:
    """The time line of one kind of data: all levels side by side."""

    def __init__(self, lab, data):
        self.lab, self.data, self.at = lab, data, {}
        self.end = 0
        for level in levels(lab, data):
            if spans := lab.report.select("spans", data=data, level=level):
                self.at[level] = (self.end, spans[0])
                self.end += spans[0]["read_end"] + GAP_SECONDS

    def curves(self, graph):
        """{series: a value for each second}, the largest first."""
        found = {}
        for row in self.lab.report.select("series", data=self.data, graph=graph):
            if row["level"] in self.at:
                begin, span = self.at[row["level"]]
                if row["second"] < span["read_end"]:
                    found.setdefault(str(row["name"]), [0] * self.end)[begin + row["second"]] = row["value"]
        return dict(sorted(found.items(), key=lambda item: -sum(item[1])))

    def mark(self, axes):
        """Halves and names of the levels below the axis."""
        for begin, span in self.at.values():
            axes.axvspan(begin, begin + span["write_end"], color="#000000", alpha=0.06, linewidth=0)
        axes.set_xticks([begin + span["read_end"] / 2 for begin, span in self.at.values()], list(self.at), rotation=35, ha="right")
        axes.set_xlim(0, max(self.end - GAP_SECONDS, 1))
        seconds = axes.secondary_xaxis("top")
        seconds.set_xlabel("seconds of the runs, one after the other; grey: writes", fontsize=7)
        seconds.tick_params(labelsize=7)


def over_time(lab, line, graph, title, unit, divisor, is_stacked, wanted):
    """One graph of all levels."""
    curves = {name: [value / divisor for value in values] for name, values in line.curves(graph).items() if not wanted or name in wanted}
    if not curves:
        return

    def draw(axes):
        at, most = list(range(line.end)), max(map(sum if is_stacked else max, zip(*curves.values())))
        others = iter(COLOURS)
        colours = [CODECS.get(name) or next(others) for name in curves]
        if is_stacked:
            # As pixels: so many points would be megabytes of SVG.
            axes.stackplot(at, list(curves.values()), labels=list(curves), colors=colours, step="post", linewidth=0, rasterized=True)
        else:
            for (name, values), colour in zip(curves.items(), colours):
                axes.step(at, values, where="post", linewidth=0.9, label=name, color=colour)
        line.mark(axes)
        axes.set_ylim(0, LEGEND_ROOM * most)
        axes.set_ylabel(unit)
        axes.legend(fontsize=7, frameon=False, ncols=min(len(curves), 6), loc="upper right")
    lab.report.plot(f"{line.data}-{graph.replace(' ', '-')}", f"{line.data}: {title}", draw, size=(10, 3.4))


def heat(lab, line):
    """Latency over time: a column a second, darker with more operations."""
    for operation in ("write", "read"):
        rows = [r for r in lab.report.select("heat", data=line.data, operation=operation) if r["level"] in line.at and r["second"] < line.at[r["level"]][1]["read_end"]]
        if not rows:
            continue
        low, high = min(r["bucket"] for r in rows), max(r["bucket"] for r in rows)
        cells = [[0] * line.end for _ in range(low, high + 1)]
        for row in rows:
            cells[row["bucket"] - low][line.at[row["level"]][0] + row["second"]] = row["value"]
        ends = {r["bucket"]: r.get("end_ns") for r in rows}

        def draw(axes, cells=cells, low=low, ends=ends):
            from matplotlib.colors import LogNorm
            shown = [[value or float("nan") for value in line_of] for line_of in cells]
            mesh = axes.pcolormesh(range(line.end + 1), range(len(cells) + 1), shown, norm=LogNorm(), cmap="viridis_r", rasterized=True)
            axes.set_yticks([n + 1 for n in range(len(cells))], [as_time(ends.get(low + n)) for n in range(len(cells))], fontsize=7)
            axes.set_ylabel("at most")
            axes.figure.colorbar(mesh, ax=axes, label="operations/s", pad=0.01)
            line.mark(axes)
        lab.report.plot(f"{line.data}-latency-{operation}", f"{line.data}: latency of {operation}s at the shares", draw, size=(10, 3.4))


def as_time(ns):
    """Of nanoseconds."""
    if ns is None:
        return ""
    return f"{ns / 1e3:.0f} µs" if ns < 1e6 else f"{ns / 1e6:.0f} ms" if ns < 1e9 else f"{ns / 1e9:.0f} s"


def summary(lab):
    """Their two charts, and all figures of each level as a table."""
    report = lab.report
    report.heading("Ratio and time")
    report.text("Ratio: bytes that the clients wrote over bytes stored, the shares' own names and headers included. Time: of writing, until all clients have committed, and of reading. The work has "
                "its times in a chart without numbers. Medians of the runs.")
    for data in DATA:
        found = levels(lab, data)
        report.bars(f"{data}-ratio", f"{data}: ratio", found, ["ours"], lambda level, _, d=data: report.values("runs", "ratio", data=d, level=level), "x",
                    theirs=lambda level, _, d=data: RATIOS.get((d, level)), said="Theirs: the numbers of its text; its gzip without a number is gzip-6.")
        report.bars(f"{data}-time", f"{data}: time", found, ["write", "read"], lambda level, kind, d=data: report.values("runs", f"{kind}_s", data=d, level=level), "s",
                    said="Theirs is a chart; its text has no numbers of time.")
        report.bars(f"{data}-busy", f"{data}: CPU of the machine in use", found, ["write", "read"],
                    lambda level, kind, d=data: report.values("runs", f"{kind}_busy_percent", data=d, level=level), "%",
                    theirs=lambda level, kind, d=data: BUSY_MOST.get((d, level)) if kind == "write" else None, said="Theirs: about 50 % by its text, 8 threads of 16 cores." if data == "text" else None)
    columns = ["data, level", "ratio", "theirs", "saves, %", "write, s", "read, s", "write, MB/s", "CPU while writing, %", "while reading, %", "written to disk, MB", "read, MB", "joules"]
    rows = []
    for data in DATA:
        for level in levels(lab, data):
            of = {"data": data, "level": level}
            write = mid(lab, "write_s", **of)
            rows.append([f"{data}, {level}", mid(lab, "ratio", **of), RATIOS.get((data, level)), mid(lab, "saving_percent", **of), write, mid(lab, "read_s", **of), mid(lab, "bytes", **of) / write / MB,
                         mid(lab, "write_busy_percent", **of), mid(lab, "read_busy_percent", **of), mid(lab, "disk_written", **of) / MB, mid(lab, "disk_read", **of) / MB, mid(lab, "joules", **of)])
    report.table(columns, rows)


def by_codec(lab):
    """Disk bytes, CPU time and joules of each codec."""
    report = lab.report
    report.heading("By codec")
    report.text("Sums of the first run, from the history. CPU time of compression is measured for one unit in eight; joules are CPU time at the calibrated power of a processor.")
    rows = []
    for data in DATA:
        for level in levels(lab, data):
            for row in report.select("codecs", data=data, level=level, run=1):
                rows.append([f"{data}, {level}", row["direction"], row["codec"], row["bytes"] / MB, row["cpu_s"], row["joules"]])
    report.table(["data, level", "direction", "codec", "on disk, MB", "CPU, s", "joules"], rows)


def beside_estimates(lab):
    """The estimates beside the measured figures."""
    report = lab.report
    report.heading("Estimated and measured")
    report.text(f"The estimate reads a share that is not compressed yet ('shale estimate --json'). Its saving is to hold within its margin and {SAVING_OFF_MAX} points for names and headers, CPU time within a quarter, "
                "and the speed of writing within a third: that of the estimate's own model, or without one the lesser of all processors' speed and the disk's. The estimate of a share stands for all ten.")
    rows = []
    for data in DATA:
        for level in levels(lab, data):
            found = report.select("estimates", data=data, level=level)
            if not found:
                continue
            said, of = found[0], {"data": data, "level": level}
            total = mid(lab, "bytes", **of)
            kept = max(1 - said["saving_percent"] / 100, 0.01)
            # Of off, no core is the bound.
            model = min(said["cpus"] * (said.get("mb_per_s") or float("inf")), DISK_MB_PER_S / kept)
            speed = said.get("write_mb_per_s") or model
            line = {"saving": said["saving_percent"], "margin": said["margin_percent"], "saving_measured": mid(lab, "saving_percent", **of),
                    "cpu_s": round(CLIENTS * said["cpu_s"], 3), "cpu_s_measured": mid(lab, "compress_s", **of),
                    "write": round(speed, 1), "write_measured": round(total / mid(lab, "write_s", **of) / MB, 1)}
            line["saving_holds"] = int(abs(line["saving"] - line["saving_measured"]) <= line["margin"] + SAVING_OFF_MAX)
            line["cpu_holds"] = int(is_near(line["cpu_s"], line["cpu_s_measured"], CPU_OFF_MAX))
            line["write_holds"] = int(is_near(line["write"], line["write_measured"], SPEED_OFF_MAX))
            report.row("beside", **of, **line)
            rows.append([f"{data}, {level}", f"{said['saving_percent']:.1f} ± {said['margin_percent']:.1f}", line["saving_measured"], line["cpu_s"], line["cpu_s_measured"], line["write"], line["write_measured"],
                         ", ".join(name for name, key in (("saving", "saving_holds"), ("CPU", "cpu_holds"), ("speed", "write_holds")) if line[key]) or "nothing"])
    report.table(["data, level", "saves, % (estimate)", "measured", "CPU, s (estimate)", "measured", "writes, MB/s (estimate)", "measured", "holds"], rows)


def is_near(said, measured, share):
    """Within a share of what was measured; so little that neither matters is near, too."""
    return abs(said - measured) <= max(share * measured, 0.1)


def agreement(lab):
    """Differences between the history and other counts."""
    report = lab.report
    report.heading("The history beside other counts")
    report.text(f"Each run compares the sums of the history with the clients' own bytes, with the kernel's count of the network interface, and with that of the disk on which the data lies (the map lies on another one), and fails above "
                f"{100 * DIFFERENCE_MAX:.0f} %, or with a gap in the history.")
    worst = {}
    for row in report.table_of("counts"):
        what = row["what"].split(" by ")[0]
        worst.setdefault((what, row["whose"]), []).append(row["difference_percent"])
    report.table(["what", "counted by", "comparisons", "most that they differ, %"], [[what, whose, len(found), float(max(found))] for (what, whose), found in worst.items()])


def show(lab):
    """The whole page."""
    summary(lab)
    beside_estimates(lab)
    for data in DATA:
        line = Line(lab, data)
        if line.at:
            lab.report.heading(f"{data.capitalize()} over time")
            lab.report.text("The first run of each level, drawn from the history of the pool that the level was measured on, a value a second. Operations are writes, reads, flushes and those on names.")
            for chart in CHARTS:
                over_time(lab, line, *chart)
            heat(lab, line)
    by_codec(lab)
    agreement(lab)
