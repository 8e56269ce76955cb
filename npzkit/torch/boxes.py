"""Boxes of arrays, read into memory that is there already.

Owns which parts of an array a box needs, and which of them are checked: a part that is
read completely is compared with its CRC-32, which covers all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from npzkit.archive.lazyarray import LazyArray
from npzkit.archive.npzfile import NpzFile
from npzkit.reading.indexing import Positions, Selection
from npzkit.sharding.shardedfile import ShardedFile

__all__ = ["read_box"]


def read_box(
    npz: NpzFile | ShardedFile,
    key: str,
    offset: Sequence[int],
    out: np.ndarray[Any, Any],
    *,
    verify: bool,
    threads: int,
) -> None:
    """Fill `out` with the items of an array from `offset` on.

    Parameters
    ----------
    npz : NpzFile or ShardedFile
    key : str
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
        return
    box = tuple(range(start, start + n) for start, n in zip(offset, out.shape, strict=True))
    for lazy, positions, place in _pieces(npz, key, box, out):
        if tuple(map(len, positions)) == lazy.shape:
            lazy._npz.read(lazy._key, place, verify, threads=threads)  # type: ignore[call-arg]
        else:
            _read_piece(lazy, positions, place)


def _pieces(
    npz: NpzFile | ShardedFile, key: str, box: tuple[Positions, ...], out: np.ndarray[Any, Any]
) -> Iterator[tuple[LazyArray, tuple[Positions, ...], np.ndarray[Any, Any]]]:
    """Yield each part that a box needs, positions in it, and the memory for them."""
    lazy = npz.lazy(key)
    if isinstance(npz, NpzFile):
        yield lazy, box, out
        return
    for part, positions, at in lazy._pieces(box):  # type: ignore[attr-defined]
        yield npz._part(lazy._number, part), positions, out[at] if at else out  # type: ignore[attr-defined]


def _read_piece(
    lazy: LazyArray, positions: tuple[Positions, ...], place: np.ndarray[Any, Any]
) -> None:
    stored = place.T if lazy._header.fortran_order else place
    if stored.flags.c_contiguous:
        with lazy._explained:
            lazy._fill(lazy._access(), positions, stored)
    else:
        place[...] = lazy._read_block(Selection(positions, ()))
