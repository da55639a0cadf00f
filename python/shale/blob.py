"""A blob as an object: read a range, write, append, list versions, and stage parts of one version in many
processes. The file system of `shale.filesystem` is built on these."""

import operator
import os
from dataclasses import dataclass, replace

from . import _native, _settings

# The end of the largest possible blob.
END_MAX = 1 << 62


def octets(data):
    """Returns the bytes of any object with a contiguous buffer, such as an array."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else b""


def place(value, what):
    """Checks an offset or a length in a blob, or a number of versions."""
    number = operator.index(value)
    if not 0 <= number <= END_MAX:
        raise ValueError(f"{what} is {number}, but must be from 0 to 2**62")
    return number


@dataclass(frozen=True)
class Committed:
    """The result of a change: the version number, the offset of the write, and its length."""

    version: int
    offset: int
    length: int


@dataclass(frozen=True)
class Staged:
    """Bytes that are in the store but not in any version yet. Small, and can be passed between processes."""

    offset: int
    length: int
    data: bytes

    def at(self, offset):
        """Returns the same bytes at another offset."""
        return Staged(offset, self.length, self.data)


class Upload:
    """A stream of bytes on its way to a blob. `stage` ends it."""

    def __init__(self, native):
        self._native = native
        self._length = 0

    def write(self, data):
        """Adds bytes; waits while the store is slower."""
        view = octets(data)
        self._native.write(view)
        self._length += len(view)
        return len(view)

    def zeroes(self, length):
        """Adds zeroes, which become a hole: they are neither created nor stored."""
        length = place(length, "the length")
        self._native.zeroes(length)
        self._length += length
        return length

    def stage(self, offset=0):
        """Waits until the store has all bytes; returns them as one part of a later commit."""
        return Staged(offset, self._length, self._native.finish())

    def abort(self):
        """Aborts the upload. The blob does not change."""
        self._native.abort()


_STORES = {}


def native_store(kind, bucket, options):
    """Returns the store of this kind and bucket with these options; only one each, so that connections are shared."""
    found, profile = _settings.client_options(kind, options)
    name = (kind, bucket, tuple(sorted(found.items())), profile)
    if name not in _STORES:
        _STORES[name] = _native.Store(kind, bucket, found, profile)
    return _STORES[name]


def properties_of(options):
    """Returns compression settings as the library expects them: `min_saving` is `min-saving`, `rule` a dict by file type."""
    found = {}
    for name, value in (options or {}).items():
        if name == "rule":
            found.update({f"rule.{kind}": str(choice) for kind, choice in value.items()})
        else:
            found[name.replace("_", "-")] = str(value)
    return found


class Blob:
    """A blob of a store. It is opened at its first use, and created at its first write."""

    def __init__(self, url, *, properties=None, **storage_options):
        url = os.fspath(url)
        protocol, mark, _ = url.partition("://")
        kind = protocol.removeprefix("shale+")
        if not mark or f"shale+{kind}" not in _settings.PROTOCOLS:
            raise ValueError(f"'{url}' is not the URL of a blob: use shale+s3://BUCKET/KEY (or +gs, +az, +file, +memory), optionally with @VERSION or @TAG")
        path, self.at = _settings.split_version(_settings.strip(url, (protocol,), kind))
        version = storage_options.pop("version", None)
        self.at = self.at or ("" if version is None else str(version))
        self.kind, self.path, self.storage_options = kind, path, storage_options
        self.properties = properties_of(properties)
        bucket, self.key = _settings.store_and_key(kind, path)
        self._store = native_store(kind, bucket, storage_options)

    @property
    def url(self):
        """Its URL, with the version at which it was opened."""
        slash = "" if self.kind != "file" or self.path.startswith("/") else "/"
        return f"shale+{self.kind}://{slash}{self.path}" + (f"@{self.at}" if self.at else "")

    def __repr__(self):
        return f"<shale.Blob {self.url}>"

    def __reduce__(self):
        public, name = _settings.hide(self.storage_options)
        return _unpickle, (self.url, public, name, self.properties)

    def info(self, at=None):
        """Returns the version, its size, the time and message of its commit, and all tags."""
        return self._store.info(self.key, self._at(at))

    def open_version(self, at=None):
        """Returns a version, which never changes: `read(start, end)`, `read_ranges([(start, end), ...])`, `size`."""
        return self._store.version(self.key, self._at(at))

    def read(self, start=0, end=None, at=None):
        """Returns the bytes of a range; negative offsets count from the end."""
        return self.open_version(at).read(start, end)

    def put(self, data, message=""):
        """Replaces the content, as one version."""
        return Committed(*self._store.write(self._key_to_write(), "put", 0, octets(data), message, self.properties))

    def append(self, data, message=""):
        """Appends bytes at the end, wherever that is at the commit: `offset` of the result is their place."""
        return Committed(*self._store.write(self._key_to_write(), "append", 0, octets(data), message, self.properties))

    def write(self, offset, data, message=""):
        """Overwrites a range; a gap after the end reads as zeroes."""
        return Committed(*self._store.write(self._key_to_write(), "write", place(offset, "the offset"), octets(data), message, self.properties))

    def log(self, first=1, last=None):
        """Returns all records, oldest first, as a list of dicts."""
        last = last if last is None else place(last, "the last record")
        return self._store.log(self.key, place(first, "the first record"), last)

    def versions(self):
        """Returns the records that are versions and can still be read, oldest first."""
        return [entry for entry in self.log() if entry["is_version"] and entry["is_live"]]

    def tags(self):
        """Returns {name: version}."""
        return self._store.info(self.key, "")["tags"]

    def tag(self, name, at=None):
        """Tags a version, which is then kept."""
        self._store.tag(self.key, name, self._at(at))

    def untag(self, name):
        """Removes a tag."""
        self._store.tag(self.key, name)

    def expire(self, keep=None, version=None):
        """Expires versions: all but the newest `keep`, or a single one. Returns whether there were any."""
        keep = keep if keep is None else place(keep, "the number of versions to keep")
        version = version if version is None else place(version, "the version")
        return self._store.expire(self.key, keep, version)

    def verify(self, at=None, start=0, end=None):
        """Reads, checks and decodes every frame: {"frames", "stored", "damaged": [(offset, length, why)]}."""
        end = end if end is None else place(end, "the end")
        return self._store.verify(self.key, self._at(at), place(start, "the start"), end)

    def remove(self):
        """Removes the blob with all its versions."""
        self._store.remove(self.key)

    def upload(self):
        """Begins a stream of bytes."""
        return Upload(self._store.upload(self._key_to_write(), self.properties))

    def stage(self, offset, data):
        """Uploads bytes without a commit: any process may, at the same time as others."""
        upload = self.upload()
        upload.write(data)
        return upload.stage(offset)

    def commit(self, parts, message="", how="write", **more):
        """Makes one version of staged parts. `how`: "write" over their ranges, "put" to replace all content, "append" at the end."""
        parts = list(parts)
        places = [(place(part.offset, "the offset of a part"), part.data) for part in parts]
        committed = Committed(*self._store.commit(self._key_to_write(), how, places, message, **more))
        # The log counts the ranges of a rewrite, not their bytes.
        return replace(committed, length=sum(part.length for part in parts)) if how == "rewrite" else committed

    def _at(self, at):
        return self.at if at is None else str(at)

    def _key_to_write(self):
        if self.at:
            raise ValueError(f"{self.url}: a version never changes: remove `@VERSION` from the URL")
        return self.key


def _unpickle(url, public, name, properties):
    return Blob(url, properties=properties, **_settings.reveal(public, name))
