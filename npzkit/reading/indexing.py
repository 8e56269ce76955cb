"""An index expression and a shape: what must be read, and how NumPy indexes that.

Owns NumPy's indexing rules, and the blocks of which an array is made up. Knows no file: the answer
is, for each axis, the positions that are needed, and an index that NumPy applies to the block of
exactly these positions. NumPy itself raises its errors, on an array of a few bytes, but for what is
out of bounds: on a 32-bit system it has no longer axes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Positions = range | np.ndarray[Any, Any]
"""Ascending, each once: a range with a positive step, or an array of int64."""
Box = tuple[tuple[int, int], ...]
"""Where a part of an array begins and ends, for each axis; axes that it lacks are complete."""


@dataclass(frozen=True)
class Selection:
    """What an index expression needs of an array.

    Attributes
    ----------
    positions : tuple of range or numpy.ndarray
        One for each axis of the array; ascending, without repeats.
    index : tuple
        What gives the result of the block of these positions.
    """

    positions: tuple[Positions, ...]
    index: tuple[Any, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the block."""
        return tuple(map(count_of, self.positions))


class ReadHabits(NamedTuple):
    """How a lazy array is read.

    Attributes
    ----------
    gap_size : int
        A gap between two items that is shorter than these bytes is read as well.
    at_once : int
        How many reads are best made at a time: several, if each is a request.
    by_columns : bool
        Whether it is stored in Fortran's order.
    is_in_order : bool
        Whether data before a part is decompressed first, because there is no seek index.
    """

    gap_size: int = 1 << 14
    at_once: int = 1
    by_columns: bool = False
    is_in_order: bool = False


