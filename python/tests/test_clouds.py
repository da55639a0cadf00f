"""The package on a server that speaks Azure's protocol; only with SHALE_E2E, because installing it takes minutes."""

import os
import socket
import subprocess
import threading
import uuid
from pathlib import Path

import fsspec
import pytest

import shale

OBJECTSTORE = Path(__file__).resolve().parents[2] / "tools/objectstore"
pytestmark = pytest.mark.skipif(not os.environ.get("SHALE_E2E"), reason="SHALE_E2E is not set")
DATA = b"".join(b"line %d of a text that compresses\n" % number for number in range(200_000))


@pytest.fixture(params=[("azurite", "az")], ids=["azure"])
def cloud(request, tmp_path, monkeypatch):
    """The URL of a directory in a fresh server."""
    kind, scheme = request.param
    if subprocess.run([OBJECTSTORE, "install", kind], check=False).returncode == 3:
        pytest.skip(f"{kind} cannot be installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = subprocess.run([OBJECTSTORE, "start", kind, tmp_path / kind, str(port)], check=True, capture_output=True, text=True).stdout
    for line in out.split():
        monkeypatch.setenv(*line.split("=", 1))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield f"shale+{scheme}://bucket/{uuid.uuid4().hex}"
    subprocess.run([OBJECTSTORE, "stop", tmp_path / kind], check=False)


def test_files_versions_and_many_writers(cloud):
    url = f"{cloud}/file"
    with fsspec.open(url, "wb") as file:
        file.write(DATA)
    with fsspec.open(url) as file:
        assert file.read() == DATA
    blob = shale.Blob(url)
    threads = [threading.Thread(target=blob.append, args=(b"%04d" % number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tail = blob.read(len(DATA))
    assert sorted(tail[at:at + 4] for at in range(0, len(tail), 4)) == [b"%04d" % number for number in range(8)]
    assert blob.read(at=1) == DATA
    files, path = fsspec.core.url_to_fs(url)
    assert files.ls(path.rpartition("/")[0], detail=False) == [path]
    assert files.cat_ranges([path] * 2, [0, 1000], [10, 1010]) == [DATA[:10], DATA[1000:1010]]
    files.rm(path)
    with pytest.raises(FileNotFoundError):
        files.info(path)
