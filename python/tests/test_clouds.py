"""The package on servers with the protocols of Azure and Google. Azurite is Microsoft's own emulator. Google's client uses
the server of the tests' harness, because fake-gcs-server ignores conditions, on which commits depend."""

import json
import pickle
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import fsspec
import pytest

import shale

ROOT = Path(__file__).resolve().parents[2]
OBJECTSTORE = ROOT / "tools/objectstore"
DATA = b"".join(b"line %d of a text that compresses\n" % number for number in range(200_000))


def azure(tmp_path, request):
    """Starts azurite; returns variables, and the equivalent options."""
    status = subprocess.run([OBJECTSTORE, "install", "azurite"], check=False).returncode
    if status == 3:
        pytest.skip("azurite cannot be installed")
    assert status == 0, "azurite was not installed"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    directory = tmp_path / "azurite"
    request.addfinalizer(lambda: subprocess.run([OBJECTSTORE, "stop", directory], check=False))
    out = subprocess.run([OBJECTSTORE, "start", "azurite", directory, str(port)], check=True, capture_output=True, text=True).stdout
    variables = dict(line.split("=", 1) for line in out.split())
    return variables, {name.lower(): value for name, value in variables.items()}


def google(tmp_path, request):
    """Starts a server of the harness; returns variables, and the equivalent options."""
    sys.path.insert(0, str(ROOT / "tests"))
    from harness.fake_s3 import FakeS3

    class Test:
        """The server's view of a test."""

        defer = staticmethod(request.addfinalizer)

    server = FakeS3(Test)
    account = tmp_path / "account.json"
    # No keys are sent, and none are requested.
    account.write_text(json.dumps({"private_key": "none", "private_key_id": "none", "client_email": "none", "disable_oauth": True}))
    variables = {"GOOGLE_BASE_URL": server.url, "GOOGLE_SERVICE_ACCOUNT": str(account)}
    return variables, {name.lower(): value for name, value in variables.items()}


@pytest.fixture(scope="module", params=[("az", azure), ("gs", google)], ids=["azure", "google"])
def server_of(request, tmp_path_factory):
    """(the protocol, variables, options) of a fresh server: one for all tests, as a process keeps its connections."""
    scheme, start = request.param
    return scheme, *start(tmp_path_factory.mktemp(scheme), request)


@pytest.fixture
def cloud(server_of, monkeypatch):
    """(the URL of a directory in a server, options that are the variables of the environment)."""
    scheme, variables, options = server_of
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return f"shale+{scheme}://bucket/{uuid.uuid4().hex}", options


def test_files_versions_and_many_writers(cloud):
    url = f"{cloud[0]}/file"
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
    blob.tag("golden", 1)
    assert fsspec.open(f"{url}@golden").open().read(10) == DATA[:10]
    assert blob.verify()["damaged"] == []
    files, path = fsspec.core.url_to_fs(url)
    assert files.ls(path.rpartition("/")[0], detail=False) == [path]
    assert files.cat_ranges([path] * 2, [0, 1000], [10, 1010]) == [DATA[:10], DATA[1000:1010]]
    files.rm(path)
    with pytest.raises(FileNotFoundError):
        files.info(path)


def test_parts_of_several_processes_are_one_version(cloud):
    url = f"{cloud[0]}/staged"
    blob = shale.Blob(url)
    code = "import pickle, sys; blob, number = pickle.load(sys.stdin.buffer); " \
           "sys.stdout.buffer.write(pickle.dumps(blob.stage(number * 1000, b'%d' % number * 1000)))"
    parts = []
    for number in range(3):
        run = subprocess.run([sys.executable, "-c", code], input=pickle.dumps((blob, number)), check=True, capture_output=True)
        parts.append(pickle.loads(run.stdout))
    assert blob.commit(parts, "of three processes", how="put").version == 1
    assert blob.read() == b"0" * 1000 + b"1" * 1000 + b"2" * 1000


def test_options_say_what_the_environment_does(cloud, monkeypatch):
    url, options = f"{cloud[0]}/options", cloud[1]
    for name in options:
        monkeypatch.delenv(name.upper())
    with fsspec.open(url, "wb", **options) as file:
        file.write(b"by options")
    files, path = fsspec.core.url_to_fs(url, **options)
    assert files.cat(path) == b"by options"
    secrets = [value for name, value in options.items() if "key" in name]
    pickled = pickle.dumps(files)
    assert not any(secret.encode() in pickled for secret in secrets)
    assert pickle.loads(pickled).cat(path) == b"by options"
