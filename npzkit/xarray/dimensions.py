"""The names of dimensions: those that are given, those in an array's attributes, or made-up ones.

Owns the name of that attribute, which names in it count, and how names are made up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npzkit.errors import MadeUpDimensionsWarning, warn
from npzkit.members.array_info import ArrayInfo

Dims = Mapping[str, str | Sequence[str]]
"""The names of dimensions, by key in the group that is opened."""
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


def dimensions_of(
    infos: Mapping[str, ArrayInfo],
    masks: Mapping[str, str],
    given: Dims | None,
    group: str,
    *,
    is_tree: bool,
) -> dict[str, tuple[str, ...]]:
    """Return the names of the dimensions of each array: as given, as kept, or made up.

    Parameters
    ----------
    infos : mapping of str to ArrayInfo
        Of all arrays of the archive.
    masks : mapping of str to str
        The keys of masks, by those of the masked arrays, which have the same dimensions.
    given : mapping of str to sequence of str, optional
        Names by key, in the group or in the archive, which come first.
    group : str
        The path of the group that is opened; the root is "".
    is_tree : bool
        Whether the groups in it are opened too.

    Raises
    ------
    ValueError
        Names are given for an array that has another number of dimensions, or
        for no array.

    Warns
    -----
    MadeUpDimensionsWarning
        Names were made up, for what is opened.
    """
    shapes = {key: info.shape or () for key, info in infos.items() if info.dtype is not None}
    found: dict[str, tuple[str, ...]] = {}
    for key, shape in shapes.items():
        dims = named_dimensions(infos[key].attrs, len(shape))
        if dims is not None or not shape:
            found[key] = dims or ()
    inside = f"{group}/" if group else ""
    for name, names in (given or {}).items():
        key = name if name in shapes and inside + name not in shapes else inside + name
        found[key] = _checked(key, names, shapes)
    alike = {mask: key for key, mask in masks.items() if mask not in found}
    own = {key: shape for key, shape in shapes.items() if key not in alike}
    made_up = _made_up_names(own, found)
    opened = {key.removeprefix(inside): made_up[key] for key in made_up if key.startswith(inside)}
    if shown := {name: opened[name] for name in opened if is_tree or "/" not in name}:
        _warn(shown)
    found |= made_up
    found |= {mask: found[key] for mask, key in alike.items()}
    return {key: found[key] for key in shapes}


def _checked(
    key: str, names: str | Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[str, ...]:
    dims = (names,) if isinstance(names, str) else tuple(names)
    if key not in shapes:
        raise ValueError(f"dims: the archive has no array {key!r}")
    if len(dims) != len(shapes[key]):
        raise ValueError(
            f"dims of {key!r}: the array has {len(shapes[key])} dimensions, not {len(dims)}"
        )
    return dims


def _warn(made_up: Mapping[str, tuple[str, ...]]) -> None:
    key, dims = next(iter(made_up.items()))
    others = f" and {len(made_up) - 1} more" if len(made_up) > 1 else ""
    # Without the path, so that Python shows it once for many files.
    warn(
        f"the dimensions of {key!r}{others} have no names. Names were made up, one per length; "
        f"{key!r} has {dims}. Name them: dims={{{key!r}: [...]}}",
        MadeUpDimensionsWarning,
    )


def _made_up_names(
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
    >>> _made_up_names({"a": (3, 4), "b": (4,), "c": (3, 3)}, {})
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
