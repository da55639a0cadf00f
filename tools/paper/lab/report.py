"""The report of a run: CSV of what was measured, plots as SVG, and index.html with how and on what it ran."""

import csv
import datetime
import html
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

STYLE = """body{font:15px/1.5 sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}table{border-collapse:collapse;margin:1em 0}
td,th{border:1px solid #ccc;padding:.25em .6em;text-align:right;vertical-align:top}td:first-child,th:first-child{text-align:left}td.words{text-align:left}
img{max-width:100%}code{background:#f3f3f3;padding:0 .2em}.quick{background:#fff3cd;padding:.6em 1em}"""
CLAIMS = Path(__file__).resolve().parents[2] / "claims"
# Letters of labels that fit side by side below a plot.
LABELS_MAX = 100
SAVE_SECONDS = 5
# Fields that tell on what a row was measured: a new measurement takes the place of all that an earlier one found there.
PLACES = ("disk", "setup", "database", "unit", "variant", "layer", "content", "load", "extent", "memory", "percent")
COLOURS = ["#777777", "#2f6f8f", "#c0672f", "#4f8f3f", "#8f4f8f", "#b0902f", "#3f8f8f", "#af3f5f", "#5f5faf", "#222222"]


def mean(values):
    """Of numbers; None of none."""
    return statistics.fmean(values) if values else None


def deviation(values):
    """Of a sample; 0 of one."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def number(value):
    """A number as people read it."""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def plain(at):
    """A tick: sizes in powers of two as such."""
    for unit, bits in (("M", 20), ("K", 10)):
        if at >= 1 << bits and at % (1 << bits) == 0:
            return f"{at >> bits} {unit}iB"
    return f"{at:,}"


def value(text):
    """A field of a CSV as what it was."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


