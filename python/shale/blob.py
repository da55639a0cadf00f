"""A blob as an object: read a range, write, append, look at versions, and stage parts of one version in many
processes. The file system of `shale.filesystem` is made of these."""

import operator
import os
from dataclasses import dataclass, replace

from . import _native, _settings

# The byte behind the largest blob.
END_MAX = 1 << 62


def octets(data):
    """The bytes of whatever has a buffer without gaps: an array, too."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else b""


def place(value, what):
    """A place or a length in a blob, or a number of versions, as the library takes it."""
    number = operator.index(value)
    if not 0 <= number <= END_MAX:
        raise ValueError(f"{what} is {number}: it must be from 0 to 2**62")
    return number


@dataclass(frozen=True)
class Committed:
    """What a change made: the number of the version, where it wrote, and how many bytes."""

    version: int
    offset: int
    length: int


@dataclass(frozen=True)
class Staged:
    """Bytes that are in the store and in no version yet. Small, and goes from process to process."""

    offset: int
    length: int
    data: bytes

    def at(self, offset):
        """The same bytes for another place."""
        return Staged(offset, self.length, self.data)


class Upload:
    """A stream of bytes on its way to a blob. `stage` ends it."""

    def __init__(self, native):
        self._native = native
        self._length = 0

    def write(self, data):
        """Takes bytes; waits while the store is slower."""
        view = octets(data)
        self._native.write(view)
        self._length += len(view)
        return len(view)

    def zeroes(self, length):
        """Takes so many zeroes, which become a hole: nothing is made or stored for them."""
        length = place(length, "the length")
        self._native.zeroes(length)
        self._length += length
        return length

    def stage(self, offset=0):
        """Waits until the store has all bytes; returns them as one part of a later commit."""
        return Staged(offset, self._length, self._native.finish())

    def abort(self):
        """Gives it up. The blob is as it was."""
        self._native.abort()


_STORES = {}


def native_store(kind, bucket, options):
    """The store of this kind and bucket with these options; one for each, so that connections are shared."""
    found, profile = _settings.client_options(kind, options)
    name = (kind, bucket, tuple(sorted(found.items())), profile)
    if name not in _STORES:
        _STORES[name] = _native.Store(kind, bucket, found, profile)
    return _STORES[name]


def properties_of(options):
    """Compression settings as the library takes them: `min_saving` is `min-saving`, `rule` a dict by type of file."""
    found = {}
    for name, value in (options or {}).items():
        if name == "rule":
            found.update({f"rule.{kind}": str(choice) for kind, choice in value.items()})
        else:
            found[name.replace("_", "-")] = str(value)
    return found


class Blob:
    """A blob of a store. Opens at its first use; makes the blob at its first write."""

    def __init__(self, url, *, properties=None, **storage_options):
        url = os.fspath(url)
        protocol, mark, _ = url.partition("://")
        kind = protocol.removeprefix("shale+")
        if not mark or f"shale+{kind}" not in _settings.PROTOCOLS:
            raise ValueError(f"'{url}' is no blob: shale+s3://BUCKET/KEY, +gs, +az, +file or +memory, and @VERSION or @TAG behind it")
        path, self.at = _settings.split_version(_settings.strip(url, (protocol,), kind))
        version = storage_options.pop("version", None)
        self.at = self.at or ("" if version is None else str(version))
        self.kind, self.path, self.storage_options = kind, path, storage_options
        self.properties = properties_of(properties)
        bucket, self.key = _settings.store_and_key(kind, path)
        self._store = native_store(kind, bucket, storage_options)

    @property
    def url(self):
        """Its URL, with the version that it was opened at."""
        slash = "" if self.kind != "file" or self.path.startswith("/") else "/"
        return f"shale+{self.kind}://{slash}{self.path}" + (f"@{self.at}" if self.at else "")

    def __repr__(self):
        return f"<shale.Blob {self.url}>"

    def __reduce__(self):
        public, name = _settings.hide(self.storage_options)
        return _unpickle, (self.url, public, name, self.properties)

    def info(self, at=None):
        """Version, size, second of its commit, message, and all tags."""
        return self._store.info(self.key, self._at(at))

    def open_version(self, at=None):
        """A version, which stays the same: `read(start, end)`, `read_ranges([(start, end), ...])`, `size`."""
        return self._store.version(self.key, self._at(at))

    def read(self, start=0, end=None, at=None):
        """Bytes of a range; negative places count from the end."""
        return self.open_version(at).read(start, end)

    def put(self, data, message=""):
        """Replaces all bytes, as one version."""
        return Committed(*self._store.write(self._key_to_write(), "put", 0, octets(data), message, self.properties))

    def append(self, data, message=""):
        """Puts bytes behind the end, wherever that is when they are committed: `offset` tells where."""
        return Committed(*self._store.write(self._key_to_write(), "append", 0, octets(data), message, self.properties))

    def write(self, offset, data, message=""):
        """Overwrites a range; a gap behind the end reads as zeroes."""
        return Committed(*self._store.write(self._key_to_write(), "write", place(offset, "the offset"), octets(data), message, self.properties))

    def log(self, first=1, last=None):
        """All records, oldest first: a list of dicts."""
        last = last if last is None else place(last, "the last record")
        return self._store.log(self.key, place(first, "the first record"), last)

    def versions(self):
        """Records that are versions and can still be read, oldest first."""
        return [entry for entry in self.log() if entry["is_version"] and entry["is_live"]]

    def tags(self):
        """{name: version}."""
        return self._store.info(self.key, "")["tags"]

    def tag(self, name, at=None):
        """Gives a version a name, which keeps it."""
        self._store.tag(self.key, name, self._at(at))

    def untag(self, name):
        """Takes a name away."""
        self._store.tag(self.key, name)

    def expire(self, keep=None, version=None):
        """Gives versions up: all but the newest `keep`, or one. Tells whether any was."""
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
        """Uploads bytes, and commits nothing: any process may, at the same time as others."""
        upload = self.upload()
        upload.write(data)
        return upload.stage(offset)

    def commit(self, parts, message="", how="write", **more):
        """Makes one version of staged parts. `how`: "write" over their places, "put" instead of all bytes, "append" behind the end."""
        parts = list(parts)
        places = [(place(part.offset, "the offset of a part"), part.data) for part in parts]
        committed = Committed(*self._store.commit(self._key_to_write(), how, places, message, **more))
        # The log counts the ranges of a rewrite, not their bytes.
        return replace(committed, length=sum(part.length for part in parts)) if how == "rewrite" else committed

    def _at(self, at):
        return self.at if at is None else str(at)

    def _key_to_write(self):
        if self.at:
            raise ValueError(f"{self.url}: a version never changes: leave out the @ and what is behind it")
        return self.key


def _unpickle(url, public, name, properties):
    return Blob(url, properties=properties, **_settings.reveal(public, name))
