"""How fast two checkouts of npzkit are, by turns: before a change, and after it.

    python tests/benchmarks/two_trees.py OLD NEW --folder /dev/shm

Each round starts a process for each of them, which prints the median of each work in microseconds.
Shown are the medians of the rounds, and the median of their ratios.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

Work = tuple[str, Callable[[], object], Callable[[], object], int]
"""What it is called, what is done before it, the work, and how often both are done."""


def works(path: str) -> Iterator[Work]:
    """Yield works on the archive at a path."""
    import npzkit
    import numpy as np

    rng = np.random.default_rng(0)
    ten = {f"layer{i}/weight": rng.random(1000) for i in range(10)}
    many = {f"layer{i}/weight": rng.random(128) for i in range(10_000)}

    def nothing() -> None:
        pass

    def append(size: int) -> Callable[[], object]:
        array = rng.random(size // 8)

        def work() -> None:
            with npzkit.NpzWriter(path, "a") as w:
                w["new"] = array

        return work

    def read() -> None:
        with npzkit.open(path) as npz:
            npz["layer3/weight"]

    def load() -> None:
        with npzkit.open(path) as npz:
            npz.load_all()

    def clear() -> None:
        Path(path).unlink(missing_ok=True)

    for arrays in (ten, many):
        count = f"{len(arrays):,} arrays"

        def save(arrays: dict[str, object] = arrays) -> None:
            npzkit.save(path, arrays)

        for title, size, times in (("1 KiB", 1 << 10, 100), ("1 MiB", 1 << 20, 60)):
            yield f"append {title} to {count}", save, append(size), times if arrays is ten else 10
        yield f"save {count}", clear, save, 100 if arrays is ten else 6
        yield f"open {count}, read one", nothing, read, 200 if arrays is ten else 20
        yield f"load all of {count}", nothing, load, 100 if arrays is ten else 6
        yield f"verify {count}", nothing, lambda: npzkit.verify(path), 50 if arrays is ten else 5
    yield "open, read nothing", nothing, lambda: npzkit.open(path).close(), 200
    yield "append 16 MiB to 10 arrays", lambda: npzkit.save(path, ten), append(1 << 24), 8
    yield "append 256 MiB to 10 arrays", lambda: npzkit.save(path, ten), append(1 << 28), 2


def medians(folder: str) -> dict[str, float]:
    """Return the median microseconds of each work."""
    found = {}
    for name, before, work, times in works(os.path.join(folder, "a.npz")):
        taken = []
        for _ in range(times):
            before()
            gc.collect()
            begin = time.perf_counter()
            work()
            taken.append(time.perf_counter() - begin)
        found[name] = statistics.median(taken) * 1e6
    return found


def measured(tree: str, folder: str | None) -> dict[str, float]:
    """Return what a process prints that imports npzkit from a checkout."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, __file__, tree, tree, "--in", place]
        environment = {**os.environ, "PYTHONPATH": tree}
        found: dict[str, float] = json.loads(subprocess.check_output(command, env=environment))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="two checkouts of npzkit, by turns")
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the files go; default: a temporary folder")
    parser.add_argument("--in", dest="place", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.place:
        print(json.dumps(medians(options.place)))
        return
    trees = [os.path.abspath(tree) for tree in (options.old, options.new)]
    rounds = [[measured(tree, options.folder) for tree in trees] for _ in range(options.rounds)]
    for name in rounds[0][0]:
        old, new = (statistics.median(each[i][name] for each in rounds) for i in (0, 1))
        ratio = statistics.median(after[name] / before[name] for before, after in rounds)
        print(f"{name:32} {old:10,.0f} µs {new:10,.0f} µs  {ratio:.3f}")


if __name__ == "__main__":
    main()
