"""Compression methods by number and name.

Owns what users may pass as a compression and as a level. Encoders are in
`npzkit.codecs.encoders`, decoders in `npzkit.codecs.decompressors`.
"""

from __future__ import annotations

import operator
from typing import Any

STORED = 0
DEFLATED = 8
DEFLATED64 = 9
BZIP2 = 12
LZMA = 14
ZSTANDARD = 93

METHOD_NAMES = {
    STORED: "stored",
    DEFLATED: "deflated",
    DEFLATED64: "deflate64",
    BZIP2: "bzip2",
    LZMA: "lzma",
    ZSTANDARD: "zstandard",
}
"""The methods that npzkit can read (APPNOTE section 4.4.5)."""


def method_name(method: int) -> str:
    """Return the name of a method: ``"stored"``, ``"deflated"``, ..., ``"method 97"``."""
    return METHOD_NAMES.get(method, f"method {method}")


def method_number(compression: str | int | None) -> int:
    """Return the method number of a compression that npzkit can write.

    None means no compression, as in h5py.

    Raises
    ------
    ValueError
        `compression` is not ``"stored"``, ``"deflated"`` or the number that
        zipfile has for one of them.

    Examples
    --------
    >>> method_number("deflated")
    8
    """
    if compression is None:
        return STORED
    for number in (STORED, DEFLATED):
        if isinstance(compression, bool):
            break
        if compression == number or compression == METHOD_NAMES[number]:
            return number
    raise ValueError(
        f"compression must be 'stored' or 'deflated' (or zipfile.ZIP_STORED, "
        f"zipfile.ZIP_DEFLATED), not {compression!r}"
    )


def check_level(level: Any) -> int | None:
    """Return `level` as an int from 0 to 9 or None, or raise ValueError."""
    if level is None:
        return None
    if isinstance(level, bool) or not hasattr(level, "__index__") or not 0 <= level <= 9:
        raise ValueError(f"level must be an integer from 0 to 9, or None, not {level!r}")
    return operator.index(level)
