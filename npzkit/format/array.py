"""Reading and writing arrays as NPY, with any file object.

Owns the data after the header: its layout, order and pickle. Knows nothing
about zip. A shape in a header never decides how much is allocated: if the length
of the stream is unknown, the buffer grows while data is read.
"""

from __future__ import annotations

import functools
import io
import math
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np

from npzkit.errors import ALLOW_PICKLE, Advice, NpyFormatError, PickleRefusedError, UnsupportedError
from npzkit.files.file_objects import patiently, write_all
from npzkit.format.descr import dtype_to_descr, is_legacy
from npzkit.format.header import (
    MAGIC_LEN,
    NpyHeader,
    check_version,
    end_of_data,
    format_header,
    header_size,
    parse_header,
    warn_python2,
)
from npzkit.format.literal import parse_literal
from npzkit.imported import imported
from npzkit.limits import DEFAULT_HEADER_SIZE

PIECE_SIZE = 2**24
"""Bytes of a strided array to make contiguous at a time, as in NumPy."""

_PLAIN_STREAMS = (io.FileIO, io.BufferedReader, io.BufferedRandom, io.BytesIO)
"""Types whose ``readinto`` is used. A subclass may change only ``read``, which is all
that NumPy needs."""

_LARGEST_ARRAY = sys.maxsize
"""Bytes of an array, on this system."""
_WITHOUT_PICKLE = Advice("when allow_pickle=False", "without --allow-pickle")
MASKED = "a masked array would lose its mask"
"""What is wrong with an array of which values are masked."""
_FIRST_ALLOCATION = 2**24
"""Bytes to allocate first for a stream of unknown length."""
_GROWTH = 16
"""Times the bytes that came that are allocated next."""


def needs_pickle(dtype: np.dtype[Any]) -> bool:
    """Return whether elements of `dtype` are Python objects instead of bytes."""
    return dtype.hasobject or not is_legacy(dtype)


def check_savable(array: np.ndarray[Any, Any], *, allow_pickle: bool) -> None:
    """Check that `array` can be saved completely, before anything is written.

    Raises
    ------
    PickleRefusedError
        The elements are Python objects, and `allow_pickle` is false.
    UnsupportedError
        Values of the array are masked, and NPY cannot store a mask, or its fields
        overlap or are out of order.
    """
    masked = imported("numpy.ma")
    if (
        masked is not None
        and isinstance(array, masked.MaskedArray)
        and (needs_pickle(array.dtype) or b"\1" in masked.getmask(array).tobytes())
    ):
        raise UnsupportedError(
            MASKED,
            remedy="Save array.data and numpy.ma.getmaskarray(array) under two keys, "
            "or array.filled().",
        )
    if array.dtype.names is not None:
        _check_describable(array.dtype)
    if allow_pickle or not needs_pickle(array.dtype):
        return
    if is_legacy(array.dtype):
        raise PickleRefusedError(
            "Object arrays cannot be saved " + _WITHOUT_PICKLE,
            found=str(array.dtype),
            remedy=f"{_instead_of(array)} "
            + ALLOW_PICKLE
            + "; readers of the file must then trust it.",
        )
    raise PickleRefusedError(
        "User-defined dtypes cannot be saved " + _WITHOUT_PICKLE,
        found=str(array.dtype),
        remedy="Convert it to a dtype of fixed size, strings by array.astype(object).astype('U'), "
        "or pass " + ALLOW_PICKLE + ".",
    )


def _instead_of(array: np.ndarray[Any, Any]) -> str:
    """Return what to save in the place of an array of Python objects."""
    first = array.flat[0] if array.size and array.dtype.names is None else None
    if isinstance(first, np.ndarray):
        return "Save a list of its arrays (npzkit.save takes lists: list(array)), or pass"
    return "Convert it (array.astype(float); array.astype(str) if no text is missing), or pass"


