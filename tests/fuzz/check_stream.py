"""What must hold of an archive that is read front to back: what a file gives, or it is said."""

from __future__ import annotations

import io
import random
import zlib
from typing import Any

import npzkit
from calls import LIMITS, Result, Violation, attempt, is_same, shown
from npzkit.errors import AmbiguousArchiveWarning, NpzkitError, TornArchiveWarning

__all__ = ["check_stream"]


class _Dripping:
    """A stream that has only `read`, which returns fewer bytes than it is asked for."""

    def __init__(self, data: bytes) -> None:
        self._stream, self._random = io.BytesIO(data), random.Random(zlib.crc32(data))

    def read(self, size: int) -> bytes:
        return self._stream.read(self._random.randint(1, max(size, 1)))


def check_stream(data: bytes, thorough: bool) -> list[str]:
    """Read it front to back, from streams of two kinds, and as a file."""
    opened = attempt("open", npzkit.open, data, limits=LIMITS)
    makers = [io.BytesIO, _Dripping]
    if not thorough:
        makers = [makers[zlib.crc32(data) % 2]]
    return [_check(opened, attempt_all(make(data))) for make in makers]


def attempt_all(stream: Any) -> tuple[list[tuple[str, Any]], Result]:
    """Return what came before the end, and what came of it."""
    found: list[tuple[str, Any]] = []

    def read() -> None:
        for item in npzkit.iter_arrays(stream, limits=LIMITS):
            found.append(item)

    return found, attempt("iter_arrays", read)


def _check(opened: Result, streamed: tuple[list[tuple[str, Any]], Result]) -> str:
    found, result = streamed
    if result.error is not None:
        return f"refused: {type(result.error).__name__}"
    if opened.error is not None:
        raise Violation(f"open: {shown(opened.error)}; iter_arrays takes it")
    _check_same(opened.value, dict(found))
    categories = {category for _, category in result.warned}
    if len(found) > len(dict(found)) and AmbiguousArchiveWarning not in categories:
        raise Violation("arrays that were replaced are passed over in silence")
    torn = [TornArchiveWarning in {c for _, c in one.warned} for one in (opened, result)]
    if torn[0] != torn[1]:
        raise Violation(f"warns of a torn end: open {torn[0]}, iter_arrays {torn[1]}")
    return "read"


def _check_same(npz: npzkit.NpzFile, found: dict[str, Any]) -> None:
    if set(npz.files) != set(found):
        raise Violation(f"open: {npz.files}; iter_arrays: {list(found)}")
    for key, array in found.items():
        read = attempt(f"read {key!r}", npz.read, key)
        if isinstance(read.outcome, NpzkitError) or not is_same(read.value, array):
            raise Violation(f"{key!r}: open {shown(read.outcome)}; iter_arrays {shown(array)}")
