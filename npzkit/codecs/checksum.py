"""CRC-32, the checksum of zip archives, and the libraries that are installed.

Owns which library computes it, ISA-L or zlib, and how the CRC-32s of two parts are combined.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import zlib
from collections.abc import Callable
from typing import Any

from npzkit.errors import UnsupportedError

_MODULES = {
    "isal": "isal.isal_zlib",
    "zlib-ng": "zlib_ng.zlib_ng",
    "zlib": "zlib",
    "libdeflate": "deflate",
}


@functools.cache
def library(name: str) -> Any:
    """Return a library, or None if it cannot be imported."""
    try:
        return importlib.import_module(_MODULES[name])
    except ImportError:
        return None


@functools.cache
def zstandard_library() -> Any:
    """Return the module of Python 3.14 and newer, or its backport."""
    for name in ("compression.zstd", "backports.zstd"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise UnsupportedError(
        "Zstandard needs Python 3.14, or the package backports.zstd",
        remedy="Install it: python -m pip install 'npzkit[zstd]'.",
    )


_FEW_SIZE = 1 << 10
"""Bytes whose CRC-32 zlib computes in less than a microsecond."""


@functools.cache
def isal_or_zlib() -> Any:
    """Return ISA-L's zlib if it is installed, else Python's own. Both have the same functions."""
    # Its CRC-32 is 10 times as fast as zlib's and its inflation up to twice as
    # fast, measured by tests/benchmarks. It has wheels for x86-64 and ARM64.
    return library("isal") or zlib


def crc32(data: Any, value: int = 0) -> int:
    """Return the CRC-32 of some bytes, continued from `value`.

    A program whose arrays are small does without ISA-L, whose import takes half a millisecond.
    """
    taker = zlib if len(data) < _FEW_SIZE else isal_or_zlib()
    return taker.crc32(data, value)  # type: ignore[no-any-return]


def _crc32_combine(first: int, second: int, size: int) -> int:
    """Combine by running the first CRC over `size` zeros, which takes linear time."""
    shifted, zero_crc, zeros = first, 0, bytes(1 << 16)
    while size:
        step = zeros[: min(size, len(zeros))]
        shifted, zero_crc = zlib.crc32(step, shifted), zlib.crc32(step, zero_crc)
        size -= len(step)
    return shifted ^ zero_crc ^ second


def crc32_combine(first: int, second: int, size: int) -> int:
    """Return the CRC-32 of two parts joined, from the CRC-32 of each and the second one's size."""
    return combiner()(first, second, size)


@functools.cache
def combiner() -> Callable[[int, int, int], int]:
    """Return the fastest function that does what `crc32_combine` does, for many calls."""
    combine: Callable[[int, int, int], int]
    combine = getattr(isal_or_zlib(), "crc32_combine", _crc32_combine)
    return combine
