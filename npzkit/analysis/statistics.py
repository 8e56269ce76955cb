"""Statistics of an array in an archive: extremes, mean, deviation, a histogram.

Owns how the array is read for it: once, in pieces, on all cores. `npzkit.display.piecewise`
measures a piece, and `npzkit.display.histograms` owns the result.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from npzkit.analysis.part import ArrayPart
from npzkit.archive.lazyarray import LazyArray
from npzkit.archive.npzfile import NpzFile
from npzkit.datasets.opening import opened
from npzkit.display.histograms import Statistics, statistics_of
from npzkit.display.piecewise import PieceStatistics, is_numeric, measure
from npzkit.errors import UnsupportedError
from npzkit.files.progress import Advance, Meter, Report
from npzkit.files.threads import Pipeline, thread_count
from npzkit.reading.blocks import for_each_piece


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
        info = npz.info(key)
        has_objects = info.dtype is not None and info.dtype.hasobject
        source = npz.read(key) if has_objects else npz.lazy(key)
        part = ArrayPart(source, index, field, fortran_order=bool(info.fortran_order))
        meter = Meter(progress, part.nbytes)
        found = _measure(npz, key, part, meter.add, threads)
        meter.finish()
        return found


def _measure(
    npz: NpzFile, key: str, part: ArrayPart, advance: Advance, threads: int | None
) -> Statistics:
    """Compute the statistics of a part of the array `key`."""
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
    return statistics_of(found, part.dtype)
