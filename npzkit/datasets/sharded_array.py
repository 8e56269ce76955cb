"""An array in several shards, of which only the indexed parts are read.

Owns which parts an index needs, and what of each; and a stream of pieces that can only be read
forward. The parts are read by `npzkit.archive.lazyarray`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import numpy as np

from npzkit.archive.lazyarray import LazyArray
from npzkit.archive.npzfile import NpzFile
from npzkit.datasets.shards import OpenShards
from npzkit.datasets.touched_parts import pieces, read_piece
from npzkit.errors import NpzkitError
from npzkit.files.threads import run
from npzkit.members.metadata import user_attrs
from npzkit.reading.indexing import Box, Positions, ReadHabits, Selection

Piece = tuple[int, tuple[Positions, ...], tuple[slice, ...]]
"""A part, positions in it, and where these are in what is read."""


class ShardedArray(LazyArray):
    """An array of a sharded archive: ``lazy[index]`` reads only what it needs.

    Made by `ShardedFile.lazy`. It is as `npzkit.LazyArray`, and opens only the
    shards that an index touches. A part that is read completely is checked by
    its CRC-32, unless it was made with ``verify=False``.
    """

    _chunk_size = 1 << 20

    def __init__(
        self, npz: NpzFile | None, shards: OpenShards, number: int, *, verify: bool = True
    ) -> None:
        index = shards.index
        shape, descr = index.shape(number), index.descr(number)[0]
        self._npz: Any = npz
        self._shards = shards
        self._number = number
        self._key, self._verify = index.keys[number], verify
        self._describe(shape, descr, fortran_order=index.fortran_order(number))
        self.attrs = MappingProxyType(user_attrs(index.attrs(number)))

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._shards.index.dtype(self._number)

    @property
    def _part_numbers(self) -> range:
        return self._shards.index.part_numbers(self._number)

    def _part(self, part: int) -> LazyArray:
        return self._shards.part(self._number, part, verify=self._verify)

    @property
    def _read_habits(self) -> ReadHabits:
        """The habits of the first part: all shards are in one place."""
        parts = self._part_numbers
        return self._part(parts.start)._read_habits if parts else ReadHabits()

    def _located(self, error: NpzkitError) -> NpzkitError:
        return error.locate(path=self._shards.path, key=self._key)

    def _check_backed(self) -> None:
        self._shards.prove_empty(self._number)
        self._shards.check_backed(self._part_numbers)

    def _read_block(self, selection: Selection) -> np.ndarray[Any, Any]:
        """Read all combinations of the selected positions, from the parts that have them."""
        shards = self._shards
        shards.check_open()
        shards.prove_empty(self._number)
        jobs = list(self._pieces(selection.positions))
        block = shards.allocate(self._number, selection.shape, [part for part, _, _ in jobs])
        # With the Ellipsis, a view also of an array without dimensions.
        tasks = [
            lambda part=part, positions=positions, at=at: read_piece(
                self._part(part), positions, block[(*at, ...)], verify=self._verify
            )
            for part, positions, at in jobs
        ]
        run(tasks, shards.threads_for(len(tasks)))
        return block

    def _positions(self, box: Box) -> tuple[range, ...]:
        """Return what is in a box, along each axis."""
        others = ((0, length) for length in self.shape[len(box) :])
        return tuple(range(*ends) for ends in (*box, *others))

    def _pieces(self, positions: tuple[Positions, ...]) -> Iterator[Piece]:
        """Yield each part that is needed, positions in it, and where these are in the block."""
        start = self._part_numbers.start
        for at, local, place in pieces(positions, *self._shards.index.boxes(self._number)):
            yield start + at, local, place


class PartsStream(io.RawIOBase):
    """A stream that can be read forward, of pieces that an iterator has.

    Once that has failed, each read raises its error.
    """

    def __init__(self, pieces: Iterator[memoryview]) -> None:
        self._pieces, self._left = pieces, memoryview(b"")
        self._error: Exception | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the beginning of a buffer."""
        while not self._left:
            if self._error is not None:
                raise self._error
            try:
                piece = next(self._pieces, None)
            except Exception as error:
                self._error = error
                raise
            if piece is None:
                return 0
            self._left = piece
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self._left))
        view[:size] = self._left[:size]
        self._left = self._left[size:]
        return size
