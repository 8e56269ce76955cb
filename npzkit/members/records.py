"""Values with named fields: namedtuples, and instances of dataclasses.

Owns which fields a value has, and the namedtuple that is made from names in a
file. Runs no code from the file: every name is checked to be an identifier.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import namedtuple
from typing import Any

__all__ = ["fields_of", "is_dataclass", "is_namedtuple", "named"]

_MAX_TYPES = 1000
"""Namedtuples that are kept, because making one takes a tenth of a millisecond."""


def is_namedtuple(value: object) -> bool:
    """Return whether a value is a namedtuple.

    Examples
    --------
    >>> is_namedtuple(named("Point", ("x", "y"))(1, 2)), is_namedtuple((1, 2))
    (True, False)
    """
    return isinstance(value, tuple) and isinstance(getattr(value, "_fields", None), tuple)


def is_dataclass(kind: type[Any]) -> bool:
    """Return whether a class is a dataclass."""
    return dataclasses.is_dataclass(kind)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a namedtuple or a dataclass by their names, in order."""
    if is_namedtuple(value):
        return dict(zip(value._fields, value, strict=True))
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


@functools.lru_cache(_MAX_TYPES)
def named(name: str, fields: tuple[str, ...]) -> type[Any]:
    """Return a namedtuple class; the same one for the same names.

    Raises
    ------
    ValueError
        A name is not an identifier, or occurs twice.

    Examples
    --------
    >>> named("Point", ("x", "y"))(1, 2)
    Point(x=1, y=2)
    """
    try:
        return namedtuple(name, fields)
    except SyntaxError:
        # Python takes two names for one if they differ only in their form in Unicode.
        raise ValueError(f"a field of {name} occurs twice") from None
