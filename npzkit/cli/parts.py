"""Arrays taken part by part, so that none has to be in memory as a whole.

Owns how large a part is, and that what is read of an archive was checked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import npzkit

__all__ = ["PART_SIZE", "blocks", "checked_array"]

PART_SIZE = 1 << 25
"""Bytes that are held of an array at a time, roughly."""


def blocks(
    shape: tuple[int, ...],
    itemsize: int,
    least: tuple[int, ...] | None = None,
    *,
    by_columns: bool = False,
) -> Iterator[tuple[slice, ...]]:
    """Yield indices of parts that together are an array, in its order of storage.

    Parameters
    ----------
    shape : tuple of int
    itemsize : int
    least : tuple of int, optional
        The shape of a part that is read as one: others are multiples of it,
        where that is not larger than `PART_SIZE`.
    by_columns : bool, default False
        In Fortran's order.
    """
    if 0 in shape:
        return
    order = range(len(shape)) if by_columns else range(len(shape) - 1, -1, -1)
    step = list(least or (1,) * len(shape))
    step = [max(min(part, length), 1) for part, length in zip(step, shape, strict=True)]
    if math.prod(step) * itemsize > PART_SIZE:
        step = [1] * len(shape)
    for axis in order:
        rest = math.prod(step) // step[axis] * max(itemsize, 1)
        room = max(PART_SIZE // rest // step[axis], 1) * step[axis]
        step[axis] = min(room, shape[axis])
    starts = [
        [slice(start, min(start + part, length)) for start in range(0, length, part)]
        for part, length in zip(step, shape, strict=True)
    ]
    outer_first = list(reversed(order))
    for chosen in itertools.product(*(starts[axis] for axis in outer_first)):
        index = dict(zip(outer_first, chosen, strict=True))
        yield tuple(index[axis] for axis in range(len(shape)))


def checked_array(npz: npzkit.NpzFile, key: str) -> Any:
    """Return an array, or a lazy one where it is large, whose CRC-32 was compared.

    Raises
    ------
    NpzkitError
        As `npzkit.NpzFile.read`.
    """
    info = npz.info(key)
    if info.dtype is None or info.dtype.hasobject or info.nbytes <= PART_SIZE:
        return npz.read(key)
    # Parts are not compared with anything: once through all of it first.
    with npz.stream(key) as stream:
        while stream.read(1 << 20):
            pass
    return npz.lazy(key)
