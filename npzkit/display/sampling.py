"""Which parts of an array are read for an overview, and how many bytes that takes.

Owns the order of the axes in storage, the cost of a part, and parts that are spread
evenly over an array that is too large to be read. Knows no archive: an array is
anything with `shape`, `dtype` and indexing by integers and slices.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from npzkit.display.blocks import block_shape
from npzkit.files.threads import Pipeline
from npzkit.reading.indexing import ReadHabits, blocks_of_shape

Proceed = Callable[[], object]
"""Called between reads of a few MiB at most. It raises an exception to cancel."""

BUDGET = 1 << 24
"""Bytes that are read for an overview, unless the caller says otherwise."""
PIECE_SIZE = 1 << 21
"""Bytes that are read at a time, roughly."""

_BLOCK_COUNT = 4
"""Reads' worth of bytes in a sampled block: few enough for many blocks."""
_READ_SIZE, _REQUEST_SIZE = 1 << 14, 1 << 15
"""Bytes that count for a smaller read, and for a smaller request: so there are not too many."""
_NEAR_SIZE, _DISTANT_SIZE = 1 << 26, 1 << 23
"""Bytes that are decompressed to reach a part, of a file and of an object in a store."""
_GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it, without their integer part, are spread evenly, and have no period."""


def go_on() -> None:
    """Do nothing, where nobody cancels."""


@dataclass(frozen=True, eq=False)
class Box:
    """A box of an array: a range of positions for each axis.

    Attributes
    ----------
    source : numpy.ndarray or lazy array
    starts, stops : tuple of int
    axes : tuple of int
        The axes, beginning with the one along which items lie side by side.
    gap_size : int
        The bytes of a gap from which on the items on its sides are read one by one.
    read_size : int
        The bytes that count for a read of fewer bytes, if it is one of several.
    """

    source: Any
    starts: tuple[int, ...]
    stops: tuple[int, ...]
    axes: tuple[int, ...]
    gap_size: int
    read_size: int

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(operator.sub, self.stops, self.starts))

    @property
    def size(self) -> int:
        """How many items it has."""
        return math.prod(self.shape)

    def index(self, chosen: Sequence[slice] | None = None) -> tuple[slice, ...]:
        """Return the slices of the source for slices of the box, which may have steps."""
        if chosen is None:
            return tuple(map(slice, self.starts, self.stops))
        return tuple(
            slice(start + part.start, start + part.stop, part.step)
            for start, part in zip(self.starts, chosen, strict=True)
        )

    def cost(self, counts: Sequence[int] | None = None, steps: Sequence[int] | None = None) -> int:
        """Return the bytes that are read for `counts` positions per axis, `steps` apart.

        By default those for the complete box.
        """
        counts = self.shape if counts is None else counts
        steps = [1] * len(counts) if steps is None else steps
        stride = extent = max(int(self.source.dtype.itemsize), 1)
        read_count = 1
        for axis in self.axes:
            count, step = counts[axis], steps[axis]
            if count > 1:
                if step * stride - extent < self.gap_size:
                    extent += (count - 1) * step * stride
                else:
                    read_count *= count
            stride *= self.source.shape[axis]
        if 0 in counts:
            return 0
        return extent if read_count == 1 else read_count * max(extent, self.read_size)


def box_of(source: Any, items: Sequence[Any]) -> Box:
    """Return the box of an array that integers, and slices without steps, choose.

    Axes without an item are taken completely. An integer chooses an axis of length 1.

    Raises
    ------
    IndexError
        An integer is out of bounds, or there are more items than axes.
    ValueError
        A slice has a step.
    """
    shape = tuple(source.shape)
    if len(items) > len(shape):
        raise IndexError(f"{len(items)} indices for an array of {len(shape)} axes")
    bounds = []
    for axis, length in enumerate(shape):
        item = items[axis] if axis < len(items) else slice(None)
        if isinstance(item, slice):
            start, stop, step = item.indices(length)
            if step != 1:
                raise ValueError("an overview takes slices without steps")
            bounds.append((start, max(start, stop)))
        else:
            place = range(length)[operator.index(item)]
            bounds.append((place, place + 1))
    starts, stops = zip(*bounds, strict=True) if bounds else ((), ())
    axes, habits = tuple(range(len(shape))), read_habits(source)
    axes = axes if habits.by_columns else axes[::-1]
    read_size = _READ_SIZE if habits.at_once == 1 else _REQUEST_SIZE
    return Box(source, tuple(starts), tuple(stops), axes, habits.gap_size, read_size)


def read_habits(source: Any) -> ReadHabits:
    """Return how an array is read best, which lazy arrays know."""
    if isinstance(source, np.ndarray):
        return ReadHabits(by_columns=source.flags.fnc)
    habits: ReadHabits = getattr(source, "_read_habits", ReadHabits())
    return habits


class Beginning:
    """The beginning of a lazy array, as an array: what comes later is not decompressed.

    Parameters
    ----------
    source : lazy array
    shape : tuple of int
        Of the part that begins at position 0 of each axis.
    """

    def __init__(self, source: Any, shape: tuple[int, ...]) -> None:
        self._source = source
        self._read_habits = read_habits(source)
        self.shape = shape
        self.dtype: np.dtype[Any] = source.dtype

    def __getitem__(self, index: Any) -> Any:
        return self._source[index]


def reachable(source: Any) -> Any:
    """Return an array, or its beginning if reaching all of it takes long.

    That is so if it is large, and compressed without a seek index: then all data before a
    part has to be decompressed, and from a server to be fetched. Overviews of the result
    stay quick; its shape says how much of the array it is.
    """
    habits = read_habits(source)
    size = _NEAR_SIZE if habits.at_once == 1 else _DISTANT_SIZE
    if not habits.is_in_order or math.prod(source.shape) * source.dtype.itemsize <= size:
        return source
    itemsize, by_columns = source.dtype.itemsize, habits.by_columns
    return Beginning(source, block_shape(source.shape, itemsize, by_columns=by_columns, size=size))


def read_each(
    source: Any, indices: Iterable[tuple[Any, ...]], proceed: Proceed = go_on
) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the parts of an array that several indices choose, in their order.

    Several are read at once if each read waits for an answer, as from a server.
    """
    at_once = read_habits(source).at_once
    found: list[Any] = []
    with Pipeline(at_once) as pipeline:
        for index in indices:
            proceed()
            pipeline.submit(partial(operator.getitem, source, index), found.append)
            while found:
                yield np.asarray(found.pop(0))
        pipeline.drain()
    yield from map(np.asarray, found)


