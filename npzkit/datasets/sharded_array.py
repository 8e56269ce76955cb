"""An array in several shards, of which only the indexed parts are read.

Owns which parts it has, by the index, and that their shards have bytes for what is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from npzkit.archive.lazyarray import LazyArray
from npzkit.archive.npzfile import NpzFile
from npzkit.datasets.parted_array import PartedArray, Piece, pieces_of_boxes, read_piece
from npzkit.datasets.shards import OpenShards
from npzkit.errors import NpzkitError
from npzkit.members.metadata import user_attrs
from npzkit.reading.indexing import Box, Positions, ReadHabits


class ShardedArray(PartedArray):
    """An array of a sharded archive: ``lazy[index]`` reads only what it needs.

    Made by `ShardedFile.lazy`. It is as `npzkit.LazyArray`, and opens only the
    shards that an index touches. A part that is read completely is checked by
    its CRC-32, unless it was made with ``verify=False``.
    """

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

    def _read_all(self, out: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
        # Into `out` in two passes, of which the first only checks.
        return LazyArray._read_all(self, out)

    def _allocated(self, shape: tuple[int, ...], parts: Sequence[int]) -> np.ndarray[Any, Any]:
        self._shards.check_open()
        self._shards.prove_empty(self._number)
        return self._shards.allocate(self._number, shape, parts)

    def _threads_for(self, count: int) -> int:
        return self._shards.threads_for(count)

    def _read_piece(
        self, part: int, positions: tuple[Positions, ...], place: np.ndarray[Any, Any]
    ) -> None:
        read_piece(self._part(part), positions, place, verify=self._verify)

    def _positions(self, box: Box) -> tuple[range, ...]:
        """Return what is in a box, along each axis."""
        others = ((0, length) for length in self.shape[len(box) :])
        return tuple(range(*ends) for ends in (*box, *others))

    def _pieces(self, positions: tuple[Positions, ...]) -> Iterator[Piece]:
        """Yield each part that is needed, positions in it, and where these are in the block."""
        start = self._part_numbers.start
        for at, local, place in pieces_of_boxes(positions, *self._shards.index.boxes(self._number)):
            yield start + at, local, place
