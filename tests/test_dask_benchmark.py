"""The benchmark of dask's workers runs on tiny data."""

from __future__ import annotations

import importlib.util
import json

import pytest

if not all(map(importlib.util.find_spec, ("dask", "distributed", "zarr"))):
    pytest.skip("dask.distributed and zarr are not installed", allow_module_level=True)

import dask_rows

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning"
)


def test_each_row_runs(tmp_path, capsys):
    """Each row runs on tiny data, and its contenders agree."""
    path = tmp_path / "results.json"
    dask_rows.main(["--quick", "--rounds", "1", "--chart", "", "--size", "8", "--json", str(path)])
    kept = json.loads(path.read_text())["rows"]
    assert kept.keys() == dask_rows.ROWS.keys()
    assert all({"npzkit", "zarr"} == result[1].keys() for rows in kept.values() for result in rows)
    assert "two dask workers" in capsys.readouterr().out
