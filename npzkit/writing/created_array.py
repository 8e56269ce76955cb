"""An array that is filled piece by piece while its archive is written.

Owns what both kinds share: casting, which rows an index means, appending rows, sealing and
giving up. The kinds are `npzkit.writing.filled_array` and `npzkit.writing.growing_array`.
Knows no zip and no file.
"""

from __future__ import annotations

import abc
import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np

from npzkit.errors import ClosedArchiveError
from npzkit.format.array import data_pieces
from npzkit.members.rows import as_rows
from npzkit.writing.create_arguments import Plan

BLOCK_SIZE = 1 << 24
"""Bytes that are copied, or held by a map, at a time."""


class CreatedArray(abc.ABC):
    """An array of an archive that is being written; see `NpzWriter.create`.

    Leaving its ``with`` block seals the array. Leaving it by an exception
    discards the archive.

    Parameters
    ----------
    plan : Plan
    owner : WrittenArchive or None
        The archive it belongs to; None in a process that only fills it.
    complete : callable or None
        Completes the member, when the array is sealed.

    Attributes
    ----------
    key : str
    shape : tuple of int
    dtype : numpy.dtype
    """

    def __init__(self, plan: Plan, owner: Any, complete: Callable[[], None] | None) -> None:
        self.key, self.dtype = plan.key, plan.dtype
        self.shape: tuple[int, ...] = tuple(n or 0 for n in plan.shape)
        self._plan, self._owner, self._complete = plan, owner, complete
        self._appended = 0
        self._is_open = True
        self._process = os.getpid()
        # Held while rows get their place and are written, so that no place is given twice. It is
        # the writer's, because of two locks each might be held by one who waits for the other.
        self._lock = threading.RLock() if owner is None else owner.state.lock

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        return f"<{type(self).__name__} {self.key!r}, shape {self.shape}, {self.dtype}, {state}>"

    def append(self, rows: Any) -> None:
        """Write rows after those that were appended before.

        Parameters
        ----------
        rows : array-like
            Shape ``(n, *shape[1:])``, or one row of shape ``shape[1:]``. They are
            cast to the array's dtype; only floating-point numbers may be rounded.
            Records need the same fields. `rows` may be changed once this returns.

        Raises
        ------
        ValueError
            The shape does not fit, the array has no room for so many rows, or its
            dtype cannot have their values.
        NotAnArrayError
            NumPy cannot make an array of `rows`.
        UnsupportedError
            `rows` is a masked array.
        ClosedArchiveError
            The array is sealed, or its archive is discarded.
        """
        array = as_rows(rows, self.key, self.shape, self.dtype)
        with self._alone():
            self._check_open()
            self._append_rows(array)

    def _append_rows(self, array: np.ndarray[Any, Any]) -> None:
        most, count = self._plan.shape[0], self._appended + len(array)
        if most is not None and count > most:
            raise ValueError(
                f"the array {self.key!r} has {most} rows: {self._appended} were appended, "
                f"{len(array)} more do not fit"
            )
        self._append(array)
        self._appended = count

    @abc.abstractmethod
    def __setitem__(self, index: Any, value: Any) -> None:
        """Write values to a part of the array, cast as in an assignment."""

    @abc.abstractmethod
    def _append(self, rows: np.ndarray[Any, Any]) -> None: ...

    def close(self) -> None:
        """Seal the array: compute its CRC-32 and complete its headers.

        Closing it again does nothing. Only the process that created the array
        seals it.
        """
        with self._alone():
            if self._is_open and os.getpid() == self._process:
                self._seal()
            self._forget()

    def _alone(self) -> contextlib.AbstractContextManager[Any]:
        """Keep other threads out; a forked child has none, and may find the lock held."""
        return self._lock if os.getpid() == self._process else contextlib.nullcontext()

    def _seal(self) -> None:
        if self._owner is not None:
            self._owner.seal(self, self._complete)

    def _discard(self, error: BaseException) -> None:
        if self._owner is not None:
            self._owner.discard(error)

    def _unmap(self) -> None:
        """Keep no map of the file."""

    def _forget(self) -> None:
        """Accept no more data: the archive is complete or discarded."""
        self._is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, *_: object
    ) -> None:
        if exc_type is None:
            self.close()
        elif self._is_open and exc is not None:
            self._forget()
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
                remedy="Write all data in its with block, or add it again with overwrite=True.",
            )

    def _blocks(self, rows: np.ndarray[Any, Any]) -> Iterator[memoryview]:
        """Yield rows as bytes of the array's dtype, copying at most one block at a time."""
        if not self.dtype.itemsize:
            # NumPy would turn S0 into S1, and write into what follows.
            return
        row_size = max(math.prod(self.shape[1:]) * self.dtype.itemsize, 1)
        step = max(BLOCK_SIZE // row_size, 1)
        if rows.dtype == self.dtype and rows.flags.c_contiguous:
            step = max(len(rows), 1)
        for start in range(0, len(rows), step):
            part = np.ascontiguousarray(rows[start : start + step], self.dtype)
            yield from data_pieces(part)


def row_range(index: Any, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the first row and the end if `index` means whole consecutive rows, else None."""
    first, *rest = index if isinstance(index, tuple) and index else (index,)
    if not shape or len(rest) >= len(shape) or not all(map(_is_everything, rest)):
        return None
    if isinstance(first, (int, np.integer)) and not isinstance(first, bool):
        row = int(first) + (shape[0] if first < 0 else 0)
        return (row, row + 1) if 0 <= row < shape[0] else None
    if isinstance(first, slice):
        start, stop, step = first.indices(shape[0])
        return (start, max(start, stop)) if step == 1 else None
    return (0, shape[0]) if not rest and _is_everything(first) else None


def broadcast(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Broadcast as NumPy's assignment does, which drops surplus leading dimensions of 1."""
    while array.ndim > len(shape) and len(array) == 1:
        array = array[0]
    return np.broadcast_to(array, shape)


def _is_everything(part: Any) -> bool:
    return part is Ellipsis or (isinstance(part, slice) and part == slice(None))
