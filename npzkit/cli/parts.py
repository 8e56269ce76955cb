"""Arrays taken part by part, so that none has to be in memory as a whole.

Owns how large a part is, and that what is read of an archive was checked.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np

import npzkit
from npzkit.codecs.methods import crc32, crc32_combine
from npzkit.errors import StaleArchiveError
from npzkit.files.parallel import Pipeline, thread_count
from npzkit.files.progress import Advance
from npzkit.format.array import array_bytes, read_header
from npzkit.limits import DEFAULT_HEADER_SIZE

__all__ = [
    "PART_SIZE",
    "PIECE_SIZE",
    "InFile",
    "approach",
    "block_shape",
    "blocks",
    "check_array",
    "checked_array",
    "for_each_piece",
    "is_taken_by_parts",
    "make_file",
]

T = TypeVar("T")

PART_SIZE = 1 << 25
"""Bytes that are held of an array at a time, roughly."""
PIECE_SIZE = 1 << 20
"""Bytes of a piece of a stream."""


def block_shape(
    shape: tuple[int, ...],
    itemsize: int,
    least: tuple[int, ...] | None = None,
    *,
    by_columns: bool = False,
    size: int | None = None,
) -> tuple[int, ...]:
    """Return the shape of a part of an array.

    Parameters
    ----------
    shape : tuple of int
    itemsize : int
    least : tuple of int, optional
        The shape of a part that is read as one: others are multiples of it,
        where that is not larger than `size`.
    by_columns : bool, default False
        In Fortran's order.
    size : int, optional
        Bytes of a part, roughly; `PART_SIZE` by default.
    """
    size = PART_SIZE if size is None else size
    step = [1] * len(shape)
    if least is not None and math.prod(least) * itemsize <= size:
        step = [max(min(part, n), 1) for part, n in zip(least, shape, strict=True)]
    for axis in _inner_first(shape, by_columns=by_columns):
        room = size // (math.prod(step) * max(itemsize, 1))
        step[axis] = max(min(step[axis] * max(room, 1), shape[axis]), 1)
    return tuple(step)


def _inner_first(shape: tuple[int, ...], *, by_columns: bool) -> list[int]:
    """Return the axes, that along which items lie next to each other first."""
    axes = list(range(len(shape)))
    return axes if by_columns else axes[::-1]


def blocks(
    shape: tuple[int, ...],
    itemsize: int,
    least: tuple[int, ...] | None = None,
    *,
    by_columns: bool = False,
    size: int | None = None,
) -> Iterator[tuple[slice, ...]]:
    """Yield indices of parts that together are an array, in its order of storage.

    Parameters as of `block_shape`.
    """
    if 0 in shape:
        return
    step = block_shape(shape, itemsize, least, by_columns=by_columns, size=size)
    axes = _inner_first(shape, by_columns=by_columns)[::-1]
    for start in _starts(axes, shape, step):
        yield tuple(
            slice(start[axis], min(start[axis] + step[axis], shape[axis]))
            for axis in range(len(shape))
        )


def _starts(
    axes: list[int], shape: tuple[int, ...], step: tuple[int, ...]
) -> Iterator[dict[int, int]]:
    """Yield where parts begin; one by one, as there may be more than there is memory for."""
    if not axes:
        yield {}
        return
    first, *rest = axes
    for start in range(0, shape[first], step[first]):
        for inner in _starts(rest, shape, step):
            yield {first: start, **inner}


_NO_RESERVATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV)
"""From systems that cannot reserve room in a file."""


class InFile:
    """An array in a file, mapped for as long as a part of it is read or written.

    What a map has shown stays in memory until it is closed.

    Parameters
    ----------
    path : str
    dtype : numpy.dtype
    offset : int
        Of its first byte.
    shape : tuple of int
    fortran_order : bool, default False
    """

    def __init__(
        self, path: str | os.PathLike[str], dtype: np.dtype[Any], offset: int,
        shape: tuple[int, ...], *, fortran_order: bool = False,
    ) -> None:  # fmt: skip
        self._path, self._dtype, self._offset = path, dtype, offset
        self._shape, self._fortran_order = shape, fortran_order

    @classmethod
    def of_map(cls, array: np.memmap[Any, Any]) -> InFile:
        """Return the array that a map of a whole array shows."""
        path: Any = array.filename
        by_columns = array.flags.f_contiguous and not array.flags.c_contiguous
        return cls(path, array.dtype, array.offset, array.shape, fortran_order=by_columns)

    def _map(self, mode: Any) -> np.ndarray[Any, Any]:
        if 0 in self._shape:
            return np.empty(self._shape, self._dtype)
        order: Any = "F" if self._fortran_order else "C"
        return np.memmap(self._path, self._dtype, mode, self._offset, self._shape, order)

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        return np.array(self._map("r")[index], order="K", subok=False)

    def __setitem__(self, index: tuple[slice, ...], values: np.ndarray[Any, Any]) -> None:
        self._map("r+")[index] = values


def make_file(path: str, head: bytes, size: int) -> None:
    """Make a file of some bytes and `size` zeros.

    Raises
    ------
    OSError
        There is no room: a map of a file that has none ends the process.
    """
    with open(path, "xb") as file:
        file.write(head)
        file.flush()
        if not size:
            return
        try:
            os.posix_fallocate(file.fileno(), len(head), size)
        except (AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_RESERVATION:
                raise
            for start in range(0, size, PART_SIZE):
                file.write(bytes(min(PART_SIZE, size - start)))


def checked_array(npz: npzkit.NpzFile, key: str, advance: Advance) -> Any:
    """Return an array whose CRC-32 was compared, or a lazy one if it is large.

    Parameters
    ----------
    npz : NpzFile
    key : str
    advance : callable
        Called with each number of bytes that were read to compare it.

    Raises
    ------
    NpzkitError
        As `npzkit.NpzFile.read`.
    """
    if not is_taken_by_parts(npz.info(key)):
        return npz.read(key)
    check_array(npz, key, advance)
    return npz.lazy(key)


def check_array(npz: npzkit.NpzFile, key: str, advance: Advance) -> None:
    """Read an array once and compare its CRC-32, which parts of it are not compared with.

    Parameters, and what is raised, as of `checked_array`.
    """
    with npz.stream(key) as stream:
        while piece := stream.read(PIECE_SIZE):
            advance(len(piece))


def is_taken_by_parts(info: npzkit.ArrayInfo) -> bool:
    """Whether an array is too large to be in memory as a whole."""
    return info.dtype is not None and not info.dtype.hasobject and info.nbytes > PART_SIZE


def for_each_piece(
    npz: npzkit.NpzFile,
    key: str,
    compute: Callable[[np.ndarray[Any, Any]], T],
    take: Callable[[T], None],
    advance: Advance,
) -> None:
    """Compute something of each piece of an array, on all cores, and compare its CRC-32.

    The array is read once. A piece has a few megabytes; nothing is said of its shape.

    Parameters
    ----------
    npz : NpzFile
    key : str
        Of an array of plain values.
    compute : callable
        Called with each piece, on several threads.
    take : callable
        Called here with each result, in the pieces' order of storage.
    advance : callable
        Called with each number of bytes that were read.

    Raises
    ------
    NpzkitError
        As `npzkit.NpzFile.read`.
    """
    info = npz.info(key)
    with Pipeline(thread_count(None)) as pipeline:
        if not info.seekable:
            for piece in _stream_pieces(npz, key):
                pipeline.submit(partial(compute, piece), take)
                advance(piece.nbytes)
            return
        lazy = npz.lazy(key)
        crc = crc32(_header_bytes(npz, key))

        def read(chunk: tuple[slice, ...]) -> tuple[T, int, int]:
            values = np.asarray(lazy[chunk])
            return compute(values), crc32(array_bytes(values)), values.nbytes

        def hand_on(found: tuple[T, int, int]) -> None:
            nonlocal crc
            result, piece_crc, size = found
            crc = crc32_combine(crc, piece_crc, size)
            take(result)
            advance(size)

        # Rows do not end where compressed chunks do: of few chunks at a time many are read twice.
        size = 4 * PIECE_SIZE
        by_columns = bool(info.fortran_order)
        itemsize = lazy.dtype.itemsize
        for chunk in blocks(lazy.shape, itemsize, lazy.chunks, by_columns=by_columns, size=size):
            pipeline.submit(partial(read, chunk), hand_on)
        pipeline.drain()
    if crc != info.crc32:
        # Says what is wrong, as reading all of it would.
        check_array(npz, key, lambda size: None)
        raise StaleArchiveError("the file changed while it was read", key=key)


def _header_bytes(npz: npzkit.NpzFile, key: str) -> bytes:
    """Return what comes before an array's data in its member."""
    with npz.stream(key) as stream:
        size = read_header(stream, DEFAULT_HEADER_SIZE).data_offset
    with npz.stream(key) as stream:
        return stream.read(size)


