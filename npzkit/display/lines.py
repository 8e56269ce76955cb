"""A line through an array, as at most so many pixels, each with its least and largest value.

Owns what a pixel shows of many values. `npzkit.display.sampling` says what is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npzkit.display.numbers import Part, as_drawn
from npzkit.display.sampling import (
    BUDGET,
    PIECE_SIZE,
    Box,
    Proceed,
    box_of,
    go_on,
    read_each,
    spread,
)


@dataclass(eq=False)
class LineOverview:
    """What a line shows of the values along one axis.

    Attributes
    ----------
    edges : numpy.ndarray of int64
        The position at which each pixel begins, and where the last one ends: one more
        than there are pixels. The pixel `i` stands for ``range(edges[i], edges[i + 1])``.
    low, high : numpy.ndarray
        The least and the largest number in each pixel, of those that are not NaN. NaN
        if it has no others. Infinities count.
    nan_count, inf_count : int
        Of the values that were read.
    sampled : float
        The fraction of the values that was read: 1.0 if the overview is exact.
    """

    edges: np.ndarray[Any, Any]
    low: np.ndarray[Any, Any]
    high: np.ndarray[Any, Any]
    nan_count: int = 0
    inf_count: int = 0
    sampled: float = 1.0

    @property
    def has_values(self) -> bool:
        """Whether each pixel is one value, so that `low` is `high`."""
        return bool(len(self.low) == self.edges[-1] - self.edges[0])

    def _add(self, first: int, values: np.ndarray[Any, Any]) -> None:
        """Add the values from the position `first` on."""
        self.nan_count += int(np.count_nonzero(np.isnan(values)))
        self.inf_count += int(np.count_nonzero(np.isinf(values)))
        begin = int(np.searchsorted(self.edges, first, "right")) - 1
        end = int(np.searchsorted(self.edges, first + len(values), "left"))
        places = np.maximum(self.edges[begin:end] - first, 0).astype(np.intp)
        for pixels, least in ((self.low, np.fmin), (self.high, np.fmax)):
            found = least.reduceat(values, places)
            pixels[begin:end] = least(pixels[begin:end], found)


def line_overview(
    source: Any,
    items: Sequence[Any] = (slice(None),),
    *,
    start: int = 0,
    stop: int | None = None,
    width: int = 1000,
    part: Part = "magnitude",
    budget: int = BUDGET,
    proceed: Proceed = go_on,
) -> LineOverview:
    """Return the least and the largest value in each pixel of a line.

    If the window has no more values than `width`, each pixel is one of them. If all
    values take no more than `budget` bytes to read, the overview is exact. Otherwise
    some neighbours are read within each pixel, and there may be fewer pixels.

    Parameters
    ----------
    source : numpy.ndarray or lazy array
        Of numbers.
    items : sequence
        One item per axis: a slice for the axis that is drawn, which is otherwise
        ignored, and integers.
    start, stop : int
        The window of the axis that is drawn; by default all of it.
    width : int
        Pixels, at most.
    part : {"magnitude", "phase", "real", "imag"}
        Of complex numbers.
    budget : int
        Bytes that are read, roughly.
    proceed : callable
        Called between reads; it raises an exception to cancel.

    Raises
    ------
    ValueError
        `items` has no slice, or several; or `width` is not positive.
    TypeError
        The values are not numbers.

    Examples
    --------
    >>> found = line_overview(np.array([1.0, 5.0, np.nan, 2.0]), width=2)
    >>> found.low, found.high, found.edges, found.nan_count
    (array([1., 2.]), array([5., 2.]), array([0, 2, 4]), 1)
    """
    drawn = [axis for axis, item in enumerate(items) if isinstance(item, slice)]
    if len(drawn) != 1 or len(items) != len(source.shape) or width < 1:
        raise ValueError("a line needs one item per axis, one of them a slice, and a width")
    axis = drawn[0]
    box = box_of(source, [*items[:axis], slice(start, stop), *items[axis + 1 :]])
    begin, length = box.starts[axis], box.shape[axis]
    edges, size = _pixels(box, axis, min(width, length), budget)
    count = len(edges) - 1
    line = LineOverview(edges + begin, np.full(count, np.nan), np.full(count, np.nan))
    read_count = 0
    if size is None:
        runs = _all_runs(box, axis)
    else:
        # One run in each pixel.
        runs = [slice(first, first + size) for first in spread(length, count, size)]
    found = read_each(source, (box.index(_along(box, axis, run)) for run in runs), proceed)
    for run, values in zip(runs, found, strict=True):
        line._add(begin + run.start, as_drawn(values, part).reshape(-1))
        read_count += run.stop - run.start
    line.sampled = read_count / length if length else 1.0
    return line


def _along(box: Box, axis: int, chosen: Any, other: Any = slice(0, 1)) -> list[Any]:
    """Return a list with an item for each axis: what is chosen of one, and of each other."""
    return [chosen if i == axis else other for i in range(len(box.shape))]


def _pixels(
    box: Box, axis: int, count: int, budget: int
) -> tuple[np.ndarray[Any, Any], int | None]:
    """Return the edges of pixels, and how many values are read in each; None for all."""
    length, size = box.shape[axis], None
    if _cost(box, axis, length) > budget:
        size = 1
        count = max(min(count, budget // _alone(box, axis, 1)), 1)
        while 2 * size * count <= length and _alone(box, axis, 2 * size) * count <= budget:
            size *= 2
    places = [place * length // max(count, 1) for place in range(count + 1)]
    return np.array(places, np.int64), size


def _cost(box: Box, axis: int, count: int) -> int:
    return box.cost(_along(box, axis, count, 1))


def _alone(box: Box, axis: int, count: int) -> int:
    """Return the cost of a run that is one of several: a read has a price of its own."""
    return max(_cost(box, axis, count), box.read_size)


def _all_runs(box: Box, axis: int) -> list[slice]:
    """Return runs that together are the line, each of a few MiB."""
    length = box.shape[axis]
    step = max(length * PIECE_SIZE // max(_cost(box, axis, length), 1), 1)
    return [slice(first, min(first + step, length)) for first in range(0, length, step)]
