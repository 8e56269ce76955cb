"""Arrays stored in several members: masked arrays and variable-width strings.

Owns how such an array is split into plain arrays, which np.load can read, and
how they are joined. An attribute of the first member describes the array, of which
`npzkit.members.metadata` knows what the parts are called.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npzkit.errors import NpyFormatError, UnsupportedError
from npzkit.members.metadata import MASK, MISSING, OFFSETS, PARTS_ATTRIBUTE, other_suffixes

if TYPE_CHECKING:
    from npzkit.typing import OnParts


class SplitPart(NamedTuple):
    """One of the members that an array is split into.

    Attributes
    ----------
    suffix : str
        The text after the array key in the key of this part; empty for the first.
    array : numpy.ndarray
    attrs : dict
        The description of the array, in the first part.
    """

    suffix: str
    array: np.ndarray[Any, Any]
    attrs: dict[str, Any]


class Splitting(NamedTuple):
    """The kinds of arrays to split."""

    masked: bool
    strings: bool

    def parts(self, array: Any) -> list[SplitPart]:
        """Return the parts of an array, or an empty list if it is not split."""
        if self.masked and isinstance(array, np.ma.MaskedArray):
            return _split_masked(array)
        if self.strings and isinstance(array, np.ndarray) and array.dtype.char == "T":
            return _split_strings(array)
        return []


def check_splitting(masked: OnParts, strings: OnParts) -> Splitting | None:
    """Return the kinds of arrays to split, or None if there are none.

    Raises
    ------
    ValueError
        An argument is neither "refuse" nor "split".
    """
    for name, value in (("masked", masked), ("strings", strings)):
        if value not in ("refuse", "split"):
            raise ValueError(f"{name} must be 'refuse' or 'split', not {value!r}")
    splitting = Splitting(masked == "split", strings == "split")
    return splitting if any(splitting) else None


def _split_masked(array: Any) -> list[SplitPart]:
    attrs: dict[str, Any] = {"kind": "masked"}
    fill_value = array._fill_value
    if fill_value is not None and fill_value.dtype == array.dtype and _has_fill_value(array.dtype):
        value = fill_value.item()
        attrs["fill_value"] = value.decode("latin-1") if isinstance(value, bytes) else value
    data = np.asarray(array.data)
    return [
        SplitPart("", data, {PARTS_ATTRIBUTE: attrs}),
        SplitPart(MASK, np.ma.getmaskarray(array), {}),
    ]


def _has_fill_value(dtype: np.dtype[Any]) -> bool:
    """Return whether JSON can represent fill values of a dtype."""
    return dtype.kind in "biufSU" and dtype.char != "g"


def _split_strings(array: np.ndarray[Any, Any]) -> list[SplitPart]:
    attrs: dict[str, Any] = {"kind": "strings", "shape": list(array.shape)}
    dtype: Any = array.dtype
    if not dtype.coerce:
        attrs["coerce"] = False
    if hasattr(dtype, "na_object"):
        attrs["missing"] = _missing_name(dtype.na_object)
    items = array.ravel().tolist()
    texts = [item.encode("utf-8") if isinstance(item, str) else b"" for item in items]
    offsets = np.zeros(len(texts) + 1, "<i8")
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    parts = [
        SplitPart("", np.frombuffer(b"".join(texts), np.uint8), {PARTS_ATTRIBUTE: attrs}),
        SplitPart(OFFSETS, offsets, {}),
    ]
    if "missing" in attrs:
        parts.append(
            SplitPart(MISSING, np.array([not isinstance(i, str) for i in items], bool), {})
        )
    return parts


def _missing_name(na_object: Any) -> str:
    if na_object is None:
        return "None"
    if isinstance(na_object, float) and math.isnan(na_object):
        return "nan"
    raise UnsupportedError(
        "the value for missing strings cannot be saved",
        found=f"na_object={na_object!r}"[:80],
        expected="None or nan",
        remedy="Save array.astype(numpy.dtypes.StringDType(na_object=None)).",
    )


def join(read: Callable[[str], Any], key: str, attrs: Mapping[str, Any]) -> Any:
    """Return an array joined from its parts.

    Parameters
    ----------
    read : callable
        Reads the array with a key.
    key : str
    attrs : mapping
        The first member's attributes, including npzkit's own.

    Raises
    ------
    NpyFormatError
        The parts do not match.
    """
    if not other_suffixes(attrs):
        return read(key)
    parts = attrs[PARTS_ATTRIBUTE]

    def part(suffix: str) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = read(key + suffix)
        _check(isinstance(array, np.ndarray), key + suffix, "another kind of member", "an array")
        return array

    if parts["kind"] == "masked":
        return _join_masked(part(""), part(MASK), key, parts)
    missing = part(MISSING) if "missing" in parts else None
    return _join_strings(part(""), part(OFFSETS), missing, key, parts)


def _join_masked(data: Any, mask: Any, key: str, parts: dict[str, Any]) -> Any:
    expected = np.ma.make_mask_descr(data.dtype)
    _check_array(mask, data.shape, expected, key + MASK)
    array = np.ma.MaskedArray(data, mask=mask)
    if "fill_value" in parts:
        value = parts["fill_value"]
        wanted = f"a fill value of dtype {data.dtype}"
        is_plain = isinstance(value, (bool, int, float, str)) and _has_fill_value(data.dtype)
        _check(is_plain, key, f"the fill value {value!r}"[:80], wanted)
        try:
            # NumPy only warns about a number that is too large.
            with np.errstate(all="raise"):
                array.fill_value = value.encode("latin-1") if data.dtype.kind == "S" else value
        except (TypeError, ValueError, ArithmeticError, AttributeError):
            _check(False, key, f"the fill value {value!r}"[:80], wanted)
    return array


def _join_strings(
    data: Any, offsets: Any, missing: Any, key: str, parts: dict[str, Any]
) -> np.ndarray[Any, Any]:
    shape: Any = parts.get("shape")
    is_shape = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    count = math.prod(shape) if is_shape else -1
    # Counts larger than in any array could not even be printed.
    _check(0 <= count < 2**63, key, f"the shape {shape!r}"[:80], "a list of sizes")
    _check_array(data, (data.size,), np.uint8, key)
    _check_array(offsets, (count + 1,), np.int64, key + OFFSETS)
    is_ascending = bool(np.all(offsets[1:] >= offsets[:-1]))
    _check(
        is_ascending and offsets[0] == 0 and offsets[-1] == data.size,
        key + OFFSETS, "offsets out of order", f"ascending offsets from 0 to {data.size}",
    )  # fmt: skip
    text, places = data.tobytes(), offsets.tolist()
    try:
        items: list[Any] = [
            text[start:stop].decode("utf-8") for start, stop in itertools.pairwise(places)
        ]
    except UnicodeDecodeError as error:
        _check(False, key, f"bytes that are not UTF-8: {error.reason}", "UTF-8")
    options: dict[str, Any] = {"coerce": parts.get("coerce") is not False}
    if missing is not None:
        _check_array(missing, (count,), np.bool_, key + MISSING)
        options["na_object"] = math.nan if parts["missing"] == "nan" else None
        for index in np.flatnonzero(missing).tolist():
            items[index] = options["na_object"]
    dtype: Any = np.dtypes.StringDType(**options)
    try:
        return np.array(items, dtype).reshape(shape)
    except ValueError:
        # More axes than NumPy supports, or no items and axes longer than it supports.
        _check(False, key, f"the shape {shape!r}"[:80], "a list of sizes")
        raise


def _check_array(array: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: Any, key: str) -> None:
    is_sound = array.shape == shape and array.dtype.newbyteorder("=") == dtype
    expected = f"shape {shape} of {np.dtype(dtype)}"
    _check(is_sound, key, f"shape {array.shape} of {array.dtype}", expected)


def _check(is_sound: bool, key: str, found: str, expected: str) -> None:
    if not is_sound:
        raise NpyFormatError(
            "the parts of the array do not match",
            key=key, found=found, expected=expected, remedy="Read the parts one by one: npz[key].",
        )  # fmt: skip
