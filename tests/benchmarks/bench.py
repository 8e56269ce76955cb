"""How fast npzkit is here: each work against its peers, in one run.

Run it in a checkout with the extra `dev` installed::

    python tests/benchmarks/bench.py [--rounds 7] [--only load]

Every row is one piece of work. The contenders take turns, so that a noisy
machine troubles all of them alike; medians are compared, caches are warm, and
the results of a round are held against each other before the clock counts.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import npzkit
import numpy as np
import safetensors
import safetensors.numpy
import zarr
from rich.console import Console
from rich.table import Table

Contenders = dict[str, Callable[[], object]]
MIB = 1 << 20


def large_arrays() -> dict[str, np.ndarray]:
    """Four arrays of 64 MiB."""
    rng = np.random.default_rng(0)
    return {f"a{i}": rng.random(8 * MIB) for i in range(4)}


def small_arrays(count: int = 10_000) -> dict[str, np.ndarray]:
    """Many arrays of 1 KiB."""
    rng = np.random.default_rng(0)
    return {f"layer{i}/weight": rng.random(128) for i in range(count)}


def compressible_arrays() -> dict[str, np.ndarray]:
    """Arrays of 8 to 16 MB as people compress them."""
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal(4 * MIB) * 0.02).astype("f4")
    smooth = np.sin(np.arange(MIB) / 1e4)
    return {
        "float32 weights": weights,
        "int32": rng.integers(0, 5000, 4 * MIB).astype("i4"),
        "running sums": np.cumsum(rng.integers(0, 100, MIB)),
        "sparse": np.where(rng.random(2 * MIB) < 0.05, rng.standard_normal(2 * MIB), 0),
        "labels": rng.integers(0, 10, 8 * MIB).astype("u1"),
        "smooth float64": smooth,
    }


def load_numpy(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as npz:
        return {key: npz[key] for key in npz.files}


def load_npzkit(path: Path) -> dict[str, np.ndarray]:
    with npzkit.open(path) as npz:
        return npz.load_all()


def first_numpy(path: Path, key: str) -> np.ndarray:
    with np.load(path) as npz:
        return npz[key]


def first_npzkit(path: Path, key: str) -> np.ndarray:
    with npzkit.open(path) as npz:
        return npz[key]


def first_safetensors(path: Path, key: str) -> np.ndarray:
    with safetensors.safe_open(path, "numpy") as file:
        return file.get_tensor(key)


def save_h5py(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file[key] = array


def load_h5py(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {key: file[key][...] for key in file}


def save_zarr(path: Path, arrays: dict[str, np.ndarray]) -> None:
    group = zarr.open_group(path, mode="w")
    for key, array in arrays.items():
        group.create_array(key, data=array, chunks=(MIB,), compressors=None)


def load_zarr(path: Path) -> dict[str, np.ndarray]:
    group = zarr.open_group(path, mode="r")
    return {key: array[...] for key, array in group.arrays()}


def fresh(path: Path, save: Callable[[], object]) -> Callable[[], object]:
    """Save to a path where nothing is: the old file's removal is not timed."""

    def run() -> object:
        return save()

    def before() -> None:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    run.before = before  # type: ignore[attr-defined]
    return run


def load_works(folder: Path) -> Iterator[tuple[str, Contenders]]:
    for title, arrays in (("4 x 64 MiB", large_arrays()), ("10,000 x 1 KiB", small_arrays())):
        name = title.replace(" ", "")
        ours, theirs, tensors = (folder / f"{name}{end}" for end in ("k.npz", "n.npz", ".st"))
        npzkit.save(ours, arrays)
        np.savez(theirs, **arrays)
        safetensors.numpy.save_file(arrays, tensors)
        contenders = {
            "npzkit": lambda p=ours: load_npzkit(p),
            "numpy": lambda p=theirs: load_numpy(p),
            "safetensors": lambda p=tensors: safetensors.numpy.load_file(p),
        }
        if len(arrays) < 10:  # h5py and zarr take seconds for thousands
            save_h5py(folder / "a.h5", arrays)
            save_zarr(folder / "a.zarr", arrays)
            contenders["h5py"] = lambda: load_h5py(folder / "a.h5")
            contenders["zarr"] = lambda: load_zarr(folder / "a.zarr")
        yield f"load all, {title}, stored", contenders
        yield (
            f"load all, {title}, np.savez's file",
            {
                "npzkit": lambda p=theirs: load_npzkit(p),
                "numpy": lambda p=theirs: load_numpy(p),
            },
        )
        if len(arrays) > 10:
            key = list(arrays)[5000]
            yield (
                f"open and read one of {title}",
                {
                    "npzkit": lambda p=ours, k=key: first_npzkit(p, k),
                    "numpy": lambda p=theirs, k=key: first_numpy(p, k),
                    "safetensors": lambda p=tensors, k=key: first_safetensors(p, k),
                },
            )
        for path in (ours, theirs, tensors):
            path.unlink()
    yield from open_works(folder)


