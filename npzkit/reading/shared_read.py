"""One read call that several small members share, and the members in its bytes.

Owns the memory that several arrays share, and how a member in it is read:
its two headers and its inflated bytes. If a header is incomplete or special, it
returns None, and a stream reads the member.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.decompressors import inflate_chunk, inflate_start
from npzkit.codecs.methods import STORED
from npzkit.errors import ZipFormatError
from npzkit.files.source import Source
from npzkit.format.header import MAGIC_PREFIX, PREFIX_SIZE, NpyHeader, header_size, parse_header
from npzkit.zip.entries import Entry
from npzkit.zip.local_header import find_data

SPAN_SIZE = 1 << 20
"""Bytes of neighbours read in one call, and kept alive by any array of them."""
GAP_SIZE = 1 << 14
"""Unneeded bytes that are read along rather than making a second call."""

SHARED_SIZE = 1 << 24
"""Bytes of memory that arrays share, and that any of them keeps alive."""
_OWN_SIZE = 1 << 24
"""Bytes from which an array has memory of its own. Huge pages begin at multiples of their size:
an array of 4 MiB would lie in one huge page and many small ones."""
_HUGE_PAGE_SIZE = 1 << 21

_ALIGNMENT = 64
"""Windows begin at a multiple of this, so that aligned data stays aligned."""

HEADS_SIZE = 512
"""Bytes in which most members have both headers."""

_BYTE = np.dtype(np.uint8)
_cached_header_size = functools.lru_cache(256)(header_size)
"""Most archives have few kinds of headers."""


class Window(NamedTuple):
    """Bytes of the file in memory of their own.

    Attributes
    ----------
    array : numpy.ndarray of uint8
        Owns the memory; arrays made of it keep it alive.
    view : memoryview
        Onto the same memory.
    offset : int
        Of its first byte in the file.
    """

    array: np.ndarray[Any, Any]
    view: memoryview
    offset: int


def read_window(source: Source, offset: int, size: int) -> Window:
    """Read `size` bytes at `offset`, and a few before them for alignment."""
    start = offset - offset % _ALIGNMENT
    array = np.empty(offset + size - start, _BYTE)
    view = array.data
    source.readinto_at(start, view)
    return Window(array, view, start)


def memory_for(sizes: Sequence[int]) -> Iterator[np.ndarray[Any, Any] | None]:
    """Yield memory for each of several arrays, or None if one should have its own.

    Linux gives out a large piece of memory in huge pages, and smaller ones in pages
    of 4 KiB, which take twice as long as reading the bytes that go there.

    Parameters
    ----------
    sizes : sequence of int
        The most bytes that each array needs.
    """
    rooms = [-(-size // _ALIGNMENT) * _ALIGNMENT if size < _OWN_SIZE else 0 for size in sizes]
    ends = list(accumulate(rooms))
    memory, begin = np.empty(0, _BYTE), 0
    for size, room, end in zip(sizes, rooms, ends, strict=True):
        if not room:
            yield None
            continue
        start = end - room
        if end - begin > len(memory):
            begin = start
            last = min(bisect_left(ends, begin + SHARED_SIZE), len(ends) - 1)
            memory = _huge_pages(ends[last] - begin)
        yield memory[start - begin : start - begin + size]


def _huge_pages(size: int) -> np.ndarray[Any, Any]:
    """Return memory that begins with a huge page; what is before it is never touched.

    Without that, small pages at both ends take as long as a quarter of the reading.
    """
    if size < _HUGE_PAGE_SIZE:
        return np.empty(size, _BYTE)
    memory = np.empty(size + _HUGE_PAGE_SIZE, _BYTE)
    address = memory.__array_interface__["data"][0]
    start = -address % _HUGE_PAGE_SIZE
    return memory[start : start + size]


def aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copy data that is not aligned, such as np.savez's: NumPy computes on it at half speed."""
    # copy() would turn S0 into S1.
    return array if array.flags.aligned or not array.itemsize else array.copy("K")


class HeaderFinder:
    """Finds the NPY headers of one archive's members, and remembers the last one.

    Neighbours mostly have the same header. To compare it with the last one takes a
    third of the time of two lookups: its size by its prefix, and its meaning.

    Parameters
    ----------
    limit : int or None
        As in `header_size`.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._last: tuple[bytes, NpyHeader | None] = (b"", None)

    def find(
        self, head: bytes | memoryview, entry: Entry, verify: bool
    ) -> tuple[NpyHeader, int] | None:
        """Return a member's NPY header, and where its data begins, from `head`'s start.

        Parameters
        ----------
        head : bytes-like
            The archive's bytes from the local header on.
        entry : Entry
            Stored or deflated, without a data descriptor.
        verify : bool
            As in `find_data`.

        Returns
        -------
        (NpyHeader, int) or None
            None if `head` does not hold both headers, or as in `parse`.
        """
        start = find_data(head, entry, verify)
        if start is None:
            return None
        if entry.method == STORED:
            header = self.parse(head, start, entry)
            return header and (header, start)
        try:
            data = inflate_start(head[start : start + entry.compressed_size], HEADS_SIZE)
        except ZipFormatError:
            return None
        header = self.parse(data, 0, entry)
        return header and (header, start)

    def parse(
        self, data: bytes | bytearray | memoryview, start: int, entry: Entry
    ) -> NpyHeader | None:
        """Parse the NPY header with which a member's bytes begin, at `start` of `data`.

        None if `data` does not hold all of it, and for anything but an array of
        plain values that fills the member. A stream reads such a member, or says
        what is wrong with it.
        """
        raw, header = self._last
        if header is None or data[start : start + len(raw)] != raw:
            header = self._parse_other(data, start, entry)
            if header is None:
                return None
        # Bytes after a short member are the next one's.
        return header if header.data_offset + header.nbytes == entry.uncompressed_size else None

    def _parse_other(
        self, data: bytes | bytearray | memoryview, start: int, entry: Entry
    ) -> NpyHeader | None:
        """Parse a header that is not the last one, and remember it."""
        prefix = bytes(data[start : start + PREFIX_SIZE])
        if min(len(prefix), entry.uncompressed_size) < PREFIX_SIZE or prefix[:6] != MAGIC_PREFIX:
            return None
        end = start + _cached_header_size(prefix, self._limit)
        if end > len(data) or end - start > entry.uncompressed_size:
            return None
        raw = bytes(data[start:end])
        header = parse_header(raw)
        if header.dtype.hasobject:
            return None
        # One assignment, because threads share an archive.
        self._last = raw, header
        return header


def inflated(data: memoryview, entry: Entry) -> bytearray | None:
    """Return a whole deflated member; None if its stream is not what the entry says."""
    try:
        return bytearray(inflate_chunk(data, entry.uncompressed_size, final=True))
    except ZipFormatError:
        return None
