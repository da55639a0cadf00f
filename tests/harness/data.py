"""Data that looks like what people store: texts, source code, log lines, records, random bytes, made by seeded generators.

The same bytes on every machine: a test whose outcome depends on how well data compresses must not take the machine's own files.
Owns no test's expectations. Nothing here is zeros or one repeated block: both compress to nothing and prove nothing.
"""

import functools
import itertools
import random
import shutil
import struct
from pathlib import Path

PIECE_BYTES = 16 << 10
# Records come first: no type of file begins so. Of eight pieces four are text, two are log lines, one is binary records, and one is random bytes.
TURNS = ("records", "text", "lines", "text", "text", "lines", "text", "random")
# Data that compresses to less than half.
PLAIN = ("records", "text", "lines")
# Bytes of mixed data that are made anew; a longer file has them again, each block of 4 KiB with a number of its own.
BASE_BYTES = 8 << 20
BLOCK_BYTES = 4096


def random_file(path, size, seed=1):
    """Bytes that no codec makes smaller."""
    generator = random.Random(seed)
    with open(path, "wb") as file:
        left = size
        while left:
            piece = min(left, 1 << 20)
            file.write(generator.randbytes(piece))
            left -= piece
    return path


@functools.cache
def vocabulary():
    """Words, and how often each comes: a few of them often, as in a language."""
    generator = random.Random(7)
    words = ["".join(generator.choices("etaoinshrdlucmfwypvbgk", k=generator.randint(2, 10))) for _ in range(4096)]
    return words, list(itertools.accumulate(1 / (rank + 3) for rank in range(len(words))))


def text(generator, size):
    """Lines of words."""
    words, weights = vocabulary()
    chosen = generator.choices(words, cum_weights=weights, k=size // 5 + 16)
    for at in range(11, len(chosen), 12):
        chosen[at] += "\n"
    return " ".join(chosen).encode()[:size]


def lines(generator, size):
    """A log of a server."""
    words, _ = vocabulary()
    second, out = 1_700_000_000 + generator.randrange(1 << 20), []
    for _ in range(size // 40 + 1):
        second += generator.randrange(3)
        status = generator.choice((200, 200, 200, 304, 404))
        out.append(f"{second} 10.0.0.{generator.randrange(250)} GET /{words[generator.randrange(64)]}/index.html {status} {generator.randrange(20_000)}\n")
    return "".join(out).encode()[:size]


def records(generator, size):
    """Binary records with rising numbers."""
    number, out = generator.randrange(1 << 24), []
    for _ in range(size // 24 + 1):
        number += generator.randint(1, 4)
        out.append(struct.pack("<IIQQ", number, generator.randrange(1000), generator.randrange(1 << 40), 0))
    return b"".join(out)[:size]


def noise(generator, size):
    """Random bytes."""
    return generator.randbytes(size)


MAKERS = {"text": text, "lines": lines, "records": records, "random": noise}


@functools.cache
def base(turns):
    """Data of some kinds, in which no piece comes twice."""
    generator = random.Random(11)
    pieces = (MAKERS[kind](generator, PIECE_BYTES) for kind in itertools.cycle(turns))
    return b"".join(itertools.islice(pieces, BASE_BYTES // PIECE_BYTES))


def mixed_file(path, size, turns=TURNS):
    """`size` bytes of mixed kinds."""
    with open(path, "wb") as out:
        for turn in itertools.count():
            left = size - out.tell()
            if left <= 0:
                return path
            piece = bytearray(base(turns)[: min(left, BASE_BYTES)])
            if turn:
                for at in range(0, len(piece) - 16, BLOCK_BYTES):
                    piece[at : at + 16] = b"%16d" % (turn * BASE_BYTES + at)
            out.write(piece)
    return path


def source(generator, size):
    """A file of a program: functions that resemble one another."""
    words, _ = vocabulary()
    out, length = [], 0
    while length < size:
        name, other = (words[generator.randrange(600)] for _ in range(2))
        function = (
            f"/* Returns the {words[generator.randrange(600)]} of a {other}. */\n"
            f"static int {name}_{other}(struct {other} *{other}, size_t count)\n{{\n"
            f"    for (size_t i = 0; i < count; i++) {{\n"
            f"        if ({other}[i].{name} > {generator.randrange(5000)})\n            return -E{words[generator.randrange(40)].upper()};\n"
            f"    }}\n    return {generator.randrange(100)};\n}}\n\n"
        )
        out.append(function)
        length += len(function)
    return "".join(out).encode()[:size]


def source_tree(directory, size):
    """Makes a tree of source code and documentation of at least `size` bytes: many small files in many directories."""
    generator = random.Random(13)
    words, _ = vocabulary()
    made = number = 0
    while made < size:
        place = Path(directory, *(words[generator.randrange(12)] for _ in range(generator.randint(1, 4))))
        place.mkdir(parents=True, exist_ok=True)
        length = min(int(generator.lognormvariate(8.3, 1.3)), 1 << 20)
        kind = generator.choice((".c", ".c", ".h", ".txt", ".md", ".rs", ".json"))
        content = text(generator, length) if kind in {".txt", ".md"} else source(generator, length)
        (place / f"{words[generator.randrange(4000)]}-{number}{kind}").write_bytes(content)
        made, number = made + length, number + 1
    return made


def disk_image(t, path, size, content_bytes):
    """A disk image: a sparse file with an ext4 in it that holds real files."""
    content = t.dir / "image-content"
    source_tree(content, content_bytes)
    with open(path, "wb") as file:
        file.truncate(size)
    t.run("mkfs.ext4", "-q", "-F", "-d", content, path)
    shutil.rmtree(content)
    return path
