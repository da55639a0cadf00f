"""Exceptions that Python has no class for. All other errors are Python's own: FileNotFoundError,
FileExistsError, PermissionError, ValueError."""


class ShaleError(OSError):
    """An operation on a blob failed."""


class VersionNotFoundError(ShaleError, FileNotFoundError):
    """The blob has no such version or tag, or the version has expired."""


class StoreError(ShaleError):
    """The store failed repeatedly: try later."""


class DamagedError(ShaleError):
    """Stored bytes failed their checksum twice. The message names the object."""


class UploadTooOldError(ShaleError):
    """The upload took longer than `gc` allows: upload again."""


class UnsafeStoreError(ShaleError):
    """The store does not create objects atomically, so commits could be lost: use another store."""


class OutcomeUnknownError(ShaleError):
    """The store did not report whether the commit was done. `operation` names it: look it up in the log later."""

    def __init__(self, errno=None, strerror=None, operation=None):
        super().__init__(errno, strerror)
        self.operation = operation

    def __reduce__(self):
        return type(self), (self.errno, self.strerror, self.operation)
