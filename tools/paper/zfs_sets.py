"""The data of the thesis' experiments and of file sets by kind, made of public packages: the sets that it had, and those that users have."""

import mailbox
import os
import random
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import zfs_browser
from lab import ROOT, data, output

KINDS = ["kernel", "home", "mail", "web", "science", "browser", "packages"]
WEB = (["wordpress", "python3.11-doc", "libjs-bootstrap4"], ["libjs-bootstrap4"])
SCIENCE = (["ferret-datasets", "gmt-gshhg-low"], ["ferret-datasets"])
PACKAGES = (["python3-pip-whl", "python3-setuptools-whl", "libguava-java", "libcommons-lang3-java", "libbcprov-java"], ["python3-setuptools-whl", "libcommons-lang3-java"])
PHOTOS = (["gnome-backgrounds", "python-matplotlib-data"], ["python-matplotlib-data"])
TPCH_SCALE = "0.05"
# A message of the collection begins with this line.
MESSAGE = b"\nFrom list@example.org"


def files_below(*directories):
    """Regular files, in the order of their names."""
    return sorted(p for d in directories for p in Path(d).rglob("*") if p.is_file() and not p.is_symlink() and p.stat().st_size)


def pick(files, limit):
    """Files by chance, always the same and whatever their size, until the next one would not fit into `limit` bytes; in the order of their names."""
    chosen, left = [], limit
    for file in random.Random(2015).sample(files, len(files)):
        left -= file.stat().st_size
        if left < 0:
            break
        chosen.append(file)
    return sorted(chosen)


def fill(files, limit):
    """Of a few large files those that fit into `limit` bytes, the largest first."""
    chosen, left = [], limit
    for file in sorted(files, key=lambda f: f.stat().st_size, reverse=True):
        if file.stat().st_size <= left:
            chosen.append(file)
            left -= file.stat().st_size
    return chosen


def take(files, base, target):
    """Copies files to a directory, with their paths below `base`."""
    for file in files:
        to = target / file.relative_to(base)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, to)


def kernel_tree(lab):
    """A Linux kernel tree; in a quick run sources of this machine."""
    if not lab.quick:
        tree = data.CACHE.parent / "shale-demo" / "linux"
        output(ROOT / "tools/public-data", "kernel", tree)
        return tree
    tree = lab.work / "sources"
    if not tree.exists():
        sys.path.insert(0, str(ROOT / "tests"))
        from harness import data as machine
        machine.source_tree(tree, 8 << 20)
        lab.report.note("quick: the kernel tree is sources of this machine")
    return tree


def of_packages(names, ends=None):
    """Files of packages, those whose names end so."""
    return [f for n in names for f in files_below(data.package(n)) if not ends or f.name.lower().endswith(ends)]


def kernel(lab, target, limit):
    """Part of a kernel tree: files by chance from all of it."""
    tree = kernel_tree(lab)
    take(pick(files_below(tree), limit), tree, target)


def messages(limit):
    """Messages of a public collection, one by one."""
    text, at = data.mail().read_bytes(), 0
    while at < min(limit, len(text)):
        end = text.find(MESSAGE, at + 1)
        end = end + 1 if end >= 0 else len(text)
        yield text[at:end]
        at = end


def mail(lab, target, limit):
    """A Maildir with half of it, and mboxes with the rest, as mail servers and clients keep mail."""
    half, written = limit // 2, 0
    box, count = target / "archive.mbox", 0
    folder = mailbox.Maildir(target / "Maildir", create=True)
    with open(box, "wb") as out:
        for message in messages(limit):
            if written < half:
                with open(Path(target) / "Maildir" / "cur" / f"{count:06}.M1P1.host:2,S", "wb") as file:
                    file.write(message.split(b"\n", 1)[1])
                count += 1
            else:
                out.write(message)
            written += len(message)
    folder.close()


