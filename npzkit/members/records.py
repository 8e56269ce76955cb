"""Values with named fields: namedtuples, instances of dataclasses, and JAX's pytrees.

Owns which fields a value has, and the namedtuple that is made from names in a
file. Runs no code from the file: every name is checked to be an identifier.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import namedtuple
from typing import Any

from npzkit.members.jax_arrays import is_pytree, pytree_items

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


def is_record(value: object) -> bool:
    """Return whether a value has fields, which its class fixes."""
    return is_namedtuple(value) or is_dataclass(type(value)) or is_pytree(value)


def fields_of(value: Any) -> dict[Any, Any]:
    """Return the fields of a record by their names, in order.

    Those of a class that is registered with JAX are its children as a pytree.
    """
    if is_namedtuple(value):
        return dict(zip(value._fields, value, strict=True))
    if is_pytree(value):
        return pytree_items(value)
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


@functools.lru_cache(_MAX_TYPES)
def named(name: str, fields: tuple[str, ...]) -> type[Any]:
    """Return a namedtuple class; the same one for the same names.

    Its instances can be pickled and copied.

    Raises
    ------
    ValueError
        A name is not an identifier, or occurs twice.

    Examples
    --------
    >>> import copy
    >>> copy.deepcopy(named("Point", ("x", "y"))(1, 2))
    Point(x=1, y=2)
    """
    made: type[Any] = _new_type(name, fields)
    # Pickle would look for the class in this module.
    made.__reduce__ = _reduce  # type: ignore[assignment]
    return made


def _new_type(name: str, fields: tuple[str, ...]) -> Any:
    try:
        return namedtuple(name, fields)
    except SyntaxError:
        # Python takes two names for one if they differ only in their form in Unicode.
        raise ValueError(f"a field of {name} occurs twice") from None


def _reduce(value: Any) -> tuple[Any, ...]:
    return _make, (type(value).__name__, value._fields, *value)


def _make(name: str, fields: tuple[str, ...], *values: Any) -> Any:
    """Return a namedtuple that was pickled."""
    kind: Any = named(name, fields)
    return kind._make(values)
