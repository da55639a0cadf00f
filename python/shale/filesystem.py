"""The fsspec file system: a blob is a file, and a path may name a version by `@3` or `@tag` at its end.

Reads without a version pin the newest one when the file is opened. A write makes one version when the file is
closed; one that fails, whose block raised an exception, or that was never closed, changes nothing. Directories are prefixes,
as in every object store: they exist while a blob is below them.
"""

import asyncio
import gc
import io
import json
import os
import stat
import sys
import warnings
from collections.abc import Iterable
from datetime import UTC, datetime

import fsspec
from fsspec.asyn import AsyncFileSystem, _run_coros_in_chunks
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.core import OpenFile
from fsspec.spec import AbstractBufferedFile
from fsspec.utils import tokenize

from . import _holes, _settings, caching
from .blob import Blob, Committed, Upload, native_store, octets, properties_of

# Bytes of a file's write buffer, and of the reads of fsspec's own caches.
BLOCK_BYTES = 5 << 20
# Bytes that `get` reads at once; two of these are in memory.
COPY_BYTES = 16 << 20
# Calls between `with fsspec.open(...)` and the file that it closes, with layers of text and
# compression in between.
CLOSING_FRAMES_MAX = 8
# The kind of commit for each mode of an open file.
HOW = {"wb": "put", "xb": "create", "ab": "append"}


def register():
    """Registers the protocols where no entry point did, as in a source tree."""
    for file_system in (ShaleS3FileSystem, ShaleGSFileSystem, ShaleAzFileSystem, ShaleLocalFileSystem, ShaleMemoryFileSystem):
        fsspec.register_implementation(file_system.protocol, file_system, clobber=True)


