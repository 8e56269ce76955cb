"""An index expression and a shape: what must be read, and how NumPy indexes that.

Owns NumPy's indexing rules. Knows no file: the answer is, for each axis, the
positions that are needed, and an index that NumPy applies to the block of
exactly these positions. NumPy itself raises its errors, on an array of the same
shape that has a single byte.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

Positions = range | np.ndarray[Any, Any]
"""Ascending, each once: a range with a positive step, or an array of intp."""
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
        return tuple(map(len, self.positions))


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
    items = [_item(item) for item in (index if isinstance(index, tuple) else (index,))]
    _check(index, items, shape)
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


def _check(index: Any, items: list[Any], shape: tuple[int, ...]) -> None:
    """Let NumPy raise its error, on an array whose items share one byte."""
    if sum(isinstance(item, np.ndarray) for item in items) > 1:
        raise IndexError(
            "at most one array or list of indices can be used at a time; "
            "index by one of them, and the result by both: lazy[rows][range(len(rows)), columns]"
        )
    probe: np.ndarray[Any, Any] = np.ndarray(shape, np.bool_, bytes(1), strides=(0,) * len(shape))
    if any(isinstance(item, np.ndarray) for item in items):
        # An index array makes a copy, which may be larger than the memory.
        index = _narrowed(index if isinstance(index, tuple) else (index,), items, len(shape))
    probe[index]


def _narrowed(parts: tuple[Any, ...], items: list[Any], ndim: int) -> tuple[Any, ...]:
    """Let slices choose one position: they are right or wrong for any."""
    missing = ndim - sum(map(_axis_count, items))
    has_ellipsis = any(part is Ellipsis for part in parts)
    if missing < 0 or sum(part is Ellipsis for part in parts) > 1:
        return parts
    narrowed: list[Any] = []
    for part in parts if has_ellipsis else (*parts, Ellipsis):
        narrowed += [slice(1)] * missing if part is Ellipsis else [_narrow(part)]
    return tuple(narrowed)


def _narrow(part: Any) -> Any:
    if not isinstance(part, slice):
        return part
    try:
        part.indices(1)
    except (TypeError, ValueError):
        return part
    return slice(1)


def _axis_count(item: Any) -> int:
    """Axes of the array that a part of the index uses up."""
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, np.ndarray) and item.dtype == np.bool_:
        return item.ndim
    return 1


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
    return [_compact(rows), *map(range, sizes[1:])], mask[rows]


def _map_integers(array: np.ndarray[Any, Any], size: int) -> tuple[list[Positions], Any]:
    """Need each position once; the index repeats and reorders them."""
    places = array.astype(np.intp)
    places[places < 0] += size
    needed, inverse = np.unique(places, return_inverse=True)
    return [_compact(needed)], inverse.reshape(array.shape)


def _compact(positions: np.ndarray[Any, Any]) -> Positions:
    """Turn neighbours into a range, which is read in one call."""
    if len(positions) and positions[-1] - positions[0] + 1 == len(positions):
        return range(int(positions[0]), int(positions[-1]) + 1)
    return positions
