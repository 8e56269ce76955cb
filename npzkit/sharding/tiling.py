"""Whether parts tile an array: each item in exactly one part.

Owns this check. Knows nothing of files and indexes: a part is a box of a place and a
shape.

Parts tile an array if the number of parts around each item is one. To find that out
without looking at items, each stretch along each axis gets a random weight, and an item
the product of its weights. The weights of all items then sum up to a product over the
axes, and so do those of the items in one part. If the sums are equal, all items are in
one part each, except with a probability below 2**-70. This takes n log n time for n parts.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from npzkit.errors import IndexFormatError

__all__ = ["check_tiling"]

_PRIME = 2**31 - 1
"""Weights are numbers modulo this prime, so that products fit into 64 bits."""
_ROUNDS = 3
_CELLS_COUNT = 1 << 20
"""Most cells of the grid in which a place is searched for the message of an error."""


def check_tiling(
    shape: tuple[int, ...], offsets: np.ndarray[Any, Any], shapes: np.ndarray[Any, Any]
) -> None:
    """Raise IndexFormatError unless parts are within an array and tile it.

    Parameters
    ----------
    shape : tuple of int
        Of the array, which has items.
    offsets, shapes : numpy.ndarray
        Of int64, with a row for each part and a column for each axis.
    """
    bounds = np.array(shape, np.int64)
    # Without sums, which could overflow.
    is_inside = (offsets >= 0) & (shapes > 0) & (offsets <= bounds) & (shapes <= bounds - offsets)
    if not is_inside.all():
        part = int(np.flatnonzero(~is_inside.all(axis=1))[0])
        raise IndexFormatError(
            "a part reaches out of its array, or is empty",
            found=f"offset {tuple(offsets[part].tolist())}, shape {tuple(shapes[part].tolist())}",
            expected=f"a part of an array of shape {shape}",
        )
    # Axes along which no part is shorter than the array do not matter.
    is_split = (shapes != bounds).any(axis=0)
    starts, stops = offsets[:, is_split], (offsets + shapes)[:, is_split]
    if not _is_tiled(bounds[is_split], starts, stops):
        raise _not_tiled(shape, bounds[is_split], starts, stops, is_split, shapes)


def _is_tiled(
    bounds: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], stops: np.ndarray[Any, Any]
) -> bool:
    for _ in range(_ROUNDS):
        random = np.random.Generator(np.random.Philox(int.from_bytes(os.urandom(16), "little")))
        parts = np.ones(len(starts), np.uint64)
        whole = 1
        for axis, bound in enumerate(bounds.tolist()):
            # The weight of a stretch is the difference of what its two ends get.
            ends, places = np.unique(
                np.concatenate([[0, bound], starts[:, axis], stops[:, axis]]), return_inverse=True
            )
            levels = random.integers(0, _PRIME, len(ends), np.uint64)[places]
            first, last = levels[2 : 2 + len(starts)], levels[2 + len(starts) :]
            parts = parts * ((last + _PRIME - first) % _PRIME) % _PRIME
            whole = whole * (int(levels[1]) - int(levels[0])) % _PRIME
        if sum(parts.tolist()) % _PRIME != whole:
            return False
    return True


def _not_tiled(
    shape: tuple[int, ...],
    bounds: np.ndarray[Any, Any],
    starts: np.ndarray[Any, Any],
    stops: np.ndarray[Any, Any],
    is_split: np.ndarray[Any, Any],
    shapes: np.ndarray[Any, Any],
) -> IndexFormatError:
    """Return the error, with a place where there is no part or more than one if that is cheap."""
    place, count = _find_fault(bounds, starts, stops)
    if place is None:
        found = sum(math.prod(part) for part in shapes.tolist())
        return IndexFormatError(
            "the parts of the array overlap or leave gaps",
            found=f"parts of {found} items together", expected=math.prod(shape),
        )  # fmt: skip
    at = np.zeros(len(shape), np.int64)
    at[is_split] = place
    what = f"{count} parts of the array overlap" if count else "the parts of the array leave a gap"
    return IndexFormatError(what, found=f"{count} parts at {tuple(at.tolist())}", expected="one")


def _find_fault(
    bounds: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], stops: np.ndarray[Any, Any]
) -> tuple[Any, int]:
    """Return an item that is not in exactly one part, and in how many; (None, 0) if unknown."""
    grid = [
        np.unique(np.concatenate([[0, bound], starts[:, axis], stops[:, axis]]))
        for axis, bound in enumerate(bounds.tolist())
    ]
    sizes = [len(ends) - 1 for ends in grid]
    first = [np.searchsorted(ends, starts[:, axis]) for axis, ends in enumerate(grid)]
    last = [np.searchsorted(ends, stops[:, axis]) for axis, ends in enumerate(grid)]
    cells = sum(math.prod(box) for box in np.subtract(last, first).T.tolist())
    if math.prod(sizes) > _CELLS_COUNT or cells > _CELLS_COUNT or len(grid) > 32:
        return None, 0
    counts = np.zeros(sizes, np.int64)
    for begin, end in zip(np.transpose(first).tolist(), np.transpose(last).tolist(), strict=True):
        counts[tuple(map(slice, begin, end))] += 1
    at = np.argwhere(counts != 1)[0].tolist()
    return [int(ends[cell]) for ends, cell in zip(grid, at, strict=True)], int(counts[tuple(at)])
