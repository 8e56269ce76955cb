"""Whether values are the same when they are read back: those that an encoding makes integers.

Owns the check, and how arrays of dask are checked block by block while they are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import xarray
from xarray import conventions

from npzkit.xarray.archive_store import FILL_VALUES, attrs_from_json, attrs_to_json

NUMBERS = ("scale_factor", "add_offset", *FILL_VALUES, "_Unsigned")
"""What the values of a variable mean, in its attributes."""


def checked(
    key: str, original: xarray.Variable, encoded: xarray.Variable, advice: str
) -> xarray.Variable:
    """Return an encoded variable whose values are checked: at once, or when dask computes them.

    `advice` is the end of the error.

    Raises
    ------
    ValueError
        A value would be read as another one, but for half of the scale.
    """
    # Attributes of the original say what its values mean already. So do its integers.
    known = (*original.attrs, *(FILL_VALUES if original.dtype.kind in "iu" else ()))
    numbers = {name: encoded.attrs[name] for name in NUMBERS if name in encoded.attrs}
    numbers = {name: value for name, value in numbers.items() if name not in known}
    is_same = original.dtype == encoded.dtype and not numbers
    if is_same or original.dtype.kind not in "iuf" or encoded.dtype.kind not in "iu":
        return encoded
    check = partial(_checked, key=key, numbers=attrs_to_json(numbers, key), advice=advice)
    if not encoded.chunks:
        return encoded.copy(data=check(np.asarray(encoded.data), np.asarray(original.data)))
    import dask.array

    data, source = encoded.data, original.data
    blocks = dask.array.map_blocks(check, data, source, dtype=data.dtype, meta=data._meta)
    return encoded.copy(data=blocks)


def _checked(
    stored: np.ndarray[Any, Any],
    original: np.ndarray[Any, Any],
    *,
    key: str,
    numbers: Mapping[str, Any],
    advice: str,
) -> np.ndarray[Any, Any]:
    attrs = attrs_from_json(numbers, stored.dtype)
    encoded = xarray.Variable(range(stored.ndim), stored, attrs)
    found = conventions.decode_cf_variable(key, encoded).values
    eps = max(
        np.finfo(array.dtype).eps if array.dtype.kind == "f" else 0 for array in (found, original)
    )
    scale, offset = abs(attrs.get("scale_factor", 0)), abs(attrs.get("add_offset", 0))
    is_kept = np.isclose(found, original, 4 * eps, scale / 2 + 4 * eps * offset, equal_nan=True)
    if not is_kept.all():
        wrong = ~is_kept
        others = f" with {dict(numbers)}" if numbers else ""
        raise ValueError(
            f"{key!r} has values that its encoding cannot keep, {stored.dtype}{others}: "
            f"{original[wrong][0]} would be read as {found[wrong][0]}. {advice}"
        )
    return stored
