"""What bounds the rows of `bench` that are behind their aim: npzkit's time beside that of its parts.

Run it in a checkout with the extra `dev` installed::

    python tests/benchmarks/bounds.py [--rounds 21] [--only append]

Each part is measured alone, in turns with npzkit and its peer: system calls on
the same bytes, the encoder, Python calls. ``aim`` is what the aim of the row
leaves of the peer's time. If the parts that cannot be left out take as
long as the aim, no change of npzkit's own code reaches it.

Compressed rows of `dask_rows` take part if zarr is installed: there, the encoders and
decoders alone are compared.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any
from unittest import mock

import npzkit
import npzkit.codecs.encoders
import npzkit.zip.chunks
import npzkit.zip.member_writer
import numpy as np
import rows
import works
from bench import QUICK, measure
from data import MIB, keyed, kind, noise, small_arrays
from npzkit.codecs.checksum import crc32
from npzkit.files.threads import run
from npzkit.limits import thread_count
from npzkit.members.array_info import ArrayInfo
from npzkit.members.keys import check_keys
from rich.console import Console
from rich.table import Table
from works import Place, Work

_TAIL_SIZE = 1 << 16
_WARM_COUNT = 10
Contenders = dict[str, Callable[[], object]]
Bounded = tuple[Work, Contenders]
"""A work with its parts, and what is measured many times in a row, with warm caches."""


# -- appending ---------------------------------------------------------------


def bare_append(path: Path, array: np.ndarray, size: int) -> None:
    """Read the end of the file and write as many bytes as an append, in as many calls."""
    descriptor = os.open(path, os.O_RDWR)
    end = os.fstat(descriptor).st_size
    os.pread(descriptor, _TAIL_SIZE, max(end - _TAIL_SIZE, 0))
    offset = end + os.pwrite(descriptor, array.data.cast("B"), end)
    offset += os.pwrite(descriptor, bytes(size - array.nbytes), offset)
    os.pwrite(descriptor, bytes(4), offset - 4)
    os.close(descriptor)


def append_large(place: Place) -> Iterator[Bounded]:
    work = next(works.append_large(place))
    ours, theirs = place.paths("k.npz", "z.npz")
    array, before = np.ones(1_000_000 // 8), ours.stat().st_size
    work.contenders["npzkit"]()
    written = ours.stat().st_size - before
    work.contenders["npzkit"].before()  # type: ignore[attr-defined]
    bare = partial(bare_append, ours, array, written)
    parts: Contenders = {
        "system calls alone": works.restored(ours, bare),
        "CRC-32 alone": lambda: crc32(array.data.cast("B")),
    }
    warm: Contenders = {
        "npzkit, warm caches": works.restored(
            ours, partial(works.append_npzkit, ours, array), _TAIL_SIZE
        ),
        "zipfile, warm caches": works.restored(
            theirs, partial(works.append_zipfile, theirs, array), _TAIL_SIZE
        ),
        "system calls alone, warm caches": works.restored(ours, bare, _TAIL_SIZE),
    }
    yield work._replace(contenders=work.contenders | parts), warm


# -- shapes ------------------------------------------------------------------


class Known:
    """An archive in which each `info` is one look into a dict."""

    def __init__(self, infos: dict[str, ArrayInfo]) -> None:
        self.infos = infos

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def info(self, key: str) -> ArrayInfo:
        return self.infos[key]


def shapes(place: Place) -> Iterator[Bounded]:
    work = next(works.shapes(place))
    with npzkit.open(next(place.paths("k.npz"))) as npz:
        infos = {key: npz.info(key) for key in npz}
    columns = list(zip(*infos.values(), strict=True))

    def make() -> None:
        made = map(tuple.__new__, repeat(ArrayInfo), zip(*columns, strict=True))
        dict(zip(infos, made, strict=True))

    def make_uncollected() -> None:
        gc.disable()
        try:
            make()
        finally:
            gc.enable()

    parts: Contenders = {
        "calls and attributes alone": lambda: _nothing(works.shapes_npzkit(Known(infos))),
        "tuples alone": make,
        "tuples alone, without garbage collection": make_uncollected,
    }
    yield work._replace(contenders=work.contenders | parts), {}


def _nothing(_: object) -> None:
    """Return None, so that results are not compared."""


# -- deflated data -----------------------------------------------------------


class Calls:
    """The calls that a piece of work makes of a function of a module, to repeat."""

    def __init__(self, module: Any, name: str, work: Callable[[], object]) -> None:
        self.tasks: list[Callable[[], Any]] = []
        self._real = getattr(module, name)
        with mock.patch.object(module, name, self._record):
            work()

    def _record(self, *given: Any, **options: Any) -> Any:
        kept = [bytes(one) if isinstance(one, memoryview) else one for one in given]
        self.tasks.append(partial(self._real, *kept, **options))
        return self._real(*given, **options)

    def repeat(self, threads: int) -> None:
        run(self.tasks, threads)


def deflate(place: Place, size: int) -> Iterator[Bounded]:
    """Yield the work of the slowest data sets, with what the encoders alone take."""
    (bare,) = place.paths("bare")
    for name in ("smooth float64", "sparse float64", "text as uint8"):
        array = kind(name, place.part(size))
        work = works.deflate(place, name, {"a": array})

        def save(array: np.ndarray = array) -> None:
            npzkit.savez_compressed(io.BytesIO(), a=array)

        encoded = Calls(npzkit.codecs.encoders, "deflate_chunk", save)
        chosen = Calls(npzkit.zip.member_writer, "choose_encoder", save)
        deflated = np.frombuffer(b"".join(task() for task in encoded.tasks), np.uint8)
        parts: Contenders = {
            "encoders alone, one processor": partial(encoded.repeat, 1),
            "encoders alone, all processors": partial(encoded.repeat, thread_count(None)),
            "choice of the encoders": partial(chosen.repeat, 1),
            "write to a new file": works.fresh(
                bare, partial(works.bare_write, bare, {"a": deflated})
            ),
        }
        yield work._replace(contenders=work.contenders | parts), {}


def slice_own(place: Place) -> Iterator[Bounded]:
    work = next(works.slice_own(place))
    inflated = Calls(npzkit.zip.chunks, "decode_chunk", work.contenders["npzkit"])
    parts: Contenders = {
        "decoder alone, one processor": partial(inflated.repeat, 1),
        "decoder alone, all processors": partial(inflated.repeat, thread_count(None)),
    }
    contenders = {
        name: lambda read=read: _nothing(read()) for name, read in work.contenders.items()
    }
    yield work._replace(contenders=contenders | parts), {}


# -- saving ------------------------------------------------------------------


def save_huge(place: Place) -> Iterator[Bounded]:
    arrays = noise(4, place.part(256 * MIB))
    (bare,) = place.paths("bare")
    work = works.saving(place, "4 x 256 MiB", arrays)
    write = works.fresh(bare, partial(works.bare_write, bare, arrays))
    yield work._replace(contenders=work.contenders | {"system calls alone": write}), {}


def save_keys(place: Place) -> Iterator[Bounded]:
    arrays = keyed("Keras", small_arrays(place.part(10_000)))
    path, bare = place.paths("k.npz", "bare")
    work = works.saving(place, "Keras", arrays)
    npzkit.save(path, arrays)
    piece = np.zeros(1 << 19, np.uint8)
    pieces = dict(enumerate([piece] * max(path.stat().st_size // piece.nbytes, 1)))
    keys = list(arrays)
    parts: Contenders = {
        "system calls alone": works.fresh(bare, partial(works.bare_write, bare, pieces)),
        "copies and CRC-32 alone": lambda: _nothing([crc32(a.tobytes()) for a in arrays.values()]),
        "check of the keys alone": lambda: _nothing(check_keys(keys)),
    }
    yield work._replace(contenders=work.contenders | parts), {}


# -- starting ----------------------------------------------------------------


def command_start(place: Place) -> Iterator[Bounded]:
    *_, work = works.command_start(place)
    parts = {
        "Python alone": works.python("-c", "pass"),
        "Python, NumPy and click alone": works.python("-c", "import numpy, click"),
    }
    yield work._replace(contenders=work.contenders | parts), {}


BOUNDED: dict[str, Callable[[Place], Iterator[Bounded]]] = {
    "append-large": append_large,
    "shapes": shapes,
    "deflate-1": partial(deflate, size=1_000_000),
    "deflate-48": partial(deflate, size=48 * MIB),
    "slice-own": slice_own,
    "save-huge": save_huge,
    "save-keys": save_keys,
    "command-start": command_start,
}
"""By the rows' names in `rows`."""
ROWS = rows.ROWS


