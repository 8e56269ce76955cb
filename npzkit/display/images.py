"""A plane of an array as an image of at most so many pixels, each a value of the array.

Owns the steps between the values that are shown, and which value of a block is shown.
`npzkit.display.sampling` says what reading them costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npzkit.display.sampling import BUDGET, PIECE_SIZE, Box, Proceed, box_of, go_on, read_each


@dataclass(frozen=True, eq=False)
class ImageOverview:
    """What an image shows of a plane.

    Attributes
    ----------
    values : numpy.ndarray
        Values of the array, in its dtype: of shape (rows, columns), and for pictures
        with the axis of colours behind. `npzkit.display.numbers` makes numbers or
        colours of them.
    rows, columns : range
        The positions along the axes down and across that the values have. A step of 1
        means that none is left out.
    is_largest : bool
        Whether each value is the one of the largest magnitude in its block, so that
        the steps hide none that is larger. Otherwise it is the first one.
    """

    values: np.ndarray[Any, Any]
    rows: range
    columns: range
    is_largest: bool = False


def image_overview(
    source: Any,
    items: Sequence[Any] = (slice(None), slice(None)),
    *,
    down: int = 0,
    across: int = 1,
    rows: tuple[int, int | None] = (0, None),
    columns: tuple[int, int | None] = (0, None),
    height: int = 1000,
    width: int = 1000,
    budget: int = BUDGET,
    proceed: Proceed = go_on,
    largest: bool = False,
) -> ImageOverview:
    """Return every so many values of a plane, so few that they can be shown.

    If the window fits into `height` and `width`, and into the budget, these are all
    of its values.

    Parameters
    ----------
    source : numpy.ndarray or lazy array
    items : sequence
        One item per axis: integers, except for `down` and `across`, whose items are
        ignored. One more axis may have ``slice(None)``: the colours of a picture, which
        are kept as the last axis.
    down, across : int
        The axes that lie down and across, in any order.
    rows, columns : (int, int or None)
        The window along these axes, as for a slice.
    height, width : int
        Values down and across, at most.
    budget : int
        Bytes that are read, roughly. Steps get longer until it is enough.
    proceed : callable
        Called between reads; it raises an exception to cancel.
    largest : bool, default False
        Of each block, show the value of the largest magnitude instead of the first, if
        the budget allows to read all values. They are real numbers. NaN counts as larger
        than any number.

    Raises
    ------
    ValueError
        There are other slices, `down` is `across`, or a size is not positive.

    Examples
    --------
    >>> found = image_overview(np.arange(12).reshape(3, 4), down=1, across=0, height=2)
    >>> found.values
    array([[ 0,  4,  8],
           [ 2,  6, 10]])
    >>> found.rows.step, found.columns.step
    (2, 1)
    """
    windows = {down: slice(*rows), across: slice(*columns)}
    whole = [axis for axis, item in enumerate(items) if isinstance(item, slice)]
    colours = [axis for axis in whole if axis not in windows]
    if len(windows) < 2 or len(colours) > 1 or len(items) != len(source.shape):
        raise ValueError("an image needs two axes, and an integer for each other axis")
    if min(height, width) < 1:
        raise ValueError("the height and the width of an image must be positive")
    box = box_of(source, [windows.get(axis, item) for axis, item in enumerate(items)])
    limits = {down: height, across: width}
    # Pieces are cut, and rows are read one by one, along the axis that is slower in storage.
    slower = next(axis for axis in reversed(box.axes) if axis in limits)
    every = [1] * len(box.shape)
    is_largest = largest and min(_costs(box, every, slower)) <= budget
    steps = _steps(box, limits, slower, 1 << 63 if is_largest else budget)
    indices = _pieces(box, every if is_largest else steps, slower, steps)
    pieces = [
        _of_blocks(piece, steps) if is_largest else piece
        for piece in read_each(source, indices, proceed)
    ]
    shape = _counts(box, steps)
    values = np.concatenate(pieces, slower) if pieces else np.empty(shape, source.dtype)
    order = [down, across, *colours]
    values = np.moveaxis(values, order, range(len(order))).reshape([shape[axis] for axis in order])
    return ImageOverview(
        values, _positions(box, down, steps), _positions(box, across, steps), is_largest
    )


def _steps(box: Box, limits: dict[int, int], slower: int, budget: int) -> list[int]:
    """Return the step along each axis, by which the image has few enough values."""
    steps = [
        -(-length // limits[axis]) or 1 if axis in limits else 1
        for axis, length in enumerate(box.shape)
    ]
    while min(_costs(box, steps, slower)) > budget:
        counts = _counts(box, steps)
        longer = max(limits, key=lambda axis: counts[axis])
        if counts[longer] == 1:
            break
        steps[longer] *= 2
    return steps


def _counts(box: Box, steps: list[int]) -> list[int]:
    return [-(-length // step) for length, step in zip(box.shape, steps, strict=True)]


def _positions(box: Box, axis: int, steps: list[int]) -> range:
    return range(box.starts[axis], box.stops[axis], steps[axis])


def _costs(box: Box, steps: list[int], slower: int) -> tuple[int, int]:
    """Return the cost of an image that is read together, with short gaps, and row by row."""
    counts = _counts(box, steps)
    row = [1 if axis == slower else count for axis, count in enumerate(counts)]
    return box.cost(counts, steps), counts[slower] * max(box.cost(row, steps), box.read_size)


def _pieces(
    box: Box, steps: list[int], slower: int, blocks: list[int]
) -> Iterator[tuple[slice, ...]]:
    """Yield indices of parts of an image, each of a few MiB, cut along the slower axis.

    Cuts are between blocks.
    """
    counts = _counts(box, steps)
    if 0 in counts:
        return
    together, by_rows = _costs(box, steps, slower)
    count = max(PIECE_SIZE * counts[slower] // together, 1) if together <= by_rows else 1
    size = -(-count * steps[slower] // blocks[slower]) * blocks[slower]
    parts = [slice(0, length, step) for length, step in zip(box.shape, steps, strict=True)]
    for start in range(0, box.shape[slower], size):
        parts[slower] = slice(start, min(start + size, box.shape[slower]), steps[slower])
        yield box.index(parts)


def _of_blocks(numbers: np.ndarray[Any, Any], blocks: list[int]) -> np.ndarray[Any, Any]:
    """Return the number of the largest magnitude of each block."""
    low = high = numbers
    for axis, size in enumerate(blocks):
        if size > 1:
            starts = np.arange(0, numbers.shape[axis], size)
            high = np.maximum.reduceat(high, starts, axis)
            low = np.minimum.reduceat(low, starts, axis)
    return np.where(np.abs(low) > np.abs(high), low, high)
