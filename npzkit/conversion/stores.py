"""What HDF5 and Zarr have in common: groups, chunks, attributes, and text of any length.

Owns how an array of such a store is read, and how a dtype that it cannot name
is kept. Knows neither library.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from npzkit.conversion.arrays import Array, Say, as_void, plain_dtype, unreadable
from npzkit.conversion.attributes import from_library
from npzkit.errors import printable
from npzkit.members.extension_dtypes import DTYPE_ATTRIBUTE, restored_dtype
from npzkit.reading.blocks import blocks

_LARGEST_CHUNK = 1 << 30
"""Bytes of a chunk that is read: libraries allocate a whole one."""


def array_in_store(
    key: str,
    item: Any,
    attrs: Mapping[str, Any],
    say: Say,
    *,
    texts: Any = None,
    problem: str = "",
) -> Array:
    """Return an array of a store that is open.

    Parameters
    ----------
    key : str
    item : object
        The library's array: it has shape, dtype and chunks, and is read by slices.
    attrs : mapping
        Its attributes, as the library gives them.
    say : callable
    texts : object, optional
        For text of any length: gives str objects when it is read by slices.
    problem : str, optional
        Why it cannot be read.
    """
    found = from_library(attrs, key, say)
    shape, least = item.shape, item.chunks
    if not problem and least and math.prod(least) * item.dtype.itemsize > _LARGEST_CHUNK:
        problem = f"its chunks take more than {_LARGEST_CHUNK >> 30} GiB"
    if problem:
        return unreadable(key, shape, problem)
    if texts is not None:
        strings = _Strings(texts, shape, least)
        return Array(key, shape, strings.dtype, lambda: strings, found, least)
    dtype = plain_dtype(item.dtype)
    restored = restored_dtype(dtype, attrs)
    values = item if restored is dtype else _Viewed(item, restored)
    return Array(key, shape, restored, lambda: values, found, least)


def say_group(key: str, say: Say) -> None:
    """Note that a group's attributes have no place in an archive."""
    say(f"the attributes of the group {printable(key)!r} are not kept")


def void_for(array: Array, store: str, say: Say) -> tuple[np.dtype[Any] | None, dict[str, str]]:
    """Return the void that a dtype of ml_dtypes is kept as, and the attribute that names it.

    None and no attribute for other dtypes.
    """
    void = as_void(array.dtype)
    if void is None:
        return None, {}
    say(
        f"{printable(array.key)!r}: {array.dtype} is kept as bytes, which {store} cannot name; "
        "npzkit reads it back"
    )
    return void, {DTYPE_ATTRIBUTE: array.dtype.name}


class _Viewed:
    """An array whose values are read as another dtype of the same size."""

    def __init__(self, array: Any, dtype: np.dtype[Any]) -> None:
        self._array, self._dtype = array, dtype

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        return np.asarray(self._array[index]).view(self._dtype)


class _Strings:
    """An array of strings of any length, read as one of the length of the longest.

    Parameters
    ----------
    array : object
        Indexed by slices, it gives str objects.
    shape, least : tuple of int
    """

    def __init__(self, array: Any, shape: tuple[int, ...], least: tuple[int, ...] | None) -> None:
        self._array = array
        longest = 1
        for index in blocks(shape, 64, least):
            texts = np.asarray(array[index], object).ravel().tolist()
            longest = max(longest, *map(len, map(str, texts)))
        self.dtype = np.dtype(f"U{longest}")

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        return np.asarray(np.asarray(self._array[index], object), self.dtype)


def why_nested(keys: Mapping[str, object], key: str) -> str | None:
    """Return why a key cannot be kept: one of its folders is an array; or None."""
    parts = key.split("/")
    above = ["/".join(parts[:count]) for count in range(1, len(parts))]
    other = next((name for name in above if name in keys), None)
    return None if other is None else f"{other!r} is an array and would have to be a group"
