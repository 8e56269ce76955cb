"""A part of an array, and its statistics: extremes, mean, deviation, a histogram.

Owns which items an index and a field stand for, and how they are read: once, in pieces,
on all cores. `npzkit.display.piecewise` measures a piece, and
`npzkit.display.histograms` owns the result.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from npzkit.archive.lazyarray import LazyArray
from npzkit.codecs.checksum import crc32, crc32_combine
from npzkit.datasets.opening import opened
from npzkit.display.blocks import PIECE_SIZE, approach, blocks, check_array, place_of
from npzkit.display.histograms import Statistics, statistics_of
from npzkit.display.piecewise import PieceStatistics, is_numeric, measure
from npzkit.display.sampling import read_habits
from npzkit.errors import StaleArchiveError, UnsupportedError
from npzkit.files.progress import Advance, Meter
from npzkit.files.threads import Pipeline
from npzkit.format.array import array_bytes, read_header
from npzkit.limits import Limits, thread_count
from npzkit.reading.indexing import count_of, select

if TYPE_CHECKING:
    from npzkit.typing import ArchiveLike, Progress

_T = TypeVar("_T")


class ArrayPart:
    """A part of an array, of which shape and dtype are known before it is read.

    Parameters
    ----------
    source : LazyArray or numpy.ndarray
    items : object, optional
        The index: integers, slices, Ellipsis, and one list or array of integers
        or booleans at most. What a list or an array chooses is read at once.
    field : str, optional
        The field of a structured array.
    fortran_order : bool, default False
        Whether the array is stored by columns; `pieces` are read in this order.

    Attributes
    ----------
    shape : tuple of int
        Before the field is taken.
    dtype : numpy.dtype
        The field's, where there is one.
    field_shape : tuple of int
        The axes that each item of a field has of its own.
    source : LazyArray or numpy.ndarray
        What it is a part of.
    is_whole : bool
        Whether it is all of the array, or of one field.

    Raises
    ------
    IndexError
        The array has no such part or field.
    """

    def __init__(
        self, source: Any, items: Any = (), field: str | None = None, *, fortran_order: bool = False
    ) -> None:
        # A new axis changes no value.
        items = tuple(
            item for item in (items if isinstance(items, tuple) else (items,)) if item is not None
        )
        self._field, self._fortran_order = field, fortran_order
        dtype = _field_dtype(source.dtype, field)
        self.dtype: np.dtype[Any] = dtype.base
        self.field_shape = dtype.shape
        self.is_whole = not items
        selection = select(items, source.shape)
        chosen = [item for item in selection.index if item is not ...]
        if any(isinstance(item, np.ndarray) for item in chosen):
            source = source[items]
            self._items: list[Any] = list(map(range, source.shape))
        else:
            self._items = list(map(operator.getitem, selection.positions, chosen))
        self.source = source
        self.shape = tuple(count_of(item) for item in self._items if isinstance(item, range))

    @property
    def size(self) -> int:
        """How many items it has, fields' own axes aside."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes that are read for all of it."""
        return self.size * int(self.source.dtype.itemsize)

    def read(self, *slices: slice) -> Any:
        """Return what a slice for each axis chooses of the part, or all of it."""
        left = iter(slices or [slice(None)] * len(self.shape))
        chosen = tuple(
            _as_slice(item[next(left)]) if isinstance(item, range) else item for item in self._items
        )
        return self.field_of(self.source[chosen])

    def field_of(self, values: Any) -> Any:
        """Return the field that is wanted of some of the array's items."""
        return values if self._field is None else values[self._field]

    def _approach(self, progress: Progress) -> None:
        """Read what comes before it, if it cannot be reached in another way.

        That is so if the array is compressed without a seek index. `progress` is called with
        the bytes done and the total.
        """
        source, habits = self.source, read_habits(self.source)
        if habits.is_in_order and self.size and source.shape:
            last = tuple(
                item if isinstance(item, int) else max(item[0], item[-1]) for item in self._items
            )
            place = place_of(last, source.shape, by_columns=habits.by_columns)
            meter = Meter(progress, place * source.dtype.itemsize)
            approach(source, last, habits.by_columns, meter.add)

    def pieces(self) -> Iterator[Any]:
        """Yield all of it, about a megabyte at a time, in the order in which it is stored."""
        if self.is_whole and hasattr(self.source, "iter_chunks"):
            chunks = self.source.iter_chunks()
        else:
            chunks = blocks(
                self.shape, self.source.dtype.itemsize, by_columns=self._fortran_order,
                size=PIECE_SIZE,
            )  # fmt: skip
        for chunk in chunks:
            yield self.read(*chunk)


def _field_dtype(dtype: np.dtype[Any], field: str | None) -> np.dtype[Any]:
    if field is None:
        return dtype
    if dtype.names is None or field not in dtype.names:
        has = ", ".join(map(repr, dtype.names)) if dtype.names else "no fields"
        raise IndexError(f"the array has no field {field!r}; it has {has}")
    return dtype[field]


def _as_slice(positions: range) -> slice:
    """Return the slice that chooses these positions."""
    if not positions:
        return slice(0, 0)
    stop = positions.stop if positions.stop >= 0 else None
    return slice(positions.start, stop, positions.step)


