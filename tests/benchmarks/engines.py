"""How fast data sets of many files are, and engines that read and write archives, in one run.

Run it in a checkout with the extra `dev` installed::

    python tests/benchmarks/engines.py [--rounds 7] [--only many] [--json results.json]

The options are those of `bench`, and so is the way to measure: the contenders take turns, caches
are warm, and medians are compared.

To add a row, write a function that takes a `Place` and yields each `Work` with its contenders,
and enter it in `ROWS` with its aims. If it needs a package, name that in `NEEDS`: the row is left
out where the package is missing.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import bench
import dask_rows
import engines_torch
import npzkit
import numpy as np
import xarray_rows
from report import Memory, Suite
from rows import Row, ahead
from works import Place, Work, load_numpy

FILE_COUNT, HEADER_COUNT, SAMPLE_COUNT = 10_000, 3_000, 500
PEERS = {"numpy": ("NumPy", "#4477aa"), **engines_torch.PEERS, **dask_rows.PEERS}
SAVERS: dict[str, Callable[[Path, dict[str, np.ndarray]], None]] = {
    "np.savez": lambda path, arrays: np.savez(path, **arrays),
    "npzkit.save": lambda path, arrays: npzkit.save(path, arrays),
    "np.savez_compressed": lambda path, arrays: np.savez_compressed(path, **arrays),
}


def make_files(place: Place, name: str, count: int) -> str:
    """Write files of one picture and its label each; returns their pattern."""
    rng = np.random.default_rng(0)
    folder = place.folder / f"{name}-{count}"
    folder.mkdir(exist_ok=True)
    for number in range(place.part(count)):
        picture = rng.integers(0, 255, (64, 64, 3), "u1")
        SAVERS[name](folder / f"{number}.npz", {"image": picture, "label": np.int64(number)})
    return f"{folder}/*.npz"


STORED, COMPRESSED = ("np.savez", "npzkit.save"), ("np.savez_compressed",)


def samples(names: tuple[str, ...], place: Place) -> Iterator[Work]:
    """Yield the reading of samples in random order, for files of some programs."""
    for name in names:
        many = npzkit.open_many(make_files(place, name, FILE_COUNT), axis=None)
        found, paths = many.samples, many.paths
        numbers = random.Random(0).choices(range(len(paths)), k=place.part(SAMPLE_COUNT))

        def read_npzkit(numbers=numbers, samples=found) -> dict[str, np.ndarray]:
            return [samples[number] for number in numbers][-1]

        def read_numpy(numbers=numbers, paths=paths) -> dict[str, np.ndarray]:
            return [load_numpy(paths[number]) for number in numbers][-1]

        yield Work(name, {"npzkit": read_npzkit, "numpy": read_numpy})


def headers(names: tuple[str, ...], place: Place) -> Iterator[Work]:
    """Yield the reading of all headers, without a cache, for files of some programs."""
    for name in names:
        pattern = make_files(place, name, HEADER_COUNT)
        paths = npzkit.open_many(pattern, axis=None).paths

        def read_npzkit(pattern=pattern) -> dict[str, np.ndarray]:
            many = npzkit.open_many(pattern, axis=None)
            return {key: np.array(many.lazy(key).shape[1:]) for key in many}

        def read_numpy(paths=paths) -> dict[str, np.ndarray]:
            return [headers_by_numpy(path) for path in paths][-1]

        yield Work(name, {"npzkit": read_npzkit, "numpy": read_numpy})


def headers_by_numpy(path: str) -> dict[str, np.ndarray]:
    """Return the shapes in a file, by np.load and numpy.lib.format."""
    shapes = {}
    with np.load(path) as npz:
        for key in npz.files:
            with npz.zip.open(f"{key}.npy") as stream:
                np.lib.format.read_magic(stream)
                shapes[key] = np.array(np.lib.format.read_array_header_1_0(stream)[0])
    return shapes


def no_memory(_: Place) -> Iterator[tuple[str, str, str]]:
    """Yield what is measured of memory: nothing yet."""
    yield from Memory()


_SAMPLES = f"open {SAMPLE_COUNT} of {FILE_COUNT:,} files as samples"
_OPEN = f"open_many of {HEADER_COUNT:,} files"
NEEDS: dict[str, list[str]] = {
    **{name: ["torch", "ml_dtypes"] for name in engines_torch.ROWS},
    **dict.fromkeys(dask_rows.ROWS, dask_rows.NEEDS),
    **dict.fromkeys(xarray_rows.ROWS, xarray_rows.NEEDS),
}
"""By row, the packages that it needs."""
ROWS = {
    "many-samples": Row(_SAMPLES, partial(samples, STORED), (ahead("numpy", 5),)),
    "many-samples-compressed": Row(
        f"{_SAMPLES}, compressed", partial(samples, COMPRESSED), (ahead("numpy", 2),)
    ),
    "many-open": Row(_OPEN, partial(headers, STORED), (ahead("numpy", 5),)),
    "many-open-compressed": Row(
        f"{_OPEN}, compressed", partial(headers, COMPRESSED), (ahead("numpy", 1.5),)
    ),
    **engines_torch.ROWS,
    **dask_rows.ROWS,
    **xarray_rows.ROWS,
}
AVAILABLE = {
    name: row
    for name, row in ROWS.items()
    if all(importlib.util.find_spec(package) for package in NEEDS.get(name, ()))
}
ENGINES = Suite(AVAILABLE, PEERS, no_memory, "zarr")


def main(arguments: list[str] | None = None) -> None:
    for name in ROWS.keys() - AVAILABLE.keys():
        print(f"left out: {name}, which needs {' and '.join(NEEDS[name])}")
    bench.main(arguments, ENGINES)


if __name__ == "__main__":
    main()
