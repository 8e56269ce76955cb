"""From positions along each axis to the bytes of a member that hold them.

Owns the choice of what is read in one call. Knows nothing about indices or
compression: `Chunks` say what a gap costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from npzkit.files.threads import run
from npzkit.format.array import array_bytes
from npzkit.limits import MAX_DIMENSIONS
from npzkit.reading.indexing import Positions
from npzkit.zip.chunks import Chunks

_SPAN_SIZE = 1 << 22
"""Bytes read at a time if only part of them is wanted."""


class _Axis(NamedTuple):
    """One axis in the order of storage, the slowest first.

    Attributes
    ----------
    positions : range or numpy.ndarray
        What is wanted of it.
    first, last : int
        The outermost positions.
    stride : int
        Bytes from one position to the next.
    extent : int
        Bytes from the first that is wanted to the last, of one position.
    gap : int
        The longest stretch of unwanted bytes within `extent`.
    """

    positions: Positions
    first: int
    last: int
    stride: int
    extent: int
    gap: int


def read_block(
    chunks: Chunks,
    start: int,
    shape: Sequence[int],
    positions: Sequence[Positions],
    block: np.ndarray[Any, Any],
    threads: int,
) -> None:
    """Fill `block` with an array's items at `positions`.

    Parameters
    ----------
    chunks : Chunks
        The member.
    start : int
        Where the array begins in the member's bytes.
    shape : sequence of int
        Of the whole array, the slowest axis first.
    positions : sequence of range or numpy.ndarray
        Wanted along each axis.
    block : numpy.ndarray
        C-contiguous, one item for each combination of positions.
    threads : int
    """
    if block.nbytes == 0:
        return
    if block.ndim == MAX_DIMENSIONS:
        # One more comes around them. So many have some of length 1, or more bytes than there are.
        kept = [i for i, size in enumerate(shape) if size != 1 or len(positions[i]) != 1]
        shape, positions = [shape[i] for i in kept], [positions[i] for i in kept]
        block = block.reshape([block.shape[i] for i in kept])
    axes = _axes(shape, positions, block.dtype.itemsize)
    _Reading(chunks, axes, block.dtype, threads).fill(0, start, block)


def _axes(shape: Sequence[int], positions: Sequence[Positions], itemsize: int) -> list[_Axis]:
    axes: list[_Axis] = []
    stride = extent = itemsize
    gap = 0
    for size, wanted in zip(reversed(shape), reversed(positions), strict=True):
        first, last = int(wanted[0]), int(wanted[-1])
        axes.append(_Axis(wanted, first, last, stride, extent, gap))
        if len(wanted) > 1:
            step = wanted.step if isinstance(wanted, range) else int(np.diff(wanted).max())
            gap = max(gap, step * stride - extent)
        extent += (last - first) * stride
        stride *= size
    axes.append(_Axis(range(1), 0, 0, stride, extent, gap))
    return axes[::-1]


class _Reading:
    """One block being filled, axis by axis."""

    def __init__(
        self, chunks: Chunks, axes: list[_Axis], dtype: np.dtype[Any], threads: int
    ) -> None:
        self._chunks = chunks
        self._axes = axes
        self._dtype = dtype
        self._threads = threads
        self._reads_at_once = chunks.reads_at_once

    def fill(self, depth: int, offset: int, block: np.ndarray[Any, Any]) -> None:
        """Fill `block` from an axis on, whose position 0 lies at `offset`.

        The axis at depth 0 is one around the whole array, of length 1.
        """
        if depth == 0:
            block = block[np.newaxis]
        axis = self._axes[depth]
        if axis.gap >= self._chunks.granularity or (axis.gap and axis.extent > _SPAN_SIZE):
            self._each(
                partial(self.fill, depth + 1, offset + int(position) * axis.stride, block[place])
                for place, position in enumerate(axis.positions)
            )
            return
        within = sum(inner.first * inner.stride for inner in self._axes[depth + 1 :])
        offset, parts = offset + within, self._groups(axis)
        if self._reads_at_once > 1:
            self._each(
                partial(self._read, depth, offset, axis.positions[begin:end], block[begin:end])
                for begin, end in parts
            )
            return
        for begin, end in parts:
            self._read(depth, offset, axis.positions[begin:end], block[begin:end])

    def _each(self, reads: Iterator[Callable[[], None]]) -> None:
        """Call each; several at a time if each of them waits for an answer."""
        count = self._reads_at_once
        if count == 1:
            for read in reads:
                read()
            return
        tasks = list(reads)
        # If there are several, those within them take turns.
        self._reads_at_once = count if len(tasks) == 1 else 1
        run(tasks, count)
        self._reads_at_once = count

    def _read(
        self, depth: int, offset: int, positions: Positions, part: np.ndarray[Any, Any]
    ) -> None:
        """Read positions of an axis with one call."""
        first, last = int(positions[0]), int(positions[-1])
        axis = self._axes[depth]
        where = offset + first * axis.stride
        size = (last - first) * axis.stride + axis.extent
        if part.nbytes == size:
            self._chunks.readinto(where, array_bytes(part), self._threads)
        else:
            self._cut(depth, where, size, positions, part)

    def _groups(self, axis: _Axis) -> Iterator[tuple[int, int]]:
        """Group positions to read in one call: without gaps, or in spans of a few MiB."""
        positions, count = axis.positions, len(axis.positions)
        room = max(_SPAN_SIZE - axis.extent, 0) // axis.stride
        if not isinstance(positions, range):
            yield from self._irregular_groups(axis, room)
            return
        gap = positions.step * axis.stride - axis.extent
        step = count
        if gap:
            step = room // positions.step + 1 if gap < self._chunks.granularity else 1
        for begin in range(0, count, step):
            yield begin, min(begin + step, count)

    def _irregular_groups(self, axis: _Axis, room: int) -> Iterator[tuple[int, int]]:
        places = np.asarray(axis.positions)
        gaps = np.diff(places) * axis.stride - axis.extent
        begin = 0
        for end in (*(np.flatnonzero(gaps >= self._chunks.granularity) + 1).tolist(), len(places)):
            while begin < end:
                stop = int(np.searchsorted(places, places[begin] + room, "right"))
                stop = max(min(stop, end), begin + 1)
                yield begin, stop
                begin = stop

    def _cut(
        self, depth: int, where: int, size: int, positions: Positions, part: np.ndarray[Any, Any]
    ) -> None:
        """Read a span and take from it what is wanted."""
        inner = self._axes[depth + 1 :]
        data = np.empty(size, np.uint8)
        self._chunks.readinto(where, data.data, self._threads)
        first = int(positions[0])
        shape = [int(positions[-1]) - first + 1, *(axis.last - axis.first + 1 for axis in inner)]
        strides = [self._axes[depth].stride, *(axis.stride for axis in inner)]
        # That of a single position says nothing, and may be too large for a 32-bit system.
        strides = [n * (length > 1) for n, length in zip(strides, shape, strict=True)]
        whole: np.ndarray[Any, Any] = np.ndarray(shape, self._dtype, data.data, 0, strides)
        chosen = [_relative(positions, first)]
        chosen += [_relative(axis.positions, axis.first) for axis in inner]
        part[...] = whole[tuple(chosen)]


def _relative(positions: Positions, first: int) -> Any:
    """Index by `positions` what begins with the first of them."""
    if isinstance(positions, range):
        return slice(0, positions[-1] - first + 1, positions.step)
    return positions - first
