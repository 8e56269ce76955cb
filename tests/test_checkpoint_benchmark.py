"""The benchmark of checkpoints runs, and prints the table that the guide needs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import npzkit
import pytest
from deep import needs_deep

if sys.platform != "linux":
    pytest.skip("the benchmark needs /proc", allow_module_level=True)

import checkpoints
import report

if checkpoints.MISSING:
    pytest.skip(f"torch is compared; not installed: {checkpoints.MISSING}", allow_module_level=True)

# The libraries that are compared warn as they like.
pytestmark = pytest.mark.filterwarnings("ignore")
SPEED = Path(npzkit.__file__).parent / "guide" / "speed.md"
LONG = {"memory", "load-large", "part"}
"""Rows that start many processes, or take gigabytes."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[needs_deep] * (name in LONG))
        for name in checkpoints.CHECKPOINTS.names
    ],
)
def test_each_row_runs(tmp_path, capsys, name):
    """Each row runs on tiny data, the libraries load the same, and its aims get a figure."""
    path = tmp_path / "results.json"
    options = ["--quick", "--rounds", "1", "--chart", "", "--json", str(path)]
    checkpoints.main([*options, "--only", name])
    kept = json.loads(path.read_text())
    if name == "memory":
        assert len(kept["memory"]) == 4
        return
    measured = {name: [checkpoints.bench.Result(*one) for one in kept["rows"][name]]}
    found = report.aims_found(measured, checkpoints.CHECKPOINTS)
    assert {aim for _, aim, _, _ in found} == set(checkpoints.ROWS[name].aims)
    assert all(figure > 0 for _, _, figure, _ in found)
    assert checkpoints.ROWS[name].title[:20] in capsys.readouterr().out


def test_the_reuse_of_files_is_measured(capsys):
    """`--reuse` compares a save with each proof that nothing has changed."""
    checkpoints.main(["--reuse", "--quick", "--rounds", "1"])
    assert len(re.findall("times the time of a save", capsys.readouterr().out)) == 4


def test_the_page_has_a_place_for_the_table():
    """The page's table of checkpoints has the columns that `--markdown` prints."""
    page = SPEED.read_text(encoding="utf-8")
    begin, end = (f"<!-- {word}: checkpoints.py --markdown -->\n" for word in ("begin", "end"))
    (kept,) = re.findall(f"{begin}(.*?){end}", page, re.DOTALL)
    results = [report.Result("steps", {"npzkit": 1.0})]
    printed = list(report.markdown({"steps": results}, [], checkpoints.CHECKPOINTS))
    assert kept.splitlines()[:2] == printed[:2]
