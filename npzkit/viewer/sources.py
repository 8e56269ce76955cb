"""What overviews are made of: an array in an archive, a field of one, the difference of two.

Owns that each of them looks like a lazy array, and that reading a part can be
cancelled. Knows no widget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from npzkit.archive.checked_pieces import approach
from npzkit.archive.lazyarray import LazyArray
from npzkit.display.numbers import is_numeric

__all__ = ["ArraySource", "DifferenceSource", "why_no_difference"]

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
        self._reached = 0
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
        if self._field is None:
            return found
        values = found[self._field]
        return values[(..., *inner)] if inner else values

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
    """The difference of two arrays of the same shape: the first minus the second."""

    def __init__(self, first: ArraySource, second: ArraySource) -> None:
        self._first, self._second = first, second
        self.shape, self.chunks = first.shape, first.chunks
        is_complex = "c" in (first.dtype.kind, second.dtype.kind)
        self.dtype: np.dtype[Any] = np.dtype(np.complex128 if is_complex else np.float64)
        self._read_habits = first._read_habits

    def __getitem__(self, index: Index) -> Any:
        first, second = np.asarray(self._first[index]), np.asarray(self._second[index])
        with np.errstate(all="ignore"):
            return np.asarray(_difference(first, second)).astype(self.dtype)


_EXACT_KINDS = "biumM"


def _difference(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> Any:
    """Return the first minus the second, rounded once at most, as floats."""
    if first.dtype.kind in _EXACT_KINDS and second.dtype.kind in _EXACT_KINDS:
        upper, lower = map(np.subtract, _halves(first), _halves(second))
        found = upper * 2.0**32 + lower
        is_missing = _is_nat(first) | _is_nat(second)
        return np.where(is_missing, np.nan, found)
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


def _is_nat(array: np.ndarray[Any, Any]) -> Any:
    return np.isnat(array) if array.dtype.kind in "mM" else np.False_


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
