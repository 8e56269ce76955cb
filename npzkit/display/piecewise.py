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
_BYTES_COUNT = 1 << 20
"""Numbers of one byte taken at a time, which are counted in a table."""
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
    step = _SLICE_COUNT if dtype.itemsize > 1 else _BYTES_COUNT
    with np.errstate(all="ignore"):
        for start in range(0, len(flat), step):
            part = flat[start : start + step]
            found.merge(_measured(_Numbers.of(part, dtype), has_times=dtype.kind in "mM"))
    return found


class _Numbers(NamedTuple):
    """Numbers, and how often each of them occurs; once each if `counts` is None."""

    values: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any] | None = None

    @classmethod
    def of(cls, values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> _Numbers:
        """Return the numbers of some items, those of one byte counted."""
        if dtype.itemsize > 1:
            return cls(as_numbers(values, dtype))
        counts = _count_bytes(np.ascontiguousarray(values).view(np.uint8))
        found = np.flatnonzero(counts)
        return cls(as_numbers(found.astype(np.uint8).view(dtype), dtype), counts[found])

    def where(self, is_kept: np.ndarray[Any, Any]) -> _Numbers:
        counts = None if self.counts is None else self.counts[is_kept]
        return _Numbers(self.values[is_kept], counts)

    def total(self) -> int:
        """Return how many there are."""
        return len(self.values) if self.counts is None else int(self.counts.sum())

    def count(self, is_counted: np.ndarray[Any, Any]) -> int:
        """Return how many are True."""
        if self.counts is None:
            return int(np.count_nonzero(is_counted))
        return int(self.counts[is_counted].sum())

    def sum(self, terms: np.ndarray[Any, Any]) -> float:
        """Return the sum of a term for each value."""
        return float(terms.sum() if self.counts is None else (terms * self.counts).sum())


def _count_bytes(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return how often each byte occurs: two at a time, which takes half as long."""
    even = len(values) // 2 * 2
    pairs = np.bincount(values[:even].view(np.uint16), minlength=1 << 16).reshape(256, 256)
    counts: np.ndarray[Any, Any] = pairs.sum(axis=0) + pairs.sum(axis=1)
    counts[values[even:]] += 1
    return counts


def _measured(numbers: _Numbers, *, has_times: bool) -> PieceStatistics:
    """Return the statistics of a few numbers, more than none."""
    found = PieceStatistics(numbers.total())
    least, most = numbers.values.min(), numbers.values.max()
    if least == _NO_TIME if has_times else np.isnan(least):
        is_missing = numbers.values == _NO_TIME if has_times else np.isnan(numbers.values)
        numbers = numbers.where(~is_missing)
        found.nan_count = found.count - numbers.total()
        if not len(numbers.values):
            return found
        least, most = numbers.values.min(), numbers.values.max()
    found.least, found.most = least, most
    if not (np.isfinite(least) and np.isfinite(most)):
        numbers = numbers.where(np.isfinite(numbers.values))
        found.inf_count = found.count - found.nan_count - numbers.total()
        if not len(numbers.values):
            return found
        least, most = numbers.values.min(), numbers.values.max()
    if numbers.values.dtype.kind == "f" and numbers.values.dtype.itemsize > 8:
        values = np.clip(numbers.values, -_LARGEST, _LARGEST).astype(np.float64)
        numbers, least, most = numbers._replace(values=values), values.min(), values.max()
    found.finite_count = numbers.total()
    found.bins = Bins.of(numbers, least, most)
    found.mean, found.squares = _mean_and_squares(numbers, found.finite_count)
    return found


def _mean_and_squares(numbers: _Numbers, count: int) -> tuple[float, float]:
    """Return the mean of finite numbers, and the sum of the squared distances from it."""
    values = numbers.values.astype(np.float64, copy=False)
    mean = numbers.sum(values) / count
    distances = values - mean if values is numbers.values else np.subtract(values, mean, out=values)
    return mean, numbers.sum(np.square(distances, out=distances))


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
    def of(cls, numbers: _Numbers, low: Any, high: Any) -> Bins:
        """Return the histogram of finite numbers, the least `low` and the largest `high`.

        The bins are as narrow as so few can be.
        """
        values = numbers.values
        is_integer = values.dtype.kind in "iu"
        # Between neighbours among floating-point numbers there is no edge.
        exponent = 0 if is_integer else _exponent(np.spacing(max(abs(low), abs(high))))
        bin_size = float(high) / _BIN_COUNT - float(low) / _BIN_COUNT
        if bin_size:
            exponent = max(exponent, _exponent(bin_size) - 1)
        while _place(high, exponent) - _place(low, exponent) >= _BIN_COUNT:
            exponent += 1
        first, last = _place(low, exponent), _place(high, exponent)
        is_below = np.empty(len(values), bool)
        below = [0]
        for place in range(first + 1, last + 1):
            edge = values.dtype.type(_number(place, exponent))
            below.append(numbers.count(np.less(values, edge, out=is_below)))
        counts = np.diff([*below, numbers.total()]).tolist()
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
