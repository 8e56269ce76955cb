"""Arrays to NPY bytes and back, over any file-like object.

Owns the data behind the header: its layout, its order, its pickle. Knows no
zip. Nothing is allocated from a shape that the stream has not backed with
bytes: a stream of unknown length is read into a buffer that grows with it.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import sys
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from npzkit.errors import NpyFormatError, PickleRefusedError, UnsupportedError
from npzkit.files.sink import write_all
from npzkit.format.descr import dtype_to_descr, is_legacy
from npzkit.format.header import (
    CUT_REMEDY,
    MAGIC_LEN,
    NpyHeader,
    check_version,
    end_of_data,
    format_header,
    header_size,
    is_fortran_ordered,
    parse_header,
    warn_python2,
)
from npzkit.format.literal import parse_literal
from npzkit.limits import DEFAULT_HEADER_SIZE

__all__ = [
    "array_bytes",
    "array_header",
    "check_savable",
    "data_pieces",
    "empty_array",
    "needs_pickle",
    "npy_header",
    "read_array",
    "read_bytes",
    "read_growing",
    "read_header",
    "read_pickle",
    "read_rest_of_header",
    "shaped",
    "write_array",
]

PIECE_SIZE = 2**24
"""Bytes of a strided array made contiguous at a time, as in numpy."""

_PLAIN_STREAMS = (io.FileIO, io.BufferedReader, io.BufferedRandom, io.BytesIO)
"""Whose ``readinto`` is used. A subclass may have changed ``read`` alone, which
is all that numpy asks of a stream."""

_FIRST_ALLOCATION = 2**24
"""Bytes believed of a stream whose length cannot be known."""


def needs_pickle(dtype: np.dtype[Any]) -> bool:
    """Whether elements of `dtype` are Python objects rather than bytes."""
    return dtype.hasobject or not is_legacy(dtype)


def check_savable(array: np.ndarray[Any, Any], *, allow_pickle: bool) -> None:
    """Raise before anything is written where `array` cannot be saved whole.

    Raises
    ------
    PickleRefusedError
        Its elements are Python objects, and `allow_pickle` is false.
    UnsupportedError
        It is a masked array, whose mask NPY has no place for, or its fields
        overlap or lie out of order.
    """
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise UnsupportedError(
            "a masked array would lose its mask",
            remedy="Save array.data and numpy.ma.getmaskarray(array) under two keys, "
            "or array.filled().",
        )
    if array.dtype.names is not None:
        _check_describable(array.dtype)
    if allow_pickle or not needs_pickle(array.dtype):
        return
    if is_legacy(array.dtype):
        raise PickleRefusedError(
            "Object arrays cannot be saved when allow_pickle=False",
            found=str(array.dtype),
            remedy="Convert it (array.astype(float), array.astype(str)), or pass "
            "allow_pickle=True; whoever reads the file must then trust it.",
        )
    raise PickleRefusedError(
        "User-defined dtypes cannot be saved when allow_pickle=False",
        found=str(array.dtype),
        remedy="Convert it to a dtype of fixed size, such as array.astype('U') for strings, "
        "or pass allow_pickle=True.",
    )


def _check_describable(dtype: np.dtype[Any]) -> None:
    """Raise UnsupportedError where a structure has no ``descr``."""
    try:
        _ = dtype.descr
    except ValueError as error:
        raise UnsupportedError(
            f"NPY cannot describe this structure ({error})",
            found=str(dtype),
            remedy="Save numpy.lib.recfunctions.repack_fields(array), or each field by itself.",
        ) from error
    for name in dtype.names or ():
        for title in dtype.fields[name][2:]:  # type: ignore[index]
            _check_title(title)
        if dtype[name].base.names is not None:
            _check_describable(dtype[name].base)


def _check_title(title: Any) -> None:
    """Raise UnsupportedError for a title that no header could be read with."""
    try:
        parse_literal(repr(title))
    except NpyFormatError as error:
        raise UnsupportedError(
            "a field's title would make the header unreadable",
            found=repr(title)[:80],
            expected="a string",
            remedy="Rename it.",
        ) from error


def array_header(array: np.ndarray[Any, Any], version: tuple[int, int] | None = None) -> bytes:
    """Return the NPY header of an array."""
    return npy_header(array.dtype, array.shape, is_fortran_ordered(array), version)


def npy_header(
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    fortran_order: bool,
    version: tuple[int, int] | None = None,
) -> bytes:
    """Return the NPY header of an array that need not be there."""
    if version is None and dtype.names is None and dtype.metadata is None and is_legacy(dtype):
        return _simple_header(dtype, shape, fortran_order)
    fields = {"descr": dtype_to_descr(dtype), "fortran_order": fortran_order, "shape": shape}
    return format_header(fields, version)


@functools.lru_cache(maxsize=4096)
def _simple_header(dtype: np.dtype[Any], shape: tuple[int, ...], fortran_order: bool) -> bytes:
    """Format the header of an array without fields; checkpoints repeat few of them."""
    descr = dtype_to_descr(dtype)
    return format_header({"descr": descr, "fortran_order": fortran_order, "shape": shape})


def data_pieces(array: np.ndarray[Any, Any]) -> list[memoryview] | Iterator[memoryview]:
    """Return an array's data in file order, as memory to be written.

    A contiguous array gives a list of one view onto its own memory. Any other
    gives an iterator of fresh copies of at most `PIECE_SIZE` bytes, made as it
    is advanced, so that no second whole array is ever held.
    """
    flags = array.flags
    if flags.f_contiguous and not flags.c_contiguous:
        array = array.T
    if array.nbytes == 0:
        return []
    if array.flags.c_contiguous:
        return [_bytes_of(array)]
    return _copied_pieces(array)


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    """View C-contiguous memory as bytes, whatever the dtype."""
    flat = array.view(np.ndarray).reshape(-1)
    return flat.view(np.uint8).data


def _copied_pieces(array: np.ndarray[Any, Any]) -> Iterator[memoryview]:
    """Copy a strided array in C order, a few rows or part of one at a time."""
    array = array.view(np.ndarray)
    row_size = array.nbytes // len(array)
    if row_size > PIECE_SIZE and array.ndim > 1:
        for row in array:
            yield from _copied_pieces(row)
        return
    step = max(PIECE_SIZE // row_size, 1)
    for start in range(0, len(array), step):
        yield _bytes_of(np.ascontiguousarray(array[start : start + step]))


def empty_array(header: NpyHeader) -> np.ndarray[Any, Any]:
    """Allocate the array that a header describes, uninitialised and writable."""
    return shaped(header, None)


def shaped(header: NpyHeader, buffer: Any, offset: int = 0) -> np.ndarray[Any, Any]:
    """Return the header's array over `buffer`, or over memory of its own.

    Uses ``np.ndarray`` because ``np.empty`` turns ``S0`` into ``S1``.
    """
    order = cast(Any, "F" if header.fortran_order else "C")
    dtype = header.fresh().dtype
    try:
        if buffer is None and dtype.itemsize:
            return np.empty(header.shape, dtype, order)
        return np.ndarray(header.shape, dtype, buffer, offset, order=order)
    except (ValueError, MemoryError, OverflowError) as error:
        raise NpyFormatError(
            f"an array of this shape cannot be made here ({error})", found=header.shape
        ) from error


def array_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """View a contiguous array's memory, C or Fortran, as writable bytes."""
    flat = array.T if array.flags.f_contiguous and not array.flags.c_contiguous else array
    return _bytes_of(flat) if array.nbytes else memoryview(bytearray())


