"""The leaves of nested data: each an array, an entry of the note, or both.

Owns how a value that is neither a mapping nor a list is stored, and how it is
read back. Python's numbers and strings are entries of the note; bytes and
NumPy's scalars are arrays with an entry that says what they were. Knows
neither keys nor archives.

The entries are:

- ``["value", value]``: None, a number or a string;
- ``["complex", real, imaginary]``: a complex number;
- ``["as", kind]``: an array that was a Python value (``"value"``), a list or a
  tuple of values, a NumPy scalar (``"scalar"``) or bytes (``"bytes"``);
- ``["as", "tensor"]``: an array that was a tensor of PyTorch. A third item is
  the name of the tensor's dtype if neither NumPy nor ml_dtypes has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import NoneType
from typing import Any

import numpy as np

from npzkit.errors import NpyFormatError, UnsupportedError
from npzkit.limits import is_backed
from npzkit.members.tensors import is_tensor, special_dtype, to_array

MISSING: Any = object()
"""The place of an array, or of a value, that is not there."""

KINDS = ("as", "value", "complex")
"""What an entry begins with."""
_PLAIN = (bool, int, float, str)
"""Types that JSON keeps."""
_PYTHON = (*_PLAIN, complex, bytes)
"""Types of Python's values."""
_MAX_DEPTH = 200
"""Largest depth of a list that can become an array."""


def encode(value: Any, *, is_top: bool = False) -> tuple[Any, Any]:
    r"""Return the array of a leaf, or `MISSING`, and its entry in the note, or None.

    Parameters
    ----------
    value : object
    is_top : bool, default False
        Prefer an array, as `numpy.savez` does.

    Raises
    ------
    UnsupportedError
        The value cannot be kept in an array.

    Examples
    --------
    >>> encode(2.5) == (MISSING, ["value", 2.5])
    True
    >>> encode(b"a\0")
    (array([97,  0], dtype=uint8), ['as', 'bytes'])
    """
    if type(value) is np.ndarray:
        return value, None
    if value is None:
        return MISSING, ["value", None]
    if is_tensor(value):
        return to_array(value), ["as", "tensor", *special_dtype(value)]
    if isinstance(value, np.generic):
        return _scalar_array(value), ["as", "scalar"]
    if not isinstance(value, _PYTHON):
        return value, None
    if is_top and (array := exact_array(value)) is not None:
        return array, ["as", "value"]
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8), ["as", "bytes"]
    if isinstance(value, complex):
        return MISSING, ["complex", value.real, value.imag]
    return MISSING, ["value", value]


def _scalar_array(value: np.generic) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    if isinstance(value, (str, bytes)) and array[()] != value:
        raise UnsupportedError(
            "NumPy drops the zeros at the end of this text",
            found=repr(value),
            remedy="Save str(value) or bytes(value), which keeps them.",
        )
    return array


def exact_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return the array of a number, a string or a list of them, if it converts back exactly."""
    if isinstance(value, (list, tuple)) and holds_more(value):
        return None
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        return None
    if array.dtype == object:
        return None
    found = array.tolist()
    return array if _is_same(tuple(found) if isinstance(value, tuple) else found, value) else None


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    # By repr, -0.0 differs from 0.0, and nan equals itself.
    return repr(one) == repr(other)


def holds_more(items: Iterable[Any], depth: int = 0) -> bool:
    """Return whether a list has other items than numbers and strings, at any depth."""
    if depth > _MAX_DEPTH:
        return True
    return any(
        holds_more(item, depth + 1)
        if isinstance(item, (list, tuple))
        else not isinstance(item, (*_PYTHON, np.generic))
        for item in items
    )


def decode(found: Any, entry: list[Any], as_tensor: Callable[..., Any] | None = None) -> Any:
    """Return the value of a leaf, or `MISSING` if it was removed.

    Parameters
    ----------
    found : object
        The array, another value that took its place, or `MISSING`.
    entry : list
        From `encode`.
    as_tensor : callable, optional
        Makes a tensor of an array and the name of its dtype, if that is not the
        array's. By default tensors come back as arrays.

    Raises
    ------
    ValueError
        The entry is not valid.
    NpyFormatError
        The array has text that is no text.

    Examples
    --------
    >>> decode(MISSING, ["complex", 1, -1.5])
    (1-1.5j)
    """
    kind, *rest = entry
    if kind == "as" and rest[:1] == ["tensor"] and len(rest) <= 2:
        is_array = isinstance(found, np.ndarray) and as_tensor is not None
        return as_tensor(found, *rest[1:]) if is_array and as_tensor is not None else found
    if kind == "as" and rest in (["value"], ["list"], ["tuple"], ["scalar"], ["bytes"]):
        return _as_python(found, rest[0])
    if kind == "value" and len(rest) == 1 and isinstance(rest[0], (*_PLAIN, NoneType)):
        return rest[0] if found is MISSING else found
    if kind == "complex" and len(rest) == 2 and all(type(part) in (int, float) for part in rest):
        return complex(*rest) if found is MISSING else found
    raise ValueError


def _as_python(array: Any, kind: str) -> Any:
    """Return the value that an array was made from."""
    if not isinstance(array, np.ndarray):
        return array
    if kind == "bytes":
        is_bytes = array.ndim == 1 and array.dtype == np.uint8
        return array.tobytes() if is_bytes else array
    if (array.ndim == 0) is not (kind in ("value", "scalar")):
        return array
    if kind == "scalar":
        return array[()]
    if not is_backed(array.shape, array.nbytes):
        return array
    try:
        value = array.tolist()
    except SystemError as error:
        # So NumPy says that a string has a number that is no character's.
        raise NpyFormatError(
            "the array has text with characters that do not exist",
            remedy="npz[key] returns the array as it is.",
        ) from error
    return tuple(value) if kind == "tuple" else value
