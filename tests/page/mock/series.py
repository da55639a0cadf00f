"""Analytics of the pool in memory: series that follow the properties that were set, and are the same each time they are asked for."""

import math
import random

from .pool import CODECS, MODES

GIB = 1 << 30
DATASETS = [  # name, line for users, unit, shape, breakdowns
    ("ops", "operations of clients", "count", "sum", ["operation", "door", "object"]), ("bytes", "bytes that clients read, wrote and discarded", "bytes", "sum", ["operation", "door", "object"]),
    ("latency", "operations by duration", "count", "sum", ["operation", "door", "bucket"]), ("codec.stored", "bytes written, after compression", "bytes", "sum", ["codec", "object"]),
    ("codec.cpu", "CPU time of compression and decompression", "ns", "sum", ["codec", "direction", "object"]), ("decoded.stored", "bytes that reads decompressed, as stored", "bytes", "sum", ["codec", "object"]),
    ("disk.written", "bytes written to disk", "bytes", "sum", ["cause"]), ("cpu", "CPU time of the server and of the machine", "ns", "sum", ["who"]), ("capacity", "space of the pool", "bytes", "gauge", ["part"]),
    ("cache", "units that reads found in memory or had to read", "count", "sum", ["result", "object"]), ("choices", "units by the reason of their codec", "count", "sum", ["why"]),
    ("memory", "memory of the server and of the machine", "bytes", "gauge", ["kind"]), ("network", "bytes on network interfaces", "bytes", "sum", ["interface", "direction"]), ("jobs", "jobs under way", "count", "gauge", ["kind"]),
]
KEYS = {"operation": {"write": 0.55, "read": 0.3, "flush": 0.05, "discard": 0.02, "look": 0.06, "change": 0.02}, "door": {"share": 0.6, "nbd": 0.33, "tree": 0.05, "command": 0.02},
        "type": {"c": 0.4, "log": 0.25, "sqlite": 0.15, "gz": 0.1, "other": 0.1}, "cause": {"clients": 0.7, "cleaner": 0.18, "recompress": 0.08, "map": 0.04},
        "direction": {"compress": 0.7, "decompress": 0.3}, "who": {"server": 0.4, "user": 0.3, "system": 0.2, "iowait": 0.1}, "result": {"hit": 0.82, "miss": 0.18},
        "why": {"won the last test": 0.6, "rule": 0.2, "saves too little": 0.12, "looks random": 0.08}, "kind": {"cache": 0.5, "buffers": 0.3, "map": 0.2},
        "interface": {"eth0": 1.0}, "figure": {"utilisation": 0.7, "wait": 0.3},
        "part": {"total": 1.0, "live": 0.38, "available": 0.6, "reserved": 0.018, "map": 0.001}}
SIZE = {"codec.stored": 15e6, "decoded.stored": 6e6, "disk.written": 19e6, "codec.cpu": 0.42e9, "cpu": 0.9e9, "ops": 412, "bytes": 47e6, "capacity": 1000 * GIB, "cache": 2400, "choices": 900, "memory": 1 << 30, "network": 40e6}


