"""dtypes that NPY cannot name: bfloat16, float8 and others of ml_dtypes.

Such an array's ``descr`` is a void of its size, ``<V2``, so that np.load opens
it; its true name is an attribute of the member. Owns that attribute.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["DTYPE_ATTRIBUTE", "extension_name", "restore"]

DTYPE_ATTRIBUTE = "npzkit.dtype"


def extension_name(dtype: np.dtype[Any]) -> str | None:
    """Return the name that the dtype's ``descr`` loses, or None."""
    if dtype.kind != "V" or dtype.type is np.void or dtype.names is not None:
        return None
    return dtype.name


def restore(array: np.ndarray[Any, Any], attrs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """View a void array as the dtype its attributes name.

    The array comes back as it is where ml_dtypes is not installed, does not
    know the name, or has another size for it.
    """
    dtype = restored_dtype(array.dtype, attrs)
    return array if dtype is array.dtype else array.view(dtype)


def restored_dtype(dtype: np.dtype[Any], attrs: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the dtype that the attributes name for a void dtype, or `dtype`."""
    name = attrs.get(DTYPE_ATTRIBUTE)
    if not isinstance(name, str) or dtype.type is not np.void or dtype.names is not None:
        return dtype
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError:
        return dtype
    scalar = getattr(ml_dtypes, name, None) if name.isidentifier() else None
    if not (isinstance(scalar, type) and issubclass(scalar, np.generic)):
        return dtype
    named = np.dtype(scalar)
    return named if named.itemsize == dtype.itemsize else dtype