def spread(length: int, count: int, size: int = 1) -> list[int]:
    """Return where `count` parts of `size` begin, one in each equal stretch of a length.

    Where in its stretch a part lies has no period, which an array may have as well.

    Examples
    --------
    >>> spread(100, 4, 10)
    [0, 34, 53, 88]
    """
    edges = [place * length // count for place in range(count + 1)]
    return [
        start + int((stop - start - size + 1) * (place * _GOLDEN % 1))
        for place, (start, stop) in enumerate(pairwise(edges))
    ]


def spread_parts(box: Box, budget: int) -> tuple[Iterator[tuple[slice, ...]], float]:
    """Return indices of parts of a box, and the fraction of its items that these have.

    The parts are the complete box if reading it takes no more than `budget` bytes.
    Otherwise they are blocks that are spread evenly over it.
    """
    shape, itemsize = box.shape, box.source.dtype.itemsize
    by_columns = box.axes[:1] == (0,)
    if box.cost() <= budget or not box.size:
        step = block_shape(shape, itemsize, by_columns=by_columns, size=PIECE_SIZE)
        found = blocks_of_shape(shape, step, by_columns=by_columns) if box.size else iter(())
        return map(box.index, found), 1.0
    step = block_shape(shape, itemsize, by_columns=by_columns, size=_BLOCK_COUNT * box.read_size)
    grid = [-(-length // part) for length, part in zip(shape, step, strict=True)]
    total = math.prod(grid)
    count = min(max(budget // box.cost(step), 1), total)
    # Places are counted in the order of storage.
    places = np.unravel_index(spread(total, count), grid, "F" if by_columns else "C")
    parts = [
        tuple(
            slice(at * part, min((at + 1) * part, length))
            for at, part, length in zip(place, step, shape, strict=True)
        )
        for place in np.transpose(places).tolist()
    ]
    size = sum(math.prod(part.stop - part.start for part in block) for block in parts)
    return map(box.index, parts), size / box.size
