"""The benchmark behind the guide's page on speed runs, and prints what that page needs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import npzkit
import pytest
from deep import needs_deep

if sys.platform != "linux":
    pytest.skip("the benchmark needs preadv, fallocate and /proc", allow_module_level=True)

import bench
import bounds
import report
import rows

SPEED = Path(npzkit.__file__).parent / "guide" / "speed.md"
PROCESSES = {
    "statistics-mean",
    "statistics-four",
    "first-call",
    "import",
    "command-ls",
    "command-start",
    "memory",
}
"""Rows that start many processes."""


@pytest.fixture
def run(tmp_path, capsys):
    """Run the benchmark on tiny data and return what it prints; results are kept in a file."""

    def call(*arguments: str) -> str:
        results = ["--json", str(tmp_path / "results.json")]
        bench.main(["--quick", "--rounds", "1", "--chart", "", *results, *arguments])
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[needs_deep] * (name in PROCESSES or number % 3 > 0))
        for number, name in enumerate(bench.NAMES)
    ],
)
def test_each_row_runs(run, tmp_path, name):
    """Each row runs on tiny data, its contenders agree, and its aims get a figure."""
    printed = run("--only", name)
    kept = json.loads((tmp_path / "results.json").read_text())
    if name == "memory":
        assert len(kept["memory"]) >= 2
    else:
        assert list(kept["rows"]) == [name]
        measured = {name: [bench.Result(*one) for one in kept["rows"][name]]}
        found = report.aims_found(measured)
        assert {aim for _, aim, _, _ in found} == set(rows.ROWS[name].aims)
        assert all(figure > 0 for _, _, figure, _ in found)
        assert rows.ROWS[name].title[:20] in printed


@needs_deep
def test_what_bounds_slow_rows_is_measured(capsys):
    """What bounds the rows that are behind is printed beside their aims."""
    bounds.main(["--quick", "--rounds", "1"])
    printed = capsys.readouterr().out
    for name in bounds.BOUNDED:
        assert bounds.ROWS[name].title in printed
    assert "system calls alone" in printed
    # Deflating is measured with three kinds of data.
    works = sum(3 if name.startswith("deflate") else 1 for name in bounds.BOUNDED)
    assert printed.count("aim") == works


def results(**seconds: float) -> list:
    return [bench.Result("work", seconds)]


def test_rows_behind_their_aim_come_first():
    """The table of aims begins with the row that is furthest behind."""
    measured = {
        "save-keys": results(npzkit=1.0, numpy=10.0),  # aim: 9
        "load-small": results(npzkit=1.0, numpy=21.0, safetensors=1.0),  # aims: 20 and 2
        "command-ls": results(npzkit=0.8),  # at most 0.7
        "load-huge": results(npzkit=1.0, bare=1.0),  # at most 1.1
    }
    found = report.aims_found(measured)
    assert [(aim.peer, round(figure, 2)) for _, aim, figure, _ in found] == [
        ("safetensors", 1), ("", 0.8), ("numpy", 10), ("numpy", 21), ("bare", 1)
    ]  # fmt: skip
    behind = [aim.lead(figure) < 1 for _, aim, figure, _ in found]
    assert behind == [True, True, False, False, False]


def test_the_slowest_and_the_mean():
    """An aim is checked for the slowest of a row's works, or for their geometric mean."""
    works = results(npzkit=1.0, numpy=1.6) + results(npzkit=1.0, numpy=3.6)
    found = report.aims_found({"inflate-one": works})
    assert sorted((round(figure, 2), aim.limit) for _, aim, figure, _ in found) == [
        (1.6, 1.5), (2.4, 2)
    ]  # fmt: skip


def test_kept_results_are_not_measured_again(run, tmp_path):
    """Results in the file of an earlier run are printed as they are."""
    run("--only", "shapes")
    path = tmp_path / "results.json"
    kept = json.loads(path.read_text())
    kept["rows"]["shapes"] = [["10,000 x 1 KiB", {"npzkit": 0.001, "safetensors": 0.0072}, None]]
    path.write_text(json.dumps(kept))
    assert "| 1.0 ms | | 7.2 x | | | | |" in run("--only", "shapes", "--markdown")
    with pytest.raises(SystemExit, match="its run was"):
        bench.main(["--rounds", "7", "--only", "shapes", "--chart", "", "--json", str(path)])


