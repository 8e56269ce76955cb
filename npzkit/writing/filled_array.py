"""An array whose place in the file is known, filled in any order and by any process.

Owns stored arrays of known shape: how parts are written and read back, how the
member's room is reserved, how it is sealed, and how another process knows that
it may still write. Knows nothing of the other members.

The process that creates the array writes in its turn, as everything that changes
the archive (`npzkit.archive.writer_state`). Any other process writes through a
file of its own, and only to the bytes of the array. Before each write it reads
the member's local header: until the array is sealed, a random number is there in
place of time and date. So who comes too late, after the array was sealed, or was
discarded and others wrote to its place, gets an error.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np

from npzkit.codecs.coding import CHECKED_SIZE
from npzkit.errors import ClosedArchiveError, UnsupportedError
from npzkit.files.block_reading import chunk_crc32s_at
from npzkit.files.disk import File, mapped
from npzkit.files.sink import Sink
from npzkit.members.rows import assigned
from npzkit.writing import created_array
from npzkit.writing.create_arguments import Plan
from npzkit.writing.created_array import CreatedArray, broadcast, row_range
from npzkit.zip.writer import ZipWriter


class ArrayPlace(NamedTuple):
    """Where other processes find an array that is being created.

    Attributes
    ----------
    paths : tuple of str
        The file is at one of them.
    inode : int
    offset : int
        Of the array's data.
    header_offset : int
    header : bytes
        The local header of the member, as it is until the array is sealed.
    """

    paths: tuple[str, ...]
    inode: int
    offset: int
    header_offset: int
    header: bytes

    def open(self) -> File | None:
        """Open the file; None if it is at none of the paths."""
        for path in self.paths:
            with contextlib.suppress(FileNotFoundError):
                file = File(path)
                if os.fstat(file.descriptor).st_ino == self.inode:
                    return file
                file.close()
        return None

    def is_in(self, file: File) -> bool:
        """Return whether the array is still being created there."""
        found = os.fstat(file.descriptor)
        size = len(self.header)
        # A new file that is given up is removed, an append is cut off.
        is_there = found.st_nlink > 0 and found.st_size >= self.offset
        return is_there and file.read_at(self.header_offset, size) == self.header


class FilledArray(CreatedArray):
    """An array whose place in the file is known, to be filled in any order.

    Parts that are not written are zeros. Other processes, forked or given the
    array by pickle, write to the same file. Only the process that created it
    can seal it, once they are done.

    Parameters
    ----------
    plan : Plan
    place : ArrayPlace
    sink : Sink, optional
        What the process that creates the array writes to.
    owner, complete
        As of `CreatedArray`.
    """

    def __init__(
        self,
        plan: Plan,
        place: ArrayPlace,
        sink: Sink | None = None,
        owner: Any = None,
        complete: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(plan, owner, complete)
        self._fortran_order = plan.fortran_order
        self._place, self._sink = place, sink
        self._file: Sink | File | None = sink
        self._mapped: tuple[np.memmap[Any, Any], mmap.mmap] | None = None

    def _in_turn(self, work: Callable[..., Any], *args: Any) -> Any:
        """Call what reads or writes the array's bytes, if and while it is being created."""
        self._check_open()
        if self._sink is not None and os.getpid() == self._process:
            return self._owner.alone(work, *args)
        # What was inherited shares its state and its position with the process that made it.
        if self._file is self._sink:
            self._file = self._other_place().open()
        if not isinstance(self._file, File) or not self._place.is_in(self._file):
            raise ClosedArchiveError(
                "the process that created the array has sealed or discarded it", key=self.key,
                remedy="Let that process wait until all others have written their parts.",
            )  # fmt: skip
        return work(*args)

    def _other_place(self) -> ArrayPlace:
        """Return where another process finds the array now."""
        paths = self._place.paths if self._sink is None else self._sink.paths
        if not paths:
            raise UnsupportedError(
                "an array in a file object cannot be filled by other processes", key=self.key,
                remedy="Write the archive to a path.",
            )  # fmt: skip
        return self._place._replace(paths=paths)

    def __getitem__(self, index: Any) -> Any:
        """Read a part back, as a fresh array."""
        return self._in_turn(self._read, index)

    def _read(self, index: Any) -> Any:
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
        value = assigned(value, self.key, self.dtype)
        if self._mapped is not None and np.may_share_memory(value, self._mapped[0]):
            # It must not change while it is written.
            value = value.copy()
        rows = None if self._fortran_order else row_range(index, self.shape)
        if rows is None:
            array, pages = self._in_turn(self._map)
            # Some rows at a time, if the index allows it.
            for part, some, values in _split(index, value, array):
                self._in_turn(part.__setitem__, some, values)
                _give_back(pages)
            return
        start, stop = rows
        row_size = math.prod(self.shape[1:]) * self.dtype.itemsize
        offset = self._place.offset + start * row_size
        for block in self._blocks(broadcast(value, (stop - start, *self.shape[1:]))):
            self._in_turn(self._patch, offset, block)
            offset += len(block)

    def _patch(self, offset: int, block: memoryview) -> None:
        assert self._file is not None  # noqa: S101 - `_in_turn` has opened it
        self._file.patch(offset, block)

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
        array: np.memmap[Any, Any]
        array, pages = self._in_turn(self._map)
        if self._owner is not None:
            self._owner.maps[pages] = self.key
        return array

    def _map(self) -> tuple[np.memmap[Any, Any], mmap.mmap]:
        if self._mapped is None:
            descriptor = None if self._file is None else self._file.descriptor
            if descriptor is None:
                raise UnsupportedError(
                    "only whole rows can be written to an array in a file object",
                    key=self.key,
                    remedy="Write the archive to a path.",
                )
            offset = self._place.offset
            skipped = offset % mmap.ALLOCATIONGRANULARITY
            size = math.prod(self.shape) * self.dtype.itemsize
            if size:
                size += skipped
                pages = mapped(mmap.mmap, descriptor, size, offset=offset - skipped)
            else:
                # The file may end here, and an empty range cannot be mapped.
                skipped, pages = 0, mmap.mmap(-1, mmap.PAGESIZE)
            order = cast(Any, "F" if self._fortran_order else "C")
            array: np.memmap[Any, Any] = np.ndarray.__new__(
                np.memmap, self.shape, self.dtype, pages, skipped, None, order
            )
            array.offset, array.mode = offset, "r+"
            self._mapped = array, pages
        return self._mapped

    def _unmap(self) -> None:
        self._mapped = None

    def _forget(self) -> None:
        super()._forget()
        self._unmap()

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            place = self._other_place()
        except UnsupportedError as error:
            raise TypeError(str(error)) from None
        # Attributes are for the process that seals it.
        return FilledArray, (self._plan._replace(attrs=None), place)


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
    attempt = int.from_bytes(os.urandom(4), "little")
    member = writer.reserve_member(
        plan.name, size, plan.extra, is_seekable=is_seekable, stamp=attempt
    )
    sink.patch(member.offset, plan.head)

    def complete() -> None:
        crc32s = chunk_crc32s_at(sink, member.offset, member.size, CHECKED_SIZE, threads)
        member.seal(crc32s, plan.head)

    inode = 0 if sink.descriptor is None else os.fstat(sink.descriptor).st_ino
    place = ArrayPlace(
        (), inode, member.offset + len(plan.head), member.header_offset, member.local
    )  # fmt: skip
    return FilledArray(plan, place, sink, owner, complete)