class ShaleFileSystem(AsyncFileSystem):
    """Blobs as files, in one kind of store for each class below. Options in addition to fsspec's own:

    version: the version of paths without an @
    properties: how writes are compressed, {"mode": "archive", "compression": "zstd-9", ...}
    block_size: bytes of a file's buffer for writes
    and the options of the store, named as in s3fs or the store's client
    """

    protocol = "shale"
    kind = ""
    root_marker = ""

    def __init__(self, *args, version=None, properties=None, block_size=None, from_pickle=None, **options):
        if not self.kind:
            raise TypeError("create a file system for one kind of store: fsspec.filesystem('shale+s3')")
        own = {"asynchronous", "loop", "batch_size", "skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths"}
        super().__init__(*args, **{name: value for name, value in options.items() if name in own})
        self.default_version = "" if version is None else str(version)
        self.properties = properties_of(properties)
        self.block_bytes = block_size or options.get("default_block_size") or BLOCK_BYTES
        store_options = {name: value for name, value in options.items() if name not in own}
        self.store_options = _settings.reveal(store_options, from_pickle)
        _settings.client_options(self.kind, self.store_options)

    @property
    def loop(self):
        """The loop of the waiting calls; a forked process has its own."""
        if self._pid != os.getpid():
            self._pid, self._loop = os.getpid(), fsspec.asyn.get_loop()
        return self._loop

    # Names

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return _settings.strip(os.fspath(path), kind=cls.kind)

    @property
    def fsid(self):
        """Identifies the store: one for each set of public options."""
        return f"{self.protocol}_{tokenize(sorted(self._public().items()))}"


    def _split(self, path):
        """Returns (store, key, version) of a path."""
        path, at = _settings.split_version(self._strip_protocol(path))
        store, key = self._plain(path)
        return store, key, at or self.default_version

    def _plain(self, path):
        bucket, key = _settings.store_and_key(self.kind, path)
        if self.kind == "file" and os.path.isfile("/" + key):
            raise FileNotFoundError(2, "there is a file here but no blob: use put_file to store one elsewhere", path)
        return native_store(self.kind, bucket, self.store_options), key

    def _to_write(self, path):
        path = self._strip_protocol(path)
        if _settings.split_version(path)[1] or self.default_version:
            raise ValueError(f"{path}: a version never changes: remove the version")
        try:
            store, key = self._plain(path)
        except FileNotFoundError as error:
            raise FileExistsError(17, "there is a file here but no blob: choose another path", path) from error
        if not key:
            raise ValueError(f"'{path}' has no key after the bucket")
        return store, key

    def _path_of(self, path, key):
        """Returns the path of a key that was listed below `path`."""
        if self.kind == "file":
            return "/" + key
        if self.kind == "memory":
            return "/" + key if path.startswith("/") else key
        return path.lstrip("/").partition("/")[0] + "/" + key

    # Pickles and other representations

    def _public(self):
        options = {name: value for name, value in self.storage_options.items() if name != "from_pickle"}
        public, name = _settings.hide({**options, **self.store_options})
        if name is not None:
            public["from_pickle"] = name
        return public

    def __reduce__(self):
        return _unpickle, (type(self), self.storage_args, self._public())

    def to_dict(self, *, include_password=True):
        """As fsspec's, but never with secrets."""
        public = {name: value for name, value in self._public().items() if name != "from_pickle" and value is not None}
        name = f"{type(self).__module__}:{type(self).__name__}"
        return {"cls": name, "protocol": self.protocol, "args": self.storage_args, **public}

    def to_json(self, *, include_password=True):
        """As fsspec's, but never with secrets."""
        return json.dumps(self.to_dict())

    # Listing

    def _described(self, path, info):
        return {
            "name": path, "size": info["size"], "type": "file", "version": info["version"], "created": info["created"],
            "mtime": info["created"], "incarnation": info["incarnation"], "message": info["message"],
        }

    async def _info(self, path, **kwargs):
        path = self._strip_protocol(path)
        store, key, at = self._split(path)
        loop = asyncio.get_running_loop()
        if key:
            try:
                return self._described(path, await store.info(key, at, event_loop=loop))
            except FileNotFoundError:
                if at:
                    raise
        if not key or await store.has_blobs(key, event_loop=loop):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(2, "there is no blob and no directory", path)

    async def _ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path)
        store, key = self._plain(path)
        blobs, directories = await store.list(key, event_loop=asyncio.get_running_loop())
        found = [self._described(self._path_of(path, info["key"]), info) for info in blobs]
        found += [{"name": self._path_of(path, name), "size": 0, "type": "directory"} for name in directories]
        if not found:
            one = await self._info(path)
            if one["type"] == "file":
                found = [one]
        found.sort(key=lambda info: info["name"])
        return found if detail else [info["name"] for info in found]

    async def _exists(self, path, **kwargs):
        try:
            await self._info(path)
            return True
        except FileNotFoundError:
            return False

    async def _isdir(self, path):
        try:
            return (await self._info(path))["type"] == "directory"
        except FileNotFoundError:
            return False

    async def _isfile(self, path):
        try:
            return (await self._info(path))["type"] == "file"
        except FileNotFoundError:
            return False

    async def _modified(self, path):
        return datetime.fromtimestamp((await self._info(path))["mtime"], UTC)

    def modified(self, path):
        """Returns the time of the version's commit."""
        return fsspec.asyn.sync(self.loop, self._modified, path)

    created = modified

    def ukey(self, path):
        """Returns an identity of the version's content, so that caches never become stale."""
        info = self.info(path)
        return tokenize(info["incarnation"], info["version"])

    checksum = ukey

    # Reading

    async def _cat_file(self, path, start=None, end=None, **kwargs):
        store, key, at = self._split(path)
        ranges = [(start or 0, end)]
        return _first(await store.read_ranges(key, at, ranges, event_loop=asyncio.get_running_loop()))

    async def _cat_ranges(self, paths, starts, ends, max_gap=None, batch_size=None, on_error="return", **kwargs):
        """Reads many ranges of many blobs, with one native call for each blob."""
        if not isinstance(paths, (list, tuple)):
            raise TypeError("paths must be a list")
        # Arrays are accepted, too.
        starts, ends = (list(one) if isinstance(one, Iterable) else [one] * len(paths) for one in (starts, ends))
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("paths, starts and ends are not of one length")
        by_path = {}
        for index, path in enumerate(paths):
            by_path.setdefault(path, []).append(index)
        results = [None] * len(paths)
        loop = asyncio.get_running_loop()

        async def read(path, indexes):
            try:
                store, key, at = self._split(path)
                ranges = [(starts[index] or 0, ends[index]) for index in indexes]
                found = await store.read_ranges(key, at, ranges, event_loop=loop)
            except Exception as error:  # it is the result of each of its ranges
                found = [error] * len(indexes)
            for index, result in zip(indexes, found, strict=True):
                results[index] = result

        reads = [read(path, indexes) for path, indexes in by_path.items()]
        await _run_coros_in_chunks(reads, batch_size=batch_size or self.batch_size or 8, nofiles=True)
        if on_error != "return":
            for result in results:
                if isinstance(result, Exception):
                    raise result
        return results

    async def _get_file(self, rpath, lpath, callback=DEFAULT_CALLBACK, **kwargs):
        loop = asyncio.get_running_loop()
        store, key, at = self._split(rpath)
        if not key or await self._isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        version = await store.version(key, at, event_loop=loop)
        callback.set_size(version.size)
        own = not hasattr(lpath, "write")
        if own:
            os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        out = open(lpath, "wb") if own else lpath  # closed below

        # Only a regular file can have holes.
        is_sparse = own and stat.S_ISREG(os.fstat(out.fileno()).st_mode)

        async def part(at):
            start = await version.next_data(at, event_loop=loop) if is_sparse else at
            if start == version.size:
                return start, b""
            start -= (start - at) % COPY_BYTES
            return start, await version.read(start, start + COPY_BYTES, event_loop=loop)

        def write(start, data):
            if is_sparse:
                out.seek(start)
            out.write(data)

        at, coming = 0, asyncio.ensure_future(part(0))
        try:
            while at < version.size:
                start, data = await coming
                before, at = at, start + len(data)
                # The next part is fetched while this one is written.
                coming = asyncio.ensure_future(part(at))
                await asyncio.to_thread(write, start, data)
                callback.relative_update(at - before)
            if is_sparse:
                out.truncate(version.size)
        finally:
            coming.cancel()
            if own:
                out.close()

    # Writing

    async def _pipe_file(self, path, value, mode="overwrite", **kwargs):
        store, key = self._to_write(path)
        how = mode if mode in ("append", "create") else "put"
        message = kwargs.get("message", "")
        await store.write(key, how, 0, octets(value), message, self.properties, event_loop=asyncio.get_running_loop())

    async def _put_file(self, lpath, rpath, callback=DEFAULT_CALLBACK, mode="overwrite", **kwargs):
        if os.path.isdir(lpath):
            return
        store, key = self._to_write(rpath)
        how = "create" if mode == "create" else "put"
        if mode == "create" and await self._isfile(rpath):
            # Checked before the upload. The log decides in the end.
            raise FileExistsError(17, "there is a blob already", rpath)
        callback.set_size(os.path.getsize(lpath))

        def copy():
            if os.path.getsize(lpath) <= BLOCK_BYTES:
                with open(lpath, "rb") as file:
                    data = file.read()
                store.write(key, how, 0, data, kwargs.get("message", ""), self.properties)
                callback.relative_update(len(data))
                return
            upload = Upload(store.upload(key, self.properties))
            with open(lpath, "rb", buffering=0) as file:
                for piece in _holes.pieces(file, BLOCK_BYTES):
                    callback.relative_update(upload.zeroes(piece) if isinstance(piece, int) else upload.write(piece))
            part = upload.stage()
            store.commit(key, how, [(0, part.data)], kwargs.get("message", ""))

        await asyncio.to_thread(copy)

    async def _cp_file(self, path1, path2, **kwargs):
        store, key, at = self._split(path1)
        if not key or await self._isdir(path1):
            return
        target, target_key = self._to_write(path2)
        await store.copy(key, at, target, target_key, self.properties, event_loop=asyncio.get_running_loop())

    async def _rm_file(self, path, **kwargs):
        store, key = self._to_write(path)
        await store.remove(key, event_loop=asyncio.get_running_loop())

    async def _rm(self, path, recursive=False, batch_size=None, maxdepth=None, **kwargs):
        paths = path if isinstance(path, list) else [path]
        expanded = await self._expand_path(paths, recursive=recursive, maxdepth=maxdepth)
        kinds = await asyncio.gather(*[self._isfile(one) for one in expanded])
        files = [one for one, is_file in zip(expanded, kinds, strict=True) if is_file]
        if not files and not recursive:
            raise FileNotFoundError(2, "there is no blob", ", ".join(map(str, paths)))
        await _run_coros_in_chunks([self._rm_file(one) for one in files], batch_size=batch_size or 8, nofiles=True)

    async def _mkdir(self, path, create_parents=True, **kwargs):
        """Does nothing: a directory exists when there is a blob below it."""

    async def _makedirs(self, path, exist_ok=False):
        """Does nothing: a directory exists when there is a blob below it."""

    async def _rmdir(self, path):
        if await self._isdir(path) and await self._ls(path, detail=False):
            raise OSError(39, "the directory is not empty", path)

    def touch(self, path, truncate=True, **kwargs):
        """Creates an empty blob, or an empty version of one."""
        if truncate or not self.exists(path):
            self.pipe_file(path, b"")

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **kwargs):
        if mode not in {"rb", "wb", "ab", "xb"}:
            raise ValueError(f"mode {mode} is not supported: rb, wb, ab, xb, and write() for a range")
        return ShaleFile(self, path, mode, block_size or self.block_bytes, autocommit=autocommit, cache_options=cache_options, **kwargs)

    # Methods that are specific to blobs

    def blob(self, path):
        """Returns the blob of a path."""
        path, at = _settings.split_version(self._strip_protocol(path))
        at = at or self.default_version
        slash = "/" if self.kind == "file" and not path.startswith("/") else ""
        blob = Blob(f"shale+{self.kind}://{slash}{path}", **self.store_options)
        blob.at, blob.properties = at, self.properties
        return blob

    def write(self, path, offset, data, message=""):
        """Overwrites a range, as one version."""
        return self.blob(path).write(offset, data, message)

    def append(self, path, data, message=""):
        """Appends bytes at the end, as one version; the result has the offset."""
        return self.blob(path).append(data, message)

    def log(self, path):
        """Returns all records of a blob, oldest first."""
        return self.blob(path).log()

    def versions(self, path):
        """Returns the versions that can be read, oldest first."""
        return self.blob(path).versions()

    def tags(self, path):
        """Returns {name: version}."""
        return self.blob(path).tags()

    def tag(self, path, name):
        """Tags the version of a path, which is then kept."""
        self.blob(path).tag(name)

    def untag(self, path, name):
        """Removes a tag."""
        self.blob(path).untag(name)

    def verify(self, path):
        """Checks every byte of a version."""
        return self.blob(path).verify()


