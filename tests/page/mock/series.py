"""Analytics of the pool in memory: series that follow the properties that were set, and are the same each time they are asked for."""

import math
import random

from .pool import CODECS, MODES

GIB = 1 << 30
DATASETS = [  # name, title, unit, kind, breakdowns
    ("disk.bytes", "disk bytes written", "bytes/s", "rate", ["codec", "object", "type", "cause"]), ("disk.read", "disk bytes read", "bytes/s", "rate", ["codec", "object", "cause"]),
    ("cpu", "CPU", "cores", "rate", ["codec", "direction", "machine"]), ("energy", "energy", "watts", "rate", ["codec", "object"]),
    ("ops", "operations of clients", "ops/s", "rate", ["operation", "door", "object"]), ("bytes", "bytes of clients", "bytes/s", "rate", ["operation", "door", "object"]),
    ("latency", "latency", "ns", "histogram", ["door", "operation"]), ("nfs.ops", "NFS operations", "ops/s", "rate", ["share", "operation", "version"]),
    ("capacity", "capacity", "bytes", "gauge", ["part", "object"]), ("cache", "unit cache", "units/s", "rate", ["result", "object"]), ("choices", "choices of codecs", "units/s", "rate", ["why"]),
    ("memory", "memory", "bytes", "gauge", ["kind"]), ("network", "network", "bytes/s", "rate", ["interface"]), ("device", "device", "percent", "gauge", ["figure"]),
]
KEYS = {"operation": {"write": 0.55, "read": 0.3, "flush": 0.05, "discard": 0.02, "look": 0.06, "change": 0.02}, "door": {"share": 0.6, "nbd": 0.33, "tree": 0.05, "command": 0.02},
        "type": {"c": 0.4, "log": 0.25, "sqlite": 0.15, "gz": 0.1, "other": 0.1}, "cause": {"clients": 0.7, "cleaner": 0.18, "recompress": 0.08, "map": 0.04},
        "direction": {"compress": 0.7, "decompress": 0.3}, "machine": {"user": 0.5, "system": 0.3, "iowait": 0.2}, "result": {"hit": 0.82, "miss": 0.18}, "share": {"projects/home": 0.8, "projects/media": 0.2},
        "why": {"won the last test": 0.6, "rule": 0.2, "saves too little": 0.12, "looks random": 0.08}, "version": {"3": 0.3, "4.1": 0.7}, "kind": {"cache": 0.5, "buffers": 0.3, "map": 0.2},
        "interface": {"eth0": 1.0}, "figure": {"utilisation": 0.7, "wait": 0.3},
        "part": {"stored": 0.37, "snapshots": 0.01, "dead": 0.005, "map": 0.001, "reserved": 0.018}}
SIZE = {"disk.bytes": 15e6, "disk.read": 6e6, "cpu": 0.42, "energy": 3.1, "ops": 412, "bytes": 47e6, "nfs.ops": 260, "capacity": 1000 * GIB, "cache": 2400, "choices": 900, "memory": 1 << 30, "network": 40e6, "device": 60}


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
            if only.get("codec") and only["codec"] != codec and not (only["codec"] == "raw" and dataset != "cpu"):
                continue
            saving = CODECS.get(codec, (0, 0, 0))[0]
            factor = {"cpu": 400 / (CODECS.get(codec, (0, 900, 0))[1] or 1e9), "energy": 400 / (CODECS.get(codec, (0, 900, 0))[1] or 1e9)}.get(dataset, 1.6 - saving / 62)
            part = weight / total * factor
            raw = 0.2 * part if dataset not in ("cpu", "energy") and codec != "raw" else 0
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


def series(pool, query):
    dataset, by, begin, end = query["dataset"], query.get("by") or "", int(float(query["from"])), int(float(query["to"]))
    points, only = min(int(query.get("points", 300)), 2000), dict(part.split("=", 1) for part in query.getlist("only"))
    step = max(1, -(-(end - begin) // points))
    step = next((s for s in (1, 2, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400) if s >= step), step)
    begin -= begin % step
    times, now, values = range(begin, end, step), pool.begun + 10 ** 9, {}
    for index, t in enumerate(times):
        missing = t > now or (dataset != "capacity" and t < pool.begun - 400 * 86400)
        grown = 0.87 + 0.13 * (t - (pool.begun - 30 * 86400)) / (30 * 86400) if dataset == "capacity" else wave(dataset + query.get("only", ""), t)
        for key, part in shares_of(pool, dataset, by, t, only).items():
            value = None if missing else SIZE.get(dataset, 1) * part * (grown if dataset == "capacity" else grown * wave(key, t))
            values.setdefault(key, [None if missing else 0] * len(times))[index] = round(value, 4) if value is not None else None
    entry = next(d for d in DATASETS if d[0] == dataset)
    ordered = sorted(values.items(), key=lambda pair: -sum(v or 0 for v in pair[1]))
    return {"dataset": dataset, "by": by or None, "unit": entry[2], "from": begin, "step": step, "series": [{"key": key, "values": column} for key, column in ordered[:64]], "left_out": max(0, len(ordered) - 64)}


def heatmap(query):
    begin, end, points = int(float(query["from"])), int(float(query["to"])), min(int(query.get("points", 200)), 2000)
    step = max(1, -(-(end - begin) // points))
    columns = []
    for t in range(begin - begin % step, end, step):
        noise, column = random.Random(t), [0] * 26
        for _ in range(60):
            column[min(25, max(0, int(noise.gauss(6 + 2 * wave("latency", t), 1.6))))] += 1
        if noise.random() < 0.08:
            column[16] += noise.randrange(1, 9)
        columns.append(column)
    return {"dataset": "latency", "from": begin - begin % step, "step": step, "bucket_ends_ns": [1024 << n for n in range(25)], "columns": columns}


def figures(pool, now):
    status, by_codec = pool.status(), shares_of(pool, "disk.bytes", "codec", now, {})
    load = wave("figures", now) if pool.objects else 0
    objects = {}
    for number, o in list(pool.objects.items())[:200]:
        if not o["folder"]:
            objects[str(number)] = {"ops_per_s": round(40 * load * wave(o["name"], now), 1), "written_bytes_per_s": int(38e6 * load * wave(o["name"] + "w", now)) if o["share"] else int(3e6 * load), "read_bytes_per_s": int(9e6 * load * wave(o["name"], now))}
    written = {codec: int(15e6 * part * load) for codec, part in by_codec.items()}
    return {"boot": pool.boot, "unix_s": int(now), "pool": {"ops_per_s": round(412 * load, 1), "written_bytes_per_s": int(38e6 * load), "read_bytes_per_s": int(9e6 * load), "p99_ns": int(4.1e6 * load) or None,
            "cpus": 2, "cpu_cores": round(0.42 * load, 2), "compress_cores": round(0.3 * load, 2), "watts": round(3.1 * load, 1), "energy_source": "cpu-time", "disk_written_bytes_per_s": sum(written.values()),
            "disk_written_by_codec": written, "stored_bytes": status["stored_bytes"], "allocated_bytes": status["allocated_bytes"], "available_bytes": status["available_bytes"]}, "objects": objects}


assert MODES  # the modes of `auto` are the pool's
