"""What overviews are made of: an array in an archive, a field of one, the difference of two.

Guarantees that each of them looks like a lazy array, and that reading a part can be
cancelled. Knows no widget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from npzkit.archive.lazyarray import LazyArray
from npzkit.display.blocks import approach
from npzkit.display.piecewise import is_numeric

Index = tuple[Any, ...]

_STEP_SIZE = 1 << 22
"""Bytes that are decompressed before somebody may cancel."""


class ArraySource:
    """An array of an archive, or a field of it.

    Parameters
    ----------
    lazy : LazyArray
    field : str or None
        Of a structured array. Its own axes follow those of the array.
    is_in_steps : bool
        Whether what lies before a part is read first, in steps.
    proceed : callable
        Called every few megabytes. It raises an exception to cancel.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    count : int
        Values that were read.
    """

    def __init__(
        self,
        lazy: LazyArray,
        field: str | None,
        *,
        is_in_steps: bool,
        proceed: Callable[[], object],
    ) -> None:
        self._lazy, self._field, self._proceed = lazy, field, proceed
        self._is_in_steps = is_in_steps
        self._read_habits = lazy._read_habits
        self._reached = self.count = 0
        inner = lazy.dtype if field is None else lazy.dtype[field]
        self.dtype: np.dtype[Any] = inner.base if field is not None else inner
        self.shape = lazy.shape + (inner.shape if field is not None else ())

    @property
    def chunks(self) -> tuple[int, ...]:
        return self._lazy.chunks + self.shape[self._lazy.ndim :]

    def __getitem__(self, index: Index) -> Any:
        outer, inner = index[: self._lazy.ndim], index[self._lazy.ndim :]
        if self._is_in_steps:
            self._approach(outer)
        found = self._lazy[outer]
        if self._field is not None:
            found = found[self._field]
            found = found[(..., *inner)] if inner else found
        self.count += np.size(found)
        return found

    def _approach(self, index: Index) -> None:
        """Read what lies before a part, step by step."""
        last = tuple(map(_last, index, self._lazy.shape))
        if math.prod(self._lazy.shape):
            self._reached = approach(
                self._lazy, last, self._read_habits.by_columns, lambda size: self._proceed(),
                self._reached, _STEP_SIZE,
            )  # fmt: skip


def _last(item: Any, length: int) -> int:
    """Return the last position that an integer, or a slice with a positive step, chooses."""
    if not isinstance(item, slice):
        return range(length)[int(item)]
    found = range(length)[item]
    return found[-1] if found else 0


class DifferenceSource:
    """The first array minus the second; of complex numbers, the magnitude of that.

    It is 0 for two NaNs and for the same infinity, and NaN if only one value is NaN.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        float64.
    is_quick : bool
        Whether all of a plane can be read: on this machine, in one order.
    """

    dtype: np.dtype[Any] = np.dtype(np.float64)

    def __init__(self, first: ArraySource, second: ArraySource) -> None:
        self._first, self._second = first, second
        self.shape, self.chunks = first.shape, first.chunks
        one, other = first._read_habits, second._read_habits
        self._read_habits = one._replace(
            gap_size=min(one.gap_size, other.gap_size),
            at_once=max(one.at_once, other.at_once),
            is_in_order=one.is_in_order or other.is_in_order,
        )
        self.is_quick = self._read_habits.at_once == 1 and one.by_columns == other.by_columns

    def __getitem__(self, index: Index) -> Any:
        first, second = np.asarray(self._first[index]), np.asarray(self._second[index])
        with np.errstate(all="ignore"):
            found = np.asarray(_difference(first, second))
            found = np.abs(found) if found.dtype.kind == "c" else found
            is_same = (first == second) | (_is_missing(first) & _is_missing(second))
            found = found.astype(self.dtype)
        return np.where(np.isnan(found) & is_same, 0.0, found)


class ApartSource(DifferenceSource):
    """How far the colours of two pictures are apart."""

    def __getitem__(self, index: Index) -> Any:
        return np.abs(super().__getitem__(index))


_EXACT_KINDS = "biumM"


def _difference(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> Any:
    """Return the first minus the second, rounded once at most, as floats."""
    if first.dtype.kind in _EXACT_KINDS and second.dtype.kind in _EXACT_KINDS:
        upper, lower = map(np.subtract, _halves(first), _halves(second))
        found = upper * 2.0**32 + lower
        return np.where(_is_missing(first) | _is_missing(second), np.nan, found)
    numbers = [
        array.astype(np.float64) if array.dtype.kind == "V" else array for array in (first, second)
    ]
    is_wide = any(array.dtype.kind in "iu" for array in numbers)
    dtype = np.result_type(*numbers, np.longdouble if is_wide else np.float64)
    return numbers[0].astype(dtype) - numbers[1].astype(dtype)


def _halves(array: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the upper and lower 32 bits of integers, as int64: their differences fit in it."""
    if array.dtype.kind in "mM":
        whole = array.astype(array.dtype.newbyteorder("="), copy=False).view(np.int64)
    else:
        whole = array.astype(np.uint64 if array.dtype.kind == "u" else np.int64)
    upper, lower = whole >> whole.dtype.type(32), whole & whole.dtype.type(0xFFFFFFFF)
    return upper.astype(np.int64), lower.astype(np.int64)


def _is_missing(array: np.ndarray[Any, Any]) -> Any:
    """Return where values are NaN or NaT."""
    return array != array  # noqa: PLR0124 - it is so for no other value


def why_no_difference(first: ArraySource, second: ArraySource) -> str | None:
    """Return why two arrays have no difference, or None if they have one."""
    if first.shape != second.shape:
        return f"The shapes differ: {first.shape} and {second.shape}."
    are_dates = [source.dtype.kind in "mM" for source in (first, second)]
    if not (is_numeric(first.dtype) and is_numeric(second.dtype)):
        return "Only numbers have a difference."
    if any(are_dates) and first.dtype != second.dtype:
        return f"The dtypes differ: {first.dtype} and {second.dtype}."
    return None
