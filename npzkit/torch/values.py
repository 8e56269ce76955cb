"""Values of a state dict that are not tensors: as JSON and arrays, and back, without pickle.

Owns which values can be kept, and their notes. A value comes back with its own type, which
is why others are refused. Knows neither archives nor plans.

A note is one of these:

- None, a bool, an int, a float or a string: the value itself. A float may be NaN or infinite;
- ``["list", note, ...]``, and the same for ``tuple``, ``set``, ``frozenset`` and ``Size``;
- ``["dict", note, ...]`` with tuples of a key and a value, and the same for ``OrderedDict``;
- ``["named", type, [field, ...], note, ...]``: a namedtuple;
- ``["dtype", text]``, ``["device", text]``: of PyTorch;
- ``["stream", note]``: an `io.BytesIO` with these bytes;
- ``["array", key, entry]``: an array, with its entry of `npzkit.members.notes`, or null;
- the entry of a leaf that needs no array.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import Any

import numpy as np
import torch

from npzkit.errors import IndexFormatError, NpzkitError, UnsupportedError, shown_value
from npzkit.members.containers import KINDS, MISSING, decode, encode, is_namedtuple, named
from npzkit.members.tensors import is_tensor, without_pickle
from npzkit.trees.frameworks import from_array

_PLAIN = (NoneType, bool, int, float, str)
"""Types that are their own notes."""
_ITEMS: dict[str, Callable[..., Any]] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "Size": torch.Size,
    "dict": dict, "OrderedDict": OrderedDict,
}  # fmt: skip
_KINDS_OF_ITEMS = set(_ITEMS.values())
_MAX_DEPTH = 200
"""Largest depth of a value."""
_MAX_BITS = 8192
"""Of the largest int. Python does not read longer ones from JSON."""


def encode_value(value: Any, key: str) -> tuple[Any, dict[str, Any]]:
    """Return the note of a value, and its arrays by their keys.

    Parameters
    ----------
    value : object
    key : str
        Of the value. Its arrays get keys that begin with it.

    Raises
    ------
    UnsupportedError
        The value cannot be kept without pickle.

    Examples
    --------
    >>> encode_value({"betas": (0.9, 0.999), 1: None}, "options")
    (['dict', ['tuple', 'betas', ['tuple', 0.9, 0.999]], ['tuple', 1, None]], {})
    >>> encode_value(b"ab", "raw")
    (['array', 'raw', ['as', 'bytes']], {'raw': array([97, 98], dtype=uint8)})
    """
    arrays: dict[str, Any] = {}
    try:
        return _encoded(value, key, arrays), arrays
    except NpzkitError as error:
        raise error.locate(key=key) from error.__cause__


def _encoded(value: Any, key: str, arrays: dict[str, Any], depth: int = 0) -> Any:
    """Return the note of a value, and add its arrays."""
    kind = type(value)
    if depth > _MAX_DEPTH:
        raise _refused("a value that is nested too deeply", "Keep less of it.")
    if kind is int and value.bit_length() > _MAX_BITS:
        raise _refused("an int of thousands of digits", "Save it as a string.")
    if kind in _PLAIN:
        return value
    inner = partial(_encoded, key=key, arrays=arrays, depth=depth + 1)
    if kind in _KINDS_OF_ITEMS:
        return [kind.__name__, *map(inner, value.items() if isinstance(value, dict) else value)]
    if is_namedtuple(value):
        try:
            named(kind.__name__, value._fields)
        except (ValueError, TypeError):
            raise _refused(f"names of {kind.__name__}", "Save value._asdict().") from None
        return ["named", kind.__name__, list(value._fields), *map(inner, value)]
    if kind in (torch.dtype, torch.device):
        return [kind.__name__, str(value).removeprefix("torch.")]
    if kind is io.BytesIO:
        return ["stream", inner(value.getvalue())]
    is_numpys = kind is np.ndarray or isinstance(value, np.generic)
    is_plain = kind in (complex, bytes) or (is_numpys and value.dtype.kind != "O")
    if not (is_plain or is_tensor(value)):
        raise _refused(
            f"{kind.__module__}.{kind.__qualname__}", f"{without_pickle(value, key).remedy}"
        )
    array, entry = encode(value)
    if array is MISSING:
        return entry
    own_key = f"{key}/{len(arrays)}" if depth else key
    arrays[own_key] = array
    return ["array", own_key, entry]


def _refused(found: str, remedy: str) -> UnsupportedError:
    return UnsupportedError("this value cannot be saved without pickle", found=found, remedy=remedy)


def decode_value(note: Any, read: Callable[[str], Any]) -> Any:
    """Return the value of a note.

    Parameters
    ----------
    note : object
        From a file, so it may be anything that JSON can hold.
    read : callable
        Returns the array with a key.

    Raises
    ------
    IndexFormatError
        The note is not valid.

    Examples
    --------
    >>> decode_value(["tuple", 1, ["complex", 0.0, 1.0]], None)
    (1, 1j)
    """
    try:
        return _decode(note, read)
    except (NpzkitError, RecursionError):
        raise
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        # Also what PyTorch says of a device, and Python of a set of lists.
        raise IndexFormatError(
            f"the note of a value is not valid: {shown_value(str(error))}"
        ) from error


def _decode(note: Any, read: Callable[[str], Any]) -> Any:
    if type(note) in _PLAIN:
        return note
    if not (isinstance(note, list) and note):
        raise ValueError(f"found {type(note).__name__}")
    kind, *rest = note
    if kind in KINDS:
        return _present(decode(MISSING, note))
    if kind in _ITEMS:
        return _ITEMS[kind](_decode(inner, read) for inner in rest)
    if kind == "named":
        name, fields, *items = rest
        return named(name, tuple(fields))._make(_decode(inner, read) for inner in items)
    return _decode_special(kind, rest, read)


def _decode_special(kind: str, rest: list[Any], read: Callable[[str], Any]) -> Any:
    if kind == "array":
        key, entry = rest
        array = read(key)
        return array if entry is None else _present(decode(array, entry, from_array))
    (inner,) = rest
    if kind == "dtype" and isinstance(dtype := getattr(torch, inner, None), torch.dtype):
        return dtype
    if kind == "device":
        return torch.device(inner)
    if kind == "stream":
        return io.BytesIO(_decode(inner, read))
    raise ValueError(f"found {kind!r}")


def _present(value: Any) -> Any:
    if value is MISSING:
        raise ValueError("its array is missing")
    return value
