"""How fast an archive is read here, by npzkit and by NumPy.

Owns what is measured, and that both read the same. The two take turns, so that a
busy moment of the machine affects both.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from npzkit.archive.npzfile import NpzFile
from npzkit.errors import AmbiguousArchiveError, NpzkitError, printable
from npzkit.files.progress import Meter, Report
from npzkit.files.urls import check_local, find_location
from npzkit.sharding.opening import open

_KEPT_SIZE = 1 << 28
"""The most bytes of arrays that are read all at once; larger archives are read one by one."""
_NOT_COMPARED = (
    "npzkit and NumPy cannot be compared on an archive in a store, because np.load reads no URLs",
    "Download the file, and measure the copy.",
)
_SHARE = 100
"""The largest array is divided by this number, and one part is read."""


class Timing(NamedTuple):
    """How long one piece of work takes.

    Attributes
    ----------
    name : str
        ``"open"``, ``"read all"`` or, for more than 256 MiB, ``"read all, one by
        one"``; ``"read a part of the largest"``, about a hundredth of it.
    size : int
        Bytes of the arrays that are read.
    npzkit : float
        Seconds; the median of all rounds.
    numpy : float or None
        The same; None if NumPy cannot do it.
    """

    name: str
    size: int
    npzkit: float
    numpy: float | None

    @property
    def ratio(self) -> float | None:
        """NumPy's time divided by npzkit's."""
        return None if self.numpy is None else self.numpy / self.npzkit


class BenchmarkReport(NamedTuple):
    """What `benchmark` measured.

    Attributes
    ----------
    path : str
    rounds : int
        How often each was measured.
    rows : tuple of Timing
    """

    path: str
    rounds: int
    rows: tuple[Timing, ...]

    def __str__(self) -> str:
        """Return a line for each piece of work."""
        return "\n".join([printable(self.path), *map(_line, self.rows)])


def _line(row: Timing) -> str:
    text = f"{row.name}: {1e3 * row.npzkit:.3g} ms"
    if row.numpy is None:
        return f"{text}, NumPy cannot"
    return f"{text}, NumPy {1e3 * row.numpy:.3g} ms ({row.ratio:.1f} x)"


def benchmark(
    path: str | os.PathLike[str], rounds: int = 5, *, progress: Report | None = None
) -> BenchmarkReport:
    """Measure how fast an archive is read here, by npzkit and by NumPy.

    Use it to choose how to save an archive: stored or deflated, in which chunks. The
    file is in the system's cache. Python objects and members that are not arrays are
    left out.

    Parameters
    ----------
    path : path
    rounds : int, default 5
        How often each piece of work is measured. npzkit and NumPy take turns.
    progress : callable, optional
        Called with the bytes done and the total, after each piece of work.

    Returns
    -------
    BenchmarkReport

    Raises
    ------
    AmbiguousArchiveError
        NumPy and npzkit read different arrays from the file.
    UnsupportedError
        The path is the URL of a store or a web server.
    OSError, NpzkitError
        As `npzkit.open` and `NpzFile.read`.
    ValueError
        `rounds` is less than 1.

    Examples
    --------
    >>> import npzkit
    >>> report = npzkit.benchmark("fixtures/numpy_savez.npz", rounds=1)
    >>> [row.name for row in report.rows]
    ['open', 'read all', 'read a part of the largest']
    >>> report.rows[1].size, report.rows[1].npzkit > 0, report.rows[1].ratio > 0
    (..., True, True)
    """
    if rounds < 1:
        raise ValueError(f"rounds must be 1 or more, not {rounds}")
    check_local(path, *_NOT_COMPARED)
    path = os.fsdecode(find_location(path))
    with open(path) as npz:
        works = list(_works(path, npz))
    meter = Meter(progress, (rounds + 1) * sum(work.size for work in works))
    try:
        rows = tuple(_measured(work, rounds, meter) for work in works)
    except NpzkitError as error:
        raise error.locate(path=path) from error.__cause__
    meter.finish()
    return BenchmarkReport(path, rounds, rows)


def _measured(work: _Work, rounds: int, meter: Meter) -> Timing:
    can_they = _agree(work)
    meter.add(work.size)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(_seconds(work.ours))
        if can_they:
            theirs.append(_seconds(work.theirs))
        meter.add(work.size)
    their_time = statistics.median(theirs) if theirs else None
    return Timing(work.name, work.size, statistics.median(ours), their_time)


class _Work(NamedTuple):
    """Something that both can do; each returns what it read, to be compared."""

    name: str
    size: int
    ours: Callable[[], Any]
    theirs: Callable[[], Any]


def _seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    found = function()
    seconds = time.perf_counter() - begin
    # What it read is freed after the clock has stopped.
    del found
    return seconds


def _works(file: str, npz: NpzFile) -> Iterator[_Work]:
    """Yield what is measured: opening, reading all, reading a part."""
    infos = [npz.info(key) for key in npz]
    infos = [info for info in infos if info.dtype is not None and not info.dtype.hasobject]
    keys = [info.key for info in infos]
    size = sum(info.nbytes for info in infos)
    yield _Work(
        "open", 0, functools.partial(_keys, open, file),
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
            "read all, one by one", size, functools.partial(_read_each, open, file, keys),
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
    with open(file) as npz:
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
    with open(file) as npz:
        return {key: npz.lazy(key)[part]}


def _their_part(file: str, key: str, part: tuple[slice, ...]) -> dict[str, Any]:
    with np.load(file) as npz:
        return {key: npz[key][part]}


def _agree(work: _Work) -> bool:
    """Do the work once on either side; whether NumPy can do it.

    Raises
    ------
    AmbiguousArchiveError
        The two read different arrays, so that their times mean nothing.
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
        raise AmbiguousArchiveError(
            f"np.load and npzkit read different arrays from this file ({work.name})",
            remedy="npzkit.verify(path) shows what is unusual about it.",
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
