"""A file as it would be with some of its bytes corrected.

Owns the corrections, which are in memory only: nothing is written.
"""

from __future__ import annotations

import bisect

from npzkit.files.source import Source, overlay


class CorrectedSource(Source):
    """A file with some of its bytes corrected: readers find them right.

    Parameters
    ----------
    source : Source

    Attributes
    ----------
    original : Source
        The file as it is.
    """

    def __init__(self, source: Source) -> None:
        self.original = source
        self.name, self.path, self.size = source.name, source.path, source.size
        self._corrections: dict[int, bytes] = {}
        self._offsets: list[int] = []

    def correct(self, offset: int, data: bytes) -> None:
        """Read `data` at `offset` from now on; no bytes take the correction there back."""
        if offset not in self._corrections:
            bisect.insort(self._offsets, offset)
        self._corrections[offset] = data

    def readinto_at(self, offset: int, view: memoryview) -> None:
        self.original.readinto_at(offset, view)
        first = max(bisect.bisect(self._offsets, offset) - 1, 0)
        last = bisect.bisect_left(self._offsets, offset + len(view))
        for start in self._offsets[first:last]:
            overlay(view, offset, start, self._corrections[start])

    def close(self) -> None:
        self.original.close()
