"""Judges whether a figure that is sampled for a while grows: the medians of the second and of the last quarter are compared.

The first quarter is left to caches that fill. A figure may grow by a part that does not depend on time (what a screen has differs
from sample to sample, allocators keep what they got) and by a part for each hour between the two quarters.
"""

import random
import statistics
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20
# With fewer in a quarter, a median says little.
SAMPLES_MIN = 3


@dataclass(frozen=True)
class Bound:
    """Allowed growth: once, and for each hour."""

    once: float
    hourly: float
    unit: str = ""

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
# Of a process. Pss is memory without the part of other processes; descriptors and threads follow the clients of the moment.
SERVER = {
    "Rss": Bound(24 * MIB, 16 * MIB, "bytes"),
    "Pss": Bound(24 * MIB, 16 * MIB, "bytes"),
    "descriptors": Bound(16, 4),
    "threads": Bound(6, 2),
}
HTTP = {**SERVER, "Rss": Bound(6 * MIB, 4 * MIB, "bytes"), "Pss": Bound(6 * MIB, 4 * MIB, "bytes")}
# Browsers have six connections to a host at most.
CONNECTIONS = {"connections": Bound(6, 0)}


def verdict(samples, bound):
    """(whether it holds, words) for [(second, value)]."""
    begin, end = samples[0][0], samples[-1][0]
    quarter = (end - begin) / 4
    second = [value for at, value in samples if begin + quarter <= at < begin + 2 * quarter]
    last = [value for at, value in samples if at >= begin + 3 * quarter]
    if min(len(second), len(last)) < SAMPLES_MIN:
        return False, f"{len(second)} and {len(last)} samples in the second and in the last quarter are too few: run it for longer"
    before, after = statistics.median(second), statistics.median(last)
    # From the middle of one quarter to that of the other.
    hours = 2 * quarter / 3600
    allowed = bound.once + bound.hourly * hours
    words = f"{bound.shown(before)}, then {bound.shown(after)}; may grow by {bound.shown(allowed)} in {hours:.2f} h"
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
    for name, bound in {**PAGE, **SERVER, **HTTP, **CONNECTIONS}.items():
        grows = [(at * 60, 3 * (bound.once + bound.hourly) * at / 60) for at in range(61)]
        if verdict(grows, bound)[0]:
            faults.append(f"{name}: three times its bound in an hour passes: {verdict(grows, bound)[1]}")
        if not verdict([(at * 60, 100) for at in range(61)], bound)[0]:
            faults.append(f"{name}: a flat series fails")
    return faults
