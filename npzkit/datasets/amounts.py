"""Sizes as users write them.

Owns the units: ``"5GB"`` is 5 billion bytes, ``"5GiB"`` is 5 times 2**30.
"""

from __future__ import annotations

import operator
import re

_UNITS = {"": 1, "B": 1} | {
    prefix + unit: base**power
    for unit, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate("KMGT", 1)
}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMGT]?i?B?)", re.IGNORECASE | re.ASCII)


def parse_size(size: int | str, name: str = "shard_size") -> int:
    """Return a number of bytes.

    Raises
    ------
    TypeError, ValueError
        It is not a positive integer, or a number with a unit.

    Examples
    --------
    >>> parse_size("5GB"), parse_size("64 MiB"), parse_size(1000)
    (5000000000, 67108864, 1000)
    """
    if isinstance(size, str):
        found = _SIZE.fullmatch(size.strip())
        units = {unit.lower(): factor for unit, factor in _UNITS.items()}
        factor = units.get(found[2].lower()) if found else None
        if found is None or factor is None:
            raise ValueError(f"{name} must be a size such as '5GB' or '64MiB', not {size!r}")
        count = int(float(found[1]) * factor)
    else:
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise TypeError(f"{name} must be an integer or a string, not {type(size).__name__}")
        count = operator.index(size)
    if count < 1:
        raise ValueError(f"{name} must be at least one byte, not {size!r}")
    return count