def test_rows_are_chosen_by_name_or_by_their_first_words(capsys):
    """`--only` takes the name of a row, or the words that several names begin with."""
    parser = bench.argparse.ArgumentParser()
    assert bench.chosen(["load-small", "inflate"], parser) == [
        "load-small", "inflate-one", "inflate-four", "inflate-own", "inflate-small", "inflate-real"
    ]  # fmt: skip
    assert bench.chosen(None, parser) == bench.NAMES
    with pytest.raises(SystemExit):
        bench.chosen(["lo"], parser)
    assert "no row 'lo'; rows: load-large" in capsys.readouterr().err


def test_the_markdown_names_what_is_measured():
    """Below the page's table stand the data sets, the sizes of deflated files and the memory."""
    works = [
        bench.Result(name, {"npzkit": 0.01, "numpy": 0.04 * place}, size)
        for place, (name, size) in enumerate([("int32", 0.98), ("text", 0.93), ("sparse", 1.0)], 1)
    ]
    memory = [("peak memory to load 128 MiB stored", "1.003 of the arrays", "1.02")]
    assert list(report.markdown({"deflate-1": works}, memory))[2:] == [
        "| save deflated, 1 MB, six kinds of data | 10.0 ms | 4.0 to 12.0 x, 7.3 x in the mean | | | | | |",
        "",
        "- Six kinds of data: int32, text, sparse.",
        "- Compressed files are 0.93 to 1.00 times as large as those of np.savez_compressed.",
        "- Peak memory to load 128 MiB stored: 1.003 of the arrays.",
    ]


def test_the_chart_is_drawn(tmp_path):
    """The chart has bars for every row that has a peer; rows without one are left out."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    measured = {"command-ls": results(npzkit=1.0), "shapes": results(npzkit=1.0, safetensors=2.0)}
    report.draw(measured, str(tmp_path / "chart.png"))
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_has_a_place_for_the_table():
    """The page's table stands between two marks and has the columns that `--markdown` prints."""
    page = SPEED.read_text(encoding="utf-8")
    begin, end = (f"<!-- {word}: bench.py --markdown -->\n" for word in ("begin", "end"))
    (kept,) = re.findall(f"{begin}(.*?){end}", page, re.DOTALL)
    printed = list(report.markdown({"shapes": results(npzkit=1.0, safetensors=2.0)}, []))
    assert kept.splitlines()[:2] == printed[:2]


@needs_deep
def test_the_benchmark_of_reading_over_a_network(capsys, tmp_path):
    """Each work runs against a local server, by each contender."""
    remote = pytest.importorskip("remote", reason="aiohttp is not installed")
    kept, chart = str(tmp_path / "a.json"), str(tmp_path / "a.png")
    given = ["--size", "1", "--latency", "0", "--json", kept, "--chart", chart, "--markdown"]
    remote.main(["--rounds", "1", *given])
    printed = capsys.readouterr().out
    times, requests = (text.splitlines()[2:] for text in printed.split("\n\n"))
    assert len(times) == len(requests) == 4
    assert all(line.count(" x") == 5 for line in times)
    assert [line.split(" | ")[1] for line in requests] == ["1", "2", "3", "12"]
    assert Path(chart).stat().st_size > 10_000
    # Nothing is measured again.
    remote.main(["--rounds", "1000000", *given])
    assert capsys.readouterr().out == printed


@needs_deep
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_the_benchmark_of_uploads(capsys):
    """A server of S3 that keeps nothing gets all bytes from each contender."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    remote = pytest.importorskip("remote", reason="aiohttp is not installed")
    remote.main(
        ["--upload", "--rounds", "1", "--size", "64", "--latency", "0", "--gigabytes", "0.5"]
    )
    printed = capsys.readouterr().out
    assert printed.count(" x") == 2 + 1
    assert "0.50 GiB in one archive" in printed