def statistics(
    file: ArchiveLike,
    key: str,
    index: Any = (),
    *,
    field: str | None = None,
    limits: Limits | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Statistics:
    """Compute the statistics of an array, or of a part of it, without loading it.

    The array is read once, in pieces of a few megabytes, on all cores, and its
    CRC-32 is checked. The CRC-32 of a part cannot be checked.

    Parameters
    ----------
    file : path, URL, bytes-like, file object or NpzFile
    key : str
        Of an array of numbers, bools, dates or durations.
    index : object, optional
        The part to measure, as in ``npz.lazy(key)[index]``. By default the whole
        array. What a list or an array of indices chooses is read at once.
    field : str, optional
        The field to measure, of a structured array.
    limits : Limits, optional
        Upper bounds on sizes and counts; not with an `NpzFile`, which has its own.
    threads : int, optional
        By default one per processor.
    progress : callable, optional
        Called with the bytes done and the total, in this thread: every few
        megabytes, and at the end.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Returns
    -------
    Statistics

    Raises
    ------
    UnsupportedError
        The array, or its field, does not hold numbers.
    IndexError
        The array has no such part or field.
    OSError, NpzkitError
        As `npzkit.open` and `NpzFile.read`.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"w": np.array([[1.0, 2.0, np.nan], [4.0, 6.0, np.inf]])})
    >>> found = npzkit.statistics(stream, "w")
    >>> found.count, found.min, found.mean, found.nan_count, found.inf_count
    (6, np.float64(1.0), 3.25, 1, 1)
    >>> found.histogram.counts.sum()
    np.int64(4)
    >>> npzkit.statistics(stream, "w", np.s_[:, 0]).mean
    2.5
    """
    with opened(file, limits=limits, storage_options=storage_options) as npz:
        info = npz.info(key)
        has_objects = info.dtype is not None and info.dtype.hasobject
        source = npz.read(key) if has_objects else npz.lazy(key)
        part = ArrayPart(source, index, field, fortran_order=bool(info.fortran_order))
        if not is_numeric(part.dtype):
            fields = [f for f in part.dtype.names or () if is_numeric(part.dtype[f].base)]
            names = ", ".join(map(repr, fields[:10]))
            raise UnsupportedError(
                "statistics need numbers", path=npz._archive.path, key=key, found=part.dtype,
                remedy=f"Choose a field that holds numbers: {names}." if names else None,
            )  # fmt: skip
        found, meter = PieceStatistics(), Meter(progress, part.nbytes)
        if part.is_whole and isinstance(source, LazyArray):
            _for_each_piece(
                npz, key, lambda piece: measure(part.field_of(piece), part.dtype), found.merge,
                meter.add, threads,
            )  # fmt: skip
        else:
            with Pipeline(thread_count(threads)) as pipeline:
                for piece in part.pieces():
                    pipeline.submit(partial(measure, piece, part.dtype), found.merge)
                    meter.add(np.asarray(piece).nbytes)
        meter.finish()
        return statistics_of(found, part.dtype)


def _for_each_piece(
    npz: Any,
    key: str,
    compute: Callable[[np.ndarray[Any, Any]], _T],
    take: Callable[[_T], None],
    advance: Advance,
    threads: int | None,
) -> None:
    """Compute something of each piece of an array on several threads, and check its CRC-32.

    The array is read once. A piece has a few megabytes and may have any shape. The results are
    taken in the order of storage, in this thread.
    """
    info = npz.info(key)
    if not info.seekable:
        with Pipeline(thread_count(threads)) as pipeline:
            for piece in _stream_pieces(npz, key):
                pipeline.submit(partial(compute, piece), take)
                advance(piece.nbytes)
        return
    lazy = npz.lazy(key)
    crc = crc32(_header_bytes(npz, key))

    def read(chunk: tuple[slice, ...]) -> tuple[_T, int, int]:
        values = np.asarray(lazy[chunk])
        return compute(values), crc32(array_bytes(values)), values.nbytes

    def hand_on(found: tuple[_T, int, int]) -> None:
        nonlocal crc
        result, piece_crc, size = found
        crc = crc32_combine(crc, piece_crc, size)
        take(result)
        advance(size)

    with Pipeline(thread_count(threads)) as pipeline:
        for chunk in _large_blocks(lazy, by_columns=bool(info.fortran_order)):
            pipeline.submit(partial(read, chunk), hand_on)
        pipeline.drain()
    # A .npy file has none.
    if info.crc32 not in (None, crc):
        # Raises what is wrong, as reading the complete array would.
        check_array(npz, key, lambda size: None)
        raise StaleArchiveError("the file changed while it was read", key=key)


def _large_blocks(lazy: Any, *, by_columns: bool) -> Iterator[tuple[slice, ...]]:
    # Rows and compressed chunks do not end together: small pieces would read many chunks twice.
    size = 4 * PIECE_SIZE
    return blocks(
        lazy.shape, lazy.dtype.itemsize, lazy.chunks, by_columns=by_columns, size=size
    )  # fmt: skip


class _Remembered:
    """A stream that keeps the bytes which were read."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.data = stream, b""

    def read(self, size: int) -> bytes:
        found: bytes = self._stream.read(size)
        self.data += found
        return found


def _header_bytes(npz: Any, key: str) -> bytes:
    """Return the bytes before an array's data in its member."""
    with npz.stream(key) as stream:
        remembered = _Remembered(stream)
        read_header(remembered, npz._limits.header_size)
        return remembered.data


def _stream_pieces(npz: Any, key: str) -> Iterator[np.ndarray[Any, Any]]:
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
