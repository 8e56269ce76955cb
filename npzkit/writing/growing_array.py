"""An array that grows by rows, written front to back.

Owns arrays that are deflated, whose number of rows is not known, or that go where
nothing can be read back: how rows are appended, how the member begins, and how its
header is completed. Knows nothing of the other members, nor of who may write at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from npzkit.errors import UnsupportedError
from npzkit.files.threads import Pipeline
from npzkit.members.rows import assigned
from npzkit.writing.array_bytes import prepare_header
from npzkit.writing.create_arguments import Plan
from npzkit.writing.created_array import CreatedArray, broadcast, row_range
from npzkit.zip.writer import ZipWriter

_ENDLESS = (1 << 63) - 1
"""Rows that an array has room for whose number is not known yet."""


class GrowingArray(CreatedArray):
    """An array that is written by appending rows, or by assigning them in order.

    Parameters
    ----------
    plan : Plan
    owner, complete
        As of `CreatedArray`.
    write : callable
        Takes the next bytes, and may keep them until it returns.
    """

    def __init__(
        self,
        plan: Plan,
        owner: Any,
        write: Callable[[Iterator[memoryview]], None],
        complete: Callable[[], None],
    ) -> None:
        super().__init__(plan, owner, complete)
        self._row_count: int | None = plan.shape[0]
        self._write = write

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write the next rows: ``dst[i:j] = rows``, where `i` rows were written before.

        Raises
        ------
        UnsupportedError
            The index means anything else. Nothing is written.
        NpzkitError, ValueError
            As `append`.
        """
        array = assigned(value, self.key, self.dtype)
        with self._alone():
            self._check_open()
            start, stop = self._next_rows(index, array)
            self._append_rows(broadcast(array, (stop - start, *self.shape[1:])))

    def _next_rows(self, index: Any, array: np.ndarray[Any, Any]) -> tuple[int, int]:
        """Return the first row and the end of an index that means the next rows."""
        count = _ENDLESS if self._row_count is None else self._row_count
        rows = row_range(index, (count, *self.shape[1:]))
        if rows is None or (rows[0] != self._appended and rows[0] < rows[1]):
            self._refuse("the parts of this array are written in order", found=f"{index!r:.80}")
        start, stop = rows
        if stop == _ENDLESS:
            stop = start + (len(array) if array.ndim == self.ndim else 1)
        return start, stop

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the array {self.key!r} is written by one process: others can fill stored arrays of "
            "known length alone, and ShardedWriter lets each process write parts of its own"
        )

    def __getitem__(self, index: Any) -> NoReturn:
        self._refuse("the parts of this array cannot be read back")

    def memmap(self) -> NoReturn:
        """Raise UnsupportedError: only an array that is filled in any order can be mapped."""
        self._refuse("this array cannot be mapped into memory")

    def _refuse(self, what: str, found: str | None = None) -> NoReturn:
        raise UnsupportedError(
            what, key=self.key, found=found,
            expected=f"rows from {self._appended} on" if found else None,
            remedy="Write the rows in order. A stored array of known shape can be filled in any "
            "order if the archive is written to a path.",
        )  # fmt: skip

    def _append(self, rows: np.ndarray[Any, Any]) -> None:
        self._owner.write_part(self._write, self._blocks(rows))
        if self._row_count is None:
            self.shape = (self._appended + len(rows), *self.shape[1:])

    def _seal(self) -> None:
        if self._row_count is not None and self._appended != self._row_count:
            error = ValueError(
                f"the array {self.key!r} was created with {self._row_count} rows and has "
                f"{self._appended}; the archive is discarded. Pass None if the number of rows "
                "is not known"
            )
            self._discard(error)
            raise error
        super()._seal()


def begin_growing(plan: Plan, writer: ZipWriter, threads: int, owner: Any) -> GrowingArray:
    """Write the header of an array that grows; rows are written after it.

    Until the array is sealed, nothing else can be written to the archive.
    """
    pipeline = Pipeline(threads)
    is_counted = plan.size is None
    member = writer.begin_member(
        plan.name, plan.size, pipeline, coding=plan.coding, extra=plan.extra
    )

    def write(pieces: Iterator[memoryview]) -> None:
        with pipeline:
            for piece in pieces:
                member.write(piece)

    def complete() -> None:
        with pipeline:
            head = prepare_header(plan.key, appended.shape, plan.dtype, plan.attrs)[0]
            member.finish(head if is_counted else None)

    if is_counted:
        member.write_start(plan.head)
    else:
        write(iter([memoryview(plan.head)]))
    appended = GrowingArray(plan, owner, write, complete)
    return appended
