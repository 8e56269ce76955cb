"""A deflated member with an index, inflated into its array on several threads.

Owns how far an index is trusted: it only says where chunks begin, and the
member's own CRC-32 shows whether that was right. If it was not, the member must
be read without its index, which returns the data or raises the right error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.checksum import crc32_combine
from npzkit.errors import ZipFormatError
from npzkit.zip.chunks import Chunks
from npzkit.zip.entries import Entry

Part = tuple[int, int] | None
"""The CRC-32 and the size of a task's inflated bytes; None if it failed."""


class Inflation(NamedTuple):
    """An array that is allocated and checked, and its data in chunks.

    Attributes
    ----------
    array : numpy.ndarray
    view : memoryview
        Its memory in file order.
    header_size : int
        Bytes of the member before the data.
    chunks : Chunks
    """

    array: np.ndarray[Any, Any]
    view: memoryview
    header_size: int
    chunks: Chunks

    def tasks(self, threads: int) -> list[Callable[[], Part]]:
        """Return tasks for threads that together fill the array."""
        tasks = self.chunks.whole_tasks(self.header_size, self.view, threads)
        return [functools.partial(_part, task) for task in tasks]

    @staticmethod
    def is_right(parts: Sequence[Part], entry: Entry) -> bool:
        """Whether the tasks' results are those of the member's data."""
        whole = 0
        for part in parts:
            if part is None:
                return False
            whole = crc32_combine(whole, *part)
        return whole == entry.crc32


def _part(task: Callable[[], tuple[int, int]]) -> Part:
    """Reading without the index raises the right error."""
    try:
        return task()
    except ZipFormatError:
        return None
