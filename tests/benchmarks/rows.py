"""The table of rows: each work of `works`, what it is called, and what npzkit aims at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import works
from works import Place, Work


class Result(NamedTuple):
    """The median seconds of each contender for one work; `size` as in `Work`."""

    title: str
    seconds: dict[str, float]
    size: float | None = None


class Aim(NamedTuple):
    """A figure of a row's results, and the limit that it is to reach or to stay under."""

    peer: str
    limit: float
    figure: Callable[[Sequence[Result], str], float]
    words: str = "times as fast as"
    at_most: bool = False

    def lead(self, figure: float) -> float:
        """Return how far ahead of its aim the figure is; below 1, it is behind."""
        return self.limit / figure if self.at_most else figure / self.limit


def ratios(results: Sequence[Result], peer: str) -> list[float]:
    """Return each work's time of the peer over npzkit's."""
    return [found.seconds[peer] / found.seconds["npzkit"] for found in results]


def mean(results: Sequence[Result], peer: str) -> float:
    """Return the geometric mean of the ratios."""
    return math.exp(sum(map(math.log, ratios(results, peer))) / len(results))


def ahead(peer: str, limit: float) -> Aim:
    """Have the peer take at least so many times npzkit's time, in each work."""
    return Aim(peer, limit, lambda results, peer: min(ratios(results, peer)))


def mean_ahead(peer: str, limit: float) -> Aim:
    """Have the peer take so many times npzkit's time in the geometric mean."""
    return Aim(peer, limit, mean, "times as fast in the mean as")


def time_over(peer: str, limit: float) -> Aim:
    """Have npzkit take at most so many times the peer's time, in each work."""
    return Aim(
        peer, limit, lambda results, peer: 1 / min(ratios(results, peer)), "times the time of", True
    )


def seconds(limit: float) -> Aim:
    """Have npzkit take at most so many seconds, in each work."""
    return Aim(
        "", limit, lambda results, _: max(one.seconds["npzkit"] for one in results), "seconds", True
    )


def size_over(limit: float) -> Aim:
    """Have npzkit's file be at most so many times as large as that of zlib level 6."""
    return Aim(
        "zlib level 6", limit, lambda results, _: max(one.size or 0 for one in results),
        "times the size of", True,
    )  # fmt: skip


class Row(NamedTuple):
    """What is measured together: a line of the guide's table, a group of bars of its chart."""

    title: str
    works: Callable[[Place], Iterator[Work]]
    aims: tuple[Aim, ...] = ()


KEYS_OF_FOUR = "keys of four frameworks"
SIX_KINDS = "six kinds of data"
REAL = "real data"
SAFELY = "np.savez, fsync and os.replace"
"""What promises the same as `npzkit.save` over a file. `np.savez` alone promises nothing after a crash."""
OTHERS = "other programs' files"