def _check_describable(dtype: np.dtype[Any]) -> None:
    """Raise UnsupportedError if a structure has no ``descr``."""
    try:
        _ = dtype.descr
    except ValueError as error:
        raise UnsupportedError(
            f"NPY cannot describe this structure ({error})",
            found=str(dtype),
            remedy="Save "
            + Advice("numpy.lib.recfunctions.repack_fields(array, recurse=True), or ", "")
            + "each field separately.",
        ) from error
    for name in dtype.names or ():
        for title in dtype.fields[name][2:]:  # type: ignore[index]
            _check_title(title)
        if dtype[name].base.names is not None:
            _check_describable(dtype[name].base)


def _check_title(title: Any) -> None:
    """Raise UnsupportedError for a title that would make the header unreadable."""
    try:
        parse_literal(repr(title))
    except NpyFormatError as error:
        raise UnsupportedError(
            "a field's title would make the header unreadable",
            found=repr(title)[:80],
            expected="a string",
            remedy="Change the title to a string.",
        ) from error


def array_header(array: np.ndarray[Any, Any], version: tuple[int, int] | None = None) -> bytes:
    """Return the NPY header of an array."""
    return npy_header(array.dtype, array.shape, array.flags.fnc, version)


def npy_header(
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    fortran_order: bool,
    version: tuple[int, int] | None = None,
) -> bytes:
    """Return the NPY header for a dtype, shape and order."""
    if version is None and dtype.names is None and dtype.metadata is None and is_legacy(dtype):
        return simple_header(dtype, shape, fortran_order)
    fields = {"descr": dtype_to_descr(dtype), "fortran_order": fortran_order, "shape": shape}
    return format_header(fields, version)


@functools.lru_cache(maxsize=4096)
def simple_header(dtype: np.dtype[Any], shape: tuple[int, ...], fortran_order: bool) -> bytes:
    """Return the header of an array without fields. Checkpoints repeat a few of them."""
    descr = dtype_to_descr(dtype)
    return format_header({"descr": descr, "fortran_order": fortran_order, "shape": shape})


def data_pieces(array: np.ndarray[Any, Any]) -> list[memoryview] | Iterator[memoryview]:
    """Return the data of an array in file order, as buffers to write.

    For a contiguous array this is a list of one view of its memory. For any
    other array it is an iterator of copies of at most `PIECE_SIZE` bytes, so
    that the array is never copied as a whole.
    """
    if array.flags.fnc:
        array = array.T
    if array.nbytes == 0:
        return []
    if array.flags.c_contiguous:
        return [_bytes_of(array)]
    return _copied_pieces(array)


def npy_pieces(array: np.ndarray[Any, Any]) -> tuple[Any, int]:
    """Return an array as NPY: buffers to write, the header first, and their size in bytes.

    An array of Python objects is pickled now.
    """
    header = array_header(array)
    if needs_pickle(array.dtype):
        stream = io.BytesIO()
        pickle.dump(array, stream, protocol=4)
        pickled = stream.getbuffer()
        return [header, pickled], len(header) + len(pickled)
    pieces = data_pieces(array)
    size = len(header) + array.nbytes
    return ([header, *pieces] if isinstance(pieces, list) else chain([header], pieces)), size


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    """Return C-contiguous memory as bytes, for any dtype."""
    flat = array.view(np.ndarray).reshape(-1)
    return flat.view(np.uint8).data


