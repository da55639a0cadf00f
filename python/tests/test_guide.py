"""The guide is correct: its code runs as written, and its tables are complete."""

import contextlib
import re
from pathlib import Path

import fsspec
import pytest

import shale

GUIDE = (Path(__file__).resolve().parents[2] / "docs/PYTHON.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def table(heading):
    """Rows of the table below a heading, as lists of cells."""
    section = GUIDE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def code_with(text):
    """The one block that has this text."""
    [block] = [block for block in BLOCKS if text in block]
    return block


def run(block, **names):
    """Runs a block with the names that it presupposes; returns its names."""
    exec(compile(block, "docs/PYTHON.md", "exec"), names)
    return names


def test_every_block_is_run_by_a_test():
    assert [block for block in BLOCKS if not any(mark in block for mark in ("read_parquet", "blob.stage", "shale.dask"))] == []
    assert len(BLOCKS) == 3


def test_files(server):
    pd, xr = pytest.importorskip("pandas"), pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    blob = shale.Blob("shale+s3://bucket/key")
    for number in range(1, 4):
        blob.put(b"version %d, " % number * 100)
    table = pd.DataFrame({"a": [1, 2, 3]})
    table.to_parquet("shale+s3://bucket/table")
    shale.Blob("shale+s3://bucket/table").tag("golden")
    field = xr.Dataset({"t": ("x", [1.0, 2.0])})
    shale.Blob("shale+s3://bucket/field.nc").put(field.to_netcdf(engine="h5netcdf"))
    names = run(code_with("read_parquet") + "\nlast = file\n")
    assert names["last"].version == 3
    # Its last two lines are values that a notebook would show.
    lines = code_with("read_parquet").splitlines()
    assert eval(next(line for line in lines if line.startswith("pd.")), names)["a"].tolist() == [1, 2, 3]
    assert eval(next(line for line in lines if line.startswith("xr.")), names).identical(field)


def test_staged_parts(server):
    # Another block of the guide may have created it.
    with contextlib.suppress(FileNotFoundError):
        shale.Blob("shale+s3://bucket/key").remove()
    names = run(code_with("blob.stage"), shale=shale, pieces=[(0, b"one, "), (5, b"two")])
    assert names["blob"].read() == b"one, two"
    assert names["blob"].versions()[-1]["message"] == "one version of them"


def test_on_a_cluster(server, tmp_path, monkeypatch, capsys):
    distributed = pytest.importorskip("distributed")
    pytest.importorskip("s3fs")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    raw = fsspec.filesystem("s3", skip_instance_cache=True)
    for bucket in ("raw", "elsewhere"):
        raw.mkdir(bucket)
    for day in ("monday", "tuesday"):
        raw.pipe(f"raw/{day}.log", f"{day} was a day\n".encode() * 1000)
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, distributed.Client(cluster) as client:
        run(code_with("shale.dask"), client=client)
    assert "100% Completed" in capsys.readouterr().out
    whole = b"monday was a day\n" * 1000 + b"tuesday was a day\n" * 1000
    assert shale.Blob("shale+s3://bucket/all").read() == shale.Blob("shale+s3://elsewhere/all").read() == whole


def test_tables_name_what_there_is(tmp_path):
    for name, _ in table("Errors"):
        for one in re.findall(r"`(shale\.\w+|\w+Error)`", name):
            kind = getattr(shale, one.removeprefix("shale."), None) or getattr(__builtins__, one, None) or eval(one)
            assert issubclass(kind, Exception), one
            assert not one.startswith("shale.") or issubclass(kind, OSError), one
    named = [one for row in table("Settings") for one in re.findall(r"`(\w+)`", row[0])]
    assert {"version", "properties", "key", "secret", "anon", "allow_http"} <= set(named)
    values = {"version": 3, "properties": {"mode": "archive"}, "client_kwargs": {"region_name": "x"}, "config_kwargs": {"s3": {}}, "anon": False}
    for name in named:
        fsspec.filesystem("shale+s3", skip_instance_cache=True, **{name: values.get(name, "x")})
    for mode, _ in (row for row in table("Files") if len(row) == 2):
        with fsspec.open(f"shale+file://{tmp_path}/{mode.strip('`')}", mode.strip("`")) if mode != "`rb`" else fsspec.open(__file__, "rb"):
            pass
    for call in re.findall(r"`fs\.(\w+)\(|`fs\.(\w+)`", GUIDE):
        assert callable(getattr(fsspec.filesystem("shale+memory"), call[0] or call[1])), call
