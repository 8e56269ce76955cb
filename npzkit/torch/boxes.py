"""Boxes of arrays, read into memory that the caller has.

Owns which parts of an array a box needs, and which of them are checked: a part that is
read completely is compared with its CRC-32, which covers all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from npzkit.archive.lazyarray import LazyArray
from npzkit.datasets.sharded_array import ShardedArray
from npzkit.reading.indexing import Positions, Selection


def boxes_of(array: LazyArray) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return offset and shape of each part of an array."""
    if _is_one_part(array):
        return [((0,) * array.ndim, array.shape)]
    assert isinstance(array, ShardedArray)  # noqa: S101 - others are one part
    offsets, shapes = array._npz._index.boxes(array._number)
    return list(zip(map(tuple, offsets.tolist()), map(tuple, shapes.tolist()), strict=True))


def _is_one_part(array: LazyArray) -> bool:
    if not isinstance(array, ShardedArray):
        return True
    return len(array._npz._index.part_numbers(array._number)) == 1


def read_box(
    array: LazyArray,
    offset: Sequence[int],
    out: np.ndarray[Any, Any],
    *,
    verify: bool,
    threads: int,
) -> None:
    """Fill `out` with the items of an array from `offset` on.

    Parameters
    ----------
    array : LazyArray
        Of an archive in one file, or in many.
    offset : sequence of int
        Where the box begins, along each axis.
    out : numpy.ndarray
        Of the array's dtype. Items are read directly into it if its memory is like that
        of the part.
    verify : bool
        Compare the CRC-32 of parts that are read completely.
    threads : int
        For one part.
    """
    if not out.size:
        if isinstance(array, ShardedArray):
            array._npz._prove_empty(array._number)
        return
    box = tuple(range(start, start + n) for start, n in zip(offset, out.shape, strict=True))
    for part, positions, place in _pieces(array, box, out):
        if place.shape == part.shape:
            npz: Any = part._npz
            npz.read(part._key, place, verify, threads=threads)
        else:
            _read_piece(part, positions, place)


def _pieces(
    array: LazyArray, box: tuple[Positions, ...], out: np.ndarray[Any, Any]
) -> Iterator[tuple[LazyArray, tuple[Positions, ...], np.ndarray[Any, Any]]]:
    """Yield each part that a box needs, positions in it, and the memory for them."""
    if not isinstance(array, ShardedArray):
        yield array, box, out
        return
    npz, number = array._npz, array._number
    if _is_one_part(array):
        yield npz._part(number, npz._index.part_numbers(number).start), box, out
        return
    for part, positions, at in array._pieces(box):
        yield npz._part(number, part), positions, out[at]


def _read_piece(
    part: LazyArray, positions: tuple[Positions, ...], place: np.ndarray[Any, Any]
) -> None:
    stored = place.T if part._header.fortran_order else place
    if stored.flags.c_contiguous:
        with part._explained:
            part._fill(part._access(), positions, stored)
    else:
        place[...] = part._read_block(Selection(positions, ()))
