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

from npzkit.errors import UnsupportedError
from npzkit.files.block_reading import crc32_at
from npzkit.files.disk import File
from npzkit.files.sink import Sink
from npzkit.writing import created_array
from npzkit.writing.array_plan import Plan
from npzkit.writing.created_array import CreatedArray, Owner, row_range, without_lead
from npzkit.zip.writer import ZipWriter


class FilledArray(CreatedArray):
    """An array whose place in the file is known, to be filled in any order.

    Parts that are not written are zeros. Other processes, forked or given the
    array by pickle, write to the same file. Only the process that created it
    can seal it, once they are done.

    Parameters
    ----------
    key, shape, dtype
    fortran_order : bool
    place : Sink or File
        The file to write to.
    offset : int
        Where the array begins in the file.
    seal, discard : callable
        Complete the member, or give the archive up because of an error.
    """

    def __init__(
        self,
        key: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        fortran_order: bool,
        place: Sink | File,
        offset: int,
        seal: Callable[[], None],
        discard: Callable[[BaseException], None],
    ) -> None:
        super().__init__(key, shape, dtype, seal, discard)
        self._fortran_order = fortran_order
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
        value = self._apart(value)
        rows = None if self._fortran_order else row_range(index, self.shape)
        if rows is None:
            self._assign(index, value)
            return
        start, stop = rows
        target = (stop - start, *self.shape[1:])
        array = np.broadcast_to(without_lead(value, len(target)), target)
        row_size = math.prod(self.shape[1:]) * self.dtype.itemsize
        offset = self._offset + start * row_size
        for block in self._blocks(array):
            self._place.patch(offset, block)
            offset += len(block)

    def _apart(self, value: Any) -> np.ndarray[Any, Any]:
        """Return the value as an array that does not change while it is written."""
        array = self._as_array(value)
        if self._mapped is not None and np.may_share_memory(array, self._mapped[0]):
            return array.copy()
        return array

    def _append(self, rows: np.ndarray[Any, Any]) -> None:
        if self._appended + len(rows) > self.shape[0]:
            raise ValueError(
                f"the array {self.key!r} has {self.shape[0]} rows: {self._appended} were "
                f"appended, {len(rows)} more do not fit"
            )
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

    def _assign(self, index: Any, value: Any) -> None:
        """Assign through the map, some rows at a time if the index allows it."""
        array, pages = self._map()
        for part, values in _split(index, value, array):
            array[part] = values
            _give_back(pages)

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

    def _seal(self) -> None:
        self._mapped = None
        super()._seal()

    def _discard(self, error: BaseException) -> None:
        self._mapped = None
        super()._discard(error)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._place.path is None:
            raise TypeError("an array in a file object cannot be filled by other processes")
        fields = self.key, self.shape, self.dtype, self._fortran_order
        return _attach, (fields, self._place.path, self._offset)


def _attach(
    fields: tuple[str, tuple[int, ...], np.dtype[Any], bool], path: str, offset: int
) -> FilledArray:
    """Open the file that another process writes, to fill one of its arrays."""

    def nothing(*_: object) -> None:
        """Seal and discard nothing: only the creator does that."""

    return FilledArray(*fields, File(path), offset, nothing, nothing)


def _split(
    index: Any, value: Any, array: np.ndarray[Any, Any]
) -> Iterator[tuple[Any, np.ndarray[Any, Any]]]:
    """Split an assignment into some rows at a time, if the first axis is a slice."""
    values = np.asanyarray(value)
    parts = index if isinstance(index, tuple) else (index,)
    basic = all(isinstance(part, (int, np.integer, slice)) for part in parts)
    if not parts or not basic or not isinstance(parts[0], slice):
        yield index, values
        return
    rows = range(*parts[0].indices(len(array)))
    row_size = max(array.strides[0] * abs(rows.step), array.nbytes // max(len(array), 1), 1)
    step = max(created_array.BLOCK_SIZE // row_size, 1)
    if array.flags.f_contiguous or len(rows) <= step:
        yield index, values
        return
    target = array[index].shape
    values = np.broadcast_to(without_lead(values, len(target)), target)
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        stop: int | None = some.stop
        if stop is not None and stop < 0:
            stop = None
        yield (slice(some.start, stop, some.step), *parts[1:]), values[start : start + step]


def _give_back(pages: mmap.mmap) -> None:
    """Drop written pages from this process's memory; the file keeps them."""
    if hasattr(pages, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def begin_filled(plan: Plan, writer: ZipWriter, threads: int, owner: Owner) -> FilledArray:
    """Reserve room for an array of known shape, and write its header there."""
    sink, size = writer.sink, plan.size
    assert size is not None  # noqa: S101 - an array of unknown size grows
    member = writer.reserve_member(plan.name, size, plan.extra)
    sink.patch(member.offset, plan.head)

    def seal() -> None:
        member.seal(crc32_at(sink, member.offset, member.size, threads), plan.head)

    filled = FilledArray(
        plan.key, plan.shape, plan.dtype, plan.fortran_order, sink,
        member.offset + len(plan.head), lambda: owner.seal(filled, seal), owner.discard,
    )  # fmt: skip
    return filled