def write_array(
    fp: Any,
    array: np.ndarray[Any, Any],
    version: tuple[int, int] | None = None,
    allow_pickle: bool = True,
    pickle_kwargs: dict[str, Any] | None = None,
) -> None:
    """Write an array as NPY: header, then data.

    Parameters
    ----------
    fp : file object
        Needs only ``write``.
    array : numpy.ndarray
        Not copied where it is contiguous; else a piece at a time.
    version : (int, int), optional
        Format version; None takes the oldest that can hold the array.
    allow_pickle : bool, default True
        Whether an array of objects may be written, by pickle.
    pickle_kwargs : dict, optional
        Passed on to `pickle.dump`.

    Raises
    ------
    NpyFormatError
        No such version, or the version cannot hold the header.
    PickleRefusedError
        The array needs pickle and `allow_pickle` is false. Nothing is written
        then; numpy has written the header by that time.
    UnsupportedError
        A masked array; numpy drops the mask. Fields that overlap or lie out of
        order, where numpy raises a bare ``ValueError``.

    Notes
    -----
    The bytes are `numpy.lib.format.write_array`'s, but for two dtypes of
    ml_dtypes: float8_e5m2 and complex32 are written as voids, ``|V1`` and
    ``|V4``, where numpy writes ``<f1`` and ``<W4``, which nothing can read.

    Examples
    --------
    >>> stream = io.BytesIO()
    >>> write_array(stream, np.arange(3, dtype="i2"))
    >>> stream.getvalue()[-6:].hex()
    '000001000200'
    """
    check_version(version)
    check_savable(array, allow_pickle=allow_pickle)
    write_all(fp, array_header(array, version))
    if needs_pickle(array.dtype):
        pickle.dump(array, fp, protocol=4, **(pickle_kwargs or {}))
        return
    for piece in data_pieces(array):
        write_all(fp, piece)


