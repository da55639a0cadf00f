"""Judges whether a figure that is sampled for a while grows: the medians of the second and of the last quarter are compared.

The first quarter is left to caches that fill. A figure may grow by a part that does not depend on time (what a screen has differs
from sample to sample, allocators keep what they got) and by a part for each hour between the two quarters.

A server's memory is warm only after half an hour: each cache fills to its bound, and each thread gets its buffers and the contexts of
its codecs. Until then it is compared with the bound of a warm server alone. The quarters are those of the time after that, if it is
long enough.
"""

import random
import statistics
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20
# With fewer in a quarter, a median says little.
SAMPLES_MIN = 3
# With less time left after the warm-up, growth is not judged.
JUDGED_S_MIN = 600


@dataclass(frozen=True)
class Bound:
    """Allowed growth: once, and for each hour. A figure that warms up for `warm_s` has a bound for the median of each quarter, `most`."""

    once: float
    hourly: float
    unit: str = ""
    warm_s: float = 0
    most: float = float("inf")

    def shown(self, value):
        """A value in words."""
        return f"{value / MIB:.2f} MiB" if self.unit == "bytes" else f"{value:.0f}"


# Of the page: the heap's 10 MiB an hour are the limit of the design. Its screens have from some tens to some hundreds of nodes, and
# the dashboard, where samples are taken, differs by the rows of what is busy.
PAGE = {
    "heap": Bound(1 * MIB, 10 * MIB, "bytes"),
    "DOM nodes": Bound(200, 200),
    "event listeners": Bound(60, 60),
    "documents": Bound(1, 1),
}
# Of the server with `--memory 64M`, six mounts and a page, by OPERATIONS ("Memory"): 1.3 times that and 64 MiB, 16 MiB of standby memory,
# 12 MiB for each mount, 32 MiB for the page, and 32 MiB of the program's file.
WARM = Bound(24 * MIB, 16 * MIB, "bytes", 1800, (64 * 13 // 10 + 64 + 16 + 6 * 12 + 32 + 32) * MIB)
# Of a process. Pss is memory without the part of other processes; descriptors and threads follow the clients of the moment.
SERVER = {"Rss": WARM, "Pss": WARM, "descriptors": Bound(16, 4), "threads": Bound(6, 2)}
HTTP = {**SERVER, "Rss": Bound(6 * MIB, 4 * MIB, "bytes"), "Pss": Bound(6 * MIB, 4 * MIB, "bytes")}
# Browsers have six connections to a host at most.
CONNECTIONS = {"connections": Bound(6, 0)}


def quarters(samples):
    """The values of each quarter of the time, and the seconds of a quarter."""
    begin, end = samples[0][0], samples[-1][0]
    quarter = (end - begin) / 4
    parts = [[], [], [], []]
    for at, value in samples:
        parts[min(int((at - begin) / quarter), 3) if quarter else 0].append(value)
    return parts, quarter


def verdict(samples, bound):
    """(whether it holds, words) for [(second, value)]."""
    parts, quarter = quarters(samples)
    if min(len(part) for part in parts[1:]) < SAMPLES_MIN:
        return False, f"{len(parts[1])} and {len(parts[3])} samples in the second and in the last quarter are too few: run it for longer"
    most = max(statistics.median(part) for part in parts[1:])
    held = "" if bound.most == float("inf") else f"at most {bound.shown(most)} of {bound.shown(bound.most)}; "
    if most > bound.most:
        return False, f"{held}a warm server has less"
    if bound.warm_s:
        warm = [(at, value) for at, value in samples if at - samples[0][0] >= bound.warm_s]
        if not warm or warm[-1][0] - warm[0][0] < JUDGED_S_MIN:
            return True, f"{held}growth is judged in runs of {bound.warm_s + JUDGED_S_MIN:.0f} s and more"
        parts, quarter = quarters(warm)
        if min(len(parts[1]), len(parts[3])) < SAMPLES_MIN:
            return False, f"{held}{len(parts[1])} and {len(parts[3])} samples in the second and in the last quarter after the warm-up are too few"
    before, after = statistics.median(parts[1]), statistics.median(parts[3])
    # From the middle of one quarter to that of the other.
    hours = 2 * quarter / 3600
    allowed = bound.once + bound.hourly * hours
    words = f"{held}{bound.shown(before)}, then {bound.shown(after)}; may grow by {bound.shown(allowed)} in {hours:.2f} h"
    return after - before <= allowed, words


def self_test():
    """Series that grow are found, and those that do not are not: returns the faults."""
    noise, hour = random.Random(7), 3600
    faults = []

    def series(value, seconds=hour, count=120):
        return [(seconds * at / (count - 1), value(at / (count - 1)) + noise.uniform(-0.2, 0.2) * MIB) for at in range(count)]

    # (what, series over the part of the time that has passed, whether it may pass), for the bound of the heap: 6 MiB in the half of an hour.
    heap = PAGE["heap"]
    cases = [
        ("a flat one", series(lambda _: 30 * MIB), True),
        ("one that falls", series(lambda part: (40 - 20 * part) * MIB), True),
        ("one that warms up in its first quarter", series(lambda part: (5 + 100 * min(part, 0.24)) * MIB), True),
        ("a saw of garbage that is collected", series(lambda part: (30 + (part * 40 % 1) * 8) * MIB), True),
        ("one sample that is far off", [*series(lambda _: 30 * MIB)[:-1], (hour, 900 * MIB)], True),
        ("growth below the bound", series(lambda part: (30 + 9 * part) * MIB), True),
        ("growth above the bound", series(lambda part: (30 + 15 * part) * MIB), False),
        ("a step in the third quarter", series(lambda part: (30 + 9 * (part > 0.6)) * MIB), False),
        ("steps with garbage between them", series(lambda part: (30 + 20 * part + (part * 40 % 1) * 8) * MIB), False),
        ("fast growth in minutes", series(lambda part: (30 + 8 * part) * MIB, seconds=120, count=24), False),
        ("too few samples", series(lambda _: 30 * MIB, count=6), False),
    ]
    for what, samples, holds in cases:
        if verdict(samples, heap)[0] is not holds:
            faults.append(f"{what} {'fails' if holds else 'passes'}: {verdict(samples, heap)[1]}")
    # The same for the memory of a server, which warms up for half an hour.
    cold, warm = 100 * MIB, WARM.most - 30 * MIB
    cases = [
        ("memory that warms up within the bound", series(lambda part: cold + (warm - cold) * part, seconds=WARM.warm_s), True),
        ("memory that passes the bound while it warms up", series(lambda part: cold + 2 * (warm - cold) * part, seconds=WARM.warm_s), False),
        ("memory that is flat once it is warm", series(lambda part: cold + (warm - cold) * min(part * 4, 1), seconds=4 * WARM.warm_s), True),
        ("memory that goes on growing within the bound", series(lambda part: cold + (warm - cold) * part, seconds=3 * WARM.warm_s), False),
        ("one sample that is far off while it warms up", [*series(lambda _: cold, seconds=WARM.warm_s)[:-1], (WARM.warm_s, 9 * WARM.most)], True),
    ]
    for what, samples, holds in cases:
        if verdict(samples, WARM)[0] is not holds:
            faults.append(f"{what} {'fails' if holds else 'passes'}: {verdict(samples, WARM)[1]}")
    for name, bound in {**PAGE, **SERVER, **HTTP, **CONNECTIONS}.items():
        minutes = 60 + bound.warm_s / 60
        grows = [(at * 60, 3 * (bound.once + bound.hourly) * at / 60) for at in range(int(minutes) + 1)]
        if verdict(grows, bound)[0]:
            faults.append(f"{name}: three times its bound in an hour passes: {verdict(grows, bound)[1]}")
        if not verdict([(at * 60, 100) for at in range(61)], bound)[0]:
            faults.append(f"{name}: a flat series fails")
    return faults
