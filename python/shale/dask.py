"""Jobs on blobs that exceed one machine, on any Dask cluster: `ingest`, `copy`, `recompress`, `verify`.

Each task stages a range and returns a few hundred bytes that describe it; the caller commits all of them as ONE
version. A worker that dies costs the time of its tasks, which Dask runs again on another one: its uploads are garbage
that `shale blob gc` removes. Staged parts are recorded in a file as they arrive, so the same call made again after the
caller itself was killed resumes there, and commits once.

Workers take credentials from their own environment (`AWS_*`, a profile, the instance): tasks carry none.
"""

import base64
import hashlib
import json
import os
import threading
from pathlib import Path

import distributed
import fsspec

from .blob import Blob, Staged, properties_of

# Bytes of a task: a minute of work at most, a few packs.
PART_BYTES = 256 << 20
# Bytes of a read of a source: held by a task in addition to the packs that fill.
READ_BYTES = 8 << 20
# Retries of a task that raised an exception.
RETRIES = 3


class Journal:
    """Staged parts, in a file, from which a later call resumes. Owns the name of the commit."""

    def __init__(self, what, blob, directory=None):
        """`what` describes the job: a different job, or one with changed sources, has another file."""
        base = directory or os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
        name = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]
        self.path = Path(base) / "shale" / "jobs" / name
        self.parts, self.resumed = {}, None
        inc, seq, fence, operation = blob._store.begin(blob.key)
        self.header = {"incarnation": inc, "born": seq, "operation": operation}
        lines = self._lines()
        if lines and lines[0].get("incarnation") == inc and lines[0]["born"] >= fence:
            self.header, self.resumed = lines[0], lines[0]["born"]
            self.parts = {line["part"]: Staged(line["offset"], line["length"], base64.b64decode(line["data"])) for line in lines[1:]}
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "w", encoding="utf-8") as file:
            self._write(file, self.header)

    def _lines(self):
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        lines = []
        for line in text.splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                break  # A line that a kill truncated, with nothing after it.
        return lines

    @staticmethod
    def _write(file, line):
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())

    def add(self, number, part):
        """Records a part."""
        self.parts[number] = part
        with open(self.path, "a", encoding="utf-8") as file:
            self._write(file, {"part": number, "offset": part.offset, "length": part.length, "data": base64.b64encode(part.data).decode()})

    def forget(self):
        """Discards the staged parts: a later call starts over."""
        self.path.unlink(missing_ok=True)

    def commit(self, blob, message, how, **more):
        """Makes the version. If the outcome is unknown the file is kept, and the same call checks again."""
        parts = [self.parts[number] for number in sorted(self.parts)]
        committed = blob.commit(parts, message, how, op=self.header["operation"], again=self.resumed, **more)
        self.forget()
        return committed


def run(client, function, tasks, done, progress=False):
    """Runs `function(*task)` for each numbered task on the cluster; calls `done(number, result)` for each result.

    With `progress`, shows `distributed.progress`. The error of the first task that failed permanently is raised here.
    """
    if client is None:
        client = distributed.get_client()
    numbers = list(tasks)
    columns = list(zip(*(tasks[number] for number in numbers), strict=True))
    if not columns:
        return
    futures = client.map(function, *columns, pure=False, retries=RETRIES)
    number_of = dict(zip((future.key for future in futures), numbers, strict=True))
    failed = []

    def collect():
        for future in distributed.as_completed(futures, loop=client.loop):
            try:
                done(number_of[future.key], future.result())
            except BaseException as error:  # raised below, in the caller's thread
                failed.append(error)
                client.cancel([future for future in futures if not future.done()])
                return

    collector = threading.Thread(target=collect, name="shale-collect")
    collector.start()
    try:
        if progress:
            distributed.progress(futures)
        collector.join()
    except BaseException:
        client.cancel(futures)
        collector.join()
        raise
    if failed:
        raise failed[0]


def ranges(size, part_bytes=PART_BYTES):
    """Returns [(start, end), ...] of a size."""
    return [(start, min(start + part_bytes, size)) for start in range(0, size, part_bytes)]


def _ingest_part(url, options, start, end, blob, offset):
    file_system, path = fsspec.core.url_to_fs(url, **options)
    upload = blob.upload()
    with file_system.open(path, "rb", cache_type="none") as file:
        file.seek(start)
        at = start
        while at < end:
            data = file.read(min(READ_BYTES, end - at))
            if not data:
                upload.abort()
                raise OSError(5, f"{url} ends at byte {at}, but had {end} or more when the job began")
            upload.write(data)
            at += len(data)
    return upload.stage(offset)


def _restage_part(source, start, end, target, properties):
    into = (None, None) if target is None else (target._store, target.key)
    data = source._store.restage(source.key, source.at, start, end, properties, *into)
    return Staged(start, end - start, data)


