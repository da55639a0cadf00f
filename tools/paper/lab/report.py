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

from . import figure

STYLE = """:root{color-scheme:light dark}body{font:15px/1.5 sans-serif;max-width:84em;margin:2em auto;padding:0 1em;color:#222;background:#fff}p,ul{max-width:56em}h2{margin-top:2em}
summary{cursor:pointer}table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #ccc;padding:.25em .6em;text-align:right;vertical-align:top}td:first-child,th:first-child,.words{text-align:left}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(36em,100%),1fr));gap:1.5em;align-items:start}figure{margin:0;max-width:54em}figcaption{font-size:.9em;color:#555}
img{width:100%}code{background:#f3f3f3;padding:0 .2em}.quick{background:#fff3cd;color:#222;padding:.6em 1em}
@media (prefers-color-scheme:dark){body{color:#ddd;background:#16181a}td,th{border-color:#444}code{background:#2a2d30}figcaption{color:#aaa}a{color:#8ab8e8}a:visited{color:#b8a0e0}}"""
READING = "Ours is the median of the runs, with their ends as error bars. Theirs is dashed, read from the text of the work where it has a number: the figures themselves were not read off."
CLAIMS = Path(__file__).resolve().parents[2] / "claims"
SAVE_SECONDS = 5
# A longer table is shown when it is asked for.
ROWS_MAX = 12
# Fields that tell on what a row was measured: a new measurement takes the place of all that an earlier one found there.
PLACES = ("disk", "setup", "database", "unit", "variant", "layer", "content", "load", "extent", "memory", "percent")


# A row of the machine's description; `figures` are consecutive ones, which stand side by side.
FACT = re.compile(r"<tr><td>(processors|memory|disk|kernel)</td><td class=words>(.*?)</td></tr>")
STAMP, NOTE = (re.compile(rf"^<p>{word}.*</p>$", re.MULTILINE) for word in ("Measured", "Note: "))
FIGURES = re.compile(r"(?:<figure>.*?</figure>\n?)+", re.DOTALL)


def mean(values):
    """Of numbers; None of none."""
    return statistics.fmean(values) if values else None


def middle(values):
    """The median, which is what is said of several runs everywhere; None of none."""
    return statistics.median(values) if values else None