def _first(results):
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


def _unpickle(cls, args, options):
    return cls(*args, **options)


class ShaleS3FileSystem(ShaleFileSystem):
    """Blobs in a bucket of S3, or of a server with the same protocol."""

    protocol, kind = "shale+s3", "s3"


class ShaleGSFileSystem(ShaleFileSystem):
    """Blobs in a bucket of Google Cloud Storage."""

    protocol, kind = "shale+gs", "gs"


class ShaleAzFileSystem(ShaleFileSystem):
    """Blobs in a container of Azure Blob Storage."""

    protocol, kind = "shale+az", "az"


class ShaleLocalFileSystem(ShaleFileSystem):
    """Blobs in directories of this machine."""

    protocol, kind = "shale+file", "file"


class ShaleMemoryFileSystem(ShaleFileSystem):
    """Blobs in the memory of this process, for tests."""

    protocol, kind = "shale+memory", "memory"


class ShaleFile(AbstractBufferedFile):
    """A version being read, or the content of one being written. `committed` is the result of a write."""

    def __init__(self, fs, path, mode="rb", block_size=BLOCK_BYTES, autocommit=True, cache_type=caching.NativeReadAhead.name,
                 cache_options=None, size=None, message="", **kwargs):
        # A failure below must leave a file that can be closed.
        self.fs, self.mode = fs, mode
        self.message, self.committed = message, None
        # Whether a compression layer was closed, which does not close the file below it.
        self._is_ended = False
        self._version, self._reader, self._upload, self._part = None, None, None, None
        if mode == "rb":
            store, key, at = fs._split(path)
            self._version = store.version(key, at)
            size = self._version.size
            self._details = fs._described(path, {
                "size": size, "version": self._version.version, "created": self._version.created,
                "incarnation": self._version.incarnation, "message": "",
            })
        elif mode == "xb" and fs.isfile(path):
            # Checked before anything is written. The log decides when the file is closed.
            raise FileExistsError(17, "there is a blob already", path)
        else:
            fs._to_write(path)
        super().__init__(fs, path, mode, block_size, autocommit, cache_type, cache_options, size, **kwargs)
        if mode == "rb" and isinstance(self.cache, caching.NativeReadAhead):
            self._reader = self._version.reader(self.cache.read_ahead)

    @property
    def version(self):
        """The number of the version that is being read, or was written."""
        return self._version.version if self._version else self.committed and self.committed.version

    def _fetch_range(self, start, end):
        reader = self._reader or self._version
        return reader.read(start, end)

    def _initiate_upload(self):
        # A small file is written in one piece, so that it may stay in the version's record.
        pass

    def write(self, data):
        """Writes bytes; returns their number."""
        self._is_ended = _is_layer_closed()
        return super().write(data)

    def _upload_chunk(self, final=False):
        store, key = self.fs._to_write(self.path)
        data = self.buffer.getvalue()
        if final and self._upload is None and self.autocommit:
            self.committed = Committed(*store.write(key, HOW[self.mode], 0, data, self.message, self.fs.properties))
            return True
        if self._upload is None:
            self._upload = Upload(store.upload(key, self.fs.properties))
        self._upload.write(data)
        if final:
            self._part, self._upload = self._upload.stage(), None
            if self.autocommit:
                self.commit()
        return True

    def commit(self):
        """Makes a version from the written bytes."""
        if self._part is not None:
            store, key = self.fs._to_write(self.path)
            self.committed = Committed(*store.commit(key, HOW[self.mode], [(0, self._part.data)], self.message))
            self._part = None

    def discard(self):
        """Discards the written bytes: the blob does not change."""
        if self._upload is not None:
            self._upload.abort()
        self._upload = self._part = None

    def close(self):
        """Closes it: a written file becomes a version, unless an exception has left its block."""
        if self.mode != "rb" and not self.closed and _left_by_exception():
            self.discard()
            self.closed = True
            return
        super().close()
        if self._reader is not None:
            self._reader.close()

    def _dealloc_warn(self, source):
        # The text layer above is being dropped: Python announces that before the layer writes its
        # rest and closes the layers below.
        if self.mode != "rb":
            self._drop()

    def __del__(self):
        if self.closed:
            return
        if self.mode == "rb" or self._is_ended:
            self.close()
        else:
            self._drop()

    def _drop(self):
        """Discards a file that was never closed, because it may be incomplete."""
        self.discard()
        self.closed = True
        warnings.warn(f"{self.path} was not closed: its content is not committed", ResourceWarning, stacklevel=3, source=self)

    def __exit__(self, kind, error, trace):
        if kind is not None and self.mode != "rb":
            self.discard()
            self.closed = True
            return
        self.close()


def _is_layer_closed():
    """Returns whether the write comes from a compression layer that a program closes, and not from one that Python drops."""
    frame = sys._getframe(2)
    for _ in range(CLOSING_FRAMES_MAX):
        if frame is None:
            return False
        layer = frame.f_locals.get("self") if frame.f_code.co_name == "close" else None
        if isinstance(layer, io.IOBase):
            is_dropped = frame.f_back is not None and frame.f_back.f_code.co_name == "__del__"
            # A text layer above that Python drops closes the compression layer below it.
            above = [layer, *(one for one in gc.get_referrers(layer) if isinstance(one, io.IOBase))]
            return not is_dropped and not any(getattr(one, "_finalizing", False) for one in above)
        frame = frame.f_back
    return False


def _left_by_exception():
    """Returns whether `with fsspec.open(...)` closes the file because of an exception, which fsspec does not pass to its files."""
    frame = sys._getframe(1)
    for _ in range(CLOSING_FRAMES_MAX):
        frame = frame.f_back
        if frame is None:
            return False
        if frame.f_code is OpenFile.__exit__.__code__:
            return any(isinstance(value, BaseException) for value in frame.f_locals.get("args", ()))
    return False
