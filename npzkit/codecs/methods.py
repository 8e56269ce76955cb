"""Compression methods by number and name, and the checksum.

Owns the choice of the library that computes CRCs and inflates: isal, or zlib if
isal cannot be imported. Encoders are in `npzkit.codecs.encoders`, decoders in
`npzkit.codecs.decompressors`.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable
from typing import Any

inflate_library: Any
try:
    # 10 times as fast as zlib for CRCs, and up to twice as fast for inflating, as
    # measured by tests/benchmarks. Its wheels support x86-64 and ARM64.
    from isal import isal_zlib as inflate_library
except ImportError:
    inflate_library = zlib

__all__ = [
    "BZIP2",
    "DEFLATED",
    "DEFLATED64",
    "LZMA",
    "METHOD_NAMES",
    "STORED",
    "ZSTANDARD",
    "check_level",
    "crc32",
    "crc32_combine",
    "inflate_library",
    "method_name",
    "method_number",
]

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

crc32: Callable[..., int] = inflate_library.crc32


def _crc32_combine(first: int, second: int, size: int) -> int:
    """Return the combined CRC by extending the first one with `size` zeros."""
    shifted, zero_crc, zeros = first, 0, bytes(1 << 16)
    while size:
        step = zeros[: min(size, len(zeros))]
        shifted, zero_crc = zlib.crc32(step, shifted), zlib.crc32(step, zero_crc)
        size -= len(step)
    return shifted ^ zero_crc ^ second


crc32_combine: Callable[[int, int, int], int] = getattr(
    inflate_library, "crc32_combine", _crc32_combine
)
"""Return the CRC of two adjacent ranges from the CRC of each and the size of the second."""


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
