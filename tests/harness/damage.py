"""Damage in data files: of all copies of a place, or of one. Owns no test's expectations."""

# Bytes before and after a place that tell its copies from other data.
NEAR = 16
# Data and its copies, and once more what was moved.
COPIES_MAX = 5


def copies_of(content, at):
    """Places in a data file of the byte at `at` and of its copies, which are between the same bytes; only `at`, if other data looks like that."""
    near = content[max(at - NEAR, 0) : at + NEAR + 1]
    if len(set(near)) == 1:
        return [at]
    places, found = [], content.find(near)
    while found >= 0 and len(places) <= COPIES_MAX:
        places.append(found + min(at, NEAR))
        found = content.find(near, found + 1)
    return places if len(places) <= COPIES_MAX else [at]


def change(path, places, bit):
    """Inverts bits of the bytes at some places of a file."""
    with open(path, "r+b") as file:
        for at in places:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ bit]))
