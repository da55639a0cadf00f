"""What happens before the interpreter ends."""

import atexit
import sys
import time

READERS_S = 0.05


def _let_readers_go():
    """Gives threads of pyarrow a moment in which the interpreter is free.

    They let go of the bytes of a file a little after the read that asked for them. The interpreter kills a thread that comes for
    that when it ends, and the process aborts with the thread, on every file system that is written in Python: apache/arrow#34314.
    """
    if "pyarrow" in sys.modules:
        time.sleep(READERS_S)


def register():
    """Has it done."""
    atexit.register(_let_readers_go)