def read_array(
    fp: Any,
    allow_pickle: bool = False,
    pickle_kwargs: dict[str, Any] | None = None,
    *,
    max_header_size: int = DEFAULT_HEADER_SIZE,
) -> Any:
    """Read one array from an NPY stream, leaving it right behind the array.

    Parameters
    ----------
    fp : file object
        Needs only ``read``. Short reads are repeated.
    allow_pickle : bool, default False
        Whether an array of objects may be read. Unpickling runs code from the
        file.
    pickle_kwargs : dict, optional
        Passed on to `pickle.load`: ``encoding`` and ``fix_imports`` for what
        Python 2 wrote.
    max_header_size : int, default 10_000
        Largest header, in bytes. Ignored with `allow_pickle`.

    Returns
    -------
    numpy.ndarray
        Fresh, writable, in the order it was saved in.

    Raises
    ------
    NpyFormatError
        Bad magic, version or header, or the stream ends early.
    LimitExceededError
        The header is larger than `max_header_size`; it is not read.
    PickleRefusedError
        The array needs pickle and `allow_pickle` is false.

    Examples
    --------
    >>> stream = io.BytesIO()
    >>> write_array(stream, np.eye(2))
    >>> _ = stream.seek(0)
    >>> read_array(stream)
    array([[1., 0.],
           [0., 1.]])
    """
    header = read_header(fp, None if allow_pickle else max_header_size)
    warn_python2(header)
    if header.dtype.hasobject:
        return read_pickle(fp, allow_pickle=allow_pickle, pickle_kwargs=pickle_kwargs)
    data = read_growing(fp, header)
    return shaped(header, data)


def read_header(fp: Any, limit: int | None) -> NpyHeader:
    """Read magic and header, and not a byte of data."""
    prefix = read_bytes(fp, MAGIC_LEN, "magic string")
    return read_rest_of_header(fp, prefix, limit)


def read_rest_of_header(fp: Any, prefix: bytes, limit: int | None) -> NpyHeader:
    """Read the header behind a magic that was read already."""
    if prefix[:6] == b"\x93NUMPY":
        check_version((prefix[6], prefix[7]))
        length_size = 2 if prefix[6] == 1 else 4
        prefix += read_bytes(fp, length_size, "array header length")
    size = header_size(prefix, limit)
    return parse_header(prefix + read_bytes(fp, size - len(prefix), "array header"))


def read_pickle(fp: Any, *, allow_pickle: bool, pickle_kwargs: dict[str, Any] | None) -> Any:
    """Unpickle the data of an array of objects, where that is allowed.

    What pickle itself raises passes through: a caller who allowed it sees
    ``ImportError`` or ``UnicodeError`` as from `numpy.load`.
    """
    if not allow_pickle:
        raise PickleRefusedError(
            "Object arrays cannot be loaded when allow_pickle=False",
            remedy="Pass allow_pickle=True only if you trust the file: "
            "unpickling runs code from it.",
        )
    try:
        return pickle.load(fp, **(pickle_kwargs or {}))
    except UnicodeError as error:
        raise UnicodeError(
            f"Unpickling a python object failed: {error!r}. "
            "You may need to pass the encoding= option"
        ) from error


def read_growing(fp: Any, header: NpyHeader) -> np.ndarray[Any, Any]:
    """Read the data into a buffer that never runs far ahead of the stream."""
    is_backed = _size_left(fp) >= header.nbytes
    buffer = np.empty(header.nbytes if is_backed else min(header.nbytes, _FIRST_ALLOCATION), "u1")
    done = 0
    while done < header.nbytes:
        if done == len(buffer):
            buffer.resize(min(header.nbytes, 2 * len(buffer)), refcheck=False)
        count = read_some(fp, buffer.data[done:])
        if not count:
            itemsize = header.dtype.itemsize
            raise NpyFormatError(
                f"Failed to read all data for array. Expected {header.shape} = "
                f"{header.nbytes // itemsize} elements, could only read "
                f"{done // itemsize} elements. (file seems not fully written?)",
                found=f"{done} bytes",
                expected=f"{header.nbytes} bytes",
                remedy=CUT_REMEDY,
            )
        done += count
    return buffer


def _size_left(fp: Any) -> int:
    """Bytes that a plain stream is known to hold from here on; 0 where unknown."""
    if type(fp) not in _PLAIN_STREAMS or not fp.seekable():
        return 0
    position = fp.tell()
    end = fp.seek(0, os.SEEK_END)
    fp.seek(position)
    return int(end - position)


def read_some(fp: Any, view: memoryview) -> int:
    """Read at least one byte into `view`; 0 at the end of the stream."""
    while True:
        try:
            if type(fp) in _PLAIN_STREAMS:
                count = fp.readinto(view)
            else:
                # Bounded, so that a wrapper is never asked for gigabytes.
                piece = fp.read(min(len(view), _FIRST_ALLOCATION))
                count = None if piece is None else len(piece)
                view[: count or 0] = piece or b""
        except BlockingIOError:
            continue
        if count is not None:
            return int(count)


def read_bytes(fp: Any, size: int, what: str) -> bytes:
    """Read exactly `size` bytes of `what`, over short reads."""
    data = bytearray()
    while len(data) < size:
        try:
            piece = fp.read(size - len(data))
        except BlockingIOError:
            continue
        if piece is not None and not piece:
            raise end_of_data(what, size, len(data))
        data += piece or b""
    return bytes(data)
