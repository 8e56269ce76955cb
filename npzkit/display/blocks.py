"""An array block by block, so that no array has to be in memory as a whole.

Owns how large a block is, and the check of the CRC-32 of an array that is read so: reading a part
alone does not make it. Of an archive, it uses what users can call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from npzkit.files.progress import Advance
from npzkit.members.array_info import ArrayInfo
from npzkit.reading.indexing import blocks_of_shape, inner_first

BLOCK_SIZE = 1 << 25
"""Bytes of an array that are in memory at a time, roughly."""
PIECE_SIZE = 1 << 20
"""Bytes of a piece of a stream."""


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
    for axis in inner_first(shape, by_columns=by_columns):
        room = size // (math.prod(step) * max(itemsize, 1))
        step[axis] = max(min(step[axis] * max(room, 1), shape[axis]), 1)
    return tuple(step)


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


def checked_array(npz: Any, key: str, advance: Advance) -> Any:
    """Return an array whose CRC-32 was checked; a lazy one if it is large.

    Parameters
    ----------
    npz : NpzFile
    key : str
    advance : callable
        Called with the number of bytes after each read.

    Raises
    ------
    NpzkitError
        As `npzkit.NpzFile.read`.
    """
    if not is_taken_by_parts(npz.info(key)):
        return npz.read(key)
    check_array(npz, key, advance)
    return npz.lazy(key)


def check_array(npz: Any, key: str, advance: Advance) -> None:
    """Read an array once to check its CRC-32; see `checked_array`."""
    for opened in npz._archive.streams(key):
        with opened as stream:
            while piece := stream.read(PIECE_SIZE):
                advance(len(piece))


def is_taken_by_parts(info: ArrayInfo) -> bool:
    """Whether an array is too large to be loaded completely."""
    return info.dtype is not None and not info.dtype.hasobject and info.nbytes > BLOCK_SIZE


def approach(
    lazy: Any,
    last: tuple[int, ...],
    by_columns: bool,
    advance: Advance,
    begin: int = 0,
    size: int | None = None,
) -> int:
    """Read a lazy array up to an item, and report progress meanwhile.

    Parameters
    ----------
    lazy : LazyArray
        Of a member that is not seekable.
    last : tuple of int
        Its position.
    by_columns : bool
        The array is in Fortran's order.
    advance : callable
        Called with the bytes of each read.
    begin : int, default 0
        What an earlier call returned: items before it are not read again.
    size : int, optional
        Bytes between two reads, by default those of a block.

    Returns
    -------
    int
        How many items were passed, in the order of storage.
    """
    end = place_of(last, lazy.shape, by_columns=by_columns)
    step = max((size or BLOCK_SIZE) // max(lazy.dtype.itemsize, 1), 1)
    for place in range(begin + step, end, step):
        lazy[position_at(place, lazy.shape, by_columns=by_columns)]
        advance(step * lazy.dtype.itemsize)
    return max(begin, end)
