"""Arrays larger than memory, filled piece by piece while their archive is written.

Owns the two kinds that `NpzWriter.create` makes: one whose place in the file
is known, filled in any order and by any process, and one that grows by rows.
Knows no zip: where the bytes go and what seals an array is handed in.
"""

from __future__ import annotations

import abc
import contextlib
import math
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, cast

import numpy as np

from npzkit.errors import ClosedArchiveError, UnsupportedError
from npzkit.files.disk import File, Place
from npzkit.format.array import check_savable, data_pieces
from npzkit.writing.prepare import as_array

__all__ = ["AppendedArray", "CreatedArray", "FilledArray"]

_BLOCK_SIZE = 1 << 24
"""Bytes that are copied, or held by a map, at a time."""


class CreatedArray(abc.ABC):
    """An array of an archive that is being written; see `NpzWriter.create`.

    Leaving its ``with`` block seals it; leaving it by an exception discards
    the archive.

    Attributes
    ----------
    key : str
    shape : tuple of int
    dtype : numpy.dtype
    """

    def __init__(self, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.key = key
        self.shape = shape
        self.dtype = dtype
        self._appended = 0
        self._is_open = True
        self._process = os.getpid()
        # Held while rows get their place and are written, so that none is given twice.
        self._lock = threading.RLock()

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        return f"<{type(self).__name__} {self.key!r}, shape {self.shape}, {self.dtype}, {state}>"

    def append(self, rows: Any) -> None:
        """Write rows behind those that were appended before.

        Parameters
        ----------
        rows : array-like
            Of shape ``(n, *shape[1:])``, or one row of shape ``shape[1:]``.
            Cast to the array's dtype as in an assignment. Read before this
            returns.

        Raises
        ------
        ValueError
            The shape does not fit, or the array has no room for so many rows.
        NotAnArrayError
            NumPy cannot make an array of `rows`.
        UnsupportedError
            A masked array.
        ClosedArchiveError
            The array is sealed, or its archive discarded.

        Notes
        -----
        Rows that cannot be cast discard the archive where the array grows:
        some of them may be in the file.
        """
        array = self._as_array(rows)
        with self._alone():
            self._check_open()
            self._append_rows(array)

    def _as_array(self, value: Any) -> np.ndarray[Any, Any]:
        """Make an array of what is assigned, as numpy does: what has no dtype takes this one."""
        if not hasattr(value, "dtype") and not hasattr(value, "__array__"):
            return as_array(value, self.key, self.dtype)
        array = as_array(value, self.key)
        try:
            # Objects are cast: only a mask has no place.
            check_savable(array, allow_pickle=True)
        except UnsupportedError as error:
            raise error.locate(key=self.key) from None
        return array

    def _append_rows(self, array: np.ndarray[Any, Any]) -> None:
        if array.shape == self.shape[1:] and self.shape:
            array = array[np.newaxis]
        if array.ndim != self.ndim or array.shape[1:] != self.shape[1:] or not self.shape:
            raise ValueError(
                f"rows of shape {array.shape} cannot be appended to an array of shape {self.shape}"
            )
        self._append(array)
        self._appended += len(array)

    @abc.abstractmethod
    def _append(self, rows: np.ndarray[Any, Any]) -> None: ...

    def close(self) -> None:
        """Seal the array: take its CRC and complete its headers. Idempotent.

        In another process than the creator's nothing is sealed.
        """
        with self._alone():
            if self._is_open:
                self._is_open = False
                if os.getpid() == self._process:
                    self._seal()

    def _alone(self) -> contextlib.AbstractContextManager[Any]:
        """Keep other threads out; a forked child has none, and may find the lock held."""
        return self._lock if os.getpid() == self._process else contextlib.nullcontext()

    @abc.abstractmethod
    def _seal(self) -> None: ...

    @abc.abstractmethod
    def _discard(self, error: BaseException) -> None: ...

    def forget(self) -> None:
        """Take no more data: the archive is complete or discarded."""
        self._is_open = False

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            self.close()
        elif self._is_open and exc is not None:
            self._is_open = False
            if os.getpid() == self._process:
                self._discard(exc)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        raise TypeError(
            f"the array {self.key!r} is being written and cannot be read; "
            "open the archive when it is closed"
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dimensions has no length")
        return self.shape[0]

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClosedArchiveError(
                "the array is sealed, or its archive closed",
                key=self.key,
                remedy="Write all of it in its with block, or add it again with overwrite=True.",
            )

    def _blocks(self, rows: np.ndarray[Any, Any]) -> Iterator[memoryview]:
        """Yield rows as bytes of the array's dtype, copying a block at a time if at all."""
        if not self.dtype.itemsize:
            # NumPy would turn S0 into S1, and write into what follows.
            return
        row_size = max(math.prod(self.shape[1:]) * self.dtype.itemsize, 1)
        step = max(_BLOCK_SIZE // row_size, 1)
        if rows.dtype == self.dtype and rows.flags.c_contiguous:
            step = max(len(rows), 1)
        for start in range(0, len(rows), step):
            part = np.ascontiguousarray(rows[start : start + step], self.dtype)
            yield from data_pieces(part)


class AppendedArray(CreatedArray):
    """An array that is written by appending rows.

    Parameters
    ----------
    key, dtype
    shape : tuple
        The first dimension is the number of rows there must be, or None.
    write : callable
        Takes the next bytes; may keep them until it returns.
    seal : callable
        Takes the final shape.
    discard : callable
        Gives the archive up.
    """

    def __init__(
        self,
        key: str,
        shape: tuple[Any, ...],
        dtype: np.dtype[Any],
        write: Callable[[Iterator[memoryview]], None],
        seal: Callable[[tuple[int, ...]], None],
        discard: Callable[[BaseException], None],
    ) -> None:
        super().__init__(key, (shape[0] or 0, *shape[1:]), dtype)
        self._row_count = shape[0]
        self._write, self._on_seal, self._on_discard = write, seal, discard

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            f"the array {self.key!r} is written by dst.append(rows): it is deflated, or its "
            "number of rows is not known. A stored array of known shape can be written in any order"
        )

    def _append(self, rows: np.ndarray[Any, Any]) -> None:
        count = self._appended + len(rows)
        if self._row_count is not None and count > self._row_count:
            raise ValueError(
                f"the array {self.key!r} has {self._row_count} rows: {self._appended} are there, "
                f"{len(rows)} more do not fit"
            )
        self._write(self._blocks(rows))
        if self._row_count is None:
            self.shape = (count, *self.shape[1:])

    def _seal(self) -> None:
        if self._row_count is not None and self._appended != self._row_count:
            error = ValueError(
                f"the array {self.key!r} was created with {self._row_count} rows and has "
                f"{self._appended}; the archive is discarded. Give None for a number that is "
                "not known"
            )
            self._on_discard(error)
            raise error
        self._on_seal(self.shape)

    def _discard(self, error: BaseException) -> None:
        self._on_discard(error)


class FilledArray(CreatedArray):
    """An array whose place in the file is known, to be filled in any order.

    What is not written is zeros. In other processes, forked or handed it by
    pickle, it writes to the same file; only its creator can seal it, when they
    are done.

    Parameters
    ----------
    key, shape, dtype
    fortran_order : bool
    place : Place
        The file, as something to write to.
    offset : int
        Where the array begins in it.
    seal, discard : callable
        As of `AppendedArray`, without a shape.
    """

    def __init__(
        self,
        key: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        fortran_order: bool,
        place: Place,
        offset: int,
        seal: Callable[[], None],
        discard: Callable[[BaseException], None],
    ) -> None:
        super().__init__(key, shape, dtype)
        self._fortran_order = fortran_order
        self._place, self._offset = place, offset
        self._on_seal, self._on_discard = seal, discard
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

        Whole rows in a row go to the file as they are, in bounded memory;
        other parts are written through a map of the file.
        """
        self._check_open()
        value = self._apart(value)
        rows = None if self._fortran_order else _row_range(index, self.shape)
        if rows is None:
            self._assign(index, value)
            return
        start, stop = rows
        target = (stop - start, *self.shape[1:])
        array = np.broadcast_to(_without_lead(value, len(target)), target)
        row_size = math.prod(self.shape[1:]) * self.dtype.itemsize
        offset = self._offset + start * row_size
        for block in self._blocks(array):
            self._place.patch(offset, block)
            offset += len(block)

    def _apart(self, value: Any) -> np.ndarray[Any, Any]:
        """Return a value that stays as it is while it is written, also one of the map."""
        array = self._as_array(value)
        if self._mapped is not None and np.may_share_memory(array, self._mapped[0]):
            return array.copy()
        return array

    def _append(self, rows: np.ndarray[Any, Any]) -> None:
        if self._appended + len(rows) > self.shape[0]:
            raise ValueError(
                f"the array {self.key!r} has {self.shape[0]} rows: {len(rows)} more behind "
                f"{self._appended} do not fit"
            )
        self[self._appended : self._appended + len(rows)] = rows

    def memmap(self) -> np.memmap[Any, Any]:
        """Return the array as a writable map of the file.

        Valid until the array is sealed: what is written through it afterwards
        makes its CRC wrong.

        Raises
        ------
        UnsupportedError
            The archive is written to a file object.
        """
        self._check_open()
        return self._map()[0]

    def _assign(self, index: Any, value: Any) -> None:
        """Assign through the map, some rows at a time where the index allows it."""
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
                # The file may end here, and of nothing there is no map.
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
        self._on_seal()

    def _discard(self, error: BaseException) -> None:
        self._mapped = None
        self._on_discard(error)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._place.path is None:
            raise TypeError("an array in a file object cannot be filled by other processes")
        fields = self.key, self.shape, self.dtype, self._fortran_order
        return _attach, (*fields, self._place.path, self._offset)


def _attach(
    key: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    fortran_order: bool,
    path: str,
    offset: int,
) -> FilledArray:
    """Open the file that another process writes, to fill an array of it."""

    def nothing(*_: object) -> None:
        """Seal and discard nothing: that is the creator's."""

    return FilledArray(key, shape, dtype, fortran_order, File(path), offset, nothing, nothing)


def _row_range(index: Any, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the rows from and to which `index` means as a whole, or None."""
    first, *rest = index if isinstance(index, tuple) and index else (index,)
    if not shape or len(rest) >= len(shape) or not all(map(_is_everything, rest)):
        return None
    if isinstance(first, slice):
        start, stop, step = first.indices(shape[0])
        return (start, max(start, stop)) if step == 1 else None
    return (0, shape[0]) if not rest and _is_everything(first) else None


def _without_lead(array: np.ndarray[Any, Any], ndim: int) -> np.ndarray[Any, Any]:
    """Drop leading dimensions of 1 that are too many, as numpy's assignment does."""
    while array.ndim > ndim and len(array) == 1:
        array = array[0]
    return array


def _is_everything(part: Any) -> bool:
    return part is Ellipsis or (isinstance(part, slice) and part == slice(None))


def _split(
    index: Any, value: Any, array: np.ndarray[Any, Any]
) -> Iterator[tuple[Any, np.ndarray[Any, Any]]]:
    """Cut an assignment into some rows at a time, where the first axis is a slice."""
    values = np.asanyarray(value)
    parts = index if isinstance(index, tuple) else (index,)
    basic = all(isinstance(part, (int, np.integer, slice)) for part in parts)
    if not parts or not basic or not isinstance(parts[0], slice):
        yield index, values
        return
    rows = range(*parts[0].indices(len(array)))
    row_size = max(array.strides[0] * abs(rows.step), array.nbytes // max(len(array), 1), 1)
    step = max(_BLOCK_SIZE // row_size, 1)
    if array.flags.f_contiguous or len(rows) <= step:
        yield index, values
        return
    target = array[index].shape
    values = np.broadcast_to(_without_lead(values, len(target)), target)
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        stop: int | None = some.stop
        if stop is not None and stop < 0:
            stop = None
        yield (slice(some.start, stop, some.step), *parts[1:]), values[start : start + step]


def _give_back(pages: mmap.mmap) -> None:
    """Have pages that were written leave this process's memory; the file keeps them."""
    if hasattr(pages, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)
