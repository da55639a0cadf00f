"""Holes of local files: what a file has between them, and how long they are. Reading and storing zeroes takes time and says
nothing."""

import errno
import os

# Shorter holes are read: asking for them costs as much.
HOLE_BYTES = 1 << 20


def pieces(file, step):
    """The content of a file that is opened without a buffer, in order: bytes, at most `step` of them, or a number of zeroes."""
    at = 0
    while True:
        data = _next_data(file, at)
        # Data goes on at a multiple of what holes are looked for in.
        skipped = data - at if data == os.fstat(file.fileno()).st_size else (data - at) // HOLE_BYTES * HOLE_BYTES
        if skipped:
            yield skipped
            at += skipped
        # Only a read tells where a file ends.
        found = _read(file, at, step)
        if found:
            yield found
        if len(found) < step:
            return
        at += len(found)


def _next_data(file, at):
    """The first byte from `at` on that is not surely in a hole; the size of the file if there is none."""
    if not hasattr(os, "SEEK_DATA"):
        return at
    size = os.fstat(file.fileno()).st_size
    try:
        return os.lseek(file.fileno(), at, os.SEEK_DATA)
    except OSError as error:
        # Nothing but a hole is left, if nobody has just cut the file; else the file system does not tell.
        is_hole = error.errno == errno.ENXIO and size > at and size == os.fstat(file.fileno()).st_size
        return size if is_hole else at


def _read(file, at, length):
    """So many bytes of a file, or fewer if it ends before."""
    file.seek(at)
    parts = []
    while length and (data := file.read(length)):
        parts.append(data)
        length -= len(data)
    return b"".join(parts)
