"""A pool in memory that answers as the REST interface does: objects, properties, snapshots, files, jobs, users.

A test tool for the page, never shipped. The figures are made up, but they hang together: what is written is stored with the codec
that `compression` has at that time, an estimate gets narrower, a job takes time. Owns all state; `lock` guards it.
"""

import itertools
import json
import random
import threading
import time

GIB = 1 << 30
CODECS = {  # saving of text in percent, MB/s of a core in, read factor
    "off": (0, 0, 0.4), "zle": (4, 5800, 0.5), "lzjb": (38, 410, 0.8), "lz4": (58.2, 770, 1.0), "lzo": (57, 520, 0.9),
    "lz4hc-9": (63, 90, 1.0), "zstd-fast-1": (60.1, 640, 1.1), "zstd-1": (64.8, 480, 1.3), "zstd-3": (67.4, 410, 1.3),
    "zstd-9": (70.3, 95, 1.3), "zstd-19": (72.9, 4.6, 1.3), "gzip-6": (66.2, 100, 1.3), "gzip-9": (66.9, 45, 1.3), "bzip2-9": (71.1, 14, 0.5),
}
MODES = {"performance": (62.0, 640, 1.1), "balanced": (66.1, 520, 1.2), "energy": (64.9, 600, 1.2), "archive": (71.4, 60, 1.3)}
LEVELS = {"zstd": (1, 19), "gzip": (1, 9), "lz4hc": (1, 12), "bzip2": (1, 9), "zstd-fast": (1, 10)}
COMPRESSION = ["auto", "off", "lz4", "zle", "lzjb", "lzo"] + [f"{name}-{n}" for name, (low, high) in LEVELS.items() for n in range(low, high + 1)]
# key, default, values, description, only of
KEYS = [
    ("compression", "auto", COMPRESSION, "codec for what is written from now on, or auto: chosen for each unit by what pays", None),
    ("mode", "balanced", list(MODES), "what auto optimises", None),
    ("unit", "32K", ["4K", "8K", "16K", "32K", "64K", "128K"], "most bytes that are compressed together", None),
    ("min-saving", "12.5", [], "least saving for which data is stored compressed, in percent", None),
    ("dictionary", "auto", ["auto", "off"], "whether auto trains zstd dictionaries from a volume's own data", None),
    ("rule-set", "none", ["none", "database"], "rules for types of files that belong together; database: logs get a codec that is quick", None),
    ("snapshots", "off", ["off", "hourly", "daily", "weekly"], "how often a served pool takes a snapshot by itself", None),
    ("keep", "24h,7d,4w", [], "how many of those snapshots are kept", None),
    ("quota", "none", [], "most space that it may take, as stored", None),
    ("reservation", "none", [], "space that is kept for it, as stored", None),
    ("when-full", "error", ["error", "wait"], "what becomes of a write that finds no room", None),
    ("nfs", "off", ["off", "on", "ro", "rw"], "which clients reach a share by NFS", "share"),
    ("smb", "off", ["off", "on", "ro", "rw"], "which clients reach a share by SMB", "share"),
    ("http", "off", ["off", "ro", "rw,login"], "which clients reach a share by HTTP and WebDAV", "share"),
    ("ftp", "off", ["off", "ro", "rw"], "whether clients reach a share by FTP", "share"),
    ("clean-low", "10", [], "free space below which the cleaner begins in the background, in percent", "pool"),
]
DATABASE_RULES = {"binlog": "lz4", "dblwr": "lz4", "redo": "lz4", "wal": "lz4"}
TREE = [  # name, kind, logical GiB, saving %, properties
    ("projects", "folder", 0, 0, {"compression": "zstd-3"}), ("projects/home", "share", 361, 58.2, {"compression": "lz4", "nfs": "rw", "smb": "on"}),
    ("projects/media", "share", 80.8, 1, {"compression": "off", "smb": "ro"}), ("projects/mail", "share", 37, 75.7, {}),
    ("vms", "folder", 0, 0, {"snapshots": "daily"}), ("vms/web", "volume", 64, 55, {}), ("vms/build", "volume", 120, 51, {"compression": "auto", "mode": "performance"}),
    ("vms/windows", "volume", 31, 40, {}), ("db", "volume", 75, 70.6, {"compression": "zstd-9", "reservation": "40G"}),
]
FILES = {"": ["docs", "src", "README.md", "archive.tar.gz"], "docs": ["design.md", "report.pdf", "minutes"], "docs/minutes": ["2026-10.txt", "2026-11.txt"],
         "src": ["main.c", "store.c", "store.h", "Makefile", "build"], "src/build": ["main.o", "store.o"]}
