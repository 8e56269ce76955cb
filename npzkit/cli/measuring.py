"""Minimum, maximum, mean, deviation and histogram of numbers that come piece by piece.

Owns the sums. `measure` looks at one piece, on any thread; `Statistics.merge`
puts pieces together. Knows no archive and no terminal.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Histogram", "Statistics", "as_numbers", "is_numeric", "measure"]

_BIN_COUNT = 20
"""Bins of a histogram, at most."""
_SLICE_COUNT = 1 << 17
"""Numbers taken at a time: they stay in the cache, and NumPy's calls take no time."""
_LARGEST = sys.float_info.max
_NO_TIME = np.iinfo(np.int64).min
"""The integer that stands for no time among those of dates."""


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Whether `as_numbers` takes values of this dtype; those of ml_dtypes among them."""
    return dtype.kind in "biufcmM" or (dtype.kind == "V" and dtype.type is not np.void)


def as_numbers(values: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return values as a flat array that NumPy computes on quickly.

    Complex numbers are taken by their magnitudes, dates by their place in time:
    as int64, of which the least is no time.
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


@dataclass
class Statistics:
    """What is known of numbers.

    Attributes
    ----------
    count, nan_count, inf_count : int
    least, most : number or None
        Of those that are numbers; exact.
    mean : float
        Of those that are finite.
    histogram : Histogram or None
        Of those that are finite, if there are any.
    """

    count: int = 0
    nan_count: int = 0
    inf_count: int = 0
    least: Any = None
    most: Any = None
    mean: float = 0.0
    histogram: Histogram | None = None
    finite_count: int = 0
    squares: float = 0.0
    """Of the distances from the mean, summed up."""

    @property
    def deviation(self) -> float:
        """The standard deviation of those that are finite."""
        return math.sqrt(self.squares / self.finite_count) if self.finite_count else math.nan

    def merge(self, other: Statistics) -> None:
        """Add what is known of more numbers."""
        self.count += other.count
        self.nan_count += other.nan_count
        self.inf_count += other.inf_count
        if other.least is None:
            return
        self.least = other.least if self.least is None else min(self.least, other.least)
        self.most = other.most if self.most is None else max(self.most, other.most)
        if other.histogram is None:
            return
        self.histogram = (
            other.histogram if self.histogram is None else self.histogram.merged(other.histogram)
        )
        # Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm", 1979.
        count = self.finite_count + other.finite_count
        share, step = other.finite_count / count, other.mean - self.mean
        self.mean += step * share
        self.squares += other.squares + step * step * (self.finite_count * share)
        self.finite_count = count


def measure(values: Any, dtype: np.dtype[Any]) -> Statistics:
    """Return the statistics of one piece. May be called on several threads."""
    flat = np.asarray(values).reshape(-1)
    found = Statistics()
    with np.errstate(all="ignore"):
        for start in range(0, len(flat), _SLICE_COUNT):
            found.merge(_measured(flat[start : start + _SLICE_COUNT], dtype))
    return found


def _measured(values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> Statistics:
    """Return the statistics of a few values, more than none."""
    numbers = as_numbers(values, dtype)
    found = Statistics(len(numbers))
    least, most = numbers.min(), numbers.max()
    has_times = dtype.kind in "mM"
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
    if len(numbers):
        _measure_finite(numbers, found)
    return found


def _measure_finite(numbers: np.ndarray[Any, Any], found: Statistics) -> None:
    """Note the sums of finite numbers."""
    if numbers.dtype.kind == "f" and numbers.dtype.itemsize > 8:
        numbers = np.clip(numbers, -_LARGEST, _LARGEST).astype(np.float64)
    found.finite_count = len(numbers)
    found.histogram = Histogram.of(numbers)
    distances = numbers.astype(np.float64)
    found.mean = float(distances.sum()) / len(distances)
    distances -= found.mean
    found.squares = float(np.square(distances, out=distances).sum())


class Histogram(NamedTuple):
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
    is_integer : bool
        Of integers, which have bins of one integer at least.
    """

    exponent: int
    first: int
    counts: list[int]
    is_integer: bool = False

    @classmethod
    def of(cls, numbers: np.ndarray[Any, Any]) -> Histogram:
        """Return the histogram of finite numbers: bins as narrow as so few can be."""
        low, high = numbers.min(), numbers.max()
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
            below.append(np.count_nonzero(np.less(numbers, edge, out=is_below)))
        counts = np.diff([*below, len(numbers)]).tolist()
        return cls(exponent, first, counts, is_integer)

    def merged(self, other: Histogram) -> Histogram:
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
        return Histogram(exponent, first, counts, self.is_integer)

    def _first(self, exponent: int) -> int:
        return self.first >> (exponent - self.exponent)

    def _last(self, exponent: int) -> int:
        return (self.first + len(self.counts) - 1) >> (exponent - self.exponent)

    @property
    def by_integer(self) -> bool:
        """Whether each bin is one integer."""
        return self.is_integer and not self.exponent

    def edges(self) -> list[float]:
        """Return where the bins begin, and where the last one ends."""
        places = range(self.first, self.first + len(self.counts) + 1)
        numbers = (_number(place, self.exponent) for place in places)
        return [float(max(min(number, _LARGEST), -_LARGEST)) for number in numbers]


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