def _described(url, options):
    """Returns an identity of a source's content, from its store and not from a list that fsspec caches."""
    file_system, path = fsspec.core.url_to_fs(url, **options)
    file_system.invalidate_cache(path)
    return [url, file_system.info(path)["size"], file_system.ukey(path)]


def ingest(sources, target, *, client=None, source_options=None, storage_options=None, properties=None, how="put", message="",
           part_bytes=PART_BYTES, progress=False, state=None):
    """Makes one version from files that fsspec can read, concatenated in the given order.

    A source that changes while it is read, by its size or by fsspec's `ukey`, is an OSError, and nothing is committed.
    Returns {"committed", "parts", "resumed_parts", "offsets": {url: offset}}. `how` is "put" or "append";
    `state` is the directory of the files from which a later call resumes, by default `$XDG_STATE_HOME`.
    """
    if how not in ("put", "append"):
        raise ValueError(f"how must be 'put' or 'append', not '{how}'")
    sources = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    sources, options = [os.fspath(source) for source in sources], source_options or {}
    blob = Blob(target, properties=properties, **(storage_options or {}))
    blob._key_to_write()
    tasks, offsets, described, at = {}, {}, [], 0
    for url in sources:
        described.append(_described(url, options))
        size, offsets[url] = described[-1][1], at
        for start, end in ranges(size, part_bytes):
            tasks[len(tasks)] = (url, options, start, end, blob, at + start)
        at += size
    journal = Journal(["ingest", described, blob.url, how, blob.properties, part_bytes, message], blob, state)
    resumed = len(journal.parts)
    run(client, _ingest_part, {number: task for number, task in tasks.items() if number not in journal.parts}, journal.add, progress)
    changed = [before[0] for before in described if _described(before[0], options) != before]
    if changed:
        journal.forget()
        raise OSError(5, f"{', '.join(changed)} changed while it was read: nothing is committed; ingest it again when nothing writes to it")
    committed = journal.commit(blob, message or f"ingest of {len(sources)} files", how)
    return {"committed": committed, "parts": len(tasks), "resumed_parts": resumed, "offsets": offsets}


def copy(source, target, *, client=None, storage_options=None, target_options=None, properties=None, part_bytes=PART_BYTES,
         progress=False, state=None):
    """Copies a version to another blob, in any store, as one version."""
    blob = Blob(source, **(storage_options or {}))
    info = blob.info()
    blob.at = str(info["version"])
    into = Blob(target, properties=properties, **(storage_options if target_options is None else target_options) or {})
    into._key_to_write()
    tasks = {number: (blob, *part, into, into.properties) for number, part in enumerate(ranges(info["size"], part_bytes))}
    journal = Journal(["copy", blob.url, info["incarnation"], into.url, into.properties, part_bytes], into, state)
    resumed = len(journal.parts)
    run(client, _restage_part, {number: task for number, task in tasks.items() if number not in journal.parts}, journal.add, progress)
    committed = journal.commit(into, f"copy of {blob.url}"[:250], "put")
    return {"committed": committed, "parts": len(tasks), "resumed_parts": resumed}


def recompress(url, *, client=None, storage_options=None, properties=None, part_bytes=PART_BYTES, progress=False, state=None):
    """Stores a blob's data again, by default for `mode=archive`. The content does not change; ranges that other clients
    change at the same time are left alone."""
    blob = Blob(url, **(storage_options or {}))
    if blob.at:
        raise ValueError(f"{blob.url}: only the newest version is rewritten: remove `@VERSION` from the URL")
    chosen = properties_of(properties or {"mode": "archive"})
    info = blob.info()
    fixed = Blob(f"{blob.url}@{info['version']}", **(storage_options or {}))
    tasks = {number: (fixed, *part, None, chosen) for number, part in enumerate(ranges(info["size"], part_bytes))}
    journal = Journal(["recompress", fixed.url, info["incarnation"], chosen, part_bytes], blob, state)
    resumed = len(journal.parts)
    run(client, _restage_part, {number: task for number, task in tasks.items() if number not in journal.parts}, journal.add, progress)
    committed = journal.commit(blob, "recompressed", "rewrite", base=info["version"])
    return {"committed": committed, "parts": len(tasks), "resumed_parts": resumed}


def _verify_part(blob, start, end):
    return blob.verify(None, start, end)


def verify(url, *, client=None, storage_options=None, part_bytes=PART_BYTES, progress=False):
    """Reads and checks every byte of a version: {"frames", "stored", "damaged": [(offset, length, why)]}."""
    blob = Blob(url, **(storage_options or {}))
    info = blob.info()
    blob.at = str(info["version"])
    found = {}
    tasks = {number: (blob, *part) for number, part in enumerate(ranges(info["size"], part_bytes))}
    run(client, _verify_part, tasks, found.__setitem__, progress)
    return {
        "frames": sum(part["frames"] for part in found.values()),
        "stored": sum(part["stored"] for part in found.values()),
        "damaged": [damage for number in sorted(found) for damage in found[number]["damaged"]],
    }
