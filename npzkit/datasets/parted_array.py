"""An array of many parts, in shards or in files: an index reads only the parts that it touches.

Owns which parts these are, what of each is read, and where that goes, for sharded archives, for
many files, and for dask. Knows no files: a part is a box of an offset and a shape, or a stretch of
one axis. That boxes tile an array is `npzkit.datasets.tiling`'s to check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from npzkit.archive.lazyarray import LazyArray, new_array
from npzkit.files.threads import run
from npzkit.limits import thread_count
from npzkit.reading.indexing import Positions, Selection, count_of, select

Piece = tuple[int, tuple[Positions, ...], tuple[Any, ...]]
"""The number of a part, positions in it, and the index of these in what is read."""


class PartedArray(LazyArray):
    """What arrays of many parts have in common. Each kind says which they are, and reads one."""

    _chunk_size = 1 << 20
    """Bytes of a chunk: as of an array in one file."""
    _layout: JoinedLayout
    """Of arrays whose parts lie one behind the other; others yield their own pieces."""

    def _pieces(self, positions: tuple[Positions, ...]) -> Iterator[Piece]:
        """Yield each part that is needed."""
        return self._layout.pieces(positions)

    def _read_piece(
        self, part: int, positions: tuple[Positions, ...], place: np.ndarray[Any, Any]
    ) -> None:
        """Read positions of a part to where they belong."""
        raise NotImplementedError

    def _allocated(self, shape: tuple[int, ...], parts: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return a new array for what is read of some parts."""
        return new_array(shape, self.dtype)

    def _threads_for(self, count: int) -> int:
        """Return the threads that read a number of pieces."""
        return 1

    def _read_block(self, selection: Selection) -> np.ndarray[Any, Any]:
        """Read all combinations of the selected positions."""
        pieces = list(self._pieces(selection.positions))
        block = self._allocated(selection.shape, [part for part, _, _ in pieces])
        self._read_pieces(pieces, block)
        return block

    def _read_all(self, out: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
        block = self._read_block(select(..., self.shape))
        if out is None:
            return block
        out[...] = block
        return out

    def _read_pieces(
        self, pieces: Iterable[Piece], block: np.ndarray[Any, Any], **how: Any
    ) -> None:
        tasks = [
            # With the Ellipsis, a view also of an array without dimensions.
            partial(self._read_piece, part, positions, block[(*place, ...)], **how)
            for part, positions, place in pieces
        ]
        run(tasks, self._threads_for(len(tasks)))


class JoinedLayout(NamedTuple):
    """How arrays one behind the other make one.

    Attributes
    ----------
    axis : int
        Along which they are joined.
    is_stacked : bool
        Whether the axis is a new one, with one position per array.
    starts : numpy.ndarray
        Where each begins along the axis, and where the last one ends.
    shape : tuple of int
    dtype : numpy.dtype
    """

    axis: int
    is_stacked: bool
    starts: np.ndarray[Any, Any]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def pieces(self, positions: tuple[Positions, ...]) -> Iterator[Piece]:
        """Yield each array that is needed."""
        if not all(map(count_of, positions)):
            return
        before, along, after = (
            positions[: self.axis], positions[self.axis], positions[self.axis + 1 :]
        )  # fmt: skip
        for number, inner, place in pieces_along(along, self.starts):
            if self.is_stacked:
                yield number, after, (place.start,)
            else:
                yield number, (*before, inner, *after), (slice(None),) * self.axis + (place,)


def pieces_of_boxes(
    positions: tuple[Positions, ...], offsets: np.ndarray[Any, Any], shapes: np.ndarray[Any, Any]
) -> Iterator[Piece]:
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
    >>> list(pieces_of_boxes((range(1, 6, 2),), *boxes))
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
