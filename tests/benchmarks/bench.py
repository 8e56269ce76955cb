"""How fast npzkit is here: each work against its peers, in one run.

Run it in a checkout with the extra `dev` installed::

    python tests/benchmarks/bench.py [--rounds 7] [--only load] [--chart chart.png]

Every row is one piece of work. The contenders take turns, so that a noisy
machine troubles all of them alike; medians are compared, caches are warm, and
the results of a round are held against each other before the clock counts.
``bare`` is the system calls alone, without a format.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from works import WORKS, Work, geometric_mean, memory_rows

PEERS = ["numpy", "zipfile", "safetensors", "h5py", "zarr", "bare"]
COLORS = {
    "numpy": "#4477aa", "safetensors": "#ee6677", "h5py": "#228833", "zarr": "#ccbb44",
    "bare": "#bbbbbb", "zipfile": "#66ccee",
}  # fmt: skip


def agree(results: dict[str, object]) -> None:
    """Raise where contenders loaded different arrays."""
    first = results["npzkit"]
    for name, other in results.items():
        if isinstance(first, np.ndarray):
            assert np.array_equal(first, other), name
        elif isinstance(first, dict):
            assert first.keys() == other.keys(), name
            assert all(np.array_equal(first[key], other[key]) for key in first), name


def measure(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return each one's median seconds over rounds in which all take a turn."""
    results = {}
    for name, function in contenders.items():
        getattr(function, "before", lambda: None)()
        results[name] = function()
    agree(results)
    del results
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, function in contenders.items():
            getattr(function, "before", lambda: None)()
            gc.collect()
            begin = time.perf_counter()
            result = function()
            times[name].append(time.perf_counter() - begin)
            del result
    return {name: statistics.median(found) for name, found in times.items()}


def cell(name: str, found: dict[str, float], work: Work) -> str:
    """Show a peer's time, its ratio to npzkit's, and whether that is what was aimed at."""
    if name not in found:
        return ""
    ratio = found[name] / found["npzkit"]
    text = f"{found[name] * 1e3:.1f} ms, {ratio:.2f} x"
    goal = work.goals.get(name)
    return text if goal is None else f"{text} ({'>=' if ratio >= goal else '<'} {goal:.3g})"


def draw(rows: list[tuple[str, dict[str, float]]], path: str) -> None:
    """Draw how many times npzkit's time each peer took, a group of bars a work."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    count = sum(len(ratios) for _, ratios in rows) + len(rows)
    figure, axes = pyplot.subplots(figsize=(9, 0.16 * count + 1.4), layout="constrained")
    middles, place = [], 0.0
    for _, ratios in rows:
        middles.append(place + (len(ratios) - 1) / 2)
        for name, ratio in ratios.items():
            axes.barh(place, ratio - 1, 0.9, left=1, color=COLORS[name])
            is_faster = ratio >= 1
            axes.annotate(
                f"{ratio:.3g}" if ratio >= 10 else f"{ratio:.2f}", (ratio, place),
                (3 if is_faster else -3, 0), textcoords="offset points", va="center_baseline",
                ha="left" if is_faster else "right", fontsize=7,
            )  # fmt: skip
            place += 1
        axes.axhline(place, color="0.85", linewidth=0.5)
        place += 1
    axes.set_yticks(middles, [title for title, _ in rows], fontsize=8)
    axes.set_ylim(-1, place - 1)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(0.5, 1.6 * max(ratio for _, ratios in rows for ratio in ratios.values()))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(lambda value, place: "")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("times npzkit's time (right of the line: npzkit is faster)")
    used = [name for name in PEERS if any(name in ratios for _, ratios in rows)]
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLORS[name]) for name in used]
    figure.legend(handles, used, fontsize=8, ncols=len(used), loc="outside lower center")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="npzkit against its peers")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=[*WORKS, "memory"], action="append")
    parser.add_argument("--folder", help="where the files go; default: a temporary folder")
    parser.add_argument("--chart", default="benchmark.png", help="PNG to draw; '' for none")
    arguments = parser.parse_args()
    console = Console(width=200)
    table = Table("work", "npzkit", *PEERS, title="medians; x = times npzkit's (>= or < the aim)")
    groups: dict[str, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(arguments.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        names = arguments.only or [*WORKS, "memory"]
        for name in names:
            for work in WORKS[name](folder) if name in WORKS else ():
                found = measure(work.contenders, arguments.rounds)
                cells = [cell(peer, found, work) for peer in PEERS]
                table.add_row(work.title, f"{found['npzkit'] * 1e3:.1f} ms", *cells)
                group = groups.setdefault(work.group or work.title, {})
                for peer in (peer for peer in PEERS if peer in found):
                    group.setdefault(peer, []).append(found[peer] / found["npzkit"])
        if groups:
            console.print(table)
        for title, group in groups.items():
            for peer, ratios in group.items():
                if len(ratios) > 1:
                    mean = f"{geometric_mean(ratios):.1f} x {peer} in the geometric mean"
                    console.print(f"{title}: {mean} of {len(ratios)}")
        if "memory" in names:
            held = Table("memory", "peak", "allowed")
            for row in memory_rows(folder):
                held.add_row(*row)
            console.print(held)
    if groups and arguments.chart:
        rows = [
            (title, {peer: geometric_mean(ratios) for peer, ratios in group.items()})
            for title, group in groups.items()
        ]
        draw(rows, arguments.chart)
        console.print(f"chart: {arguments.chart}")


if __name__ == "__main__":
    main()
