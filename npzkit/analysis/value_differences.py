"""Values of two arrays: which differ, and how far they are apart.

Owns what is equal: NaN is equal to NaN, and so are rows of equal bytes. Knows no
archive.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from npzkit.display.piecewise import is_numeric


class Tolerance(NamedTuple):
    """How far apart values may be and still count as equal.

    Attributes
    ----------
    rtol : float
        As a share of the second value.
    atol : float
    """

    rtol: float = 0.0
    atol: float = 0.0

    def distances(
        self, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return which values differ by more than they may, and how far all are apart.

        The distance of values that are no numbers is 1.
        """
        if not is_distance(a.dtype, b.dtype):
            differs = _differs_exactly(a, b)
            return differs, differs.astype(np.float64)
        x, y = _computable(a), _computable(b)
        with np.errstate(all="ignore"):
            distance = np.abs(x - y)
            allowed = self.atol + self.rtol * np.abs(y) if self.atol or self.rtol else 0.0
            # Values that differ by less than floating point can show still differ.
            differs = (a != b) & ((distance > allowed) | ~np.isfinite(distance) | (allowed == 0))
        differs &= ~(np.isnan(x) & np.isnan(y))
        return differs, np.where(np.isnan(distance), np.inf, distance).astype(np.float64)


def is_distance(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    """Whether values of these dtypes have a distance: they are numbers."""
    return a.kind not in "mM" and is_numeric(a) and is_numeric(b)


def are_comparable(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    """Whether values of different dtypes can be equal."""
    if a.kind in "mM" or b.kind in "mM":
        return a.kind == b.kind
    return (is_numeric(a) and is_numeric(b)) or (a.kind == b.kind and a.kind in "SU")


def _computable(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return numbers in a dtype that their differences fit."""
    if values.dtype.kind == "c":
        return values.astype(np.result_type(values.dtype, np.complex128))
    if values.dtype.kind == "f":
        return values.astype(np.result_type(values.dtype, np.float64))
    # Integers of 64 bits keep more of their digits so, where there is such a dtype.
    return values.astype(np.longdouble if values.dtype.kind in "iu" else np.float64)


def _differs_exactly(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return which values differ; equal bytes are equal, whatever is in them: NaN, NaT."""
    if a.dtype.kind != "V":
        differs = np.asarray(a != b)
        if a.dtype.kind in "mM":
            differs &= ~(np.isnat(a) & np.isnat(b))
        return differs
    if a.dtype != b.dtype:
        # The same fields in another byte order.
        b = b.astype(a.dtype)
    size = a.dtype.itemsize
    if not size:
        return np.zeros(a.shape, np.bool_)
    raw = [np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape, size) for x in (a, b)]
    by_bytes: np.ndarray[Any, Any] = np.asarray((raw[0] != raw[1]).any(axis=-1))
    return by_bytes & np.asarray(a != b) if a.dtype.names else by_bytes
