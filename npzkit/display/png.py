"""Pixels as the bytes of a PNG file.

Owns the format: https://www.w3.org/TR/png-3/. Knows 8 bits per value, without interlacing
and filters, which is what small pictures need.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PALETTE, _RGB, _RGBA = 3, 2, 6
"""Colour types: a byte per pixel is a place in the palette."""


def png_bytes(pixels: np.ndarray[Any, Any], palette: np.ndarray[Any, Any] | None = None) -> bytes:
    """Return pixels as a PNG file.

    Parameters
    ----------
    pixels : numpy.ndarray of uint8
        Of shape (height, width, 3) or (height, width, 4), which are not empty; with a
        palette (height, width).
    palette : numpy.ndarray of uint8, optional
        Red, green, blue and opacity of each value of a pixel: of shape (256, 4) at most.
    """
    height, width = pixels.shape[:2]
    kind = _PALETTE if palette is not None else _RGB if pixels.shape[2] == 3 else _RGBA
    chunks = [(b"IHDR", struct.pack(">2I5B", width, height, 8, kind, 0, 0, 0))]
    if palette is not None:
        chunks += [(b"PLTE", palette[:, :3].tobytes()), (b"tRNS", palette[:, 3].tobytes())]
    rows = pixels.reshape(height, -1)
    # Each row begins with the number of its filter: none.
    data = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()
    chunks += [(b"IDAT", zlib.compress(data, 6)), (b"IEND", b"")]
    return _SIGNATURE + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    checked = name + data
    return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))
