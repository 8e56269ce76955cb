"""JSON for programs, as `json.dumps` with ``indent=2`` formats it, in half the time.

Owns which text a value becomes: null for numbers that are not finite, a string
for what JSON does not know.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import repeat
from json.encoder import encode_basestring_ascii
from typing import Any

_SCALARS: Mapping[type, Callable[[Any], str]] = {
    str: encode_basestring_ascii,
    int: int.__repr__,
    bool: {False: "false", True: "true"}.__getitem__,
}
"""The types of most values, and their text as JSON."""


def json_text(value: Any, margin: str = "\n") -> str:
    """Return a value as JSON. A margin begins with the line's end.

    Each level takes one Python frame, so the deepest metadata fit into Python's stack.
    """
    heads: Iterable[str] = repeat("")
    values: Collection[Any] = value
    if isinstance(value, Mapping):
        pairs = {str(key): inner for key, inner in value.items()}
        heads = [f"{encode_basestring_ascii(key)}: " for key in pairs]
        values, brackets = pairs.values(), "{}"
    elif isinstance(value, (list, tuple)):
        brackets = "[]"
    elif isinstance(value, float) and not math.isfinite(value):
        return "null"
    else:
        return json.dumps(value, default=str)
    inner_margin = margin + "  "
    lines = []
    for head, item in zip(heads, values, strict=False):
        encode = _SCALARS.get(type(item))
        lines.append(head + (encode(item) if encode else json_text(item, inner_margin)))
    if not lines:
        return brackets
    return f"{brackets[0]}{inner_margin}{f',{inner_margin}'.join(lines)}{margin}{brackets[1]}"