HOSTILE = "<img src=x onerror=\"window.hacked=1\">"


class Problem(Exception):
    """An answer of `application/problem+json`."""

    def __init__(self, status, kind, detail, **more):
        super().__init__(detail)
        self.status, self.document = status, {"type": f"urn:shale:error:{kind}", "title": kind.replace("-", " "), "status": status, "kind": kind,
                                              "detail": detail, "request": "5e1f-1", **more}


class Pool:
    """The pool, with `many` more volumes in a folder of their own."""

    def __init__(self, many=0, snapshots=24, empty=False, hostile=True):
        self.lock, self.begun, self.boot, self.noise = threading.RLock(), time.time(), "5e1f", random.Random(54)
        self.ids, self.job_ids, self.objects, self.jobs, self.estimates = itertools.count(16), itertools.count(1), {}, [], {}
        self.snapshots, self.own, self.marks, self.audit = {}, {}, [], []
        self.users = [{"name": "anna", "role": "admin", "password_set_unix_s": int(self.begun) - 40 * 86400}, {"name": "olaf", "role": "operate", "password_set_unix_s": int(self.begun) - 7 * 86400},
                      {"name": "rita", "role": "read", "password_set_unix_s": int(self.begun) - 3 * 86400}]
        self.tokens = [{"name": "grafana", "role": "read", "created_unix_s": int(self.begun) - 86400, "expires_unix_s": int(self.begun) + 86400 * 90, "last_used_unix_s": int(self.begun) - 12}]
        self.worksheets, self.pool_own, self.generation, self.restored = {}, {"rule.log": "zstd-9", "rule.sqlite": "archive:zstd-9,performance:lz4"}, 0, []
        # Rounds a second of estimates that begin; whether they find no data yet, as while it is in the write buffer.
        self.estimate_pace, self.is_unsampled = 1.2, False
        self.scrub_finished, self.findings, self.capacity = int(self.begun) - 3 * 86400, [], 1000 * GIB
        if empty:
            return
        for name, kind, gib, saving, own in TREE:
            self.add(name, kind, int(gib * GIB), saving, dict(own), snapshots)
        if hostile:
            self.add(HOSTILE, "volume", GIB, 20, {}, 1)
        if many:
            self.add("many", "folder", 0, 0, {}, 0)
            for n in range(many):
                self.add(f"many/v{n:05}", "volume", (n % 97 + 1) << 26, n % 70, {}, 0)
        self.start_job("recompress", "projects/home", seconds=700, done=0.41)
        self.jobs[-1]["started_unix_s"] -= 290
        ended = self.start_job("scrub", None, seconds=1)
        ended.update(state="done", bytes_done=ended["bytes_total"], ended_unix_s=self.scrub_finished, started_unix_s=self.scrub_finished - 840, seconds=840.0, seconds_left=None)
        self.log("anna", "set", "set {\"compression\":\"lz4\"} on 'projects/home'", "done", int(self.begun) - 1500)
        self.marks.append({"unix_s": int(self.begun) - 1500, "text": "set compression=lz4 on 'projects/home'", "object": self.id_of("projects/home"),
                           "old": "zstd-3"})

    def id_of(self, name):
        return next(i for i, o in self.objects.items() if o["name"] == name)

    def add(self, name, kind, logical, saving, own, snapshots=0):
        number, now = next(self.ids), int(self.begun)
        stored = int(logical * (1 - saving / 100))
        self.objects[number] = {"id": number, "name": name, "kind": kind, "share": kind == "share", "folder": kind == "folder", "size_bytes": logical,
                                "allocated_bytes": logical, "stored_bytes": stored, "snapshot_stored_bytes": 0,
                                "created_unix_s": now - 86400 * 200, "clients": 1 if kind != "folder" else 0, "client_names": ["nbd 10.0.0.7:51123"] if kind == "volume" else [],
                                "origin": None, "incomplete": False, "exact": True, "bookmarks": [], "unserved": None}
        if kind == "volume":
            self.objects[number]["size_bytes"] = logical + logical // 9
        self.own[number], self.snapshots[number] = own, []
        for n in range(snapshots if kind != "folder" else 0):
            self.snapshots[number].append(self.snapshot_of(number, f"{'hourly' if n % 5 else 'monday'}-{n:04}", now - (snapshots - n) * 3600, n % 5 != 0))
        self.weigh(number)
        return number

    def weigh(self, number):
        self.objects[number]["snapshot_stored_bytes"] = sum(s["unique_bytes"] for s in self.snapshots[number])

    def snapshot_of(self, number, name, when, scheduled=False):
        o = self.objects[number]
        unique = int(o["stored_bytes"] * self.noise.random() * 0.004)
        return {"id": next(self.ids), "kind": "snapshot", "volume": o["name"], "name": name, "size_bytes": o["size_bytes"], "created_unix_s": when, "scheduled": scheduled, "unique_bytes": unique,
                "shared_bytes": o["stored_bytes"] - unique, "data_bytes": o["allocated_bytes"], "clients": 0, "client_names": [], "incomplete": False, "holds": []}

    def log(self, who, operation, about, outcome, when=None):
        self.audit.append({"unix_s": when or int(time.time()), "who": who, "from": "127.0.0.1", "operation": operation, "about": about, "outcome": outcome})

    # Objects

    def children(self, name):
        return [o for o in self.objects.values() if o["name"].startswith(name + "/")]

    def object(self, number):
        if number not in self.objects:
            raise Problem(404, "not-found", f"no object has the number {number}")
        o = dict(self.objects[number])
        if o["folder"]:
            for key in ("allocated_bytes", "stored_bytes", "snapshot_stored_bytes", "size_bytes", "clients"):
                o[key] = sum(c[key] for c in self.children(o["name"]) if not c["folder"])
        o["ratio"] = o["allocated_bytes"] / o["stored_bytes"] if o["stored_bytes"] else None
        o["properties"] = self.own[number]
        return o

    def list(self, query):
        found = [{k: v for k, v in self.object(n).items() if k != "snapshot_stored_bytes"} for n, o in sorted(self.objects.items(), key=lambda pair: pair[1]["name"]) if query.get("kind") in (None, o["kind"])]
        begin, limit = int(query.get("cursor", 0)), min(int(query.get("limit", 200)), 1000)
        return {"objects": found[begin:begin + limit], "next": str(begin + limit) if begin + limit < len(found) else None, "total": len(found)}

    def resolve(self, name):
        """Number of the object of this name or number, and the name of the snapshot, if it is one."""
        if str(name).isdigit():
            number = int(name)
            if number in self.objects:
                return number, None
            for owner, snapshots in self.snapshots.items():
                for one in snapshots:
                    if one["id"] == number:
                        return owner, one["name"]
            raise Problem(404, "not-found", f"there is no object {number}")
        owner, _, snapshot = name.partition("@")
        try:
            return self.id_of(owner), snapshot or None
        except StopIteration:
            raise Problem(404, "not-found", f"there is no '{owner}'") from None

    def etag(self, number):
        return f'"{number or 0}-{hash(str(sorted((self.own.get(number) if number else self.pool_own).items()))) & 0xffff:04x}-{self.objects[number]["name"] if number and number < 10 else ""}"'

    def kinds_of(self, number):
        return self.objects[number]["kind"] if number else "pool"

    def properties(self, number):
        kind, lines = self.kinds_of(number), []
        chain = [(self.own[number], kind, None, number)] if number else []
        name = self.objects[number]["name"] if number else ""
        while "/" in name:
            name = name.rsplit("/", 1)[0]
            chain += [(self.own[o["id"]], "folder", name, o["id"]) for o in self.objects.values() if o["name"] == name]
        chain.append((self.pool_own, "pool", None, None))
        rules = {key for own, *_ in chain for key in own if key.startswith("rule.")}
        for key, default, values, words, only in KEYS + [(rule, "auto", [], "codec for files of this type", None) for rule in sorted(rules)]:
            if only and only != kind and not (only == "share" and kind == "folder"):
                continue
            found = [(own[key], source, folder, owner) for own, source, folder, owner in chain if key in own] + [(default, "default", None, None)]
            lines.append({"key": key, "value": found[0][0], "source": found[0][1], "folder": found[0][2], "values": values, "allowed": ", ".join(values) or "see the manual", "description": words,
                          "rules": DATABASE_RULES if (key, found[0][0]) == ("rule-set", "database") else {}})
        return {"etag": self.etag(number).strip('"'), "properties": lines, "notes": []}

    def in_force(self, number, key):
        return next(p["value"] for p in self.properties(number)["properties"] if p["key"] == key)

    def set(self, number, changes, who, etag):
        if etag is None or etag != self.etag(number):
            raise Problem(412 if etag else 428, "conflict", "the properties changed after they were read; read them again")
        own, notes = self.own[number] if number else self.pool_own, []
        for key, value in changes.items():
            known = next((k for k in KEYS if k[0] == key), None)
            if known is None and not key.startswith("rule."):
                raise Problem(422, "invalid", f"there is no property '{key}'")
            if value is not None and known and known[2] and key != "unit" and value not in known[2]:
                raise Problem(422, "invalid", f"{key}={value}: not a value; {key} is one of: {', '.join(known[2][:8])}")
        before = self.in_force(number, "compression")
        for key, value in changes.items():
            if value is None:
                own.pop(key, None)
            else:
                own[key] = value
        words = ", ".join(f"{k}={v}" if v is not None else f"{k} inherited" for k, v in changes.items())
        name = self.objects[number]["name"] if number else None
        self.log(who, "set", f"set {json.dumps(changes)} on '{name or 'the pool'}'", "done")
        # As the server says it of a request of the page.
        of = f"object {number}" if name else "the pool"
        self.marks.append({"unix_s": int(time.time()), "text": f"set {words} on {of}", "object": number, "old": before})
        self.touch(number)
        return {**self.properties(number), "notes": notes}

    def touch(self, number):
        self.generation += 1

    def create(self, wish, who):
        name = wish.get("name", "")
        if not name or name.startswith("/") or name.endswith("/"):
            raise Problem(422, "invalid", f"'{name}' is not a name")
        if any(o["name"] == name for o in self.objects.values()):
            raise Problem(409, "exists", f"'{name}' exists")
        size = wish.get("size_bytes") or 0
        if wish.get("from"):
            origin, _, snapshot = wish["from"].partition("@")
            source = self.objects[self.id_of(origin)]
            number = self.add(name, source["kind"], source["allocated_bytes"], 60, {})
            self.objects[number]["origin"] = f"{origin}@{snapshot}"
        else:
            number = self.add(name, wish["kind"], 0, 0, dict(wish.get("properties", {})))
            self.objects[number]["size_bytes"] = size
        self.objects[number].update(clients=0, client_names=[])
        self.log(who, "create", f"create {wish.get('kind', 'clone')} '{name}'", "done")
        self.touch(number)
        return self.object(number)

    def destroy(self, number, query, who):
        o = self.object(number)
        inside, snapshots = self.children(o["name"]), len(self.snapshots[number])
        if (inside or snapshots) and not query.get("recursive"):
            raise Problem(409, "in-use", f"'{o['name']}' has {len(inside) or snapshots} {'objects' if inside else 'snapshots'}")
        if o["client_names"] and not query.get("force"):
            raise Problem(409, "in-use", f"'{o['name']}' is open: {o['client_names'][0]}", blockers=o["client_names"])
        for gone in [number] + [c["id"] for c in inside]:
            self.objects.pop(gone)
        self.log(who, "destroy", f"destroy '{o['name']}'", "done")
        self.generation += 1
        return None

    # Snapshots and files

    def snapshot(self, number, name):
        found = next((s for s in self.snapshots[number] if s["name"] == name), None)
        if found is None:
            raise Problem(404, "not-found", f"'{self.objects[number]['name']}' has no snapshot '{name}'")
        return found

    def take(self, number, name, who):
        if any(s["name"] == name for s in self.snapshots[number]):
            raise Problem(409, "exists", f"'{self.objects[number]['name']}@{name}' exists")
        self.snapshots[number].append(self.snapshot_of(number, name, int(time.time())))
        self.log(who, "snapshot", f"take snapshot '{self.objects[number]['name']}@{name}'", "done")
        self.marks.append({"unix_s": int(time.time()), "text": f"snapshot '{self.objects[number]['name']}@{name}'", "object": number})
        self.touch(number)
        return self.snapshots[number][-1]

    def content(self, path, at):
        return (f"{path} as of {at or 'now'}\n" * 40).encode()

    def files(self, number, path, at):
        if at:
            self.snapshot(number, at)
        names = FILES.get(path)
        if names is None:
            parent, _, name = path.rpartition("/")
            if name in FILES.get(parent, []):
                return None
            raise Problem(404, "not-found", f"'{path}' is not in '{self.objects[number]['name']}'")
        names = list(names) + ([HOSTILE] if path == "" else []) + (["new.txt"] if path == "" and not at else [])
        entries, now = [], int(self.begun)
        for name in names:
            full = f"{path}/{name}".lstrip("/")
            is_dir, old = full in FILES, at and name in ("store.c", "design.md")
            entries.append({"name": name, "kind": "directory" if is_dir else "file", "size_bytes": 0 if is_dir else len(full) * 4211 - (900 if old else 0),
                            "stored_bytes": None if is_dir else len(full) * 1730, "modified_unix_s": now - (86400 if old else 3600 * len(full)), "mode": 0o755 if is_dir else 0o644})
        here = {"name": path.rpartition("/")[2], "kind": "directory", "size_bytes": 0, "stored_bytes": None, "modified_unix_s": now, "mode": 0o755, "target": None}
        return {"path": path, "entry": here, "entries": entries, "next": None}

    def usage(self, path):
        def line(name, files, gib, saving):
            raw = int(gib * GIB)
            stored = int(raw * (1 - saving / 100))
            return {"name": name, "files": files, "size_bytes": raw, "raw_bytes": raw, "stored_bytes": stored, "ratio": raw / stored}
        entries = [line("src", 81200, 142, 71), line("docs", 9120, 61, 44), line("archive.tar.gz", 1, 48, 0.2), line("README.md", 1, 0.00001, 50), line("new.txt", 1, 0.00002, 60)] if not path else \
            [line(name, 12, 20, 61) for name in FILES.get(path, [])]
        types = [line("c", 61022, 96, 72), line("log", 204, 81, 87), line("gz", 311, 62, 0.3), line("sqlite", 18, 44, 64), line("txt", 8230, 38, 63), line("pdf", 1210, 22, 9),
                 line("elf", 4410, 14, 64), line("other", 19402, 4, 31)]
        return {"total": line("", 94807, 361, 58.2), "entries": entries, "types": types}

    # Compression

    def explain_map(self, number, cells):
        o, noise = self.object(number), random.Random(number)
        names = ["raw", "lz4", "zstd-3", "gzip-9", "zle"]
        changed = any(m["object"] == number and m["unix_s"] > self.begun for m in self.marks)
        now, out, kind = self.in_force(number, "compression"), [], 1
        for n in range(min(cells, max(64, o["allocated_bytes"] // (64 << 20)), 4096)):
            if noise.random() < 0.09:
                kind = noise.choice([0, 1, 1, 1, 2, 2, 4, None])
            if kind is None:
                out.append(None)
                continue
            raw = 64 << 20
            stored = raw if kind == 0 else int(raw * (0.42 - 0.08 * kind + noise.random() * 0.1))
            codec = names[kind] if not (changed and n > 400) else ("raw" if now == "off" else "zstd-1" if now == "auto" else now)
            out.append({"offset": n * (64 << 20), "codec": codec, "raw_bytes": raw, "stored_bytes": max(stored, raw // 20), "winner": None})
        return {"size_bytes": o["size_bytes"], "cell_bytes": 64 << 20, "looked_at_percent": 12.5, "cells": out}

    def explain(self, number, offset):
        cells = self.explain_map(number, 4096)
        cell = cells["cells"][min(offset // cells["cell_bytes"], len(cells["cells"]) - 1)] or {"codec": "raw", "raw_bytes": 0, "stored_bytes": 0}
        chosen = cell["codec"]
        trials = [{"codec": c, "stored_bytes": int(32768 * (1 - CODECS[c][0] / 100)) if c != "zle" else None, "cpu_us": 32768 / max(CODECS[c][1], 1), "expected_saving_percent": CODECS[c][0],
                   "expected_cpu_us": 33000 / max(CODECS[c][1], 1), "cost": {"lz4": 1.9, "zstd-1": 1.1, "zstd-3": 1.0, "zle": None}[c], "energy_uj": 327680 / max(CODECS[c][1], 1),
                   "verdict": "least cost" if c == "zstd-3" else "saves too little" if c == "zle" else "costs more"} for c in ("zle", "lz4", "zstd-1", "zstd-3")]
        return {"offset": offset, "raw_bytes": cell["raw_bytes"], "stored_bytes": cell["stored_bytes"], "codecs": [{"codec": chosen, "units": 2048, "raw_bytes": cell["raw_bytes"],
                "stored_bytes": cell["stored_bytes"]}], "remembered": {"winner": "zstd-3", "class": 3, "saving_percent": 66.1, "units_since_test": 12}, "unit_offset": offset, "unit_bytes": 32768,
                "bits_per_byte": 4.91, "class": "text", "compression": self.in_force(number, "compression"), "mode": "balanced", "chosen": chosen, "why": "won the last test: 2.1 times cheaper than lz4",
                "cpus": 1.6, "device_bytes_per_s": 1.0e8, "cpu_watts": 10.0, "energy_source": "cpu-time", "dictionary": None, "dictionaries": 0, "trials": trials}

    def estimate(self, number, now=None):
        begun = self.estimates.get(number)
        if begun is None:
            raise Problem(404, "not-found", "nothing was estimated of this object yet")
        passed = (now or time.time()) - begun["at"]
        step = 3 if self.is_unsampled else min(3, int(passed * begun["pace"]))
        sampled, o = 0 if self.is_unsampled else (4, 16, 64, 96)[step] << 20, self.object(number)
        raw, factor = o["allocated_bytes"], max(0.02, (1 - o["stored_bytes"] / max(o["allocated_bytes"], 1)) / 0.582) if o["allocated_bytes"] else 1
        configured, mode = self.in_force(number, "compression"), self.in_force(number, "mode")
        configured = f"auto, {mode}" if configured == "auto" else configured
        device = 100e6

        def line(setting, saving, speed, reads):
            saving = min(saving * factor, 97)
            stored, cpu = int(raw * (1 - saving / 100)), raw / 1e6 / speed if speed else 0
            disk, cores = device / 1e6 / max(1 - saving / 100, 0.03), 2 * speed if speed else 1e9
            return {"setting": setting, "configured": setting == configured, "saving_percent": round(saving, 2), "margin_percent": round((4.4, 2.3, 1.3, 0.9)[step] * (0.4 + saving / 110), 2) if speed else 0.0,
                    "ratio": round(raw / max(stored, 1), 2), "stored_bytes": stored, "cpu_seconds": round(cpu, 1), "mb_per_second": speed or None, "joules": round(cpu * 10, 1),
                    "write_mb_per_second": round(min(disk, cores), 1), "write_bound": "disk" if disk <= cores else "cpu", "read_factor": reads, "rewrite_seconds": max(raw / 1e6 / cores, (o["stored_bytes"] + stored) / device)}

        def known(codec):
            level = hash(codec)
            return CODECS.get(codec) or (62 + 6 * (level % 7) / 7, 900 / (2 + level % 40), 1.2)
        choices = [c for c in dict.fromkeys([configured, *begun["choices"]]) if not c.startswith("auto")]
        lines = [line(c, *known(c)) for c in choices] + [line(f"auto, {m}", *MODES[m]) for m in MODES]
        unit = int(self.in_force(number, "unit").split("-")[-1].rstrip("K")) << 10
        return {"object": number, "path": None, "assumed": {}, "job": begun["job"], "state": self.job(begun["job"])["state"] if step < 3 else "done", "error": None, "at_unix_s": int(begun["at"]),
                "files": 94807, "size_bytes": o["size_bytes"], "data_bytes": raw, "hole_bytes": o["size_bytes"] - raw, "small_files": 0, "small_bytes": 0, "unit_bytes": unit, "sampled_bytes": sampled,
                "unreadable_samples": 0, "confidence": 0.95, "cpu_watts": 10.0, "energy_source": "cpu-time", "cpus": 2.0, "device_bytes_per_s": int(device), "settings": lines, "types": []}

    # Jobs

    def start_job(self, kind, target, seconds=20, done=0.0, total=None):
        now = time.time()
        job = {"id": next(self.job_ids), "kind": kind, "target": target, "state": "running", "changes": 0,
               "phase": {"recompress": "recompressing", "scrub": "scrubbing", "clean": "cleaning", "restore": "restoring"}.get(kind, kind), "bytes_done": 0,
               "bytes_total": total or 151 * GIB, "bytes_per_second": None, "seconds_left": None, "started_unix_s": int(now), "ended_unix_s": None, "seconds": 0.0, "background": True,
               "said": "", "asked": None, "error": None, "result": None, "_pace": 1 / seconds, "_done": done, "_at": now}
        self.jobs.append(job)
        return job

    def job(self, name):
        found = next((j for j in self.jobs if j["id"] == int(name)), None)
        if found is None:
            raise Problem(404, "not-found", f"there is no job {name}")
        return found

    def tick(self):
        """Moves jobs on; returns those that changed."""
        moved, now = [], time.time()
        for job in self.jobs:
            passed, job["_at"] = now - job["_at"], now
            if job["state"] == "cancelling":
                job.update(state="cancelled", ended_unix_s=int(now), seconds_left=None, error={"kind": "interrupted", "message": "the job was cancelled"})
            elif job["state"] == "running":
                job["_done"] = min(1, job["_done"] + passed * job["_pace"])
                job.update(bytes_done=int(job["_done"] * job["bytes_total"]), bytes_per_second=int(job["_pace"] * job["bytes_total"]), seconds_left=int((1 - job["_done"]) / job["_pace"]), seconds=now - job["started_unix_s"])
                if job["_done"] >= 1:
                    job.update(state="done", ended_unix_s=int(now), seconds_left=None)
                    self.scrub_finished = int(now) if job["kind"] == "scrub" else self.scrub_finished
            else:
                continue
            moved.append(self.shown(job))
        return moved

    @staticmethod
    def shown(job):
        return {key: value for key, value in job.items() if not key.startswith("_")}

    # The pool

    def status(self):
        objects = [o for o in self.objects.values() if not o["folder"]]
        stored, logical = sum(o["stored_bytes"] for o in objects), sum(o["allocated_bytes"] for o in objects)
        used = stored + 6 * GIB if objects else 0
        return {"pool": "/srv/pool", "data": "/srv/pool/data", "id": "9b1c", "served": True, "pid": 4711, "nbd": ["127.0.0.1:10809"], "nbd_connections": 3, "nbd_connections_max": 256, "mount": None,
                "shares": "/srv/shares", "unserved_shares": [], "uptime_s": int(time.time() - self.begun), "health": self.health()["health"], "used_percent": 100 * used / self.capacity,
                "available_bytes": self.capacity - used, "reserved_bytes": (18 * GIB) if objects else 0, "reserved_for": [], "refused_writes": 0, "full": False, "full_level": 0, "exact": True,
                "scrub": {"started_unix_s": self.scrub_finished - 840, "finished_unix_s": self.scrub_finished, "running": False, "bytes_done": used, "bytes_total": used, "found": 0},
                "capacity_bytes": self.capacity, "volumes": len(objects), "logical_bytes": sum(o["size_bytes"] for o in objects), "allocated_bytes": logical, "stored_bytes": stored,
                "dead_bytes": 5 * GIB if objects else 0, "free_bytes": self.capacity - used, "map_bytes": GIB if objects else 0, "ratio": logical / stored if stored else None,
                "saving_percent": 100 * (1 - stored / logical) if logical else None, "write_amplification": 1.31, "checkpoints": 812, "damages": [], "damages_unlisted": 0,
                "damages_acknowledged": 0, "losses": [], "incomplete": [], "images": [], "memory_budget_bytes": GIB, "memory_resident_bytes": 700 << 20, "failed": None, "jobs": []}

    def health(self):
        found = self.findings or [{"kind": "ok", "words": "ok", "advice": ""}]
        return {"health": found[0]["kind"], "findings": found}

    def exports(self, check):
        lines, checks = [], []
        for number, o in self.objects.items():
            for door in ("nfs", "smb", "http", "ftp") if o["share"] else ():
                access = self.in_force(number, door)
                if access != "off":
                    place = {"nfs": "nas.example:/", "smb": "smb://nas.example/", "http": "https://nas.example/", "ftp": "ftp://nas.example/"}[door]
                    lines.append({"share": o["name"], "door": door, "access": access, "address": place + o["name"], "fault": None if door != "ftp" else "vsftpd is not installed"})
        if check:
            checks = [{"what": "nfs-ganesha", "good": True, "warns": False, "found": "4.3, running"}, {"what": "port 2049", "good": True, "warns": False, "found": "open"},
                      {"what": "samba", "good": True, "warns": True, "found": "guests may read projects/media"}]
        return {"dir": "/srv/exports", "exports": lines, "checks": checks}