def measure_warm(function: Callable[[], object], rounds: int) -> float:
    """Return the median seconds of calls that follow each other."""
    times = []
    for _ in range(_WARM_COUNT * rounds):
        function.before()  # type: ignore[attr-defined]
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def add_lines(table: Table, name: str, bounded: Bounded, rounds: int) -> None:
    """Measure a work, and add a line for each contender and for the aim."""
    work, warm = bounded
    seconds = measure(work.contenders, rounds)
    seconds |= {what: measure_warm(function, rounds) for what, function in warm.items()}
    aim = ROWS[name].aims[0]
    found = [*seconds.items()]
    if aim.peer:
        found.insert(2, (f"aim: {aim.peer} / {aim.limit:g}", seconds[aim.peer] / aim.limit))
    else:
        found.insert(1, ("aim", aim.limit))
    for what, taken in found:
        is_first = what == "npzkit"
        title = f"{ROWS[name].title}: {work.title}" if is_first else ""
        share = "" if is_first else f"{taken / seconds['npzkit']:.2f}"
        table.add_row(title, what, f"{taken * 1e3:.2f}", share)
    table.add_section()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="what bounds npzkit's speed")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", help="rows whose names begin so")
    parser.add_argument("--quick", action="store_true", help="tiny data: only shows that it runs")
    parser.add_argument("--folder", help="where the files go; default: a temporary folder")
    options = parser.parse_args(arguments)
    table = Table("work", "part", "ms", "of npzkit's time", title="medians")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        place = Place(Path(folder), QUICK if options.quick else 1)
        for name, make in BOUNDED.items():
            if name.startswith(options.only or ""):
                for bounded in make(place):
                    add_lines(table, name, bounded, options.rounds)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