def wave(key, t):
    """A load of about 1, smooth, and always the same for a key and a second."""
    seed = sum(map(ord, key)) % 97
    base = 0.75 + 0.22 * math.sin(t / 611 + seed) + 0.12 * math.sin(t / 97 + 2 * seed) + 0.16 * math.sin(t / 14000 + seed / 7)
    return max(0.02, base + 0.1 * (random.Random(int(t) // 4 * 31 + seed).random() - 0.5))


def codec_at(pool, number, t):
    value = pool.in_force(number, "compression")
    for mark in sorted((m for m in pool.marks if m["object"] == number and "old" in m), key=lambda m: -m["unix_s"]):
        if t < mark["unix_s"]:
            value = mark["old"]
    return "zstd-1" if value == "auto" else "raw" if value == "off" else value


def shares_of(pool, dataset, by, t, only):
    """Parts of the whole at a moment, by key."""
    if by == "codec" or by == "object":
        objects = [(n, o["name"], (31 if o["share"] else 17 if n % 2 else 7)) for n, o in list(pool.objects.items())[:40] if not o["folder"]]
        if only.get("object"):
            objects = [x for x in objects if x[1] == only["object"]]
        total, out = 200.0, {}
        for number, name, weight in objects:
            codec = codec_at(pool, number, t)
            if only.get("codec") and only["codec"] != codec and not (only["codec"] == "raw" and dataset != "codec.cpu"):
                continue
            saving = CODECS.get(codec, (0, 0, 0))[0]
            factor = 400 / (CODECS.get(codec, (0, 900, 0))[1] or 1e9) if dataset == "codec.cpu" else 1.6 - saving / 62
            part = weight / total * factor
            raw = 0.2 * part if dataset != "codec.cpu" and codec != "raw" else 0
            key = name if by == "object" else codec
            if only.get("codec") != "raw":
                out[key] = out.get(key, 0) + part
            if raw and by == "codec" and only.get("codec", "raw") == "raw":
                out["raw"] = out.get("raw", 0) + raw
        return out
    factor = 1
    for value in only.values():
        factor *= next((parts[value] for parts in KEYS.values() if value in parts), 0.3)
    return {key: part * factor for key, part in KEYS.get(by, {"all": 1}).items()}


def steps(pool, query):
    """The first second, the seconds of a step, and the starts of the steps; in a tier's steps, as the store has them."""
    begin, end = int(query["from_unix_s"]), int(query["to_unix_s"])
    wanted = int(query.get("step_s", max(1, (end - begin) // 300)))
    step = next((s for s in (1, 2, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400) if s >= wanted), wanted)
    begin -= begin % step
    return begin, step, range(begin, end, step)


def series(pool, query):
    dataset, by = query["dataset"], query.get("by") or ""
    only = dict(part.split("=", 1) for part in query.getlist("only"))
    begin, step, times = steps(pool, query)
    entry = next(d for d in DATASETS if d[0] == dataset)
    is_gauge, values = entry[3] == "gauge", {}
    covered = [0 if t < pool.begun - 400 * 86400 else step for t in times]
    for index, t in enumerate(times):
        grown = 0.87 + 0.13 * (t - (pool.begun - 30 * 86400)) / (30 * 86400) if dataset == "capacity" else wave(dataset + query.get("only", ""), t)
        for key, part in shares_of(pool, dataset, by, t, only).items():
            amount = SIZE.get(dataset, 1) * part * (grown if dataset == "capacity" else grown * wave(key, t)) * (1 if is_gauge else step)
            values.setdefault(key, [0] * len(times))[index] = int(amount)
    ordered = sorted(values.items(), key=lambda pair: -sum(pair[1]))
    lines = [{"name": "total" if key == "all" else key, "total": sum(column), "values": column, "peaks": [], "least": []} for key, column in ordered[:64]]
    return {"version": 1, "dataset": dataset, "unit": entry[2], "shape": entry[3], "by": by or None, "from_unix_s": begin, "step_s": step, "resolution_s": 1, "covered_s": covered, "series": lines,
            "damaged_frames": 0, "folded_objects": 0, "left_out_series": max(0, len(ordered) - 64)}


def heatmap(pool, query):
    begin, step, times = steps(pool, query)
    columns = []
    for t in times:
        noise, column = random.Random(t), [0] * 26
        for _ in range(60):
            column[min(25, max(0, int(noise.gauss(6 + 2 * wave("latency", t), 1.6))))] += 1
        if noise.random() < 0.08:
            column[16] += noise.randrange(1, 9)
        columns.append(column)
    return {"version": 1, "from_unix_s": begin, "step_s": step, "covered_s": [step] * len(times), "bucket_ends_ns": [1024 << n for n in range(25)], "counts": [list(row) for row in zip(*columns)]}


def figures(pool, now, wanted):
    """Rates of the pool, and of the objects whose numbers are wanted."""
    status, by_codec = pool.status(), shares_of(pool, "codec.stored", "codec", now, {})
    load = wave("figures", now) if pool.objects else 0
    objects = {}
    for number, o in pool.objects.items():
        if str(number) in wanted and not o["folder"]:
            objects[str(number)] = {"ops_per_s": round(40 * load * wave(o["name"], now), 1), "written_bytes_per_s": int(38e6 * load * wave(o["name"] + "w", now)) if o["share"] else int(3e6 * load), "read_bytes_per_s": int(9e6 * load * wave(o["name"], now))}
    written = {codec: int(15e6 * part * load) for codec, part in by_codec.items()}
    return {"boot": pool.boot, "unix_s": int(now), "pool": {"ops_per_s": round(412 * load, 1), "written_bytes_per_s": int(38e6 * load), "read_bytes_per_s": int(9e6 * load), "p99_ns": int(4.1e6 * load) or None,
            "cpus": 2, "cpu_cores": round(0.42 * load, 2), "compress_cores": round(0.3 * load, 2), "watts": round(3.1 * load, 1), "energy_source": "cpu-time", "disk_written_bytes_per_s": sum(written.values()),
            "disk_written_by_codec": written, "stored_bytes": status["stored_bytes"], "allocated_bytes": status["allocated_bytes"], "available_bytes": status["available_bytes"]}, "objects": objects}


assert MODES  # the modes of `auto` are the pool's
