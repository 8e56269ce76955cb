"""The benchmark of data sets and engines runs on tiny data."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import npzkit
import pytest

if sys.platform != "linux":
    pytest.skip("the benchmark needs /proc", allow_module_level=True)

import engines
import engines_torch
import report
import scale

# torch and zarr warn as they like.
LOUD = (*engines_torch.ROWS, "xarray")
QUIETLY = pytest.mark.filterwarnings("ignore")
NAMES = [
    pytest.param(name, marks=QUIETLY) if name.startswith(LOUD) else name
    for name in engines.AVAILABLE
]


@pytest.mark.parametrize("name", NAMES)
def test_each_row_runs(tmp_path, capsys, name):
    """Each row runs on tiny data, its contenders agree, and its aims get a figure."""
    path = tmp_path / "results.json"
    options = ["--quick", "--rounds", "1", "--chart", "", "--json", str(path)]
    engines.main([*options, "--only", name])
    kept = json.loads(path.read_text())
    measured = {name: [engines.bench.Result(*one) for one in kept["rows"][name]]}
    found = report.aims_found(measured, engines.ENGINES)
    assert {aim for _, aim, _, _ in found} == set(engines.ROWS[name].aims)
    assert all(figure > 0 for _, _, figure, _ in found)
    assert engines.ROWS[name].title[:12] in capsys.readouterr().out


def test_what_a_step_costs_is_calculated():
    """The requests of uploads follow their parts, and the index names a part per tensor and worker."""
    sizes = [0, (1 << 23) - 1, 1 << 23, 100_000_000, 10 << 30]
    assert [scale.upload_requests(size) for size in sizes] == [1, 1, 3, 14, 1142]
    found = dict(scale.report(workers=5, tensors=7, size=1_000_000))
    assert (found["objects"], found["bytes of a worker's shard"]) == ("6", "200,000")
    assert found["requests of a worker to save"] == "1"


def test_the_page_has_a_place_for_the_table():
    """The page's marks are there once, and between them a table with a line for each row."""
    page = (Path(npzkit.__file__).parent / "guide" / "speed.md").read_text(encoding="utf-8")
    begin, end = (f"<!-- {word}: engines.py --markdown -->" for word in ("begin", "end"))
    (kept,) = re.findall(f"{begin}(.*?){end}", page, re.DOTALL)
    for row in engines.ROWS.values():
        assert f"| {row.title}" in kept
