"""CRC-32, the checksum of zip archives, and the libraries that are installed.

Owns which library computes it, ISA-L or zlib, how those of parts are combined, and how those of
the chunks of some bytes are taken while the bytes come piece by piece.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import zlib
from collections.abc import Callable, Sequence
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
        remedy='Install it: python -m pip install "npzkit[zstd]".',
    )


def exported_functions(module: str, *names: str) -> tuple[Any, ...] | None:
    """Return C functions of the library in an extension module.

    None if it is not installed or does not export all of them, as on Windows.
    """
    try:
        import ctypes

        library = ctypes.CDLL(str(importlib.import_module(module).__file__))
        return tuple(getattr(library, name) for name in names)
    except (ImportError, OSError, AttributeError):
        return None


_FEW_SIZE = 1 << 10
"""Bytes whose CRC-32 zlib computes in less than a microsecond."""


@functools.cache
def isal_or_zlib() -> Any:
    """Return ISA-L's zlib if it is installed, else Python's own. Both have the same functions."""
    # Its CRC-32 is 10 times as fast as zlib's and its inflation up to twice as
    # fast, measured by tests/benchmarks. It has wheels for x86-64 and ARM64.
    return library("isal") or zlib


@functools.cache
def inflater() -> Any:
    """Return what inflates: ISA-L's zlib, or Python's own.

    Until version 1.9, ISA-L's drops up to 8 bytes that follow a stream.
    """
    found = isal_or_zlib()
    if found is zlib:
        return zlib
    version: str = getattr(importlib.import_module("isal"), "__version__", "0.0")
    major, minor = map(int, version.split(".")[:2])
    return found if (major, minor) >= (1, 9) else zlib


def crc32(data: Any, value: int = 0) -> int:
    """Return the CRC-32 of some bytes, continued from `value`.

    A program whose arrays are small does without ISA-L, whose import takes half a millisecond.
    """
    taker = zlib if len(data) < _FEW_SIZE else isal_or_zlib()
    return taker.crc32(data, value)  # type: ignore[no-any-return]


@functools.lru_cache(128)
def _zeros(size: int) -> tuple[int, ...]:
    """Return what each bit of a CRC-32 becomes when so many zeros follow: a linear map."""
    if size <= 1:
        zeros = bytes(size)
        return tuple(zlib.crc32(zeros, 1 << bit) ^ zlib.crc32(zeros) for bit in range(32))
    half, rest = _zeros(size // 2), _zeros(size % 2)
    return tuple(_moved(rest, _moved(half, bit)) for bit in half)


def _moved(zeros: Sequence[int], crc: int) -> int:
    moved = 0
    for bit in zeros:
        moved ^= bit * (crc & 1)
        crc >>= 1
    return moved


def _crc32_combine(first: int, second: int, size: int) -> int:
    return _moved(_zeros(size), first) ^ second


def crc32_combine(first: int, second: int, size: int) -> int:
    """Return the CRC-32 of two parts joined, from the CRC-32 of each and the second one's size."""
    return combiner()(first, second, size)


@functools.cache
def combiner() -> Callable[[int, int, int], int]:
    """Return the fastest function that does what `crc32_combine` does, for many calls."""
    combine: Callable[[int, int, int], int]
    combine = getattr(isal_or_zlib(), "crc32_combine", _crc32_combine)
    return combine


# -- of chunks ----------------------------------------------------------------

_FEW_COUNT = 64
"""CRC-32s that are combined one by one: of fewer, that takes less time than arrays do."""


def combined(crc32s: Sequence[int], size: int) -> int:
    """Return the CRC-32 of parts joined, from the CRC-32 of each, if all have `size` bytes."""
    if len(crc32s) > _FEW_COUNT:
        import numpy as np

        # Neighbours are joined, and then these: 16,384 take 0.3 ms, and 3 one by one.
        numbers = np.array(crc32s, np.uint32)
        while len(numbers) > _FEW_COUNT:
            if len(numbers) % 2:
                # The CRC-32 of nothing.
                numbers = np.append(numbers[:1] * 0, numbers)
            first, numbers = numbers[::2], numbers[1::2].copy()
            for number, row in enumerate(_table(size)):
                numbers ^= row[first >> 8 * number & 0xFF]
            size *= 2
        crc32s = numbers.tolist()
    combine, found = combiner(), 0
    for number in crc32s:
        found = combine(found, number, size)
    return found


@functools.lru_cache(64)
def _table(size: int) -> Any:
    """Return what each value of each byte of a CRC-32 becomes when so many zeros follow."""
    import numpy as np

    bits = np.array(_zeros(size), np.uint32).reshape(4, 8)
    table = np.zeros((4, 256), np.uint32)
    for bit in range(8):
        table[:, 1 << bit : 2 << bit] = table[:, : 1 << bit] ^ bits[:, bit, None]
    return table


def chunk_crc32s(data: Any, chunk_size: int, offset: int = 0, value: int = 0) -> list[int]:
    """Return the CRC-32 of each chunk's part of `data`, which lies at `offset` of the chunks.

    That of the first one is continued from `value`.
    """
    first = -offset % chunk_size
    take, view = isal_or_zlib().crc32, memoryview(data)
    found = [take(view[:first], value)] if first and view else []
    for start in range(first, len(view), chunk_size):
        found.append(take(view[start : start + chunk_size]))
    return found


class ChunkChecks:
    """The CRC-32s of chunks whose bytes come piece by piece.

    Attributes
    ----------
    chunk_size : int
    crc32s : list of int
        Of the chunks; of the last one, as far as it goes.
    size : int
        Bytes so far.
    """

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size, self.crc32s, self.size = chunk_size, list[int](), 0

    def add(self, data: Any) -> None:
        """Take the next bytes."""
        value = self.crc32s.pop() if self.size % self.chunk_size and len(data) else 0
        self.crc32s += chunk_crc32s(data, self.chunk_size, self.size, value)
        self.size += len(data)

    def put(self, size: int, crc32s: Sequence[int]) -> None:
        """Take the CRC-32s of the next bytes, as `chunk_crc32s` returns them."""
        room = -self.size % self.chunk_size
        if room and crc32s:
            self.crc32s[-1] = crc32_combine(self.crc32s[-1], crc32s[0], min(room, size))
            crc32s = crc32s[1:]
        self.crc32s += crc32s
        self.size += size

    @property
    def crc32(self) -> int:
        """The CRC-32 of all bytes."""
        return combined_with_last(self.crc32s, self.chunk_size, self.size)


def combined_with_last(crc32s: Sequence[int], chunk_size: int, size: int) -> int:
    """Return the CRC-32 of `size` bytes, from those of their chunks, of which the last is short."""
    if not crc32s:
        return 0
    whole = crc32s[:-1]
    return crc32_combine(combined(whole, chunk_size), crc32s[-1], size - len(whole) * chunk_size)
