"""MATLAB's files of version 5, by scipy: one variable per array.

Owns what MATLAB changes in an array. Struct and cell arrays are not arrays here.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import struct
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import numpy as np
import scipy.io
import scipy.io.matlab

from npzkit import format as npy
from npzkit.conversion.arrays import Array, Contents, FileOptions, Say, is_c_number, unreadable
from npzkit.conversion.refusals import Claims
from npzkit.errors import AS_MATLAB_7, GET_AGAIN, SKIP, ConversionError, FormatError, format_dtype

PADS_TEXT = True
"""Text is padded with spaces, and arrays have two axes at least."""
_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_CLASSES = {
    "double": "f8", "single": "f4", "logical": "?", "int8": "i1", "uint8": "u1", "int16": "i2",
    "uint16": "u2", "int32": "i4", "uint32": "u4", "int64": "i8", "uint64": "u8", "char": "U1",
}  # fmt: skip
"""MATLAB's classes that are arrays of plain values."""
_LONGEST_NAME = 63
_HDF5_VERSION = 2
_HEAD_SIZE = 128
_MATRIX, _COMPRESSED = 14, 15
"""Kinds of element that are variables."""
_OLD_WIDTHS = {0: 8, 1: 4, 2: 4, 3: 2, 4: 2, 5: 1}
"""Bytes of a value in version 4, by the second digit of its kind."""
_OLD_SPARSE, _LARGEST_KIND = 2, 5000


class _Alone(io.RawIOBase):
    """The head of a file and one variable, as a file of its own: else scipy searches for each."""

    def __init__(self, file: BinaryIO, head: bytes, offset: int, length: int) -> None:
        self._file, self._head, self._offset = file, head, offset
        self._position, self._size = 0, len(head) + length

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        view, begin = memoryview(buffer), self._position - len(self._head)
        if begin < 0:
            piece = self._head[begin:][: len(view)]
            view[: len(piece)] = piece
            count = len(piece)
        else:
            self._file.seek(self._offset + begin)
            count = cast("Any", self._file).readinto(view[: max(self._size - self._position, 0)])
        self._position += count
        return count


_Open = Callable[[], _Alone]
"""Returns a variable from its beginning."""


@contextlib.contextmanager
def read(path: str, say: Say, claims: Claims) -> Iterator[Contents]:
    """Open a file."""
    # scipy's own errors for a path do not name it.
    with open(path, "rb") as file:
        version, _ = scipy.io.matlab.matfile_version(file)
        if version == _HDF5_VERSION:
            raise ConversionError(
                "the file has version 7.3 of MATLAB's format, which is HDF5", remedy=AS_MATLAB_7
            )
        size = os.fstat(file.fileno()).st_size
        places = _places(file, size) if version else _old_places(file, size)
        yield Contents({}, _arrays(places, claims))


def _places(file: BinaryIO, size: int) -> Iterator[_Open]:
    """Yield the variables of version 5."""
    head = file.read(_HEAD_SIZE)
    form = "<II" if head.endswith(b"IM") else ">II"
    position = _HEAD_SIZE
    while position < size:
        kind, length = struct.unpack(form, _bytes_at(file, position, 8, size))
        if kind not in (_MATRIX, _COMPRESSED):
            raise FormatError(
                "a variable of the file is damaged", offset=position, found=kind,
                expected=f"{_MATRIX} or {_COMPRESSED}",
            )  # fmt: skip
        yield partial(_Alone, file, head, position, _checked(8 + length, position, size))
        position += 8 + length