class Report:
    """Collects rows, notes and figures, and writes them to `out`."""

    def __init__(self, name, about, out, lab):
        self.name, self.about, self.out, self.lab = name, about, out, lab
        self.rows = {}
        self.parts = []
        self.kept = {}
        self.renewed = set()
        self.saved = time.monotonic()
        self.part = None
        self.measured = True
        self.found = 0
        self.order = []
        self.notes = []
        self.began = datetime.datetime.now(datetime.UTC)
        self.load_before = os.getloadavg()[0]

    def note(self, text):
        """Something that whoever reads the figures must know."""
        if text not in self.notes:
            self.notes.append(text)
            self.lab.say(text)

    def row(self, table, **fields):
        """A measurement: a line of TABLE.csv, which is written soon, so that a run that breaks off loses little.
        A run that leaves disks, set-ups or databases out keeps the lines that an earlier one found for these."""
        if table not in self.rows:
            self.rows[table] = self.kept.get(table, []) if self.lab.is_partial else []
        what = {k: fields[k] for k in PLACES if k in fields}
        place = (table, *what.items())
        if place not in self.renewed:
            self.renewed.add(place)
            self.rows[table] = [r for r in self.rows[table] if {k: r.get(k) for k in what} != what]
        self.rows[table].append(fields)
        self.found += 1
        if time.monotonic() > self.saved + SAVE_SECONDS:
            self._write_tables()

    def table_of(self, table):
        """All rows of a table: of this run, or else of an earlier one that measured its part."""
        return self.rows.get(table) or self.kept.get(table, [])

    def select(self, table, **wanted):
        """The rows of a table in which these fields have these values."""
        return [r for r in self.table_of(table) if all(r.get(k) == v for k, v in wanted.items())]

    def values(self, table, field, **wanted):
        """That field of the selected rows, those that have it."""
        return [r[field] for r in self.select(table, **wanted) if r.get(field) is not None]

    def in_parts(self, order):
        """The command measures in parts of these names, which may be run apart (--only): the page keeps what the others found before, and `select` finds their rows."""
        self.order = order
        for file in sorted(self.out.glob("*.csv")) if self.out.is_dir() else []:
            with open(file, newline="", encoding="utf-8") as rows:
                self.kept[file.stem] = [{k: value(v) for k, v in r.items() if v != ""} for r in csv.DictReader(rows)]

    def begin(self, part, measured=True):
        """What is said from now on belongs to this part; `None`: to no part, at the end. Not `measured`: drawn again from what an earlier run found."""
        self._end_part()
        self.part = part
        self.measured, self.found = measured, 0
        self.load_at_begin = os.getloadavg()[0]

    def _end_part(self):
        if self.part:
            self._write_tables()
            file = self.out / f"part-{self.part}.html"
            stamps = self._stamps(file, self.load_at_begin, self.measured)
            file.write_text("\n".join(self.parts + stamps) + "\n", encoding="utf-8")
            self.parts = []
        self.part = None

    def _stamps(self, file, load, measured=True):
        """When, with which build and under which load the rows of a page or part were measured: those in `file` stay where rows of theirs do."""
        kept = re.findall(r"^<p>Measured\b.*</p>$", file.read_text(encoding="utf-8"), re.MULTILINE) if file.exists() else []
        if not (measured and self.found) and kept:
            return kept
        shale, build = self._shale()
        when = datetime.datetime.now(datetime.UTC)
        own = f"<p>Measured {when:%Y-%m-%d %H:%M} UTC{' (quick)' if self.lab.quick else ''} by {html.escape(shale)} ({build}); load {load:.1f} when it began.</p>"
        return (kept if self.lab.is_partial else []) + [own]

    def _shale(self):
        """(version, build) of the program that is measured."""
        version = subprocess.run([self.lab.shale, "--version"], capture_output=True, text=True).stdout.strip()
        return version, "debug" if "/debug/" in self.lab.shale else "release" if "/release/" in self.lab.shale else "unknown build"

    def _write_tables(self):
        """CSV of each table, also of the parts that are done while others still run."""
        self.saved = time.monotonic()
        self.out.mkdir(parents=True, exist_ok=True)
        for table, rows in self.rows.items():
            columns = list(dict.fromkeys(k for r in rows for k in r))
            with open(self.out / f"{table}.csv", "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)

    def heading(self, text):
        """Begins a section."""
        self.parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text):
        """A paragraph."""
        self.parts.append(f"<p>{html.escape(text)}</p>")

    def table(self, columns, rows):
        """A table; texts are left-aligned, numbers shortened, None is a dash."""
        cells = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
        lines = []
        for row in rows:
            lines.append("<tr>" + "".join(f"<td{' class=words' if isinstance(c, str) and len(c) > 12 else ''}>{html.escape('–' if c is None else number(c))}</td>"
                                          for c in row) + "</tr>")
        self.parts.append(f"<table><tr>{cells}</tr>{''.join(lines)}</table>")

    def plot(self, name, title, draw, size=(8, 4.2)):
        """A figure: draw(axes) draws it."""
        import matplotlib
        matplotlib.use("svg")
        matplotlib.rcParams.update({"svg.hashsalt": "shale", "svg.fonttype": "none", "savefig.dpi": 160, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
        from matplotlib import pyplot
        figure, axes = pyplot.subplots(figsize=size, layout="constrained")
        draw(axes)
        axes.set_title(title)
        self.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(self.out / f"{name}.svg", metadata={"Date": None})
        pyplot.close(figure)
        self.parts.append(f'<p><img src="{name}.svg" alt="{html.escape(title)}"></p>')

    def bars(self, name, title, groups, series, value, unit, theirs=None):
        """Bars of each group, side by side for each series; value(group, series) gives a list of measurements: mean, with the deviation as error bar. theirs(group, series) gives a dash across the bar, or None."""
        def draw(axes):
            width = 0.84 / len(series)
            for index, key in enumerate(series):
                measured = [value(g, key) for g in groups]
                places = [i - 0.42 + width * (index + 0.5) for i in range(len(groups))]
                axes.bar(places, [mean(m) or 0 for m in measured], width, yerr=[deviation(m) for m in measured] if any(len(m) > 1 for m in measured) else None,
                         label=str(key), color=COLOURS[index % len(COLOURS)], error_kw={"linewidth": 0.8})
                dashes = [(place, theirs(g, key)) for place, g in zip(places, groups)] if theirs else []
                for place, level in [(p, level) for p, level in dashes if level]:
                    label = "theirs" if "theirs" not in axes.get_legend_handles_labels()[1] else None
                    axes.hlines(level, place - width / 2, place + width / 2, linestyles="--", linewidth=1.4, color="#222222", label=label)
            is_crowded = sum(len(str(g)) for g in groups) > LABELS_MAX
            axes.set_xticks(range(len(groups)), [str(g) for g in groups], **({"rotation": 35, "ha": "right"} if is_crowded else {}))
            axes.set_ylabel(unit)
            axes.legend(fontsize=8, ncols=min(len(series), 5), loc="upper center", bbox_to_anchor=(0.5, -0.28 if is_crowded else -0.1), frameon=False)
        self.plot(name, title, draw)

    def lines(self, name, title, curves, across, up, logarithmic=False, points=False, rising=False, theirs=None):
        """Curves: {label: [(x, y)]}, or y as a list of runs: median, with the spread as error bar; as points where `points`; up in powers of ten where `rising`. `theirs` is {label: level}, dashed."""
        def draw(axes):
            for index, (label, curve) in enumerate(curves.items()):
                runs = [y if isinstance(y, list) else [y] for _, y in curve]
                middle = [statistics.median(y) for y in runs]
                spread = [[m - min(y) for m, y in zip(middle, runs)], [max(y) - m for m, y in zip(middle, runs)]]
                axes.errorbar([x for x, _ in curve], middle, spread if any(len(y) > 1 for y in runs) else None, fmt="." if points else "o-",
                              markersize=1.5 if points else 3.5, linewidth=1.2, elinewidth=0.8, capsize=2, label=label, color=COLOURS[index % len(COLOURS)])
            for label, level in (theirs or {}).items():
                axes.axhline(level, linestyle="--", linewidth=1, color="#222222", label=label)
            if logarithmic:
                axes.set_xscale("log", base=2)
                at = sorted({x for curve in curves.values() for x, _ in curve})
                axes.set_xticks(at, [plain(x) for x in at])
                axes.minorticks_off()
            if rising:
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter(lambda y, _: f"{y:,g}")
            axes.set_xlabel(across)
            axes.set_ylabel(up)
            if not rising:
                axes.set_ylim(bottom=0)
            axes.legend(fontsize=8, frameon=False)
        self.plot(name, title, draw)

    def _ran_on(self):
        shale, build = self._shale()
        cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), platform.machine())
        memory = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
        place = subprocess.run(["findmnt", "-no", "FSTYPE,SOURCE", "--target", self.out.parent if self.out.parent.exists() else "."], capture_output=True, text=True).stdout.split()
        return [("command", shlex.join(["make", f"paper-{self.name}"] + (["QUICK=1"] if self.lab.quick else [])) + (f" (ARGS='{shlex.join(sys.argv[1:])}')" if sys.argv[1:] else "")),
                ("when", f"{self.began:%Y-%m-%d %H:%M} UTC, {(datetime.datetime.now(datetime.UTC) - self.began).total_seconds() / 60:.0f} minutes"),
                ("shale", f"{shale} ({build})"), ("processors", f"{os.cpu_count()} x {cpu}"), ("memory", f"{memory / (1 << 20):.1f} GiB"),
                ("disk", " on ".join(place)), ("kernel", platform.release()), ("load before", f"{self.load_before:.1f}: anything near 1 and above disturbs the figures")]

    def write(self):
        """CSV and index.html, whose claims tools/claims computes from the CSV."""
        self._end_part()
        self._write_tables()
        quick = '<p class="quick">A quick run: it shows that the command works. Its figures are no evidence.</p>' if self.lab.quick else ""
        about = "".join(f"<p>{html.escape(' '.join(p.split()))}</p>" for p in self.about.strip().split("\n\n")[1:])
        facts = "".join(f"<tr><td>{html.escape(k)}</td><td class=words>{html.escape(v)}</td></tr>" for k, v in self._ran_on())
        notes = "".join(f"<li>{html.escape(n)}</li>" for n in self.notes)
        data = " ".join(f'<a href="{t}.csv">{t}.csv</a>' for t in sorted(self.rows.keys() | self.kept.keys()))
        found = [self.out / f"part-{name}.html" for name in self.order]
        body = "".join(f.read_text(encoding="utf-8") for f in found if f.exists()) + "".join(self.parts)
        # Each section has an anchor, and the list of them comes first.
        sections = re.findall(r"<h2>(.*?)</h2>", body)
        for index, section in enumerate(sections):
            body = body.replace(f"<h2>{section}</h2>", f'<h2 id="s{index}">{section}</h2>', 1)
        contents = "".join(f'<li><a href="#s{index}">{section}</a></li>' for index, section in enumerate(sections))
        title = html.escape(self.about.strip().splitlines()[0])
        ran = "<h2>The run that drew this page</h2><p>Each part ends with its own time, build and load.</p>" if self.order else "<h2>How and on what it ran</h2>"
        stamps = "" if self.order else "\n".join(self._stamps(self.out / "index.html", self.load_before))
        marks = f"<!-- claims of {self.name}: begin (written by tools/claims) -->\n<!-- claims of {self.name}: end -->"
        (self.out / "index.html").write_text(f'<!doctype html><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>{quick}{about}'
                                             f"{ran}<table>{facts}</table><ul>{notes}</ul><p>Data: {data}</p>\n<ul><li><a href='#claims'>Claim by claim</a></li>{contents}</ul>\n{stamps}\n<h2 id='claims'>Claim by claim</h2>\n{marks}\n{body}\n", encoding="utf-8")
        subprocess.run([CLAIMS, "--page", self.out], check=True)
