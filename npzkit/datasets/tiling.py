"""Whether parts tile an array: each item in exactly one part.

Owns this check. Knows nothing of files and indexes: a part is a box of an offset and a
shape.

Parts tile an array if the number of parts around each item is one. To find that out
without looking at items, each place along each axis gets a random level. The weight of a
box is the product of the differences of the levels at its two ends, along all axes. If
parts tile an array, their weights sum up to that of the array. If they do not, the sums
differ, except with a probability below 2**-70. So the check takes time in proportion to
the number of parts, whatever their arrangement, and one call checks many arrays.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from npzkit.errors import IndexFormatError

_PRIME = np.uint64(2**31 - 1)
"""Levels are numbers modulo this prime, so that products fit into 64 bits."""
_ROUNDS = 3

Numbers = np.ndarray[Any, Any]


def find_untiled(bounds: Numbers, counts: Numbers, offsets: Numbers, shapes: Numbers) -> list[int]:
    """Return which of many arrays are not tiled by their parts.

    Parameters
    ----------
    bounds : numpy.ndarray
        Of int64: the shape of each array, all with as many axes.
    counts : numpy.ndarray
        The number of parts of each, at least one.
    offsets, shapes : numpy.ndarray
        The parts of the first array, of the second and so on.

    Examples
    --------
    >>> halves = np.array([[2], [2]])
    >>> find_untiled(np.array([[4]]), np.array([2]), np.array([[0], [2]]), halves)
    []
    >>> find_untiled(np.array([[4]]), np.array([2]), np.array([[0], [1]]), halves)
    [0]
    """
    counts = counts.astype(np.intp)
    firsts = np.cumsum(counts, dtype=np.intp) - counts
    around = np.repeat(bounds, counts, axis=0)
    is_good = np.logical_and.reduceat(_are_inside(around, offsets, shapes), firsts)
    # The parts, and behind them the arrays; a row per round.
    starts = np.concatenate([offsets, np.zeros_like(bounds)]).astype(np.uint64)
    stops = np.concatenate([offsets + shapes, bounds]).astype(np.uint64)
    weights = np.ones((_ROUNDS, len(starts)), np.uint64)
    for axis in range(bounds.shape[1]):
        keys = np.frombuffer(os.urandom(8 * _ROUNDS), np.uint64)[:, None]
        levels = _levels(stops[:, axis], keys) + _PRIME - _levels(starts[:, axis], keys)
        weights = weights * (levels % _PRIME) % _PRIME
    parts, whole = np.split(weights, [len(offsets)], axis=1)
    is_good &= (np.add.reduceat(parts, firsts, axis=1) % _PRIME == whole).all(axis=0)
    untiled: list[int] = np.flatnonzero(~is_good).tolist()
    return untiled


def _are_inside(bounds: Numbers, offsets: Numbers, shapes: Numbers) -> Numbers:
    """Return which parts have items, all of them within an array of these bounds."""
    # Without sums, which could overflow.
    inside = (offsets >= 0) & (shapes > 0) & (offsets <= bounds) & (shapes <= bounds - offsets)
    return np.asarray(inside.all(axis=1))


def _levels(places: Numbers, keys: Numbers) -> Numbers:
    """Return a random number for each place, the same for equal places (splitmix64)."""
    mixed = (places ^ keys) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((mixed ^ (mixed >> np.uint64(31))) % _PRIME)


def fault_of(shape: tuple[int, ...], offsets: Numbers, shapes: Numbers) -> IndexFormatError:
    """Return the error for parts that do not tile an array: what is wrong."""
    outside = np.flatnonzero(~_are_inside(np.array([shape], np.int64), offsets, shapes))
    if len(outside):
        offset, part = offsets[outside[0]].tolist(), shapes[outside[0]].tolist()
        return IndexFormatError(
            "a part reaches out of its array, or is empty",
            found=f"offset {tuple(offset)}, shape {tuple(part)}",
            expected=f"a part of an array of shape {shape}",
        )
    found, expected = sum(map(math.prod, shapes.tolist())), math.prod(shape)
    what = "overlap" if found > expected else "leave gaps"
    if found == expected:
        what = "overlap, and leave gaps"
    return IndexFormatError(
        f"the parts of the array {what}",
        found=f"parts of {found} items together", expected=expected,
    )  # fmt: skip
