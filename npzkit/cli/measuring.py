"""Minimum, maximum, mean, deviation and histogram of numbers that come piece by piece.

Owns the sums. Holds a piece at a time; knows no archive and no terminal.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Histogram", "Statistics", "as_numbers", "is_numeric"]

_BIN_COUNT = 20


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Whether `as_numbers` takes values of this dtype; those of ml_dtypes among them."""
    return dtype.kind in "biufcmM" or (dtype.kind == "V" and dtype.type is not np.void)


def as_numbers(values: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return values as a flat array that NumPy computes on.

    Complex numbers are taken by their magnitudes, dates by their place in time:
    as int64, of which the least is no time.
    """
    array: np.ndarray[Any, Any] = np.asarray(values).reshape(-1)
    if dtype.kind == "c":
        array = np.abs(array)
    elif dtype.kind in "mM":
        array = array.astype(dtype.newbyteorder("="), copy=False).view(np.int64)
    elif dtype.kind == "b":
        array = array.astype(np.uint8)
    elif dtype.kind in "iuf":
        array = array.astype(dtype.newbyteorder("="), copy=False)
    else:
        # None of ml_dtypes has more than float64 can hold.
        array = array.astype(np.float64)
    return array


class Statistics:
    """What is known of the numbers added so far.

    Parameters
    ----------
    missing : int or None
        The integer that stands for no number.

    Attributes
    ----------
    count, nan_count, inf_count : int
    least, most : int, float or None
        Of those that are numbers; exact.
    mean : float
        Of those that are finite.
    """

    def __init__(self, missing: int | None = None) -> None:
        self._missing = missing
        self.count = self.nan_count = self.inf_count = 0
        self.least: Any = None
        self.most: Any = None
        self._finite_count = 0
        self._range: tuple[Any, Any] | None = None
        self.mean = 0.0
        self._squares = 0.0

    def add(self, numbers: np.ndarray[Any, Any]) -> None:
        """Add a piece, from `as_numbers`."""
        self.count += len(numbers)
        numbers = self._without_missing(numbers)
        if not len(numbers):
            return
        least, most = numbers.min(), numbers.max()
        if self.least is None or least < self.least:
            self.least = least
        if self.most is None or most > self.most:
            self.most = most
        if numbers.dtype.kind == "f":
            finite = numbers[np.isfinite(numbers)]
            self.inf_count += len(numbers) - len(finite)
            numbers = finite
        if len(numbers):
            low, high = self._range or (numbers[0], numbers[0])
            self._range = min(low, numbers.min()), max(high, numbers.max())
            self._merge(numbers.astype(np.float64, copy=False))

    def _without_missing(self, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if numbers.dtype.kind == "f":
            is_missing = np.isnan(numbers)
        elif self._missing is not None:
            is_missing = numbers == self._missing
        else:
            return numbers
        missing_count = int(np.count_nonzero(is_missing))
        self.nan_count += missing_count
        return numbers[~is_missing] if missing_count else numbers

    def _merge(self, finite: np.ndarray[Any, Any]) -> None:
        """Take a piece's mean and squares in, as Chan, Golub and LeVeque do."""
        with np.errstate(all="ignore"):
            mean = float(finite.mean())
            squares = float(np.square(finite - mean).sum())
        count = self._finite_count + len(finite)
        step = mean - self.mean
        self.mean += step * (len(finite) / count)
        self._squares += squares + step * step * (self._finite_count * (len(finite) / count))
        self._finite_count = count

    @property
    def deviation(self) -> float:
        """The standard deviation of those that are finite."""
        return math.sqrt(self._squares / self._finite_count) if self._finite_count else math.nan

    def histogram(self) -> Histogram | None:
        """Return an empty histogram from the least to the most that is finite."""
        return None if self._range is None else Histogram.between(*self._range)


class Histogram(NamedTuple):
    """Bins of equal width.

    Attributes
    ----------
    low, high : float
        Where the first bin begins and the last one ends.
    counts : numpy.ndarray of int64
    by_integer : bool
        Each bin is one integer.
    """

    low: float
    high: float
    counts: np.ndarray[Any, Any]
    by_integer: bool = False

    @classmethod
    def between(cls, least: Any, most: Any) -> Histogram:
        """Return an empty histogram; each of a few integers has a bin of its own."""
        if isinstance(least, np.integer) and int(most) - int(least) < _BIN_COUNT:
            count = int(most) - int(least) + 1
            low = float(least)
            return cls(low, low + count, np.zeros(count, np.int64), True)
        largest = np.finfo(np.float64).max
        low, high = float(max(least, -largest)), float(min(most, largest))
        return cls(low, high, np.zeros(_BIN_COUNT if high > low else 1, np.int64))

    def add(self, numbers: np.ndarray[Any, Any]) -> None:
        """Count a piece, from `as_numbers`; what lies outside is left out."""
        count = len(self.counts)
        values = numbers.astype(np.float64, copy=False)
        values = values[(values >= self.low) & (values <= self.high)]
        # A quarter of each, so that the widest range does not overflow.
        width = self.high / 4 - self.low / 4
        places = (values / 4 - self.low / 4) / width * count if width else np.zeros(len(values))
        places = np.minimum(places.astype(np.int64), count - 1)
        self.counts[:] += np.bincount(places, minlength=count)

    def edges(self) -> list[float]:
        """Return where the bins begin, and where the last one ends."""
        count = len(self.counts)
        low, high = self.low, self.high
        return [low * (1 - n / count) + high * (n / count) for n in range(count + 1)]