ROWS = {
    "load-large": Row(
        "load all, 4 x 64 MiB", works.load_large,
        (ahead("numpy", 4), ahead("safetensors", 3), time_over("bare", 1.15)),
    ),
    "load-large-foreign": Row(f"load all, 4 x 64 MiB, {OTHERS}", works.load_large_foreign),
    "load-huge": Row("load all, 4 x 256 MiB", works.load_huge, (time_over("bare", 1.1),)),
    "load-layers": Row(
        "load all, 64 x 4 MiB", works.load_layers,
        (ahead("numpy", 4), ahead("safetensors", 3), time_over("bare", 1)),
    ),
    "load-into": Row(
        "load into arrays that exist, 32 x 8 MiB", works.load_into, (ahead("safetensors", 1.5),)
    ),
    "load-tensors": Row(
        "load into tensors that exist, 32 x 8 MiB", works.load_tensors,
        (ahead("safetensors", 0.7),),
    ),
    "load-small": Row(
        "load all, 10,000 x 1 KiB", works.load_small, (ahead("numpy", 20), ahead("safetensors", 2))
    ),
    "load-small-foreign": Row(
        f"load all, 10,000 x 1 KiB, {OTHERS}", works.load_small_foreign
    ),
    "load-keys": Row(f"load all, 10,000 x 1 KiB, {KEYS_OF_FOUR}", works.load_keys),
    "load-mixed-foreign": Row(
        f"load all, 2,000 mixed arrays, {OTHERS}", works.load_mixed_foreign
    ),
    "load-few": Row("load all, 3 x 80 B", works.load_few, (ahead("numpy", 2),)),
    "load-ten": Row(
        "load all, 10 x 64 KB", works.load_ten, (ahead("numpy", 2.4), ahead("safetensors", 0.6))
    ),
    "load-memory": Row(
        "arrays of 300 images of 150 KB in memory", works.load_memory, (ahead("numpy", 5),)
    ),
    "load-real": Row(f"load all, {REAL}", works.load_real, (ahead("numpy", 1),)),
    "open-small": Row(
        "open and read one of 10,000", works.open_small,
        (ahead("numpy", 5), ahead("safetensors", 1.5)),
    ),
    "open-tiny": Row(
        "open and read one of 100,000", works.open_tiny,
        (ahead("numpy", 4.5), ahead("safetensors", 1.5)),
    ),
    "shapes": Row(
        "shapes and dtypes of 10,000, after opening", works.shapes, (ahead("safetensors", 2),)
    ),
    "save-large": Row(
        "save, 4 x 64 MiB", works.save_large,
        (ahead("numpy", 3), ahead("safetensors", 1), time_over("bare", 1.2)),
    ),
    "save-huge": Row(
        "save, 4 x 256 MiB", works.save_huge, (ahead("numpy", 3.2), ahead("safetensors", 1.15))
    ),
    "save-small": Row("save, 10,000 x 1 KiB", works.save_small, (ahead("numpy", 10),)),
    "save-keys": Row(f"save, 10,000 x 1 KiB, {KEYS_OF_FOUR}", works.save_keys, (ahead("numpy", 9),)),
    "save-mixed": Row("save, 2,000 mixed arrays", works.save_mixed),
    "save-new": Row("save, 80 B", works.save_new, (ahead("numpy", 1),)),
    "save-few": Row("save, 3 x 80 B", works.save_few, (ahead("numpy", 1),)),
    "save-ten": Row("save, 10 x 64 KB", works.save_ten, (ahead("numpy", 1.2),)),
    "save-real": Row(f"save, {REAL}", works.save_real, (ahead("numpy", 1),)),
    "save-over-tiny": Row("save over the last time's file, 80 B", works.save_over_tiny),
    "save-over-1": Row(
        "save over the last time's file, 1 MiB", works.save_over_1, (ahead(SAFELY, 1.2),)
    ),
    "save-over-8": Row(
        "save over the last time's file, 8 MiB", works.save_over_8, (ahead(SAFELY, 1.4),)
    ),
    "save-over-large": Row(
        "save over the last time's file, 4 x 64 MiB", works.save_over_large,
        (ahead(SAFELY, 1.4), ahead("numpy", 1.5), ahead("safetensors", 1)),
    ),
    "append-one": Row("append 1 MB to 1 MB", works.append_one, (ahead("zipfile", 1),)),
    "append-large": Row(
        "append 1 MB to 256 MiB and to 1 GiB", works.append_large, (ahead("zipfile", 1.1),)
    ),
    "append-small": Row("append 1 KiB to 10,000 arrays", works.append_small, (ahead("zipfile", 1),)),
    "append-tiny": Row("append 1 KiB to 100,000 arrays", works.append_tiny, (ahead("zipfile", 1),)),
    "deflate-1": Row(
        f"save deflated, 1 MB, {SIX_KINDS}", works.deflate_1, (ahead("numpy", 3.5), size_over(1.02))
    ),
    "deflate-48": Row(
        f"save deflated, 48 MiB, {SIX_KINDS}", works.deflate_48, (ahead("numpy", 6), size_over(1.02))
    ),
    "deflate-small": Row("save deflated, 10,000 x 1 KiB", works.deflate_small),
    "deflate-mixed": Row("save deflated, 2,000 mixed arrays", works.deflate_mixed),
    "deflate-real": Row(f"save deflated, {REAL}", works.deflate_real),
    "inflate-one": Row(
        f"load deflated, 48 MiB, {SIX_KINDS}, file by np.savez_compressed", works.inflate_one,
        (mean_ahead("numpy", 2), ahead("numpy", 1.5)),
    ),
    "inflate-four": Row(
        f"load deflated, 4 x 48 MiB, {SIX_KINDS}, file by np.savez_compressed", works.inflate_four,
        (mean_ahead("numpy", 3),),
    ),
    "inflate-own": Row(
        f"load deflated, 4 x 16 MiB, {SIX_KINDS}", works.inflate_own, (mean_ahead("numpy", 3.2),)
    ),
    "zstd-save": Row(
        f"save with Zstandard, 4 x 16 MiB, {SIX_KINDS}", works.zstd_save, (ahead("deflated", 1),)
    ),
    "zstd-load": Row(
        f"load Zstandard, 4 x 16 MiB, {SIX_KINDS}", works.zstd_load, (ahead("deflated", 1.2),)
    ),
    "inflate-small": Row("load deflated, 10,000 x 1 KiB", works.inflate_small),
    "inflate-real": Row(f"load deflated, {REAL}, file by np.savez_compressed", works.inflate_real),
    "slice-own": Row(
        "slice 1 % of 128 MiB deflated float32", works.slice_own,
        (ahead("numpy", 200), ahead("h5py", 4), ahead("zarr", 1.3)),
    ),
    "slice-foreign": Row(
        "a second such slice, file by np.savez_compressed", works.slice_foreign,
        (ahead("numpy", 50),),
    ),
    "map-rows": Row(
        "map an array and read 1,000 rows, numpy of an .npy file", works.map_rows,
        (time_over("numpy", 1.3),),
    ),
    "slice-stored": Row(
        "slice 1 % of 128 MiB stored float32", works.slice_stored,
        (time_over("verify=False", 1.3),),
    ),
    "slice-again": Row(
        "slices of an open array, stored", works.slice_again, (time_over("verify=False", 1.3),)
    ),
    "save-chunks": Row(
        "save with CRC-32s of chunks", works.save_chunks, (time_over("seekable=False", 1.03),)
    ),
    "open-chunks": Row(
        "open and read one, with CRC-32s of chunks", works.open_chunks,
        (time_over("seekable=False", 1.03),),
    ),
    "statistics-mean": Row(
        "show --stats, against np.load and mean", works.statistics_mean, (mean_ahead("numpy", 1),)
    ),
    "statistics-four": Row(
        "show --stats, against np.load and min, max, mean, std", works.statistics_four,
        (mean_ahead("numpy", 1),),
    ),
    "import": Row("start Python and import", works.import_npzkit, (time_over("numpy", 1.15),)),
    "first-call": Row(
        "start Python, load or save one array of 80 bytes", works.first_call,
        (time_over("numpy", 1.1),),
    ),
    "command-ls": Row("npzkit ls of 100,000 arrays", works.command_ls, (seconds(0.7),)),
    "command-start": Row(
        "npzkit --version, npzkit ls of a small file", works.command_start, (seconds(0.12),)
    ),
}  # fmt: skip
"""Rows by the names that `--only` takes."""
