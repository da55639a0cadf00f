"""The outputs in the documentation's notebook are those of its cells."""

import copy
import json
from pathlib import Path

import pytest
import run_notebook

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs/python.ipynb"


def test_the_notebook_says_what_its_cells_say():
    for module in ("pandas", "xarray", "duckdb", "h5netcdf"):
        pytest.importorskip(module)
    written = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert run_notebook.executed(copy.deepcopy(written)) == written
    assert sum(bool(cell.get("outputs")) for cell in written["cells"]) >= 5
