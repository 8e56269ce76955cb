"""The benchmark of the page, and its pictures."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from browsing import why_no_browser
from deep import DEEP

PICTURES = Path(__file__).parents[1] / "pictures"


@pytest.mark.skipif(not DEEP, reason="it starts processes and a browser; NPZKIT_DEEP=1 runs it")
def test_the_benchmark_runs(capsys):
    """On tiny archives, the benchmark prints a row for each."""
    pytest.importorskip("bokeh", reason="the page needs Bokeh")
    if (reason := why_no_browser()) is not None:
        pytest.skip(reason)
    import viewing

    viewing.main(["--gigabytes", "0.003", "--count", "20", "--rounds", "1", "--markdown"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert all(line.count("|") == 6 for line in lines)


@pytest.mark.parametrize(
    ("name", "size"),
    [("view", (1280, 760)), ("view-dark", (1280, 760)), ("view-small", (900, 620)),
     ("view-small-dark", (900, 620))],
)  # fmt: skip
def test_the_pictures_of_the_page_are_small(name, size):
    """The guide's pictures are there, in two sizes, by day and by night."""
    data = (PICTURES / f"{name}.png").read_bytes()
    assert struct.unpack(">II", data[16:24]) == size
    assert len(data) < 150_000
