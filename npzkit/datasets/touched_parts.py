"""Which parts of a tiled array an index needs, and what of each.

Owns this for all arrays that have several parts: of sharded archives, of many files, and of
dask. Knows no files: a part is a box of an offset and a shape, or a stretch of one axis.
That boxes tile an array is `npzkit.datasets.tiling`'s to check.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from npzkit.archive.lazyarray import LazyArray
from npzkit.limits import thread_count
from npzkit.reading.indexing import Positions, Selection, count_of


def pieces(
    positions: tuple[Positions, ...], offsets: np.ndarray[Any, Any], shapes: np.ndarray[Any, Any]
) -> Iterator[tuple[int, tuple[Positions, ...], tuple[slice, ...]]]:
    """Yield each box that is needed, positions in it, and where these are in the block.

    Parameters
    ----------
    positions : tuple of Positions
        Of the array, as `npzkit.reading.indexing.select` returns them.
    offsets, shapes : numpy.ndarray
        Of the boxes, a row for each.

    Examples
    --------
    >>> boxes = np.array([[0], [3]]), np.array([[3], [3]])
    >>> list(pieces((range(1, 6, 2),), *boxes))
    [(0, (range(1, 3, 2),), (slice(0, 1, None),)), (1, (range(0, 4, 2),), (slice(1, 3, None),))]
    """
    if not all(map(count_of, positions)):
        return
    first = np.array([axis[0] for axis in positions], np.int64)
    last = np.array([axis[-1] for axis in positions], np.int64)
    touched = ((offsets <= last) & (offsets + shapes > first)).all(axis=1)
    for at in np.flatnonzero(touched).tolist():
        begins, ends = offsets[at].tolist(), (offsets[at] + shapes[at]).tolist()
        found = list(map(_within, positions, begins, ends))
        if all(len(local) for local, _ in found):
            yield at, tuple(local for local, _ in found), tuple(place for _, place in found)


def _within(positions: Positions, begin: int, end: int) -> tuple[Positions, slice]:
    """Return the positions from `begin` to `end`, counted from `begin`, and which they are."""
    if isinstance(positions, range):
        low, high = (
            min(max(-((positions.start - bound) // positions.step), 0), count_of(positions))
            for bound in (begin, end)
        )
    else:
        low, high = map(int, np.searchsorted(positions, (begin, end)))
    return shifted(positions[low:high], begin), slice(low, high)


def pieces_along(
    positions: Positions, starts: np.ndarray[Any, Any]
) -> Iterator[tuple[int, Positions, slice]]:
    """Yield each stretch of an axis that is needed, positions in it, and which they are.

    Parameters
    ----------
    positions : Positions
        At least one.
    starts : numpy.ndarray
        Where each stretch begins along the axis, and where the last one ends.

    Examples
    --------
    >>> list(pieces_along(range(1, 6, 2), np.array([0, 3, 6])))
    [(0, range(1, 3, 2), slice(0, 1, None)), (1, range(0, 4, 2), slice(1, 3, None))]
    """
    parts = np.searchsorted(starts, np.asarray(positions, np.int64), "right") - 1
    begin = 0
    for end in [*(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(positions)]:
        number = int(parts[begin])
        yield number, shifted(positions[begin:end], int(starts[number])), slice(begin, end)
        begin = end


def shifted(positions: Positions, start: int) -> Positions:
    """Return positions counted from `start`."""
    if isinstance(positions, range):
        return range(positions.start - start, positions.stop - start, positions.step)
    return positions - start


def as_index(positions: tuple[Positions, ...]) -> tuple[Any, ...]:
    """Return the index of an array that takes these positions."""
    return tuple(
        slice(axis.start, axis.stop, axis.step) if isinstance(axis, range) else axis
        for axis in positions
    )


def read_piece(
    part: LazyArray,
    positions: tuple[Positions, ...],
    place: np.ndarray[Any, Any],
    *,
    verify: bool = True,
    threads: int | None = None,
) -> None:
    """Read positions of a part to where they belong, directly if the memory there allows it.

    A complete part is checked by its CRC-32, unless `verify` is False.
    """
    if place.shape == part.shape:
        part._npz._archive.fill({part._key: place}, thread_count(threads), verify)
        return
    stored = place.T if part._header.fortran_order else place
    if stored.flags.c_contiguous and stored.ndim:
        with part._explained:
            part._fill(part._member_chunks(), positions, stored)
    else:
        place[...] = part._read_block(Selection(positions, ()))
