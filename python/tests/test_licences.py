"""The installed package contains the licences of all of its parts."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_licences_of_all_crates_are_installed():
    files = {Path(file).name: file.locate() for file in importlib.metadata.files("shale") if "licenses" in Path(file).parts}
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        assert Path(files[name]).read_bytes() == (ROOT / name).read_bytes()
    text = Path(files["THIRD-PARTY"]).read_text(encoding="utf-8")
    listed = dict(re.findall(r"^([\w-]+ [\d.][\w.+-]*): (.+), https?://\S+$", text, re.MULTILINE))
    locked = tomllib.loads((ROOT / "python/Cargo.lock").read_text(encoding="utf-8"))["package"]
    assert set(listed) <= {f"{package['name']} {package['version']}" for package in locked}
    named = {title.split()[0] for title in listed}
    assert {"object_store", "ring", "tokio", "pyo3", "zstd-sys", "lz4-sys"} & named >= {"object_store", "ring", "tokio", "pyo3"}
    for title, licence in listed.items():
        # A licence that requires no text has none.
        assert licence == "0BSD" or re.search(rf"^{re.escape(title)}: \S", text[text.index("=" * 80):], re.MULTILINE), title
