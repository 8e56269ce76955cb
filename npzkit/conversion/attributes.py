"""Attributes from one format to another, as values that JSON has.

Owns what becomes of values that one side has no place for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npzkit.conversion.arrays import Say
from npzkit.errors import printable
from npzkit.limits import is_backed
from npzkit.members.strict_json import format_json, parse_json

JSON_ATTRIBUTE = "npzkit.json"
"""Holds, as one JSON text, the attributes that a format has no type for."""
_OWN = "npzkit."


def named(key: str | None) -> str:
    """Return whose attributes these are, for a note."""
    return "the file" if key is None else f"{printable(key)!r}"


def from_library(attrs: Mapping[str, Any], key: str | None, say: Say) -> dict[str, Any]:
    """Return attributes that a library read as JSON has them; others are left out, with a note."""
    found: dict[str, Any] = {}
    for name, value in attrs.items():
        if name.startswith(_OWN):
            continue
        try:
            found[name] = _plain(value)
        except (TypeError, ValueError):
            say(
                f"the attribute {printable(name)!r} of {named(key)} is not kept: "
                f"JSON has no {type(value).__name__}"
            )
    return {**found, **join_json(attrs.get(JSON_ATTRIBUTE))}


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        if not is_backed(value.shape, value.nbytes):
            # A shape alone may claim lists that would fill the memory.
            raise ValueError
        value = value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError


def split_json(attrs: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Split attributes into simple ones, and the rest as one JSON text.

    Simple are strings, numbers and lists of one kind of them.
    """
    simple = {name: value for name, value in attrs.items() if _is_simple(value)}
    rest = {name: value for name, value in attrs.items() if name not in simple}
    return simple, format_json(rest) if rest else None


def _is_simple(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and len({type(item) for item in value}) == 1 and _is_simple(value[0])
    if isinstance(value, str):
        return "\0" not in value
    if isinstance(value, bool | float):
        return True
    return isinstance(value, int) and -(2**63) <= value < 2**63


def join_json(text: Any) -> dict[str, Any]:
    """Return the attributes in a text by `split_json`; nothing for any other text."""
    try:
        found = parse_json(text) if isinstance(text, (str, bytes)) else None
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if not name.startswith(_OWN)}
