"""Data that looks like what people store. Real files of the machine, and bytes of a seeded generator where none will do.

Owns no test's expectations. Nothing here is zeros or one repeated block: both compress to nothing and prove nothing.
"""

import os
import random
import shutil
from pathlib import Path


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


def source_roots():
    """Directories with source code and documentation that are on every machine that built this."""
    cargo = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")) / "registry" / "src"
    return [p for p in [*sorted(cargo.glob("*")), Path("/usr/include"), Path("/usr/share/perl"),
                        Path("/usr/lib/python3.11")] if p.is_dir()]


def program_roots():
    """Directories with programs, libraries and data."""
    return [p for p in map(Path, ["/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/sbin", "/usr/share"]) if p.is_dir()]


def files_of(roots):
    """Regular files under directories, in a fixed order."""
    for root in roots:
        for directory, directories, files in os.walk(root):
            directories.sort()
            for name in sorted(files):
                path = Path(directory) / name
                if path.is_file() and not path.is_symlink():
                    yield path


def real_file(path, size, roots=None):
    """`size` bytes of real files, one after the other; from the start again where they do not suffice."""
    with open(path, "wb") as out:
        while out.tell() < size:
            before = out.tell()
            for source in files_of(roots or program_roots() + source_roots()):
                with open(source, "rb") as file:
                    out.write(file.read(size - out.tell()))
                if out.tell() >= size:
                    break
            if out.tell() == before:
                raise RuntimeError("no real files on this machine to make test data of")
    return path


def source_tree(directory, size):
    """Copies source code until `size` bytes are there: many small files in many directories."""
    copied = 0
    for root in source_roots():
        for source in files_of([root]):
            if copied >= size:
                return copied
            target = Path(directory) / root.name / source.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            copied += source.stat().st_size
    return copied


def disk_image(t, path, size, content_bytes):
    """A disk image: a sparse file with an ext4 in it that holds real files."""
    content = t.dir / "image-content"
    source_tree(content, content_bytes)
    with open(path, "wb") as file:
        file.truncate(size)
    t.run("mkfs.ext4", "-q", "-F", "-d", content, path)
    shutil.rmtree(content)
    return path
