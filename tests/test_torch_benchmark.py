"""The benchmark of torch.distributed.checkpoint runs on tiny data."""

from __future__ import annotations

import json
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("the benchmark needs /proc", allow_module_level=True)

import checkpoints

if checkpoints.MISSING:
    pytest.skip(f"torch is compared; not installed: {checkpoints.MISSING}", allow_module_level=True)

import engines_torch
import report

# PyTorch warns as it likes.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", engines_torch.ROWS)
def test_each_row_runs(tmp_path, capsys, name):
    """Each row runs on tiny data, both load the same, and its aims get a figure."""
    path = tmp_path / "results.json"
    options = ["--quick", "--rounds", "1", "--chart", "", "--json", str(path)]
    engines_torch.main([*options, "--only", name])
    kept = json.loads(path.read_text())
    measured = {name: [engines_torch.bench.Result(*one) for one in kept["rows"][name]]}
    found = report.aims_found(measured, engines_torch.TORCH)
    assert {aim for _, aim, _, _ in found} == set(engines_torch.ROWS[name].aims)
    assert all(figure > 0 for _, _, figure, _ in found)
    assert engines_torch.ROWS[name].title[:12] in capsys.readouterr().out