def with_spread(values, digits=0):
    """The median, and the ends of the runs."""
    text = f"{middle(values):,.{digits}f}"
    return text if len(values) < 2 else f"{text} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def number(value):
    """A number as people read it."""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


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
        self.measured, self.found = True, 0
        self.order = []
        self.notes = []
        self.began = datetime.datetime.now(datetime.UTC)
        self.load_before = os.getloadavg()[0]

    def note(self, text):
        """Something that whoever reads the figures must know. It belongs to the part that is measured, and stays with its rows."""
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
            ends = self._kept_lines(file, NOTE) or [f"<p>Note: {html.escape(n)}</p>" for n in self.notes]
            text = "\n".join(self.parts + ends + self._stamps(file, self.load_at_begin)) + "\n"
            # Figures that follow one another stand side by side.
            text = FIGURES.sub(lambda found: f"<div class=figures>\n{found[0].rstrip()}\n</div>\n", text)
            self.out.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            self.parts, self.notes = [], []
        self.part = None

    def _kept_lines(self, file, pattern):
        """Lines of a part as an earlier run wrote them: they stay where its rows do."""
        return pattern.findall(file.read_text(encoding="utf-8")) if file.exists() and not (self.measured and self.found) else []

    def _stamps(self, file, load):
        """When, with which build and under which load the rows of a part were measured."""
        if kept := self._kept_lines(file, STAMP):
            return kept
        if self.lab.only_draws:
            return ["<p>Measured: not recorded.</p>"]
        shale, build = self._shale()
        when = datetime.datetime.now(datetime.UTC)
        own = f"<p>Measured {when:%Y-%m-%d %H:%M} UTC{' (quick)' if self.lab.quick else ''} by {html.escape(shale)} ({build}); load {load:.1f} when it began.</p>"
        return (STAMP.findall(file.read_text(encoding="utf-8")) if self.lab.is_partial and file.exists() else []) + [own]

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
        table = f"<table><tr>{cells}</tr>{''.join(lines)}</table>"
        self.parts.append(table if len(lines) <= ROWS_MAX else f"<details><summary>{len(lines)} rows: {html.escape(', '.join(columns))}</summary>{table}</details>")

    def plot(self, name, title, draw, size=(8, 4.2), said=None):
        """A figure: draw(axes) draws it. `said` stands below: of what theirs is, and whence."""
        self.out.mkdir(parents=True, exist_ok=True)
        figure.save(self.out / f"{name}.svg", title, draw, size)
        caption = f"<figcaption>{html.escape(said)}</figcaption>" if said else ""
        self.parts.append(f'<figure><img src="{name}.svg" alt="{html.escape(title)}">{caption}</figure>')

    def bars(self, name, title, groups, series, value, unit, theirs=None, rising=False, said=None):
        """Bars of each group, side by side for each series: medians, with the ends of the runs. theirs(group, series) gives a dash across the bar, or None."""
        self.plot(name, title, lambda axes: figure.bars(axes, groups, series, value, unit, theirs, rising), said=said)

    def lines(self, name, title, curves, across, up, said=None, **how):
        """Curves: {label: [(x, y)]}, or y as a list of runs: median, with the ends of the runs; see figure.lines."""
        self.plot(name, title, lambda axes: figure.lines(axes, curves, across, up, **how), said=said)

    def _ran_on(self):
        """(what, value) of how it ran and on what; of a page that is only drawn, the machine on which an earlier run measured."""
        command = shlex.join(["make", f"paper-{self.name}"] + (["QUICK=1"] if self.lab.quick else [])) + (f" (ARGS='{shlex.join(sys.argv[1:])}')" if sys.argv[1:] else "")
        if self.lab.only_draws:
            page = self.out / "index.html"
            kept = FACT.findall(page.read_text(encoding="utf-8")) if page.exists() else []
            return [("command", command), ("drawn", "from the tables of earlier runs; nothing was measured"), *[(k, html.unescape(v)) for k, v in kept]]
        shale, build = self._shale()
        cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), platform.machine())
        memory = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
        place = subprocess.run(["findmnt", "-no", "FSTYPE,SOURCE", "--target", self.out.parent if self.out.parent.exists() else "."], capture_output=True, text=True).stdout.split()
        return [("command", command), ("when", f"{self.began:%Y-%m-%d %H:%M} UTC, {(datetime.datetime.now(datetime.UTC) - self.began).total_seconds() / 60:.0f} minutes"),
                ("shale", f"{shale} ({build})"), ("processors", f"{os.cpu_count()} x {cpu}"), ("memory", f"{memory / (1 << 20):.1f} GiB"),
                ("disk", " on ".join(place)), ("kernel", platform.release()), ("load before", f"{self.load_before:.1f}: anything near 1 and above disturbs the figures")]

    def write(self):
        """CSV and index.html, whose claims tools/claims computes from the CSV."""
        self._end_part()
        self._write_tables()
        quick = '<p class="quick">A quick run: it shows that the command works. Its figures are no evidence.</p>' if self.lab.quick else ""
        about = "".join(f"<p>{html.escape(' '.join(p.split()))}</p>" for p in self.about.strip().split("\n\n")[1:])
        facts = "".join(f"<tr><td>{html.escape(k)}</td><td class=words>{html.escape(v)}</td></tr>" for k, v in self._ran_on())
        notes = f"<ul>{''.join(f'<li>{html.escape(n)}</li>' for n in self.notes)}</ul>" if self.notes else ""
        data = " ".join(f'<a href="{t}.csv">{t}.csv</a>' for t in sorted(self.rows.keys() | self.kept.keys()))
        found = [self.out / f"part-{name}.html" for name in self.order]
        body = "".join(f.read_text(encoding="utf-8") for f in found if f.exists()) + "".join(self.parts)
        # Each section has an anchor, and the list of them comes first.
        sections = re.findall(r"<h2>(.*?)</h2>", body)
        for index, section in enumerate(sections):
            body = body.replace(f"<h2>{section}</h2>", f'<h2 id="s{index}">{section}</h2>', 1)
        contents = "".join(f'<li><a href="#s{index}">{section}</a></li>' for index, section in enumerate(sections))
        title = html.escape(self.about.strip().splitlines()[0])
        marks = f"<!-- claims of {self.name}: begin (written by tools/claims) -->\n<!-- claims of {self.name}: end -->"
        head = f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>'
        (self.out / "index.html").write_text(f"{head}{quick}{about}<p>{READING}</p>\n<ul><li><a href='#claims'>Claim by claim</a></li>{contents}<li><a href='#ran'>How and on what it ran</a></li></ul>\n"
                                             f"<h2 id='claims'>Claim by claim</h2>\n{marks}\n{body}\n<h2 id='ran'>How and on what it ran</h2><p>Each part ends with its own time, build and load.</p>"
                                             f"<table>{facts}</table>{notes}<p>Data: {data}</p>\n", encoding="utf-8")
        subprocess.run([CLAIMS, "--page", self.out], check=True)
