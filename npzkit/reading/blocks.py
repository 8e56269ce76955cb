"""An array's shape in blocks, so that no array has to be in memory as a whole.

Owns how large a block is, and the order in which blocks follow each other.
Knows shapes alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

BLOCK_SIZE = 1 << 25
"""Bytes of an array that are in memory at a time, roughly."""


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


def block_shape(
    shape: tuple[int, ...],
    itemsize: int,
    least: tuple[int, ...] | None = None,
    *,
    by_columns: bool = False,
    size: int | None = None,
) -> tuple[int, ...]:
    """Return the shape of a part of an array.

    Parameters
    ----------
    shape : tuple of int
    itemsize : int
    least : tuple of int, optional
        The shape of a part that is read as one: others are multiples of it,
        where that is not larger than `size`.
    by_columns : bool, default False
        In Fortran's order.
    size : int, optional
        Bytes of a part, roughly; `BLOCK_SIZE` by default.
    """
    size = BLOCK_SIZE if size is None else size
    step = [1] * len(shape)
    if least is not None and math.prod(least) * itemsize <= size:
        step = [max(min(part, n), 1) for part, n in zip(least, shape, strict=True)]
    for axis in _inner_first(shape, by_columns=by_columns):
        room = size // (math.prod(step) * max(itemsize, 1))
        step[axis] = max(min(step[axis] * max(room, 1), shape[axis]), 1)
    return tuple(step)


def _inner_first(shape: Sequence[int], *, by_columns: bool) -> list[int]:
    """Return the axes, beginning with the one along which items are contiguous."""
    axes = list(range(len(shape)))
    return axes if by_columns else axes[::-1]


def blocks(
    shape: tuple[int, ...],
    itemsize: int,
    least: tuple[int, ...] | None = None,
    *,
    by_columns: bool = False,
    size: int | None = None,
) -> Iterator[tuple[slice, ...]]:
    """Yield indices of parts that together are an array, in its order of storage.

    Parameters as of `block_shape`.
    """
    if 0 in shape:
        return
    step = block_shape(shape, itemsize, least, by_columns=by_columns, size=size)
    yield from blocks_of_shape(shape, step, by_columns=by_columns)


def blocks_of_shape(
    shape: Sequence[int], step: Sequence[int], *, by_columns: bool = False
) -> Iterator[tuple[slice, ...]]:
    """Yield indices of blocks of the shape `step` that together are an array."""
    axes = _inner_first(shape, by_columns=by_columns)[::-1]
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


def place_of(position: Sequence[int], shape: Sequence[int], *, by_columns: bool = False) -> int:
    """Return how many items lie before a position; for any number of axes.

    Examples
    --------
    >>> place_of((1, 2), (3, 4)), place_of((1, 2), (3, 4), by_columns=True)
    (6, 7)
    """
    pairs = list(zip(position, shape, strict=True))
    place = 0
    for offset, length in pairs[::-1] if by_columns else pairs:
        place = place * length + offset
    return place


def position_at(place: int, shape: Sequence[int], *, by_columns: bool = False) -> tuple[int, ...]:
    """Return the position of an item that has so many items before it; see `place_of`.

    NumPy's own function takes 32 axes at most.

    Examples
    --------
    >>> position_at(6, (3, 4)), position_at(7, (3, 4), by_columns=True)
    ((1, 2), (1, 2))
    """
    found = []
    for length in shape if by_columns else reversed(shape):
        place, offset = divmod(place, length)
        found.append(offset)
    return tuple(found if by_columns else found[::-1])
