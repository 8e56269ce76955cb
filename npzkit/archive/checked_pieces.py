"""Large arrays of an archive, read piece by piece and checked.

Owns the check of their CRC-32, which reading a part alone does not make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from npzkit.codecs.checksum import crc32, crc32_combine
from npzkit.errors import StaleArchiveError
from npzkit.files.progress import Advance
from npzkit.files.threads import Pipeline, thread_count
from npzkit.format.array import array_bytes, read_header
from npzkit.reading import blocks

if TYPE_CHECKING:
    from npzkit.archive.lazyarray import LazyArray
    from npzkit.archive.npzfile import NpzFile
    from npzkit.members.info import ArrayInfo

T = TypeVar("T")

PIECE_SIZE = 1 << 20
"""Bytes of a piece of a stream."""


def checked_array(npz: NpzFile, key: str, advance: Advance) -> Any:
    """Return an array whose CRC-32 was checked; a lazy one if it is large.

    Parameters
    ----------
    npz : NpzFile
    key : str
    advance : callable
        Called with the number of bytes after each read.

    Raises
    ------
    NpzkitError
        As `npzkit.NpzFile.read`.
    """
    if not is_taken_by_parts(npz.info(key)):
        return npz.read(key)
    check_array(npz, key, advance)
    return npz.lazy(key)


def check_array(npz: NpzFile, key: str, advance: Advance) -> None:
    """Read an array once to check its CRC-32; see `checked_array`."""
    for opened in npz._streams(key):
        with opened as stream:
            while piece := stream.read(PIECE_SIZE):
                advance(len(piece))


def is_taken_by_parts(info: ArrayInfo) -> bool:
    """Whether an array is too large to be loaded completely."""
    return info.dtype is not None and not info.dtype.hasobject and info.nbytes > blocks.BLOCK_SIZE


def for_each_piece(
    npz: NpzFile,
    key: str,
    compute: Callable[[np.ndarray[Any, Any]], T],
    take: Callable[[T], None],
    advance: Advance,
    threads: int | None = None,
) -> None:
    """Compute something of each piece of an array on several threads, and check its CRC-32.

    The array is read once. A piece has a few megabytes and may have any shape.

    Parameters
    ----------
    npz : NpzFile
    key : str
        Of an array of plain values.
    compute : callable
        Called with each piece, on several threads.
    take : callable
        Called in this thread with each result, in the order of storage.
    advance : callable
        Called with the number of bytes after each read.
    threads : int, optional
        Number of threads; by default one per processor.

    Raises
    ------
    NpzkitError
        As `npzkit.NpzFile.read`.
    """
    info = npz.info(key)
    with Pipeline(thread_count(threads)) as pipeline:
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

        # Rows and compressed chunks do not end together: small pieces would read many chunks twice.
        size = 4 * PIECE_SIZE
        by_columns = bool(info.fortran_order)
        itemsize = lazy.dtype.itemsize
        for chunk in blocks.blocks(
            lazy.shape, itemsize, lazy.chunks, by_columns=by_columns, size=size
        ):
            pipeline.submit(partial(read, chunk), hand_on)
        pipeline.drain()
    if crc != info.crc32:
        # Raises what is wrong, as reading the complete array would.
        check_array(npz, key, lambda size: None)
        raise StaleArchiveError("the file changed while it was read", key=key)


def _header_bytes(npz: NpzFile, key: str) -> bytes:
    """Return the bytes before an array's data in its member."""
    with npz.stream(key) as stream:
        size = read_header(stream, npz._limits.header_size).data_offset
    with npz.stream(key) as stream:
        return stream.read(size)


def _stream_pieces(npz: NpzFile, key: str) -> Iterator[np.ndarray[Any, Any]]:
    """Yield an array's items in the order of storage; the CRC-32 is checked at the end."""
    info = npz.info(key)
    dtype: Any = info.dtype
    step = max(PIECE_SIZE // dtype.itemsize, 1)
    count = info.nbytes // dtype.itemsize
    with npz.stream(key) as opened:
        stream: Any = opened
        read_header(stream, npz._limits.header_size)
        for start in range(0, count, step):
            piece = np.empty(min(step, count - start), dtype)
            # The stream raises if it ends early.
            stream.readinto(piece.view(np.uint8).data)
            yield piece
        # The check is at the end.
        stream.read(1)


def approach(
    lazy: LazyArray,
    last: tuple[int, ...],
    by_columns: bool,
    advance: Advance,
    begin: int = 0,
    size: int | None = None,
) -> int:
    """Read a lazy array up to an item, and report progress meanwhile.

    Parameters
    ----------
    lazy : LazyArray
        Of a member that is not seekable.
    last : tuple of int
        Its position.
    by_columns : bool
        The array is in Fortran's order.
    advance : callable
        Called with the bytes of each read.
    begin : int, default 0
        What an earlier call returned: items before it are not read again.
    size : int, optional
        Bytes between two reads, by default those of a block.

    Returns
    -------
    int
        How many items were passed, in the order of storage.
    """
    end = blocks.place_of(last, lazy.shape, by_columns=by_columns)
    step = max((size or blocks.BLOCK_SIZE) // max(lazy.dtype.itemsize, 1), 1)
    for place in range(begin + step, end, step):
        lazy[blocks.position_at(place, lazy.shape, by_columns=by_columns)]
        advance(step * lazy.dtype.itemsize)
    return max(begin, end)
