"""Strict JSON (RFC 8259): what npzkit writes as JSON, programs in any language can read.

Owns how values become text, and how they are read from it. JSON has no NaN and no infinity.
Such a float is written as an object with the one name "npzkit.float", whose value is "NaN",
"Infinity" or "-Infinity", and is read as a float again. Its brackets count as a level.

Does not import NumPy; NumPy scalars are converted to Python numbers. `json` is imported on
first use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from npzkit.limits import MAX_DEPTH, nests_deeper

_FLOAT_KEY = "npzkit.float"
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""By the names that Python's `json` has for them too. NaN is always the same object, so that
two mappings that were read can be equal."""
_CONTAINERS = {dict, list}
"""Types of what JSON is parsed to."""


def is_float(value: Mapping[Any, Any]) -> bool:
    """Return whether a mapping is what a float is written as.

    Examples
    --------
    >>> is_float({"npzkit.float": "NaN"}), is_float({"npzkit.float": 1.5})
    (True, False)
    """
    # The names in a tree are names in its note, whose values are never strings.
    name = value.get(_FLOAT_KEY) if len(value) == 1 else None
    return isinstance(name, str) and name in _FLOATS


def format_json(
    value: object,
    depth: int | None = None,
    *,
    special: Callable[[str], Any] = lambda name: {_FLOAT_KEY: name},
    **options: Any,
) -> str:
    """Return a value as JSON.

    Parameters
    ----------
    value : object
        Does not contain itself.
    depth : int, optional
        Largest depth with the floats that are objects, if it matters.
    special : callable, optional
        Returns what is written for a NaN or an infinity, of which it gets the name.
    **options
        Those of `json.dumps`.

    Raises
    ------
    TypeError
        JSON cannot represent a value.
    ValueError
        A NaN or an infinity is nested too deeply, or an int has more digits than Python prints.

    Examples
    --------
    >>> format_json([0.5, float("-inf")])
    '[0.5, {"npzkit.float": "-Infinity"}]'
    """
    import json

    try:
        return json.dumps(value, default=_plain, allow_nan=False, **options)
    except ValueError:
        # Almost always one of these floats. If not, the next line raises it again.
        text = json.dumps(value, default=_plain)
    strict = json.loads(text, parse_constant=special)
    if depth is not None and is_deeper(strict, depth):
        raise ValueError(
            "a NaN or an infinity in metadata or attributes is nested too deeply; "
            "save large values as arrays"
        )
    return json.dumps(strict, allow_nan=False, **options)


def _plain(value: object) -> Any:
    """Return a NumPy scalar, which has `item`, as a Python number."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        plain = value.item()
        # `item` of a longdouble, which no Python number can store, returns a longdouble.
        if type(plain) is not type(value):
            return plain
    raise TypeError(
        f"metadata and attributes must have values that JSON can represent, not "
        f"{type(value).__name__}; save arrays as members, or convert them first"
    )


def finite(value: Any) -> Any:
    """Return a value as it is read from JSON, with None in place of NaN and infinity.

    Examples
    --------
    >>> finite({"a": (1, float("nan"))})
    {'a': [1, None]}
    """
    import json

    return json.loads(json.dumps(value), parse_constant=lambda name: None)


def parse_json(text: str | bytes, depth: int = MAX_DEPTH, *, is_strict: bool = False) -> Any:
    """Parse JSON, with the floats of `format_json`.

    Parameters
    ----------
    text : str or bytes
    depth : int, optional
    is_strict : bool, default False
        Refuse what Python's `json` reads and others do not, or read differently: a bare NaN
        or Infinity, and a name that an object has twice.

    Raises
    ------
    ValueError
        It is no JSON, or is nested more than `depth` deep: too deep to write or print.
    """
    import json

    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    options: dict[str, Any] = {}
    if is_strict:
        options = {"object_pairs_hook": _unique, "parse_constant": _refuse}
    elif _FLOAT_KEY in text or "\\u00" in text:
        # An escape may be any of its letters.
        options = {"object_hook": _restored}
    try:
        value = json.loads(text, **options)
    except RecursionError:
        if not nests_deeper(text, depth):
            raise
        is_deep = True
    else:
        is_deep = len(text) > depth and is_deeper(value, depth)
    if is_deep:
        raise ValueError("it is nested too deeply")
    return value


def _restored(found: dict[str, Any]) -> Any:
    """Return the float that an object stands for, or the object."""
    return _FLOATS[found[_FLOAT_KEY]] if is_float(found) else found


def _unique(pairs: list[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same name twice")
    return _restored(found)


def _refuse(name: str) -> Any:
    raise ValueError(f'{name} is not a number of JSON; npzkit writes {{"{_FLOAT_KEY}": "{name}"}}')


def is_deeper(value: object, depth: int) -> bool:
    """Return whether lists and mappings are nested more than `depth` deep, as JSON has them."""
    layer: list[Any] = [value]
    for _ in range(depth):
        outer: list[Any] = [value for value in layer if type(value) in _CONTAINERS]
        if not outer:
            return False
        layer = []
        for container in outer:
            layer += container.values() if type(container) is dict else container
    return any(
        type(value) in _CONTAINERS or (type(value) is float and not math.isfinite(value))
        for value in layer
    )
