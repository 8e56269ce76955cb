"""What must hold of any NPY file: read whole, in pieces, as a map, and by numpy."""

from __future__ import annotations

import io
import zlib
from typing import Any

import npzkit
import numpy as np
from calls import CRASHES_NUMPY, Result, Violation, attempt, by_numpy, folder_of, is_same, shown
from differences import Case, explain
from npzkit.errors import NotMappableError, NpzkitError

__all__ = ["check_npy"]


class _Trickle:
    """A stream that gives few bytes at a time."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self._stream.read(min(size, 7) if size >= 0 else 7)


def check_npy(data: bytes, thorough: bool) -> list[str]:
    """Hold `npzkit.format` against `numpy.lib.format`, and against itself."""
    chosen = zlib.crc32(data)
    stream = io.BytesIO(data)
    ours = attempt("read_array", npzkit.format.read_array, stream)
    if thorough or chosen % 8 == 0:
        again = attempt("read_array in pieces", npzkit.format.read_array, _Trickle(data))
        if type(again.error) is not type(ours.error) or not is_same(again.value, ours.value):
            raise Violation(f"whole: {shown(ours.outcome)}; in pieces: {shown(again.outcome)}")
    if thorough:
        _check_map(data, ours)
    refused = f"refused: {type(ours.error).__name__}"
    # Most of the time here is numpy's, on what it refuses as well.
    is_left_out = chosen % 4 and not thorough
    if ours.error is not None and (is_left_out or CRASHES_NUMPY.search(data)):
        return [f"{refused}, numpy not asked"]
    their_stream = io.BytesIO(data)
    theirs = by_numpy(np.lib.format.read_array, their_stream, allow_pickle=False)
    if ours.error is not None and isinstance(theirs, BaseException):
        return [refused]
    if ours.error is None and not isinstance(theirs, BaseException):
        if not is_same(ours.value, theirs, ordered=True):
            raise Violation(f"npzkit: {shown(ours.value)}, numpy: {shown(theirs)}")
        if stream.tell() != their_stream.tell():
            raise Violation(f"npzkit read to {stream.tell()}, numpy to {their_stream.tell()}")
        return ["agreed"]
    name = explain("header", Case(data, ours.outcome, theirs))
    if name is None:
        raise Violation(f"npzkit: {shown(ours.outcome)}; numpy: {shown(theirs)}")
    return [f"difference: {name}"]


def _check_map(data: bytes, ours: Result) -> None:
    """The same file by its path, mapped."""
    with folder_of(data) as (_, path):
        mapped = attempt("open_memmap", _mapped, path)
        if mapped.error is None and ours.error is not None:
            raise Violation(f"mapped, but not read: {shown(ours.error)}")
        if mapped.error is None and not is_same(np.asarray(mapped.value), ours.value):
            raise Violation("a map holds other data than the array that was read")


def _mapped(path: str) -> Any:
    try:
        return npzkit.format.open_memmap(path, "r")
    except (ValueError, OverflowError) as error:
        # numpy.memmap's own words for an array of no bytes.
        if isinstance(error, NpzkitError) or "empty file" not in str(error):
            raise
        raise NotMappableError(str(error)) from error
