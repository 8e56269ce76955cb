"""Masked arrays, which xarray has none of: their masked values are missing ones, such as NaN.

Owns which arrays have a mask, and for which variables it is applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npzkit.members.array_info import ArrayInfo


def masks_of(infos: Mapping[str, ArrayInfo]) -> dict[str, str]:
    """Return the keys of masks, by those of the arrays that were saved with them."""
    found = {key: info.split_into[0] for key, info in infos.items() if info.is_masked}
    return {
        key: mask
        for key, mask in found.items()
        if mask in infos and infos[mask].dtype == bool and infos[mask].shape == infos[key].shape
    }


def applied(masks: Mapping[str, str], mask_and_scale: Any) -> dict[str, str]:
    """Return those of masks that xarray's option asks for: all, unless it says which."""
    if not isinstance(mask_and_scale, Mapping):
        return {} if mask_and_scale is False else {**masks}
    return {
        key: mask for key, mask in masks.items() if mask_and_scale.get(key.rpartition("/")[2], True)
    }
