"""Blobs: versioned, compressed byte sequences on an object store.

    import fsspec, shale
    with fsspec.open("shale+s3://bucket/key@3") as file:
        file.read(100)
    blob = shale.Blob("shale+s3://bucket/key")
    blob.append(b"more")
"""

from . import _ending
from ._native import __version__
from .blob import Blob, Committed, Staged, Upload
from .errors import DamagedError, OutcomeUnknownError, ShaleError, StoreError, UnsafeStoreError, UploadTooOldError, VersionNotFoundError
from .filesystem import ShaleFile, ShaleFileSystem, register

register()
_ending.register()

__all__ = [
    "Blob", "Committed", "DamagedError", "OutcomeUnknownError", "ShaleError", "ShaleFile", "ShaleFileSystem", "Staged", "StoreError",
    "UnsafeStoreError", "Upload", "UploadTooOldError", "VersionNotFoundError", "__version__", "register",
]
