"""Figures as SVG (matplotlib, from Debian): bars and curves of ours with theirs dashed on the same axes. Text stays text, and ink turns light where the reader's pages are dark."""

import statistics

# What is neither a series nor text: it is drawn light on a dark page.
INK = "#222222"
# Each is seen on a light page and on a dark one.
COLOURS = ["#7d7d7d", "#3a86b0", "#c8672f", "#4f9a3f", "#a35fa3", "#b0902f", "#2f9a9a", "#cf4f6f", "#7070cf", "#9a7048"]
# What has one colour in all figures: set-ups, codecs and modes.
NAMED = {name: COLOURS[at] for names, at in ((("native", "ours"), 0), (("off", "raw"), 1), (("lzo", "lz4"), 2), (("zlib", "gzip-1"), 3), (("zstd-1", "bzip2", "zstd-3"), 4), (("auto", "auto balanced"), 5),
         (("auto-performance", "auto, profile", "auto performance"), 6), (("auto-archive", "auto archive"), 7), (("auto-energy", "auto energy"), 8), (("gzip-9", "gzip -r"), 9)) for name in names}
# The page decides, and so does a browser that shows the file alone.
SCHEME = (f'<style type="text/css">text{{fill:{INK}}}@media (prefers-color-scheme:dark){{text{{fill:#dddddd}}'
          f'[style*="stroke: {INK}"]{{stroke:#dddddd !important}}[style*="fill: {INK}"]{{fill:#dddddd !important}}}}</style>')
# Letters of labels that fit side by side below a plot.
LABELS_MAX = 90
COLUMNS_MAX = 5


def plain(at):
    """A tick: sizes in powers of two as such."""
    for unit, bits in (("M", 20), ("K", 10)):
        if at >= 1 << bits and at % (1 << bits) == 0:
            return f"{int(at) >> bits} {unit}iB"
    return f"{at:,g}"


def colours(names):
    """A colour for each of a figure's series: its own, or one that no other has."""
    chosen = {}
    for name in names:
        if NAMED.get(name) and NAMED[name] not in chosen.values():
            chosen[name] = NAMED[name]
    free = (colour for colour in COLOURS * (1 + len(names) // len(COLOURS)) if len(names) > len(COLOURS) or colour not in chosen.values())
    return [chosen.get(name) or next(free, COLOURS[0]) for name in names]


def spread(runs):
    """(medians, distances down and up to the ends of the runs or None if there is one run of each) of lists of runs."""
    middle = [statistics.median(r) if r else 0 for r in runs]
    if not any(len(r) > 1 for r in runs):
        return middle, None
    return middle, [[m - min(r or [m]) for m, r in zip(middle, runs)], [max(r or [m]) - m for m, r in zip(middle, runs)]]


def rise(axes):
    """Upwards in powers of ten, with plain numbers."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        """1,000 instead of 10^3."""

        def __call__(self, x, pos=None):
            return f"{x:,g}" if super().__call__(x, pos) else ""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(Plain())
    axes.yaxis.set_minor_formatter(Plain(minor_thresholds=(3.5, 1)))


def count(axes):
    """Upwards in equal steps, with plain numbers."""
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.6g}")


def legend(axes, entries, below, marks=1):
    """Below the plot."""
    axes.legend(fontsize=8, markerscale=marks, ncols=min(entries, COLUMNS_MAX), loc="upper center", bbox_to_anchor=(0.5, below), frameon=False)


def bars(axes, groups, series, value, unit, theirs=None, rising=False):
    """Of each group, side by side for each series. value(group, series) is a list of runs, theirs(group, series) a level or None."""
    width = 0.84 / len(series)
    is_named = False
    for index, (key, colour) in enumerate(zip(series, colours([str(key) for key in series]))):
        middle, ends = spread([value(group, key) for group in groups])
        places = [at - 0.42 + width * (index + 0.5) for at in range(len(groups))]
        axes.bar(places, middle, width, yerr=ends, label=str(key), color=colour, error_kw={"linewidth": 0.8, "ecolor": INK})
        for place, group in zip(places, groups):
            if (level := theirs and theirs(group, key)) is not None:
                axes.hlines(level, place - width / 2, place + width / 2, linestyles=(0, (2, 1)), linewidth=1.8, color=INK, label=None if is_named else "theirs")
                is_named = True
    is_crowded = sum(len(str(g)) + 2 for g in groups) > LABELS_MAX
    axes.set_xticks(range(len(groups)), [str(g) for g in groups], **({"rotation": 35, "ha": "right"} if is_crowded else {}))
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(unit)
    if rising:
        rise(axes)
    else:
        count(axes)
    if len(series) > 1 or is_named:
        legend(axes, len(series) + is_named, -0.36 if is_crowded else -0.1)


def lines(axes, curves, across, up, logarithmic=False, points=False, rising=False, theirs=None, theirs_at=None):
    """Curves {label: [(x, y or runs)]}; `theirs` is {label: level or [(x, y)]}, `theirs_at` {label: x}."""
    own = dict(zip(curves, colours(list(curves))))
    for label, curve in curves.items():
        middle, ends = spread([y if isinstance(y, list) else [y] for _, y in curve])
        axes.errorbar([x for x, _ in curve], middle, ends, fmt="." if points else "o-", markersize=1.5 if points else 3.5, linewidth=1.2, elinewidth=0.8, capsize=2,
                      label=label, color=own[label])
    ticks = {x for curve in curves.values() for x, _ in curve}
    # Theirs for a series has its colour where both have one name.
    for label, level in (theirs or {}).items():
        colour = own.get(label.removeprefix("theirs, "), INK)
        if isinstance(level, list):
            axes.plot([x for x, _ in level], [y for _, y in level], "s--", markersize=3.5, linewidth=1.2, color=colour, label=label)
            ticks |= {x for x, _ in level}
        else:
            axes.axhline(level, linestyle="--", linewidth=1.2, color=colour, label=label)
    for label, x in (theirs_at or {}).items():
        axes.axvline(x, linestyle="--", linewidth=1.2, color=INK, label=label)
        ticks.add(x)
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(ticks), [plain(x) for x in sorted(ticks)])
        axes.minorticks_off()
    if rising:
        rise(axes)
    else:
        count(axes)
        if axes.get_ylim()[0] >= 0 or all(y >= 0 for line in axes.get_lines() for y in line.get_ydata()):
            axes.set_ylim(bottom=0)
    if not logarithmic:
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,g}")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    legend(axes, len(curves) + len(theirs or {}) + len(theirs_at or {}), -0.16, marks=5 if points else 1)


def save(path, title, draw, size):
    """Draws into a file; the same data give the same bytes."""
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "shale", "svg.fonttype": "none", "savefig.dpi": 160, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
                                "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK, "xtick.labelcolor": "black", "ytick.labelcolor": "black"})
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=size, layout="constrained")
    draw(axes)
    axes.set_title(title)
    figure.savefig(path, metadata={"Date": None, "Title": title}, transparent=True)
    pyplot.close(figure)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(" <defs>", f" {SCHEME}\n <defs>", 1), encoding="utf-8")
