"""Shared by the tests: an S3 server of their own, and result lines that the gate counts."""

import os
import shutil
import socket
import subprocess
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OBJECTSTORE = ROOT / "tools/objectstore"


def pytest_runtest_logreport(report):
    """Prints a line for each test, at the beginning of the line, where the gate expects it."""
    if report.when == "call" and report.passed:
        print(f"\nPASS {report.nodeid}", end="")
    elif report.failed:
        print(f"\nFAIL {report.nodeid}", end="")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Settings of a fresh versitygw, also in the environment: workers and forked processes take them from there."""
    if subprocess.run([OBJECTSTORE, "install"], check=False).returncode == 3:
        pytest.skip("versitygw is built with Go, and there is no Go")
    directory = tmp_path_factory.mktemp("versitygw")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = subprocess.run([OBJECTSTORE, "start", "versitygw", directory, str(port)], check=True, capture_output=True, text=True).stdout
    settings = dict(line.split("=", 1) for line in out.split())
    before = dict(os.environ)
    os.environ.update(settings, no_proxy="127.0.0.1")
    yield settings
    os.environ.clear()
    os.environ.update(before)
    subprocess.run([OBJECTSTORE, "stop", directory], check=False)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def bucket(server):
    """A prefix of the bucket for one test."""
    return f"bucket/{uuid.uuid4().hex}"


@pytest.fixture
def s3_options(server):
    """Options as s3fs has them."""
    return {
        "key": server["AWS_ACCESS_KEY_ID"], "secret": server["AWS_SECRET_ACCESS_KEY"], "endpoint_url": server["AWS_ENDPOINT_URL"],
        "client_kwargs": {"region_name": "us-east-1"},
    }


@pytest.fixture(params=["memory", "file", "s3"])
def place(request, tmp_path):
    """Returns the URL of a directory in each available kind of store."""
    if request.param == "memory":
        return f"shale+memory://{uuid.uuid4().hex}"
    if request.param == "file":
        return f"shale+file://{tmp_path}/blobs"
    request.getfixturevalue("server")
    return f"shale+s3://bucket/{uuid.uuid4().hex}"
