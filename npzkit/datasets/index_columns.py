"""Columns of an index: lists of JSON to numbers and texts that were checked.

Owns what a column, and an object that refers to rows, may be. Numbers are checked by
column, not one by one.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from npzkit.errors import IndexFormatError

_MAX_INT = 2**63 - 1


def check_names(value: object, names: set[str], what: str) -> None:
    """Check that an object has exactly these fields."""
    if not isinstance(value, dict) or value.keys() != names:
        found = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise IndexFormatError(
            f"the fields of {what!r} are not those of an index", found=found, expected=sorted(names)
        )


def listed(value: object) -> list[Any]:
    """Return a list."""
    if not isinstance(value, list):
        raise IndexFormatError("a column is not a list", found=value)
    return value


def mapping(value: object) -> dict[str, Any]:
    """Return an object."""
    if not isinstance(value, dict):
        raise IndexFormatError("an index has something else in place of an object", found=value)
    return value


def strings(value: object, what: str) -> list[str]:
    """Return a list of strings."""
    if not set(map(type, listed(value))) <= {str}:
        raise IndexFormatError(f"{what} must be strings")
    return listed(value)


def column(value: object, count: int | None, most: int = _MAX_INT) -> np.ndarray[Any, Any]:
    """Return a column of integers from 0 to `most`; `count` of them, unless that is None."""
    numbers = listed(value)
    if count is not None and len(numbers) != count:
        raise IndexFormatError("a column has the wrong length", found=len(numbers), expected=count)
    # Booleans are not numbers here.
    if not set(map(type, numbers)) <= {int}:
        raise IndexFormatError("a column must have integers")
    if numbers and not (min(numbers) >= 0 and max(numbers) <= most):
        wrong = next(number for number in numbers if not 0 <= number <= most)
        raise IndexFormatError("a number is out of range", found=wrong, expected=f"0 to {most}")
    return np.array(numbers, np.int64)


def starts_of(counts: np.ndarray[Any, Any]) -> list[int]:
    """Return where the values of each row begin in a column that has several per row.

    Python's integers, because numbers of a file may add up to more than 64 bits.
    """
    return [0, *accumulate(counts.tolist())]


def by_number(value: object, count: int) -> dict[int, Any]:
    """Return an object whose names are numbers below `count`."""
    found = {}
    for name, inner in mapping(value).items():
        if not (name.isascii() and name.isdigit() and len(name) < 19 and int(name) < count):
            raise IndexFormatError("an object refers to a row that is not there", found=name)
        found[int(name)] = inner
    if len(found) != len(mapping(value)):
        raise IndexFormatError("an object refers to the same row twice")
    return found
