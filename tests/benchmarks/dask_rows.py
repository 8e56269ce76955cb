"""How fast dask's workers save and read arrays, by npzkit and by zarr, in one run.

Run it in a checkout with the extra `dev` installed, and `dask[distributed]`::

    python tests/benchmarks/dask_rows.py [--rounds 5] [--size 1024] [--only dask-save]

The other options are those of `bench`. Two workers, each a process with one thread, have the
array in memory, in chunks of 64 MiB, and save it to a folder. To sum it up, they read it from
there, with the chunks that each library chooses. npzkit computes all CRC-32s when it saves, and
checks them when it reads; zarr does neither.

Compressed, both use Zstandard: zarr with its default, npzkit with its default level. The table says
by how much the sizes of npzkit's files differ.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import bench
import numpy as np
from report import Suite
from rows import Row, ahead
from works import Place, Work

PEERS = {"zarr": ("zarr", "#ccbb44")}
NEEDS = ["dask", "distributed", "zarr"]
"""The packages that the rows need."""
CHUNK_SIZE = 1 << 26
NPZ_OPTIONS: dict[str, dict[str, Any]] = {
    "uncompressed": {}, "compressed": {"compression": "zstd"}
}  # fmt: skip
ZARR_OPTIONS: dict[str, dict[str, Any]] = {"uncompressed": {"compressors": None}, "compressed": {}}
size_mib = 1024


def make_block(kind: str, count: int, number: int) -> np.ndarray:
    """Return noise, or temperatures with one decimal."""
    rng = np.random.default_rng(number)
    if kind == "uncompressed":
        return rng.random(count, np.float32)
    curve = 20 * np.sin(np.arange(count, dtype=np.float32) / 5000)
    return np.round(curve + 0.3 * rng.standard_normal(count, np.float32), 1)


def make_array(kind: str, place: Place) -> Any:
    """Return an array that the workers have in memory: noise, or temperatures with one decimal."""
    import dask
    import dask.array as da
    import distributed

    total = place.part(size_mib << 18)
    count = min(CHUNK_SIZE // 4, max(total // 8, 1))
    blocks = [
        da.from_delayed(dask.delayed(make_block)(kind, count, number), (count,), np.float32)
        for number in range(max(total // count, 1))
    ]
    array = da.concatenate(blocks).persist()
    distributed.wait(array)
    return array


class Cluster:
    """Two workers, for as long as a ``with`` block."""

    def __enter__(self) -> None:
        import distributed

        self._cluster = distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
            memory_limit=0, silence_logs="ERROR",
        )  # fmt: skip
        self._client = distributed.Client(self._cluster)

    def __exit__(self, *exc_info: object) -> None:
        self._client.close()
        self._cluster.close()


def saver(kind: str, library: str, array: Any, folder: Path) -> Callable[[], None]:
    """Return what saves an array to a folder, which is removed before."""
    import dask.array as da
    import npzkit

    def save_npzkit() -> None:
        npzkit.dask.to_npz(folder, {"x": array}, **NPZ_OPTIONS[kind])

    def save_zarr() -> None:
        da.to_zarr(array, str(folder), **ZARR_OPTIONS[kind])

    save: Any = {"npzkit": save_npzkit, "zarr": save_zarr}[library]
    save.before = partial(shutil.rmtree, folder, ignore_errors=True)
    return save


def folders(kind: str, place: Place) -> dict[str, Path]:
    return {name: place.folder / f"dask-{kind}-{name}" for name in ("npzkit", *PEERS)}


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def save(kind: str, place: Place) -> Iterator[Work]:
    """Yield the saving of an array by two workers."""
    found = folders(kind, place)
    with Cluster():
        array = make_array(kind, place)
        contenders = {name: saver(kind, name, array, path) for name, path in found.items()}
        for name in contenders:
            contenders[name]()
        size = bytes_in(found["npzkit"]) / bytes_in(found["zarr"])
        for name in contenders:
            shutil.rmtree(found[name])
        yield Work(kind, contenders, size)


def total(kind: str, place: Place) -> Iterator[Work]:
    """Yield the reading and summing up of a saved array by two workers."""
    import dask.array as da
    import npzkit

    found = folders(kind, place)
    with Cluster():
        array = make_array(kind, place)
        for name, path in found.items():
            writing: Any = saver(kind, name, array, path)
            writing.before()
            writing()
        del array
        arrays = {
            "npzkit": lambda: npzkit.dask.from_npz(found["npzkit"], "x"),
            "zarr": lambda: da.from_zarr(str(found["zarr"])),
        }

        def add_up(opened: Callable[[], Any]) -> np.ndarray:
            return np.asarray(opened().sum(dtype="f8").compute()).round(3)

        yield Work(kind, {name: partial(add_up, opened) for name, opened in arrays.items()})


_SAVE, _SUM = "two dask workers save 1 GiB", "two dask workers sum up 1 GiB"
ROWS = {
    "dask-save": Row(_SAVE, partial(save, "uncompressed"), (ahead("zarr", 1.5),)),
    "dask-save-compressed": Row(
        f"{_SAVE}, compressed", partial(save, "compressed"), (ahead("zarr", 2),)
    ),
    "dask-sum": Row(_SUM, partial(total, "uncompressed"), (ahead("zarr", 1.2),)),
    "dask-sum-compressed": Row(
        f"{_SUM}, compressed", partial(total, "compressed"), (ahead("zarr", 1.5),)
    ),
}


def no_memory(_: Place) -> Iterator[tuple[str, str, str]]:
    """Yield what is measured of memory: nothing."""
    yield from ()


def main(arguments: list[str] | None = None) -> None:
    global size_mib
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--size", type=int, default=size_mib, help="MiB of the array")
    options, others = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    size_mib = options.size
    bench.main(others, Suite(ROWS, PEERS, no_memory, "zarr"))


if __name__ == "__main__":
    main()
