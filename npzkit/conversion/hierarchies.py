"""What HDF5 and Zarr have in common: groups, chunks, attributes, and text of any length.

Owns how an array of such a store is read, how a dtype that it cannot name is
kept, and what becomes of attributes that one side has no place for. Knows neither
library.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from npzkit import format as npy
from npzkit.conversion.arrays import Array, Each, Say, named, unreadable
from npzkit.conversion.refusals import Claims
from npzkit.display.blocks import blocks
from npzkit.errors import SKIP, ConversionError, NpzkitError, printable
from npzkit.limits import is_backed
from npzkit.members.metadata import PARTS_ATTRIBUTE, TREE_KEY, format_json, parse_json, user_attrs
from npzkit.members.tensors import DTYPE_ATTRIBUTE, restored_dtype

JSON_ATTRIBUTE = "npzkit.json"
"""Holds, as one JSON text, the attributes that a format has no type for."""
_SHOWN_LENGTH = 120
"""Characters of a library's message that are quoted."""
_LARGEST_CHUNK = 1 << 30
"""Bytes of a chunk that is read: libraries allocate a whole one."""
_TEXT_SIZE = 4
"""Bytes of an empty text, before it is compressed: Zarr's; HDF5 has 16."""


def array_in_store(
    key: str,
    item: Any,
    attrs: Mapping[str, Any],
    say: Say,
    claims: Claims,
    *,
    stored: Callable[[], int],
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
    claims : Claims
    stored : callable
        Returns the bytes that the file has of it.
    texts : object, optional
        For text of any length: gives str objects when it is read by slices.
    problem : str, optional
        Why it cannot be read.
    """
    found = from_library(attrs, key, say)
    shape, least = item.shape, item.chunks
    if not problem and least and math.prod(least) * item.dtype.itemsize > _LARGEST_CHUNK:
        problem = f"its chunks take more than {_LARGEST_CHUNK >> 30} GiB"
    if not problem and least and not claims.has_room(_count(shape, least), 1, stored):
        problem = "it claims chunks that the file does not have"
    if not problem and texts is not None:
        if not claims.has_room(math.prod(shape), _TEXT_SIZE, stored):
            return unreadable(key, shape, "it claims texts that the file does not have")
        longest, text_size = _longest(texts, shape, least)
        strings = np.dtype(f"U{longest}")
        if not claims.may_pad(math.prod(shape) * strings.itemsize, text_size):
            problem = f"its longest text has {longest:,} characters, and all would be as long"
    if problem:
        return unreadable(key, shape, problem)
    if texts is not None:
        read = Each(texts, lambda part: np.asarray(np.asarray(part, object), strings))
        return Array(key, shape, strings, lambda: read, found, least)
    array = Array(key, shape, npy.drop_metadata(item.dtype), lambda: item, found, least)
    restored = restored_dtype(array.dtype, attrs)
    return array if restored is array.dtype else array.viewed(restored)


def stored_in(array: Array, store: str, say: Say) -> tuple[Array, dict[str, str]]:
    """Return an array as a store keeps it, and the attribute that names a dtype of ml_dtypes."""
    stored = array.stored()
    if stored is array:
        return array, {}
    say(
        f"{printable(array.key)!r}: {array.dtype} is kept as bytes, which {store} cannot name; "
        "npzkit reads it back"
    )
    return stored, {DTYPE_ATTRIBUTE: array.dtype.name}


@contextlib.contextmanager
def giving(key: str, store: str) -> Iterator[None]:
    """Raise ConversionError if a library does not take an array."""
    try:
        yield
    except (NpzkitError, OSError, MemoryError, RecursionError):
        raise
    except Exception as error:
        text = printable(" ".join(str(error).split()))[:_SHOWN_LENGTH]
        raise ConversionError(
            f"{store} does not take the array: {text}", key=key,
            remedy="Leave it out with " + SKIP + ".",
        ) from error  # fmt: skip


def _count(shape: tuple[int, ...], least: tuple[int, ...]) -> int:
    """Return the number of chunks."""
    return math.prod(-(-n // max(part, 1)) for n, part in zip(shape, least, strict=True))


def _longest(array: Any, shape: tuple[int, ...], least: tuple[int, ...] | None) -> tuple[int, int]:
    """Return the length of the longest of an array's strings, 1 at least, and four times all."""
    longest, total = 1, 0
    # Many may be the same long one, so that few are read at a time.
    for index in blocks(shape, 1 << 12, least):
        lengths = [len(str(text)) for text in np.asarray(array[index], object).ravel().tolist()]
        longest, total = max(longest, *lengths), total + 4 * sum(lengths)
    return longest, total


def from_library(attrs: Mapping[str, Any], key: str | None, say: Say) -> dict[str, Any]:
    """Return attributes that a library read as JSON has them; others are left out, with a note."""
    attrs = {**attrs, **join_json(attrs.get(JSON_ATTRIBUTE))}
    kept, found = user_attrs(attrs), dict[str, Any]()
    if key is None and isinstance(attrs.get(TREE_KEY), (dict, list)):
        # Of npzkit's own, metadata have the structure of nested data, and arrays their parts.
        kept[TREE_KEY] = attrs[TREE_KEY]
    elif key is not None and isinstance(attrs.get(PARTS_ATTRIBUTE), dict):
        kept[PARTS_ATTRIBUTE] = attrs[PARTS_ATTRIBUTE]
    for name, value in kept.items():
        try:
            found[name] = json.loads(json.dumps(value, default=_from_numpy))
        except (TypeError, ValueError):
            say(
                f"the attribute {printable(name)!r} of {named(key)} is not kept: "
                f"JSON has no {type(value).__name__}"
            )
    return found


def _from_numpy(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        if not is_backed(value.shape, value.nbytes):
            # A shape alone may claim lists that would fill the memory.
            raise ValueError
        return value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8")
    raise TypeError


def split_json(attrs: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Split attributes into simple ones, and the rest as one JSON text.

    Simple are strings, numbers and lists of one kind of them.
    """
    simple = {name: value for name, value in attrs.items() if _is_simple(value)}
    rest = {name: value for name, value in attrs.items() if name not in simple}
    return simple, format_json(rest) if rest else None


def _is_simple(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and len(set(map(_kind_of, value))) == 1 and all(map(_is_simple, value))
    if isinstance(value, str):
        return "\0" not in value
    if isinstance(value, bool | float):
        return True
    return isinstance(value, int) and -(2**63) <= value < 2**63


def _kind_of(value: Any) -> Any:
    """Return what all items of a simple list have in common: one type, and for lists one length."""
    return (type(value), len(value)) if isinstance(value, list) else type(value)


def join_json(text: Any) -> dict[str, Any]:
    """Return the attributes in a text by `split_json`; nothing for any other text."""
    try:
        found = parse_json(text) if isinstance(text, (str, bytes)) else None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
