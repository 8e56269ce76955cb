"""What is in a .npy file: one array, or several that np.save wrote one after the other.

Owns where each of them is, and what bytes after them seem to be. They are never passed over.
"""

from __future__ import annotations

import builtins
import math
import os
import stat
from typing import Any, BinaryIO

import numpy as np

from npzkit import format as npy
from npzkit.conversion.arrays import InFile
from npzkit.errors import (
    ConversionError,
    NpyFormatError,
    NpzkitError,
    PickleRefusedError,
    format_count,
)
from npzkit.format.array import read_header
from npzkit.limits import DEFAULT_HEADER_SIZE

_BY_NUMPY = (
    "Open the file, read its arrays with np.load, one after the other, and save them with keys."
)
_AS_A_FILE = (
    "Copy the stream to an .npy file, and pack that: the arrays of a file get the keys KEY.0, "
    "KEY.1 and so on."
)
_PIECE_SIZE = 1 << 16
_COUNTED_SIZE = 1 << 26
"""Bytes of a stream after its array that are counted: it may never end."""
_SHOWN_LENGTH = 30
"""Characters of text that are quoted."""


def arrays_in_file(path: str) -> list[InFile]:
    """Return where the arrays of a file are; nothing if it is no file on a disk, or a pickle.

    Raises
    ------
    ConversionError
        Bytes that are no array follow.
    NpyFormatError
        A header is wrong, or the last array is incomplete.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        return []
    try:
        arrays = [InFile.of_map(npy.open_memmap(path, mode="r"))]
    except PickleRefusedError:
        return []
    with builtins.open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        while (end := arrays[-1].offset + arrays[-1].nbytes) < size:
            file.seek(end)
            arrays.append(_next_array(file, path, arrays[-1], size - end))
    return arrays


def _next_array(file: BinaryIO, path: str, last: InFile, left: int) -> InFile:
    """Return where the array is that begins at the file's position, `left` bytes before its end."""
    start = file.tell()
    data = file.read(_PIECE_SIZE)
    file.seek(start)
    if not data.startswith(npy.MAGIC_PREFIX):
        raise _follows(data, f"{left:,}", left, last.dtype, last.shape)
    try:
        header = read_header(file, DEFAULT_HEADER_SIZE)
    except NpzkitError as error:
        raise error.locate(offset=start) from error.__cause__
    found = InFile(path, header.dtype, file.tell(), header.shape, header.fortran_order)
    if header.dtype.hasobject:
        raise ConversionError(
            f"an array of Python objects follows the array, at byte {start:,} of the file",
            remedy=_BY_NUMPY,
        )
    if found.offset - start + found.nbytes > left:
        raise NpyFormatError(
            f"the array at byte {start:,} of the file is incomplete",
            found=f"{left:,} bytes", expected=f"{found.offset - start + found.nbytes:,} bytes",
            remedy="Read those before it with np.load, and save them with keys.",
        )  # fmt: skip
    return found


def check_end(stream: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raise ConversionError if bytes follow the array that was read from a stream."""
    data = first = bytes(stream.read(_PIECE_SIZE) or b"")
    count = 0
    while data and count <= _COUNTED_SIZE:
        count += len(data)
        data = stream.read(_PIECE_SIZE)
    if count:
        more = "more than " if data else ""
        raise _follows(first, f"{more}{count:,}", 0 if data else count, dtype, shape)


def _follows(
    data: bytes, count: str, size: int, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> ConversionError:
    """Return the error for bytes after an array, which begin with `data`."""
    verb = "byte follows" if count == "1" else "bytes follow"
    if data.startswith(npy.MAGIC_PREFIX):
        return ConversionError(
            f"{count} {verb} the array: another array",
            remedy=_BY_NUMPY if dtype.hasobject else _AS_A_FILE,
        )
    return ConversionError(
        f"{count} {verb} the array: {_kind_of(data)}{_rows(size, dtype, shape)}",
        remedy="Read the array with np.load and save it again, which leaves them out; or correct "
        "the shape in the header, if they are rows of the array.",
    )


def _kind_of(data: bytes) -> str:
    if not any(data):
        return "zeros"
    text = data[:_SHOWN_LENGTH].decode("utf-8", "ignore")
    if len(text) > len(data[:_SHOWN_LENGTH]) // 2 and text.replace("\n", "").isprintable():
        return f"text, {text!r}"
    return "not text"


def _rows(size: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """Return how many rows of the array some bytes would be; empty if it is no whole number."""
    row_size = math.prod(shape[1:]) * dtype.itemsize
    if not size or not shape or not row_size or size % row_size:
        return ""
    return f", as many as {format_count(size // row_size, 'more row')} of {row_size:,} bytes"
