"""Statistics of an array in an archive: extremes, mean, deviation, a histogram.

Owns the result, and how the array is read for it: once, in pieces, on all cores.
`npzkit.analysis.piecewise` measures a piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from npzkit.analysis.part import Part
from npzkit.analysis.piecewise import PieceStatistics, is_numeric, measure
from npzkit.archive.checked_pieces import for_each_piece
from npzkit.archive.lazyarray import LazyArray
from npzkit.archive.npzfile import NpzFile
from npzkit.errors import UnsupportedError
from npzkit.files.progress import Advance, Meter, Report
from npzkit.files.threads import Pipeline, thread_count
from npzkit.sharding.opening import opened

__all__ = ["Histogram", "Statistics", "measure_part", "part_of", "statistics"]


class Histogram(NamedTuple):
    """How many numbers are in each bin, as `numpy.histogram` returns it.

    Attributes
    ----------
    counts : numpy.ndarray of int64
    edges : numpy.ndarray
        Where each bin begins, and where the last one ends: as float64, for dates
        and durations as these.
    """

    counts: np.ndarray[Any, Any]
    edges: np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Statistics:
    """What `statistics` computed.

    Attributes
    ----------
    count : int
        All values, NaNs and infinities included.
    min, max : numpy scalar or None
        Of the values that are not NaN, in the array's dtype. None if there are
        none.
    mean, std : float or None
        Of the finite values, computed in float64. `std` is that of
        ``array.std()``. None if there are none, and for dates and durations.
    nan_count : int
        NaNs; for dates and durations NaTs.
    inf_count : int
        Infinities of both signs.
    histogram : Histogram or None
        Of the finite values: up to 20 bins. None if there are no such values.

    Notes
    -----
    The width of the histogram's bins is a power of two, and they begin at
    multiples of it: so one pass is enough, and the counts are exact. The values
    of complex arrays are their magnitudes.
    """

    count: int
    min: Any
    max: Any
    mean: float | None
    std: float | None
    nan_count: int
    inf_count: int
    histogram: Histogram | None


def statistics(
    file: Any,
    key: str,
    index: Any = (),
    *,
    field: str | None = None,
    threads: int | None = None,
    progress: Report | None = None,
) -> Statistics:
    """Compute the statistics of an array, or of a part of it, without loading it.

    The array is read once, in pieces of a few megabytes, on all cores, and its
    CRC-32 is checked. The CRC-32 of a part cannot be checked.

    Parameters
    ----------
    file : path, bytes-like, file object or NpzFile
    key : str
        Of an array of numbers, bools, dates or durations.
    index : object, optional
        The part to measure, as in ``npz.lazy(key)[index]``. By default the whole
        array. What a list or an array of indices chooses is read at once.
    field : str, optional
        The field to measure, of a structured array.
    threads : int, optional
        By default one per processor.
    progress : callable, optional
        Called with the bytes done and the total, in this thread: every few
        megabytes, and at the end.

    Returns
    -------
    Statistics

    Raises
    ------
    UnsupportedError
        The array, or its field, does not hold numbers.
    IndexError
        The array has no such part or field.
    OSError, NpzkitError
        As `npzkit.open` and `NpzFile.read`.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"w": np.array([[1.0, 2.0, np.nan], [4.0, 6.0, np.inf]])})
    >>> found = npzkit.statistics(stream, "w")
    >>> found.count, found.min, found.mean, found.nan_count, found.inf_count
    (6, np.float64(1.0), 3.25, 1, 1)
    >>> found.histogram.counts.sum()
    np.int64(4)
    >>> npzkit.statistics(stream, "w", np.s_[:, 0]).mean
    2.5
    """
    with opened(file) as npz:
        part = part_of(npz, key, index, field)
        meter = Meter(progress, part.nbytes)
        found = measure_part(npz, key, part, meter.add, threads)
        meter.finish()
        return found


def part_of(npz: NpzFile, key: str, index: Any = (), field: str | None = None) -> Part:
    """Return a part of an array; an array of Python objects is read completely.

    Raises
    ------
    IndexError
        The array has no such part or field.
    NpzkitError
        As `NpzFile.lazy` and, for Python objects, `NpzFile.read`.
    """
    info = npz.info(key)
    # A new axis changes no value.
    items = tuple(
        item for item in (index if isinstance(index, tuple) else (index,)) if item is not None
    )
    if info.dtype is not None and info.dtype.hasobject:
        return Part(npz.read(key), items, field)
    return Part(npz.lazy(key), items, field, fortran_order=bool(info.fortran_order))


def measure_part(
    npz: NpzFile, key: str, part: Part, advance: Advance, threads: int | None = None
) -> Statistics:
    """Compute the statistics of a part of the array `key`; see `statistics`."""
    if not is_numeric(part.dtype):
        raise UnsupportedError(
            "statistics need numbers",
            path=npz._archive.path, key=key, found=part.dtype,
            remedy="Choose a field that holds numbers: field='name'." if part.dtype.names else None,
        )  # fmt: skip
    found = PieceStatistics()
    if part.is_whole and isinstance(part.source, LazyArray):

        def compute(piece: Any) -> PieceStatistics:
            return measure(part.field_of(piece), part.dtype)

        for_each_piece(npz, key, compute, found.merge, advance, threads)
    else:
        with Pipeline(thread_count(threads)) as pipeline:
            for piece in part.pieces():
                pipeline.submit(partial(measure, piece, part.dtype), found.merge)
                advance(np.asarray(piece).nbytes)
    return _statistics_of(found, part.dtype)


def _statistics_of(found: PieceStatistics, dtype: np.dtype[Any]) -> Statistics:
    bins = found.bins
    has_moments = bins is not None and dtype.kind not in "mM"
    return Statistics(
        count=found.count,
        min=_scalar(found.least, dtype),
        max=_scalar(found.most, dtype),
        mean=found.mean if has_moments else None,
        std=found.deviation if has_moments else None,
        nan_count=found.nan_count,
        inf_count=found.inf_count,
        histogram=bins and Histogram(np.array(bins.counts, np.int64), bins.edges(dtype)),
    )


def _scalar(number: Any, dtype: np.dtype[Any]) -> Any:
    """Return a computed number in the array's own type: a date, a bool, a float16."""
    if number is None:
        return None
    if dtype.kind in "mM":
        return np.int64(number).view(dtype.newbyteorder("="))
    # Magnitudes of complex numbers are floats, and so are ml_dtypes' numbers here.
    return dtype.type(number) if dtype.kind in "biuf" else number
