"""What a library reads from a new file, compared with what it was given.

Owns which differences count: values never may, dtypes and attributes may with a note. Knows
no format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from npzkit.conversion.arrays import Array, Contents, Say, few, is_c_number, named
from npzkit.errors import SKIP, ConversionError, printable
from npzkit.files.progress import Advance
from npzkit.members.metadata import format_json


def compare(
    written: Contents, found: Contents, say: Say, advance: Advance, *, pads_text: bool
) -> None:
    """Compare each array of a new file with what was written to it, part by part.

    `pads_text` says that the format adds spaces to text, and axes to shapes.

    Raises
    ------
    ConversionError
        An array is missing, or its values are others.
    """
    _note_changes(written.metadata, found.metadata, None, say)
    by_key = {array.key: array for array in found.arrays}
    changed: dict[tuple[str, str], list[str]] = {}
    for array in written.arrays:
        other = by_key.get(array.key)
        if other is None or not _is_same_array(array, other, advance, pads_text=pads_text):
            raise ConversionError(
                "the format's library does not read back what was written, so nothing is kept",
                key=array.key,
                found="no array" if other is None else f"{other.dtype!s:.60} {other.shape}",
                expected=f"{array.dtype!s:.60} {array.shape}",
                remedy="Leave it out with " + SKIP + ", or convert to another format.",
            )  # fmt: skip
        _note_changes(array.attrs, other.attrs, array.key, say)
        if array.shape != other.shape:
            say(f"{printable(array.key)!r}: shape {array.shape} becomes {other.shape}")
        if array.dtype != other.dtype and array.dtype.kind != "U":
            dtypes = printable(str(array.dtype)), printable(str(other.dtype))
            changed.setdefault(dtypes, []).append(repr(printable(array.key)))
    for (old, new), keys in changed.items():
        say(f"{few(keys)}: {old} becomes {new}, with the same values")


def _note_changes(
    attrs: Mapping[str, Any], found: Mapping[str, Any], key: str | None, say: Say
) -> None:
    """Note attributes that have another value; the format's module notes those it left out."""
    for name, value in attrs.items():
        if name in found and format_json(found[name]) != format_json(value):
            say(f"the attribute {printable(name)!r} of {named(key)} is not kept as it was")


def _is_same_array(array: Array, other: Array, advance: Advance, *, pads_text: bool) -> bool:
    if other.problem or not _may_become(array.dtype, other.dtype):
        return False
    if array.shape != other.shape and not (pads_text and _is_wider(array.shape, other.shape)):
        return False
    is_padded = pads_text and array.dtype.kind == "U"
    for given, part in _parts(array, other):
        if not (_is_same_text if is_padded else _is_same)(given, part):
            return False
        advance(given.nbytes)
        # Not kept while the next part is read.
        del given, part
    return True


def _is_wider(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether a shape has become another one by axes before it; of length 1 if not empty."""
    more = len(other) - len(shape)
    return more > 0 and (other == (1,) * more + shape or (0 in shape and 0 in other))


def _parts(
    array: Array, other: Array
) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    if array.shape == other.shape:
        given = array.open()
        for index, part in other.parts():
            yield np.asarray(given[index], array.dtype), part
    else:
        yield array.whole().reshape(other.shape), other.whole()


def _may_become(dtype: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Return whether another dtype has all values of a dtype; fields have the same names."""
    if dtype.names is not None:
        return dtype.names == other.names and all(
            dtype[name].shape == other[name].shape
            and _may_become(dtype[name].base, other[name].base)
            for name in dtype.names
        )
    return dtype.kind == other.kind == "U" or np.can_cast(dtype, other, "safe")


def _is_same_text(given: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> bool:
    # Filled up to one width: NumPy 2.0.0 strips the only character of a text with its spaces.
    width = max(given.dtype.itemsize, found.dtype.itemsize) // np.dtype("U1").itemsize
    if not given.size or not width:
        return np.array_equal(given, found)
    is_same = np.array_equal(np.strings.ljust(given, width), np.strings.ljust(found, width))
    return bool(is_same)


def _is_same(given: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> bool:
    """Compare values bit by bit, whatever their byte order and the bytes between fields."""
    if given.dtype.names is not None:
        return all(_is_same(given[name], found[name]) for name in given.dtype.names)
    if given.dtype.kind == "U":
        return np.array_equal(given, found)
    given = np.asarray(given, found.dtype)
    if found.dtype.kind in "fc" and not is_c_number(found.dtype):
        # Bytes of a long double that are not part of its value.
        return np.array_equal(given, found, equal_nan=True)
    a, b = _bytes_of(given), _bytes_of(found)
    # By words, since what compares them has a byte for each.
    end = a.size // 8 * 8
    is_same = np.array_equal(a[:end].view("u8"), b[:end].view("u8"))
    return is_same and np.array_equal(a[end:], b[end:])


def _bytes_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array).reshape(-1).view("u1")
