"""How fast checkpoints are saved and loaded here, against other ways, in one run.

Run it in a checkout with the extra `dev` installed; torch takes part if it is installed::

    python tests/benchmarks/checkpoints.py [--rounds 7] [--size 64]

The contenders take turns, and medians are compared. Each save makes a new file, as in a
training run. Nothing waits for the disk, because the others cannot. npzkit compares
every CRC-32 when it loads, and np.load does; the others check nothing.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from npzkit.checkpoint import CheckpointStore
from rich.console import Console
from rich.table import Table

STEP_COUNT = 1000
SUFFIXES = {".npz", ".safetensors", ".pt"}
Work = Callable[[], object]


def trees(size: int) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yield a checkpoint of four large arrays, and one of 400 as in a small network."""
    rng = np.random.default_rng(0)
    yield f"4 x {size} MiB", {f"layer{i}": rng.random(size << 17) for i in range(4)}
    shapes = [(256, 256), (256,), (1024, 64), (64,)]
    yield "400 arrays", {
        f"layer{i}.part{j}": rng.random(shape, np.float32)
        for i in range(100) for j, shape in enumerate(shapes)
    }  # fmt: skip


def timed(work: Work, place: Path | None) -> float:
    """Return the seconds that it takes; files that it is to make are removed before."""
    gc.collect()
    if place is not None:
        for path in place.rglob("*.*"):
            if path.suffix in SUFFIXES:
                path.unlink()
    begin = time.perf_counter()
    result = work()
    taken = time.perf_counter() - begin
    getattr(result, "wait", lambda: None)()
    return taken


def measure(
    contenders: dict[str, Work], rounds: int, place: Path | None = None
) -> dict[str, float]:
    """Return the median seconds of each; the first round is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, work in contenders.items():
            taken[name].append(timed(work, place))
    return {name: statistics.median(found[1:]) for name, found in taken.items()}


def rows(folder: Path, size: int, rounds: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Measure each piece of work."""
    for number, (name, tree) in enumerate(trees(size)):
        place = folder / str(number)
        place.mkdir()
        with (
            CheckpointStore(place / "run", durable=False) as store,
            CheckpointStore(place / "background", durable=False, background=True) as background,
        ):
            contenders = savers(place, store, background, tree)
            yield f"save, {name}", measure(contenders, rounds, place)
            for work in contenders.values():
                timed(work, None)
            yield f"load, {name}", measure(loaders(place, store), rounds)
            only = next(iter(tree))
            parts = {"all": store.load, "one array": lambda only=only: store.load(only=only)}
            yield f"load a part, {name}", measure(parts, rounds)
    many = CheckpointStore(folder / "many")
    (folder / "many").mkdir()
    for step in range(STEP_COUNT):
        Path(many.path(step)).touch()
    yield f"list {STEP_COUNT:,} steps", measure({"npzkit": lambda: many.steps}, rounds)


def savers(
    place: Path, store: CheckpointStore, background: CheckpointStore, tree: dict[str, Any]
) -> dict[str, Work]:
    """Return the ways to save a tree."""
    found: dict[str, Work] = {
        "npzkit": lambda: store.save(1, tree),
        "npzkit, until save returns": lambda: background.save(1, tree),
        "np.savez": lambda: np.savez(place / "a.npz", **tree),
        "safetensors": lambda: safetensors.numpy.save_file(tree, place / "a.safetensors"),
    }
    if importlib.util.find_spec("torch"):
        import torch

        tensors = {key: torch.from_numpy(array) for key, array in tree.items()}
        found["torch.save"] = lambda: torch.save(tensors, place / "a.pt")
    return found


def loaders(place: Path, store: CheckpointStore) -> dict[str, Work]:
    """Return the ways to load what `savers` has saved."""
    found: dict[str, Work] = {
        "npzkit": store.load,
        "np.load": lambda: dict(np.load(place / "a.npz")),
        "safetensors": lambda: safetensors.numpy.load_file(place / "a.safetensors"),
    }
    if importlib.util.find_spec("torch"):
        import torch

        found["torch.load"] = lambda: torch.load(place / "a.pt")
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=64, help="MiB of a large array")
    options = parser.parse_args()
    table = Table("work", "by", "ms", "npzkit takes")
    with tempfile.TemporaryDirectory() as folder:
        for name, found in rows(Path(folder), options.size, options.rounds):
            first = next(iter(found.values()))
            for by, taken in found.items():
                table.add_row(name, by, f"{taken * 1000:.2f}", f"{first / taken:.2f} of it")
                name = ""
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
