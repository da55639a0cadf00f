"""Every example runs to its end, in a process of its own, in memory or a directory and on S3."""

import importlib.util
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NEEDS = {"versions": [], "tables": ["pandas", "pyarrow", "duckdb"], "arrays": ["xarray", "h5netcdf", "zarr"], "cluster": ["distributed"], "ray_stage": ["ray"]}


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(NEEDS)


@pytest.mark.parametrize("name", NEEDS)
@pytest.mark.parametrize("where", ["here", "s3"])
def test_an_example_runs(name, where, request):
    for module in NEEDS[name]:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    arguments = []
    if where == "s3":
        request.getfixturevalue("server")
        arguments = [f"shale+s3://bucket/{uuid.uuid4().hex}"]
    run = subprocess.run([sys.executable, EXAMPLES / f"{name}.py", *arguments], check=False, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "version" in run.stdout or "mean" in run.stdout
