"""Statistics of numbers that come piece by piece.

Owns how pieces are measured, by `measure` on any thread, and how the results
are merged, by `PieceStatistics.merge`. Knows no archive.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

_BIN_COUNT = 20
"""Bins of a histogram, at most."""
_SLICE_COUNT = 1 << 17
"""Numbers per NumPy call: few enough for the cache, and enough to hide the call's cost."""
_LARGEST = sys.float_info.max
_NO_TIME = np.iinfo(np.int64).min
"""The integer that means NaT."""


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Whether `as_numbers` takes values of this dtype; those of ml_dtypes among them."""
    return dtype.kind in "biufcmM" or (dtype.kind == "V" and dtype.type is not np.void)


def as_numbers(values: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return values as a flat array that NumPy computes on quickly.

    Complex numbers become their magnitudes. Dates become int64, whose smallest value means NaT.
    """
    array: np.ndarray[Any, Any] = np.asarray(values).reshape(-1)
    if dtype.kind == "c":
        array = np.abs(array)
    elif dtype.kind in "mM":
        array = array.astype(dtype.newbyteorder("="), copy=False).view(np.int64)
    elif dtype.kind == "b":
        array = array.view(np.uint8)
    elif dtype.kind in "iuf":
        array = array.astype(dtype.newbyteorder("="), copy=False)
    else:
        # None of ml_dtypes has more than float64 can hold.
        array = array.astype(np.float64)
    # NumPy computes on two bytes by way of four, once for each operation.
    return array.astype(np.float32) if array.dtype == np.float16 else array


