"""The arrays of an example that an archive is read straight into.

Owns which arrays these are: contiguous memory on this machine, of NumPy or PyTorch.
"""

from __future__ import annotations

import contextlib
from itertools import accumulate
from typing import Any

import numpy as np

from npzkit.errors import UnsupportedError
from npzkit.members.containers import children_of
from npzkit.members.keys import child_key
from npzkit.members.tensors import identity, is_tensor
from npzkit.trees.frameworks import address, view_of


def places_in(node: Any, key: str) -> dict[str, Any]:
    """Return the arrays in an example that can be filled, or the memory of tensors, by key."""
    children = children_of(node)
    if children is None:
        place = _place_of(node)
        return {} if place is None else {key: place}
    found: dict[str, Any] = {}
    for name, child in children.items():
        found |= places_in(child, child_key(key, name))
    return found


def _place_of(leaf: Any) -> Any:
    """Return a leaf's memory as an array; None if it cannot be filled, or is not contiguous."""
    place = leaf
    if is_tensor(leaf):
        place = None
        # Others cannot be filled, which is said when it is tried.
        with contextlib.suppress(UnsupportedError):
            if identity(leaf) is not None and leaf.is_contiguous():
                place = view_of(leaf)
    if type(place) is not np.ndarray or place.dtype.hasobject or not place.dtype.isnative:
        return None
    flags = place.flags
    is_fillable = flags.writeable and (flags.c_contiguous or flags.f_contiguous) and place.ndim
    return place if is_fillable else None


def apart(places: dict[str, Any]) -> dict[str, Any]:
    """Return those whose memory no other one has too."""
    spans = sorted((address(place), key) for key, place in places.items())
    ends = list(accumulate((start + places[key].nbytes for start, key in spans), max))
    following = [*(start for start, _ in spans[1:]), ends[-1] if ends else 0]
    return {
        key: places[key]
        for (start, key), before, end, after in zip(
            spans, [0, *ends], ends, following, strict=False
        )
        if before <= start and end <= after
    }
