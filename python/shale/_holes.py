"""Holes of local files: their lengths, and the data between them. Reading and storing their zeroes would only take time."""

import errno
import os

# Shorter holes are read: detecting them costs as much.
HOLE_BYTES = 1 << 20


def pieces(file, step):
    """Yields the content of a file opened without a buffer, in order: bytes, at most `step` at a time, or a number of zeroes."""
    at = 0
    while True:
        data = _next_data(file, at)
        # Data resumes at a multiple of the size of the smallest hole.
        skipped = data - at if data == os.fstat(file.fileno()).st_size else (data - at) // HOLE_BYTES * HOLE_BYTES
        if skipped:
            yield skipped
            at += skipped
        # Only a read can find the end of a file.
        found = _read(file, at, step)
        if found:
            yield found
        if len(found) < step:
            return
        at += len(found)


def _next_data(file, at):
    """Returns the first byte from `at` on that may be outside of a hole; the size of the file if there is none."""
    if not hasattr(os, "SEEK_DATA"):
        return at
    size = os.fstat(file.fileno()).st_size
    try:
        return os.lseek(file.fileno(), at, os.SEEK_DATA)
    except OSError as error:
        # Only a hole is left, unless the file has just been truncated; otherwise the file system
        # cannot report holes.
        is_hole = error.errno == errno.ENXIO and size > at and size == os.fstat(file.fileno()).st_size
        return size if is_hole else at


def _read(file, at, length):
    """Reads this many bytes of a file, or fewer if it ends before."""
    file.seek(at)
    parts = []
    while length and (data := file.read(length)):
        parts.append(data)
        length -= len(data)
    return b"".join(parts)
