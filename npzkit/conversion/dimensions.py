"""The names of an array's dimensions, which xarray and Zarr keep in an attribute.

Owns the name of that attribute, which names in it count, and those that are made up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DIMENSIONS = "_ARRAY_DIMENSIONS"
"""The attribute, by xarray's convention for Zarr."""


def named_dimensions(attrs: Mapping[str, Any], ndim: int) -> tuple[str, ...] | None:
    """Return the names in an array's attributes; None if there are none that fit.

    Examples
    --------
    >>> named_dimensions({"_ARRAY_DIMENSIONS": ["time", "x"]}, 2)
    ('time', 'x')
    """
    names = attrs.get(DIMENSIONS)
    if not isinstance(names, list) or len(names) != ndim:
        return None
    return tuple(names) if all(isinstance(name, str) for name in names) else None


def made_up_dimensions(
    shapes: Mapping[str, tuple[int, ...]], known: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Return names for the dimensions of arrays: ``dim_0``, ``dim_1`` and so on, one per length.

    Dimensions of the same length share a name, unless they belong to the same array. No
    name is that of another dimension, or of an array in its group.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        By key.
    known : mapping of str to tuple of str
        By key, for arrays that have names.

    Examples
    --------
    >>> made_up_dimensions({"a": (3, 4), "b": (4,), "c": (3, 3)}, {})
    {'a': ('dim_0', 'dim_1'), 'b': ('dim_1',), 'c': ('dim_0', 'dim_2')}
    """
    taken = {name for dims in known.values() for name in dims}
    taken |= {key.rpartition("/")[2] for key in shapes}
    names: dict[tuple[int, int], str] = {}
    number = 0
    found = {}
    for key, shape in shapes.items():
        if key in known:
            continue
        own = []
        for axis, length in enumerate(shape):
            which = length, shape[:axis].count(length)
            while which not in names:
                name = f"dim_{number}"
                number += 1
                if name not in taken:
                    names[which] = name
            own.append(names[which])
        found[key] = tuple(own)
    return found
