"""The room of an append: behind it, the older end is found until the append is complete.

Owns where the copy of the older end goes. Whoever opens the file finds an end record in its last
64 KiB: that of the last commit, or of the copy. Knows nothing about zip but that, and that an end
record is found by its signature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from npzkit.files.disk import Buffer

SIGNATURE = b"PK\5\6"
"""By which programs find an end record."""
FOUND_SIZE = 0xFFFF + 22
"""Bytes of the end of a file in which an end record is looked for."""
_PAGE_SIZE = 1 << 12
"""What a killed process writes within one is there, or not."""
_SECTOR_SIZE = 512
_MOST_STEP = 1 << 26
_COPY_SHARE = 64
"""Copies take at most this share of what is written."""


class Ending(NamedTuple):
    """What completes an append.

    Attributes
    ----------
    mark : (int, bytes)
        An offset, and bytes to put there last of all; there are zeros.
    magic : (int, bytes)
        Likewise, once what follows the append is cut off.
    """

    mark: tuple[int, bytes]
    magic: tuple[int, bytes]


MakeFar = Callable[[int], tuple[bytes, ...]]
"""Returns the copy to be put at an offset, in parts, of which the last is its end record."""


class Append(NamedTuple):
    """An append that is about to begin.

    Attributes
    ----------
    intent : bytes
        Its first bytes.
    record : int
        Where the end record of the last commit begins.
    far : callable
        See `MakeFar`.
    """

    intent: bytes
    record: int
    far: MakeFar


class Room:
    """The room in which an append writes.

    Parameters
    ----------
    put : callable
        Writes bytes at an offset.
    sync : callable
        Called once a copy is written: it must be on the disk before anything else, if the append
        is to be durable.
    append : Append
    start : int
        Where the append begins.

    Attributes
    ----------
    end, far_end : int
        Where the room ends and the copy begins, and where that ends; 0 before there is one.
    """

    def __init__(
        self,
        put: Callable[[int, bytes], object],
        sync: Callable[[], object],
        append: Append,
        start: int,
    ) -> None:
        self._put, self._sync, self._append, self._start = put, sync, append, start
        # The end record that is found now.
        self._record = append.record
        self.end = self.far_end = 0

    def reach(self, end: int) -> None:
        """Have room up to `end`."""
        if end <= self.end:
            return
        old, size = self.end, self.far_end - self.end
        begin = max(end, self.far_end)
        if size:
            begin = max(begin, old + min(old - self._start, max(_MOST_STEP, _COPY_SHARE * size)))
        # They are joined once: of many members, they are long.
        parts = self._append.far(begin)
        length = sum(map(len, parts))
        # The record and the directory of the append have room too, if it is not small.
        if end - self._start > FOUND_SIZE:
            begin += _PAGE_SIZE + 2 * length + (end - self._start >> 12)
        begin = _placed(begin, length - len(parts[-1]), length)
        parts = self._append.far(begin)
        data = b"".join(parts)
        record = len(data) - len(parts[-1])
        if begin + len(data) - self._record <= FOUND_SIZE:
            # The end record before it is found until it is complete.
            sealed = record + len(SIGNATURE)
            self._put(begin, data[:record] + bytes(len(SIGNATURE)) + data[sealed:])
            self._put(begin + record, data[record:sealed])
        else:
            self._put(begin, data)
        self._sync()
        self.end, self.far_end, self._record = begin, begin + len(data), begin + record
        if size:
            # What is skipped in the room must be zeros.
            self._put(old, bytes(size))


def _placed(begin: int, record: int, size: int) -> int:
    """Return where a copy is put, at `begin` or behind it.

    A disk writes its end record whole, and a killed process all of it, if it fits a page.
    """
    tail, page = size - record, begin % _PAGE_SIZE
    places = [page, page + -(page + record) % _SECTOR_SIZE, _PAGE_SIZE]
    places.append(_PAGE_SIZE + -record % _SECTOR_SIZE)
    for place in places:
        is_whole = (place + record) % _SECTOR_SIZE + tail <= _SECTOR_SIZE
        if is_whole and (size > _PAGE_SIZE or place % _PAGE_SIZE + size <= _PAGE_SIZE):
            return begin - page + place
    return begin - page + places[-1]


def without(data: bytes, patch: tuple[int, bytes], start: int) -> tuple[Buffer, ...]:
    """Return bytes that lie at `start` in pieces, with zeros where a patch goes."""
    view, begin, size = memoryview(data), patch[0] - start, len(patch[1])
    return view[:begin], bytes(size), view[begin + size :]