def open_works(folder: Path) -> Iterator[tuple[str, Contenders]]:
    """Ten times as many members should take ten times as long to open."""
    arrays = {key: array[:8] for key, array in small_arrays(100_000).items()}
    ours, theirs, tensors = (folder / name for name in ("k.npz", "n.npz", "s.st"))
    npzkit.save(ours, arrays)
    np.savez(theirs, **arrays)
    safetensors.numpy.save_file(arrays, tensors)
    key = list(arrays)[50_000]
    yield (
        "open and read one of 100,000 x 64 B",
        {
            "npzkit": lambda: first_npzkit(ours, key),
            "numpy": lambda: first_numpy(theirs, key),
            "safetensors": lambda: first_safetensors(tensors, key),
        },
    )
    for path in (ours, theirs, tensors):
        path.unlink()


def save_works(folder: Path) -> Iterator[tuple[str, Contenders]]:
    for title, arrays in (("4 x 64 MiB", large_arrays()), ("10,000 x 1 KiB", small_arrays())):
        ours, theirs, tensors = (folder / name for name in ("k.npz", "n.npz", "s.st"))
        contenders = {
            "npzkit": fresh(ours, lambda p=ours, a=arrays: npzkit.save(p, a)),
            "numpy": fresh(theirs, lambda p=theirs, a=arrays: np.savez(p, **a)),
            "safetensors": fresh(
                tensors, lambda p=tensors, a=arrays: safetensors.numpy.save_file(a, p)
            ),
        }
        if len(arrays) < 10:
            h5, z = folder / "s.h5", folder / "s.zarr"
            contenders["h5py"] = fresh(h5, lambda p=h5, a=arrays: save_h5py(p, a))
            contenders["zarr"] = fresh(z, lambda p=z, a=arrays: save_zarr(p, a))
        yield f"save stored, fresh file, {title}", contenders


def deflate_works(folder: Path) -> Iterator[tuple[str, Contenders]]:
    for title, array in compressible_arrays().items():
        ours, theirs = folder / "k.npz", folder / "n.npz"
        npzkit.savez_compressed(ours, a=array)
        np.savez_compressed(theirs, a=array)
        ratio = ours.stat().st_size / theirs.stat().st_size
        yield (
            f"save deflated, {title} (size {ratio:.3f} of numpy's)",
            {
                "npzkit": lambda p=folder / "x.npz", a=array: npzkit.savez_compressed(p, a=a),
                "numpy": lambda p=folder / "y.npz", a=array: np.savez_compressed(p, a=a),
            },
        )
        yield (
            f"load deflated, {title}, np.savez_compressed's file",
            {
                "npzkit": lambda p=theirs: load_npzkit(p),
                "numpy": lambda p=theirs: load_numpy(p),
            },
        )


def small_works(folder: Path) -> Iterator[tuple[str, Contenders]]:
    arrays = small_arrays()
    ours, theirs = folder / "k.npz", folder / "n.npz"
    npzkit.savez_compressed(ours, **arrays)
    np.savez_compressed(theirs, **arrays)
    yield (
        "load all, 10,000 x 1 KiB, deflated",
        {
            "npzkit": lambda: load_npzkit(ours),
            "numpy": lambda: load_numpy(theirs),
        },
    )


def import_works(folder: Path) -> Iterator[tuple[str, Contenders]]:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": ""}

    def start(module: str) -> object:
        return subprocess.run(
            [sys.executable, "-c", f"import {module}"], check=True, env=environment
        )

    yield (
        "start Python and import",
        {"npzkit": lambda: start("npzkit"), "numpy": lambda: start("numpy")},
    )


WORKS = {
    "load": load_works,
    "save": save_works,
    "deflate": deflate_works,
    "small": small_works,
    "import": import_works,
}


def agree(results: dict[str, object]) -> None:
    """Raise where contenders loaded different arrays."""
    first = results["npzkit"]
    for name, other in results.items():
        if isinstance(first, np.ndarray):
            assert np.array_equal(first, other), name
        elif isinstance(first, dict):
            assert first.keys() == other.keys(), name
            assert all(np.array_equal(first[key], other[key]) for key in first), name


def measure(contenders: Contenders, rounds: int) -> dict[str, float]:
    """Return each one's median seconds over rounds in which all take a turn."""
    agree({name: function() for name, function in contenders.items()})
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


def main() -> None:
    parser = argparse.ArgumentParser(description="npzkit against its peers")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=WORKS, action="append")
    parser.add_argument("--folder", help="where the files go; default: a temporary folder")
    arguments = parser.parse_args()
    peers = ["numpy", "safetensors", "h5py", "zarr"]
    table = Table("work", "npzkit", *peers, title="medians; x = times npzkit's")
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or stack.enter_context(tempfile.TemporaryDirectory())
        for name in arguments.only or WORKS:
            for title, contenders in WORKS[name](Path(folder)):
                found = measure(contenders, arguments.rounds)
                ours = found.pop("npzkit")
                cells = [
                    f"{found[n] * 1e3:.1f} ms, {found[n] / ours:.2f} x" if n in found else ""
                    for n in peers
                ]
                table.add_row(title, f"{ours * 1e3:.1f} ms", *cells)
    Console(width=170).print(table)


if __name__ == "__main__":
    main()