def _old_places(file: BinaryIO, size: int) -> Iterator[_Open]:
    """Yield the variables of version 4, which has no head."""
    position = 0
    while position < size:
        head = _bytes_at(file, position, 20, size)
        # The first number says which machine wrote the file.
        order = "<" if 0 <= struct.unpack("<i", head[:4])[0] <= _LARGEST_KIND else ">"
        kind, rows, columns, is_complex, name_size = struct.unpack(f"{order}5i", head)
        width = _OLD_WIDTHS.get(kind // 10 % 10)
        if width is None or min(rows, columns, name_size) < 0:
            raise FormatError("a variable of the file is damaged", offset=position)
        parts = 2 if is_complex == 1 and kind % 10 != _OLD_SPARSE else 1
        length = 20 + name_size + rows * columns * width * parts
        yield partial(_Alone, file, b"", position, _checked(length, position, size))
        position += length


def _bytes_at(file: BinaryIO, position: int, length: int, size: int) -> bytes:
    file.seek(position)
    return file.read(_checked(length, position, size))


def _checked(length: int, position: int, size: int) -> int:
    """Return the length of a part of the file, which is not beyond its end."""
    if position + length > size:
        raise FormatError(
            "the file is cut off or damaged: a variable extends past the end of the file",
            offset=position, remedy=f"{GET_AGAIN}.",
        )  # fmt: skip
    return length


def _arrays(places: Iterator[_Open], claims: Claims) -> Iterator[Array]:
    for place in places:
        for key, shape, kind in scipy.io.whosmat(io.BufferedReader(place())):
            if kind not in _CLASSES:
                what = f"a MATLAB {kind} is not an array of plain values"
                yield unreadable(key, shape, what)
                continue
            claims.add(key, math.prod(shape) * np.dtype(_CLASSES[kind]).itemsize)
            # Only the values show whether they are complex, and how long strings are.
            load = partial(_load, place, key, kind)
            array = load()
            yield Array(key, array.shape, array.dtype, load,
                        fortran_order=array.ndim > 1 and array.flags.f_contiguous)  # fmt: skip
            # Not kept while the next one is read.
            del array


def _load(place: _Open, key: str, kind: str) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = scipy.io.loadmat(io.BufferedReader(place()))[key]
    dtype = np.dtype(bool) if kind == "logical" else npy.drop_metadata(array.dtype)
    return array.astype(dtype, copy=False)


def why_no_name(key: str) -> str | None:
    """Return why a key is not a name of MATLAB's, or None."""
    if not _VARIABLE.fullmatch(key):
        return "MATLAB's names are letters, digits and _, and begin with a letter"
    if len(key) > _LONGEST_NAME:
        return f"MATLAB's names have at most {_LONGEST_NAME} characters, and its key has {len(key)}"
    return None


def why_unfit(array: Array) -> str | None:
    """Return why MATLAB has no class for an array, or None."""
    dtype = array.dtype
    if dtype.kind == "U" and len(array.shape) > 1:
        return "MATLAB keeps text only as a one-dimensional array of strings"
    if dtype.kind == "U" or is_c_number(dtype):
        return None
    if dtype.names:
        return "structured arrays (records) are not written to .mat"
    return f"MATLAB has no class for {format_dtype(dtype, 60)}"


def write(path: str, contents: Contents, options: FileOptions, say: Say) -> None:
    """Write a file."""
    _tell(contents, say)
    keys = [""]

    def items() -> Iterator[tuple[str, Any]]:
        for array in contents.arrays:
            keys[0] = array.key
            yield array.key, array.whole()

    try:
        # All that savemat asks of it: each array is read when its turn comes.
        variables = SimpleNamespace(items=items)
        with open(path, "xb") as file:
            scipy.io.savemat(
                file, variables, do_compression=bool(options.method), oned_as="row"
            )  # fmt: skip
    except UnicodeError as error:
        raise ConversionError(
            "its text is not valid Unicode", key=keys[0], remedy="Leave it out with " + SKIP + "."
        ) from error


def _tell(contents: Contents, say: Say) -> None:
    if contents.metadata or any(array.attrs for array in contents.arrays):
        say("metadata and attributes are not kept: MATLAB's files have no place for them")
    for array in contents.arrays:
        if array.dtype.kind == "U":
            say(f"{array.key!r}: text becomes rows of one length, padded with spaces")