def _copied_pieces(array: np.ndarray[Any, Any]) -> Iterator[memoryview]:
    """Yield copies of a strided array in C order, some rows or part of a row at a time."""
    array = array.view(np.ndarray)
    row_size = array.nbytes // len(array)
    if row_size > PIECE_SIZE and array.ndim > 1:
        for row in array:
            yield from _copied_pieces(row)
        return
    step = max(PIECE_SIZE // row_size, 1)
    for start in range(0, len(array), step):
        yield _bytes_of(np.ascontiguousarray(array[start : start + step]))


def shaped(header: NpyHeader, buffer: Any = None, offset: int = 0) -> np.ndarray[Any, Any]:
    """Return the array that a header describes, in `buffer` or in new, uninitialised memory.

    Uses ``np.ndarray`` because ``np.empty`` turns ``S0`` into ``S1``.
    """
    order: Literal["C", "F"] = "F" if header.fortran_order else "C"
    dtype = header.dtype if header.dtype.names is None else header.fresh().dtype
    try:
        if buffer is None and dtype.itemsize:
            return np.empty(header.shape, dtype, order)
        return np.ndarray(header.shape, dtype, buffer, offset, None, order)
    except (ValueError, OverflowError) as error:
        raise impossible_array(header.shape, dtype, error) from error


def check_addressable(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise UnsupportedError for an array that is too large for a 32-bit system, and no other."""
    if _LARGEST_ARRAY < described_size(shape, dtype) < 1 << 63:
        raise UnsupportedError(
            "the array is too large for this 32-bit system",
            found=f"shape {shape} of {dtype}",
            expected=f"at most {_LARGEST_ARRAY} bytes",
            remedy="Use a 64-bit Python, or read a part: npz.lazy(key)[index].",
        )


def described_size(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Return what NumPy limits: the bytes, with lengths and sizes of zero taken for one."""
    return math.prod(length or 1 for length in shape) * (dtype.itemsize or 1)


def impossible_array(
    shape: tuple[int, ...], dtype: np.dtype[Any], error: Exception
) -> NpyFormatError:
    """Return the error for an array that NumPy could not create, or raise UnsupportedError."""
    check_addressable(shape, dtype)
    return NpyFormatError(f"NumPy cannot create an array of this shape ({error})", found=shape)


def array_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the memory of a contiguous array, C or Fortran, as writable bytes."""
    flat = array.T if array.flags.fnc else array
    return _bytes_of(flat) if array.nbytes else memoryview(bytearray())


def write_array(
    fp: Any,
    array: np.ndarray[Any, Any],
    version: tuple[int, int] | None = None,
    allow_pickle: bool = True,
    pickle_kwargs: dict[str, Any] | None = None,
) -> None:
    """Write an array as NPY: the header, then the data.

    Parameters
    ----------
    fp : file object
        Needs only ``write``.
    array : numpy.ndarray
        A contiguous array is not copied. Others are copied piece by piece.
    version : (int, int), optional
        Format version; None chooses the oldest one that can store the array.
    allow_pickle : bool, default True
        Whether an object array may be written, as a pickle.
    pickle_kwargs : dict, optional
        Passed to `pickle.dump`.

    Raises
    ------
    NpyFormatError
        The version does not exist, or cannot store the header.
    PickleRefusedError
        The array needs pickle and `allow_pickle` is false. Nothing is written
        in this case, while NumPy writes the header first.
    UnsupportedError
        Values of the array are masked; NumPy drops the mask. Or its fields overlap or are
        out of order; NumPy raises a plain ``ValueError``.

    Notes
    -----
    The bytes are the same as those of `numpy.lib.format.write_array`, except for
    two dtypes of ml_dtypes. float8_e5m2 and complex32 are written as ``|V1`` and
    ``|V4``. NumPy writes ``<f1`` and ``<W4``, which no program can read.

    Examples
    --------
    >>> stream = io.BytesIO()
    >>> write_array(stream, np.arange(3, dtype="i2"))
    >>> stream.getvalue()[-6:].hex()
    '000001000200'
    """
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
    """Read one array from an NPY stream, leaving the stream at the end of the array.

    Parameters
    ----------
    fp : file object
        Needs only ``read``. Short reads are repeated.
    allow_pickle : bool, default False
        Whether to read an object array. Unpickling can run code from the file.
    pickle_kwargs : dict, optional
        Passed to `pickle.load`, such as ``encoding`` and ``fix_imports`` for
        files that Python 2 wrote.
    max_header_size : int, default 10_000
        Largest header, in bytes. Ignored if `allow_pickle` is true.

    Returns
    -------
    numpy.ndarray
        A new, writable array, in the memory order that was saved.

    Raises
    ------
    NpyFormatError
        The magic string, version or header is invalid, or the stream ends early.
    LimitExceededError
        The header is larger than `max_header_size`. It is not read.
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
    """Read magic string and header, but no data."""
    prefix = read_bytes(fp, MAGIC_LEN, "magic string")
    return read_rest_of_header(fp, prefix, limit)


def read_rest_of_header(fp: Any, prefix: bytes, limit: int | None) -> NpyHeader:
    """Read the rest of the header after the magic string."""
    if prefix[:6] == b"\x93NUMPY":
        check_version((prefix[6], prefix[7]))
        length_size = 2 if prefix[6] == 1 else 4
        prefix += read_bytes(fp, length_size, "array header length")
    size = header_size(prefix, limit)
    return parse_header(prefix + read_bytes(fp, size - len(prefix), "array header"))


def read_pickle(fp: Any, *, allow_pickle: bool, pickle_kwargs: dict[str, Any] | None) -> Any:
    """Unpickle the data of an object array, if `allow_pickle` is true.

    Exceptions of pickle pass through, such as ``ImportError`` or
    ``UnicodeError``, as in `numpy.load`.
    """
    if not allow_pickle:
        raise PickleRefusedError(
            "Object arrays cannot be loaded " + _WITHOUT_PICKLE,
            remedy="Pass "
            + ALLOW_PICKLE
            + " only if you trust the file: unpickling can run code from it.",
        )
    try:
        return pickle.load(fp, **(pickle_kwargs or {}))
    except UnicodeError as error:
        raise UnicodeError(
            f"Unpickling a python object failed: {error!r}. Python 2 may have written it: pass "
            "encoding='latin1' to npzkit.load or npzkit.load_tree, or "
            "pickle_kwargs={'encoding': 'latin1'} to npzkit.open"
        ) from error


def read_growing(
    fp: Any, header: NpyHeader, read: Callable[[memoryview], int] | None = None
) -> np.ndarray[Any, Any]:
    """Read the data into a buffer that grows with the stream, if its length is unknown.

    `read` fills a part of a buffer and returns the count, instead of `read_some`.
    """
    read = read or functools.partial(read_some, fp)
    is_backed = _size_left(fp) >= header.nbytes
    if is_backed:
        check_addressable(header.shape, header.dtype)
    buffer = np.empty(header.nbytes if is_backed else min(header.nbytes, _FIRST_ALLOCATION), "u1")
    done = 0
    while done < header.nbytes:
        if done == len(buffer):
            check_addressable(header.shape, header.dtype)
            buffer = _grown(buffer, header.nbytes)
        count = read(buffer.data[done:])
        if not count:
            itemsize = header.dtype.itemsize
            raise NpyFormatError(
                f"Failed to read all data for array. Expected {header.shape} = "
                f"{header.nbytes // itemsize} elements, could only read "
                f"{done // itemsize} elements. (file seems not fully written?)",
                found=f"{done} bytes",
                expected=f"{header.nbytes} bytes",
                remedy=header.cut_remedy,
            )
        done += count
    return buffer


def _grown(buffer: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """Return a full buffer with room for more of `size` bytes.

    Few steps copy little, and memory that is never filled is never touched. To
    resize the buffer would fill it with zeros first, which takes longer.
    """
    room = _GROWTH * len(buffer)
    larger = np.empty(size if size <= 2 * room else room, "u1")
    larger[: len(buffer)] = buffer
    return larger


def _size_left(fp: Any) -> int:
    """Return the bytes left in a plain stream; 0 if unknown."""
    if type(fp) not in _PLAIN_STREAMS or not fp.seekable():
        return 0
    position = fp.tell()
    end = fp.seek(0, os.SEEK_END)
    fp.seek(position)
    return int(end - position)


def read_some(fp: Any, view: memoryview) -> int:
    """Read at least one byte into `view`, and return the count; 0 at the end of the stream."""
    if type(fp) in _PLAIN_STREAMS:
        return int(patiently(fp.readinto, view))
    # Limited, so that a wrapper is never asked for gigabytes.
    piece = patiently(fp.read, min(len(view), _FIRST_ALLOCATION))
    view[: len(piece)] = piece
    return len(piece)


def read_bytes(fp: Any, size: int, what: str) -> bytes:
    """Read exactly `size` bytes of `what`, repeating short reads."""
    data = bytearray()
    while len(data) < size:
        piece = patiently(fp.read, size - len(data))
        if not piece:
            raise end_of_data(what, size, len(data))
        data += piece
    return bytes(data)
