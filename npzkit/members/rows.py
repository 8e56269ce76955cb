"""Rows: values that are assigned or appended, in the dtype of their array, without another value.

Guarantees that a floating-point number may be rounded, and no other value changes: one that the
dtype cannot have is an error that names it. What an array of its own is made of is
`npzkit.members.tensors`'s.
"""

from __future__ import annotations

import contextlib
import datetime
from typing import Any

import numpy as np

from npzkit.errors import UnsupportedError, shown_value
from npzkit.format.array import check_savable
from npzkit.members.refused_values import check_integers
from npzkit.members.tensors import as_array

_FILL = "Fill the missing values first (in pandas: rows.fillna(value))."


def assigned(value: Any, key: str, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    """Convert an assigned value as NumPy does: one without a dtype takes the array's, `dtype`.

    Raises
    ------
    ValueError
        Missing values would become texts, or booleans.
    """
    loses_missing = dtype is not None and dtype.kind in "bSU"
    if not hasattr(value, "dtype") and not hasattr(value, "__array__") and not loses_missing:
        return as_array(value, key, dtype)
    array = as_array(value, key)
    try:
        # Objects are cast: only a mask cannot be written.
        check_savable(array, allow_pickle=True)
    except UnsupportedError as error:
        raise error.locate(key=key) from None
    try:
        check_integers(value, array, key)
    except UnsupportedError as error:
        error.remedy = _FILL
        raise
    if loses_missing and array.dtype == object:
        for index, item in np.ndenumerate(array):
            if _is_missing(item):
                raise _refusal(dtype, item, index)
    # A mask that masks nothing is dropped.
    return np.asarray(array)


def as_rows(
    value: Any, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """Return rows to append to an array: several, or one without its axis, in its dtype.

    Raises
    ------
    ValueError
        They are of another shape, or the dtype cannot have their values.
    """
    array = assigned(value, key, _uncast(dtype))
    if array.shape == shape[1:] and shape:
        array = array[np.newaxis]
    if array.ndim != len(shape) or array.shape[1:] != shape[1:] or not shape:
        raise ValueError(
            f"rows of shape {array.shape} cannot be appended to an array of shape {shape}"
        )
    return _cast(array, dtype)


def _uncast(dtype: np.dtype[Any]) -> Any:
    """Return the dtype of rows that have none, before they are cast; None if NumPy finds it."""
    if dtype.names is not None:
        fields = [(name, dtype[name].base, dtype[name].shape) for name in dtype.names]
        return np.dtype([(name, _uncast(base) or object, of) for name, base, of in fields])
    return np.dtype(object) if dtype.kind in "SUM" else dtype if dtype.kind in "OV" else None


def _cast(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Cast rows. Floating-point numbers may be rounded, to finite ones; no other value changes.

    Records need the fields of the array, in any order.
    """
    if array.dtype == dtype:
        return array
    try:
        with np.errstate(all="ignore"):
            if array.dtype == object:
                array = _of_objects(array, dtype)
            return array if array.dtype == dtype else _cast_other(array, dtype)
    except (UnicodeError, OverflowError, TypeError) as error:
        raise ValueError(f"{dtype} cannot represent all values of the rows: {error}") from None


def _cast_other(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Cast rows that are no Python objects, and of another dtype."""
    if not dtype.itemsize:
        return np.empty(array.shape, dtype)
    names = dtype.names or ()
    if names and {*names} == {*(array.dtype.names or ())}:
        rows = np.empty(array.shape, dtype)
        for name in names:
            rows[name] = _cast(array[name], dtype[name].base)
        return rows
    kinds = {array.dtype.kind, dtype.kind}
    is_other = bool(kinds & set("SU")) or np.void in (array.dtype.type, dtype.type)
    can_cast = not is_other and np.can_cast(array.dtype, dtype, "same_kind")
    if not (can_cast or kinds <= set("biuf") or kinds <= set("SU")):
        raise ValueError(f"rows of dtype {array.dtype} cannot be appended to an array of {dtype}")
    rows = array.astype(dtype)
    changed = _changed(array, rows)
    if changed.any():
        index = tuple(map(int, np.argwhere(changed)[0]))
        raise _refusal(dtype, array[index], index)
    return rows


def _of_objects(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return Python's objects as an array of the same kind as `dtype`, without a change.

    Of numbers and dates, missing ones are NaN and NaT.
    """
    kind = dtype.kind
    if kind in "OV":
        return array.astype(dtype, copy=False)
    likely = np.promote_types(dtype, float) if kind in "fc" else dtype
    if {*map(type, array.flat)} <= _FAST.get(kind, set()):
        # What differs is found below, one by one.
        with contextlib.suppress(OverflowError, ValueError):
            rows = array.astype(likely)
            if kind not in "mM":
                return rows
            if np.isnat(rows).all():
                # Of NaT alone, NumPy finds no unit.
                raise ValueError
            units = array.astype(f"{kind}8"), array.astype(f"{kind}8[us]")
            if all(np.array_equal(rows.astype(each.dtype), each, equal_nan=True) for each in units):
                return rows
    if kind in "SU":
        for index, item in np.ndenumerate(array):
            if not isinstance(item, (str, bytes)):
                raise _refusal(dtype, item, index)
        return array.astype(kind)
    rows = np.empty(array.shape, likely)
    for index, item in np.ndenumerate(array):
        if not _is_kept(rows, index, item):
            raise _refusal(dtype, item, index)
    return rows


_FAST: dict[str, set[type]] = {
    "b": {bool}, "i": {int}, "u": {int}, "f": {float, type(None)}, "c": {float, complex},
    "M": {str, datetime.date, datetime.datetime, np.datetime64, type(None)},
    "m": {datetime.timedelta, np.timedelta64, type(None)},
}  # fmt: skip
_TAKEN = {"M": "MUSiuO", "m": "miuO"}
"""Kinds of items that dates and durations are made of; integers are numbers of their own unit."""


def _is_kept(rows: np.ndarray[Any, Any], index: Any, item: Any) -> bool:
    """Assign a number or date, and return whether it is there; a floating-point number may be
    rounded to a finite one.
    """
    kind = rows.dtype.kind
    taken = _TAKEN.get(kind, "biufcO")
    # Dates of pandas have nanoseconds, which NumPy drops.
    item = item.to_numpy() if hasattr(item, "to_numpy") else item
    try:
        if kind in "mM" and _is_missing(item):
            rows[index] = "NaT"
            return True
        exact = np.asarray(item)
        if isinstance(item, np.ndarray) or exact.ndim or exact.dtype.kind not in taken:
            return False
        rows[index] = item
        found = rows[index]
        if kind in "mM" and np.isnat(found):
            is_text = exact.dtype.kind in "SU"
            return str(item).upper() in ("NAT", "") if is_text else bool(np.isnat(exact))
        if kind in "mM":
            exact = exact if exact.dtype.kind in "iu" else exact.astype(f"{kind}8")
            return bool(found.astype(exact.dtype) == exact)
        can_round = kind in "fc" and exact.dtype.kind not in "biu" and not isinstance(item, int)
        return (can_round and not np.isinf(found)) or bool(found.item() == exact.item())
    except (TypeError, ValueError, OverflowError):
        return False


def _is_missing(item: Any) -> bool:
    """Return whether an object is None, NaN, NaT or the NA of pandas."""
    try:
        return item is None or bool(item != item)  # noqa: PLR0124 - as NaN
    except TypeError:
        # The NA of pandas does not say whether it is another.
        return True
    except ValueError:
        # An array has many values.
        return False


def _refusal(dtype: Any, item: Any, index: tuple[int, ...]) -> ValueError:
    """Return the error of a value that a dtype cannot represent, with what to do."""
    if _is_missing(item):
        instead = _FILL
    elif dtype.kind in "SU" and isinstance(item, (str, bytes)):
        instead = (
            "Replace the array by all rows, which get a wider dtype, with overwrite=True. In a "
            "folder, npzkit.repack(folder) then removes the old bytes."
        )
    else:
        instead = f"Cast them yourself, rows.astype({str(dtype)!r}), if values may change."
    found = shown_value(item if item is None else str(item))
    what = f"{dtype} cannot represent {found}, which the rows have at {index}"
    return ValueError(f"{what}. {instead}")


def _changed(array: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return which values a cast has changed, other than by rounding floating-point numbers."""
    kind, other = array.dtype.kind, rows.dtype.kind
    if kind in "biu" and other in "biu":
        return np.asarray(rows != array)
    if kind not in "biu" and other not in "biuSUmM":
        return np.asarray(np.isfinite(array) & ~np.isfinite(rows))
    changed = (rows.real if other == "c" else rows).astype(array.dtype) != array
    if kind in "mM":
        changed &= ~np.isnat(array)
    elif other in "fcmM":
        changed |= ~np.isfinite(rows)
    return np.asarray(changed)