def web(lab, target, limit):
    """Documents and scripts of web servers, with their pictures."""
    for name in WEB[lab.quick]:
        package = data.package(name)
        take(pick(files_below(package), limit // len(WEB[lab.quick])), package, target / name)


def science(lab, target, limit):
    """Climate data as NetCDF, the same as HDF5, and tables as parquet."""
    target.mkdir(parents=True, exist_ok=True)
    found = of_packages(SCIENCE[lab.quick], (".cdf", ".nc"))
    for file in fill(found, limit // 2):
        shutil.copyfile(file, target / f"{file.stem}.nc")
    for file in fill(found, limit // 4):
        # Plain HDF5, and one in three with its own compression.
        deflate = "5" if len(list(target.glob("*.h5"))) % 3 == 2 else "0"
        done = subprocess.run(["nccopy", "-k", "nc4", "-d", deflate, file, target / f"{file.stem}.h5"], capture_output=True, check=False)
        if done.returncode:
            lab.report.note(f"nccopy did not turn {file.name} into HDF5")
    if not lab.quick:
        take(pick(files_below(data.tpch(TPCH_SCALE, "parquet")), limit // 4), data.tpch(TPCH_SCALE, "parquet"), target / "tables")


def archives(lab, target, limit):
    """Archives of users: packages as they are, and a packed tree of sources."""
    target.mkdir(parents=True, exist_ok=True)
    for name in [*PACKAGES[lab.quick], *WEB[lab.quick]]:
        data.package(name)
        deb = data.CACHE / "packages" / f"{name}.deb"
        if deb.stat().st_size <= limit // 4:
            shutil.copyfile(deb, target / deb.name)
    tree = kernel_tree(lab)
    for form in ("gz", "xz"):
        with tarfile.open(target / f"sources.tar.{form}", f"w:{form}") as tar:
            for file in pick(files_below(tree), limit // 2):
                tar.add(file, arcname=file.relative_to(tree))


def home(lab, target, limit):
    """Documents, mail, photos, sources and archives, about a fifth each."""
    part = limit // 5
    corpus = None if lab.quick else data.corpus()
    documents = files_below(corpus / "pdf", corpus / "words") if corpus else of_packages(["python-matplotlib-data"], (".pdf", ".svg", ".csv"))
    (target / "Documents").mkdir(parents=True)
    for number, file in enumerate(pick(documents, part)):
        shutil.copyfile(file, target / "Documents" / f"{number:03}-{file.name}")
    photos = of_packages(PHOTOS[lab.quick], (".jpg", ".jpeg", ".png", ".webp"))
    (target / "Photos").mkdir()
    for number, file in enumerate(pick(photos, part)):
        shutil.copyfile(file, target / "Photos" / f"{number:03}-{file.name}")
    (target / "Mail").mkdir()
    (target / "Mail" / "inbox").write_bytes(b"".join(messages(part)))
    tree = kernel_tree(lab)
    take(pick(files_below(tree), part), tree, target / "src")
    archives(lab, target / "Archives", part)


def browser(lab, target, limit):
    """A browser's profile: see zfs_browser."""
    pages = of_packages(WEB[lab.quick])
    zfs_browser.profile(target, pages, limit)


def packages(lab, target, limit):
    """Wheels and jars."""
    take(pick(of_packages(PACKAGES[lab.quick], (".whl", ".jar")), limit), data.CACHE / "packages", target)


MAKERS = {"kernel": kernel, "home": home, "mail": mail, "web": web, "science": science, "browser": browser, "packages": packages}


def file_set(lab, kind, limit):
    """The directory of a set, made when it is first asked for."""
    target = lab.work / "sets" / f"{kind}-{limit}"
    if not target.exists():
        lab.say(f"making the set {kind}")
        target.mkdir(parents=True)
        MAKERS[kind](lab, target, limit)
        if not files_below(target):
            raise SystemExit(f"paper-zfs: no files for the set '{kind}': its packages hold others now")
    return target


def size_of(directory):
    """(files, bytes) of a set."""
    files = files_below(directory)
    return len(files), sum(f.stat().st_size for f in files)


def single(lab, name, limit):
    """One of the thesis' data sets, or a file of another kind: a file, or a directory for `linux` and `netcdf`."""
    made = lab.work / "singles" / f"{name}-{limit}"
    if made.exists():
        return made
    made.parent.mkdir(exist_ok=True)
    tree = file_set(lab, "kernel", limit)
    if name == "linux":
        return tree
    if name == "linux.tar":
        output("tar", "--sort=name", "-cf", made, "-C", tree, ".")
    elif name == "random.dat":
        made.write_bytes(os.urandom(limit))
    elif name == "mixed.dat":
        # As many bytes of each, one behind the other.
        text = single(lab, "linux.tar", limit).read_bytes()
        made.write_bytes(text[:limit // 2] + single(lab, "random.dat", limit).read_bytes()[:min(len(text), limit // 2)])
    elif name == "netcdf":
        made.mkdir()
        for file in fill(of_packages(SCIENCE[lab.quick][:1], (".cdf", ".nc")), limit):
            shutil.copyfile(file, made / f"{file.stem}.nc")
    else:
        made.write_bytes(largest(lab, name, limit).read_bytes()[:limit])
    return made


def largest(lab, end, limit):
    """The largest file of the sets whose name ends so and that is not longer than allowed."""
    for kind in ("home", "packages", "browser", "web"):
        found = [f for f in files_below(file_set(lab, kind, limit)) if f.name.endswith(f".{end}")]
        if found:
            return max(found, key=lambda f: f.stat().st_size)
    raise SystemExit(f"paper-zfs: no file of the sets ends with .{end}")
