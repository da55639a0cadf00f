"""Cleanup before the interpreter ends."""

import atexit
import sys
import time

READERS_S = 0.05


def _let_readers_go():
    """Waits briefly with the interpreter's lock released, for threads of pyarrow.

    They release the bytes of a file a little after the read that requested them. An interpreter that ends kills a thread that
    does so, and the process aborts with the thread, on every file system written in Python: apache/arrow#34314.
    """
    if "pyarrow" in sys.modules:
        time.sleep(READERS_S)


def register():
    """Registers the cleanup."""
    atexit.register(_let_readers_go)
