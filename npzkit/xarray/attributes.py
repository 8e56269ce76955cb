"""Attributes of xarray as values that JSON can express, and back.

Owns NumPy's values in attributes, the fill values of each dtype, and where the
attributes of groups are kept. Knows no xarray.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npzkit.conversion.dimensions import DIMENSIONS

GROUPS = "npzkit.groups"
"""The key of the archive's metadata for groups: their attributes by their paths."""
_FILL_VALUES = ("_FillValue", "missing_value")
"""Attributes that have values of the array's own dtype."""


def attrs_to_json(attrs: Mapping[Any, Any], owner: str) -> dict[str, Any]:
    """Return attributes with Python's values in place of NumPy's.

    Parameters
    ----------
    attrs : mapping
    owner : str
        Whose they are, for messages.

    Raises
    ------
    TypeError
        A name is not a string, or a value cannot be kept.
    """
    found = {}
    for name, value in attrs.items():
        if not isinstance(name, str):
            raise TypeError(f"{owner}: names of attributes must be strings, not {name!r}")
        try:
            found[name] = _to_json(value)
        except TypeError as error:
            raise TypeError(f"{owner}, attribute {name!r}: {error}") from None
    return found


def _to_json(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "mM":
        return _to_json(value.tolist())
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, Mapping):
        return {name: _to_json(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(inner) for inner in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(
        f"a value of type {type(value).__name__} cannot be kept; "
        "use strings, numbers, lists and dicts"
    )


def attrs_from_json(attrs: Mapping[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return an array's attributes, without its dimensions, with fill values of its dtype."""
    found = {name: value for name, value in attrs.items() if name != DIMENSIONS}
    for name in _FILL_VALUES:
        if name in found:
            found[name] = _of_dtype(found[name], dtype)
    return found


def _of_dtype(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value as one of the dtype; as it is if it does not fit."""
    try:
        if dtype.kind == "S":
            return value.encode("latin-1")
        if dtype.kind == "c":
            return dtype.type(complex(*value))
        if dtype.kind in "iufb" and not isinstance(value, list):
            return dtype.type(value)
    except (TypeError, ValueError, OverflowError, AttributeError):
        pass
    return value