def count_of(positions: Positions) -> int:
    """Return how many there are; on a 32-bit system, len does not count so far.

    Examples
    --------
    >>> count_of(range(0, 10**30, 2))
    500000000000000000000000000000
    """
    if isinstance(positions, range):
        return max(-((positions.start - positions.stop) // positions.step), 0)
    return len(positions)


def select(index: Any, shape: tuple[int, ...]) -> Selection:
    """Work out an index expression for an array of `shape`.

    Parameters
    ----------
    index : object
        Integers, slices, Ellipsis, newaxis, and one array or list of integers
        or of booleans among them.
    shape : tuple of int

    Raises
    ------
    IndexError
        What NumPy refuses, in its words; and more than one array.

    Examples
    --------
    >>> selection = select((slice(None, None, -2), [4, 1, 4]), (5, 6))
    >>> selection.positions
    (range(0, 6, 2), array([1, 4]))
    >>> selection.index
    (slice(None, None, -1), array([1, 0, 1]))
    """
    parts = index if isinstance(index, tuple) else (index,)
    items = list(map(_item, parts))
    _check(parts, items, shape)
    positions: list[Positions] = []
    mapped: list[Any] = []
    for item in _with_all_axes(items, len(shape)):
        axis_count = _axis_count(item)
        sizes = shape[len(positions) : len(positions) + axis_count]
        needed, again = _map(item, sizes)
        positions += needed
        mapped.append(again)
    return Selection(tuple(positions), tuple(mapped))


def _item(item: Any) -> Any:
    """Normalise one part: an int, a slice, None, Ellipsis or an array."""
    if item is None or item is Ellipsis or isinstance(item, (slice, str, bytes)):
        return item
    if isinstance(item, (bool, np.bool_)):
        return np.asarray(item)
    try:
        return operator.index(item)
    except TypeError:
        pass
    try:
        array = np.asarray(item)
    except ValueError:
        return item
    if isinstance(item, (list, tuple)) and array.size == 0:
        # NumPy takes an empty list for one of integers.
        array = array.astype(np.intp)
    if array.ndim == 0 and array.dtype.kind in "iu":
        return int(array)
    return array


def _check(parts: tuple[Any, ...], items: list[Any], shape: tuple[int, ...]) -> None:
    """Raise NumPy's errors, also for a shape that it does not support."""
    if sum(isinstance(item, np.ndarray) for item in items) > 1:
        raise IndexError(
            "at most one array or list of indices can be used at a time; "
            "index by one of them, and the result by both: lazy[rows][range(len(rows)), columns]"
        )
    complete = _with_all_axes(items, len(shape))
    probed = [size for item in complete for size in _probed_sizes(item)]
    probe = np.zeros((probed + [1] * len(shape))[: len(shape)], np.bool_)
    probe[tuple(map(_probed, parts, items))]
    axis = 0
    for item in complete:
        _check_bounds(item, axis, shape)
        axis += _axis_count(item)


def _is_mask(item: Any) -> bool:
    return isinstance(item, np.ndarray) and item.dtype == np.bool_


def _probed_sizes(item: Any) -> tuple[int, ...]:
    """Return the axes for which a part is right, if it is right for any."""
    return item.shape if _is_mask(item) else (1,) * _axis_count(item)


def _probed(part: Any, item: Any) -> Any:
    """Let numbers choose the first position: an index array makes a copy, of any size."""
    if isinstance(item, int) and -(1 << 63) <= item < 1 << 63:
        return 0
    if isinstance(item, np.ndarray) and item.dtype.kind in "iu":
        return np.zeros((1,) * item.ndim, np.intp)
    return part


def _check_bounds(item: Any, axis: int, shape: tuple[int, ...]) -> None:
    """Raise NumPy's IndexError for a part that has no place on its axis, or on several."""
    if _is_mask(item):
        for at, (found, size) in enumerate(zip(item.shape, shape[axis:], strict=False), axis):
            if found != size:
                raise IndexError(
                    f"boolean index did not match indexed array along axis {at}; size of axis "
                    f"is {size} but size of corresponding boolean axis is {found}"
                )
    elif isinstance(item, (int, np.ndarray)):
        size, numbers = shape[axis], np.asarray(item).reshape(-1)
        outside = numbers[(numbers < -size) | (numbers >= size)]
        if len(outside):
            raise IndexError(
                f"index {outside[0]} is out of bounds for axis {axis} with size {size}"
            )


def _axis_count(item: Any) -> int:
    """Axes of the array that a part of the index uses up."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if _is_mask(item) else 1


def _with_all_axes(items: list[Any], ndim: int) -> list[Any]:
    """Write out the slices that an Ellipsis, or its absence, stands for.

    The Ellipsis stays: it makes an array of what would be a scalar, and even
    where it stands for no axis it parts an array from an integer.
    """
    full = [slice(None)] * (ndim - sum(map(_axis_count, items)))
    for place, item in enumerate(items):
        if item is Ellipsis:
            return [*items[:place], *full, *items[place:]]
    return [*items, *full]


def _map(item: Any, sizes: tuple[int, ...]) -> tuple[list[Positions], Any]:
    """Return the positions that one part needs, and its index into them."""
    if item is None or item is Ellipsis:
        return [], item
    if isinstance(item, slice):
        chosen = range(sizes[0])[item]
        if chosen.step < 0:
            return [chosen[::-1]], slice(None, None, -1)
        return [chosen], slice(None)
    if not isinstance(item, np.ndarray):
        place = item % sizes[0]
        return [range(place, place + 1)], 0
    if item.dtype == np.bool_:
        return _map_mask(item, sizes)
    return _map_integers(item, sizes[0])


def _map_mask(mask: np.ndarray[Any, Any], sizes: tuple[int, ...]) -> tuple[list[Positions], Any]:
    """Need the rows in which anything is True, of the mask's first axis."""
    if mask.ndim == 0:
        return [], mask
    row_size = math.prod(mask.shape[1:])
    rows = np.flatnonzero(mask.reshape(len(mask), row_size).any(axis=1))
    return [_compact(rows.astype(np.int64)), *map(range, sizes[1:])], mask[rows]


def _map_integers(array: np.ndarray[Any, Any], size: int) -> tuple[list[Positions], Any]:
    """Need each position once; the index repeats and reorders them."""
    places = array.astype(np.int64)
    places[places < 0] += size
    needed, inverse = np.unique(places, return_inverse=True)
    return [_compact(needed)], inverse.reshape(array.shape)


def _compact(positions: np.ndarray[Any, Any]) -> Positions:
    """Turn neighbours into a range, which is read in one call."""
    if len(positions) and positions[-1] - positions[0] + 1 == len(positions):
        return range(int(positions[0]), int(positions[-1]) + 1)
    return positions


def blocks_of_shape(
    shape: Sequence[int], step: Sequence[int], *, by_columns: bool = False
) -> Iterator[tuple[slice, ...]]:
    """Yield indices of blocks of the shape `step` that together are an array."""
    axes = inner_first(shape, by_columns=by_columns)[::-1]
    for start in _starts(axes, shape, step):
        yield tuple(
            slice(start[axis], min(start[axis] + step[axis], shape[axis]))
            for axis in range(len(shape))
        )


def _starts(axes: list[int], shape: Sequence[int], step: Sequence[int]) -> Iterator[dict[int, int]]:
    """Yield where parts begin, one by one, because a list of all may not fit in memory."""
    if not axes:
        yield {}
        return
    first, *rest = axes
    for start in range(0, shape[first], step[first]):
        for inner in _starts(rest, shape, step):
            yield {first: start, **inner}


def inner_first(shape: Sequence[int], *, by_columns: bool) -> list[int]:
    """Return the axes, beginning with the one along which items are contiguous."""
    axes = list(range(len(shape)))
    return axes if by_columns else axes[::-1]
