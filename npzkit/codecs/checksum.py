"""CRC-32, the checksum of zip archives.

Owns which library computes it, and how the CRC-32s of two parts are combined.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from npzkit.codecs.isal import isal_or_zlib

crc32: Callable[..., int] = isal_or_zlib.crc32


def _crc32_combine(first: int, second: int, size: int) -> int:
    """Combine by running the first CRC over `size` zeros, which takes linear time."""
    shifted, zero_crc, zeros = first, 0, bytes(1 << 16)
    while size:
        step = zeros[: min(size, len(zeros))]
        shifted, zero_crc = zlib.crc32(step, shifted), zlib.crc32(step, zero_crc)
        size -= len(step)
    return shifted ^ zero_crc ^ second


crc32_combine: Callable[[int, int, int], int] = getattr(
    isal_or_zlib, "crc32_combine", _crc32_combine
)
"""Return the CRC-32 of two parts joined, from the CRC-32 of each and the second one's size."""
