"""The SLICE of a command line.

Owns the syntax, which is NumPy's without the brackets. It is parsed and never
evaluated. Knows no array and no terminal.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_ITEM = re.compile(
    r"""\s*(?:
        (?P<dots>\.\.\.)
      | \[(?P<list>[^\]]*)\]
      | (?P<slice>[-+\d\s]*:[-+:\d\s]*)
      | (?P<integer>[-+]?\d+)
      | (?P<name>[^\W\d]\w*) | "(?P<double>[^"]*)" | '(?P<single>[^']*)'
    )\s*(?:,|\Z)""",
    re.VERBOSE,
)
_INTEGER = re.compile(r"\s*([-+]?\d{1,18})\s*")


class Index(NamedTuple):
    """What a SLICE says.

    Attributes
    ----------
    items : tuple
        Integers, slices, Ellipsis, and one list of integers at most.
    field : str or None
        The field of a structured array.
    """

    items: tuple[Any, ...] = ()
    field: str | None = None


def parse_index(text: str) -> Index:
    """Parse a SLICE.

    Raises
    ------
    ValueError
        It is none, in words for whoever typed it.

    Examples
    --------
    >>> parse_index("0:10, ::2, ..., -1")
    Index(items=(slice(0, 10, None), slice(None, None, 2), Ellipsis, -1), field=None)
    >>> parse_index("pos, [1, 3]")
    Index(items=([1, 3],), field='pos')
    """
    items: list[Any] = []
    fields: list[str] = []
    position = 0
    while position < len(text) or not (items or fields):
        match = _ITEM.match(text, position)
        if match is None:
            raise ValueError(
                f"SLICE cannot be read from {text[position:].strip()[:40]!r} on; it is written "
                "like '0:10, ::2, ..., -1' or '[1, 5], 0', a field by its name"
            )
        position = match.end()
        name = match["name"] or match["double"] or match["single"]
        if match["dots"]:
            items.append(...)
        elif match["list"] is not None:
            items.append([_integer(part) for part in match["list"].split(",") if part.strip()])
        elif match["slice"]:
            items.append(_slice(match["slice"]))
        elif match["integer"]:
            items.append(_integer(match["integer"]))
        else:
            fields.append(name or "")
    if len(fields) > 1 or sum(isinstance(item, list) for item in items) > 1:
        raise ValueError("SLICE takes one field and one list of indices at most")
    return Index(tuple(items), fields[0] if fields else None)


def _integer(text: str) -> int:
    match = _INTEGER.fullmatch(text)
    if match is None:
        raise ValueError(f"SLICE takes integers of up to 18 digits, not {text.strip()[:40]!r}")
    return int(match[1])


def _slice(text: str) -> slice:
    parts = text.split(":")
    if len(parts) > 3:
        raise ValueError(f"a slice is start:stop:step, not {text.strip()[:40]!r}")
    start, stop, step = [
        _integer(part) if part.strip() else None for part in [*parts, "", ""][:3]
    ]  # fmt: skip
    if step == 0:
        raise ValueError(f"the step of a slice cannot be 0, as in {text.strip()[:40]!r}")
    return slice(start, stop, step)
