"""An array whose place in the file is known, filled in any order and by any process.

Owns stored arrays of known shape: how parts are written and read back, how the
member's room is reserved, and how it is sealed. Knows nothing of the other
members, nor of who may write at a time.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from npzkit.codecs.coding import CHECKED_SIZE
from npzkit.errors import UnsupportedError
from npzkit.files.block_reading import chunk_crc32s_at
from npzkit.files.disk import File
from npzkit.files.sink import Sink
from npzkit.writing import created_array
from npzkit.writing.array_plan import Plan
from npzkit.writing.created_array import CreatedArray, broadcast, row_range
from npzkit.zip.writer import ZipWriter


class FilledArray(CreatedArray):
    """An array whose place in the file is known, to be filled in any order.

    Parts that are not written are zeros. Other processes, forked or given the
    array by pickle, write to the same file. Only the process that created it
    can seal it, once they are done.

    Parameters
    ----------
    plan : Plan
    place : Sink or File
        The file to write to.
    offset : int
        Where the array begins in the file.
    owner, complete
        As of `CreatedArray`.
    """

    def __init__(
        self,
        plan: Plan,
        place: Sink | File,
        offset: int,
        owner: Any = None,
        complete: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(plan, owner, complete)
        self._fortran_order = plan.fortran_order
        self._place, self._offset = place, offset
        self._mapped: tuple[np.memmap[Any, Any], mmap.mmap] | None = None

    def __getitem__(self, index: Any) -> Any:
        """Read a part back, as a fresh array."""
        self._check_open()
        array, pages = self._map()
        part = np.array(array[index], subok=False)
        _give_back(pages)
        return part[()] if not part.ndim else part

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("the array is read from the file; dst.memmap() needs no copy")
        return np.asarray(self[...], dtype)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write a part, given by any index that numpy assigns to.

        Consecutive rows are written to the file directly, in bounded memory.
        Other parts are written through a memory map of the file.
        """
        self._check_open()
        value = self._as_array(value)
        if self._mapped is not None and np.may_share_memory(value, self._mapped[0]):
            # It must not change while it is written.
            value = value.copy()
        rows = None if self._fortran_order else row_range(index, self.shape)
        if rows is None:
            array, pages = self._map()
            # Some rows at a time, if the index allows it.
            for part, some, values in _split(index, value, array):
                part[some] = values
                _give_back(pages)
            return
        start, stop = rows
        row_size = math.prod(self.shape[1:]) * self.dtype.itemsize
        offset = self._offset + start * row_size
        for block in self._blocks(broadcast(value, (stop - start, *self.shape[1:]))):
            self._place.patch(offset, block)
            offset += len(block)

    def _append(self, rows: np.ndarray[Any, Any]) -> None:
        self[self._appended : self._appended + len(rows)] = rows

    def memmap(self) -> np.memmap[Any, Any]:
        """Return the array as a writable memory map of the file.

        Returns
        -------
        numpy.memmap
            Valid until the array is sealed. Changes made through it afterwards
            make the array's CRC-32 wrong.

        Raises
        ------
        UnsupportedError
            The archive is written to a file object.
        ClosedArchiveError
            The array is sealed, or its archive is discarded.
        """
        self._check_open()
        return self._map()[0]

    def _map(self) -> tuple[np.memmap[Any, Any], mmap.mmap]:
        if self._mapped is None:
            if self._place.descriptor is None:
                raise UnsupportedError(
                    "only whole rows can be written to an array in a file object",
                    key=self.key,
                    remedy="Write the archive to a path.",
                )
            skipped = self._offset % mmap.ALLOCATIONGRANULARITY
            size = math.prod(self.shape) * self.dtype.itemsize
            if size:
                pages = mmap.mmap(
                    self._place.descriptor, size + skipped, offset=self._offset - skipped
                )
            else:
                # The file may end here, and an empty range cannot be mapped.
                skipped, pages = 0, mmap.mmap(-1, mmap.PAGESIZE)
            order = cast(Any, "F" if self._fortran_order else "C")
            array: np.memmap[Any, Any] = np.ndarray.__new__(
                np.memmap, self.shape, self.dtype, pages, skipped, None, order
            )
            array.offset, array.mode = self._offset, "r+"
            self._mapped = array, pages
        return self._mapped

    def _forget(self) -> None:
        super()._forget()
        self._mapped = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._place.path is None:
            raise TypeError("an array in a file object cannot be filled by other processes")
        # Attributes are for the process that seals it.
        return _attach, (self._plan._replace(attrs=None), self._place.path, self._offset)


def _attach(plan: Plan, path: str, offset: int) -> FilledArray:
    """Return an array that another process created, to be filled."""
    return FilledArray(plan, File(path), offset)


def _split(
    index: Any, value: Any, array: np.ndarray[Any, Any]
) -> Iterator[tuple[np.ndarray[Any, Any], Any, np.ndarray[Any, Any]]]:
    """Yield arrays, indices and values to assign: some rows at a time, if the first axis is sliced.

    What is yielded may be a view of a part of the array.
    """
    values = np.asanyarray(value)
    parts = index if isinstance(index, tuple) else (index,)
    basic = all(isinstance(part, (int, np.integer, slice)) for part in parts)
    if not parts or not basic or not isinstance(parts[0], slice) or array.flags.f_contiguous:
        yield array, index, values
        return
    view = array[index]
    row_size = max(abs(view.strides[0]), array.nbytes // max(len(array), 1), 1)
    step = max(created_array.BLOCK_SIZE // row_size, 1)
    values = broadcast(values, view.shape)
    for start in range(0, len(view), step):
        yield view, slice(start, start + step), values[start : start + step]


def _give_back(pages: mmap.mmap) -> None:
    """Drop written pages from this process's memory; the file keeps them."""
    if hasattr(pages, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def begin_filled(plan: Plan, writer: ZipWriter, threads: int, owner: Any) -> FilledArray:
    """Reserve room for an array of known shape, and write its header there."""
    sink, size = writer.sink, plan.size
    assert size is not None  # noqa: S101 - an array of unknown size grows
    is_seekable = plan.coding.is_seekable
    member = writer.reserve_member(plan.name, size, plan.extra, is_seekable=is_seekable)
    sink.patch(member.offset, plan.head)

    def complete() -> None:
        crc32s = chunk_crc32s_at(sink, member.offset, member.size, CHECKED_SIZE, threads)
        member.seal(crc32s, plan.head)

    return FilledArray(plan, sink, member.offset + len(plan.head), owner, complete)
