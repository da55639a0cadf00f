"""Exceptions that Python has no class for. What is not here is one of Python's own: FileNotFoundError,
FileExistsError, PermissionError, ValueError."""


class ShaleError(OSError):
    """An operation on a blob failed."""


class VersionNotFoundError(ShaleError, FileNotFoundError):
    """The blob has no such version or tag, or the version was given up."""


class StoreError(ShaleError):
    """The store failed again and again: try later."""


class DamagedError(ShaleError):
    """Stored bytes do not match their checksum, twice. The message names the object."""


class UploadTooOldError(ShaleError):
    """The upload took longer than `gc` lets uploads take: upload again."""


class UnsafeStoreError(ShaleError):
    """The store does not create objects atomically, and commits would be lost: use another one."""


class OutcomeUnknownError(ShaleError):
    """The store did not say whether the commit was done. `operation` names it: the log shows it later."""

    def __init__(self, errno=None, strerror=None, operation=None):
        super().__init__(errno, strerror)
        self.operation = operation

    def __reduce__(self):
        return type(self), (self.errno, self.strerror, self.operation)
