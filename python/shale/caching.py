"""How a file reads ahead: a reader that jumps gets what it asks for, to the end of the frame; one that goes on where it
was gets twice as much each time. The library below keeps the frames that it decoded, so jumping back costs no request.
"""

from fsspec.caching import BaseCache, register_cache

# Bytes of a frame of a blob: less is never fetched.
FRAME_BYTES = 128 << 10


class GrowingReadAhead(BaseCache):
    """Keeps the bytes that were fetched last. `blocksize` is the most that is read ahead."""

    name = "shale"

    def __init__(self, blocksize, fetcher, size):
        super().__init__(blocksize, fetcher, size)
        self.start, self.buffer, self.ahead = 0, b"", 0

    def _fetch(self, start, end):
        start = start or 0
        end = self.size if end is None else min(end, self.size)
        if start >= end:
            return b""
        held_to = self.start + len(self.buffer)
        if self.start <= start and end <= held_to:
            self.hit_count += 1
            return self.buffer[start - self.start:end - self.start]
        goes_on = bool(self.buffer) and self.start <= start <= held_to
        self.ahead = min(max(FRAME_BYTES, 2 * self.ahead), self.blocksize) if goes_on else 0
        stop = min(self.size, -(-(end + self.ahead) // FRAME_BYTES) * FRAME_BYTES)
        kept = self.buffer[start - self.start:] if goes_on else b""
        fetched = self.fetcher(start + len(kept), stop)
        self.miss_count += 1
        self.total_requested_bytes += len(fetched)
        self.start, self.buffer = start, kept + fetched if kept else fetched
        return self.buffer if len(self.buffer) == end - start else self.buffer[:end - start]


register_cache(GrowingReadAhead, clobber=True)
