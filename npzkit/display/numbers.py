"""Values as numbers that can be drawn, and the range of them that is worth seeing.

Owns which number stands for a complex value, a date or a bool, and the colours of
pictures. Knows no archive.
"""

from __future__ import annotations

import math
import sys
from typing import Any, Literal

import numpy as np

from npzkit.display.piecewise import is_numeric

Part = Literal["magnitude", "phase", "real", "imag"]
"""The number that stands for a complex one."""

COLOUR_COUNTS = 3, 4
"""Lengths of the last axis of a picture: red, green, blue, and optionally opacity."""
_LARGEST = sys.float_info.max
_LAST_TIME = 8_640_000_000_000_000
"""Milliseconds from 1970 to the last date that a browser knows."""
_RANGE_COUNT = 1 << 20
"""The most values of which percentiles are computed."""


def as_drawn(values: Any, part: Part = "magnitude") -> np.ndarray[Any, Any]:
    """Return values as float64 or float32 numbers, in an array of the same shape.

    Complex numbers become their `part`, bools 0 and 1, dates and durations the count
    of their unit (see `unit_of`), NaT becomes NaN. The numbers may be rounded: float64
    has 53 bits. Those beyond its largest number become that number.

    Parameters
    ----------
    values : array_like
        Of a dtype that `is_numeric` accepts.
    part : {"magnitude", "phase", "real", "imag"}
        Of complex numbers. The phase is in radians.

    Raises
    ------
    TypeError
        The values are not numbers.

    Examples
    --------
    >>> as_drawn(np.array(["1970-01-03", "NaT"], "M8[D]"))
    array([ 2., nan])
    >>> as_drawn(np.array([3 + 4j]))
    array([5.])
    """
    array = np.asarray(values)
    if not is_numeric(array.dtype):
        raise TypeError(f"values of dtype {array.dtype} are not numbers")
    if array.dtype.kind == "c":
        with np.errstate(all="ignore"):
            array = _COMPLEX_PARTS[part](array)
    elif array.dtype.kind in "mM":
        is_missing = np.isnat(array)
        counts = array.astype(array.dtype.newbyteorder("="), copy=False).view(np.int64)
        return np.where(is_missing, np.nan, counts)
    is_small = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        # What float64 cannot hold is finite all the same.
        array = np.where(np.isinf(array), array, np.clip(array, -_LARGEST, _LARGEST))
    with np.errstate(all="ignore"):
        return array.astype(np.float32 if is_small else np.float64)


_COMPLEX_PARTS: dict[str, Any] = {
    "magnitude": np.abs,
    "phase": np.angle,
    "real": np.real,
    "imag": np.imag,
}


def unit_of(dtype: np.dtype[Any]) -> str | None:
    """Return the unit that the numbers of dates and durations count, or None.

    Examples
    --------
    >>> unit_of(np.dtype("M8[ms]")), unit_of(np.dtype("m8[7D]")), unit_of(np.dtype("f4"))
    ('ms', '7D', None)
    """
    if dtype.kind not in "mM":
        return None
    unit, count = np.datetime_data(dtype)
    if unit == "generic":
        return None
    return unit if count == 1 else f"{count}{unit}"


def is_date(dtype: np.dtype[Any]) -> bool:
    """Whether values are dates; without a unit they are none."""
    return dtype.kind == "M" and unit_of(dtype) is not None


def as_placed(numbers: Any, dtype: np.dtype[Any]) -> Any:
    """Return counts of the unit of dates as milliseconds, and other numbers as they are.

    Parameters
    ----------
    numbers : array_like
        Of `as_drawn`.
    dtype : numpy.dtype
        Of the values.

    Examples
    --------
    >>> as_placed([1.0, np.nan], np.dtype("M8[D]"))
    array([86400000.,       nan])
    """
    if not is_date(dtype):
        return numbers
    is_known = np.isfinite(numbers)
    counts = np.where(is_known, numbers, 0).astype(np.int64).view(dtype.newbyteorder("="))
    times = counts.astype("M8[ms]").view(np.int64)
    return np.where(is_known, np.clip(times, -_LAST_TIME, _LAST_TIME), np.nan)


def round_numbers(low: float, high: float) -> list[float]:
    """Return some round numbers between two others, not close to them.

    Examples
    --------
    >>> round_numbers(16.3, 23.9)
    [18.0, 20.0, 22.0]
    """
    exact = (high - low) / 5
    if not 0 < exact < np.inf:
        return []
    power = 10.0 ** np.floor(np.log10(exact))
    step = min((power * factor for factor in (1, 2, 5, 10)), key=lambda step: abs(step - exact))
    places = np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step
    margin = (high - low) / 16
    return [float(place) for place in places if low + margin < place < high - margin]


def value_range(values: Any, low: float = 1, high: float = 99) -> tuple[float, float]:
    """Return two percentiles of numbers, without NaNs and infinities.

    The first is always below the second, so that a scale can be made of them: if the
    percentiles are equal, the smallest and largest number are returned, and if these
    are equal too, numbers around them. Without finite numbers it is 0 and 1.

    Parameters
    ----------
    values : array_like
        As of `as_drawn`.
    low, high : float
        Percentiles, from 0 to 100.

    Examples
    --------
    >>> value_range([0, 1, 2, 3, np.inf], 0, 100)
    (0.0, 3.0)
    >>> value_range([7, 7])
    (6.5, 7.5)
    """
    flat = np.asarray(values, np.float64).reshape(-1)
    flat = flat[:: -(-len(flat) // _RANGE_COUNT) or 1]
    flat = flat[np.isfinite(flat)]
    if not len(flat):
        return 0.0, 1.0
    # The distance of large numbers may be infinite.
    scale = 0.5 if math.isinf(float(flat.max()) - float(flat.min())) else 1.0
    first, last = (float(edge) / scale for edge in np.percentile(flat * scale, [low, high]))
    if first == last:
        first, last = float(flat.min()), float(flat.max())
    if first == last:
        margin = max(abs(first) * 1e-6, 0.5)
        return max(first - margin, -_LARGEST), min(last + margin, _LARGEST)
    return first, last


def as_colours(values: Any) -> np.ndarray[Any, Any]:
    """Return a picture of shape (height, width, 3 or 4) as uint8.

    Bytes are kept. Other integers are cut to 0 and 255. Other numbers from 0 to 1
    become 0 to 255, as matplotlib draws them. NaNs are black.

    Examples
    --------
    >>> as_colours([[[0.0, 0.5, 2.0]]])
    array([[[  0, 128, 255]]], dtype=uint8)
    """
    array = np.asarray(values)
    if array.dtype == np.uint8:
        return array
    largest = 255.0 if array.dtype.kind in "iu" else 1.0
    numbers = np.clip(np.nan_to_num(as_drawn(array), posinf=largest, neginf=0.0), 0, largest)
    colours: np.ndarray[Any, Any] = np.rint(numbers * (255.0 / largest)).astype(np.uint8)
    return colours
