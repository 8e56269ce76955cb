"""The histogram and the statistics of an array, exact or of a sample that is spread over it.

Owns their records, and what is read for an overview. `npzkit.display.piecewise` measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from npzkit.display.cells import cell_text
from npzkit.display.piecewise import PieceStatistics, is_numeric, measure
from npzkit.display.sampling import BUDGET, Proceed, box_of, go_on, read_each, spread_parts
from npzkit.tables import Markup, block, line, table

_BARS_SIZE = 160, 60
"""CSS pixels of the bars in a notebook."""


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

    def _repr_html_(self) -> str:
        return block([line("Statistics"), *_markup(self)])


@dataclass(frozen=True, eq=False)
class HistogramOverview:
    """What `histogram_overview` found.

    Attributes
    ----------
    statistics : Statistics
        Count, extremes, mean, deviation, NaNs, infinities and histogram of the values
        that were read.
    sampled : float
        The fraction of the values that was read: 1.0 if the statistics are exact.
    """

    statistics: Statistics
    sampled: float


def histogram_overview(
    source: Any, items: Sequence[Any] = (), *, budget: int = BUDGET, proceed: Proceed = go_on
) -> HistogramOverview:
    """Return the histogram and the statistics of an array, or of a part of it.

    They are exact if reading the values takes no more than `budget` bytes. Otherwise
    blocks are read that are spread evenly over all of it. Complex numbers count by
    their magnitude.

    Parameters
    ----------
    source : numpy.ndarray or lazy array
    items : sequence, optional
        For each axis an integer or a slice without a step; by default all.
    budget : int
        Bytes that are read, roughly.
    proceed : callable
        Called between reads; it raises an exception to cancel.

    Raises
    ------
    TypeError
        The values are not numbers.

    Examples
    --------
    >>> found = histogram_overview(np.arange(1_000_000), budget=1 << 20)
    >>> found.sampled, found.statistics.count
    (0.131072, 131072)
    """
    dtype = source.dtype
    if not is_numeric(dtype):
        raise TypeError(f"values of dtype {dtype} are not numbers")
    parts, sampled = spread_parts(box_of(source, items), budget)
    found = PieceStatistics()
    for values in read_each(source, parts, proceed):
        found.merge(measure(values, dtype))
    return HistogramOverview(statistics_of(found, dtype), sampled)


def statistics_of(found: PieceStatistics, dtype: np.dtype[Any]) -> Statistics:
    """Return what was measured of an array as its statistics."""
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


def _markup(found: Statistics) -> Iterator[Markup]:
    """Yield a table of the numbers, and the bars of the histogram, as HTML."""
    names = ["count", "min", "max", "mean", "std", "nan_count", "inf_count"]
    heads = [*names[:5], "NaN", "infinite"]
    numbers = [getattr(found, name) for name in names]
    facts = [
        (head, _number_text(number))
        for head, number in zip(heads, numbers, strict=True)
        if number is not None
    ]
    yield table((), facts)
    if found.histogram is not None:
        low, *_, high = found.histogram.edges
        if isinstance(found.min, np.bool_):
            # The last bin ends where 2 would be.
            low, high = found.min, found.max
        yield _bars_markup(found.histogram.counts.tolist())
        yield line(f"{_number_text(low)} to {_number_text(high)}")


def _bars_markup(counts: Sequence[int]) -> Markup:
    """Return the bars of a histogram as SVG, in the colour of the page's text."""
    width, height = _BARS_SIZE
    step, largest = width / len(counts), max(counts)
    bars = ""
    for place, count in enumerate(counts):
        # A rare value can still be seen.
        tall = max(count / largest * height, 1) if count else 0
        bars += f"M{place * step:.1f} {height}v{-tall:.1f}h{max(step - 1, 0.5):.1f}v{tall:.1f}z"
    return Markup(
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'aria-hidden="true"><path d="{bars}" fill="currentColor"/></svg>'
    )


def _number_text(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else cell_text(number)


def _scalar(number: Any, dtype: np.dtype[Any]) -> Any:
    """Return a computed number in the array's own type: a date, a bool, a float16."""
    if number is None:
        return None
    if dtype.kind in "mM":
        return np.int64(number).view(dtype.newbyteorder("="))
    # Magnitudes of complex numbers are floats, and so are ml_dtypes' numbers here.
    return dtype.type(number) if dtype.kind in "biuf" else number