def is_nan_in(numbers: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """Return where numbers of `as_numbers` are NaN or NaT; None if they cannot be."""
    if dtype.kind in "mM":
        is_nan: np.ndarray[Any, Any] = numbers == _NO_TIME
        return is_nan
    return np.isnan(numbers) if numbers.dtype.kind == "f" else None


@dataclass
class PieceStatistics:
    """What is known of the numbers of some pieces.

    Attributes
    ----------
    count, nan_count, inf_count : int
    least, most : number or None
        Of those that are not NaN; exact.
    mean : float
        Of those that are finite.
    bins : Bins or None
        Of those that are finite, if there are any.
    """

    count: int = 0
    nan_count: int = 0
    inf_count: int = 0
    least: Any = None
    most: Any = None
    mean: float = 0.0
    bins: Bins | None = None
    finite_count: int = 0
    squares: float = 0.0
    """Of the distances from the mean, summed up."""

    @property
    def deviation(self) -> float:
        """The standard deviation of those that are finite."""
        return math.sqrt(self.squares / self.finite_count) if self.finite_count else math.nan

    def merge(self, other: PieceStatistics) -> None:
        """Add what is known of more numbers."""
        self.count += other.count
        self.nan_count += other.nan_count
        self.inf_count += other.inf_count
        if other.least is None:
            return
        self.least = other.least if self.least is None else min(self.least, other.least)
        self.most = other.most if self.most is None else max(self.most, other.most)
        if other.bins is None:
            return
        self.bins = other.bins if self.bins is None else self.bins.merged(other.bins)
        # Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm", 1979.
        count = self.finite_count + other.finite_count
        share, step = other.finite_count / count, other.mean - self.mean
        self.mean += step * share
        self.squares += other.squares
        if self.finite_count:
            # Without numbers of its own, infinity times zero would be NaN.
            self.squares += step * step * (self.finite_count * share)
        self.finite_count = count


def measure(values: Any, dtype: np.dtype[Any]) -> PieceStatistics:
    """Return the statistics of one piece. May be called on several threads."""
    flat = np.asarray(values).reshape(-1)
    found = PieceStatistics()
    with np.errstate(all="ignore"):
        for start in range(0, len(flat), _SLICE_COUNT):
            numbers = as_numbers(flat[start : start + _SLICE_COUNT], dtype)
            found.merge(_measured(numbers, has_times=dtype.kind in "mM"))
    return found


def _measured(numbers: np.ndarray[Any, Any], *, has_times: bool) -> PieceStatistics:
    """Return the statistics of a few numbers, more than none."""
    found = PieceStatistics(len(numbers))
    least, most = numbers.min(), numbers.max()
    if least == _NO_TIME if has_times else np.isnan(least):
        numbers = numbers[numbers != _NO_TIME if has_times else ~np.isnan(numbers)]
        found.nan_count = found.count - len(numbers)
        if not len(numbers):
            return found
        least, most = numbers.min(), numbers.max()
    found.least, found.most = least, most
    if not (np.isfinite(least) and np.isfinite(most)):
        numbers = numbers[np.isfinite(numbers)]
        found.inf_count = found.count - found.nan_count - len(numbers)
        if not len(numbers):
            return found
        least, most = numbers.min(), numbers.max()
    if numbers.dtype.kind == "f" and numbers.dtype.itemsize > 8:
        numbers = np.clip(numbers, -_LARGEST, _LARGEST).astype(np.float64)
        least, most = numbers.min(), numbers.max()
    found.finite_count = len(numbers)
    found.bins = Bins.of(numbers, least, most)
    found.mean, found.squares = _mean_and_squares(numbers)
    return found


def _mean_and_squares(numbers: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return the mean of finite numbers, and the sum of the squared distances from it."""
    values = numbers.astype(np.float64, copy=False)
    mean = float(values.sum()) / len(values)
    distances = values - mean if values is numbers else np.subtract(values, mean, out=values)
    return mean, float(np.square(distances, out=distances).sum())


class Bins(NamedTuple):
    """Bins that are a power of two wide, and begin at multiples of it.

    Nothing is rounded at their edges, and bins of one width are sums of narrower
    ones: histograms of pieces add up to that of the whole.

    Attributes
    ----------
    exponent : int
        The width is two to this power.
    first : int
        Where the first bin begins, in widths.
    counts : list of int
    """

    exponent: int
    first: int
    counts: list[int]

    @classmethod
    def of(cls, numbers: np.ndarray[Any, Any], low: Any, high: Any) -> Bins:
        """Return the histogram of finite numbers, the least `low` and the largest `high`.

        The bins are as narrow as so few can be.
        """
        is_integer = numbers.dtype.kind in "iu"
        # Between neighbours among floating-point numbers there is no edge.
        exponent = 0 if is_integer else _exponent(np.spacing(max(abs(low), abs(high))))
        bin_size = float(high) / _BIN_COUNT - float(low) / _BIN_COUNT
        if bin_size:
            exponent = max(exponent, _exponent(bin_size) - 1)
        while _place(high, exponent) - _place(low, exponent) >= _BIN_COUNT:
            exponent += 1
        first, last = _place(low, exponent), _place(high, exponent)
        is_below = np.empty(len(numbers), bool)
        below = [0]
        for place in range(first + 1, last + 1):
            edge = numbers.dtype.type(_number(place, exponent))
            below.append(int(np.count_nonzero(np.less(numbers, edge, out=is_below))))
        counts = np.diff([*below, len(numbers)]).tolist()
        return cls(exponent, first, counts)

    def merged(self, other: Bins) -> Bins:
        """Return the histogram of the numbers of both."""
        exponent = max(self.exponent, other.exponent)
        while other._last(exponent) - self._first(exponent) >= _BIN_COUNT or (
            self._last(exponent) - other._first(exponent) >= _BIN_COUNT
        ):
            exponent += 1
        first = min(self._first(exponent), other._first(exponent))
        last = max(self._last(exponent), other._last(exponent))
        counts = [0] * (last - first + 1)
        for histogram in (self, other):
            shift = exponent - histogram.exponent
            for place, count in enumerate(histogram.counts, histogram.first):
                counts[(place >> shift) - first] += count
        return Bins(exponent, first, counts)

    def _first(self, exponent: int) -> int:
        return self.first >> (exponent - self.exponent)

    def _last(self, exponent: int) -> int:
        return (self.first + len(self.counts) - 1) >> (exponent - self.exponent)

    def edges(self, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return where the bins begin, and where the last one ends.

        As dates for a dtype of dates, else as float64; cut to what these can hold.
        """
        places = range(self.first, self.first + len(self.counts) + 1)
        numbers = (_number(place, self.exponent) for place in places)
        if dtype.kind not in "mM":
            return np.array([float(max(min(number, _LARGEST), -_LARGEST)) for number in numbers])
        largest = np.iinfo(np.int64).max
        times = [int(max(min(number, largest), -largest)) for number in numbers]
        return np.array(times, np.int64).view(dtype.newbyteorder("="))


def _exponent(number: Any) -> int:
    """Return the largest power of two that is not above a positive number."""
    return math.frexp(number)[1] - 1


def _place(number: Any, exponent: int) -> int:
    """Return the bin, of a width, in which a number is; exactly."""
    numerator, denominator = number.item().as_integer_ratio()
    if exponent >= 0:
        return int(numerator // (denominator << exponent))
    return int((numerator << -exponent) // denominator)


def _number(place: int, exponent: int) -> float:
    """Return where a bin begins; an integer where it is one."""
    return place << exponent if exponent >= 0 else place / (1 << -exponent)
