"""Which chunks an array of an archive gets.

Owns the chunks that are cheap to read: parts of a sharded archive, joined or split to the
size that dask is configured for. Knows no files and no graphs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from dask import config
from dask.array.core import normalize_chunks
from dask.utils import parse_bytes

Chunks = tuple[tuple[int, ...], ...]
"""The lengths of the chunks along each axis, as dask has them."""


def chunk_size() -> int:
    """Return the bytes of a chunk that dask is configured for."""
    return int(parse_bytes(config.get("array.chunk-size")))


def chosen_chunks(chunks: Any, natural: Chunks, dtype: np.dtype[Any]) -> Chunks:
    """Return the chunks that a user's `chunks` means.

    Parameters
    ----------
    chunks : object
        As `dask.array.from_array` takes them; None is "auto".
    natural : tuple of tuple of int
        That "auto" joins.
    dtype : numpy.dtype
    """
    if chunks is None:
        chunks = "auto"
    shape = tuple(map(sum, natural))
    if chunks == "auto" and (0 in shape or not dtype.itemsize):
        # dask divides by the number of bytes.
        return natural
    found: Chunks = normalize_chunks(chunks, shape, dtype=dtype, previous_chunks=natural)
    return found


def natural_chunks(
    shape: tuple[int, ...],
    itemsize: int,
    is_fortran: bool,
    cheap: tuple[int, ...],
    boxes: Iterable[tuple[tuple[int, ...], tuple[int, ...]]] = (),
) -> Chunks:
    """Return chunks of whole parts. Parts above dask's ``array.chunk-size`` are split.

    Parameters
    ----------
    shape : tuple of int
    itemsize : int
        Bytes of an item.
    is_fortran : bool
        Whether the first axis is the one that is contiguous in the file.
    cheap : tuple of int
        Shape of the smallest part that is cheap to read, as `npzkit.LazyArray.chunks`.
    boxes : iterable of (offset, shape)
        Where the parts are; none for an array in one part.

    Examples
    --------
    >>> natural_chunks((4, 6), 8, False, (1, 6), [((0, 0), (3, 6)), ((3, 0), (1, 6))])
    ((3, 1), (6,))
    """
    cells = _cells(shape, boxes)
    order = range(len(shape)) if is_fortran else range(len(shape))[::-1]
    room = max(chunk_size() // max(itemsize, 1), 1)
    split = list(cells)
    for axis in order:
        longest = max(cells[axis], default=0)
        if longest > room:
            split[axis] = tuple(
                piece for cell in cells[axis] for piece in _pieces(cell, room, cheap[axis])
            )
        room = max(room // max(longest, 1), 1)
    return tuple(split)


def _cells(
    shape: tuple[int, ...], boxes: Iterable[tuple[tuple[int, ...], tuple[int, ...]]]
) -> Chunks:
    """Return the finest grid that the bounds of parts make."""
    bounds = [{0, length} for length in shape]
    for offset, part in boxes:
        for axis, (start, length) in enumerate(zip(offset, part, strict=True)):
            bounds[axis] |= {start, start + length}
    return tuple(tuple(np.diff(sorted(each)).tolist()) or (0,) for each in bounds)


def _pieces(length: int, most: int, cheap: int) -> list[int]:
    """Return nearly equal lengths up to `most`, multiples of `cheap` if they are longer."""
    unit = cheap if cheap <= most else 1
    count = -(-length // (most // unit * unit))
    step = -(-length // (count * unit)) * unit
    return [min(step, length - start) for start in range(0, length, step)]
