"""How a file reads: the library below reads ahead in the background while a program reads sequentially, and drops that when
the program seeks. So this cache of fsspec's kind stores nothing itself. fsspec's other kinds (`cache_type="readahead"`,
"background", "all", ...) work as well, with reads of their own sizes.
"""

from fsspec.caching import BaseCache, register_cache

# Most bytes that a file reads ahead and holds.
READ_AHEAD_BYTES = 24 << 20


class NativeReadAhead(BaseCache):
    """Passes each read to the library. `read_ahead`: most bytes to read ahead; 0 for none."""

    name = "shale"

    def __init__(self, blocksize, fetcher, size, read_ahead=READ_AHEAD_BYTES):
        super().__init__(blocksize, fetcher, size)
        self.read_ahead = read_ahead

    def _fetch(self, start, end):
        start = start or 0
        end = self.size if end is None else min(end, self.size)
        if start >= end:
            return b""
        self.miss_count += 1
        self.total_requested_bytes += end - start
        return self.fetcher(start, end)


register_cache(NativeReadAhead, clobber=True)
