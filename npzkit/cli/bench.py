"""The command that measures how fast a file is read here, by npzkit and by NumPy."""

from __future__ import annotations

import functools
import math
import statistics
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import click
import numpy as np

import npzkit
from npzkit.cli.opening import named_file
from npzkit.cli.output import format_size, json_option, print_json, print_table, progress

__all__ = ["bench"]

_KEPT_SIZE = 1 << 28
"""Bytes of arrays up to which all are kept in memory at once; more are read one by one."""
_SHARE = 100
"""Of how many parts of the largest array one is read."""


class _Work(NamedTuple):
    """Something that both can do; each returns what it read, to be compared."""

    name: str
    size: int
    ours: Callable[[], Any]
    theirs: Callable[[], Any]


@click.command()
@click.argument("file", type=named_file)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="How often each is measured.",
)
@json_option
def bench(file: str, rounds: int, as_json: bool) -> None:
    """Measure how fast FILE is read here, by npzkit and by NumPy.

    The two take turns. Times are medians, for a file that is in the
    system's cache. Python objects and members that are no arrays are left out.

    Example: npzkit bench model.npz --rounds 3
    """
    with npzkit.open(file) as npz:
        works = list(_works(file, npz))
    total, done = (rounds + 1) * sum(work.size for work in works), 0
    rows = []
    with progress("bench") as tell:
        for work in works:
            can_they = _agree(work)
            ours, theirs = [], []
            for _ in range(rounds):
                ours.append(_seconds(work.ours))
                if can_they:
                    theirs.append(_seconds(work.theirs))
                done += work.size
                tell(done, total)
            done += work.size
            their_time = statistics.median(theirs) if theirs else None
            rows.append((work, statistics.median(ours), their_time))
    if as_json:
        print_json({"path": file, "rounds": rounds, "work": [
            {"name": work.name, "size": work.size, "npzkit": ours, "numpy": theirs}
            for work, ours, theirs in rows
        ]})  # fmt: skip
        return
    print_table(
        ["work", ("bytes", "right"), ("npzkit", "right"), ("NumPy", "right"), ("ratio", "right"),
         ("npzkit's speed", "right")],
        [_cells(*row) for row in rows],
    )  # fmt: skip


def _cells(work: _Work, ours: float, theirs: float | None) -> list[str]:
    return [
        work.name,
        format_size(work.size),
        _format_seconds(ours),
        "cannot" if theirs is None else _format_seconds(theirs),
        "" if theirs is None else f"{theirs / ours:.1f} x",
        f"{format_size(round(work.size / ours))}/s" if work.size else "",
    ]


def _format_seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    found = function()
    seconds = time.perf_counter() - begin
    # What it read is dropped when the clock stands.
    del found
    return seconds


def _works(file: str, npz: npzkit.NpzFile) -> Iterator[_Work]:
    """Yield what is measured: opening, reading all, reading a part."""
    infos = [npz.info(key) for key in npz]
    infos = [info for info in infos if info.dtype is not None and not info.dtype.hasobject]
    keys = [info.key for info in infos]
    size = sum(info.nbytes for info in infos)
    yield _Work(
        "open", 0, functools.partial(_keys, npzkit.open, file),
        functools.partial(_keys, np.load, file),
    )  # fmt: skip
    if not keys:
        return
    if size <= _KEPT_SIZE:
        yield _Work(
            "read all", size, functools.partial(_load_all, file, keys),
            functools.partial(_read_all, file, keys),
        )  # fmt: skip
    else:
        yield _Work(
            "read all, one by one", size, functools.partial(_read_each, npzkit.open, file, keys),
            functools.partial(_read_each, np.load, file, keys),
        )  # fmt: skip
    largest = max(infos, key=lambda info: info.nbytes)
    if largest.shape and largest.nbytes:
        part = _part(largest.shape, bool(largest.fortran_order))
        share = math.prod(axis.stop - axis.start for axis in part) / math.prod(largest.shape)
        yield _Work(
            "read a part of the largest", round(largest.nbytes * share),
            functools.partial(_our_part, file, largest.key, part),
            functools.partial(_their_part, file, largest.key, part),
        )  # fmt: skip


def _part(shape: tuple[int, ...], fortran_order: bool) -> tuple[slice, ...]:
    """Return about a hundredth of an array, from its middle, along its slowest axis."""
    part = [slice(0, length) for length in shape]
    axis = len(shape) - 1 if fortran_order else 0
    middle, size = shape[axis] // 2, max(shape[axis] // _SHARE, 1)
    part[axis] = slice(middle, min(middle + size, shape[axis]))
    return tuple(part)


def _keys(load: Callable[..., Any], file: str) -> list[str]:
    with load(file) as npz:
        return list(npz.files)


def _load_all(file: str, keys: list[str]) -> dict[str, Any]:
    with npzkit.open(file) as npz:
        return npz.load_all(keys)


def _read_all(file: str, keys: list[str]) -> dict[str, Any]:
    with np.load(file) as npz:
        return {key: npz[key] for key in keys}


def _read_each(load: Callable[..., Any], file: str, keys: list[str]) -> dict[str, Any]:
    with load(file) as npz:
        for key in keys:
            npz[key]
    return {}


def _our_part(file: str, key: str, part: tuple[slice, ...]) -> dict[str, Any]:
    with npzkit.open(file) as npz:
        return {key: npz.lazy(key)[part]}


def _their_part(file: str, key: str, part: tuple[slice, ...]) -> dict[str, Any]:
    with np.load(file) as npz:
        return {key: npz[key][part]}


def _agree(work: _Work) -> bool:
    """Do the work once on either side; whether NumPy can do it.

    Raises
    ------
    click.ClickException
        The two read different things, so that their times tell nothing.
    """
    ours = work.ours()
    try:
        with warnings.catch_warnings(action="ignore"):
            theirs = work.theirs()
    except (ValueError, NotImplementedError, RuntimeError, EOFError, OSError, KeyError,
            zipfile.BadZipFile):  # fmt: skip
        return False
    if isinstance(ours, dict):
        same = ours.keys() == theirs.keys() and all(
            _is_same(ours[key], theirs[key]) for key in ours
        )
    else:
        same = ours == theirs
    if not same:
        raise click.ClickException(
            f"{work.name}: np.load and npzkit read different things from this file; "
            "see npzkit verify"
        )
    return True


def _is_same(ours: Any, theirs: Any) -> bool:
    """Whether two arrays are the same bytes; NumPy has no names for some dtypes."""
    theirs = np.asarray(theirs)
    return bool(
        ours.shape == theirs.shape
        and ours.dtype.itemsize == theirs.dtype.itemsize
        and ours.tobytes() == theirs.tobytes()
    )
