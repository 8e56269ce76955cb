"""Dtypes that NPY cannot name: bfloat16, float8 and others of ml_dtypes.

The ``descr`` of such an array is a void of the same size, such as ``<V2``, so
that np.load can read it. The name of the dtype is an attribute of the member.
Owns which dtypes need it, and when the name is believed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from npzkit.errors import UnsupportedError, warn
from npzkit.format.descr import is_legacy

DTYPE_ATTRIBUTE = "npzkit.dtype"


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raise UnsupportedError if a field would lose its dtype, or `dtype` its byte order."""
    if not dtype.isnative and extension_name(dtype) is not None:
        raise UnsupportedError(
            f"the byte order of {dtype} is not this machine's, and would be lost",
            remedy="Save array.astype(array.dtype.newbyteorder('=')).",
        )
    _check_fields(dtype)


def _check_fields(dtype: np.dtype[Any]) -> None:
    for name in dtype.names or ():
        field = dtype[name].base
        if extension_name(field) is not None:
            raise UnsupportedError(
                f"the field {name!r} would lose its dtype {field}, which NPY cannot name",
                remedy="Save the field as a separate array.",
            )
        _check_fields(field)


def extension_name(dtype: np.dtype[Any]) -> str | None:
    """Return the name of a dtype whose ``descr`` does not have it, or None."""
    return dtype.name if dtype.isbuiltin == 2 and is_legacy(dtype) else None


def restore(array: np.ndarray[Any, Any], attrs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return a view of a void array with the dtype that its attributes name.

    Returns `array` itself if ml_dtypes is not installed, has no such dtype, or
    has one of another size.
    """
    dtype = restored_dtype(array.dtype, attrs)
    return array if dtype is array.dtype else array.view(dtype)


def restored_dtype(dtype: np.dtype[Any], attrs: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the dtype that the attributes name for a void dtype, or `dtype` itself."""
    name = attrs.get(DTYPE_ATTRIBUTE)
    if not isinstance(name, str) or dtype.type is not np.void or dtype.names is not None:
        return dtype
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError:
        warn(
            f"this array has the dtype {name[:40]!r}, but is read as bytes because the package "
            "ml_dtypes is not installed. Install it: python -m pip install ml_dtypes",
            UserWarning,
        )
        return dtype
    scalar = getattr(ml_dtypes, name, None) if name.isidentifier() else None
    if not (isinstance(scalar, type) and issubclass(scalar, np.generic)):
        return dtype
    named = np.dtype(scalar)
    return named if named.itemsize == dtype.itemsize else dtype