def _stream_pieces(npz: npzkit.NpzFile, key: str) -> Iterator[np.ndarray[Any, Any]]:
    """Yield an array's items in their order of storage; their CRC-32 is compared at the end."""
    info = npz.info(key)
    dtype: Any = info.dtype
    step = max(PIECE_SIZE // dtype.itemsize, 1)
    count = info.nbytes // dtype.itemsize
    with npz.stream(key) as opened:
        stream: Any = opened
        read_header(stream, DEFAULT_HEADER_SIZE)
        for start in range(0, count, step):
            piece = np.empty(min(step, count - start), dtype)
            # The stream raises if it ends early.
            stream.readinto(piece.view(np.uint8).data)
            yield piece
        # Its end is what is checked.
        stream.read(1)


def approach(
    lazy: npzkit.LazyArray, last: tuple[int, ...], by_columns: bool, advance: Advance
) -> None:
    """Read up to an item, where all that lies before it has to be read, and count that.

    Parameters
    ----------
    lazy : LazyArray
        Of a member that is not seekable.
    last : tuple of int
        Its position.
    by_columns : bool
        The array is in Fortran's order.
    advance : callable
    """
    order: Any = "F" if by_columns else "C"
    end = int(np.ravel_multi_index(last, lazy.shape, order=order))
    step = max(PART_SIZE // max(lazy.dtype.itemsize, 1), 1)
    for place in range(step, end, step):
        lazy[tuple(map(int, np.unravel_index(place, lazy.shape, order=order)))]
        advance(step * lazy.dtype.itemsize)
